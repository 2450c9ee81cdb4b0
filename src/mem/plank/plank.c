/* A lane is a ring of staging buffers between the caller, which fills them, and a helper thread,
 * which empties them. Each side counts its pieces; the difference of the counts says how many
 * buffers are full. A side with nothing to do sleeps and is woken only then: while both keep up
 * there is no system call per piece.
 *
 *     caller   fetch 0 | fetch 1 | fetch 2 | ...
 *     helper           | deliver 0 | deliver 1 | ...
 *
 *     ring     | drained ... filled |   full: filled - drained == buffers; empty: they are equal
 *
 * A lane: free --take_lane--> the caller's; `idle` --copy_together--> both work on `job`
 *           ^                                                              |
 *           '--give_lane-- `idle` <--the helper has ended its leg----------'
 *
 * While a job runs, only the caller writes `filled`, and only the helper writes `drained`, `failed`
 * and `idle`. `job` and `deadline` are written while `idle` is 1, so they need no lock. `stop`
 * tells the helper to leave the job, `end` to exit. All of them are sequentially consistent, which
 * makes wake_lane safe: it changes a value and then reads `sleepers`, while sleep_until raises
 * `sleepers` and then reads the value. One of the two sees the other's store. The lane's lock is
 * held only to sleep and to wake a sleeper. The plank's lock guards the list of free lanes; `freed`
 * is signalled for each lane that is given back. */
#include "mem/plank/plank.h"

#include <assert.h>
#include <inttypes.h>
#include <limits.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#include "base/clock.h"
#include "base/crc32.h"
#include "mem/chunks.h"
#include "os/cond.h"
#include "os/numa.h"

#define STAGE ((uint64_t)2 << 20) /* alignment of staging: a huge page, if there are any */

struct lane {
    struct hl_plank *plank;
    struct lane *next;
    uint8_t *memory; /* NULL: not allocated yet, or abandoned */
    bool pinned;

    pthread_mutex_t lock; /* only to sleep */
    pthread_cond_t change;
    atomic_int sleepers;
    atomic_uint_fast64_t filled, drained; /* in pieces */
    atomic_int failed;                    /* status of the helper's leg */
    atomic_bool stop;                     /* the caller's leg failed: deliver no more */
    atomic_bool idle;                     /* the helper works on no job */
    atomic_bool end;

    const struct hl_plank_job *job; /* valid while not idle */
    uint64_t deadline;
    char text[HL_ERROR_TEXT_MAX]; /* error text of `failed` */
    pthread_t helper;
    bool has_helper;
};

struct hl_plank {
    uint64_t piece, lane_len;
    unsigned buffers, lanes;
    struct hl_device *device;
    int numa;

    pthread_mutex_t lock; /* guards everything below */
    pthread_cond_t freed;
    struct lane *free;
    struct lane *all[HL_PLANK_LANES_MAX];
    unsigned made, busy;
    bool pinned;
};

static struct timespec time_of(uint64_t ns)
{
    return (struct timespec){.tv_sec = (time_t)(ns / HL_NS_PER_S),
                             .tv_nsec = (long)(ns % HL_NS_PER_S)};
}

/* Milliseconds until the deadline; 0 if it has passed. */
static int left_ms(uint64_t deadline)
{
    uint64_t now = hl_now_ns();
    if (now >= deadline)
        return 0;
    uint64_t ms = (deadline - now + HL_NS_PER_MS - 1) / HL_NS_PER_MS;
    return ms > INT_MAX ? INT_MAX : (int)ms;
}

/* ---- the pool of lanes ---- */

hl_status hl_plank_create(const struct hl_plank_options *options, struct hl_plank **out)
{
    static const struct hl_plank_options none;
    const struct hl_plank_options *o = options != NULL ? options : &none;
    uint64_t piece = o->piece > 0 ? o->piece : HL_CHUNK;
    unsigned buffers = o->buffers > 0 ? o->buffers : 4, lanes = o->lanes > 0 ? o->lanes : 4;
    if (piece < 4096 || piece > HL_CHUNK << 16 || (HL_CHUNK % piece != 0 && piece % HL_CHUNK != 0))
        return hl_fail(HL_EINVAL,
                       "plank: pieces of %" PRIu64
                       " bytes are neither a divisor nor a multiple of a MiB",
                       piece);
    if (buffers < 2 || buffers > HL_PLANK_BUFFERS_MAX || lanes > HL_PLANK_LANES_MAX)
        return hl_fail(
            HL_EINVAL,
            "plank: %u buffers and %u lanes (expected 2 to %d buffers and 1 to %d lanes)", buffers,
            lanes, HL_PLANK_BUFFERS_MAX, HL_PLANK_LANES_MAX);
    struct hl_plank *p = calloc(1, sizeof(*p));
    if (p == NULL)
        return hl_fail(HL_ENOMEM, "out of memory");
    *p = (struct hl_plank){.piece = piece,
                           .lane_len = (piece * buffers + STAGE - 1) / STAGE * STAGE,
                           .buffers = buffers,
                           .lanes = lanes,
                           .device = o->device,
                           .numa = -1,
                           .pinned = o->device != NULL};
    if (o->device != NULL) {
        struct hl_device_info info;
        hl_device_info(o->device, &info);
        p->numa = info.numa;
    }
    pthread_mutex_init(&p->lock, NULL);
    hl_cond_init(&p->freed);
    *out = p;
    return HL_OK;
}

/* Called by the caller that has the lane: no lock is needed, except for the plank's `pinned`. */
static hl_status get_memory(struct hl_plank *p, struct lane *l)
{
    void *m = mmap(NULL, p->lane_len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (m == MAP_FAILED)
        return hl_fail(HL_ENOMEM, "plank: out of memory allocating %" PRIu64 " bytes of staging",
                       p->lane_len);
    (void)madvise(m, p->lane_len, MADV_HUGEPAGE);
    if (p->numa >= 0 && hl_numa_bind(m, p->lane_len, p->numa) != HL_OK)
        hl_error_clear();      /* memory of another node is slower but works */
    memset(m, 0, p->lane_len); /* so that the first copy faults in no pages */
    l->memory = m;
    l->pinned = p->device != NULL && hl_device_pin(p->device, m, p->lane_len) == HL_OK;
    if (p->device != NULL && !l->pinned) {
        hl_error_clear(); /* memory that is not pinned is slower but works */
        pthread_mutex_lock(&p->lock);
        p->pinned = false;
        pthread_mutex_unlock(&p->lock);
    }
    return HL_OK;
}

/* Makes an idle lane without a helper; the first large job starts one. */
static struct lane *new_lane(struct hl_plank *p)
{
    struct lane *l = calloc(1, sizeof(*l));
    if (l == NULL)
        return NULL;
    l->plank = p;
    atomic_init(&l->idle, true);
    pthread_mutex_init(&l->lock, NULL);
    hl_cond_init(&l->change);
    return l;
}

/* With the lock held. Makes lanes as needed, up to `lanes`; after that callers wait for `freed`. */
static hl_status find_lane(struct hl_plank *p, uint64_t deadline, struct lane **out)
{
    struct timespec until = time_of(deadline);
    int rc = 0;
    while (p->free == NULL && p->made == p->lanes && rc == 0)
        rc = pthread_cond_timedwait(&p->freed, &p->lock, &until);
    struct lane *l = p->free;
    if (l != NULL) {
        p->free = l->next;
    } else if (p->made == p->lanes) {
        return hl_fail(HL_ETIMEDOUT, "plank: all %u lanes were busy until the deadline", p->lanes);
    } else {
        l = new_lane(p);
        if (l == NULL)
            return hl_fail(HL_ENOMEM, "out of memory");
        p->all[p->made++] = l;
    }
    p->busy++;
    *out = l;
    return HL_OK;
}

/* The lane keeps its memory and its helper. One waiter is woken, since one lane is free. */
static void give_lane(struct hl_plank *p, struct lane *l)
{
    pthread_mutex_lock(&p->lock);
    l->next = p->free;
    p->free = l;
    p->busy--;
    pthread_cond_signal(&p->freed);
    pthread_mutex_unlock(&p->lock);
}

static hl_status take_lane(struct hl_plank *p, uint64_t deadline, struct lane **out)
{
    struct lane *l = NULL;
    pthread_mutex_lock(&p->lock);
    hl_status st = find_lane(p, deadline, &l);
    pthread_mutex_unlock(&p->lock);
    HL_TRY(st);
    if (l->memory == NULL)
        st = get_memory(p, l);
    if (st != HL_OK)
        give_lane(p, l);
    else
        *out = l;
    return st;
}

void hl_plank_info(struct hl_plank *p, struct hl_plank_info *out)
{
    pthread_mutex_lock(&p->lock);
    *out = (struct hl_plank_info){.piece = p->piece,
                                  .buffers = p->buffers,
                                  .lanes = p->lanes,
                                  .made = p->made,
                                  .busy = p->busy,
                                  .pinned = p->pinned};
    pthread_mutex_unlock(&p->lock);
}

/* ---- the two sides of a lane ---- */

/* The counters were changed before; a woken sleeper checks them again. */
static void wake_lane(struct lane *l)
{
    if (atomic_load(&l->sleepers) == 0)
        return;
    pthread_mutex_lock(&l->lock);
    pthread_cond_broadcast(&l->change);
    pthread_mutex_unlock(&l->lock);
}

typedef bool (*ready_fn)(struct lane *l);

/* Returns false if the deadline passed first. A deadline of 0 means none. */
static bool sleep_until(struct lane *l, ready_fn ready, uint64_t deadline)
{
    struct timespec until = time_of(deadline);
    int rc = 0;
    if (ready(l))
        return true;
    pthread_mutex_lock(&l->lock);
    atomic_fetch_add(&l->sleepers, 1);
    while (!ready(l) && rc == 0)
        rc = deadline == 0 ? pthread_cond_wait(&l->change, &l->lock)
                           : pthread_cond_timedwait(&l->change, &l->lock, &until);
    atomic_fetch_sub(&l->sleepers, 1);
    pthread_mutex_unlock(&l->lock);
    return rc == 0 || ready(l);
}

/* The conditions of sleep_until. Each is also true when the job ends (failed, stop, end), which the
 * woken side checks first. */

static bool has_room(struct lane *l)
{
    return atomic_load(&l->failed) != HL_OK ||
           atomic_load(&l->filled) - atomic_load(&l->drained) < l->plank->buffers;
}

static bool has_piece(struct lane *l)
{
    return atomic_load(&l->stop) || atomic_load(&l->drained) < atomic_load(&l->filled);
}

static bool has_job(struct lane *l)
{
    return !atomic_load(&l->idle) || atomic_load(&l->end);
}

static bool is_idle(struct lane *l)
{
    return atomic_load(&l->idle);
}

static hl_status move_piece(struct lane *l, const struct hl_plank_leg *leg, const char *name,
                            uint64_t piece)
{
    const struct hl_plank *p = l->plank;
    uint64_t offset = piece * p->piece, left = l->job->size - offset;
    int ms = left_ms(l->deadline);
    if (ms == 0)
        return hl_fail(HL_ETIMEDOUT,
                       "plank: %s at offset %" PRIu64 " of %" PRIu64
                       ": the deadline of %d ms has passed",
                       name, offset, l->job->size, l->job->timeout_ms);
    hl_status st = leg->move(leg->arg, offset, l->memory + piece % p->buffers * p->piece,
                             (size_t)(left < p->piece ? left : p->piece), ms);
    if (st != HL_OK)
        return hl_fail_prefix(st, "plank: %s at offset %" PRIu64 ": ", name, offset);
    return HL_OK;
}

static uint64_t pieces_of(const struct lane *l)
{
    return (l->job->size + l->plank->piece - 1) / l->plank->piece;
}

/* The helper's side of a job. A failure is stored last, so that its text is complete when the
 * caller sees it. */
static void deliver_all(struct lane *l)
{
    uint64_t pieces = pieces_of(l);
    for (uint64_t i = 0; i < pieces; i++) {
        (void)sleep_until(l, has_piece, 0); /* the caller's legs have deadlines */
        if (atomic_load(&l->stop))
            return;
        hl_status st = move_piece(l, &l->job->deliver, "delivering", i);
        if (st != HL_OK) {
            snprintf(l->text, sizeof(l->text), "%s", hl_error_text());
            atomic_store(&l->failed, st);
            wake_lane(l);
            return;
        }
        atomic_store(&l->drained, i + 1);
        wake_lane(l);
    }
}

static void *lane_helper(void *arg)
{
    struct lane *l = arg;
    for (;;) {
        (void)sleep_until(l, has_job, 0);
        if (atomic_load(&l->end))
            return NULL;
        deliver_all(l);
        atomic_store(&l->idle, true);
        wake_lane(l);
    }
}

/* ---- a copy ---- */

struct check {
    const uint32_t *want;
    uint32_t crc; /* CRC of the chunk so far */
    struct hl_plank_bad bad;
};

/* A piece ends at a chunk border or inside a chunk. */
static void check_piece(struct check *c, uint64_t offset, const uint8_t *data, uint64_t len,
                        uint64_t size)
{
    while (len > 0) {
        uint64_t chunk = offset / HL_CHUNK, left = HL_CHUNK - offset % HL_CHUNK;
        uint64_t n = left < len ? left : len;
        c->crc = hl_crc32(c->crc, data, n);
        offset += n;
        data += n;
        len -= n;
        if (offset % HL_CHUNK != 0 && offset != size)
            continue;
        if (c->crc != c->want[chunk]) {
            if (c->bad.count < HL_PLANK_BAD_MAX)
                c->bad.chunk[c->bad.count] = (uint32_t)chunk;
            c->bad.count++;
        }
        c->crc = 0;
    }
}

static hl_status fetch_piece(struct lane *l, uint64_t piece, struct check *check)
{
    const struct hl_plank *p = l->plank;
    uint64_t offset = piece * p->piece, left = l->job->size - offset;
    HL_TRY(move_piece(l, &l->job->fetch, "fetching", piece));
    if (check->want != NULL)
        check_piece(check, offset, l->memory + piece % p->buffers * p->piece,
                    left < p->piece ? left : p->piece, l->job->size);
    return HL_OK;
}

static hl_status copy_alone(struct lane *l, struct check *check)
{
    uint64_t pieces = pieces_of(l);
    for (uint64_t i = 0; i < pieces; i++) {
        HL_TRY(fetch_piece(l, i, check));
        HL_TRY(move_piece(l, &l->job->deliver, "delivering", i));
    }
    return HL_OK;
}

/* The caller's side. It can be ahead of the helper by as many pieces as there are buffers. */
static hl_status fill_all(struct lane *l, struct check *check)
{
    uint64_t pieces = pieces_of(l);
    for (uint64_t i = 0; i < pieces; i++) {
        if (!sleep_until(l, has_room, l->deadline))
            return hl_fail(HL_ETIMEDOUT,
                           "plank: delivering at offset %" PRIu64 " of %" PRIu64
                           " made no progress before the deadline of %d ms",
                           atomic_load(&l->drained) * l->plank->piece, l->job->size,
                           l->job->timeout_ms);
        if (atomic_load(&l->failed) != HL_OK)
            return HL_OK; /* the helper's failure is reported */
        HL_TRY(fetch_piece(l, i, check));
        atomic_store(&l->filled, i + 1);
        wake_lane(l);
    }
    return HL_OK;
}

/* The values are reset while the helper is idle; `idle` = 0 starts the job. This returns only after
 * `idle` is 1 again, because the helper uses `job`, which belongs to the caller. */
static hl_status copy_together(struct lane *l, struct check *check)
{
    atomic_store(&l->filled, 0);
    atomic_store(&l->drained, 0);
    atomic_store(&l->failed, HL_OK);
    atomic_store(&l->stop, false);
    atomic_store(&l->idle, false);
    wake_lane(l);
    hl_status st = fill_all(l, check);
    if (st != HL_OK) {
        atomic_store(&l->stop, true);
        wake_lane(l);
    }
    /* The helper's leg has a deadline of its own, and must have ended before this returns. */
    (void)sleep_until(l, is_idle, 0);
    hl_status failed = (hl_status)atomic_load(&l->failed);
    /* If the time ran out, the leg that did not end knows more than the side that waited for it. */
    if (failed != HL_OK && (st == HL_OK || st == HL_ETIMEDOUT))
        st = hl_fail(failed, "%s", l->text);
    return st;
}

/* Returns true if a helper is running now. */
static bool need_helper(struct lane *l)
{
    if (!l->has_helper)
        l->has_helper = pthread_create(&l->helper, NULL, lane_helper, l) == 0;
    return l->has_helper;
}

static void give_up_memory(struct lane *l)
{
    /* A leg may still write here, so these addresses are never reused. */
    l->memory = NULL;
    l->pinned = false;
}

hl_status hl_plank_copy(struct hl_plank *p, const struct hl_plank_job *job,
                        struct hl_plank_bad *bad)
{
    struct check check = {.want = job->chunk_crcs};
    struct lane *l;
    if (job->size == 0)
        return HL_OK;
    uint64_t deadline =
        hl_now_ns() + (uint64_t)(job->timeout_ms > 0 ? job->timeout_ms : 0) * HL_NS_PER_MS;
    HL_TRY(take_lane(p, deadline, &l));
    l->job = job;
    l->deadline = deadline;
    hl_status st =
        job->size > p->piece && need_helper(l) ? copy_together(l, &check) : copy_alone(l, &check);
    l->job = NULL;
    if (st == HL_ETIMEDOUT && (job->fetch.lingers || job->deliver.lingers))
        give_up_memory(l);
    give_lane(p, l);
    HL_TRY(st);
    if (check.bad.count == 0)
        return HL_OK;
    if (bad != NULL)
        *bad = check.bad;
    return hl_fail(HL_ECORRUPT,
                   "plank: %zu chunks of %" PRIu64 " bytes have a wrong checksum, the first is %u",
                   check.bad.count, job->size, check.bad.chunk[0]);
}

/* No caller has the lane: the helper is idle and checks `end` next. */
static void destroy_lane(struct hl_plank *p, struct lane *l)
{
    if (l->has_helper) {
        atomic_store(&l->end, true);
        wake_lane(l);
        pthread_join(l->helper, NULL);
    }
    if (l->memory != NULL) {
        if (l->pinned)
            hl_device_unpin(p->device, l->memory);
        munmap(l->memory, p->lane_len);
    }
    pthread_cond_destroy(&l->change);
    pthread_mutex_destroy(&l->lock);
    free(l);
}

void hl_plank_destroy(struct hl_plank *p)
{
    if (p == NULL)
        return;
    assert(p->busy == 0);
    for (unsigned i = 0; i < p->made; i++)
        destroy_lane(p, p->all[i]);
    pthread_cond_destroy(&p->freed);
    pthread_mutex_destroy(&p->lock);
    free(p);
}

/* ---- legs ---- */

hl_status hl_plank_to_device(void *arg, uint64_t offset, void *staging, size_t len, int timeout_ms)
{
    const struct hl_plank_device *d = arg;
    (void)timeout_ms; /* the device's own timeout is short enough */
    return hl_device_copy_in(d->device, d->block, d->offset + offset, staging, len);
}

hl_status hl_plank_from_device(void *arg, uint64_t offset, void *staging, size_t len,
                               int timeout_ms)
{
    const struct hl_plank_device *d = arg;
    (void)timeout_ms;
    return hl_device_copy_out(d->device, d->block, d->offset + offset, staging, len);
}
