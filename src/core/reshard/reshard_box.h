/* core/reshard/reshard_box.h - the boxes of logical tensors of which a held tensor consists.
 *
 * A logical tensor is treated as a matrix: its columns are the last dimension, its rows all others.
 * A box is a rectangle of that matrix, plus the location of its elements in a shard's tensor.
 *
 * Owns:    hl_box_list owns its boxes (hl_box_list_fini).
 * Threads: any; pure.
 * Errors:  HL_EINVAL names the logical tensor that an operation does not fit; HL_EUNSUPPORTED if an
 *          operation is not a set of rectangles.
 * Units:   rows and columns in elements; offsets and pitches in bytes.
 * Limits:  2^26 boxes in a list.
 */
#ifndef HL_CORE_RESHARD_RESHARD_BOX_H
#define HL_CORE_RESHARD_RESHARD_BOX_H

#include "core/model/partition.h"

struct hl_rect {
    uint64_t row, row_end;
    uint64_t col, col_end;
};

enum hl_box_kind {
    HL_BOX_DATA,   /* the elements themselves */
    HL_BOX_REPEAT, /* padding: the same elements `count` times */
    HL_BOX_ZERO,   /* padding: `period` zero bytes; no rectangle */
};

struct hl_box {
    enum hl_box_kind kind;
    uint32_t logical;
    uint32_t elem;
    struct hl_rect rect;
    uint64_t at; /* offset of the first element from the start of the held tensor */
    uint64_t row_pitch;
    uint64_t col_pitch;
    uint64_t count;  /* REPEAT, else 1 */
    uint64_t period; /* REPEAT: bytes from one repetition to the next */
};

struct hl_box_list {
    struct hl_box *list;
    size_t count;
    size_t cap;
};

/* All rows and columns of a logical tensor. */
struct hl_rect hl_rect_of(const struct hl_tensor *logical);
/* "elements [0, 4)" for a vector, "rows [0, 4), columns [2, 8)" for others; returns buf. */
const char *hl_rect_text(const struct hl_tensor *logical, const struct hl_rect *rect, char *buf,
                         size_t cap);
/* Appends the boxes of one operation to the list. */
hl_status hl_box_list_add(struct hl_box_list *boxes, const struct hl_copy_op *op,
                          const struct hl_tensor *logical, size_t logical_count) HL_CHECK;
void hl_box_list_fini(struct hl_box_list *boxes);

static inline uint64_t hl_rect_area(const struct hl_rect *r)
{
    return (r->row_end - r->row) * (r->col_end - r->col);
}

/* Offset of element (row, col) of the box's rectangle in the held tensor. */
static inline uint64_t hl_box_at(const struct hl_box *b, uint64_t row, uint64_t col)
{
    return b->at + (row - b->rect.row) * b->row_pitch + (col - b->rect.col) * b->col_pitch;
}

#endif
