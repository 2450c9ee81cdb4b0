/* Executing copy operations. Bytes are read with pread in blocks that stay in the second-level
 * cache, so the CRC that follows finds them there. pread costs the same as a memcpy from a mapping
 * (it faults in no page), and a file that shrinks gives a short read instead of a signal.
 *
 * For narrow columns of wide rows there is one pread per run if skipping the bytes between runs
 * saves more than a system call costs; otherwise whole rows go through a scratch window. Transposes
 * read bands of columns into the scratch and transpose them tile by tile. */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/copy.h"
#include "mem/import/import_private.h"
#include "mem/reshard_tensor.h"
#include "mem/transpose.h"

#define BLOCK         ((uint64_t)128 << 10)
#define WINDOW        ((uint64_t)256 << 10)
#define BAND          ((uint64_t)4 << 20)
#define TILE          32   /* rows that are transposed and summed at once */
#define RUN_GAP_BYTES 3072 /* copying them costs as much as one system call */

HL_CHECK static hl_status read_source(struct hl_import_writer *w, uint32_t source, uint64_t from,
                                      void *to, uint64_t len)
{
    const struct hl_import_where *where = &w->im->where[source];
    const struct hl_import_file *file = &w->im->files[where->file];
    uint64_t at = where->offset + from;
    uint8_t *dst = to;
    while (len > 0) {
        ssize_t n = pread(file->fd, dst, len, (off_t)at);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return hl_fail(HL_EIO, "read %s at %" PRIu64 ": %m", file->name, at);
        if (n == 0)
            return hl_fail(HL_EIO,
                           "%s ends at byte %" PRIu64 " of %" PRIu64
                           ": it was truncated during the import",
                           file->name, at, file->size);
        dst += n;
        at += (uint64_t)n;
        len -= (uint64_t)n;
    }
    return HL_OK;
}

HL_CHECK static hl_status check_stop(const struct hl_import_writer *w)
{
    if ((w->cancel != NULL && atomic_load_explicit(w->cancel, memory_order_acquire)) ||
        (w->failed != NULL && atomic_load_explicit(w->failed, memory_order_acquire) != 0))
        return hl_fail(HL_ECANCELED, "the import was cancelled");
    return HL_OK;
}

HL_CHECK static hl_status need_scratch(struct hl_import_writer *w, uint64_t size)
{
    if (size <= w->scratch_size)
        return HL_OK;
    uint8_t *p = realloc(w->scratch, size);
    if (p == NULL)
        return hl_fail(HL_ENOMEM,
                       "out of memory allocating a scratch buffer of %" PRIu64 " bytes for slicing",
                       size);
    w->scratch = p;
    w->scratch_size = size;
    return HL_OK;
}

/* ---- operations ------------------------------------------------------------------------------ */

HL_CHECK static hl_status copy_contiguous(struct hl_import_writer *w, uint32_t source,
                                          uint64_t from, uint64_t len)
{
    while (len > 0) {
        uint64_t n = len < BLOCK ? len : BLOCK;
        HL_TRY(check_stop(w));
        HL_TRY(read_source(w, source, from, w->sums.dst + w->sums.at, n));
        hl_shard_sums_add(&w->sums, n);
        from += n;
        len -= n;
    }
    return HL_OK;
}

/* Reads `rows` runs, `stride` apart, next to each other into `to`; whole rows pass through
 * `window`. */
HL_CHECK static hl_status gather_runs(struct hl_import_writer *w, uint32_t source, uint64_t from,
                                      uint64_t rows, uint64_t run, uint64_t stride, uint8_t *to,
                                      uint8_t *window)
{
    if (stride - run > RUN_GAP_BYTES || stride > WINDOW) {
        for (uint64_t i = 0; i < rows; i++)
            HL_TRY(read_source(w, source, from + i * stride, to + i * run, run));
        return HL_OK;
    }
    for (uint64_t i = 0; i < rows;) {
        uint64_t n = WINDOW / stride < rows - i ? WINDOW / stride : rows - i;
        HL_TRY(read_source(w, source, from + i * stride, window, (n - 1) * stride + run));
        for (uint64_t k = 0; k < n; k++)
            hl_copy_row(to + (i + k) * run, window + k * stride, run);
        i += n;
    }
    return HL_OK;
}

HL_CHECK static hl_status copy_runs(struct hl_import_writer *w, const struct hl_copy_op *op)
{
    if (op->rows == 1 || op->stride == op->run)
        return copy_contiguous(w, op->source, op->src, op->rows * op->run);
    if (op->stride == 0 || op->run > BLOCK) {
        for (uint64_t i = 0; i < op->rows; i++)
            HL_TRY(copy_contiguous(w, op->source, op->src + i * op->stride, op->run));
        return HL_OK;
    }
    HL_TRY(need_scratch(w, WINDOW));
    uint64_t step = BLOCK / op->run;
    for (uint64_t i = 0; i < op->rows; i += step) {
        uint64_t n = step < op->rows - i ? step : op->rows - i;
        HL_TRY(check_stop(w));
        HL_TRY(gather_runs(w, op->source, op->src + i * op->stride, n, op->run, op->stride,
                           w->sums.dst + w->sums.at, w->scratch));
        hl_shard_sums_add(&w->sums, n * op->run);
    }
    return HL_OK;
}

/* Keeps the first `elem` of every `step` bytes, packed, in each of the `runs` runs of `n`
 * elements. */
static void drop_others(uint8_t *at, uint64_t runs, uint64_t n, const struct hl_copy_op *op)
{
    uint64_t run = (n - 1) * op->step + op->elem;
    for (uint64_t j = 0; j < runs; j++)
        for (uint64_t k = 0; k < n; k++)
            memmove(at + (j * n + k) * op->elem, at + j * run + k * op->step, op->elem);
}

HL_CHECK static hl_status copy_transposed(struct hl_import_writer *w, const struct hl_copy_op *op)
{
    uint64_t band = BAND / (op->cols * op->step);
    band = band < TILE ? TILE : band < op->rows ? band : op->rows;
    band = band < op->rows ? band : op->rows;
    HL_TRY(need_scratch(w, WINDOW + band * op->cols * op->step));
    uint8_t *columns = w->scratch + WINDOW;
    for (uint64_t i = 0; i < op->rows; i += band) {
        uint64_t n = band < op->rows - i ? band : op->rows - i;
        HL_TRY(check_stop(w));
        HL_TRY(gather_runs(w, op->source, op->src + i * op->step, op->cols,
                           (n - 1) * op->step + op->elem, op->stride, columns, w->scratch));
        if (op->step != op->elem)
            drop_others(columns, op->cols, n, op);
        for (uint64_t k = 0; k < n; k += TILE) {
            uint64_t m = TILE < n - k ? TILE : n - k;
            hl_transpose(w->sums.dst + w->sums.at, op->cols * op->elem, columns + k * op->elem,
                         n * op->elem, m, op->cols, op->elem);
            hl_shard_sums_add(&w->sums, m * op->cols * op->elem);
        }
    }
    return HL_OK;
}

HL_CHECK static hl_status copy_zero(struct hl_import_writer *w, uint64_t len)
{
    while (len > 0) {
        uint64_t n = len < BLOCK ? len : BLOCK;
        memset(w->sums.dst + w->sums.at, 0, n);
        hl_shard_sums_add(&w->sums, n);
        len -= n;
    }
    return HL_OK;
}

static hl_status mapped_source(void *arg, const struct hl_reshard_op *op, uint64_t first,
                               uint64_t end, const uint8_t **out)
{
    const struct hl_import_writer *w = arg;
    (void)first;
    (void)end;
    *out = w->held->bytes[op->tensor];
    return HL_OK;
}

static hl_status next_block(void *arg, uint64_t bytes)
{
    (void)bytes;
    return check_stop(arg);
}

hl_status hl_import_write_tensor(struct hl_import_writer *w, size_t tensor, uint32_t *crc)
{
    const struct hl_partition_plan *plan = &w->im->plan;
    if (w->im->megatron) {
        bool state = tensor >= w->im->state_first;
        size_t of = state ? tensor - w->im->state_first : tensor;
        w->held = state ? &w->im->source.optim : &w->im->source.params;
        const struct hl_reshard_writer writer = {&w->held->moves, mapped_source, next_block, w};
        HL_TRY(hl_reshard_write_tensor(&writer, &plan->tensors[tensor], of, &w->sums));
        *crc = hl_shard_sums_tensor(&w->sums);
        return HL_OK;
    }
    for (uint32_t i = plan->op_first[tensor]; i < plan->op_first[tensor + 1]; i++) {
        const struct hl_copy_op *op = &plan->ops[i];
        if (op->kind == HL_COPY_TRANSPOSE)
            HL_TRY(copy_transposed(w, op));
        else if (op->kind == HL_COPY_ZERO)
            HL_TRY(copy_zero(w, op->run));
        else
            HL_TRY(copy_runs(w, op));
    }
    *crc = hl_shard_sums_tensor(&w->sums);
    return HL_OK;
}

hl_status hl_import_compare(struct hl_import_writer *w, uint32_t a, uint32_t b)
{
    const struct hl_tensor *x = &w->im->sources[a], *y = &w->im->sources[b];
    HL_TRY(need_scratch(w, 2 * WINDOW));
    for (uint64_t at = 0; at < x->size; at += WINDOW) {
        uint64_t n = x->size - at < WINDOW ? x->size - at : WINDOW;
        HL_TRY(check_stop(w));
        HL_TRY(read_source(w, a, at, w->scratch, n));
        HL_TRY(read_source(w, b, at, w->scratch + WINDOW, n));
        if (memcmp(w->scratch, w->scratch + WINDOW, n) != 0)
            return hl_fail(HL_EINVAL,
                           "%s/config.json: tie_word_embeddings is true, but '%s' and '%s' hold "
                           "different bytes; set it to false to keep both",
                           w->im->dir, x->name, y->name);
    }
    return HL_OK;
}
