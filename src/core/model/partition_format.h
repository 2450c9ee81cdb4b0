/* core/model/partition_format.h - the tensors in which a checkpoint stores a matrix: its elements
 * and, if it is quantized, their scales.
 *
 * Elements are plain, FP8, or FP4 with two in a byte. There is a scale for each block of rows and
 * columns, for each row, or one for the whole matrix. docs/families.md lists names and shapes.
 *
 * Owns:    nothing.
 * Threads: any; pure.
 * Errors:  HL_ENOENT names a missing tensor or scale, HL_EINVAL one with a wrong shape or dtype.
 * Units:   elements; rows and columns are those of the matrix.
 * Limits:  HL_FORMAT_PARTS_MAX tensors per matrix.
 */
#ifndef HL_CORE_MODEL_PARTITION_FORMAT_H
#define HL_CORE_MODEL_PARTITION_FORMAT_H

#include "core/model/partition_private.h"

#define HL_FORMAT_PARTS_MAX 14

enum hl_grain {
    HL_GRAIN_BLOCK, /* one element per block_rows x block_cols of the matrix */
    HL_GRAIN_ROW,   /* one per row */
    HL_GRAIN_ONE,   /* one for the matrix */
};

struct hl_format_part {
    const char *ending; /* in place of "weight" in Megatron's name; NULL = the name as it is */
    enum hl_grain grain;
    uint64_t block_rows, block_cols;
    uint32_t rank; /* of what a rank gets: ROW [rows] or [rows, 1], ONE [] or [1] */
    unsigned form; /* enum hl_form of the source */
    size_t count;  /* number of sources; for ONE there may be fewer than the row has */
    uint32_t source[HL_FAMILY_SOURCES_MAX];
};

struct hl_format {
    struct hl_format_part parts[HL_FORMAT_PARTS_MAX];
    size_t count;
};

/* The sources of a row of the family's table: names and required dimensions. */
struct hl_format_ask {
    const struct hl_family_tensor *row;
    size_t count;
    char names[HL_FAMILY_SOURCES_MAX][HL_PLANNER_NAME_MAX];
    struct hl_dims dims[HL_FAMILY_SOURCES_MAX];
};

/* Advice for a checkpoint that can't be sliced. */
#define HL_FORMAT_REMEDY "import it with --unsliced, or convert the checkpoint to bf16"

/* The first part of the result is the elements. */
hl_status hl_planner_format(struct hl_planner *p, const struct hl_format_ask *ask,
                            struct hl_format *out) HL_CHECK;
/* A scale without a weight, such as those of a quantized KV cache: a single number. */
hl_status hl_planner_number(struct hl_planner *p, const char *name,
                            struct hl_format_part *out) HL_CHECK;
/* HL_EINVAL names a scale that no part has used because its weight is missing. */
hl_status hl_planner_check_scales(const struct hl_planner *p) HL_CHECK;

#endif
