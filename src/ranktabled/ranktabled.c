/* Connects the parts: watchers feed the cache, a timer judges the jobs that changed, requests carry
 * out the decisions. */
#include "ranktabled/ranktabled_private.h"

#include <ctype.h>
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"

#define BATCH_MS 100
#define TURN_NS  (20 * HL_NS_PER_MS) /* longest turn of judging; then other callbacks run */
#define LOOK_NS  HL_NS_PER_S         /* between two judgements of a table that lacks pods */

/* Members that make up most of an object and don't matter to a table. A job's `volumes` are kept,
 * because they name its ConfigMap. */
static const char *const skipped[] = {
    "managedFields", "env", "volumeMounts", "tolerations", "affinity", "conditions", NULL,
};
static const struct hl_kube_members of_pods = {.names = hl_ranktable_pod_members, .only = true};
static const struct hl_kube_members of_others = {.names = skipped};

static const struct {
    const char *path, *name;
    const struct hl_kube_members *members;
    bool optional, only_metadata;
} feed_rows[CACHE_KINDS] = {
    [CACHE_VCJOBS] = {"/apis/batch.volcano.sh/v1alpha1/jobs", "vcjobs", &of_others,
                      .optional = true},
    [CACHE_JOBS] = {"/apis/batch/v1/jobs", "jobs", &of_others},
    [CACHE_DEPLOYMENTS] = {"/apis/apps/v1/deployments", "deployments", &of_others},
    [CACHE_PODS] = {"/api/v1/pods", "pods", &of_pods},
    [CACHE_MAPS] = {"/api/v1/configmaps", "configmaps", &of_others, .only_metadata = true},
};

/* ---- feeding the cache ----------------------------------------------------------------------- */

static void on_changed(void *arg, enum hl_kube_event type, json_t *object)
{
    struct feed *f = arg;
    if (type == HL_KUBE_DELETED)
        cache_drop(&f->d->cache, f->kind, object);
    else if (cache_put(&f->d->cache, f->kind, object) != HL_OK)
        hl_error("%s", hl_error_text());
}

static hl_status decode_pod(const char *bytes, size_t len, void **out)
{
    struct hl_ranktable_pod *pod;
    HL_TRY(hl_ranktable_pod_decode(bytes, len, &pod));
    *out = pod;
    return HL_OK;
}

static void drop_decoded(void *object)
{
    hl_ranktable_pod_free(object);
}

static void on_pod(void *arg, enum hl_kube_event type, void *object)
{
    struct cache *cache = &((struct feed *)arg)->d->cache;
    struct hl_ranktable_pod *pod = object;
    if (type == HL_KUBE_DELETED) {
        cache_drop_pod(cache, pod->uid);
        hl_ranktable_pod_free(pod);
    } else if (cache_put_pod(cache, pod) != HL_OK) {
        hl_error("%s", hl_error_text());
    }
}

static const struct hl_kube_decoder decoder = {decode_pod, on_pod, drop_decoded};

static void on_listed(void *arg, const json_t *objects, unsigned page)
{
    struct feed *f = arg;
    json_t *object;
    size_t i;
    if (page & HL_KUBE_FIRST) {
        f->is_known = false;
        cache_list_begin(&f->d->cache, f->kind);
    }
    json_array_foreach (objects, i, object)
        on_changed(f, HL_KUBE_ADDED, object);
    if (page & HL_KUBE_LAST) {
        f->is_known = true;
        cache_list_end(&f->d->cache, f->kind);
        malloc_trim(0); /* parsing takes many times what is kept */
    }
}

/* ---- judging --------------------------------------------------------------------------------- */

static bool map_is_usable(struct hl_ranktabled *d, struct cached_job *j,
                          const struct cached_map *map)
{
    char reason[HL_RANKTABLE_REASON_MAX];
    const struct cached_job *rival = cache_rival(&d->cache, j);
    if (rival == NULL && map != NULL)
        return true;
    if (rival != NULL)
        snprintf(reason, sizeof(reason), "its ConfigMap %s is that of %.200s, which is older",
                 j->map, rival->entry.key);
    else
        snprintf(reason, sizeof(reason), "there is no ConfigMap %s with the label %s=%s", j->map,
                 HL_RANKTABLE_LABEL, d->label_value);
    ranktabled_tell(d, j, rival != NULL ? HL_RANKTABLE_UNABLE : HL_RANKTABLE_WAITING, reason);
    return false;
}

static hl_status verdict_of(struct hl_ranktabled *d, const struct cached_job *j,
                            const struct cached_map *map, struct hl_ranktable_verdict *out)
{
    size_t count;
    const struct hl_ranktable_pod *const *pods = cache_pods_of(&d->cache, j, &count);
    return hl_ranktable_judge(&d->opts.rules, (enum hl_ranktable_kind)j->entry.kind, j->object,
                              pods, count, map->text, out);
}

/* While a table waits for pods, most pods that come or go change nothing in it. So it is judged
 * only once a second, and a fault of a pod is reported a little later. */
static bool may_wait(struct hl_ranktabled *d, const struct cached_job *j, uint64_t now)
{
    static const char initializing[] = "{\"status\":\"initializing\"";
    if (now >= j->look_ns || cache_ready_of(&d->cache, j) >= j->wanted)
        return false;
    const struct cached_map *map = cache_map_of(&d->cache, j);
    return map != NULL && !map->unread && map->text != NULL &&
           strncmp(map->text, initializing, strlen(initializing)) == 0;
}

static void judge_job(struct hl_ranktabled *d, struct cached_job *j)
{
    struct hl_ranktable_verdict v;
    const struct cached_map *map = cache_map_of(&d->cache, j);
    if (!map_is_usable(d, j, map))
        return;
    if (verdict_of(d, j, map, &v) != HL_OK) {
        hl_error("%s: %s", j->entry.key, hl_error_text());
        j->dirty = true;
        return;
    }
    j->counted = v.counted;
    j->wanted = v.wanted;
    j->look_ns = v.state != HL_RANKTABLE_COMPLETED ? hl_now_ns() + LOOK_NS : 0;
    if (v.text != NULL && d->opts.dry_run)
        hl_info("%s: dry run: a table of %zu bytes is not written", j->entry.key, strlen(v.text));
    else if (v.text != NULL && ranktabled_leads(d))
        request_write(d, j, map, hl_steal(&v.text));
    ranktabled_tell(d, j, v.state, v.reason);
    hl_ranktable_verdict_fini(&v);
}

/* True: the job must wait, because its ConfigMap must be read first, or the watch has not yet
 * delivered its last write; the next change could not be told from another writer's. An
 * instance that does not write can judge by the old text. */
static bool is_behind(struct hl_ranktabled *d, const struct cached_job *j, uint64_t now)
{
    struct cached_map *map = cache_map_of(&d->cache, j);
    if (map == NULL || !ranktabled_leads(d))
        return false;
    /* Only a job that may write the ConfigMap reads it. While another job writes it, that write is
     * what is unread. */
    if (map->unread && !map->reading && now >= map->not_before_ns &&
        cache_rival(&d->cache, j) == NULL)
        request_read(d, map);
    if (map->unread)
        return !map->fresh;
    return now < map->awaited_until_ns && strcmp(map->seen, map->version) != 0;
}

/* Nothing is judged before pods and ConfigMaps are known, nor when half of a new list has replaced
 * half of the old one. */
static bool is_known(const struct hl_ranktabled *d)
{
    return d->feeds[CACHE_PODS].is_known && d->feeds[CACHE_MAPS].is_known;
}

static void take_turn(struct hl_ranktabled *d);

/* If another writer changes a ConfigMap all the time, what was read is outdated by the next round.
 * So its job is judged at once, and the server refuses the write if that was still too late. */
static void judge_read(struct hl_ranktabled *d, struct cached_map *map)
{
    map->fresh = true;
    take_turn(d);
    map->fresh = false;
}

/* Continues a turn after other callbacks of a busy loop have run. */
static void go_on(void *arg)
{
    struct hl_ranktabled *d = arg;
    d->goes_on = false;
    take_turn(d);
}

static void take_turn(struct hl_ranktabled *d)
{
    uint64_t now = hl_now_ns();
    if (d->stopping || d->goes_on || !is_known(d))
        return;
    for (struct cached_job *j = d->cache.jobs; j != NULL; j = j->next) {
        if (!j->dirty || j->writing || j->gone || now < j->not_before_ns || may_wait(d, j, now) ||
            is_behind(d, j, now))
            continue;
        j->dirty = false;
        judge_job(d, j);
        if (hl_now_ns() - now > TURN_NS) {
            d->goes_on = true;
            hl_loop_post(d->opts.loop, go_on, d);
            return;
        }
    }
}

static void on_tick(void *arg)
{
    struct hl_ranktabled *d = arg;
    for (int i = 0; i < CACHE_KINDS; i++)
        hl_kube_watcher_deliver(d->feeds[i].watcher);
    take_turn(d);
    d->rounds++;
}

static void on_lease(void *arg)
{
    struct hl_ranktabled *d = arg;
    for (struct cached_job *j = d->cache.jobs; j != NULL; j = j->next)
        j->dirty = true;
}

/* ---- metrics --------------------------------------------------------------------------------- */

static void gauge_jobs(struct hl_ranktabled *d, struct hl_buf *out)
{
    static const char *const names[] = {"waiting", "unable", "completed"};
    unsigned count[HL_ARRAY_LEN(names)] = {0};
    for (const struct cached_job *j = d->cache.jobs; j != NULL; j = j->next)
        count[j->state]++;
    hl_buf_printf(out, "# HELP helios_ranktable_jobs Jobs by the state of their rank table.\n"
                       "# TYPE helios_ranktable_jobs gauge\n");
    for (size_t i = 0; i < HL_ARRAY_LEN(names); i++)
        hl_buf_printf(out, "helios_ranktable_jobs{state=\"%s\"} %u\n", names[i], count[i]);
}

static void gauge_feeds(struct hl_ranktabled *d, struct hl_buf *out)
{
    static const struct {
        const char *name, *help;
        size_t at;
    } rows[] = {
        {"lists_total", "Complete lists of a kind of object.",
         offsetof(struct hl_kube_watcher_info, lists)},
        {"events_total", "Objects of a kind that watches have delivered.",
         offsetof(struct hl_kube_watcher_info, events)},
        {"watch_failures_total", "Lists and watches that failed.",
         offsetof(struct hl_kube_watcher_info, failures)},
    };
    struct hl_kube_watcher_info info;
    for (size_t row = 0; row < HL_ARRAY_LEN(rows); row++) {
        hl_buf_printf(out, "# HELP helios_ranktable_%s %s\n# TYPE helios_ranktable_%s counter\n",
                      rows[row].name, rows[row].help, rows[row].name);
        for (int i = 0; i < CACHE_KINDS; i++) {
            hl_kube_watcher_info(d->feeds[i].watcher, &info);
            hl_buf_printf(out, "helios_ranktable_%s{kind=\"%s\"} %lu\n", rows[row].name,
                          feed_rows[i].name,
                          *(const unsigned long *)((const char *)&info + rows[row].at));
        }
    }
}

hl_status hl_ranktabled_gauges(struct hl_ranktabled *d, struct hl_buf *out)
{
    gauge_jobs(d, out);
    gauge_feeds(d, out);
    hl_buf_printf(out,
                  "# HELP helios_ranktable_rounds_total Looks for jobs whose table may be due.\n"
                  "# TYPE helios_ranktable_rounds_total counter\n"
                  "helios_ranktable_rounds_total %lu\n"
                  "# HELP helios_ranktable_writes_total Writes of ConfigMaps.\n"
                  "# TYPE helios_ranktable_writes_total counter\n"
                  "helios_ranktable_writes_total{result=\"ok\"} %lu\n"
                  "helios_ranktable_writes_total{result=\"conflict\"} %lu\n"
                  "helios_ranktable_writes_total{result=\"failed\"} %lu\n"
                  "# HELP helios_ranktable_reads_total ConfigMaps read after others' changes.\n"
                  "# TYPE helios_ranktable_reads_total counter\n"
                  "helios_ranktable_reads_total %lu\n"
                  "# HELP helios_ranktable_leader 1 on the instance that writes.\n"
                  "# TYPE helios_ranktable_leader gauge\nhelios_ranktable_leader %d\n",
                  d->rounds, d->writes, d->conflicts, d->failures, d->reads, ranktabled_leads(d));
    return out->failed ? hl_fail(HL_ENOMEM, "out of memory allocating metrics") : HL_OK;
}

/* ---- start and stop -------------------------------------------------------------------------- */

/* "/api/v1/pods" -> "/api/v1/namespaces/NS/pods" */
static void feed_path(enum cache_kind kind, const char *ns, char *out, size_t cap)
{
    const char *path = feed_rows[kind].path, *plural = strrchr(path, '/');
    if (ns[0] == '\0')
        snprintf(out, cap, "%s", path);
    else
        snprintf(out, cap, "%.*s/namespaces/%.63s%s", (int)(plural - path), path, ns, plural);
}

static hl_status start_feed(struct hl_ranktabled *d, enum cache_kind kind, const char *selector)
{
    char path[192];
    struct feed *f = &d->feeds[kind];
    *f = (struct feed){.d = d, .kind = kind};
    feed_path(kind, d->opts.ns, path, sizeof(path));
    return hl_kube_watcher_start(
        &(struct hl_kube_watcher_opts){.kube = d->kube,
                                       .loop = d->opts.loop,
                                       .path = path,
                                       .selector = selector,
                                       .members = feed_rows[kind].members,
                                       .decoder = kind == CACHE_PODS ? &decoder : NULL,
                                       .on_demand = true,
                                       .only_metadata = feed_rows[kind].only_metadata,
                                       .optional = feed_rows[kind].optional,
                                       .window_s = d->opts.window_s,
                                       .listed = on_listed,
                                       .changed = on_changed,
                                       .arg = f},
        &f->watcher);
}

/* One Lease per value of the label, because an instance for other jobs writes at the same time.
 * Names of objects have no capitals and no underscores. */
static void lease_name(const char *label_value, char *out, size_t cap)
{
    int n = snprintf(out, cap, "helios-ranktable");
    if (strcmp(label_value, HL_RANKTABLE_LABEL_VALUE) == 0)
        return;
    n += snprintf(out + n, cap - (size_t)n, "-%.63s", label_value);
    for (char *p = out; *p != '\0'; p++)
        *p = *p == '_' ? '-' : (char)tolower((unsigned char)*p);
}

static hl_status start_lease(struct hl_ranktabled *d)
{
    lease_name(d->label_value, d->lease_name, sizeof(d->lease_name));
    return lease_start(&(struct lease_opts){.kube = d->kube,
                                            .loop = d->opts.loop,
                                            .ns = d->opts.lease_ns,
                                            .name = d->lease_name,
                                            .identity = d->opts.identity,
                                            .hold_s = d->opts.lease_s,
                                            .changed = on_lease,
                                            .arg = d},
                       &d->lease);
}

static hl_status start_ranktabled(struct hl_ranktabled *d)
{
    char selector[512];
    int batch = d->opts.batch_ms > 0 ? d->opts.batch_ms : BATCH_MS;
    snprintf(selector, sizeof(selector), HL_RANKTABLE_LABEL "%%3D%.300s", d->label_value);
    HL_TRY(hl_kube_open(d->opts.config, &d->cancel, &d->kube));
    for (int i = 0; i < CACHE_KINDS; i++)
        HL_TRY(start_feed(d, (enum cache_kind)i, selector));
    if (d->opts.lease_ns[0] != '\0')
        HL_TRY(start_lease(d));
    return hl_timer_create(d->opts.loop, (uint64_t)batch, (uint64_t)batch, on_tick, d, &d->timer);
}

hl_status hl_ranktabled_start(const struct hl_ranktabled_opts *opts, struct hl_ranktabled **out)
{
    struct hl_ranktabled *d = calloc(1, sizeof(*d));
    if (d == NULL || (d->label_value = strdup(opts->rules.label_value)) == NULL) {
        free(d);
        return hl_fail(HL_ENOMEM, "out of memory");
    }
    d->opts = *opts;
    d->opts.rules.label_value = d->label_value;
    d->was_read = judge_read;
    hl_status st = start_ranktabled(d);
    if (st != HL_OK) {
        char text[HL_ERROR_TEXT_MAX];
        snprintf(text, sizeof(text), "%s", hl_error_text());
        hl_ranktabled_stop(d);
        return hl_fail(st, "%s", text);
    }
    *out = d;
    return HL_OK;
}

void hl_ranktabled_stop(struct hl_ranktabled *d)
{
    if (d == NULL)
        return;
    d->stopping = true;
    hl_timer_destroy(d->timer);
    while (d->goes_on)
        uv_run(hl_loop_uv(d->opts.loop), UV_RUN_ONCE);
    lease_stop(d->lease);
    atomic_store(&d->cancel, true);
    for (int i = 0; i < CACHE_KINDS; i++)
        hl_kube_watcher_stop(d->feeds[i].watcher);
    /* Requests end when their connections next check `cancel`. */
    while (d->calls > 0)
        uv_run(hl_loop_uv(d->opts.loop), UV_RUN_ONCE);
    cache_fini(&d->cache);
    hl_kube_close(d->kube);
    free(d->label_value);
    free(d);
}
