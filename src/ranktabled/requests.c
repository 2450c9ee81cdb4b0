/* What is sent to the API server, by libuv's threads. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/log.h"
#include "ranktabled/ranktabled_private.h"

#define CALL_MS     5000
#define CONFLICT_MS 500  /* the watch brings what we did not know */
#define AWAIT_MS    5000 /* what the watch may take to bring it, before we ask again */
#define BACKOFF_MS  200
#define BACKOFF_TOP 30000

struct call {
    uv_work_t work;
    struct hl_ranktabled *d;
    char *key; /* of the job whose table is written; NULL = an event */
    enum cache_kind kind;
    unsigned long serial; /* of the ConfigMap that was known then */
    char path[1024];
    const char *method;
    json_t *body;
    hl_status st;
    char text[HL_ERROR_TEXT_MAX];
};

static void run(uv_work_t *work)
{
    struct call *c = work->data;
    c->st = hl_kube_call(c->d->kube,
                         &(struct hl_kube_request){.method = c->method,
                                                   .path = c->path,
                                                   .body = c->body,
                                                   .type = c->key != NULL ? HL_KUBE_MERGE : NULL,
                                                   .timeout_ms = CALL_MS},
                         NULL);
    if (c->st != HL_OK)
        snprintf(c->text, sizeof(c->text), "%s", hl_error_text());
}

static void retry_in(struct cached_job *j, uint64_t ms)
{
    j->not_before_ns = hl_now_ns() + ms * HL_NS_PER_MS;
    j->dirty = 1;
}

static void on_written(struct hl_ranktabled *d, struct cached_job *j, struct call *c)
{
    j->writing = 0;
    if (c->st == HL_OK) {
        d->writes++;
        j->tries = 0;
        j->awaited = c->serial;
        j->awaited_until_ns = hl_now_ns() + AWAIT_MS * HL_NS_PER_MS;
    } else if (c->st == HL_ECONFLICT || c->st == HL_ENOENT) {
        d->conflicts++;
        retry_in(j, CONFLICT_MS);
    } else if (c->st != HL_ECANCELED) {
        uint64_t ms = (uint64_t)BACKOFF_MS << (j->tries < 8 ? j->tries : 8);
        j->tries++;
        d->failures++;
        hl_warn("rank table of %s: %s", j->entry.key, c->text);
        retry_in(j, ms < BACKOFF_TOP ? ms : BACKOFF_TOP);
    }
    if (j->gone)
        cache_forget(&d->cache, j);
}

static void on_done(uv_work_t *work, int status)
{
    struct call *c = work->data;
    struct hl_ranktabled *d = c->d;
    if (status != 0)
        c->st = HL_ECANCELED;
    d->calls--;
    struct cached_job *j = c->key != NULL ? cache_job(&d->cache, c->kind, c->key) : NULL;
    if (j != NULL)
        on_written(d, j, c);
    else if (c->key == NULL && c->st != HL_OK)
        hl_warn("event: %s", c->text);
    json_decref(c->body);
    free(c->key);
    free(c);
}

static struct call *make(struct hl_ranktabled *d, const char *method, json_t *body)
{
    struct call *c = calloc(1, sizeof(*c));
    if (c == NULL || body == NULL) {
        free(c);
        json_decref(body);
        return NULL;
    }
    *c = (struct call){.d = d, .method = method, .body = body, .work = {.data = c}};
    return c;
}

static int send_call(struct call *c)
{
    if (uv_queue_work(hl_loop_uv(c->d->opts.loop), &c->work, run, on_done) == 0) {
        c->d->calls++;
        return 1;
    }
    json_decref(c->body);
    free(c->key);
    free(c);
    return 0;
}

void request_write(struct hl_ranktabled *d, struct cached_job *job, const struct cached_map *map,
                   const char *text)
{
    struct call *c = make(d, "PATCH",
                          json_pack("{s:{s:s} s:{s:s}}", "metadata", "resourceVersion",
                                    map->version, "data", HL_RANKTABLE_KEY, text));
    if (c != NULL) {
        snprintf(c->path, sizeof(c->path),
                 "/api/v1/namespaces/%.300s/configmaps/%.300s?fieldManager=helios-ranktable",
                 map->ns, map->name);
        c->key = strdup(job->entry.key);
        c->kind = job->entry.kind;
        c->serial = map->serial;
        job->writing = send_call(c);
    }
    if (!job->writing)
        retry_in(job, BACKOFF_TOP);
}

static const struct {
    const char *api, *kind;
} kinds[] = {
    [HL_RANKTABLE_VOLCANO] = {"batch.volcano.sh/v1alpha1", "Job"},
    [HL_RANKTABLE_BATCH] = {"batch/v1", "Job"},
    [HL_RANKTABLE_DEPLOYMENT] = {"apps/v1", "Deployment"},
};

void request_event(struct hl_ranktabled *d, const struct cached_job *job, const char *reason)
{
    char now[64];
    struct tm utc;
    time_t t = time(NULL);
    gmtime_r(&t, &utc);
    strftime(now, sizeof(now), "%Y-%m-%dT%H:%M:%SZ", &utc);
    const json_t *o = job->object;
    struct call *c =
        make(d, "POST",
             json_pack("{s:{s:s s:s} s:{s:s s:s s:s s:s s:s} s:s s:s s:s s:{s:s} s:s s:s s:i}",
                       "metadata", "generateName", "helios-ranktable-", "namespace",
                       cache_meta(o, "namespace"), "involvedObject", "apiVersion",
                       kinds[job->entry.kind].api, "kind", kinds[job->entry.kind].kind, "name",
                       cache_meta(o, "name"), "namespace", cache_meta(o, "namespace"), "uid",
                       cache_meta(o, "uid"), "type", "Warning", "reason", "RankTable", "message",
                       reason, "source", "component", "helios-ranktable", "firstTimestamp", now,
                       "lastTimestamp", now, "count", 1));
    if (c == NULL)
        return;
    snprintf(c->path, sizeof(c->path), "/api/v1/namespaces/%.300s/events",
             cache_meta(o, "namespace"));
    d->events += (unsigned long)send_call(c);
}
