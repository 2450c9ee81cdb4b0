#include "mem/tier/indexed.h"

#include <stdlib.h>
#include <string.h>

#define LIST_PAGE 64

static struct hl_tier_indexed *indexed_of(struct hl_tier_store *t)
{
    return (struct hl_tier_indexed *)t;
}

void hl_tier_indexed_init(struct hl_tier_indexed *t, const struct hl_tier_medium *medium,
                          int numa_id)
{
    t->medium = medium;
    hl_tier_index_init(&t->index, t->store.name, numa_id);
}

hl_status hl_tier_indexed_keep_crcs(struct hl_id id, const uint32_t *crcs, size_t chunks,
                                    uint32_t **out)
{
    uint32_t *kept = malloc(chunks * sizeof(*kept));
    if (kept == NULL)
        return hl_fail(HL_ENOMEM, "out of memory allocating the checksums of shard %s",
                       hl_id_format(id).s);
    memcpy(kept, crcs, chunks * sizeof(*kept));
    *out = kept;
    return HL_OK;
}

/* ---- finding --------------------------------------------------------------------------------- */

static hl_status know_crc(struct hl_tier_indexed *t, struct hl_tier_entry *e)
{
    if (t->medium->learn_crc == NULL || hl_tier_index_crc_known(&t->index, e))
        return HL_OK;
    return t->medium->learn_crc(t, e);
}

static hl_status know_chunks(struct hl_tier_indexed *t, struct hl_tier_entry *e)
{
    return hl_tier_index_chunks(&t->index, e) != NULL ? HL_OK : t->medium->learn_chunks(t, e);
}

static hl_status look_up(struct hl_tier_indexed *t, struct hl_id id, bool pin,
                         struct hl_tier_ref *out)
{
    struct hl_tier_entry *e;
    HL_TRY(hl_tier_index_hold(&t->index, id, &e));
    hl_status st = know_crc(t, e);
    if (st == HL_OK)
        *out = pin ? hl_tier_index_pin(&t->index, e) : hl_tier_index_ref(&t->index, e);
    hl_tier_index_release(&t->index, e);
    return st;
}

hl_status hl_tier_indexed_find(struct hl_tier_store *t, struct hl_id id, struct hl_tier_ref *out)
{
    return look_up(indexed_of(t), id, false, out);
}

hl_status hl_tier_indexed_pin(struct hl_tier_store *t, struct hl_id id, struct hl_tier_ref *out)
{
    return look_up(indexed_of(t), id, true, out);
}

void hl_tier_indexed_unpin(struct hl_tier_store *t, const struct hl_tier_ref *ref)
{
    hl_tier_index_unpin(&indexed_of(t)->index, ref);
}

size_t hl_tier_indexed_list(struct hl_tier_store *store, uint64_t *cursor, struct hl_tier_ref *out,
                            size_t max)
{
    struct hl_tier_indexed *t = indexed_of(store);
    struct hl_tier_entry *page[LIST_PAGE];
    size_t n = 0;
    do {
        size_t want = max - n < LIST_PAGE ? max - n : LIST_PAGE;
        size_t got = hl_tier_index_page(&t->index, cursor, page, want);
        for (size_t i = 0; i < got; i++) {
            if (know_crc(t, page[i]) == HL_OK)
                out[n++] = hl_tier_index_ref(&t->index, page[i]);
            hl_tier_index_release(&t->index, page[i]);
        }
    } while (*cursor != 0 && n < max);
    return n;
}

/* ---- reading --------------------------------------------------------------------------------- */

struct source {
    struct hl_tier_indexed *tier;
    const struct hl_tier_entry *entry;
};

static hl_status fetch_entry(void *arg, uint64_t offset, void *dst, uint64_t len, uint32_t *crc)
{
    const struct source *s = arg;
    return s->tier->medium->fetch(s->tier, s->entry, offset, dst, len, crc);
}

static hl_status read_held(struct hl_tier_indexed *t, struct hl_tier_entry *e, uint64_t offset,
                           void *dst, size_t len)
{
    struct source s = {t, e};
    HL_TRY(know_chunks(t, e));
    struct hl_chunks c = {e->size, hl_tier_index_ref(&t->index, e).crc32,
                          hl_tier_index_chunks(&t->index, e)};
    return hl_tier_read_checked(e->id, &c, offset, dst, len, fetch_entry, &s);
}

hl_status hl_tier_indexed_read(struct hl_tier_store *store, const struct hl_tier_ref *ref,
                               uint64_t offset, void *dst, size_t len)
{
    struct hl_tier_indexed *t = indexed_of(store);
    struct hl_tier_entry *e;
    HL_TRY(hl_tier_index_hold_ref(&t->index, ref, &e));
    hl_status st = read_held(t, e, offset, dst, len);
    hl_tier_index_release(&t->index, e);
    return st;
}

hl_status hl_tier_indexed_chunk_crcs(struct hl_tier_store *store, const struct hl_tier_ref *ref,
                                     uint32_t *out)
{
    struct hl_tier_indexed *t = indexed_of(store);
    struct hl_tier_entry *e;
    HL_TRY(hl_tier_index_hold_ref(&t->index, ref, &e));
    hl_status st = know_chunks(t, e);
    if (st == HL_OK)
        memcpy(out, hl_tier_index_chunks(&t->index, e), hl_chunk_count(e->size) * sizeof(*out));
    hl_tier_index_release(&t->index, e);
    return st;
}

/* ---- dropping, accounting -------------------------------------------------------------------- */

hl_status hl_tier_indexed_drop(struct hl_tier_store *store, struct hl_id id)
{
    struct hl_tier_indexed *t = indexed_of(store);
    struct hl_tier_entry *e;
    hl_tier_index_begin(&t->index);
    hl_status st = hl_tier_index_drop(&t->index, id, &e);
    if (st == HL_OK) {
        st = t->medium->remove(t, e);
        if (st == HL_OK || st == HL_ENOENT)
            hl_tier_index_remove(&t->index, e);
        else
            hl_tier_index_restore(&t->index, e);
    }
    hl_tier_index_end(&t->index);
    return st;
}

void hl_tier_indexed_counts(struct hl_tier_store *t, struct hl_tier_counts *out)
{
    hl_tier_index_counts(&indexed_of(t)->index, out);
}

hl_status hl_tier_indexed_audit(struct hl_tier_store *store)
{
    struct hl_tier_indexed *t = indexed_of(store);
    return hl_tier_index_audit(&t->index, t->medium->compare_counts, t);
}
