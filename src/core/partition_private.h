/* core/partition_private.h - shared between the files of partition: the plan while it is built. */
#ifndef HL_CORE_PARTITION_PRIVATE_H
#define HL_CORE_PARTITION_PRIVATE_H

#include <uthash.h>

#include "base/buf.h"
#include "core/partition.h"

struct hl_source_node {
    const char *name;
    UT_hash_handle hh;
};

struct hl_planner {
    const struct hl_hf_config *config;
    const struct hl_partition_options *o;
    const struct hl_tensor *sources;
    size_t source_count;
    struct hl_source_node *nodes; /* nodes[i] is source i */
    struct hl_source_node *index;
    unsigned char *used;
    const char *prefix; /* of the source names: "model.", "transformer." or "" */
    int tp;             /* of the shard that is being planned */
    const char *chunk;  /* "model1." with virtual stages, "" without */
    struct hl_buf names;
    size_t shard_cap;
    size_t tensor_cap;
    size_t op_cap;
    struct hl_partition_plan *plan;
};

/* A block of rows of one source: consecutive rows, or columns of a transposed one. */
struct hl_rows {
    enum { HL_ROWS_PLAIN, HL_ROWS_TRANSPOSED, HL_ROWS_REPEAT, HL_ROWS_ZERO } kind;

    uint32_t source;
    uint64_t first;
    uint64_t count;
};

/* The source of that name and shape (rank 1: dim1 is ignored); HL_ENOENT names a missing one. */
hl_status hl_planner_source(struct hl_planner *p, uint32_t rank, uint64_t dim0, uint64_t dim1,
                            uint32_t *out, const char *fmt, ...) HL_PRINTF(6, 7) HL_CHECK;
/* HL_OK or HL_ENOENT, without shape check; not marked as used. */
int hl_planner_has(const struct hl_planner *p, const char *prefix, const char *name);
/* Begin a tensor of the current shard, type of `source`; rank 1 ignores dim1. */
hl_status hl_planner_tensor(struct hl_planner *p, uint32_t source, uint32_t rank, uint64_t dim0,
                            uint64_t dim1, const char *fmt, ...) HL_PRINTF(6, 7) HL_CHECK;
/* Rows [first, first + count) of the blocks laid end to end, `cols` elements each. */
hl_status hl_planner_rows(struct hl_planner *p, const struct hl_rows *blocks, size_t n,
                          uint64_t first, uint64_t count, uint64_t cols) HL_CHECK;
/* Columns [first, first + count) of a [rows, cols] matrix (transposed: stored as [cols, rows]). */
hl_status hl_planner_cols(struct hl_planner *p, uint32_t source, int transposed, uint64_t rows,
                          uint64_t cols, uint64_t first, uint64_t count) HL_CHECK;

/* The checkpoint's tensors by name. */
hl_status hl_planner_index_sources(struct hl_planner *p) HL_CHECK;
/* Mark the head as used where it is the embedding. */
hl_status hl_planner_find_tied_head(struct hl_planner *p) HL_CHECK;
/* HL_EINVAL names a source that no shard has read. */
hl_status hl_planner_count_sources(struct hl_planner *p) HL_CHECK;
/* Room for one more of `size` bytes in a list of `count`. */
hl_status hl_planner_grow(void **list, size_t count, size_t *cap, size_t size) HL_CHECK;

/* What the parts hold (partition_layers.c). */
hl_status hl_planner_embedding(struct hl_planner *p) HL_CHECK;
hl_status hl_planner_layer(struct hl_planner *p, uint64_t global, uint64_t local) HL_CHECK;
hl_status hl_planner_head(struct hl_planner *p) HL_CHECK;

#endif
