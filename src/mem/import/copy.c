/* Executing copy operations. Bytes are read with pread in blocks that stay in the second-level
 * cache, so that the CRC that follows finds them there. pread costs the same as a memcpy out of a
 * mapping (no page is faulted in), and a file that shrinks gives a short read instead of a signal.
 *
 * Narrow columns of wide rows: one pread per run when the bytes between runs cost more than a
 * system call, else whole rows go through a scratch window. Transposes read bands of columns into
 * the scratch and turn them tile by tile. */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/crc32.h"
#include "mem/import/import_private.h"

#define BLOCK         ((uint64_t)128 << 10)
#define WINDOW        ((uint64_t)256 << 10)
#define BAND          ((uint64_t)4 << 20)
#define TILE          32
#define RUN_GAP_BYTES 3072 /* what copying costs as much as one system call */

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
                           ": it was truncated while it was imported",
                           file->name, at, file->size);
        dst += n;
        at += (uint64_t)n;
        len -= (uint64_t)n;
    }
    return HL_OK;
}

HL_CHECK static hl_status check_stop(const struct hl_import_writer *w)
{
    if ((w->cancel != NULL && atomic_load_explicit(w->cancel, memory_order_acquire) != 0) ||
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
        return hl_fail(HL_ENOMEM, "scratch of %" PRIu64 " bytes for slicing", size);
    w->scratch = p;
    w->scratch_size = size;
    return HL_OK;
}

/* ---- checksums ------------------------------------------------------------------------------- */

static void flush_piece(struct hl_import_writer *w)
{
    if (w->piece_len == 0)
        return;
    uint32_t *chunk = &w->chunks[(w->at - 1) / HL_CHUNK];
    w->tensor_crc = hl_crc32_combine(w->tensor_crc, w->piece_crc, w->piece_len);
    *chunk = hl_crc32_combine(*chunk, w->piece_crc, w->piece_len);
    w->piece_crc = 0;
    w->piece_len = 0;
}

/* dst[at, at + len) has just been written. */
static void advance_writer(struct hl_import_writer *w, uint64_t len)
{
    while (len > 0) {
        uint64_t room = HL_CHUNK - w->at % HL_CHUNK;
        uint64_t n = len < room ? len : room;
        w->piece_crc = hl_crc32(w->piece_crc, w->dst + w->at, n);
        w->piece_len += n;
        w->at += n;
        len -= n;
        if (n == room)
            flush_piece(w);
    }
}

void hl_import_finish_crcs(struct hl_import_writer *w, uint64_t header_size, uint32_t *crc)
{
    uint64_t size = w->at, count = (size + HL_CHUNK - 1) / HL_CHUNK;
    uint32_t whole = 0;
    for (uint64_t i = 0; i < count; i++) {
        uint64_t begin = i * HL_CHUNK;
        uint64_t end = begin + HL_CHUNK < size ? begin + HL_CHUNK : size;
        if (begin < header_size) {
            uint64_t head = header_size < end ? header_size - begin : end - begin;
            uint32_t head_crc = hl_crc32(0, w->dst + begin, head);
            w->chunks[i] = hl_crc32_combine(head_crc, w->chunks[i], end - begin - head);
        }
        whole = hl_crc32_combine(whole, w->chunks[i], end - begin);
    }
    *crc = whole;
}

/* ---- operations ------------------------------------------------------------------------------ */

HL_CHECK static hl_status copy_contiguous(struct hl_import_writer *w, uint32_t source,
                                          uint64_t from, uint64_t len)
{
    while (len > 0) {
        uint64_t n = len < BLOCK ? len : BLOCK;
        HL_TRY(check_stop(w));
        HL_TRY(read_source(w, source, from, w->dst + w->at, n));
        advance_writer(w, n);
        from += n;
        len -= n;
    }
    return HL_OK;
}

/* `rows` runs, `stride` apart, side by side into `to`; whole rows pass through `window`. */
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
            memcpy(to + (i + k) * run, window + k * stride, run);
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
                           w->dst + w->at, w->scratch));
        advance_writer(w, n * op->run);
    }
    return HL_OK;
}

/* rows x cols elements to `to` (dense) out of `from`, where a row is a column `pitch` elements
 * apart. The destination may be unaligned: memcpy of a constant size is one move. */
#define TURN(name, type)                                                                           \
    static void name(uint8_t *to, const uint8_t *from, uint64_t rows, uint64_t cols,               \
                     uint64_t pitch)                                                               \
    {                                                                                              \
        for (uint64_t j0 = 0; j0 < cols; j0 += TILE) {                                             \
            uint64_t j1 = j0 + TILE < cols ? j0 + TILE : cols;                                     \
            for (uint64_t i = 0; i < rows; i++)                                                    \
                for (uint64_t j = j0; j < j1; j++)                                                 \
                    memcpy(to + (i * cols + j) * sizeof(type),                                     \
                           from + (j * pitch + i) * sizeof(type), sizeof(type));                   \
        }                                                                                          \
    }

TURN(turn2, uint16_t)
TURN(turn4, uint32_t)
TURN(turn8, uint64_t)

static void transpose_rows(uint8_t *to, const uint8_t *from, uint64_t rows, uint64_t cols,
                           uint64_t pitch, uint32_t elem)
{
    if (elem == 2)
        turn2(to, from, rows, cols, pitch);
    else if (elem == 4)
        turn4(to, from, rows, cols, pitch);
    else
        turn8(to, from, rows, cols, pitch);
}

/* Of every `step` bytes of the `runs` runs the first `elem`, close together; `n` in a run. */
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
            transpose_rows(w->dst + w->at, columns + k * op->elem, m, op->cols, n, op->elem);
            advance_writer(w, m * op->cols * op->elem);
        }
    }
    return HL_OK;
}

HL_CHECK static hl_status copy_zero(struct hl_import_writer *w, uint64_t len)
{
    while (len > 0) {
        uint64_t n = len < BLOCK ? len : BLOCK;
        memset(w->dst + w->at, 0, n);
        advance_writer(w, n);
        len -= n;
    }
    return HL_OK;
}

hl_status hl_import_write_tensor(struct hl_import_writer *w, size_t tensor, uint32_t *crc)
{
    const struct hl_partition_plan *plan = &w->im->plan;
    w->tensor_crc = 0;
    for (uint32_t i = plan->op_first[tensor]; i < plan->op_first[tensor + 1]; i++) {
        const struct hl_copy_op *op = &plan->ops[i];
        if (op->kind == HL_COPY_TRANSPOSE)
            HL_TRY(copy_transposed(w, op));
        else if (op->kind == HL_COPY_ZERO)
            HL_TRY(copy_zero(w, op->run));
        else
            HL_TRY(copy_runs(w, op));
    }
    flush_piece(w);
    *crc = w->tensor_crc;
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
