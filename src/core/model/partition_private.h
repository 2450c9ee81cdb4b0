/* core/model/partition_private.h - shared between the files of partition: the plan while it is
 * built.
 *
 * Threads: one at a time per plan.
 */
#ifndef HL_CORE_MODEL_PARTITION_PRIVATE_H
#define HL_CORE_MODEL_PARTITION_PRIVATE_H

#include <stdbool.h>
#include <uthash.h>

#include "base/buf.h"
#include "core/model/partition.h"

#define HL_PLANNER_NAME_MAX 256

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
    unsigned char *used;                   /* enum hl_used */
    const struct hl_family_prefix *prefix; /* of the source names */
    int tp;                                /* of the shard that is being planned */
    int ep;
    const char *chunk; /* "model1." with virtual stages, "" without */
    bool listed;       /* the config alone does not determine the names of the tensors */
    struct hl_buf names;
    size_t shard_cap;
    size_t tensor_cap;
    size_t op_cap;
    size_t equal_cap;
    struct hl_partition_plan *plan;
};

/* Rows [first, first + count) of a matrix inside a source: its element (i, j) is at base + i / each
 * * row + j * col elements from the source's start. */
struct hl_rows {
    enum { HL_ROWS_PLAIN, HL_ROWS_REPEAT, HL_ROWS_ZERO } kind;

    uint32_t source;
    uint64_t base;
    uint64_t row;
    uint64_t col;
    uint64_t first;
    uint64_t count;
    uint64_t each; /* PLAIN: each row of the source counts as this many rows here; 0 and 1 = one */
};

/* Finds the source with that name and shape; HL_ENOENT names a missing one. */
hl_status hl_planner_source(struct hl_planner *p, const char *name, const struct hl_dims *dims,
                            uint32_t *out) HL_CHECK;

/* How the bytes of a source are counted. */
enum hl_used {
    HL_USED_NOT,
    HL_USED_WEIGHT,
    HL_USED_PACKED, /* two elements in a byte */
    HL_USED_SCALE,
    HL_USED_WHOLE, /* belongs to a module beside the text model */
};

/* The same for any dtype; dims NULL = any dimensions. */
hl_status hl_planner_stored(struct hl_planner *p, const char *name, const struct hl_dims *dims,
                            enum hl_used as, uint32_t *out) HL_CHECK;
/* Whether there is such a source; does not mark it as used. */
bool hl_planner_has(const struct hl_planner *p, const char *name);
/* The same for the weight's packed elements, which have another name. */
bool hl_planner_has_packed(const struct hl_planner *p, const char *weight);
bool hl_planner_dtype(const struct hl_planner *p, const char *name, enum hl_dtype *out);
/* Begins a tensor of the current shard, with the dtype of `source`. */
hl_status hl_planner_tensor(struct hl_planner *p, uint32_t source, const struct hl_dims *dims,
                            const char *name) HL_CHECK;
/* Adds columns [col, col + cols) of rows [first, first + count) of the concatenated blocks. */
hl_status hl_planner_rows(struct hl_planner *p, const struct hl_rows *blocks, size_t n,
                          uint64_t first, uint64_t count, uint64_t col, uint64_t cols) HL_CHECK;
/* Requires that two sources hold the same bytes. */
hl_status hl_planner_equal(struct hl_planner *p, uint32_t a, uint32_t b) HL_CHECK;

/* Builds the index of the checkpoint's tensors by name. */
hl_status hl_planner_index_sources(struct hl_planner *p) HL_CHECK;
/* HL_EINVAL names a source that no shard uses. */
hl_status hl_planner_count_sources(struct hl_planner *p) HL_CHECK;
/* Makes room for one more entry of `size` bytes in a list of `count`. */
hl_status hl_planner_grow(void **list, size_t count, size_t *cap, size_t size) HL_CHECK;

/* The context in which a row of the family's table is applied (partition_layers.c). */
struct hl_planner_at {
    enum hl_family_place place;
    uint64_t layer;  /* global number; `layers` and above are MTP layers */
    uint64_t local;  /* number in the stage's chunk */
    uint64_t expert; /* global number */
};

/* Plans all tensors of one place; for HL_PLACE_EXPERT, of one expert. */
hl_status hl_planner_place(struct hl_planner *p, const struct hl_planner_at *at) HL_CHECK;
/* Marks the head as used if it is tied to the embedding. */
hl_status hl_planner_find_tied_head(struct hl_planner *p) HL_CHECK;
/* hl_planner_size_fits: whether the family's table and the query groups allow `size` ranks. */
#define HL_PLANNER_SIZES_TEXT 128
/* "1, 2 or 4": the first 16 divisors of n. */
const char *hl_planner_divisors(uint64_t n, char *buf, size_t cap);
int hl_planner_size_fits(const struct hl_hf_config *c, enum hl_divided_by by, uint64_t size);
/* Checks the options against the divisibility rules of the family's table (partition_options.c). */
hl_status hl_planner_check_options(const struct hl_planner *p) HL_CHECK;

#endif
