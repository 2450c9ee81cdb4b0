/* An operation may write many rows; arithmetic finds those that meet the window. */
#include "mem/reshard_window.h"

#include <string.h>

#include "base/copy.h"
#include "mem/transpose.h"

/* Clips the `len` bytes at `at` of the tensor to the window: [*begin, *end), empty if *begin >=
 * *end. */
static void window_clip(const struct hl_reshard_window *w, uint64_t at, uint64_t len,
                        uint64_t *begin, uint64_t *end)
{
    *begin = at > w->begin ? at : w->begin;
    *end = at + len < w->end ? at + len : w->end;
}

uint64_t hl_reshard_op_end(const struct hl_reshard_op *op)
{
    uint64_t run = op->kind == HL_RESHARD_TRANSPOSE ? op->cols * op->elem : op->run;
    return op->dst + (op->rows - 1) * op->dst_stride + run;
}

/* Finds the rows [*first, *end) of runs of `run` bytes that meet the window. */
static void rows_in_window(const struct hl_reshard_window *w, const struct hl_reshard_op *op,
                           uint64_t run, uint64_t *first, uint64_t *end)
{
    *first = *end = 0;
    if (op->dst >= w->end)
        return;
    if (op->rows == 1) {
        *end = op->dst + run > w->begin;
        return;
    }
    if (op->dst + run <= w->begin)
        *first = (w->begin - op->dst - run) / op->dst_stride + 1;
    *end = (w->end - 1 - op->dst) / op->dst_stride + 1;
    if (*end > op->rows)
        *end = op->rows;
}

HL_CHECK static hl_status copy_rows(const struct hl_reshard_window *w,
                                    const struct hl_reshard_op *op)
{
    uint64_t first, end, begin, stop;
    const uint8_t *src;
    rows_in_window(w, op, op->run, &first, &end);
    if (first >= end)
        return HL_OK;
    /* For a single row only the part in the window is needed, for several rows all of them. */
    uint64_t from = op->src + first * op->src_stride, to = op->src + (end - 1) * op->src_stride;
    if (end - first == 1) {
        uint64_t at = op->dst + first * op->dst_stride;
        window_clip(w, at, op->run, &begin, &stop);
        HL_TRY(w->source(w->arg, op, from + (begin - at), from + (stop - at), &src));
    } else {
        HL_TRY(w->source(w->arg, op, from, to + op->run, &src));
    }
    src += op->src;
    for (uint64_t i = first; i < end; i++) {
        uint64_t at = op->dst + i * op->dst_stride;
        window_clip(w, at, op->run, &begin, &stop);
        uint8_t *into = w->dst + (begin - w->begin);
        const uint8_t *bytes = src + i * op->src_stride + (begin - at);
        hl_copy_row(into, bytes, stop - begin);
    }
    return HL_OK;
}

/* Transposes the elements [j, j_end) of rows [i, i_end). */
static void turn_part(const struct hl_reshard_window *w, const struct hl_reshard_op *op,
                      const uint8_t *src, uint64_t i, uint64_t i_end, uint64_t j, uint64_t j_end)
{
    uint8_t *to = w->dst + (op->dst + i * op->dst_stride + j * op->elem - w->begin);
    const uint8_t *from = src + op->src + j * op->src_stride + i * op->elem;
    hl_transpose(to, op->dst_stride, from, op->src_stride, i_end - i, j_end - j, op->elem);
}

/* The window's edges may cut the first and the last row; the rows between are whole. */
HL_CHECK static hl_status turn_rows(const struct hl_reshard_window *w,
                                    const struct hl_reshard_op *op)
{
    uint64_t first, end, begin, stop, run = op->cols * op->elem;
    const uint8_t *src;
    rows_in_window(w, op, run, &first, &end);
    if (first >= end)
        return HL_OK;
    HL_TRY(w->source(w->arg, op, op->src + first * op->elem,
                     op->src + (op->cols - 1) * op->src_stride + end * op->elem, &src));
    uint64_t whole = first, whole_end = end;
    for (int last = 0; last < 2 && whole < whole_end; last++) {
        uint64_t i = last ? end - 1 : first, at = op->dst + i * op->dst_stride;
        window_clip(w, at, run, &begin, &stop);
        if (stop - begin == run)
            continue;
        turn_part(w, op, src, i, i + 1, (begin - at) / op->elem, (stop - at) / op->elem);
        if (last)
            whole_end--;
        else
            whole++;
    }
    if (whole < whole_end)
        turn_part(w, op, src, whole, whole_end, 0, op->cols);
    return HL_OK;
}

HL_CHECK static hl_status apply_op(const struct hl_reshard_window *w,
                                   const struct hl_reshard_op *op)
{
    if (op->kind == HL_RESHARD_COPY)
        return copy_rows(w, op);
    if (op->kind == HL_RESHARD_TRANSPOSE)
        return turn_rows(w, op);
    uint64_t begin, end;
    window_clip(w, op->dst, op->run, &begin, &end);
    if (begin < end)
        memset(w->dst + (begin - w->begin), 0, end - begin);
    return HL_OK;
}

hl_status hl_reshard_fill(const struct hl_reshard_window *w, const struct hl_reshard_op *ops,
                          size_t count)
{
    for (size_t i = 0; i < count && ops[i].dst < w->end; i++)
        HL_TRY(apply_op(w, &ops[i]));
    return HL_OK;
}
