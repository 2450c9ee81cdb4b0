/* Boxes are sorted by logical tensor, row and column. A skyline records down to which row each
 * column is covered; the next box must start exactly there. */
#include "core/reshard/coverage.h"

#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/digest.h"
#include "core/reshard/reshard_box.h"

/* A box of a held tensor. */
struct piece {
    struct hl_rect rect;
    uint32_t logical;
    uint32_t held;
};

/* Columns from `col` to the next step's are covered above `row`; `held` covered them last. */
struct step {
    uint64_t col;
    uint64_t row;
    uint32_t held;
};

#define HELD_BY_NONE UINT32_MAX

struct checker {
    const struct hl_coverage *c;
    uint32_t *stands_for;
    struct hl_digest *digests; /* one for each box of the held tensors */
    struct hl_box_list boxes;
    uint32_t *owners; /* the held tensor of each box */
    struct piece *pieces;
    size_t piece_count;
    unsigned char *has_data; /* per held tensor: it is not only padding */
    struct step *steps;      /* the last one marks the end of the columns */
    size_t step_count;
};

struct place_text {
    char s[HL_TENSOR_NAME_MAX + 96];
};

/* "'X' of rank 3 (pp 1, tp 0)". */
static struct place_text place_of(const struct checker *k, uint32_t held)
{
    struct place_text text;
    const struct hl_coverage_tensor *t = &k->c->held[held];
    snprintf(text.s, sizeof(text.s), "'%s' of rank %d (pp %d, tp %d)", t->name, t->rank, t->pp,
             t->tp);
    return text;
}

/* ---- held tensors ---------------------------------------------------------------------------- */

static uint64_t op_bytes(const struct hl_copy_op *op)
{
    uint64_t bytes = op->run;
    if (op->kind == HL_COPY_ZERO)
        return bytes;
    if (op->kind == HL_COPY_TRANSPOSE && __builtin_mul_overflow(op->cols, op->elem, &bytes))
        return UINT64_MAX;
    return __builtin_mul_overflow(op->rows, bytes, &bytes) ? UINT64_MAX : bytes;
}

/* Checks that the operations fill the tensor, and appends its boxes. */
HL_CHECK static hl_status read_tensor(struct checker *k, uint32_t held)
{
    const struct hl_coverage_tensor *t = &k->c->held[held];
    struct hl_digest *d = &k->digests[held];
    uint64_t at = 0;
    for (uint32_t i = 0; i < t->op_count; i++) {
        const struct hl_copy_op *op = &t->ops[i];
        uint64_t bytes = op_bytes(op);
        if (op->dst != at || bytes > t->size - at || bytes == 0)
            return hl_fail(HL_EINVAL,
                           "%s: %" PRIu64 " bytes are added at byte %" PRIu64 ", but [0, %" PRIu64
                           ") of %" PRIu64 " are filled",
                           place_of(k, held).s, bytes, op->dst, at, t->size);
        hl_status st = hl_box_list_add(&k->boxes, op, k->c->logical, k->c->logical_count);
        if (st != HL_OK)
            return hl_fail_prefix(st, "%s: ", place_of(k, held).s);
        at += bytes;
        const uint64_t words[] = {
            op->kind, op->kind == HL_COPY_ZERO ? 0 : k->stands_for[op->source],
            op->src,  op->dst,
            op->rows, op->cols,
            op->run,  op->stride,
            op->step};
        for (size_t w = 0; w < HL_ARRAY_LEN(words); w++)
            hl_digest_word(d, words[w]);
    }
    if (at != t->size)
        return hl_fail(HL_EINVAL, "%s: nothing fills bytes [%" PRIu64 ", %" PRIu64 ")",
                       place_of(k, held).s, at, t->size);
    return HL_OK;
}

HL_CHECK static hl_status read_pieces(struct checker *k)
{
    size_t owned = 0, cap = 0;
    for (uint32_t held = 0; held < k->c->held_count; held++) {
        HL_TRY(read_tensor(k, held));
        if (k->boxes.cap > cap) {
            cap = k->boxes.cap;
            uint32_t *more = realloc(k->owners, cap * sizeof(*more));
            if (more == NULL)
                return hl_fail(HL_ENOMEM, "out of memory allocating the owners of %zu boxes", cap);
            k->owners = more;
        }
        while (owned < k->boxes.count)
            k->owners[owned++] = held;
    }
    k->pieces = malloc((k->boxes.count + 1) * sizeof(*k->pieces));
    k->steps = malloc((2 * k->boxes.count + 2) * sizeof(*k->steps));
    if (k->pieces == NULL || k->steps == NULL)
        return hl_fail(HL_ENOMEM, "out of memory allocating %zu boxes", k->boxes.count);
    for (size_t i = 0; i < k->boxes.count; i++) {
        const struct hl_box *box = &k->boxes.list[i];
        if (box->kind != HL_BOX_DATA)
            continue;
        k->has_data[k->owners[i]] = 1;
        k->pieces[k->piece_count++] =
            (struct piece){box->rect, k->stands_for[box->logical], k->owners[i]};
    }
    return HL_OK;
}

/* ---- replicas -------------------------------------------------------------------------------- */

static int number_order(uint64_t a, uint64_t b)
{
    return (a > b) - (a < b);
}

static int by_rect(const struct piece *x, const struct piece *y)
{
    int c = number_order(x->logical, y->logical);
    c = c != 0 ? c : number_order(x->rect.row, y->rect.row);
    c = c != 0 ? c : number_order(x->rect.col, y->rect.col);
    c = c != 0 ? c : number_order(x->rect.row_end, y->rect.row_end);
    return c != 0 ? c : number_order(x->rect.col_end, y->rect.col_end);
}

static int by_rect_and_held(const void *a, const void *b)
{
    const struct piece *x = a, *y = b;
    int c = by_rect(x, y);
    return c != 0 ? c : number_order(x->held, y->held);
}

HL_CHECK static hl_status fail_double(const struct checker *k, const struct piece *x,
                                      const struct piece *y)
{
    char range[128];
    struct hl_rect both = {
        x->rect.row > y->rect.row ? x->rect.row : y->rect.row,
        x->rect.row_end < y->rect.row_end ? x->rect.row_end : y->rect.row_end,
        x->rect.col > y->rect.col ? x->rect.col : y->rect.col,
        x->rect.col_end < y->rect.col_end ? x->rect.col_end : y->rect.col_end,
    };
    const struct hl_tensor *t = &k->c->logical[x->logical];
    return hl_fail(HL_EINVAL,
                   "%s of tensor '%s' are held twice, by %s and %s, which are not replicas",
                   hl_rect_text(t, &both, range, sizeof(range)), t->name, place_of(k, x->held).s,
                   place_of(k, y->held).s);
}

/* Two pieces with the same rectangle: their tensors must have the same bytes. */
HL_CHECK static hl_status check_replica(const struct checker *k, const struct piece *x,
                                        const struct piece *y)
{
    const struct hl_coverage_tensor *a = &k->c->held[x->held], *b = &k->c->held[y->held];
    const struct hl_digest *d = &k->digests[x->held], *e = &k->digests[y->held];
    char range[128];
    if (x->held == y->held || a->size != b->size || d->hi != e->hi || d->lo != e->lo)
        return fail_double(k, x, y);
    if (a->crc32 == b->crc32)
        return HL_OK;
    const struct hl_tensor *t = &k->c->logical[x->logical];
    return hl_fail(HL_ECORRUPT, "replicas differ in %s of tensor '%s': CRC %08x in %s, %08x in %s",
                   hl_rect_text(t, &x->rect, range, sizeof(range)), t->name, a->crc32,
                   place_of(k, x->held).s, b->crc32, place_of(k, y->held).s);
}

/* ---- the skyline ----------------------------------------------------------------------------- */

/* The step that contains column `col`. */
static size_t step_at(const struct checker *k, uint64_t col)
{
    size_t low = 0, high = k->step_count;
    while (high - low > 1) {
        size_t mid = low + (high - low) / 2;
        if (k->steps[mid].col <= col)
            low = mid;
        else
            high = mid;
    }
    return low;
}

/* Fails because no shard holds rows [step's, row_end) of the step's columns within [col, col_end).
 */
HL_CHECK static hl_status fail_missing(const struct checker *k, uint32_t logical, size_t step,
                                       struct hl_rect gap, uint32_t below)
{
    char range[128], above_text[HL_TENSOR_NAME_MAX + 128] = "",
                                                     below_text[HL_TENSOR_NAME_MAX + 128] = "";
    const struct hl_tensor *t = &k->c->logical[logical];
    const struct step *s = &k->steps[step];
    gap.row = s->row;
    gap.col = s->col > gap.col ? s->col : gap.col;
    gap.col_end = s[1].col < gap.col_end ? s[1].col : gap.col_end;
    if (s->held != HELD_BY_NONE)
        snprintf(above_text, sizeof(above_text), "; %s ends before them", place_of(k, s->held).s);
    if (below != HELD_BY_NONE)
        snprintf(below_text, sizeof(below_text), "; %s comes after them", place_of(k, below).s);
    return hl_fail(HL_EINVAL, "%s of tensor '%s' are held by no rank%s%s",
                   hl_rect_text(t, &gap, range, sizeof(range)), t->name, above_text, below_text);
}

/* Adds a piece that starts on the skyline. */
HL_CHECK static hl_status add_to_skyline(struct checker *k, const struct piece *p)
{
    const struct hl_rect *r = &p->rect;
    size_t first = step_at(k, r->col), last = first;
    for (;; last++) {
        const struct step *s = &k->steps[last];
        if (s->row < r->row)
            return fail_missing(k, p->logical, last,
                                (struct hl_rect){0, r->row, r->col, r->col_end}, p->held);
        if (s->row > r->row) {
            struct piece above = {
                .rect = {0, s->row, s->col, s[1].col}, .logical = p->logical, .held = s->held};
            return fail_double(k, &above, p);
        }
        if (s[1].col >= r->col_end)
            break;
    }
    struct step left = k->steps[first], right = k->steps[last], put[3];
    size_t n = 0, old = last - first + 1;
    if (left.col < r->col)
        put[n++] = left;
    put[n++] = (struct step){r->col, r->row_end, p->held};
    if (k->steps[last + 1].col > r->col_end)
        put[n++] = (struct step){r->col_end, right.row, right.held};
    memmove(&k->steps[first + n], &k->steps[first + old],
            (k->step_count + 1 - first - old) * sizeof(*k->steps));
    memcpy(&k->steps[first], put, n * sizeof(*put));
    k->step_count = k->step_count + n - old;
    return HL_OK;
}

/* Pieces [first, end) belong to the logical tensor. */
HL_CHECK static hl_status check_tensor(struct checker *k, uint32_t logical, size_t first,
                                       size_t end)
{
    struct hl_rect all = hl_rect_of(&k->c->logical[logical]);
    if (first == end && k->c->optional != NULL && k->c->optional[logical] != 0)
        return HL_OK;
    if (hl_rect_area(&all) == 0)
        return HL_OK;
    k->step_count = 1;
    k->steps[0] = (struct step){0, 0, HELD_BY_NONE};
    k->steps[1] = (struct step){all.col_end, 0, HELD_BY_NONE};
    for (size_t i = first; i < end; i++) {
        if (i > first && by_rect(&k->pieces[i - 1], &k->pieces[i]) == 0)
            HL_TRY(check_replica(k, &k->pieces[i - 1], &k->pieces[i]));
        else
            HL_TRY(add_to_skyline(k, &k->pieces[i]));
    }
    for (size_t s = 0; s < k->step_count; s++)
        if (k->steps[s].row < all.row_end)
            return fail_missing(k, logical, s, all, HELD_BY_NONE);
    return HL_OK;
}

/* ---- places ---------------------------------------------------------------------------------- */

static int int_order(int a, int b)
{
    return (a > b) - (a < b);
}

static int by_place(const struct hl_coverage_tensor *x, const struct hl_coverage_tensor *y)
{
    int c = int_order(x->pp, y->pp);
    c = c != 0 ? c : int_order(x->tp, y->tp);
    c = c != 0 ? c : int_order(x->ep, y->ep);
    return c != 0 ? c : strcmp(x->name, y->name);
}

static int by_place_and_rank(const void *a, const void *b)
{
    const struct hl_coverage_tensor *x = *(const struct hl_coverage_tensor *const *)a;
    const struct hl_coverage_tensor *y = *(const struct hl_coverage_tensor *const *)b;
    int c = by_place(x, y);
    return c != 0 ? c : int_order(x->rank, y->rank);
}

/* Checks two tensors of one name at the same position of the grid. */
HL_CHECK static hl_status check_twins(const struct checker *k, uint32_t a, uint32_t b)
{
    const struct hl_coverage_tensor *x = &k->c->held[a], *y = &k->c->held[b];
    if (x->rank == y->rank)
        return hl_fail(HL_EINVAL, "%s appears twice", place_of(k, a).s);
    if (x->size != y->size || k->digests[a].hi != k->digests[b].hi ||
        k->digests[a].lo != k->digests[b].lo)
        return hl_fail(HL_EINVAL,
                       "%s of %" PRIu64 " bytes and %s of %" PRIu64
                       " bytes are not made of the same ranges",
                       place_of(k, a).s, x->size, place_of(k, b).s, y->size);
    if (x->crc32 != y->crc32)
        return hl_fail(HL_ECORRUPT,
                       "replicas differ in bytes [0, %" PRIu64 "): CRC %08x in %s, %08x in %s",
                       x->size, x->crc32, place_of(k, a).s, y->crc32, place_of(k, b).s);
    return HL_OK;
}

HL_CHECK static hl_status check_places(const struct checker *k)
{
    size_t n = k->c->held_count;
    HL_AUTO(hl_freep) const struct hl_coverage_tensor **sorted = calloc(n + 1, sizeof(*sorted));
    if (sorted == NULL)
        return hl_fail(HL_ENOMEM, "out of memory allocating the places of %zu tensors", n);
    for (size_t i = 0; i < n; i++)
        sorted[i] = &k->c->held[i];
    qsort(sorted, n, sizeof(*sorted), by_place_and_rank);
    for (size_t i = 1; i < n; i++)
        if (by_place(sorted[i - 1], sorted[i]) == 0)
            HL_TRY(check_twins(k, (uint32_t)(sorted[i - 1] - k->c->held),
                               (uint32_t)(sorted[i] - k->c->held)));
    return HL_OK;
}

/* ---- padding --------------------------------------------------------------------------------- */

/* A held tensor that is only padding. */
struct padding {
    uint32_t logical;
    uint32_t held;
    int tp;
    int ep;
    struct hl_digest digest;
};

static int by_padding(const void *a, const void *b)
{
    const struct padding *x = a, *y = b;
    int c = number_order(x->logical, y->logical);
    c = c != 0 ? c : int_order(x->tp, y->tp);
    c = c != 0 ? c : int_order(x->ep, y->ep);
    c = c != 0 ? c : number_order(x->digest.hi, y->digest.hi);
    c = c != 0 ? c : number_order(x->digest.lo, y->digest.lo);
    return c != 0 ? c : number_order(x->held, y->held);
}

HL_CHECK static hl_status compare_padding(const struct checker *k, const struct padding *x,
                                          const struct padding *y)
{
    const struct hl_coverage_tensor *a = &k->c->held[x->held], *b = &k->c->held[y->held];
    if (a->size != b->size || a->crc32 == b->crc32)
        return HL_OK;
    return hl_fail(HL_ECORRUPT,
                   "replicas differ in padding of tensor '%s': CRC %08x in %s, %08x in %s",
                   k->c->logical[x->logical].name, a->crc32, place_of(k, x->held).s, b->crc32,
                   place_of(k, y->held).s);
}

/* A tied head and its embedding are one tensor held by two stages and trained identically. This
 * must also hold for the padding on tensor ranks without any of the vocabulary. */
HL_CHECK static hl_status check_padding(const struct checker *k)
{
    size_t n = 0;
    HL_AUTO(hl_freep) struct padding *list = calloc(k->c->held_count + 1, sizeof(*list));
    if (list == NULL)
        return hl_fail(HL_ENOMEM, "padding of %zu tensors", k->c->held_count);
    for (uint32_t i = 0; i < k->c->held_count; i++) {
        const struct hl_coverage_tensor *t = &k->c->held[i];
        if (!k->has_data[i] && t->op_count > 0 && t->ops[0].source < k->c->logical_count)
            list[n++] =
                (struct padding){k->stands_for[t->ops[0].source], i, t->tp, t->ep, k->digests[i]};
    }
    qsort(list, n, sizeof(*list), by_padding);
    for (size_t i = 1; i < n; i++) {
        const struct padding *x = &list[i - 1], *y = &list[i];
        if (x->logical == y->logical && x->tp == y->tp && x->ep == y->ep &&
            x->digest.hi == y->digest.hi && x->digest.lo == y->digest.lo)
            HL_TRY(compare_padding(k, x, y));
    }
    return HL_OK;
}

HL_CHECK static hl_status check_all(struct checker *k)
{
    const struct hl_coverage *c = k->c;
    size_t at = 0;
    k->stands_for = malloc((c->logical_count + 1) * sizeof(*k->stands_for));
    k->digests = calloc(c->held_count + 1, sizeof(*k->digests));
    k->has_data = calloc(c->held_count + 1, 1);
    if (k->stands_for == NULL || k->digests == NULL || k->has_data == NULL)
        return hl_fail(HL_ENOMEM, "out of memory allocating a table of %zu tensors", c->held_count);
    for (size_t i = 0; i < c->logical_count; i++)
        k->stands_for[i] = (uint32_t)i;
    for (size_t i = 0; i < c->equal_count; i++)
        k->stands_for[c->equal[i].b] = k->stands_for[c->equal[i].a];
    HL_TRY(read_pieces(k));
    if (k->piece_count > 0)
        qsort(k->pieces, k->piece_count, sizeof(*k->pieces), by_rect_and_held);
    for (uint32_t i = 0; i < c->logical_count; i++) {
        size_t first = at;
        while (at < k->piece_count && k->pieces[at].logical == i)
            at++;
        if (k->stands_for[i] == i)
            HL_TRY(check_tensor(k, i, first, at));
    }
    HL_TRY(check_padding(k));
    return check_places(k);
}

hl_status hl_coverage_check(const struct hl_coverage *c)
{
    struct checker k = {.c = c};
    hl_status st = check_all(&k);
    free(k.stands_for);
    free(k.digests);
    free(k.has_data);
    free(k.owners);
    free(k.pieces);
    free(k.steps);
    hl_box_list_fini(&k.boxes);
    return st;
}
