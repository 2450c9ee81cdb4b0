#include "maco/graph/pieces.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "maco/graph/graph.h"

#define STRIPS_MAX  1024 /* per matrix */
#define PIECES_PER  32   /* limit of pieces per access of a matrix, plus PIECES_MORE */
#define PIECES_MORE 4096

void hl_maco_pieces_fini(struct hl_maco_pieces *p)
{
    free(p->access);
    free(p->piece);
    *p = (struct hl_maco_pieces){0};
}

static hl_status add_access(struct hl_maco_pieces *p, uint32_t task, int write,
                            struct hl_maco_span span)
{
    HL_TRY(hl_maco_grow(&p->access, &p->access_cap, p->n_access, 1, sizeof(*p->access)));
    p->access[p->n_access++] =
        (struct hl_maco_access){.span = span, .task = task, .write = write != 0};
    return HL_OK;
}

static hl_status add_task(struct hl_maco_pieces *p, const maco_graph *g, uint32_t task)
{
    struct hl_maco_operand o[HL_MACO_OPERANDS];
    const struct hl_maco_node *node = &g->nodes[task];
    int n = hl_maco_operands(&g->tasks[task], o);
    for (int write = 0; write < 2; write++)
        for (int i = 0; i < n; i++)
            if (write ? o[i].writes : o[i].reads)
                HL_TRY(add_access(p, task, write, hl_maco_span_of(&o[i])));
    for (uint32_t i = 0; i < node->n_reads + node->n_writes; i++) {
        const maco_range *r = &g->ranges[node->first_range + i];
        HL_TRY(add_access(p, task, i >= node->n_reads,
                          (struct hl_maco_span){r->first, 1, r->bytes, r->bytes}));
    }
    return HL_OK;
}

static hl_status add_piece(struct hl_maco_pieces *p, size_t access, uint32_t strip, uint64_t lo,
                           uint64_t hi)
{
    HL_TRY(hl_maco_grow(&p->piece, &p->piece_cap, p->n, 1, sizeof(*p->piece)));
    p->piece[p->n++] = (struct hl_maco_piece){lo, hi, strip, (uint32_t)access};
    return HL_OK;
}

static hl_status add_bounds(struct hl_maco_pieces *p, size_t access)
{
    const struct hl_maco_span *s = &p->access[access].span;
    return add_piece(p, access, 0, s->first, hl_maco_span_end(s));
}

/* ---- a matrix: accesses whose bounds overlap, some with gaps ---- */

struct rect {
    uint64_t row, row_end, col, col_end;
};

struct matrix {
    struct hl_maco_pieces *p;
    const uint32_t *access; /* `count` of them, the lowest address first */
    size_t count;
    uint64_t base, stride;
    uint64_t *cut; /* columns where a strip begins, and the end; n_cuts */
    size_t n_cuts;
};

/* Splits a span into rectangles on rows of m's stride. */
static int rects_of(const struct matrix *m, const struct hl_maco_span *s, struct rect out[3])
{
    uint64_t at = s->first - m->base, width = m->stride, row = at / width, col = at % width;
    int n = 0;
    if (s->rows > 1) {
        uint64_t end = col + s->row_bytes;
        out[n++] = (struct rect){row, row + s->rows, col, end < width ? end : width};
        if (end > width)
            out[n++] = (struct rect){row + 1, row + 1 + s->rows, 0, end - width};
        return n;
    }
    uint64_t last = (at + s->row_bytes) / width, rest = (at + s->row_bytes) % width;
    if (row == last) {
        out[n++] = (struct rect){row, row + 1, col, rest};
        return n;
    }
    if (col > 0)
        out[n++] = (struct rect){row, row + 1, col, width};
    if (row + (col > 0) < last)
        out[n++] = (struct rect){row + (col > 0), last, 0, width};
    if (rest > 0)
        out[n++] = (struct rect){last, last + 1, 0, rest};
    return n;
}

static const struct hl_maco_span *span_at(const struct matrix *m, size_t i)
{
    return &m->p->access[m->access[i]].span;
}

/* The common stride of all spans with gaps; 0: the strides differ, or no span has gaps. */
static uint64_t common_stride(const struct matrix *m)
{
    uint64_t stride = 0;
    for (size_t i = 0; i < m->count; i++) {
        const struct hl_maco_span *s = span_at(m, i);
        if (s->rows == 1)
            continue;
        if (stride != 0 && stride != s->stride)
            return 0;
        stride = s->stride;
    }
    return stride;
}

static hl_status find_cuts(struct matrix *m)
{
    size_t most = m->count * 6, n = 0;
    struct rect r[3];
    uint64_t *cut = malloc(most * sizeof(*cut));
    uint32_t *unused = calloc(most, sizeof(*unused));
    hl_status st = HL_OK;
    if (cut == NULL || unused == NULL)
        st = hl_fail(HL_ENOMEM, "out of memory comparing what tasks write");
    for (size_t i = 0; i < m->count && st == HL_OK; i++)
        for (int k = rects_of(m, span_at(m, i), r); k-- > 0;) {
            cut[n++] = r[k].col;
            cut[n++] = r[k].col_end;
        }
    if (st == HL_OK)
        st = hl_maco_sort(cut, unused, n);
    for (size_t i = 0; i < n && st == HL_OK; i++)
        if (m->n_cuts == 0 || cut[m->n_cuts - 1] != cut[i])
            cut[m->n_cuts++] = cut[i];
    free(unused);
    m->cut = cut;
    return st;
}

static size_t strip_of(const struct matrix *m, uint64_t col)
{
    size_t lo = 0, hi = m->n_cuts;
    while (hi - lo > 1) {
        size_t mid = (lo + hi) / 2;
        if (m->cut[mid] <= col)
            lo = mid;
        else
            hi = mid;
    }
    return lo;
}

static bool matrix_fits(const struct matrix *m)
{
    size_t pieces = 0, most = m->count * PIECES_PER + PIECES_MORE;
    struct rect r[3];
    if (m->n_cuts > STRIPS_MAX)
        return false;
    for (size_t i = 0; i < m->count && pieces <= most; i++)
        for (int k = rects_of(m, span_at(m, i), r); k-- > 0;)
            pieces += strip_of(m, r[k].col_end) - strip_of(m, r[k].col);
    return pieces <= most;
}

static hl_status add_strips(struct matrix *m)
{
    struct rect r[3];
    for (size_t i = 0; i < m->count; i++)
        for (int k = rects_of(m, span_at(m, i), r); k-- > 0;)
            for (size_t s = strip_of(m, r[k].col); s < strip_of(m, r[k].col_end); s++)
                HL_TRY(add_piece(m->p, m->access[i], m->p->strips + (uint32_t)s, r[k].row,
                                 r[k].row_end));
    m->p->strips += (uint32_t)m->n_cuts;
    return HL_OK;
}

static hl_status add_matrix(struct hl_maco_pieces *p, const uint32_t *access, size_t count)
{
    struct matrix m = {.p = p, .access = access, .count = count};
    hl_status st = HL_OK;
    m.base = span_at(&m, 0)->first;
    m.stride = common_stride(&m);
    if (m.stride != 0)
        st = find_cuts(&m);
    if (st == HL_OK && m.stride != 0 && matrix_fits(&m))
        st = add_strips(&m);
    else
        for (size_t i = 0; i < count && st == HL_OK; i++)
            st = add_bounds(p, access[i]);
    free(m.cut);
    return st;
}

/* ---- all accesses ---- */

/* Pieces were made matrix by matrix; restores the order of the accesses. */
static hl_status sort_pieces(struct hl_maco_pieces *p)
{
    uint64_t *key = malloc((p->n + 1) * sizeof(*key));
    uint32_t *place = malloc((p->n + 1) * sizeof(*place));
    struct hl_maco_piece *piece = malloc((p->n + 1) * sizeof(*piece));
    hl_status st = HL_OK;
    if (key == NULL || place == NULL || piece == NULL)
        st = hl_fail(HL_ENOMEM, "out of memory comparing what tasks write");
    for (size_t i = 0; i < p->n && st == HL_OK; i++) {
        key[i] = p->piece[i].access;
        place[i] = (uint32_t)i;
    }
    if (st == HL_OK)
        st = hl_maco_sort(key, place, p->n);
    for (size_t i = 0; i < p->n && st == HL_OK; i++)
        piece[i] = p->piece[place[i]];
    if (st == HL_OK) {
        free(p->piece);
        p->piece = hl_steal(&piece);
        p->piece_cap = p->n + 1;
    }
    free(key);
    free(place);
    free(piece);
    return st;
}

/* Groups accesses whose bounds overlap, in ascending order of addresses. */
static hl_status add_matrices(struct hl_maco_pieces *p, const uint32_t *sorted)
{
    size_t begin = 0;
    uint64_t end = 0;
    for (size_t i = 0; i <= p->n_access; i++) {
        const struct hl_maco_span *s = i < p->n_access ? &p->access[sorted[i]].span : NULL;
        if (i > begin && (s == NULL || s->first >= end)) {
            HL_TRY(add_matrix(p, sorted + begin, i - begin));
            begin = i;
        }
        if (s != NULL && (i == begin || hl_maco_span_end(s) > end))
            end = hl_maco_span_end(s);
    }
    return HL_OK;
}

static hl_status add_strided(struct hl_maco_pieces *p)
{
    uint64_t *key = malloc((p->n_access + 1) * sizeof(*key));
    uint32_t *sorted = malloc((p->n_access + 1) * sizeof(*sorted));
    hl_status st = HL_OK;
    if (key == NULL || sorted == NULL)
        st = hl_fail(HL_ENOMEM, "out of memory comparing what tasks write");
    for (size_t i = 0; i < p->n_access && st == HL_OK; i++) {
        key[i] = p->access[i].span.first;
        sorted[i] = (uint32_t)i;
    }
    if (st == HL_OK)
        st = hl_maco_sort(key, sorted, p->n_access);
    if (st == HL_OK)
        st = add_matrices(p, sorted);
    free(key);
    free(sorted);
    return st == HL_OK ? sort_pieces(p) : st;
}

hl_status hl_maco_pieces_make(const maco_graph *g, const uint32_t *order,
                              struct hl_maco_pieces *out)
{
    struct hl_maco_pieces p = {.strips = 1};
    hl_status st = HL_OK;
    int strided = 0;
    for (size_t i = 0; i < g->n && st == HL_OK; i++)
        st = add_task(&p, g, order[i]);
    for (size_t i = 0; i < p.n_access; i++)
        strided |= p.access[i].span.rows > 1;
    if (st == HL_OK && strided)
        st = add_strided(&p);
    for (size_t i = 0; i < p.n_access && !strided && st == HL_OK; i++)
        st = add_bounds(&p, i);
    if (st == HL_OK && p.n > UINT32_MAX / 2 - 1)
        st = hl_fail(HL_EINVAL,
                     "tasks name more than 2^31 pieces of memory. Hint: use fewer ranges");
    if (st == HL_OK)
        *out = p;
    else
        hl_maco_pieces_fini(&p);
    return st;
}
