/* Loads, stores and removals of the archive: one task per shard and kind, however many callers ask
 * for it. l4_private.h has a drawing of loop and workers.
 *
 *     l4_ask --no task--> task_start --> workers_add --> task_run (worker) --> task_done (loop)
 *       '----one runs---> another waiter of it               writes st, text      answers waiters
 *
 * A stopped task ends when the worker next checks `stop`; callers that have joined it since
 * then ask again. The waiter of a load that gives way also asks again if another load has stopped
 * it; its request is then refused as long as other loads run.
 *
 * A worker accesses the `st` and `text` of its task, and the pool and the archive, which have locks
 * of their own. The hash of tasks and the waiters belong to the loop, so they need no lock. The
 * loop reads `st` and `text` only after the worker has posted task_done. */
#include "l3d/l4.h"

#include <stdlib.h>
#include <string.h>
#include <uthash.h>
#include <utlist.h>

#include "base/clock.h"
#include "base/crc32.h"
#include "base/log.h"
#include "core/catalog/derived_id.h"
#include "l3d/l4_private.h"
#include "mem/pool/pool.h"
#include "os/loop.h"

#define CLOCK_MS      50
#define OTHER_LOOK_MS 20 /* longest wait before the next look at flags that wake no thread */

struct waiter {
    l4_done done;
    void *arg;
    struct hl_id order;
    bool stopped; /* it no longer needs the shard */
    bool gives_way;
    uint64_t deadline_ns;
    struct waiter *next;
};

struct task_key {
    struct hl_id id;
    uint64_t kind;
};

struct task {
    struct work work;
    struct task_key key;
    struct hl_l3d *d;
    struct waiter *waiters;
    bool gives_way;       /* all its waiters do */
    bool takes_free_only; /* it was begun for a waiter that does */
    atomic_bool stop;     /* set by the loop, read by the worker */
    hl_status st;
    char text[HL_ERROR_TEXT_MAX];
    UT_hash_handle hh;
};

/* ---- work, in workers ------------------------------------------------------------------------ */

hl_status l4_fetch(struct hl_l3d *d, const struct hl_pool_extent *x, uint32_t *crc, uint32_t *crcs)
{
    uint32_t want = 0;
    struct hl_archive *a;
    HL_TRY(l4_need(d, &a));
    uint64_t begun_ns = hl_now_ns();
    hl_status st = hl_archive_crc(a, x->id, &want);
    if (st == HL_OK) {
        st = hl_archive_get(a, x->id, x->ptr, x->size, want);
        l4_count_transfer(HL_API_TIER_L4, HL_API_TIER_L3, x->size, begun_ns, st);
    }
    if (st == HL_ECORRUPT)
        l4_bad_mark(d, x->id);
    if (st == HL_ENOENT)
        st = l4_gone(d, x->id);
    if (st != HL_OK)
        return st;
    for (uint64_t i = 0, n = hl_chunk_count(x->size); i < n; i++) {
        uint64_t len = i + 1 < n ? HL_CHUNK : x->size - i * HL_CHUNK;
        crcs[i] = hl_crc32(0, (const char *)x->ptr + i * HL_CHUNK, len);
    }
    *crc = want;
    return HL_OK;
}

/* A cut and a heal bring shards in beside the loads, so another thread may be writing this one: its
 * end is waited for, and if it fails, the room is ours. *there: the other has sealed it. */
static hl_status take_room(struct hl_l3d *d, const struct l4_want *want, struct hl_pool_extent *out,
                           bool *there)
{
    const uint64_t deadline = hl_now_ns() + l4_room_wait_ns(d);
    struct hl_pool_ref ref;
    for (;;) {
        uint64_t seen = hl_pool_changes(d->pool);
        *there = hl_pool_find(d->pool, want->id, &ref) == HL_OK;
        hl_status st = *there ? HL_OK : l4_alloc(d, want, out);
        if (st != HL_EEXIST)
            return st;
        if (atomic_load_explicit(&d->stopping, memory_order_relaxed) ||
            (want->cancel != NULL && atomic_load_explicit(want->cancel, memory_order_relaxed)))
            return hl_fail(HL_ECANCELED, "it was stopped, or the daemon is shutting down");
        if (hl_now_ns() >= deadline)
            return hl_fail(HL_EBUSY, "shard %s is being brought into the pool; try again",
                           hl_id_format(want->id).s);
        hl_pool_wait_change(d->pool, seen, hl_now_ns() + OTHER_LOOK_MS * HL_NS_PER_MS);
    }
}

/* Runs in a worker. The room is counted in `filling` until its shard is sealed: a thread that looks
 * for room then knows that this will soon be a shard that can be evicted. */
static hl_status load_now(struct hl_l3d *d, struct hl_id id, const atomic_bool *stop,
                          bool takes_free_only)
{
    struct hl_pool_extent x;
    struct hl_pool_ref ref;
    uint64_t size = 0;
    uint32_t crc = 0;
    if (hl_pool_find(d->pool, id, &ref) == HL_OK)
        return HL_OK;
    struct hl_archive *a;
    HL_TRY(l4_need(d, &a));
    HL_TRY(hl_archive_size(a, id, &size));
    HL_AUTO(hl_freep) uint32_t *crcs = calloc(hl_chunk_count(size) + 1, sizeof(*crcs));
    if (crcs == NULL)
        return hl_fail(HL_ENOMEM, "out of memory allocating the checksums of shard %s",
                       hl_id_format(id).s);
    if (l4_bad_has(d, id))
        return hl_fail(HL_ECORRUPT, "the only copy, in %s, is damaged", d->l4->url);
    const struct l4_want want = {.near = -1,
                                 .id = id,
                                 .size = size,
                                 .cancel = stop,
                                 .fills = true,
                                 .takes_free_only = takes_free_only};
    bool there;
    HL_TRY(take_room(d, &want, &x, &there));
    if (there)
        return HL_OK;
    hl_status st = l4_fetch(d, &x, &crc, crcs);
    if (st == HL_OK)
        st = hl_pool_seal(d->pool, &x, crc, crcs, hl_chunk_count(size), &ref);
    if (st == HL_OK)
        hl_pool_touch(d->pool, &ref);
    else
        hl_pool_abort(d->pool, &x);
    l4_filled(d);
    return st == HL_OK ? HL_OK : hl_fail_prefix(st, "load from %s: ", d->l4->url);
}

hl_status l4_load_now(struct hl_l3d *d, struct hl_id id)
{
    return load_now(d, id, NULL, false);
}

static void task_run(struct work *w)
{
    struct task *t = (struct task *)w;
    struct hl_l3d *d = t->d;
    hl_archive_stop_with(&t->stop);
    if (atomic_load_explicit(&d->stopping, memory_order_relaxed))
        t->st = hl_fail(HL_ECANCELED, "the L3 daemon is shutting down");
    else if (atomic_load_explicit(&t->stop, memory_order_relaxed))
        t->st = hl_fail(HL_ECANCELED, "it was stopped");
    else if (t->key.kind == L4_LOAD)
        t->st = load_now(d, t->key.id, &t->stop, t->takes_free_only);
    else if (t->key.kind == L4_STORE)
        t->st = l4_store_now(d, t->key.id);
    else if (t->key.kind == L4_TRASH)
        t->st = trash_now(d, l4_archive(d), t->key.id);
    else if (t->key.kind == L4_UNTRASH)
        t->st = untrash_now(l4_archive(d), t->key.id);
    else
        t->st = hl_archive_remove(l4_archive(d), t->key.id);
    hl_archive_stop_with(NULL);
    if (t->st == HL_OK && (t->key.kind == L4_DROP || t->key.kind == L4_TRASH))
        l4_bad_clear(d, t->key.id);
    if (t->st != HL_OK)
        snprintf(t->text, sizeof(t->text), "%s", hl_error_text());
}

/* ---- waiters, on the loop ------------------------------------------------------------------ */

/* Called when a waiter that does not give way joins, or when the task ends. */
static void task_keeps_way(struct task *t)
{
    t->d->l4->giving_way -= t->gives_way;
    t->gives_way = false;
}

/* True if the task failed for a reason that does not concern this waiter, so it asks again. */
static bool waiter_asks_again(const struct task *t, const struct waiter *x)
{
    bool stopped = t->st == HL_ECANCELED && atomic_load_explicit(&t->stop, memory_order_relaxed);
    bool no_room = t->st == HL_ENOSPC && t->takes_free_only && !x->gives_way;
    return ((stopped && !x->stopped) || no_room) && !t->d->stopping;
}

/* Runs on the loop. The task is removed from the table first, so that a waiter that asks again in
 * its callback begins a new task. */
static void task_done(struct work *w)
{
    struct task *t = (struct task *)w;
    struct hl_l3d *d = t->d;
    struct waiter *x, *next;
    HASH_DEL(d->l4->tasks, t);
    task_keeps_way(t);
    LL_FOREACH_SAFE(t->waiters, x, next)
    {
        const struct l4_asked again = {(enum l4_kind)t->key.kind, t->key.id, x->order,
                                       x->gives_way};
        if (waiter_asks_again(t, x))
            l4_ask(d, &again, x->done, x->arg);
        else
            x->done(x->arg, t->st, t->text);
        free(x);
    }
    free(t);
    if (d->l4->tasks == NULL) {
        hl_timer_destroy(d->l4->clock);
        d->l4->clock = NULL;
    }
}

/* The transfer is not aborted: its result serves the next caller. */
static void task_expire(struct task *t, uint64_t now)
{
    struct waiter *x, *next;
    char text[HL_ERROR_TEXT_MAX];
    LL_FOREACH_SAFE(t->waiters, x, next)
    {
        if (now < x->deadline_ns)
            continue;
        LL_DELETE(t->waiters, x);
        snprintf(text, sizeof(text),
                 "shard %s: the archive %s has not answered for %u ms (archive.load_timeout); the "
                 "transfer continues; try again",
                 hl_id_format(t->key.id).s, t->d->l4->url, t->d->l4->opts.load_timeout_ms);
        x->done(x->arg, HL_ETIMEDOUT, text);
        free(x);
    }
}

static void on_clock(void *arg)
{
    struct hl_l3d *d = arg;
    struct task *t, *next;
    uint64_t now = hl_now_ns();
    HASH_ITER (hh, d->l4->tasks, t, next)
        task_expire(t, now);
}

struct refusal {
    l4_done done;
    void *arg;
    hl_status st;
    char text[HL_ERROR_TEXT_MAX];
};

static void refuse_tasks(void *arg)
{
    struct refusal *r = arg;
    r->done(r->arg, r->st, r->text);
    free(r);
}

/* Answers later with this thread's failure: `done` is never called from within l4_ask. */
static void refuse_later(struct hl_l3d *d, l4_done done, void *arg, hl_status st)
{
    struct refusal *r = calloc(1, sizeof(*r));
    if (r == NULL)
        abort(); /* as hl_loop_post would */
    *r = (struct refusal){.done = done, .arg = arg, .st = st};
    snprintf(r->text, sizeof(r->text), "%s", hl_error_text());
    hl_loop_post(d->loop, refuse_tasks, r);
}

static bool other_loads_run(const struct hl_l3d *d)
{
    for (const struct task *t = d->l4->tasks; t != NULL; t = t->hh.next)
        if (t->key.kind == L4_LOAD && !t->gives_way)
            return true;
    return false;
}

/* Called once per request, however many shards a reader asks for. */
static void loads_give_way(struct hl_l3d *d)
{
    struct task *t, *next;
    if (d->l4->giving_way == 0)
        return;
    HASH_ITER (hh, d->l4->tasks, t, next) {
        if (!t->gives_way)
            continue;
        task_keeps_way(t);
        atomic_store_explicit(&t->stop, true, memory_order_relaxed);
        hl_debug("load gives way id=%s", hl_id_format(t->key.id).s);
    }
}

/* The loads of moves give way to those that readers wait for. */
static struct task *task_start(struct hl_l3d *d, const struct task_key *key,
                               const struct l4_asked *what)
{
    struct l4 *l4 = d->l4;
    struct task *t = calloc(1, sizeof(*t));
    if (t == NULL)
        return NULL;
    t->key = *key;
    t->d = d;
    t->gives_way = t->takes_free_only = what->gives_way;
    l4->giving_way += what->gives_way;
    t->work = (struct work){.run = task_run, .done = task_done};
    HASH_ADD(hh, l4->tasks, key, sizeof(t->key), t);
    if (l4->clock == NULL &&
        hl_timer_create(d->loop, CLOCK_MS, CLOCK_MS, on_clock, d, &l4->clock) != HL_OK)
        hl_warn("deadlines of loads can't be set: %s", hl_error_text());
    workers_add(key->kind != L4_LOAD          ? l4->stores
                : !hl_id_is_none(what->order) ? l4->fetches
                                              : l4->loads,
                &t->work);
    return t;
}

void l4_ask(struct hl_l3d *d, const struct l4_asked *what, l4_done done, void *arg)
{
    const struct hl_id id = what->id;
    struct task_key key = {.id = id, .kind = what->kind};
    struct task *t = NULL;
    hl_status known = l4_knows(d, id);
    if (known != HL_OK) {
        refuse_later(d, done, arg, known);
        return;
    }
    if (hl_id_is_derived(id)) {
        refuse_later(d, done, arg,
                     hl_fail(HL_ENOENT,
                             "shard %s is derived and not in the pool: it is made again when its "
                             "layout is listed",
                             hl_id_format(id).s));
        return;
    }
    if (l4_archive(d) == NULL) {
        refuse_later(d, done, arg,
                     hl_fail(HL_ENOENT,
                             "shard %s is not in the pool, and helios-l3d has no archive "
                             "(archive.url)",
                             hl_id_format(id).s));
        return;
    }
    if (d->stopping) {
        refuse_later(d, done, arg, hl_fail(HL_ECANCELED, "the L3 daemon is shutting down"));
        return;
    }
    if (what->gives_way && other_loads_run(d)) {
        refuse_later(
            d, done, arg,
            hl_fail(HL_EBUSY,
                    "shard %s is not loaded ahead: other loads from the archive are running",
                    hl_id_format(id).s));
        return;
    }
    struct waiter *x = calloc(1, sizeof(*x));
    HASH_FIND(hh, d->l4->tasks, &key, sizeof(key), t);
    if (t != NULL && what->kind == L4_LOAD && hl_id_is_none(what->order))
        workers_move(d->l4->loads, &t->work); /* a reader waits for it now */
    if (t != NULL && !what->gives_way)
        task_keeps_way(t);
    if (what->kind == L4_LOAD && !what->gives_way)
        loads_give_way(d);
    if (x == NULL || (t == NULL && (t = task_start(d, &key, what)) == NULL)) {
        free(x);
        refuse_later(d, done, arg,
                     hl_fail(HL_ENOMEM, "out of memory loading shard %s", hl_id_format(id).s));
        return;
    }
    /* A store or a drop waits for durability, however long that takes; readers do not. */
    uint64_t wait_ns = what->kind == L4_LOAD ? d->l4->opts.load_timeout_ms * HL_NS_PER_MS : 0;
    *x = (struct waiter){.done = done,
                         .arg = arg,
                         .order = what->order,
                         .gives_way = what->gives_way,
                         .deadline_ns = wait_ns > 0 ? hl_now_ns() + wait_ns : UINT64_MAX};
    LL_APPEND(t->waiters, x);
}

/* True: all its waiters were stopped, by this call or before. */
static bool task_lets_go(struct task *t, struct hl_id order)
{
    struct waiter *x;
    bool any = false, wanted = false;
    LL_FOREACH (t->waiters, x) {
        bool now = !x->stopped && hl_id_equal(x->order, order);
        x->stopped |= now;
        any |= now;
        wanted |= !x->stopped;
    }
    return any && !wanted;
}

unsigned l4_stop_order(struct hl_l3d *d, struct hl_id order)
{
    struct task *t, *next;
    unsigned stopped = 0;
    if (hl_id_is_none(order))
        return 0;
    HASH_ITER (hh, d->l4->tasks, t, next) {
        if (!task_lets_go(t, order))
            continue;
        atomic_store_explicit(&t->stop, true, memory_order_relaxed);
        stopped++;
        hl_info("%s is stopped id=%s migration=%s", t->key.kind == L4_LOAD ? "load" : "store",
                hl_id_format(t->key.id).s, hl_id_format(order).s);
    }
    return stopped;
}

void l4_run(struct hl_l3d *d, struct work *work)
{
    workers_add(d->l4->loads, work);
}

hl_status l4_verify(struct hl_l3d *d, struct hl_id id, uint32_t *crc)
{
    struct hl_archive *a;
    HL_TRY(l4_need(d, &a));
    hl_status st = hl_archive_verify(a, id);
    if (st == HL_ENOENT)
        return l4_gone(d, id);
    if (st == HL_ECORRUPT)
        l4_bad_mark(d, id);
    else if (st == HL_OK)
        l4_bad_clear(d, id);
    return st == HL_OK ? hl_archive_crc(a, id, crc) : st;
}

/* ---- start and stop -------------------------------------------------------------------------- */

hl_status l4_start(struct hl_l3d *d, const struct l4_opts *opts)
{
    enum hl_api_archive_mode mode;
    HL_TRY(hl_api_archive_mode_parse(opts->mode, &mode));
    struct l4 *l4 = calloc(1, sizeof(*l4));
    if (l4 == NULL || (l4->url = strdup(opts->archive.url)) == NULL) {
        free(l4);
        return hl_fail(HL_ENOMEM, "out of memory opening the archive");
    }
    d->l4 = l4;
    l4->opts = *opts;
    l4->mode = mode;
    l4->opts.archive = (struct hl_archive_options){.url = l4->url};
    pthread_mutex_init(&l4->room_lock, NULL);
    pthread_mutex_init(&l4->filling_lock, NULL);
    pthread_mutex_init(&l4->bad_lock, NULL);
    pthread_mutex_init(&l4->sign_lock, NULL);
    pthread_mutex_init(&l4->order_lock, NULL);
    pthread_mutex_init(&l4->maker.lock, NULL);
    HL_TRY(workers_start(d->loop, opts->threads, false, &l4->loads));
    if (opts->archive.url[0] == '\0')
        return HL_OK;
    HL_TRY(workers_start(d->loop, (opts->threads + 1) / 2, true, &l4->fetches));
    HL_TRY(workers_start(d->loop, (opts->threads + 1) / 2, true, &l4->stores));
    HL_TRY(l4_open(d, &opts->archive));
    return trash_start(d);
}

void l4_stop(struct hl_l3d *d)
{
    struct l4 *l4 = d->l4;
    if (l4 == NULL)
        return;
    l4_open_stop(d);
    trash_stop(d);
    l4_room_stop(d);
    workers_stop(l4->fetches);
    workers_stop(l4->loads);
    workers_stop(l4->stores);
    hl_timer_destroy(l4->clock);
    l4->clock = NULL;
}

void l4_fini(struct hl_l3d *d)
{
    struct l4 *l4 = d->l4;
    if (l4 == NULL)
        return;
    trash_fini(d);
    l4_open_fini(d);
    pthread_mutex_destroy(&l4->sign_lock);
    pthread_mutex_destroy(&l4->room_lock);
    pthread_mutex_destroy(&l4->filling_lock);
    pthread_mutex_destroy(&l4->maker.lock);
    l4_bad_fini(d);
    l4_order_fini(d);
    free(l4->url);
    free(l4);
    d->l4 = NULL;
}
