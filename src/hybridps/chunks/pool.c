#include "hybridps/chunks/pool.h"

#include <assert.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "hybridps/chunks/chunks.h"
#include "hybridps/chunks/pool_private.h"

#define COPY_TIMEOUT_MS 60000

/* ---- opening ---- */

hl_status hl_chunk_pool_open(const struct hl_chunk_pool_options *options,
                             struct hl_chunk_pool **out)
{
    struct hl_chunk_pool *p = calloc(1, sizeof(*p));
    if (p == NULL) {
        if (options->spill != NULL)
            options->spill->close(options->spill_arg);
        return hl_fail(HL_ENOMEM, "out of memory allocating chunks");
    }
    p->o = *options;
    struct hl_device_options device = {.keeps_memory = 1};
    hl_status st = hl_policy_create(options->policy, &options->policy_options, &p->policy);
    if (st == HL_OK)
        st = hl_device_open(options->device, &device, &p->device);
    if (st != HL_OK) {
        hl_chunk_pool_close(p);
        return st;
    }
    hl_device_info(p->device, &p->info);
    p->o.device = p->info.name;
    p->s.capacity = p->s.avail = p->info.capacity;
    p->s.granule = p->info.granule;
    if (p->info.capacity == 0)
        st = hl_fail(HL_EINVAL, "device \"%s\" has no memory: say how much, as in emu:256MiB",
                     options->device);
    else if (!p->info.ranges)
        st = hl_fail(HL_EUNSUPPORTED, "%s: chunks need addresses that can be reserved",
                     p->info.name);
    if (st != HL_OK) {
        hl_chunk_pool_close(p);
        return st;
    }
    *out = p;
    return HL_OK;
}

void hl_chunk_pool_close(struct hl_chunk_pool *p)
{
    if (p == NULL)
        return;
    pool_settle_ahead(p);
    for (uint32_t i = 0; i < p->count; i++) {
        pool_drop_view(p, &p->chunks[i]);
        hl_chunk_memory_fini(&p->chunks[i].mem);
    }
    if (p->o.spill != NULL)
        p->o.spill->close(p->o.spill_arg);
    hl_device_close(p->device);
    hl_policy_destroy(p->policy);
    free(p->chunks);
    free(p->wanted);
    free(p->leaving);
    free(p->out);
    free(p->ahead);
    free(p);
}

static hl_status grow(struct hl_chunk_pool *p)
{
    if (p->count < p->cap)
        return HL_OK;
    if (p->cap >= UINT32_MAX / 2)
        return hl_fail(HL_EINVAL, "too many chunks");
    uint32_t cap = p->cap == 0 ? 64 : p->cap * 2;
    struct chunk *chunks = realloc(p->chunks, cap * sizeof(*chunks));
    p->chunks = chunks != NULL ? chunks : p->chunks;
    uint32_t *wanted = realloc(p->wanted, cap * sizeof(*wanted));
    p->wanted = wanted != NULL ? wanted : p->wanted;
    uint32_t *leaving = realloc(p->leaving, cap * sizeof(*leaving));
    p->leaving = leaving != NULL ? leaving : p->leaving;
    uint32_t *leave = realloc(p->out, cap * sizeof(*leave));
    p->out = leave != NULL ? leave : p->out;
    uint32_t *ahead = realloc(p->ahead, cap * sizeof(*ahead));
    p->ahead = ahead != NULL ? ahead : p->ahead;
    if (ahead == NULL || chunks == NULL || wanted == NULL || leaving == NULL || leave == NULL)
        return hl_fail(HL_ENOMEM, "out of memory allocating chunks");
    p->cap = cap;
    return HL_OK;
}

hl_status hl_chunk_pool_add(struct hl_chunk_pool *p, int kind, uint64_t bytes, uint64_t span,
                            uint32_t *chunk)
{
    HL_TRY(grow(p));
    HL_TRY(hl_policy_grow(p->policy, (size_t)p->count + 1));
    struct chunk *c = &p->chunks[p->count];
    *c = (struct chunk){.kind = kind, .bytes = bytes};
    HL_TRY(hl_chunk_memory_init(&c->mem, p->device, span > 0 ? span : bytes));
    *chunk = p->count++;
    p->s.chunks = p->count;
    return HL_OK;
}

struct hl_policy *hl_chunk_pool_policy(struct hl_chunk_pool *p)
{
    return p->policy;
}

const char *hl_chunk_pool_device(const struct hl_chunk_pool *p)
{
    return p->info.name;
}

void hl_chunk_pool_moment(struct hl_chunk_pool *p, uint64_t avail)
{
    p->s.avail = avail;
    p->now++;
}

void hl_chunk_pool_expect(struct hl_chunk_pool *p, const struct hl_trace_use *uses, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        struct chunk *c = &p->chunks[uses[i].chunk];
        if (uses[i].chunk >= p->count)
            continue;
        if (uses[i].on_host) {
            c->host_next = p->now + 1;
            c->host_takes = !p->o.copy || uses[i].write;
        } else {
            c->expected = p->now + 1;
        }
    }
}

/* ---- books ---- */

static void count_device(struct hl_chunk_pool *p, const struct chunk *c, int sign)
{
    uint64_t bytes = sign > 0 ? c->bytes : -c->bytes;
    p->s.device += bytes;
    p->s.device_by_kind[c->kind] += bytes;
    if (p->s.device > p->s.device_peak)
        p->s.device_peak = p->s.device;
}

static hl_status charge_device(struct hl_chunk_pool *p, uint64_t bytes)
{
    return p->o.charge != NULL ? p->o.charge(p->o.charge_arg, 0, (int64_t)bytes) : HL_OK;
}

/* What is given back can't be refused; books that could not be reached find out by themselves. */
static void discharge(struct hl_chunk_pool *p, int on_host, uint64_t bytes)
{
    if (p->o.charge != NULL && p->o.charge(p->o.charge_arg, on_host, -(int64_t)bytes) != HL_OK)
        hl_error_clear();
}

/* Host memory changes its state; what exists is counted, hidden or not. */
hl_status pool_set_host(struct hl_chunk_pool *p, struct chunk *c, enum hl_chunk_host state)
{
    int had = c->mem.host_state != HL_CHUNK_HOST_NONE, has = state != HL_CHUNK_HOST_NONE;
    if (c->view == VIEW_HOST && state != c->mem.host_state)
        pool_end_view(p, c);
    if (has && !had)
        HL_TRY(pool_charge_host(p, c->bytes));
    hl_status st = hl_chunk_host_set(&c->mem, state);
    if (had == has)
        return st;
    if ((st == HL_OK) == had)
        discharge(p, 1, c->bytes);
    HL_TRY(st);
    uint64_t bytes = has ? c->bytes : -c->bytes;
    p->s.host += bytes;
    p->s.host_by_kind[c->kind] += bytes;
    if (p->s.host > p->s.host_peak)
        p->s.host_peak = p->s.host;
    return HL_OK;
}

/* Less memory can't fail but for the number of mappings; then it stays, and is counted. */
void pool_lower_host(struct hl_chunk_pool *p, struct chunk *c, enum hl_chunk_host state)
{
    if (pool_set_host(p, c, state) != HL_OK)
        hl_error_clear();
}

void pool_leave_device(struct hl_chunk_pool *p, struct chunk *c)
{
    hl_chunk_device_drop(&c->mem);
    c->device = 0;
    count_device(p, c, -1);
    discharge(p, 0, c->bytes);
}

/* ---- what an access needs ---- */

static hl_status fail_pinned(const struct hl_chunk_pool *p, const struct chunk *c, int on_device)
{
    const char *there = on_device ? "device" : "host", *here = on_device ? "host" : "device";
    return hl_fail(HL_EBUSY, "%s: chunk %u is pinned on the %s%s and can't be used on the %s now",
                   p->info.name, (unsigned)(c - p->chunks), there,
                   p->o.copy ? ", one of the two would write," : "", here);
}

static hl_status check_want(const struct hl_chunk_pool *p, const struct chunk *c)
{
    int device = c->want & WANT_DEVICE, host = c->want & WANT_HOST;
    int write = (c->want & (WRITE_DEVICE | WRITE_HOST)) != 0;
    if (device && host && (!p->o.copy || write))
        return hl_fail(HL_EINVAL, "%s: chunk %u is asked for on the device and on the host%s",
                       p->info.name, (unsigned)(c - p->chunks),
                       p->o.copy ? ", and written" : ", which mode move can't");
    if (device && c->host_pins > 0 && (!p->o.copy || write || c->host_write))
        return fail_pinned(p, c, 0);
    if (host && c->device_pins > 0 && (!p->o.copy || write || c->device_write))
        return fail_pinned(p, c, 1);
    return HL_OK;
}

static hl_status merge(struct hl_chunk_pool *p, const struct hl_trace_use *uses, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        const struct hl_trace_use *u = &uses[i];
        struct chunk *c = &p->chunks[u->chunk];
        assert(u->chunk < p->count);
        if (c->want == 0)
            p->wanted[p->wanted_count++] = u->chunk;
        c->want |= u->on_host ? WANT_HOST : WANT_DEVICE;
        if (u->write)
            c->want |= u->on_host ? WRITE_HOST : WRITE_DEVICE;
    }
    for (size_t i = 0; i < p->wanted_count; i++)
        HL_TRY(check_want(p, &p->chunks[p->wanted[i]]));
    return HL_OK;
}

void pool_forget(struct hl_chunk_pool *p)
{
    for (size_t i = 0; i < p->wanted_count; i++)
        p->chunks[p->wanted[i]].want = p->chunks[p->wanted[i]].fresh = 0;
    for (size_t i = 0; i < p->leaving_count; i++)
        p->chunks[p->leaving[i]].leaving = 0;
    for (size_t i = 0; i < p->out_count; i++)
        p->chunks[p->out[i]].arrived = 0;
    p->wanted_count = p->leaving_count = p->out_count = 0;
}

/* ---- who leaves ---- */

void pool_add_leaving(struct hl_chunk_pool *p, uint32_t chunk)
{
    struct chunk *c = &p->chunks[chunk];
    c->leaving = 1;
    p->leaving[p->leaving_count++] = chunk;
    if (!c->host)
        p->out[p->out_count++] = chunk;
}

/* In one moment there may be several accesses, the device's before the host's. What the host takes
 * in it leaves anyway, what the device needs in it is the last to go. */
static int turn_of(const struct hl_chunk_pool *p, const struct chunk *c)
{
    if (p->now > 0 && c->expected == p->now)
        return 0;
    return p->now > 0 && c->host_next == p->now && c->host_takes ? 2 : 1;
}

static int pick(struct hl_chunk_pool *p, uint32_t *victim)
{
    double most = 0;
    int found = 0, found_turn = 0;
    for (uint32_t i = 0; i < p->count; i++) {
        const struct chunk *c = &p->chunks[i];
        if (!c->device || c->leaving || c->device_pins > 0 || (c->want & WANT_DEVICE))
            continue;
        /* What the host reads in this moment is clean by then. */
        int read = (c->want & WANT_HOST) || (p->now > 0 && c->host_next == p->now);
        double rank = hl_policy_rank(p->policy, i, p->now, !c->host && !read);
        int turn = turn_of(p, c);
        if (!found || turn > found_turn || (turn == found_turn && rank > most)) {
            most = rank;
            *victim = i;
            found = 1;
            found_turn = turn;
        }
    }
    return found;
}

static hl_status fail_room(const struct hl_chunk_pool *p, uint64_t more)
{
    uint64_t wanted = 0, pinned = 0;
    for (uint32_t i = 0; i < p->count; i++) {
        const struct chunk *c = &p->chunks[i];
        if (c->want & WANT_DEVICE)
            wanted += c->bytes;
        else if (c->device_pins > 0)
            pinned += c->bytes;
    }
    return hl_fail(HL_ENOSPC,
                   "%s: needs %" PRIu64 " bytes on the device at once (%" PRIu64
                   " of them not there yet) beside %" PRIu64 " that are pinned, and %" PRIu64
                   " of %" PRIu64 " are available to chunks now",
                   p->info.name, wanted, more, pinned, p->s.avail, p->s.capacity);
}

static hl_status plan_leaving(struct hl_chunk_pool *p)
{
    uint64_t more = 0, gone = 0;
    for (size_t i = 0; i < p->wanted_count; i++) {
        struct chunk *c = &p->chunks[p->wanted[i]];
        if ((c->want & WANT_DEVICE) && !c->device)
            more += c->bytes;
        if (!(c->want & WANT_HOST) || !c->device)
            continue;
        if (!p->o.copy || (c->want & WRITE_HOST)) {
            gone += c->bytes;
            pool_add_leaving(p, p->wanted[i]);
        } else if (!c->host) {
            p->out[p->out_count++] = p->wanted[i];
        }
    }
    while (p->s.device + more - gone > p->s.avail) {
        uint32_t victim = 0;
        if (!pick(p, &victim))
            return fail_room(p, more);
        struct chunk *c = &p->chunks[victim];
        gone += c->bytes;
        /* The host's read of a dirty one has put it in the list of copies already. */
        if (c->want & WANT_HOST) {
            c->leaving = 1;
            p->leaving[p->leaving_count++] = victim;
        } else {
            pool_add_leaving(p, victim);
        }
    }
    return HL_OK;
}

/* What will come to the host; that of chunks from below too, on their way. */
static hl_status check_host(struct hl_chunk_pool *p)
{
    uint64_t more = 0;
    for (size_t i = 0; i < p->out_count; i++) {
        const struct chunk *c = &p->chunks[p->out[i]];
        more += c->mem.host_state == HL_CHUNK_HOST_NONE ? c->bytes : 0;
    }
    for (size_t i = 0; i < p->wanted_count; i++) {
        const struct chunk *c = &p->chunks[p->wanted[i]];
        int fresh = (c->want & WANT_HOST) && !c->device && !c->host;
        more += (fresh || c->below != 0) && c->mem.host_state == HL_CHUNK_HOST_NONE ? c->bytes : 0;
    }
    return pool_host_room(p, more);
}

/* ---- copies ---- */

/* A copy that is alone is done at once; waiting for it is still to come. */
hl_status pool_begin(struct hl_chunk_pool *p, struct chunk *c, int out, int alone)
{
    if (p->o.fail != NULL && p->o.fail(p->o.fail_arg))
        return hl_fail(HL_EIO, "%s: a copy was made to fail", p->info.name);
    hl_status st = alone ? hl_chunk_copy_now(&c->mem, out) : hl_chunk_copy_begin(&c->mem, out);
    p->lost |= st == HL_ETIMEDOUT;
    c->flight = st == HL_OK;
    return st;
}

hl_status pool_wait(struct hl_chunk_pool *p, struct chunk *c)
{
    int made = p->o.fail != NULL && p->o.fail(p->o.fail_arg);
    hl_status st = hl_chunk_copy_wait(&c->mem, COPY_TIMEOUT_MS);
    if (st == HL_ETIMEDOUT)
        p->lost = 1;
    else
        c->flight = 0;
    return st == HL_OK && made ? hl_fail(HL_EIO, "%s: a copy was made to fail", p->info.name) : st;
}

void pool_count_stall(struct hl_chunk_pool *p, uint64_t began)
{
    p->s.total.stalls++;
    p->s.total.stall_ns += hl_now_ns() - began;
}

/* Everything in p->out comes to the host, begun before the first is waited for. What arrived is
 * kept where it does no harm: in mode copy. */
static hl_status copy_out(struct hl_chunk_pool *p)
{
    hl_status st = HL_OK;
    size_t begun = 0;
    uint64_t at = hl_now_ns();
    if (p->out_count == 0)
        return HL_OK;
    for (; begun < p->out_count && st == HL_OK; begun++) {
        struct chunk *c = &p->chunks[p->out[begun]];
        c->host_before = (uint8_t)c->mem.host_state;
        st = pool_set_host(p, c, HL_CHUNK_HOST_SHOWN);
        if (st == HL_OK)
            st = pool_begin(p, c, 1, p->out_count == 1);
    }
    for (size_t i = 0; i < begun; i++) {
        struct chunk *c = &p->chunks[p->out[i]];
        hl_status mine = c->flight ? pool_wait(p, c) : HL_EIO;
        st = st == HL_OK ? mine : st;
        c->arrived = mine == HL_OK;
        if (mine == HL_OK)
            p->s.total.d2h += c->bytes;
    }
    for (size_t i = 0; i < begun; i++) {
        struct chunk *c = &p->chunks[p->out[i]];
        if (c->arrived && (st == HL_OK || p->o.copy))
            c->host = 1;
        else if (!p->lost)
            pool_lower_host(p, c, (enum hl_chunk_host)c->host_before);
    }
    pool_count_stall(p, at);
    return st;
}

static void let_go(struct hl_chunk_pool *p)
{
    for (size_t i = 0; i < p->leaving_count; i++) {
        struct chunk *c = &p->chunks[p->leaving[i]];
        pool_leave_device(p, c);
        p->s.total.evictions++;
        p->s.total.drops += !c->arrived;
    }
}

/* Device memory for chunk c and its content under way. Its bytes are counted from here on. */
hl_status pool_begin_load(struct hl_chunk_pool *p, struct chunk *c, int alone)
{
    pool_end_view(p, c);
    HL_TRY(charge_device(p, c->bytes));
    hl_status st = hl_chunk_device_take(&c->mem);
    if (st != HL_OK) {
        discharge(p, 0, c->bytes);
        return st;
    }
    c->loading = 1;
    count_device(p, c, 1);
    if (p->serves && c->host)
        HL_TRY(hl_chunk_device_show(&c->mem, 0));
    return c->host ? pool_begin(p, c, 0, alone) : HL_OK;
}

/* Its copy has ended with st. */
hl_status pool_loaded(struct hl_chunk_pool *p, struct chunk *c, hl_status st)
{
    return st == HL_OK && p->serves ? hl_chunk_device_show(&c->mem, 1) : st;
}

static hl_status load(struct hl_chunk_pool *p)
{
    hl_status st = HL_OK;
    uint64_t at = hl_now_ns();
    int waited = 0, count = 0;
    for (size_t i = 0; i < p->wanted_count; i++) {
        const struct chunk *c = &p->chunks[p->wanted[i]];
        count += (c->want & WANT_DEVICE) && !c->device && c->host;
    }
    for (size_t i = 0; i < p->wanted_count && st == HL_OK; i++) {
        struct chunk *c = &p->chunks[p->wanted[i]];
        if ((c->want & WANT_DEVICE) && !c->device)
            st = pool_begin_load(p, c, count == 1);
    }
    for (size_t i = 0; i < p->wanted_count; i++) {
        struct chunk *c = &p->chunks[p->wanted[i]];
        if (!c->flight)
            continue;
        hl_status mine = pool_loaded(p, c, pool_wait(p, c));
        st = st == HL_OK ? mine : st;
        waited = 1;
        if (mine == HL_OK) {
            p->s.total.h2d += c->bytes;
            p->s.total.loads++;
        }
    }
    for (size_t i = 0; i < p->wanted_count && st != HL_OK; i++) {
        struct chunk *c = &p->chunks[p->wanted[i]];
        if (c->loading)
            pool_leave_device(p, c);
        c->loading = 0;
    }
    if (waited)
        pool_count_stall(p, at);
    return st;
}

/* ---- access ---- */

/* Host memory for what has no content yet; given back by whoever fails afterwards. */
static hl_status show_fresh(struct hl_chunk_pool *p)
{
    hl_status st = HL_OK;
    for (size_t i = 0; i < p->wanted_count && st == HL_OK; i++) {
        struct chunk *c = &p->chunks[p->wanted[i]];
        if (!(c->want & WANT_HOST))
            continue;
        c->fresh = !c->host && !c->device;
        st = pool_set_host(p, c, HL_CHUNK_HOST_SHOWN);
        c->host = 1;
    }
    return st;
}

static void hide_fresh(struct hl_chunk_pool *p)
{
    for (size_t i = 0; i < p->wanted_count; i++) {
        struct chunk *c = &p->chunks[p->wanted[i]];
        if (!c->fresh)
            continue;
        c->host = 0;
        pool_lower_host(p, c, HL_CHUNK_HOST_NONE);
    }
}

/* All is where it is wanted: the books say so from now on. */
void pool_settle(struct hl_chunk_pool *p)
{
    for (size_t i = 0; i < p->wanted_count; i++) {
        struct chunk *c = &p->chunks[p->wanted[i]];
        if (c->loading) {
            c->device = 1;
            c->loading = 0;
            hl_policy_loaded(p->policy, p->wanted[i]);
        }
        if ((c->want & WANT_DEVICE) && !(c->want & WANT_HOST) &&
            (!p->o.copy || (c->want & WRITE_DEVICE))) {
            c->host = 0;
            pool_lower_host(p, c,
                            !p->o.copy || c->mem.host_state == HL_CHUNK_HOST_NONE
                                ? HL_CHUNK_HOST_NONE
                                : HL_CHUNK_HOST_HIDDEN);
        }
    }
}

static void pin(struct hl_chunk_pool *p, const struct hl_trace_use *uses, size_t count)
{
    p->s.pins += count;
    p->accesses++;
    for (size_t i = 0; i < count; i++) {
        struct chunk *c = &p->chunks[uses[i].chunk];
        c->used = p->accesses;
        if (uses[i].on_host) {
            c->host_pins++;
            c->host_write |= uses[i].write;
            continue;
        }
        if (c->device_pins++ == 0)
            p->s.pinned += c->bytes;
        c->device_write |= uses[i].write;
        hl_policy_used(p->policy, uses[i].chunk, p->now);
    }
}

hl_status pool_move(struct hl_chunk_pool *p)
{
    HL_TRY(check_host(p));
    HL_TRY(copy_out(p));
    let_go(p);
    HL_TRY(pool_fetch(p));
    hl_status st = show_fresh(p);
    if (st == HL_OK)
        st = load(p);
    if (st != HL_OK && !p->lost)
        hide_fresh(p);
    return st;
}

hl_status hl_chunk_pool_access(struct hl_chunk_pool *p, const struct hl_trace_use *uses,
                               size_t count)
{
    if (p->lost)
        return hl_fail(HL_EUNAVAIL, "%s: the device did not answer; end the process", p->info.name);
    pool_settle_ahead(p);
    for (size_t i = 0; i < count; i++)
        pool_end_view(p, &p->chunks[uses[i].chunk]);
    p->s.host_short = 0;
    hl_status st = merge(p, uses, count);
    if (st == HL_OK)
        st = plan_leaving(p);
    if (st == HL_OK)
        st = pool_move(p);
    if (st == HL_OK) {
        pool_settle(p);
        pin(p, uses, count);
    }
    pool_forget(p);
    /* A moment that was refused has not begun. */
    if (st == HL_OK && p->s.device > p->s.avail && p->s.device - p->s.avail > p->s.peak_over_avail)
        p->s.peak_over_avail = p->s.device - p->s.avail;
#ifdef HELIOS_AUDIT
    hl_status books = hl_chunk_pool_audit(p);
    assert(books == HL_OK);
#endif
    return st;
}

void hl_chunk_pool_release(struct hl_chunk_pool *p, uint32_t chunk, int on_host)
{
    struct chunk *c = &p->chunks[chunk];
    assert(chunk < p->count && (on_host ? c->host_pins : c->device_pins) > 0);
    p->s.pins--;
    if (on_host) {
        if (--c->host_pins == 0)
            c->host_write = 0;
    } else if (--c->device_pins == 0) {
        c->device_write = 0;
        p->s.pinned -= c->bytes;
    }
}

void hl_chunk_pool_end(struct hl_chunk_pool *p, uint32_t chunk)
{
    struct chunk *c = &p->chunks[chunk];
    assert(chunk < p->count && c->host_pins == 0 && c->device_pins == 0);
    if (c->ahead)
        pool_settle_ahead(p);
    pool_drop_view(p, c);
    if (c->device)
        pool_leave_device(p, c);
    pool_end_below(p, c);
    c->host = 0;
    pool_lower_host(p, c, HL_CHUNK_HOST_NONE);
}

void hl_chunk_pool_info(const struct hl_chunk_pool *p, uint32_t chunk, struct hl_chunk_info *out)
{
    const struct chunk *c = &p->chunks[chunk];
    *out = (struct hl_chunk_info){.kind = c->kind,
                                  .bytes = c->bytes,
                                  .on_device = c->device,
                                  .on_host = c->host || c->below != 0,
                                  .below = c->below != 0,
                                  .device_pins = c->device_pins,
                                  .host_pins = c->host_pins,
                                  .host = c->mem.host,
                                  .address = c->mem.address};
}

void hl_chunk_pool_stats(const struct hl_chunk_pool *p, struct hl_chunk_pool_stats *out)
{
    *out = p->s;
}
