/* The index of a tier:
 *
 *     by_id    id --> entry                        hash: finds by id
 *     slots[]  | entry | NULL | entry | entry |    finds by a reference's tag, lists in pages
 *                   ^       '-- slot_hint: no free slot is below
 *                   '--- slot, gen: a reference holds both, so one to a former entry is stale
 *
 *     add --> WRITING --seal--> SEALED --drop, not pinned--> DROPPING --remove--> removed
 *                |                ^                             |  waits for its holds
 *                '--remove        '--restore, or still in use---'
 *
 * An entry that is WRITING, or DROPPING without pins and holds, belongs to the thread that set that
 * state: the thread works on the medium without the lock. `holds` counts the calls that read the
 * entry without the lock; the last release broadcasts `released`, which wakes a drop. `pins` belong
 * to callers and outlive their calls, so a drop of a pinned entry fails at once instead of
 * waiting. */
#include <assert.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* Must precede the first uthash.h: a failed insert must not end the process. */
#define HASH_NONFATAL_OOM            1
#define uthash_nonfatal_oom(element) ((element)->lost = true)

#include "base/clock.h"
#include "base/crc32.h"
#include "mem/tier/index.h"
#include "os/cond.h"

#define SLOTS_MIN 64
/* Chunks per fetch: enough for a medium with a high latency. */
#define SPAN_CHUNKS 8
/* How long a drop waits for running reads. */
#define HOLD_WAIT_NS (5 * HL_NS_PER_S)

void hl_tier_index_init(struct hl_tier_index *x, const char *name, int numa_id)
{
    *x = (struct hl_tier_index){.name = name, .numa_id = numa_id};
    hl_cond_init(&x->released);
    pthread_mutex_init(&x->lock, NULL);
}

static void entry_free(struct hl_tier_entry *e)
{
    free(e->chunks);
    free(e->medium);
    free(e);
}

void hl_tier_index_fini(struct hl_tier_index *x)
{
    struct hl_tier_entry *e, *next;
    HASH_ITER (hh, x->by_id, e, next) {
        HASH_DEL(x->by_id, e);
        entry_free(e);
    }
    free(x->slots);
    pthread_cond_destroy(&x->released);
    pthread_mutex_destroy(&x->lock);
}

/* With the lock held, like every static function here that takes the index, except index_add. */
static struct hl_tier_entry *by_id(struct hl_tier_index *x, struct hl_id id)
{
    struct hl_tier_entry *e;
    HASH_FIND(hh, x->by_id, &id, sizeof(id), e);
    return e;
}

/* ---- entries come and go --------------------------------------------------------------------- */

/* Takes the lowest free slot, so that slots[] stays dense and pages stay short. The table only
 * grows: a reference keeps its slot number for life. */
static hl_status free_slot(struct hl_tier_index *x, uint32_t *out)
{
    uint32_t slot = x->slot_hint;
    while (slot < x->slot_count && x->slots[slot] != NULL)
        slot++;
    if (slot == x->slot_count) {
        uint32_t more = x->slot_count == 0 ? SLOTS_MIN : x->slot_count * 2;
        struct hl_tier_entry **slots =
            more > x->slot_count ? realloc(x->slots, more * sizeof(struct hl_tier_entry *)) : NULL;
        if (slots == NULL)
            return hl_fail(HL_ENOMEM, "out of memory allocating an index of tier %s", x->name);
        memset(slots + x->slot_count, 0, (more - x->slot_count) * sizeof(struct hl_tier_entry *));
        x->slots = slots;
        x->slot_count = more;
    }
    *out = slot;
    return HL_OK;
}

/* Refuses an id that has an entry in any state: the entry is a claim that makes a second put of the
 * shard fail early, before it has written bytes. */
static hl_status index_insert(struct hl_tier_index *x, struct hl_tier_entry *e)
{
    const struct hl_tier_entry *other = by_id(x, e->id);
    if (other != NULL)
        return hl_fail(HL_EEXIST, "shard %s is %s %s", hl_id_format(e->id).s,
                       other->state == HL_TIER_SEALED    ? "in"
                       : other->state == HL_TIER_WRITING ? "being written to"
                                                         : "being dropped from",
                       x->name);
    HL_TRY(free_slot(x, &e->slot));
    HASH_ADD(hh, x->by_id, id, sizeof(e->id), e);
    if (e->lost)
        return hl_fail(HL_ENOMEM, "out of memory allocating an index of tier %s", x->name);
    /* One counter serves all slots, so a reused slot never repeats a generation. */
    e->gen = ++x->gen;
    x->slots[e->slot] = e;
    x->slot_hint = e->slot + 1;
    x->counts.used += e->room;
    if (e->state == HL_TIER_WRITING)
        x->counts.writing += e->room;
    else
        x->counts.shards++;
    return HL_OK;
}

/* The entry is complete before the lock is taken, because others can find it once it is linked. */
static hl_status index_add(struct hl_tier_index *x, struct hl_id id, uint64_t size, uint64_t room,
                           enum hl_tier_state state, struct hl_tier_entry **out)
{
    struct hl_tier_entry *e = calloc(1, sizeof(*e));
    if (e == NULL)
        return hl_fail(HL_ENOMEM, "out of memory allocating an index of tier %s", x->name);
    e->id = id;
    e->size = size;
    e->room = room;
    e->state = state;
    pthread_mutex_lock(&x->lock);
    hl_status st = index_insert(x, e);
    pthread_mutex_unlock(&x->lock);
    if (st != HL_OK) {
        free(e);
        return st;
    }
    *out = e;
    return HL_OK;
}

hl_status hl_tier_index_add(struct hl_tier_index *x, struct hl_id id, uint64_t size, uint64_t room,
                            struct hl_tier_entry **out)
{
    return index_add(x, id, size, room, HL_TIER_WRITING, out);
}

hl_status hl_tier_index_adopt(struct hl_tier_index *x, struct hl_id id, uint64_t size,
                              uint64_t room)
{
    struct hl_tier_entry *e;
    return index_add(x, id, size, room, HL_TIER_SEALED, &e);
}

static struct hl_tier_ref ref_of(const struct hl_tier_index *x, const struct hl_tier_entry *e)
{
    return (struct hl_tier_ref){.id = e->id,
                                .size = e->size,
                                .offset = e->offset,
                                .crc32 = e->crc32,
                                .gen = e->gen,
                                .numa_id = x->numa_id,
                                .tag = e->slot};
}

/* The caller owns the WRITING entry and has written all bytes and computed the checksums without
 * the lock. The state is stored after them, under the lock, so a hold that sees SEALED also sees
 * the checksums; they do not change afterwards. */
void hl_tier_index_seal(struct hl_tier_index *x, struct hl_tier_entry *e, uint32_t crc32,
                        uint32_t *chunks, struct hl_tier_ref *ref)
{
    pthread_mutex_lock(&x->lock);
    assert(e->state == HL_TIER_WRITING);
    e->crc32 = crc32;
    e->crc_known = true;
    e->chunks = chunks;
    e->state = HL_TIER_SEALED;
    x->counts.writing -= e->room;
    x->counts.shards++;
    *ref = ref_of(x, e);
    pthread_mutex_unlock(&x->lock);
}

/* The medium has already freed the bytes. Until `used` is reduced here it counts them too, which is
 * the safe side of the quota. */
void hl_tier_index_remove(struct hl_tier_index *x, struct hl_tier_entry *e)
{
    pthread_mutex_lock(&x->lock);
    assert(e->state != HL_TIER_SEALED && e->pins == 0 && e->holds == 0);
    x->counts.used -= e->room;
    if (e->state == HL_TIER_WRITING)
        x->counts.writing -= e->room;
    x->slots[e->slot] = NULL;
    if (e->slot < x->slot_hint)
        x->slot_hint = e->slot;
    HASH_DEL(x->by_id, e);
    pthread_mutex_unlock(&x->lock);
    entry_free(e);
}

/* The entry stays valid after the unlock because it belongs to the caller: it is WRITING, or
 * pinned. */
struct hl_tier_entry *hl_tier_index_at(struct hl_tier_index *x, uint64_t slot)
{
    pthread_mutex_lock(&x->lock);
    assert(slot < x->slot_count && x->slots[slot] != NULL);
    struct hl_tier_entry *e = x->slots[slot];
    pthread_mutex_unlock(&x->lock);
    return e;
}

/* ---- sealed entries -------------------------------------------------------------------------- */

static hl_status fail_missing(const struct hl_tier_index *x, struct hl_id id)
{
    return hl_fail(HL_ENOENT, "shard %s is not in %s", hl_id_format(id).s, x->name);
}

/* While its bytes are read, a count instead of the lock protects the entry, so reads of the same
 * shard and of others run in parallel. */
hl_status hl_tier_index_hold(struct hl_tier_index *x, struct hl_id id, struct hl_tier_entry **out)
{
    pthread_mutex_lock(&x->lock);
    struct hl_tier_entry *e = by_id(x, id);
    if (e != NULL && e->state != HL_TIER_SEALED)
        e = NULL;
    if (e != NULL)
        e->holds++;
    pthread_mutex_unlock(&x->lock);
    if (e == NULL)
        return fail_missing(x, id);
    *out = e;
    return HL_OK;
}

/* With the lock held; NULL if the entry no longer exists. A pinned entry also exists while a drop
 * waits for the calls that hold it. */
static struct hl_tier_entry *entry_of(struct hl_tier_index *x, const struct hl_tier_ref *ref)
{
    struct hl_tier_entry *e = ref->tag < x->slot_count ? x->slots[ref->tag] : NULL;
    if (e == NULL || e->gen != ref->gen || e->size != ref->size || !hl_id_equal(e->id, ref->id))
        return NULL;
    bool there = e->state == HL_TIER_SEALED || (e->state == HL_TIER_DROPPING && e->pins > 0);
    return there ? e : NULL;
}

hl_status hl_tier_index_hold_ref(struct hl_tier_index *x, const struct hl_tier_ref *ref,
                                 struct hl_tier_entry **out)
{
    pthread_mutex_lock(&x->lock);
    struct hl_tier_entry *e = entry_of(x, ref);
    if (e != NULL)
        e->holds++;
    pthread_mutex_unlock(&x->lock);
    if (e == NULL)
        return hl_fail(HL_ESTALE, "shard %s was dropped from %s; look it up again",
                       hl_id_format(ref->id).s, x->name);
    *out = e;
    return HL_OK;
}

/* Broadcasts instead of signalling: all entries share the condition `released`, and each drop waits
 * for its own entry. */
void hl_tier_index_release(struct hl_tier_index *x, struct hl_tier_entry *e)
{
    pthread_mutex_lock(&x->lock);
    assert(e->holds > 0);
    if (--e->holds == 0)
        pthread_cond_broadcast(&x->released);
    pthread_mutex_unlock(&x->lock);
}

/* The caller holds the entry, so it is SEALED, or DROPPING while the drop waits for that hold; the
 * drop then finds the pin and fails. */
struct hl_tier_ref hl_tier_index_pin(struct hl_tier_index *x, struct hl_tier_entry *e)
{
    pthread_mutex_lock(&x->lock);
    e->pins++;
    struct hl_tier_ref ref = ref_of(x, e);
    pthread_mutex_unlock(&x->lock);
    return ref;
}

void hl_tier_index_unpin(struct hl_tier_index *x, const struct hl_tier_ref *ref)
{
    pthread_mutex_lock(&x->lock);
    struct hl_tier_entry *e = entry_of(x, ref);
    assert(e != NULL && e->pins > 0);
    e->pins--;
    pthread_mutex_unlock(&x->lock);
}

struct hl_tier_ref hl_tier_index_ref(struct hl_tier_index *x, const struct hl_tier_entry *e)
{
    pthread_mutex_lock(&x->lock);
    struct hl_tier_ref ref = ref_of(x, e);
    pthread_mutex_unlock(&x->lock);
    return ref;
}

bool hl_tier_index_crc_known(struct hl_tier_index *x, const struct hl_tier_entry *e)
{
    pthread_mutex_lock(&x->lock);
    bool known = e->crc_known;
    pthread_mutex_unlock(&x->lock);
    return known;
}

/* Stores the checksums of an adopted entry. Two readers may compute them at once; the first array
 * stays for good, because others use it without the lock (hl_tier_index_chunks). */
void hl_tier_index_learn(struct hl_tier_index *x, struct hl_tier_entry *e, uint32_t crc32,
                         uint32_t *chunks)
{
    pthread_mutex_lock(&x->lock);
    e->crc32 = crc32;
    e->crc_known = true;
    if (e->chunks == NULL)
        e->chunks = hl_steal(&chunks);
    pthread_mutex_unlock(&x->lock);
    free(chunks); /* another reader stored the same ones first */
}

const uint32_t *hl_tier_index_chunks(struct hl_tier_index *x, const struct hl_tier_entry *e)
{
    pthread_mutex_lock(&x->lock);
    const uint32_t *chunks = e->chunks;
    pthread_mutex_unlock(&x->lock);
    return chunks;
}

/* During the wait, a call that holds the entry may pin it and even unpin it again; no new call
 * finds it. Therefore both counts are checked again. */
static hl_status drop_locked(struct hl_tier_index *x, struct hl_id id, struct hl_tier_entry **out)
{
    struct hl_tier_entry *e = by_id(x, id);
    uint64_t until = hl_now_ns() + HOLD_WAIT_NS;
    struct timespec ts = {(time_t)(until / HL_NS_PER_S), (long)(until % HL_NS_PER_S)};
    int rc = 0;
    if (e == NULL || e->state != HL_TIER_SEALED)
        return fail_missing(x, id);
    if (e->pins == 0) {
        e->state = HL_TIER_DROPPING;
        while (e->holds > 0 && rc == 0)
            rc = pthread_cond_timedwait(&x->released, &x->lock, &ts);
    }
    if (e->pins > 0 || e->holds > 0) {
        e->state = HL_TIER_SEALED;
        return hl_fail(HL_EBUSY, "shard %s in %s is in use by %" PRIu32 "; drop it later",
                       hl_id_format(id).s, x->name, e->pins + e->holds);
    }
    x->counts.shards--;
    *out = e;
    return HL_OK;
}

hl_status hl_tier_index_drop(struct hl_tier_index *x, struct hl_id id, struct hl_tier_entry **out)
{
    pthread_mutex_lock(&x->lock);
    hl_status st = drop_locked(x, id, out);
    pthread_mutex_unlock(&x->lock);
    return st;
}

/* The medium failed to remove the entry: it leaves DROPPING, with its pins and references as
 * before. */
void hl_tier_index_restore(struct hl_tier_index *x, struct hl_tier_entry *e)
{
    pthread_mutex_lock(&x->lock);
    e->state = HL_TIER_SEALED;
    x->counts.shards++;
    pthread_mutex_unlock(&x->lock);
}

/* The cursor is a slot number. Each entry of the page is held, because the caller reads it after
 * the unlock. Entries that are added or removed meanwhile are seen at most once. */
size_t hl_tier_index_page(struct hl_tier_index *x, uint64_t *cursor, struct hl_tier_entry **out,
                          size_t max)
{
    size_t n = 0;
    uint64_t slot = *cursor;
    pthread_mutex_lock(&x->lock);
    for (; slot < x->slot_count && n < max; slot++) {
        struct hl_tier_entry *e = x->slots[slot];
        if (e == NULL || e->state != HL_TIER_SEALED)
            continue;
        e->holds++;
        out[n++] = e;
    }
    *cursor = slot < x->slot_count ? slot : 0;
    pthread_mutex_unlock(&x->lock);
    return n;
}

/* ---- accounting ------------------------------------------------------------------------------ */

/* Between begin and end the medium and the counters may differ; the audit compares them only while
 * `busy` is 0. */
void hl_tier_index_begin(struct hl_tier_index *x)
{
    pthread_mutex_lock(&x->lock);
    x->busy++;
    pthread_mutex_unlock(&x->lock);
}

void hl_tier_index_end(struct hl_tier_index *x)
{
    pthread_mutex_lock(&x->lock);
    x->busy--;
    pthread_mutex_unlock(&x->lock);
}

void hl_tier_index_counts(struct hl_tier_index *x, struct hl_tier_counts *out)
{
    pthread_mutex_lock(&x->lock);
    *out = x->counts;
    pthread_mutex_unlock(&x->lock);
}

/* With the lock held, so that no entry changes between the sum and the comparison. */
static hl_status audit_locked(struct hl_tier_index *x, hl_tier_medium_fn medium, void *arg)
{
    struct hl_tier_counts sum = {0}, *c = &x->counts;
    size_t in_slots = 0;
    for (uint32_t i = 0; i < x->slot_count; i++) {
        const struct hl_tier_entry *e = x->slots[i];
        if (e == NULL)
            continue;
        in_slots++;
        sum.used += e->room;
        sum.writing += e->state == HL_TIER_WRITING ? e->room : 0;
        sum.shards += e->state == HL_TIER_SEALED;
    }
    if (in_slots != HASH_COUNT(x->by_id) || memcmp(&sum, c, sizeof(sum)) != 0)
        return hl_fail(HL_ECORRUPT,
                       "the index of %s holds %zu entries in %u slots: %" PRIu64 " bytes, %" PRIu64
                       " being written, %" PRIu64 " shards; the counters say %" PRIu64 ", %" PRIu64
                       ", %" PRIu64,
                       x->name, (size_t)HASH_COUNT(x->by_id), (unsigned)in_slots, sum.used,
                       sum.writing, sum.shards, c->used, c->writing, c->shards);
    return x->busy == 0 && medium != NULL ? medium(arg, c) : HL_OK;
}

hl_status hl_tier_index_audit(struct hl_tier_index *x, hl_tier_medium_fn medium, void *arg)
{
    pthread_mutex_lock(&x->lock);
    hl_status st = audit_locked(x, medium, arg);
    pthread_mutex_unlock(&x->lock);
    return st;
}

/* ---- reading with checks --------------------------------------------------------------------- */

static hl_status fail_chunk(struct hl_id id, const struct hl_chunks *c, uint64_t i)
{
    return hl_fail(HL_ECORRUPT, "shard %s: chunk %" PRIu64 " of %" PRIu64 " fails its CRC",
                   hl_id_format(id).s, i, hl_chunk_count(c->size));
}

/* Reads whole chunks, starting at number `first`, directly into dst: one fetch and one CRC. */
static hl_status read_span(struct hl_id id, const struct hl_chunks *c, uint64_t first,
                           uint64_t chunks, uint8_t *dst, hl_tier_fetch_fn fetch, void *arg)
{
    uint32_t got, want = hl_chunk_crc(c, first);
    uint64_t len = hl_chunk_len(c->size, first);
    for (uint64_t i = first + 1; i < first + chunks; i++) {
        want = hl_crc32_combine(want, hl_chunk_crc(c, i), hl_chunk_len(c->size, i));
        len += hl_chunk_len(c->size, i);
    }
    HL_TRY(fetch(arg, first * HL_CHUNK, dst, len, &got));
    if (got == want)
        return HL_OK;
    uint64_t bad = first;
    while (bad + 1 < first + chunks && hl_crc32(0, dst + (bad - first) * HL_CHUNK,
                                                hl_chunk_len(c->size, bad)) == hl_chunk_crc(c, bad))
        bad++;
    return fail_chunk(id, c, bad);
}

/* Reads part of a chunk: the whole chunk is fetched into a separate buffer. */
static hl_status read_part(struct hl_id id, const struct hl_chunks *c, uint64_t offset, void *dst,
                           size_t len, hl_tier_fetch_fn fetch, void *arg)
{
    uint64_t i = offset / HL_CHUNK, n = hl_chunk_len(c->size, i);
    uint32_t got;
    HL_AUTO(hl_freep) uint8_t *all = malloc(n);
    if (all == NULL)
        return hl_fail(HL_ENOMEM, "out of memory reading shard %s", hl_id_format(id).s);
    HL_TRY(fetch(arg, i * HL_CHUNK, all, n, &got));
    if (got != hl_chunk_crc(c, i))
        return fail_chunk(id, c, i);
    memcpy(dst, all + offset % HL_CHUNK, len);
    return HL_OK;
}

hl_status hl_tier_read_checked(struct hl_id id, const struct hl_chunks *c, uint64_t offset,
                               void *dst, size_t len, hl_tier_fetch_fn fetch, void *arg)
{
    uint8_t *out = dst;
    uint64_t end = offset + len;
    while (offset < end) {
        uint64_t i = offset / HL_CHUNK, stop = i * HL_CHUNK + hl_chunk_len(c->size, i);
        if (offset % HL_CHUNK != 0 || end < stop) {
            stop = end < stop ? end : stop;
            HL_TRY(read_part(id, c, offset, out, stop - offset, fetch, arg));
        } else {
            uint64_t chunks = 1, next;
            while (chunks < SPAN_CHUNKS && stop < end &&
                   (next = stop + hl_chunk_len(c->size, i + chunks)) <= end) {
                stop = next;
                chunks++;
            }
            HL_TRY(read_span(id, c, i, chunks, out, fetch, arg));
        }
        out += stop - offset;
        offset = stop;
    }
    return HL_OK;
}
