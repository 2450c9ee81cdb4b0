/* Reads are counted in a fixed-size table of atomics, so that counting neither locks nor allocates.
 * An id claims a slot once and keeps it. When its neighbourhood is full, its reads are counted
 * under no id, so that the totals stay correct. The tags of a neighbourhood share a cache line:
 * with more shards than slots most reads end there.
 *
 *     tags    |f t t f ...  PROBE of them, a neighbourhood|...     an id's low bits say which
 *     slots   |. s s . ...  id and counts                 |...     the slot of the same index
 *
 *     tag: FREE --compare and swap--> CLAIMED --the slot's id is written, release--> tag of the id
 *
 * A thread that meets CLAIMED continues with the next tag. If that slot was for the same id, the id
 * has two slots from then on and two reports, whose sum is right. Counts are taken by exchanging
 * them with 0: a count that arrives meanwhile is in this report or in the next, never in both. */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "client/client_private.h"

#define SLOTS 4096u /* power of two */
#define PROBE 16u
#define LINE  64

enum { TAG_FREE, TAG_CLAIMED, TAG_ID }; /* TAG_ID: a bit that every id's tag has set */

struct slot {
    struct hl_id id;
    atomic_uint crc_failures;
    atomic_uint retries;
    atomic_uint lost;
    atomic_uint kept_reads, kept_bad; /* for the node's Agent */
    atomic_uint count[ACCESS_FROMS];
    _Atomic uint64_t last_ms[ACCESS_FROMS];
    atomic_uint_fast64_t bytes[ACCESS_FROMS];
};

struct access_table {
    _Alignas(LINE) _Atomic uint32_t tags[SLOTS]; /* written after the slot's id */
    struct slot slots[SLOTS];
    struct slot other;
    atomic_bool any_kept;
};

hl_status access_create(struct access_table **out)
{
    struct access_table *t = aligned_alloc(LINE, sizeof(*t));
    if (t == NULL)
        return hl_fail(HL_ENOMEM, "out of memory allocating access counts");
    memset(t, 0, sizeof(*t));
    *out = t;
    return HL_OK;
}

void access_destroy(struct access_table *table)
{
    free(table);
}

static struct slot *slot_of(struct access_table *t, struct hl_id id)
{
    uint32_t tag = (uint32_t)id.hi | TAG_ID;
    size_t first = id.lo & (SLOTS - PROBE);
    for (size_t i = first; i < first + PROBE; i++) {
        uint32_t seen = atomic_load_explicit(&t->tags[i], memory_order_relaxed);
        /* Acquire only at a tag that may be ours. It pairs with the release, so the id is visible.
         */
        if (seen == tag && atomic_load_explicit(&t->tags[i], memory_order_acquire) == tag &&
            hl_id_equal(t->slots[i].id, id))
            return &t->slots[i];
        if (seen == TAG_FREE &&
            atomic_compare_exchange_strong_explicit(&t->tags[i], &seen, TAG_CLAIMED,
                                                    memory_order_relaxed, memory_order_relaxed)) {
            t->slots[i].id = id;
            atomic_store_explicit(&t->tags[i], tag, memory_order_release);
            return &t->slots[i];
        }
    }
    return &t->other;
}

/* Uses the coarse clock: a read of 64 bytes takes little longer than reading the exact one. */
static uint64_t access_now_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
    return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}

void access_count(struct access_table *table, struct hl_id id, uint64_t bytes,
                  enum access_from from)
{
    struct slot *s = slot_of(table, id);
    atomic_store_explicit(&s->last_ms[from], access_now_ms(), memory_order_relaxed);
    atomic_fetch_add_explicit(&s->count[from], 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&s->bytes[from], bytes, memory_order_relaxed);
}

/* `any_kept` is set last: if a take comes in between, the next take gets the count. */
void access_kept(struct access_table *table, struct hl_id id, bool bad)
{
    struct slot *s = slot_of(table, id);
    atomic_fetch_add_explicit(bad ? &s->kept_bad : &s->kept_reads, 1, memory_order_relaxed);
    atomic_store_explicit(&table->any_kept, true, memory_order_release);
}

void access_trouble(struct access_table *table, struct hl_id id, uint32_t crc_failures,
                    uint32_t retries, bool lost)
{
    struct slot *s = slot_of(table, id);
    atomic_fetch_add_explicit(&s->crc_failures, crc_failures, memory_order_relaxed);
    atomic_fetch_add_explicit(&s->retries, retries, memory_order_relaxed);
    if (lost)
        atomic_store_explicit(&s->lost, 1, memory_order_relaxed);
}

/* A report may not know when a shard was last read, for example a report of trouble: then 0. */
static uint32_t access_age_ms(const struct slot *s, int from, unsigned count)
{
    uint64_t now = access_now_ms();
    uint64_t last = atomic_load_explicit(&s->last_ms[from], memory_order_relaxed);
    if (count == 0 || last >= now)
        return 0;
    return now - last < UINT32_MAX ? (uint32_t)(now - last) : UINT32_MAX;
}

/* Troubles are reported with the first of a shard's reports. */
static void take_slot(struct slot *s, const char *net_path, struct hl_arena *arena,
                      struct hl_api_access_report_list *out)
{
    unsigned failures = atomic_exchange_explicit(&s->crc_failures, 0, memory_order_relaxed);
    unsigned retries = atomic_exchange_explicit(&s->retries, 0, memory_order_relaxed);
    unsigned lost = atomic_exchange_explicit(&s->lost, 0, memory_order_relaxed);
    bool told = false;
    for (int from = 0; from < ACCESS_FROMS; from++) {
        unsigned count = atomic_exchange_explicit(&s->count[from], 0, memory_order_relaxed);
        uint64_t bytes = atomic_exchange_explicit(&s->bytes[from], 0, memory_order_relaxed);
        bool trouble = !told && (failures > 0 || retries > 0 || lost > 0);
        if (count == 0 && !(from == ACCESS_FROMS - 1 && trouble))
            continue;
        out->items[out->count++] = (struct hl_api_access_report){
            .id = hl_id_is_none(s->id) ? "" : hl_id_print(s->id, arena),
            .count = count,
            .bytes = bytes,
            .path = count == 0           ? ""
                    : from == ACCESS_NET ? net_path
                                         : "shm",
            .tier = count == 0             ? HL_API_TIER_UNSAID
                    : from == ACCESS_STORE ? HL_API_TIER_L2
                                           : HL_API_TIER_L3,
            .age_ms = access_age_ms(s, from, count),
            .crc_failures = told ? 0 : failures,
            .retries = told ? 0 : retries,
            .lost = !told && lost > 0};
        told = true;
    }
}

static bool is_counted(const struct access_table *table, unsigned i)
{
    return atomic_load_explicit(&table->tags[i], memory_order_acquire) > TAG_CLAIMED;
}

struct hl_api_access_report_list access_take(struct access_table *table, const char *net_path,
                                             struct hl_arena *arena)
{
    struct hl_api_access_report_list out = {0};
    unsigned used = 1; /* `other` */
    for (unsigned i = 0; i < SLOTS; i++)
        used += is_counted(table, i);
    out.items = hl_arena_array(arena, ACCESS_FROMS * (size_t)used, sizeof(*out.items));
    /* A slot that is first counted meanwhile has no room, and is reported next time. */
    size_t most = ACCESS_FROMS * ((size_t)used - 1);
    for (unsigned i = 0; out.items != NULL && i < SLOTS && out.count + ACCESS_FROMS <= most; i++)
        if (is_counted(table, i))
            take_slot(&table->slots[i], net_path, arena, &out);
    if (out.items != NULL)
        take_slot(&table->other, net_path, arena, &out);
    return out;
}

struct hl_api_shard_reads_list access_take_kept(struct access_table *table, struct hl_arena *arena)
{
    struct hl_api_shard_reads_list out = {0};
    if (!atomic_exchange_explicit(&table->any_kept, false, memory_order_acquire))
        return out;
    out.items = hl_arena_array(arena, SLOTS, sizeof(*out.items));
    for (unsigned i = 0; out.items != NULL && i < SLOTS; i++) {
        struct slot *s = &table->slots[i];
        if (!is_counted(table, i))
            continue;
        unsigned reads = atomic_exchange_explicit(&s->kept_reads, 0, memory_order_relaxed);
        unsigned bad = atomic_exchange_explicit(&s->kept_bad, 0, memory_order_relaxed);
        if (reads > 0 || bad > 0)
            out.items[out.count++] = (struct hl_api_shard_reads){
                .id = hl_id_print(s->id, arena), .count = reads, .bad = bad > 0};
    }
    return out;
}
