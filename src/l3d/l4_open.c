/* Opening the archive. If it can't be reached when the daemon starts, that does not keep the pool
 * from its readers: the daemon serves without it and tries again, with longer and longer pauses,
 * until it succeeds. A wrong setup (credentials, a missing bucket) ends the start, because only the
 * archive's owner can correct it. If it is found later, it is logged, and opening is tried again as
 * before.
 *
 *     none configured                 opener NULL, archive NULL     HL_EUNSUPPORTED
 *     unreachable --try_again-->      opener set, archive NULL      HL_EUNAVAIL, and why
 *     open                            archive set, for good         used without a lock
 *
 * One thread of its own makes the attempts. It stores `archive` (release) when it has opened it;
 * any thread loads it (l4_archive, acquire). `why` and `attempts` are guarded by the lock. `stops`
 * wakes the thread from its pause after a stop has set hl_l3d.stopping. */
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "core/catalog/derived_id.h"
#include "l3d/l4_private.h"
#include "os/cond.h"

#define FIRST_MS 2000 /* the daemon's start waits this long for an answer */
#define PAUSE_MS 500

struct l4_opener {
    struct work work;
    struct hl_l3d *d;
    struct workers *thread;
    struct hl_archive_options options; /* its texts are copies */
    char *text[4];
    uint64_t since_ns;
    unsigned pause_max_ms;
    pthread_mutex_t lock; /* guards the members below */
    pthread_cond_t stops;
    unsigned attempts;
    char why[HL_ERROR_TEXT_MAX];
};

struct hl_archive *l4_archive(const struct hl_l3d *d)
{
    return atomic_load_explicit(&d->l4->archive, memory_order_acquire);
}

bool l4_is_unreachable(const struct hl_l3d *d)
{
    return d->l4->opener != NULL && l4_archive(d) == NULL;
}

/* Returns a copy, because the opener may overwrite `why` at any moment. */
static unsigned copy_why(struct l4_opener *o, char *buf, size_t cap)
{
    pthread_mutex_lock(&o->lock);
    snprintf(buf, cap, "%s", o->why);
    unsigned attempts = o->attempts;
    pthread_mutex_unlock(&o->lock);
    return attempts;
}

hl_status l4_need(const struct hl_l3d *d, struct hl_archive **out)
{
    char why[HL_ERROR_TEXT_MAX];
    struct hl_archive *a = l4_archive(d);
    if (a == NULL && d->l4->opener == NULL)
        return hl_fail(HL_EUNSUPPORTED, "helios-l3d has no archive; start it with --archive");
    if (a == NULL) {
        copy_why(d->l4->opener, why, sizeof(why));
        return hl_fail(HL_EUNAVAIL, "%s is unreachable; the daemon keeps trying: %s", d->l4->url,
                       why);
    }
    *out = a;
    return HL_OK;
}

hl_status l4_knows(const struct hl_l3d *d, struct hl_id id)
{
    struct hl_archive *none;
    if (hl_id_is_derived(id) || !l4_is_unreachable(d)) /* derived shards are never archived */
        return HL_OK;
    return hl_fail_prefix(l4_need(d, &none), "shard %s: ", hl_id_format(id).s);
}

static void is_open(struct hl_l3d *d, struct hl_archive *a)
{
    struct hl_archive_info info;
    hl_archive_stat(a, &info);
    hl_info("archive open url=%s shards=%llu bytes=%llu discarded=%llu foreign=%llu", d->l4->url,
            (unsigned long long)info.count, (unsigned long long)info.used_bytes,
            (unsigned long long)info.discarded, (unsigned long long)info.foreign);
    atomic_store_explicit(&d->l4->archive, a, memory_order_release);
}

/* ---- retries, in a thread -------------------------------------------------------------------- */

/* Runs on the opener's thread; before that starts, on the loop's. */
static void note_failure(struct l4_opener *o)
{
    pthread_mutex_lock(&o->lock);
    snprintf(o->why, sizeof(o->why), "%s", hl_error_text());
    o->attempts++;
    pthread_mutex_unlock(&o->lock);
}

static int opener_stopping(const struct l4_opener *o)
{
    return atomic_load_explicit(&o->d->stopping, memory_order_relaxed);
}

/* l4_open_stop takes the lock after `stopping` was set, and it is read here under the same lock:
 * either it is seen here, or the broadcast reaches this thread in its wait. */
static void pause_for(struct l4_opener *o, unsigned ms)
{
    uint64_t until = hl_now_ns() + ms * HL_NS_PER_MS;
    struct timespec t = {(time_t)(until / HL_NS_PER_S), (long)(until % HL_NS_PER_S)};
    pthread_mutex_lock(&o->lock);
    while (!opener_stopping(o) && pthread_cond_timedwait(&o->stops, &o->lock, &t) == 0)
        ;
    pthread_mutex_unlock(&o->lock);
}

/* The opener's only work. It ends with an open archive or with a stop, and never hands an archive
 * over twice. */
static void try_again(struct work *w)
{
    struct l4_opener *o = (struct l4_opener *)w;
    struct hl_archive *a = NULL;
    unsigned pause = PAUSE_MS;
    for (pause_for(o, pause); !opener_stopping(o); pause_for(o, pause)) {
        if (hl_archive_open(&o->options, &a) == HL_OK) {
            is_open(o->d, a);
            return;
        }
        note_failure(o);
        pause = pause * 2 < o->pause_max_ms ? pause * 2 : o->pause_max_ms;
        hl_warn("archive still unreachable url=%s attempts=%u pause_ms=%u error=\"%s\"",
                o->options.url, o->attempts, pause, o->why);
    }
}

static void open_tried(struct work *w)
{
    struct l4_opener *o = (struct l4_opener *)w;
    if (!opener_stopping(o))
        hl_info("archive reachable again seconds=%.1f", (double)(hl_now_ns() - o->since_ns) / 1e9);
}

/* ---- start and stop -------------------------------------------------------------------------- */

static hl_status opener_new(struct hl_l3d *d, const struct hl_archive_options *options)
{
    struct l4_opener *o = calloc(1, sizeof(*o));
    if (o == NULL)
        return hl_fail(HL_ENOMEM, "out of memory opening the archive");
    d->l4->opener = o;
    o->d = d;
    o->since_ns = hl_now_ns();
    o->pause_max_ms = d->l4->opts.retry_ms > 0 ? d->l4->opts.retry_ms : PAUSE_MS;
    pthread_mutex_init(&o->lock, NULL);
    hl_cond_init(&o->stops);
    o->options = *options;
    const char **texts[] = {&o->options.url, &o->options.s3_endpoint, &o->options.s3_region,
                            &o->options.s3_credentials};
    for (size_t i = 0; i < HL_ARRAY_LEN(texts); i++) {
        o->text[i] = strdup(*texts[i] != NULL ? *texts[i] : "");
        if (o->text[i] == NULL)
            return hl_fail(HL_ENOMEM, "out of memory opening the archive");
        *texts[i] = o->text[i];
    }
    return HL_OK;
}

hl_status l4_open(struct hl_l3d *d, const struct hl_archive_options *options)
{
    struct hl_archive *a = NULL;
    HL_TRY(opener_new(d, options));
    struct l4_opener *o = d->l4->opener;
    o->options.cancel = &d->stopping;
    struct hl_archive_options first = o->options;
    first.open_timeout_ms = FIRST_MS;
    hl_status st = hl_archive_open(&first, &a);
    if (st == HL_OK) {
        is_open(d, a);
        return HL_OK;
    }
    if (st != HL_EUNAVAIL && st != HL_ETIMEDOUT)
        return st;
    note_failure(o);
    hl_error("archive unreachable: the pool is served without it, and it is tried again url=%s "
             "error=\"%s\"",
             d->l4->url, o->why);
    HL_TRY(workers_start(d->loop, 1, false, &o->thread));
    o->work = (struct work){.run = try_again, .done = open_tried};
    workers_add(o->thread, &o->work);
    return HL_OK;
}

void l4_open_stop(struct hl_l3d *d)
{
    struct l4_opener *o = d->l4->opener;
    if (o == NULL)
        return;
    pthread_mutex_lock(&o->lock); /* so that it sees the flag, or hears this */
    pthread_cond_broadcast(&o->stops);
    pthread_mutex_unlock(&o->lock);
    workers_stop(o->thread);
    o->thread = NULL;
}

/* Call after all workers have ended: then no thread uses the archive. */
void l4_open_fini(struct hl_l3d *d)
{
    struct l4_opener *o = d->l4->opener;
    hl_archive_close(l4_archive(d));
    if (o == NULL)
        return;
    for (size_t i = 0; i < HL_ARRAY_LEN(o->text); i++)
        free(o->text[i]);
    pthread_cond_destroy(&o->stops);
    pthread_mutex_destroy(&o->lock);
    free(o);
    d->l4->opener = NULL;
}

/* ---- health report --------------------------------------------------------------------------- */

void l4_health(const struct hl_l3d *d, struct hl_buf *out)
{
    char why[HL_ERROR_TEXT_MAX];
    if (l4_is_away(d))
        (void)hl_buf_printf(out, "archive %s is unreachable: nothing is evicted or archived\n",
                            d->l4->url);
    if (!l4_is_unreachable(d))
        return;
    unsigned attempts = copy_why(d->l4->opener, why, sizeof(why));
    (void)hl_buf_printf(out, "archive %s unreachable for %.0f s, %u attempts: %s\n", d->l4->url,
                        (double)(hl_now_ns() - d->l4->opener->since_ns) / 1e9, attempts, why);
}

void l4_gauges(const struct hl_l3d *d, struct hl_buf *out)
{
    if (d->l4->opener == NULL)
        return;
    hl_metric_family(out, "helios_archive_up", "gauge",
                     "1 once the archive was reached since the daemon started, 0 before that and "
                     "while it is unreachable.");
    (void)hl_buf_printf(out, "helios_archive_up %d\n", !l4_is_unreachable(d) && !l4_is_away(d));
    hl_metric_family(out, "helios_pool_orders_total", "counter",
                     "Orders of the Controller in which shards leave a full pool.");
    (void)hl_buf_printf(out, "helios_pool_orders_total %llu\n",
                        (unsigned long long)atomic_load(&d->l4->orders));
    hl_metric_family(out, "helios_pool_evicted_total", "counter",
                     "Shards that a full pool gave up: in the Controller's order, or as those used "
                     "longest ago.");
    (void)hl_buf_printf(out,
                        "helios_pool_evicted_total{by=\"order\"} "
                        "%llu\nhelios_pool_evicted_total{by=\"use\"} %llu\n",
                        (unsigned long long)atomic_load(&d->l4->evicted_ordered),
                        (unsigned long long)atomic_load(&d->l4->evicted_unused));
}
