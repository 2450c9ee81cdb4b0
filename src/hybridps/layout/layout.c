#include "hybridps/layout/layout.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define ALIGN      64
#define STARTS_MAX 64 /* runs begin at the first STARTS_MAX items: models repeat their layers */

/* Finds the first chunk with enough room: each node of the tree has the most room below it. */
struct rooms {
    uint64_t *tree; /* 2 * leaves nodes, the root is 1 */
    size_t leaves, count;
};

static uint64_t round_up(uint64_t n, uint64_t unit)
{
    return (n + unit - 1) / unit * unit;
}

static void set_room(struct rooms *r, size_t chunk, uint64_t room)
{
    size_t i = r->leaves + chunk;
    r->tree[i] = room;
    for (i /= 2; i > 0; i /= 2) {
        uint64_t a = r->tree[2 * i], b = r->tree[2 * i + 1];
        r->tree[i] = a > b ? a : b;
    }
}

/* Returns r->count if there is none. */
static size_t first_with_room(const struct rooms *r, uint64_t need)
{
    size_t i = 1;
    if (r->tree[1] < need)
        return r->count;
    while (i < r->leaves)
        i = r->tree[2 * i] >= need ? 2 * i : 2 * i + 1;
    return i - r->leaves;
}

static hl_status check_items(const struct hl_layout_item *items, size_t n)
{
    uint64_t sum = 0;
    if (n == 0 || n >= UINT32_MAX)
        return hl_fail(HL_EINVAL, "invalid number of tensors %zu", n);
    for (size_t i = 0; i < n; i++)
        if (items[i].kind >= HL_LAYOUT_KINDS || items[i].bytes == 0 ||
            items[i].bytes > INT64_MAX / 4 || (sum += items[i].bytes) > INT64_MAX / 4)
            return hl_fail(HL_EINVAL, "layout: tensor %zu has kind %u and %" PRIu64 " bytes", i,
                           items[i].kind, items[i].bytes);
    return HL_OK;
}

/* Chunks are numbered in the order in which they are made, across all kinds. */
static void fill_kind(const struct hl_layout_item *items, size_t n, uint32_t kind, struct rooms *r,
                      uint64_t granule, uint32_t *chunk_of, struct hl_layout *l)
{
    uint64_t before = l->chunks;
    r->count = 0;
    for (size_t i = 0; i < 2 * r->leaves; i++)
        r->tree[i] = 0;
    for (size_t i = 0; i < n; i++) {
        if (items[i].kind != kind)
            continue;
        uint64_t need = round_up(items[i].bytes, ALIGN), size;
        size_t c = first_with_room(r, need);
        if (c == r->count) {
            size = round_up(need > l->chunk_bytes ? need : l->chunk_bytes, granule);
            l->allocated += size;
            l->longest = size > l->longest ? size : l->longest;
            l->chunks++;
            r->count++;
            set_room(r, c, need > l->chunk_bytes ? 0 : size - need);
        } else
            set_room(r, c, r->tree[r->leaves + c] - need);
        l->used += items[i].bytes;
        if (chunk_of != NULL)
            chunk_of[i] = (uint32_t)(before + c);
    }
}

static hl_status make_rooms(size_t n, struct rooms *r)
{
    r->leaves = 1;
    while (r->leaves < n)
        r->leaves *= 2;
    r->tree = calloc(2 * r->leaves, sizeof(*r->tree));
    return r->tree != NULL ? HL_OK
                           : hl_fail(HL_ENOMEM, "out of memory allocating a layout of %zu", n);
}

static void fill_chunks(const struct hl_layout_item *items, size_t n, uint64_t chunk_bytes,
                        uint64_t granule, uint32_t *chunk_of, struct rooms *r,
                        struct hl_layout *out)
{
    uint32_t kinds = 0;
    struct hl_layout l = {.chunk_bytes = round_up(chunk_bytes > 0 ? chunk_bytes : 1, granule)};
    for (size_t i = 0; i < n; i++)
        kinds |= 1u << items[i].kind;
    for (uint32_t k = 0; k < HL_LAYOUT_KINDS; k++)
        if (kinds & 1u << k)
            fill_kind(items, n, k, r, granule, chunk_of, &l);
    *out = l;
}

hl_status hl_layout_fill(const struct hl_layout_item *items, size_t n, uint64_t chunk_bytes,
                         uint64_t granule, uint32_t *chunk_of, struct hl_layout *out)
{
    struct rooms r;
    HL_TRY(check_items(items, n));
    if (chunk_bytes > INT64_MAX / 4)
        return hl_fail(HL_EINVAL, "invalid chunk size of %" PRIu64 " bytes", chunk_bytes);
    HL_TRY(make_rooms(n, &r));
    fill_chunks(items, n, chunk_bytes, granule > ALIGN ? granule : ALIGN, chunk_of, &r, out);
    free(r.tree);
    return HL_OK;
}

/* ---- search ---------------------------------------------------------------------------------- */

static int by_size(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x < y ? -1 : x > y;
}

/* Collects the exact lengths of runs, ascending and without duplicates; returns how many. */
static size_t run_lengths(const struct hl_layout_item *items, size_t n, uint64_t least,
                          uint64_t most, uint64_t granule, uint64_t *out, size_t cap)
{
    size_t count = 0, kept = 0;
    for (size_t s = 0; s < n && s < STARTS_MAX; s++) {
        uint64_t sum = 0;
        for (size_t i = s; i < n; i++) {
            if (items[i].kind != items[s].kind)
                continue;
            sum += round_up(items[i].bytes, ALIGN);
            uint64_t size = round_up(sum, granule);
            if (size > most || count == cap)
                break;
            if (size >= least)
                out[count++] = size;
        }
    }
    qsort(out, count, sizeof(*out), by_size);
    for (size_t i = 0; i < count; i++)
        if (kept == 0 || out[kept - 1] != out[i])
            out[kept++] = out[i];
    return kept;
}

static uint64_t longest_item(const struct hl_layout_item *items, size_t n)
{
    uint64_t longest = 0;
    for (size_t i = 0; i < n; i++)
        longest = items[i].bytes > longest ? items[i].bytes : longest;
    return longest;
}

/* Lists the sizes in the order in which they are tried: from the limit on, as many as allowed. */
static size_t make_sizes(const struct hl_layout_item *items, size_t n,
                         const struct hl_layout_options *o, uint64_t granule, uint64_t *out,
                         size_t cap)
{
    uint64_t longest = round_up(longest_item(items, n), granule);
    uint64_t most = o->most > 0 && o->most < INT64_MAX / 4 ? o->most : INT64_MAX / 4;
    uint64_t least = o->least > 0 ? o->least : longest;
    least = least < most ? least : most;
    size_t count = run_lengths(items, n, least, most, granule, out + 1, cap - 1) + 1;
    out[0] = least;
    if (o->largest) {
        out[0] = most;
        for (size_t i = 1, k = count - 1; i < k; i++, k--) {
            uint64_t swap = out[i];
            out[i] = out[k];
            out[k] = swap;
        }
    }
    size_t step = (count + HL_LAYOUT_TRIES - 1) / HL_LAYOUT_TRIES, kept = 0;
    for (size_t i = 0; i < count; i += step)
        out[kept++] = out[i];
    return kept;
}

/* Takes the first size that is good; if there is none, the first that is nearly the best. */
static void try_sizes(const struct hl_layout_item *items, size_t n, uint64_t granule,
                      const uint64_t *sizes, size_t count, struct rooms *r, struct hl_layout *out)
{
    double reached[HL_LAYOUT_TRIES], most = 0;
    for (size_t i = 0; i < count; i++) {
        fill_chunks(items, n, sizes[i], granule, NULL, r, out);
        reached[i] = hl_layout_utilisation(out);
        most = reached[i] > most ? reached[i] : most;
        if (most >= HL_LAYOUT_GOOD)
            return;
    }
    for (size_t i = 0; i < count; i++)
        if (reached[i] >= most - HL_LAYOUT_NEAR) {
            fill_chunks(items, n, sizes[i], granule, NULL, r, out);
            return;
        }
}

hl_status hl_layout_search(const struct hl_layout_item *items, size_t n,
                           const struct hl_layout_options *o, struct hl_layout *out)
{
    struct rooms r;
    uint64_t granule = o->granule > ALIGN ? o->granule : ALIGN;
    HL_TRY(check_items(items, n));
    if (o->largest && (o->most == 0 || o->most > INT64_MAX / 4))
        return hl_fail(HL_EINVAL, "the largest chunks without a limit can't be laid out");
    size_t cap = n * (n < STARTS_MAX ? n : STARTS_MAX) + 1;
    uint64_t *sizes = calloc(cap, sizeof(*sizes));
    if (sizes == NULL)
        return hl_fail(HL_ENOMEM, "out of memory allocating a layout of %zu", n);
    hl_status st = make_rooms(n, &r);
    if (st == HL_OK) {
        size_t count = make_sizes(items, n, o, granule, sizes, cap);
        try_sizes(items, n, granule, sizes, count, &r, out);
        free(r.tree);
    }
    free(sizes);
    return st;
}

/* ---- kinds ---- */

const char *hl_tensor_kind_name(int kind)
{
    static const char *const names[] = {"param", "grad", "p32", "momentum", "variance", "other"};
    return kind >= 0 && kind < HYBRIDPS_KINDS ? names[kind] : "?";
}

int hl_tensor_kind(const char *name)
{
    int kind = 0;
    while (kind < HYBRIDPS_OTHER && strcmp(hl_tensor_kind_name(kind), name) != 0)
        kind++;
    return kind;
}
