#include "core/reshard/piece.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/crc32.h"

#define AT ".at"
#define OF "of"

/* ---- names ----------------------------------------------------------------------------------- */

/* Reads a decimal number without leading zeros at *at, before `end`, and advances *at. */
static bool take_number(const char **at, const char *end, uint64_t *out)
{
    const char *p = *at;
    uint64_t n = 0;
    for (; p < end && *p >= '0' && *p <= '9'; p++)
        if (__builtin_mul_overflow(n, 10, &n) ||
            __builtin_add_overflow(n, (uint64_t)(*p - '0'), &n))
            return false;
    if (p == *at || (**at == '0' && p - *at > 1))
        return false;
    *at = p;
    *out = n;
    return true;
}

/* Reads ".at128of64x32", which must fill `at` to `end` exactly. */
static bool read_suffix(const char *at, const char *end, struct hl_piece *out)
{
    at += sizeof(AT) - 1;
    if (!take_number(&at, end, &out->start) || end - at < 2 || strncmp(at, OF, 2) != 0)
        return false;
    at += sizeof(OF) - 1;
    for (out->rank = 0; at < end && out->rank < HL_TENSOR_RANK_MAX; out->rank++)
        if ((out->rank > 0 && *at++ != 'x') || !take_number(&at, end, &out->shape[out->rank]))
            return false;
    return at == end;
}

/* The start of the suffix; NULL = the name is not that of a piece. */
static const char *find_suffix(const char *name, size_t len, struct hl_piece *out)
{
    for (size_t n = len; n-- > 1;)
        if (name[n] == '.')
            return len - n >= sizeof(AT) - 1 && strncmp(name + n, AT, sizeof(AT) - 1) == 0 &&
                           read_suffix(name + n, name + len, out)
                       ? name + n
                       : NULL;
    return NULL;
}

size_t hl_piece_name_len(const char *name, size_t len)
{
    struct hl_piece piece;
    const char *suffix = find_suffix(name, len, &piece);
    return suffix != NULL ? (size_t)(suffix - name) : len;
}

static bool count_elements(uint32_t rank, const uint64_t *shape, uint64_t *out)
{
    *out = 1;
    for (uint32_t d = 0; d < rank; d++)
        if (__builtin_mul_overflow(*out, shape[d], out))
            return false;
    return true;
}

static const char *shape_text(const struct hl_piece *p, char *buf, size_t cap)
{
    struct hl_tensor t = {.rank = p->rank};
    memcpy(t.shape, p->shape, sizeof(t.shape));
    return hl_tensor_shape_text(&t, buf, cap);
}

hl_status hl_piece_read(const struct hl_tensor *t, struct hl_piece *out)
{
    struct hl_piece p = {0};
    size_t len = strlen(t->name);
    const char *suffix = find_suffix(t->name, len, &p);
    uint64_t all;
    char has[192], whole[192];
    if (suffix == NULL) {
        p = (struct hl_piece){
            .whole = true, .name_len = len, .suffix = t->name + len, .rank = t->rank};
        memcpy(p.shape, t->shape, sizeof(p.shape));
        if (!count_elements(t->rank, t->shape, &p.end))
            return hl_fail(HL_EINVAL, "tensor '%s' has too many elements", t->name);
        *out = p;
        return HL_OK;
    }
    p.name_len = (size_t)(suffix - t->name);
    p.suffix = suffix;
    if (t->rank != 1 || t->shape[0] == 0)
        return hl_fail(HL_EINVAL,
                       "optimizer tensor '%s' has shape %s; a piece is a vector of one element or "
                       "more",
                       t->name, hl_tensor_shape_text(t, has, sizeof(has)));
    if (!count_elements(p.rank, p.shape, &all) ||
        __builtin_add_overflow(p.start, t->shape[0], &p.end) || p.end > all)
        return hl_fail(HL_EINVAL,
                       "optimizer tensor '%s' has %" PRIu64 " elements from %" PRIu64
                       " on, which are not in a tensor of shape %s",
                       t->name, t->shape[0], p.start, shape_text(&p, whole, sizeof(whole)));
    *out = p;
    return HL_OK;
}

/* ---- joining --------------------------------------------------------------------------------- */

struct held {
    struct hl_piece piece;
    const struct hl_tensor *tensor;
    const struct hl_piece_share *share;
    uint32_t crc;
};

static int held_name_order(const struct held *x, const struct held *y)
{
    size_t n = x->piece.name_len < y->piece.name_len ? x->piece.name_len : y->piece.name_len;
    int c = memcmp(x->tensor->name, y->tensor->name, n);
    if (c != 0)
        return c;
    return (x->piece.name_len > y->piece.name_len) - (x->piece.name_len < y->piece.name_len);
}

static int held_order(const void *a, const void *b)
{
    const struct held *x = a, *y = b;
    int c = held_name_order(x, y);
    if (c != 0)
        return c;
    if (x->piece.start != y->piece.start)
        return x->piece.start < y->piece.start ? -1 : 1;
    if (x->piece.end != y->piece.end)
        return x->piece.end < y->piece.end ? -1 : 1;
    return (x->share > y->share) - (x->share < y->share);
}

HL_CHECK static hl_status list_held(const struct hl_piece_share *shares, size_t count,
                                    struct hl_arena *arena, struct held **out, size_t *out_count)
{
    size_t n = 0, i = 0;
    for (size_t s = 0; s < count; s++)
        n += shares[s].count;
    struct held *list = hl_arena_array(arena, n + 1, sizeof(*list));
    if (list == NULL)
        return hl_fail(HL_ENOMEM, "out of memory for %zu tensors of optimizer state", n);
    for (size_t s = 0; s < count; s++)
        for (size_t k = 0; k < shares[s].count; k++) {
            struct held *h = &list[i++];
            h->tensor = &shares[s].tensors[k];
            h->share = &shares[s];
            h->crc = shares[s].crcs != NULL ? shares[s].crcs[k] : 0;
            HL_TRY(hl_piece_read(h->tensor, &h->piece));
        }
    qsort(list, n, sizeof(*list), held_order);
    *out = list;
    *out_count = n;
    return HL_OK;
}

HL_CHECK static hl_status fail_gap(const struct held *h, uint64_t from, uint64_t to)
{
    return hl_fail(HL_EINVAL,
                   "optimizer tensor '%.*s': no data-parallel rank holds elements [%" PRIu64
                   ", %" PRIu64 "); rank %d holds [%" PRIu64 ", %" PRIu64 ")",
                   (int)h->piece.name_len, h->tensor->name, from, to, h->share->writer,
                   h->piece.start, h->piece.end);
}

/* Checks that `y` continues where `x` ends and belongs to the same tensor. */
HL_CHECK static hl_status check_next(const struct held *x, const struct held *y)
{
    char here[192], there[192];
    const char *name = x->tensor->name;
    int len = (int)x->piece.name_len;
    if (x->piece.rank != y->piece.rank ||
        memcmp(x->piece.shape, y->piece.shape, x->piece.rank * sizeof(x->piece.shape[0])) != 0)
        return hl_fail(HL_EINVAL,
                       "optimizer tensor '%.*s' has shape %s on rank %d and %s on rank %d", len,
                       name, shape_text(&x->piece, here, sizeof(here)), x->share->writer,
                       shape_text(&y->piece, there, sizeof(there)), y->share->writer);
    if (x->tensor->dtype != y->tensor->dtype)
        return hl_fail(HL_EINVAL, "optimizer tensor '%.*s' is %s on rank %d and %s on rank %d", len,
                       name, hl_dtype_name(x->tensor->dtype), x->share->writer,
                       hl_dtype_name(y->tensor->dtype), y->share->writer);
    if (y->piece.start < x->piece.end || (x->piece.whole && y->piece.whole))
        return hl_fail(HL_EINVAL,
                       "optimizer tensor '%.*s': elements [%" PRIu64 ", %" PRIu64
                       ") are held by rank %d and by rank %d",
                       len, name, y->piece.start,
                       y->piece.end < x->piece.end ? y->piece.end : x->piece.end, x->share->writer,
                       y->share->writer);
    if (y->piece.start > x->piece.end)
        return fail_gap(x, x->piece.end, y->piece.start);
    return HL_OK;
}

/* Joins `n` entries of one name to one state tensor. */
HL_CHECK static hl_status join_one(const struct held *h, size_t n, struct hl_arena *arena,
                                   struct hl_tensor *out, uint32_t *crc)
{
    uint64_t all;
    *out = (struct hl_tensor){.name = hl_arena_text(arena, h->tensor->name, h->piece.name_len),
                              .dtype = h->tensor->dtype,
                              .rank = h->piece.rank};
    if (out->name == NULL)
        return hl_fail(HL_ENOMEM, "out of memory for '%s'", h->tensor->name);
    memcpy(out->shape, h->piece.shape, sizeof(out->shape));
    HL_TRY(hl_tensor_bytes(out, &out->size));
    *crc = h->crc;
    if (h->piece.start > 0)
        return fail_gap(h, 0, h->piece.start);
    for (size_t i = 1; i < n; i++) {
        HL_TRY(check_next(&h[i - 1], &h[i]));
        *crc = hl_crc32_combine(*crc, h[i].crc, h[i].tensor->size);
    }
    if (count_elements(out->rank, out->shape, &all) && h[n - 1].piece.end < all)
        return fail_gap(&h[n - 1], h[n - 1].piece.end, all);
    return HL_OK;
}

hl_status hl_pieces_join(const struct hl_piece_share *shares, size_t count, struct hl_arena *arena,
                         struct hl_tensor **out, uint32_t **crcs, size_t *out_count)
{
    struct held *list = NULL;
    size_t n = 0, made = 0;
    bool known = true;
    HL_TRY(list_held(shares, count, arena, &list, &n));
    struct hl_tensor *tensors = hl_arena_array(arena, n + 1, sizeof(*tensors));
    uint32_t *sums = hl_arena_array(arena, n + 1, sizeof(*sums));
    if (tensors == NULL || sums == NULL)
        return hl_fail(HL_ENOMEM, "out of memory for %zu tensors of optimizer state", n);
    for (size_t i = 0, end; i < n; i = end) {
        for (end = i + 1; end < n && held_name_order(&list[i], &list[end]) == 0;)
            end++;
        HL_TRY(join_one(&list[i], end - i, arena, &tensors[made], &sums[made]));
        made++;
    }
    for (size_t i = 0; i < count; i++)
        known = known && (shares[i].crcs != NULL || shares[i].count == 0);
    *out = tensors;
    *crcs = known ? sums : NULL;
    *out_count = made;
    return HL_OK;
}
