/* Wiring: watchers feed the cache, a timer judges what changed, requests carry it out. */
#include "ranktabled/ranktabled_private.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "core/json.h"

#define BATCH_MS 100

static const struct {
    const char *path, *name;
    int optional;
} feed_rows[FEEDS] = {
    [FEED_VCJOBS] = {"/apis/batch.volcano.sh/v1alpha1/jobs", "vcjobs", 1},
    [FEED_JOBS] = {"/apis/batch/v1/jobs", "jobs", 0},
    [FEED_DEPLOYMENTS] = {"/apis/apps/v1/deployments", "deployments", 0},
    [FEED_PODS] = {"/api/v1/pods", "pods", 0},
    [FEED_MAPS] = {"/api/v1/configmaps", "configmaps", 0},
};

const char *ranktabled_kind(enum hl_ranktable_kind kind)
{
    return kind == HL_RANKTABLE_DEPLOYMENT ? "Deployment" : "Job";
}

int ranktabled_leads(const struct hl_ranktabled *d)
{
    return d->lease == NULL ? d->opts.lease_ns[0] == '\0' : lease_is_held(d->lease);
}

/* ---- feeding the cache ----------------------------------------------------------------------- */

static enum hl_ranktable_kind kind_of(enum feed feed)
{
    return feed == FEED_VCJOBS ? HL_RANKTABLE_VOLCANO
           : feed == FEED_JOBS ? HL_RANKTABLE_BATCH
                               : HL_RANKTABLE_DEPLOYMENT;
}

static void on_listed(void *arg, const json_t *objects)
{
    struct feed_of *f = arg;
    struct cache *c = &f->d->cache;
    hl_status st = f->which == FEED_PODS   ? cache_list_pods(c, objects)
                   : f->which == FEED_MAPS ? cache_list_maps(c, objects)
                                           : cache_list_jobs(c, kind_of(f->which), objects);
    if (st != HL_OK)
        hl_error("%s", hl_error_text());
}

static void drop(struct feed_of *f, const json_t *object)
{
    struct cache *c = &f->d->cache;
    if (f->which == FEED_PODS)
        cache_drop_pod(c, object);
    else if (f->which == FEED_MAPS)
        cache_drop_map(c, object);
    else
        cache_drop_job(c, kind_of(f->which), object);
}

static void on_changed(void *arg, enum hl_kube_event type, json_t *object)
{
    struct feed_of *f = arg;
    struct cache *c = &f->d->cache;
    if (type == HL_KUBE_DELETED) {
        drop(f, object);
        return;
    }
    hl_status st = f->which == FEED_PODS   ? cache_put_pod(c, object)
                   : f->which == FEED_MAPS ? cache_put_map(c, object)
                                           : cache_put_job(c, kind_of(f->which), object);
    if (st != HL_OK)
        hl_error("%s", hl_error_text());
}

/* ---- judging --------------------------------------------------------------------------------- */

/* What only the user can mend is said once, on the job. */
static void tell(struct hl_ranktabled *d, struct cached_job *j, enum hl_ranktable_state state,
                 const char *reason)
{
    j->state = state;
    if (state == HL_RANKTABLE_COMPLETED)
        j->told[0] = '\0';
    if (state != HL_RANKTABLE_UNABLE || strcmp(j->told, reason) == 0 || !ranktabled_leads(d))
        return;
    snprintf(j->told, sizeof(j->told), "%s", reason);
    hl_warn("%s: no rank table: %s", j->key, reason);
    request_event(d, j, reason);
}

static int map_is_usable(struct hl_ranktabled *d, struct cached_job *j, const json_t *map)
{
    char name[256], reason[HL_RANKTABLE_REASON_MAX];
    const struct cached_job *rival = cache_rival(&d->cache, j);
    hl_ranktable_config_map(j->object, name, sizeof(name));
    if (rival != NULL)
        snprintf(reason, sizeof(reason), "its ConfigMap %s is that of %.200s, which is older", name,
                 rival->key);
    else
        snprintf(reason, sizeof(reason), "there is no ConfigMap %s with the label %s=%s", name,
                 HL_RANKTABLE_LABEL, d->label_value);
    if (rival == NULL && map != NULL)
        return 1;
    tell(d, j, rival != NULL ? HL_RANKTABLE_UNABLE : HL_RANKTABLE_WAITING, reason);
    return 0;
}

static void judge(struct hl_ranktabled *d, struct cached_job *j)
{
    struct hl_ranktable_verdict v;
    const json_t *map = cache_map_of(&d->cache, j->object);
    if (!map_is_usable(d, j, map))
        return;
    json_t *pods = cache_pods_of(&d->cache, j->object);
    hl_status st = hl_ranktable_judge(&d->opts.rules, j->kind, j->object, pods, map, &v);
    json_decref(pods);
    if (st != HL_OK) {
        hl_error("%s: %s", j->key, hl_error_text());
        j->dirty = 1;
        return;
    }
    if (v.state == HL_RANKTABLE_COMPLETED && j->state != v.state)
        hl_info("%s: completed, %zu pods", j->key, v.counted);
    j->counted = v.counted;
    j->wanted = v.wanted;
    tell(d, j, v.state, v.reason);
    if (!hl_ranktable_is_written(map, v.document) && ranktabled_leads(d))
        request_write(d, j, map, v.document);
    hl_ranktable_verdict_fini(&v);
}

/* A table is only as good as what is known: nothing is said before pods and ConfigMaps are. */
static int is_synced(const struct hl_ranktabled *d)
{
    static const enum feed needed[] = {FEED_PODS, FEED_MAPS};

    for (size_t i = 0; i < HL_ARRAY_LEN(needed); i++) {
        struct hl_kube_watcher_info info;
        hl_kube_watcher_info(d->feeds[needed[i]].watcher, &info);
        if (!info.synced)
            return 0;
    }
    return 1;
}

static void on_tick(void *arg)
{
    struct hl_ranktabled *d = arg;
    uint64_t now = hl_now_ns();
    if (d->stopping || !is_synced(d))
        return;
    for (struct cached_job *j = d->cache.jobs; j != NULL; j = j->hh.next) {
        if (!j->dirty || j->writing || j->gone || now < j->not_before_ns)
            continue;
        j->dirty = 0;
        judge(d, j);
    }
}

static void on_lease(void *arg)
{
    struct hl_ranktabled *d = arg;
    for (struct cached_job *j = d->cache.jobs; j != NULL; j = j->hh.next)
        j->dirty = 1;
}

/* ---- metrics --------------------------------------------------------------------------------- */

static void gauge_jobs(struct hl_ranktabled *d, struct hl_buf *out)
{
    static const char *const names[] = {"waiting", "unable", "completed"};
    unsigned count[HL_ARRAY_LEN(names)] = {0};
    for (const struct cached_job *j = d->cache.jobs; j != NULL; j = j->hh.next)
        count[j->state]++;
    hl_buf_printf(out, "# HELP helios_ranktable_jobs Jobs by the state of their rank table.\n"
                       "# TYPE helios_ranktable_jobs gauge\n");
    for (size_t i = 0; i < HL_ARRAY_LEN(names); i++)
        hl_buf_printf(out, "helios_ranktable_jobs{state=\"%s\"} %u\n", names[i], count[i]);
}

static void gauge_feeds(struct hl_ranktabled *d, struct hl_buf *out)
{
    struct hl_kube_watcher_info info[FEEDS];
    hl_buf_printf(out, "# HELP helios_ranktable_lists_total Complete lists of a kind of object.\n"
                       "# TYPE helios_ranktable_lists_total counter\n");
    for (int i = 0; i < FEEDS; i++) {
        hl_kube_watcher_info(d->feeds[i].watcher, &info[i]);
        hl_buf_printf(out, "helios_ranktable_lists_total{kind=\"%s\"} %lu\n", feed_rows[i].name,
                      info[i].lists);
    }
    hl_buf_printf(out,
                  "# HELP helios_ranktable_watch_failures_total Lists and watches that failed.\n"
                  "# TYPE helios_ranktable_watch_failures_total counter\n");
    for (int i = 0; i < FEEDS; i++)
        hl_buf_printf(out, "helios_ranktable_watch_failures_total{kind=\"%s\"} %lu\n",
                      feed_rows[i].name, info[i].failures);
}

hl_status hl_ranktabled_gauges(struct hl_ranktabled *d, struct hl_buf *out)
{
    gauge_jobs(d, out);
    gauge_feeds(d, out);
    hl_buf_printf(out,
                  "# HELP helios_ranktable_writes_total Writes of ConfigMaps.\n"
                  "# TYPE helios_ranktable_writes_total counter\n"
                  "helios_ranktable_writes_total{result=\"ok\"} %lu\n"
                  "helios_ranktable_writes_total{result=\"conflict\"} %lu\n"
                  "helios_ranktable_writes_total{result=\"failed\"} %lu\n"
                  "# HELP helios_ranktable_leader 1 on the instance that writes.\n"
                  "# TYPE helios_ranktable_leader gauge\nhelios_ranktable_leader %d\n",
                  d->writes, d->conflicts, d->failures, ranktabled_leads(d));
    return out->failed ? hl_fail(HL_ENOMEM, "memory is short for metrics") : HL_OK;
}

/* ---- start and stop -------------------------------------------------------------------------- */

static hl_status start_feed(struct hl_ranktabled *d, enum feed which, const char *selector)
{
    struct feed_of *f = &d->feeds[which];
    *f = (struct feed_of){.d = d, .which = which};
    return hl_kube_watcher_start(
        &(struct hl_kube_watcher_opts){.kube = d->kube,
                                       .loop = d->opts.loop,
                                       .path = feed_rows[which].path,
                                       .selector = selector,
                                       .optional = feed_rows[which].optional,
                                       .window_s = d->opts.window_s,
                                       .listed = on_listed,
                                       .changed = on_changed,
                                       .arg = f},
        &f->watcher);
}

static hl_status start(struct hl_ranktabled *d)
{
    char selector[512];
    int batch = d->opts.batch_ms > 0 ? d->opts.batch_ms : BATCH_MS;
    snprintf(selector, sizeof(selector), HL_RANKTABLE_LABEL "%%3D%.300s", d->label_value);
    HL_TRY(hl_kube_open(d->opts.config, &d->cancel, &d->kube));
    for (int i = 0; i < FEEDS; i++)
        HL_TRY(start_feed(d, (enum feed)i, selector));
    if (d->opts.lease_ns[0] != '\0')
        HL_TRY(lease_start(&(struct lease_opts){.kube = d->kube,
                                                .loop = d->opts.loop,
                                                .ns = d->opts.lease_ns,
                                                .name = "helios-ranktable",
                                                .identity = d->opts.identity,
                                                .changed = on_lease,
                                                .arg = d},
                           &d->lease));
    return hl_timer_create(d->opts.loop, (uint64_t)batch, (uint64_t)batch, on_tick, d, &d->timer);
}

hl_status hl_ranktabled_start(const struct hl_ranktabled_opts *opts, struct hl_ranktabled **out)
{
    struct hl_ranktabled *d = calloc(1, sizeof(*d));
    if (d == NULL || (d->label_value = strdup(opts->rules.label_value)) == NULL) {
        free(d);
        return hl_fail(HL_ENOMEM, "memory is short");
    }
    d->opts = *opts;
    d->opts.rules.label_value = d->label_value;
    hl_status st = start(d);
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
    d->stopping = 1;
    hl_timer_destroy(d->timer);
    lease_stop(d->lease);
    atomic_store(&d->cancel, 1);
    for (int i = 0; i < FEEDS; i++)
        hl_kube_watcher_stop(d->feeds[i].watcher);
    /* Requests end with their connections' next look at `cancel`. */
    while (d->calls > 0)
        uv_run(hl_loop_uv(d->opts.loop), UV_RUN_ONCE);
    cache_fini(&d->cache);
    hl_kube_close(d->kube);
    free(d->label_value);
    free(d);
}
