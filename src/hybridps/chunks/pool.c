#include "hybridps/chunks/pool.h"

#include <assert.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "hybridps/chunks/chunks.h"
#include "hybridps/chunks/pool_private.h"

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
    struct hl_device_options device = {.keeps_memory = 1, .cuda_driver = options->cuda_driver};
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
        st = hl_fail(HL_EINVAL, "device \"%s\" has no memory: give its size, as in emu:256MiB",
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
    hl_chunk_pool_settle_ahead(p);
    if (p->device != NULL && hl_device_quiesce(p->device) != HL_OK)
        hl_error_clear(); /* the context is lost, so nothing runs on it */
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
    hl_moves_fini(&p->moves);
    free(p->r);
    free(p->ahead);
    if (p->share > 0)
        close(p->share);
    free(p);
}

static hl_status pool_grow(struct hl_chunk_pool *p)
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
    uint32_t *ahead = realloc(p->ahead, cap * sizeof(*ahead));
    p->ahead = ahead != NULL ? ahead : p->ahead;
    struct hl_resident *r = realloc(p->r, cap * sizeof(*r));
    p->r = r != NULL ? r : p->r;
    for (uint32_t i = 0; i < p->count; i++)
        p->chunks[i].r = &p->r[i];
    if (ahead == NULL || chunks == NULL || wanted == NULL || r == NULL)
        return hl_fail(HL_ENOMEM, "out of memory allocating chunks");
    HL_TRY(hl_moves_reserve(&p->moves, cap));
    p->cap = cap;
    return HL_OK;
}

hl_status hl_chunk_pool_add(struct hl_chunk_pool *p, int kind, uint64_t bytes, uint64_t span,
                            uint32_t *chunk)
{
    HL_TRY(pool_grow(p));
    HL_TRY(hl_policy_grow(p->policy, (size_t)p->count + 1));
    struct chunk *c = &p->chunks[p->count];
    *c = (struct chunk){.kind = kind, .r = &p->r[p->count]};
    *c->r = (struct hl_resident){.bytes = bytes};
    HL_TRY(hl_chunk_memory_init(&c->mem, p->device, span > 0 ? span : bytes));
    /* Mode move frees host memory with every load, which would also end the pinning. */
    if (strcmp(p->info.kind, "cuda") == 0 && p->o.copy)
        hl_chunk_host_pin(&c->mem, p->o.host_bytes == 0 && p->o.charge == NULL);
    hl_status st = pool_share_new(p, c);
    if (st != HL_OK) {
        hl_chunk_memory_fini(&c->mem);
        return st;
    }
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
    int device = c->r->want & HL_WANT_DEVICE, host = c->r->want & HL_WANT_HOST;
    int write = (c->r->want & (HL_WRITE_DEVICE | HL_WRITE_HOST)) != 0;
    if (device && host && (!p->o.copy || write))
        return hl_fail(HL_EINVAL, "%s: chunk %u is requested on the device and on the host%s",
                       p->info.name, (unsigned)(c - p->chunks),
                       p->o.copy ? ", and written" : ", which mode move can't");
    if (device && c->r->host_pins > 0 && (!p->o.copy || write || c->r->host_write))
        return fail_pinned(p, c, 0);
    if (host && c->r->device_pins > 0 && (!p->o.copy || write || c->r->device_write))
        return fail_pinned(p, c, 1);
    return HL_OK;
}

static hl_status pool_merge_uses(struct hl_chunk_pool *p, const struct hl_trace_use *uses,
                                 size_t count)
{
    for (size_t i = 0; i < count; i++) {
        const struct hl_trace_use *u = &uses[i];
        struct chunk *c = &p->chunks[u->chunk];
        assert(u->chunk < p->count);
        if (c->r->want == 0)
            p->wanted[p->wanted_count++] = u->chunk;
        c->r->want |= u->on_host ? HL_WANT_HOST : HL_WANT_DEVICE;
        if (u->write)
            c->r->want |= u->on_host ? HL_WRITE_HOST : HL_WRITE_DEVICE;
    }
    for (size_t i = 0; i < p->wanted_count; i++)
        HL_TRY(check_want(p, &p->chunks[p->wanted[i]]));
    return HL_OK;
}

/* ---- access ---- */

static hl_status fail_room(const struct hl_chunk_pool *p, uint64_t more)
{
    uint64_t wanted = 0, pinned = 0;
    for (uint32_t i = 0; i < p->count; i++) {
        const struct chunk *c = &p->chunks[i];
        if (c->r->want & HL_WANT_DEVICE)
            wanted += c->r->bytes;
        else if (c->r->device_pins > 0)
            pinned += c->r->bytes;
    }
    return hl_fail(HL_ENOSPC,
                   "%s: needs %" PRIu64 " bytes on the device at once (%" PRIu64
                   " of them not there yet) in addition to %" PRIu64
                   " that are pinned, and %" PRIu64 " of %" PRIu64 " are available to chunks now",
                   p->info.name, wanted, more, pinned, p->s.avail, p->s.capacity);
}

static hl_status pool_decide_access(struct hl_chunk_pool *p)
{
    struct hl_residency r = pool_residency(p, p->s.avail);
    if (!hl_residency_access(&r, p->wanted, p->wanted_count, &p->moves))
        return fail_room(p, p->moves.load_bytes);
    return HL_OK;
}

static void pool_pin(struct hl_chunk_pool *p, const struct hl_trace_use *uses, size_t count)
{
    p->s.pins += count;
    p->accesses++;
    for (size_t i = 0; i < count; i++) {
        struct chunk *c = &p->chunks[uses[i].chunk];
        c->used = p->accesses;
        if (uses[i].on_host) {
            c->r->host_pins++;
            c->r->host_write |= uses[i].write;
            continue;
        }
        if (c->r->device_pins++ == 0)
            p->s.pinned += c->r->bytes;
        c->r->device_write |= uses[i].write;
        hl_policy_used(p->policy, uses[i].chunk, p->now);
    }
}

static hl_status pool_try_access(struct hl_chunk_pool *p, const struct hl_trace_use *uses,
                                 size_t count)
{
    uint64_t before = p->s.device < p->s.avail ? p->s.device : p->s.avail;
    bool over = before > pool_part(p, false);
    hl_status st = pool_merge_uses(p, uses, count);
    if (st == HL_OK)
        st = pool_decide_access(p);
    if (st == HL_OK)
        st = pool_move(p);
    if (st == HL_OK) {
        pool_settle(p);
        pool_pin(p, uses, count);
        p->s.given_back += over && p->s.device < before ? before - p->s.device : 0;
    }
    pool_forget(p);
    return st;
}

hl_status hl_chunk_pool_access(struct hl_chunk_pool *p, const struct hl_trace_use *uses,
                               size_t count)
{
    if (p->lost)
        return hl_fail(HL_EUNAVAIL, "%s: the device did not answer; end the process", p->info.name);
    hl_chunk_pool_settle_ahead(p);
    for (size_t i = 0; i < count; i++)
        pool_end_view(p, &p->chunks[uses[i].chunk]);
    p->s.host_short = 0;
    HL_TRY(pool_refresh(p));
    bool asked = pool_part(p, false) < UINT64_MAX;
    uint64_t began = asked ? hl_now_ns() : 0;
    hl_status st = pool_try_access(p, uses, count);
    /* What leaves because it is asked for can fail, too: then it stays. */
    if (st != HL_OK && !p->lost && asked) {
        uint64_t again = pool_again(began);
        hl_error_clear();
        p->s.host_short = 0;
        p->leave_again_ns = UINT64_MAX;
        st = pool_try_access(p, uses, count);
        p->leave_again_ns = st == HL_OK ? again : 0;
    }
    /* A refused access does not begin its moment. */
    if (st == HL_OK && p->s.device > p->s.avail && p->s.device - p->s.avail > p->s.peak_over_avail)
        p->s.peak_over_avail = p->s.device - p->s.avail;
#ifdef HELIOS_AUDIT
    hl_status audit = hl_chunk_pool_audit(p);
    assert(audit == HL_OK);
#endif
    return st;
}

/* Begins a moment that needs nothing. */
void hl_chunk_pool_give_back(struct hl_chunk_pool *p)
{
    if (p->s.device <= pool_part(p, false) && p->s.host <= pool_part(p, true))
        return;
    hl_chunk_pool_moment(p, p->s.avail);
    if (hl_chunk_pool_access(p, NULL, 0) != HL_OK)
        hl_error_clear();
}

void hl_chunk_pool_release(struct hl_chunk_pool *p, uint32_t chunk, bool on_host)
{
    struct chunk *c = &p->chunks[chunk];
    assert(chunk < p->count && (on_host ? c->r->host_pins : c->r->device_pins) > 0);
    p->s.pins--;
    if (on_host) {
        if (--c->r->host_pins == 0)
            c->r->host_write = 0;
        return;
    }
    p->used = true;
    if (--c->r->device_pins == 0) {
        c->r->device_write = 0;
        p->s.pinned -= c->r->bytes;
    }
}

void hl_chunk_pool_end(struct hl_chunk_pool *p, uint32_t chunk)
{
    struct chunk *c = &p->chunks[chunk];
    assert(chunk < p->count && c->r->host_pins == 0 && c->r->device_pins == 0);
    if (c->ahead)
        hl_chunk_pool_settle_ahead(p);
    pool_drop_view(p, c);
    if (c->r->device)
        pool_leave_device(p, c);
    pool_end_below(p, c);
    c->r->host = 0;
    pool_lower_host(p, c, HL_CHUNK_HOST_NONE);
}

/* Drops all pins of a chunk that a client still holds, because the client is closing. */
static void chunk_unpin(struct hl_chunk_pool *p, struct chunk *c)
{
    p->s.pins -= c->r->device_pins + c->r->host_pins;
    p->s.pinned -= c->r->device_pins > 0 ? c->r->bytes : 0;
    p->used |= c->r->device_pins > 0;
    c->r->device_pins = c->r->host_pins = 0;
    c->r->device_write = c->r->host_write = 0;
}

/* Moves the content to the host and removes it everywhere else. */
static hl_status chunk_bring_home(struct hl_chunk_pool *p, uint32_t chunk)
{
    struct chunk *c = &p->chunks[chunk];
    struct hl_trace_use use = {.chunk = chunk, .on_host = 1, .write = 1};
    chunk_unpin(p, c);
    if (!c->r->host && !c->r->device && c->below == 0)
        return HL_OK;
    HL_TRY(hl_chunk_pool_access(p, &use, 1));
    hl_chunk_pool_release(p, chunk, true);
    return HL_OK;
}

hl_status hl_chunk_pool_keep(struct hl_chunk_pool *p, uint32_t chunk, bool on_host,
                             struct hl_chunk_kept *out)
{
    struct chunk *c = &p->chunks[chunk];
    if (p->lost)
        return hl_fail(HL_EUNAVAIL, "%s: the device did not answer; end the process", p->info.name);
    if (!p->serves)
        return hl_fail(HL_EUNSUPPORTED, "%s: only memory whose page faults are served can be kept",
                       p->info.name);
    p->o.host_bytes = 0;
    p->o.part = NULL;
    p->o.charge = NULL; /* it could refuse; what it counted ends with the client */
    HL_TRY(chunk_bring_home(p, chunk));
    if (!on_host || !c->r->host) {
        HL_TRY(hl_chunk_view_put(&c->mem, on_host, c->r->host ? c->mem.host : NULL));
        HL_TRY(hl_chunk_view_open(&c->mem, on_host, true));
    }
    if (on_host)
        c->mem.keeps_host = true;
    else
        c->mem.keeps_device = true;
    *out = (struct hl_chunk_kept){
        .address = on_host ? c->mem.host : (void *)(uintptr_t)c->mem.address, .bytes = c->mem.span};
    return HL_OK;
}

void hl_chunk_pool_info(const struct hl_chunk_pool *p, uint32_t chunk, struct hl_chunk_info *out)
{
    const struct chunk *c = &p->chunks[chunk];
    *out = (struct hl_chunk_info){.kind = c->kind,
                                  .bytes = c->r->bytes,
                                  .on_device = c->r->device,
                                  .on_host = c->r->host || c->below != 0,
                                  .below = c->below != 0,
                                  .device_pins = c->r->device_pins,
                                  .host_pins = c->r->host_pins,
                                  .host = c->mem.host,
                                  .address = c->mem.address};
}

void hl_chunk_pool_stats(const struct hl_chunk_pool *p, struct hl_chunk_pool_stats *out)
{
    *out = p->s;
}
