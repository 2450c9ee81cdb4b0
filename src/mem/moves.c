/* Operations of a tensor are sorted by where they begin; the first that is not past is remembered
 * from block to block. */
#include "mem/moves.h"

#include <string.h>

#include "base/copy.h"
#include "mem/transpose.h"

/* A source MiB and this much of the target fit the second-level cache together. */
#define BLOCK ((uint64_t)256 << 10)
#define COLD  4096 /* from here on a copy out of the way of the cache is worth its call */

/* The part of a tensor that is being written: bytes [begin, end) at dst. */
struct block {
    const struct hl_moves *m;
    uint8_t *dst;
    uint64_t begin;
    uint64_t end;
};

static uint64_t lesser_of(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

static uint64_t greater_of(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

/* The end of everything that an operation writes. */
static uint64_t op_end(const struct hl_reshard_op *op)
{
    uint64_t run = op->kind == HL_RESHARD_TRANSPOSE ? op->cols * op->elem : op->run;
    return op->dst + (op->rows - 1) * op->dst_stride + run;
}

/* Bytes [first, end) of the source tensor are about to be read; *out is where it begins. */
HL_CHECK static hl_status open_span(const struct block *b, const struct hl_reshard_op *op,
                                    uint64_t first, uint64_t end, const uint8_t **out)
{
    return b->m->source(b->m->arg, op, first, end, out);
}

/* Rows [*first, *end) of runs of `run` bytes meet the block. */
static void rows_in_block(const struct block *b, const struct hl_reshard_op *op, uint64_t run,
                          uint64_t *first, uint64_t *end)
{
    *first = *end = 0;
    if (op->dst >= b->end)
        return;
    if (op->rows == 1) {
        *end = op->dst + run > b->begin;
        return;
    }
    if (op->dst + run <= b->begin)
        *first = (b->begin - op->dst - run) / op->dst_stride + 1;
    *end = lesser_of(op->rows, (b->end - 1 - op->dst) / op->dst_stride + 1);
}

HL_CHECK static hl_status copy_rows(const struct block *b, const struct hl_reshard_op *op)
{
    uint64_t first, end;
    const uint8_t *src = NULL;
    rows_in_block(b, op, op->run, &first, &end);
    if (first >= end)
        return HL_OK;
    /* Of a single row only what is in the block, of many all. */
    uint64_t from = op->src + first * op->src_stride, to = op->src + (end - 1) * op->src_stride;
    uint64_t skip = greater_of(b->begin, op->dst) - op->dst;
    if (end - first == 1) {
        uint64_t at = op->dst + first * op->dst_stride;
        skip = greater_of(b->begin, at) - at;
        HL_TRY(open_span(b, op, from + skip, from + lesser_of(op->run, b->end - at), &src));
    } else {
        HL_TRY(open_span(b, op, from, to + op->run, &src));
    }
    src += op->src;
    for (uint64_t i = first; i < end; i++) {
        uint64_t at = op->dst + i * op->dst_stride;
        uint64_t begin = greater_of(at, b->begin), stop = lesser_of(at + op->run, b->end);
        uint8_t *into = b->dst + (begin - b->begin);
        const uint8_t *bytes = src + i * op->src_stride + (begin - at);
        if (stop - begin >= COLD)
            hl_copy_cold(into, bytes, stop - begin);
        else
            memcpy(into, bytes, stop - begin);
    }
    return HL_OK;
}

/* Elements [j, j_end) of rows [i, i_end) of a transpose. */
static void turn_part(const struct block *b, const struct hl_reshard_op *op, const uint8_t *src,
                      uint64_t i, uint64_t i_end, uint64_t j, uint64_t j_end)
{
    uint8_t *to = b->dst + (op->dst + i * op->dst_stride + j * op->elem - b->begin);
    const uint8_t *from = src + op->src + j * op->src_stride + i * op->elem;
    hl_transpose(to, op->dst_stride, from, op->src_stride, i_end - i, j_end - j, op->elem);
}

/* The first and the last row may be cut by the block's edges, those between are whole. */
HL_CHECK static hl_status turn_rows(const struct block *b, const struct hl_reshard_op *op)
{
    uint64_t first, end, run = op->cols * op->elem;
    const uint8_t *src = NULL;
    rows_in_block(b, op, run, &first, &end);
    if (first >= end)
        return HL_OK;
    HL_TRY(open_span(b, op, op->src + first * op->elem,
                     op->src + (op->cols - 1) * op->src_stride + end * op->elem, &src));
    uint64_t whole = first, whole_end = end;
    for (int last = 0; last < 2 && whole < whole_end; last++) {
        uint64_t i = last ? end - 1 : first, at = op->dst + i * op->dst_stride;
        uint64_t begin = greater_of(at, b->begin), stop = lesser_of(at + run, b->end);
        if (stop - begin == run)
            continue;
        turn_part(b, op, src, i, i + 1, (begin - at) / op->elem, (stop - at) / op->elem);
        if (last)
            whole_end--;
        else
            whole++;
    }
    if (whole < whole_end)
        turn_part(b, op, src, whole, whole_end, 0, op->cols);
    return HL_OK;
}

HL_CHECK static hl_status apply_op(const struct block *b, const struct hl_reshard_op *op)
{
    if (op->kind == HL_RESHARD_COPY)
        return copy_rows(b, op);
    if (op->kind == HL_RESHARD_TRANSPOSE)
        return turn_rows(b, op);
    uint64_t begin = greater_of(op->dst, b->begin), end = lesser_of(op->dst + op->run, b->end);
    if (begin < end)
        memset(b->dst + (begin - b->begin), 0, end - begin);
    return HL_OK;
}

/* Blocks end with a MiB of the shard where elements do. */
static uint64_t block_len(const struct hl_shard_sums *sums, uint64_t rest, uint32_t elem)
{
    uint64_t room = BLOCK - sums->at % BLOCK;
    room -= room % elem;
    return lesser_of(rest, room > 0 ? room : elem);
}

hl_status hl_moves_tensor(const struct hl_moves *m, const struct hl_tensor *t, size_t tensor,
                          struct hl_shard_sums *sums)
{
    const struct hl_reshard_op *op = &m->plan->ops[m->plan->op_first[tensor]];
    const struct hl_reshard_op *ops_end = &m->plan->ops[m->plan->op_first[tensor + 1]];
    uint64_t n;
    for (uint64_t at = 0; at < t->size; at += n) {
        n = block_len(sums, t->size - at, hl_dtype_size(t->dtype));
        struct block b = {.m = m, .dst = sums->dst + sums->at, .begin = at, .end = at + n};
        HL_TRY(m->next(m->arg, n));
        while (op < ops_end && op_end(op) <= at)
            op++;
        for (const struct hl_reshard_op *next = op; next < ops_end && next->dst < b.end; next++)
            HL_TRY(apply_op(&b, next));
        hl_shard_sums_add(sums, n);
    }
    return HL_OK;
}
