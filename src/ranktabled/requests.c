/* Sends requests to the API server, from libuv's threads, and handles the answers on the loop. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/backoff.h"
#include "base/clock.h"
#include "base/log.h"
#include "ranktabled/ranktabled_private.h"

#define CALL_MS      5000
#define CONFLICT_MS  50 /* between two attempts if others write, too; doubled up to CONFLICT_TOP */
#define CONFLICT_TOP 500
#define AWAIT_MS     5000 /* how long the watch can take to deliver our own write */
#define BACKOFF_MS   200
#define BACKOFF_TOP  30000
#define BODY_MAX     (6 * (size_t)HL_RANKTABLE_BYTES_MAX + 4096) /* of a quoted table */

enum what { WRITE, READ, EVENT };

struct call {
    uv_work_t work;
    struct hl_ranktabled *d;
    enum what what;
    char *key; /* of the job whose table is written, or of the ConfigMap that is read */
    enum cache_kind kind;
    char path[1024];
    json_t *event;
    char *table;                     /* to write */
    char version[CACHE_VERSION_MAX]; /* that the table replaces, or last seen before reading */
    json_t *answer;
    hl_status st;
    char why[HL_ERROR_TEXT_MAX];
};

static void free_call(struct call *c)
{
    json_decref(c->event);
    json_decref(c->answer);
    free(c->table);
    free(c->key);
    free(c);
}

/* The table is quoted here and not on the loop, and not before its turn, because a hundred can
 * wait. */
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
    r->only_metadata = true;
    hl_status st = body.failed ? hl_fail(HL_ENOMEM, "out of memory allocating a rank table")
                               : hl_kube_call(c->d->kube, r, &c->answer);
    hl_buf_fini(&body);
    return st;
}

static void send_request(uv_work_t *work)
{
    static const char *const skipped[] = {"managedFields", NULL};
    static const struct hl_kube_members members = {.names = skipped};
    static const char *const methods[] = {[WRITE] = "PATCH", [READ] = "GET", [EVENT] = "POST"};
    struct call *c = work->data;
    struct hl_kube_request r = {.method = methods[c->what],
                                .path = c->path,
                                .body = c->event,
                                .timeout_ms = CALL_MS,
                                .members = &members};
    c->st = c->what == WRITE ? write_table(c, &r) : hl_kube_call(c->d->kube, &r, &c->answer);
    if (c->st != HL_OK)
        snprintf(c->why, sizeof(c->why), "%s", hl_error_text());
}

static uint64_t time_in(uint64_t ms)
{
    return hl_now_ns() + ms * HL_NS_PER_MS;
}

static void retry_in(struct cached_job *j, uint64_t ms)
{
    j->not_before_ns = time_in(ms);
    j->dirty = true;
}

static void on_written(struct hl_ranktabled *d, struct cached_job *j, struct call *c)
{
    struct cached_map *map = cache_map_of(&d->cache, j);
    j->writing = false;
    if (c->st == HL_OK) {
        d->writes++;
        j->tries = 0;
        if (j->state == HL_RANKTABLE_COMPLETED) {
            j->told[0] = '\0';
            hl_info("%s: completed, %zu pods", j->entry.key, j->counted);
        }
        j->dirty |=
            map == NULL ||
            !cache_wrote(map, c->version, cache_meta(c->answer, "resourceVersion"), &c->table);
        if (map != NULL)
            map->awaited_until_ns = time_in(AWAIT_MS);
    } else if (c->st == HL_ECONFLICT || c->st == HL_ENOENT) {
        d->conflicts++;
        if (map != NULL)
            map->unread = true;
        retry_in(j, hl_backoff_ms(CONFLICT_MS, CONFLICT_TOP, j->tries++));
    } else if (c->st != HL_ECANCELED) {
        d->failures++;
        if (c->st == HL_EINVAL) /* the ConfigMap is immutable or full */
            ranktabled_tell(d, j, HL_RANKTABLE_UNABLE, c->why);
        else
            hl_warn("rank table of %s: %s", j->entry.key, c->why);
        retry_in(j, hl_backoff_ms(BACKOFF_MS, BACKOFF_TOP, j->tries++));
    }
    if (j->gone)
        cache_forget(&d->cache, j);
}

/* If the ConfigMap is gone, the watch will tell. */
static void on_read(struct hl_ranktabled *d, struct call *c)
{
    struct cached_map *map = cache_map(&d->cache, c->key);
    if (map == NULL)
        return;
    map->reading = false;
    if (c->st == HL_OK) {
        d->reads++;
        map->tries = 0;
        cache_was_read(map, c->answer, c->version);
        d->was_read(d, map);
    } else if (c->st != HL_ECANCELED) {
        if (c->st != HL_ENOENT)
            hl_warn("%s: %s", c->key, c->why);
        map->not_before_ns = time_in(hl_backoff_ms(BACKOFF_MS, BACKOFF_TOP, map->tries++));
    }
}

static void on_done(uv_work_t *work, int status)
{
    struct call *c = work->data;
    struct hl_ranktabled *d = c->d;
    if (status != 0)
        c->st = HL_ECANCELED;
    d->calls--;
    struct cached_job *j = c->what == WRITE ? cache_job(&d->cache, c->kind, c->key) : NULL;
    if (j != NULL)
        on_written(d, j, c);
    else if (c->what == READ)
        on_read(d, c);
    else if (c->what == EVENT && c->st != HL_OK)
        hl_warn("event: %s", c->why);
    free_call(c);
}

static struct call *make_call(struct hl_ranktabled *d, enum what what, const char *key)
{
    struct call *c = calloc(1, sizeof(*c));
    if (c == NULL || (key != NULL && (c->key = strdup(key)) == NULL)) {
        free(c);
        return NULL;
    }
    c->d = d;
    c->what = what;
    c->work.data = c;
    return c;
}

static bool send_call(struct call *c)
{
    bool is_whole = c->what != EVENT || c->event != NULL;
    if (is_whole &&
        uv_queue_work(hl_loop_uv(c->d->opts.loop), &c->work, send_request, on_done) == 0) {
        c->d->calls++;
        return true;
    }
    free_call(c);
    return false;
}

/* Makes a call for the ConfigMap. */
static struct call *make_for(struct hl_ranktabled *d, enum what what, const char *key,
                             const struct cached_map *map, const char *version)
{
    struct call *c = make_call(d, what, key);
    if (c == NULL)
        return NULL;
    snprintf(c->version, sizeof(c->version), "%s", version);
    snprintf(c->path, sizeof(c->path), "/api/v1/namespaces/%.300s/configmaps/%.300s%s", map->ns,
             map->name, what == WRITE ? "?fieldManager=helios-ranktable" : "");
    return c;
}

void request_write(struct hl_ranktabled *d, struct cached_job *job, const struct cached_map *map,
                   char *text)
{
    struct call *c = make_for(d, WRITE, job->entry.key, map, map->version);
    if (c != NULL) {
        c->kind = job->entry.kind;
        c->table = text;
    } else {
        free(text);
    }
    job->writing = c != NULL && send_call(c);
    if (!job->writing)
        retry_in(job, BACKOFF_TOP);
}

void request_read(struct hl_ranktabled *d, struct cached_map *map)
{
    struct call *c = make_for(d, READ, map->entry.key, map, map->seen);
    map->reading = c != NULL && send_call(c);
    if (!map->reading)
        map->not_before_ns = time_in(BACKOFF_TOP);
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
    struct call *c = make_call(d, EVENT, NULL);
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

void ranktabled_tell(struct hl_ranktabled *d, struct cached_job *j, enum hl_ranktable_state state,
                     const char *reason)
{
    j->state = state;
    if (state == HL_RANKTABLE_COMPLETED && !j->writing) /* otherwise it is still to be written */
        j->told[0] = '\0';
    if (state != HL_RANKTABLE_UNABLE || strncmp(j->told, reason, sizeof(j->told) - 1) == 0 ||
        !ranktabled_leads(d))
        return;
    snprintf(j->told, sizeof(j->told), "%s", reason);
    hl_warn("%s: no rank table: %s", j->entry.key, reason);
    if (!d->opts.dry_run)
        request_event(d, j, reason);
}
