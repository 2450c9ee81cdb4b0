/* core/model/view.h - a rank's position under one pipeline split, seen through shards that were cut
 * under another.
 *
 * A shard is one part (the embedding, a layer, its experts, the head) of one tensor rank. Another
 * number of pipeline or virtual stages therefore changes no byte of it: parts only go to other
 * stages, and names in them change, as layers are numbered within a stage and chunks of virtual
 * stages have a prefix (`model1.`). A view says which stored shards a position consists of and how
 * each of their tensors is called there. Tied heads: with several stages the last one has the
 * embedding's rows as `output_layer`; they are shown from the embedding's shard where no shard has
 * them of its own. A tensor that no layer, embedding or head is made of may be stored by several
 * stages: what all of them hold alike every stage has, and what some hold alike the stage that its
 * part belongs to.
 *
 * Owns:    nothing; results and their names are the arena's, texts of the stored list are borrowed.
 * Threads: any. Pure.
 * Errors:  HL_EINVAL shows the arithmetic of a split that does not work out; HL_ENOENT names a part
 *          that is not stored; HL_EUNSUPPORTED a part that would change and has no recorded
 *          tensors, or a tensor of which two stages hold different bytes; HL_ENOMEM.
 * Units:   stages, ranks and layers count from 0.
 * Limits:  those of core/model/partition.h and core/model/layout.h.
 */
#ifndef HL_CORE_MODEL_VIEW_H
#define HL_CORE_MODEL_VIEW_H

#include <stdbool.h>
#include <stddef.h>

#include "base/arena.h"
#include "base/status.h"
#include "core/model/partition.h"

struct hl_stored_part {
    int pp;
    int tp;
    const char *part;   /* core/model/part.h */
    const char *layout; /* core/model/layout.h; NULL = stored by an earlier release */
    int ep;             /* of experts, whose tp is the rank within etp */
    const char *crcs;   /* of the layout's tensors (hl_layout_crcs); NULL = not known */
};

struct hl_view_name {
    const char *stored;
    const char *shown;
};

struct hl_view_part {
    size_t stored;              /* index into the stored list */
    const char *part;           /* shown as: a tied head's rows stand in the embedding's shard */
    bool as_stored;             /* every tensor is shown under its own name */
    struct hl_view_name *names; /* else those that are shown; the others are not */
    size_t count;
};

struct hl_view {
    struct hl_view_part *parts; /* in the order of the stored list */
    size_t count;
};

struct hl_view_want {
    const struct hl_partition_options
        *split;      /* pp, etp, virtual stages, first and last stage's layers */
    uint64_t layers; /* of the model */
    bool tied;
    int pp;
    int tp;
    int ep;
    /* Of a cut, which has one stage: all shards of the version that it was made from. What each of
     * their stages had, each stage has. NULL = it is no cut. */
    const struct hl_stored_part *made_from;
    size_t made_from_count;
};

/* The position (pp, tp, ep) of the split. `stored` has all shards of a version, optimizer state and
 * blobs included, which follow the part they belong to. */
hl_status hl_view_position(const struct hl_stored_part *stored, size_t count,
                           const struct hl_view_want *want, struct hl_arena *arena,
                           struct hl_view *out) HL_CHECK;

/* How a tensor of a part of parameters is called where one stage has all layers. NULL: the arena is
 * out of memory. */
const char *hl_view_whole_name(const char *part, const char *stored, struct hl_arena *arena);

struct hl_view_layout {
    const char *part;
    const char *layout; /* core/model/layout.h, under the shown names */
};

/* What the view's parts hold, one entry for each part, sorted by part. */
hl_status hl_view_layouts(const struct hl_stored_part *stored, const struct hl_view *view,
                          struct hl_arena *arena, struct hl_view_layout **out,
                          size_t *count) HL_CHECK;

/* The header of a shard as the position has it: only the tensors that are shown, under those names,
 * their data laid end to end in the stored order. `from`: st->count entries, where the bytes of
 * each tensor of the result are in the shard's data. HL_ECORRUPT names a tensor that the shard has
 * not got; st is then unchanged. */
hl_status hl_view_header(struct hl_safetensors *st, const struct hl_view_name *names, size_t count,
                         uint64_t *from) HL_CHECK;

#endif
