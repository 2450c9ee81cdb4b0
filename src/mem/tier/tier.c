/* The front end of all tiers: arguments, open slots, quota, watermarks.
 *
 * The sum of used and quarantined bytes grows only in reserve, and one reserve runs at a time. So a
 * quota check still holds when the room has been taken, whatever seal, abort and drop do meanwhile.
 * Only the back end counts, so what is reported is what is there.
 *
 *     reserve --> open slot --seal: `sealing`--> sealed in the back end, the slot is removed
 *                    |   ^             |  failed
 *                    |   '-------------'
 *                    '--abort, or close--> given back
 *
 * `lock` guards the open slots, open_room, the last pressure and the watcher. It is not held while
 * the back end reads, writes or seals, nor while the watcher is called. Lock order: this one, then
 * the back end's. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define HASH_NONFATAL_OOM            1
#define uthash_nonfatal_oom(element) ((element)->lost = true)
#include <uthash.h>

#include "base/copy.h"
#include "base/log.h"
#include "base/text.h"
#include "mem/chunks.h"
#include "mem/tier/ops.h"

#define HIGH_PCT 85
#define LOW_PCT  70

/* A reserved slot. `sealing` is set while the back end makes it durable, without the lock. */
struct hl_tier_open {
    struct hl_id id;
    struct hl_tier_slot slot;
    uint64_t room;
    bool sealing;
    bool lost; /* uthash ran out of memory */
    UT_hash_handle hh;
};

/* ---- making and ending ----------------------------------------------------------------------- */

hl_status hl_tier_init(struct hl_tier_store *t, const struct hl_tier_ops *ops,
                       enum hl_api_tier tier, const char *name, uint64_t medium,
                       const struct hl_tier_limits *limits)
{
    struct hl_tier_limits l = limits != NULL ? *limits : (struct hl_tier_limits){0};
    unsigned high = l.high_pct != 0 ? l.high_pct : HIGH_PCT;
    unsigned low = l.low_pct != 0 ? l.low_pct : high < LOW_PCT ? high : LOW_PCT;
    if (high > 100 || low > high)
        return hl_fail(
            HL_EINVAL,
            "tier %s: watermarks of %u and %u %%: low must not exceed high, nor high 100", name,
            low, high);
    if (medium != 0 && l.quota > medium)
        return hl_fail(HL_EINVAL,
                       "tier %s: a quota of %" PRIu64 " bytes exceeds its %" PRIu64 " bytes", name,
                       l.quota, medium);
    t->ops = ops;
    t->tier = tier;
    snprintf(t->name, sizeof(t->name), "%s", name);
    t->quota = l.quota != 0 ? l.quota : medium;
    t->high = t->quota / 100 * high + t->quota % 100 * high / 100;
    t->low = t->quota / 100 * low + t->quota % 100 * low / 100;
    t->pressure = HL_API_PRESSURE_LOW;
    pthread_mutex_init(&t->lock, NULL);
    return HL_OK;
}

void hl_tier_fini(struct hl_tier_store *t)
{
    pthread_mutex_destroy(&t->lock);
}

void hl_tier_close(struct hl_tier_store *t)
{
    struct hl_tier_open *o, *next;
    if (t == NULL)
        return;
    HASH_ITER (hh, t->open, o, next) {
        t->ops->abort(t, &o->slot);
        HASH_DEL(t->open, o);
        free(o);
    }
    t->ops->close(t);
}

/* ---- usage ----------------------------------------------------------------------------------- */

static enum hl_api_pressure pressure_of(const struct hl_tier_store *t, uint64_t used)
{
    if (t->quota == 0 || used < t->low)
        return HL_API_PRESSURE_LOW;
    return used > t->high ? HL_API_PRESSURE_HIGH : HL_API_PRESSURE_NORMAL;
}

/* With the lock held, because `pressure` is compared with the previous one. */
static void usage_of(struct hl_tier_store *t, struct hl_tier_usage *out)
{
    struct hl_tier_counts c;
    t->ops->counts(t, &c);
    *out = (struct hl_tier_usage){
        .tier = t->tier,
        .quota = t->quota,
        .used = c.used,
        .writing = c.writing,
        .quarantined = c.quarantined,
        .shards = c.shards,
        .kept = c.kept,
        .kept_shards = c.kept_shards,
        .high = t->high,
        .low = t->low,
        .pressure = pressure_of(t, c.used),
    };
    memcpy(out->name, t->name, sizeof(out->name));
    t->ops->backing(t, out->backing, sizeof(out->backing));
}

/* Called after a change, without the lock: tells the watcher once of each new pressure. */
static void tell_pressure(struct hl_tier_store *t, struct hl_tier_usage *usage)
{
    pthread_mutex_lock(&t->lock);
    usage_of(t, usage);
    hl_tier_watch_fn fn = usage->pressure != t->pressure ? t->watch : NULL;
    void *arg = t->watch_arg;
    t->pressure = usage->pressure;
    pthread_mutex_unlock(&t->lock);
    if (fn != NULL)
        fn(arg, usage);
}

#ifdef HELIOS_AUDIT
static void audit_now(struct hl_tier_store *t)
{
    if (hl_tier_audit(t) == HL_OK)
        return;
    hl_error("accounting of tier %s is wrong: %s", t->name, hl_error_text());
    abort();
}
#else
static void audit_now(struct hl_tier_store *t)
{
    (void)t;
}
#endif

static void usage_changed(struct hl_tier_store *t)
{
    struct hl_tier_usage usage;
    audit_now(t);
    tell_pressure(t, &usage);
}

/* A query can be a change too: the back end may have reaped bytes by itself and lowered the
 * pressure. */
void hl_tier_usage(struct hl_tier_store *t, struct hl_tier_usage *out)
{
    tell_pressure(t, out);
}

void hl_tier_watch(struct hl_tier_store *t, hl_tier_watch_fn fn, void *arg)
{
    pthread_mutex_lock(&t->lock);
    t->watch = fn;
    t->watch_arg = arg;
    pthread_mutex_unlock(&t->lock);
}

hl_status hl_tier_audit(struct hl_tier_store *t)
{
    struct hl_tier_open *o;
    struct hl_tier_counts c;
    uint64_t filling = 0, room = 0;
    HL_TRY(t->ops->audit(t));
    pthread_mutex_lock(&t->lock);
    /* A slot that is being sealed may already be counted as sealed. */
    for (o = t->open; o != NULL; o = o->hh.next) {
        room += o->room;
        filling += o->sealing ? 0 : o->room;
    }
    t->ops->counts(t, &c);
    uint64_t open_room = t->open_room;
    pthread_mutex_unlock(&t->lock);
    if (room != open_room || filling > c.writing || c.writing > c.used)
        return hl_fail(HL_ECORRUPT,
                       "tier %s: the open slots take %" PRIu64 " bytes, the counter says %" PRIu64
                       "; of %" PRIu64 " bytes used %" PRIu64 " are being written",
                       t->name, room, open_room, c.used, c.writing);
    return HL_OK;
}

/* ---- open slots ------------------------------------------------------------------------------ */

/* With the lock held; so are open_remove, open_of, check_quota and reserve_locked. */
static struct hl_tier_open *open_find(struct hl_tier_store *t, struct hl_id id)
{
    struct hl_tier_open *o;
    HASH_FIND(hh, t->open, &id, sizeof(id), o);
    return o;
}

static void open_remove(struct hl_tier_store *t, struct hl_tier_open *o)
{
    t->open_room -= o->room;
    HASH_DEL(t->open, o);
    free(o);
}

/* Finds exactly the slot that reserve returned, not an earlier one of the same id. */
static struct hl_tier_open *open_of(struct hl_tier_store *t, const struct hl_tier_slot *slot)
{
    struct hl_tier_open *o = open_find(t, slot->id);
    if (o == NULL || o->sealing || o->slot.offset != slot->offset || o->slot.tag != slot->tag ||
        o->slot.handle != slot->handle || o->slot.size != slot->size)
        return NULL;
    return o;
}

/* What is left of the quota: nothing if an adopted pool holds more than that. */
static uint64_t free_of(struct hl_tier_store *t, struct hl_tier_counts *c)
{
    t->ops->counts(t, c);
    uint64_t taken = c->used + c->quarantined;
    return t->quota == 0 ? UINT64_MAX : taken < t->quota ? t->quota - taken : 0;
}

static hl_status check_quota(struct hl_tier_store *t, uint64_t size, uint64_t room)
{
    struct hl_tier_counts c;
    char asked[32], left[32], quarantined[32];
    uint64_t spare = free_of(t, &c);
    /* Bytes whose quarantine is over may not be freed yet; the back end frees them now. */
    if (room > spare && t->ops->reclaim != NULL && c.quarantined > 0) {
        t->ops->reclaim(t);
        spare = free_of(t, &c);
    }
    if (room <= spare)
        return HL_OK;
    return hl_fail(
        HL_ENOSPC,
        "tier %s %s has no room for a shard of %s (%" PRIu64 " bytes): %s (%" PRIu64
        " bytes) are free, %s are in quarantine after being dropped; drop shards or raise its "
        "quota",
        hl_api_tier_name(t->tier), t->name, hl_format_bytes(size, asked, sizeof(asked)), size,
        hl_format_bytes(spare, left, sizeof(left)), spare,
        hl_format_bytes(c.quarantined, quarantined, sizeof(quarantined)));
}

/* The back end and the table change under one lock: an abort or audit in between would otherwise
 * see a reservation that only one of them has. */
static hl_status reserve_locked(struct hl_tier_store *t, struct hl_tier_open *o, int numa_node)
{
    if (open_find(t, o->id) != NULL)
        return hl_fail(HL_EEXIST, "shard %s is being written to %s", hl_id_format(o->id).s,
                       t->name);
    HL_TRY(check_quota(t, o->slot.size, o->room));
    HL_TRY(t->ops->reserve(t, &o->slot, numa_node));
    HASH_ADD(hh, t->open, id, sizeof(o->id), o);
    if (o->lost) {
        t->ops->abort(t, &o->slot);
        return hl_fail(HL_ENOMEM, "out of memory allocating a slot for shard %s",
                       hl_id_format(o->id).s);
    }
    t->open_room += o->room;
    return HL_OK;
}

uint64_t hl_tier_room(const struct hl_tier_store *t, uint64_t size)
{
    return t->ops->room(t, size);
}

hl_status hl_tier_reserve(struct hl_tier_store *t, struct hl_id id, uint64_t size, int numa_node,
                          struct hl_tier_slot *out)
{
    if (hl_id_is_none(id) || size == 0 || size > INT64_MAX / 2)
        return hl_fail(HL_EINVAL, "shard %s of %" PRIu64 " bytes can't be stored",
                       hl_id_format(id).s, size);
    struct hl_tier_open *o = calloc(1, sizeof(*o));
    if (o == NULL)
        return hl_fail(HL_ENOMEM, "out of memory allocating a slot for shard %s",
                       hl_id_format(id).s);
    o->id = id;
    o->slot = (struct hl_tier_slot){.id = id, .size = size};
    o->room = t->ops->room(t, size);
    pthread_mutex_lock(&t->lock);
    hl_status st = reserve_locked(t, o, numa_node);
    struct hl_tier_slot slot = o->slot;
    pthread_mutex_unlock(&t->lock);
    if (st != HL_OK) {
        free(o);
        return st;
    }
    *out = slot;
    usage_changed(t);
    return HL_OK;
}

static hl_status fail_closed(const struct hl_tier_store *t, const struct hl_tier_slot *slot)
{
    return hl_fail(HL_EINVAL, "shard %s is not being written to %s", hl_id_format(slot->id).s,
                   t->name);
}

/* The bytes are copied without the lock: the slot belongs to the caller, which does not abort or
 * seal it meanwhile. The check only catches a slot that has already ended. */
hl_status hl_tier_fill(struct hl_tier_store *t, const struct hl_tier_slot *slot, uint64_t offset,
                       const void *src, size_t len)
{
    HL_TRY(hl_chunks_range(slot->id, slot->size, offset, len));
    pthread_mutex_lock(&t->lock);
    bool open = open_of(t, slot) != NULL;
    pthread_mutex_unlock(&t->lock);
    if (!open)
        return fail_closed(t, slot);
    if (t->ops->fill != NULL)
        return t->ops->fill(t, slot, offset, src, len);
    hl_copy((uint8_t *)slot->host + offset, src, len, slot->size);
    return HL_OK;
}

hl_status hl_tier_seal(struct hl_tier_store *t, const struct hl_tier_slot *slot, uint32_t crc32,
                       const uint32_t *chunk_crcs, size_t chunks, struct hl_tier_ref *ref)
{
    struct hl_tier_ref sealed = {0};
    HL_TRY(hl_chunks_check(slot->id, slot->size, crc32, chunk_crcs, chunks));
    pthread_mutex_lock(&t->lock);
    struct hl_tier_open *o = open_of(t, slot);
    if (o != NULL)
        o->sealing = true;
    pthread_mutex_unlock(&t->lock);
    if (o == NULL)
        return fail_closed(t, slot);
    /* The lock is not held, since the back end may read all bytes. `sealing` hides the slot from
     * fill, abort and a second seal, so `o` stays valid. */
    hl_status st = t->ops->seal(t, slot, crc32, chunk_crcs, chunks, &sealed);
    pthread_mutex_lock(&t->lock);
    o->sealing = false;
    if (st == HL_OK)
        open_remove(t, o);
    pthread_mutex_unlock(&t->lock);
    if (st != HL_OK)
        return st;
    if (ref != NULL)
        *ref = sealed;
    usage_changed(t);
    return HL_OK;
}

/* Does nothing for a slot that has ended or is being sealed: the seal then decides its outcome. */
void hl_tier_abort(struct hl_tier_store *t, const struct hl_tier_slot *slot)
{
    pthread_mutex_lock(&t->lock);
    struct hl_tier_open *o = open_of(t, slot);
    if (o != NULL) {
        t->ops->abort(t, &o->slot);
        open_remove(t, o);
    }
    pthread_mutex_unlock(&t->lock);
    if (o != NULL)
        usage_changed(t);
}

/* ---- sealed copies --------------------------------------------------------------------------- */

hl_status hl_tier_find(struct hl_tier_store *t, struct hl_id id, struct hl_tier_ref *out)
{
    return t->ops->find(t, id, out);
}

hl_status hl_tier_pin(struct hl_tier_store *t, struct hl_id id, struct hl_tier_ref *out)
{
    return t->ops->pin(t, id, out);
}

void hl_tier_unpin(struct hl_tier_store *t, const struct hl_tier_ref *ref)
{
    t->ops->unpin(t, ref);
}

hl_status hl_tier_read(struct hl_tier_store *t, const struct hl_tier_ref *ref, uint64_t offset,
                       void *dst, size_t len)
{
    HL_TRY(hl_chunks_range(ref->id, ref->size, offset, len));
    return t->ops->read(t, ref, offset, dst, len);
}

hl_status hl_tier_chunk_crcs(struct hl_tier_store *t, const struct hl_tier_ref *ref, uint32_t *out)
{
    return t->ops->chunk_crcs(t, ref, out);
}

hl_status hl_tier_share(struct hl_tier_store *t, const struct hl_tier_ref *ref,
                        struct hl_device_share *out)
{
    if (t->ops->share == NULL)
        return hl_fail(HL_EUNSUPPORTED, "tier %s is not a device's memory", t->name);
    return t->ops->share(t, ref, out);
}

hl_status hl_tier_drop(struct hl_tier_store *t, struct hl_id id)
{
    HL_TRY(t->ops->drop(t, id));
    usage_changed(t);
    return HL_OK;
}

size_t hl_tier_list(struct hl_tier_store *t, uint64_t *cursor, struct hl_tier_ref *out, size_t max)
{
    return t->ops->list(t, cursor, out, max);
}
