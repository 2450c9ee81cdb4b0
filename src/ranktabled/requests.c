/* What is sent to the API server, by libuv's threads. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/backoff.h"
#include "base/clock.h"
#include "base/log.h"
#include "ranktabled/ranktabled_private.h"

#define CALL_MS     5000
#define CONFLICT_MS 500  /* the watch brings what we did not know */
#define AWAIT_MS    5000 /* what the watch may take to bring it, before we ask again */
#define BACKOFF_MS  200
#define BACKOFF_TOP 30000
#define BODY_MAX    (6 * (size_t)HL_RANKTABLE_BYTES_MAX + 4096) /* quoted */

struct call {
    uv_work_t work;
    struct hl_ranktabled *d;
    char *key; /* of the job whose table is written; NULL = an event */
    enum cache_kind kind;
    unsigned long serial; /* of the ConfigMap that was known then */
    char path[1024];
    const char *method;
    json_t *event; /* or a table and the version of the ConfigMap that it replaces: */
    char *table, *version;
    hl_status st;
    char why[HL_ERROR_TEXT_MAX];
};

static void free_call(struct call *c)
{
    json_decref(c->event);
    free(c->table);
    free(c->version);
    free(c->key);
    free(c);
}

/* The table is quoted here, not on the loop; and not before its turn, as a hundred may wait. */
static hl_status write_table(struct call *c, struct hl_kube_request *r)
{
    struct hl_buf body = HL_BUF(BODY_MAX);
    hl_buf_printf(&body, "{\"metadata\":{\"resourceVersion\":");
    hl_buf_quote(&body, c->version);
    hl_buf_printf(&body, "},\"data\":{\"" HL_RANKTABLE_KEY "\":");
    hl_buf_quote(&body, c->table);
    hl_buf_printf(&body, "}}");
    r->text = body.data;
    r->type = HL_KUBE_MERGE;
    r->only_metadata = 1;
    hl_status st = body.failed ? hl_fail(HL_ENOMEM, "memory is short for a rank table")
                               : hl_kube_call(c->d->kube, r, NULL);
    hl_buf_fini(&body);
    return st;
}

static void run(uv_work_t *work)
{
    struct call *c = work->data;
    struct hl_kube_request r = {
        .method = c->method, .path = c->path, .body = c->event, .timeout_ms = CALL_MS};
    c->st = c->key != NULL ? write_table(c, &r) : hl_kube_call(c->d->kube, &r, NULL);
    if (c->st != HL_OK)
        snprintf(c->why, sizeof(c->why), "%s", hl_error_text());
}

static void retry_in(struct cached_job *j, uint64_t ms)
{
    j->not_before_ns = hl_now_ns() + ms * HL_NS_PER_MS;
    j->dirty = 1;
}

static void on_written(struct hl_ranktabled *d, struct cached_job *j, struct call *c)
{
    j->writing = 0;
    if (j->written == c->table)
        c->table = NULL; /* it is the job's from now on */
    if (c->st == HL_OK) {
        d->writes++;
        j->tries = 0;
        j->awaited = c->serial;
        j->awaited_until_ns = hl_now_ns() + AWAIT_MS * HL_NS_PER_MS;
    } else if (c->st == HL_ECONFLICT || c->st == HL_ENOENT) {
        d->conflicts++;
        retry_in(j, CONFLICT_MS);
    } else if (c->st != HL_ECANCELED) {
        d->failures++;
        hl_warn("rank table of %s: %s", j->entry.key, c->why);
        retry_in(j, hl_backoff_ms(BACKOFF_MS, BACKOFF_TOP, j->tries++));
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
        hl_warn("event: %s", c->why);
    free_call(c);
}

static struct call *make(struct hl_ranktabled *d, const char *method)
{
    struct call *c = calloc(1, sizeof(*c));
    if (c != NULL)
        *c = (struct call){.d = d, .method = method, .work = {.data = c}};
    return c;
}

static int send_call(struct call *c)
{
    int is_whole = c->key != NULL ? c->table != NULL && c->version != NULL : c->event != NULL;
    if (is_whole && uv_queue_work(hl_loop_uv(c->d->opts.loop), &c->work, run, on_done) == 0) {
        c->d->calls++;
        return 1;
    }
    free_call(c);
    return 0;
}

void request_write(struct hl_ranktabled *d, struct cached_job *job, const struct cached_map *map,
                   char *text)
{
    struct call *c = make(d, "PATCH");
    if (c != NULL) {
        snprintf(c->path, sizeof(c->path),
                 "/api/v1/namespaces/%.300s/configmaps/%.300s?fieldManager=helios-ranktable",
                 map->ns, map->name);
        c->key = strdup(job->entry.key);
        c->kind = job->entry.kind;
        c->table = text;
        c->version = strdup(map->version);
        c->serial = map->serial;
    } else {
        free(text);
    }
    free(job->written);
    job->writing = c != NULL && send_call(c);
    job->written = job->writing ? text : NULL;
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
    struct call *c = make(d, "POST");
    if (c == NULL)
        return;
    c->event = json_pack("{s:{s:s s:s} s:{s:s s:s s:s s:s s:s} s:s s:s s:s s:{s:s} s:s s:s s:i}",
                         "metadata", "generateName", "helios-ranktable-", "namespace", job->ns,
                         "involvedObject", "apiVersion", kinds[job->entry.kind].api, "kind",
                         kinds[job->entry.kind].kind, "name", job->name, "namespace", job->ns,
                         "uid", cache_meta(job->object, "uid"), "type", "Warning", "reason",
                         "RankTable", "message", reason, "source", "component", "helios-ranktable",
                         "firstTimestamp", now, "lastTimestamp", now, "count", 1);
    snprintf(c->path, sizeof(c->path), "/api/v1/namespaces/%.300s/events", job->ns);
    d->events += (unsigned long)send_call(c);
}
