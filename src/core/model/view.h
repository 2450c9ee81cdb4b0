/* core/model/view.h - serves a rank's position under one pipeline split from shards that were cut
 * under another.
 *
 * A shard is one part (the embedding, a layer, its experts, the head) of one tensor rank. So a
 * different number of pipeline or virtual stages changes none of its bytes: parts only move to
 * other stages, and the names in them change, because layers are numbered within a stage and chunks
 * of virtual stages have a prefix (`model1.`). A view says which stored shards make up a position,
 * and what each of their tensors is called there. Tied heads: with several stages the last one has
 * the embedding's rows as `output_layer`; if no shard has them, they are served from the
 * embedding's shard. A tensor that belongs to no layer, embedding or head may be stored by several
 * stages. If all stages hold the same bytes of it, every stage gets it; if only some stages do, the
 * stage to which its part belongs gets it.
 *
 * Owns:    nothing; results and their names are in the arena, texts of the stored list are
 *          borrowed.
 * Threads: any. Pure.
 * Errors:  HL_EINVAL shows the arithmetic of an impossible split; HL_ENOENT names a part that is
 *          not stored; HL_EUNSUPPORTED names a part that would change but has no recorded tensors,
 *          or a tensor of which two stages hold different bytes; HL_ENOMEM.
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
    int ep;             /* only for experts; their tp is the rank within etp */
    const char *crcs;   /* of the layout's tensors (hl_layout_crcs); NULL = not known */
};

struct hl_view_name {
    const char *stored;
    const char *shown;
};

struct hl_view_part {
    size_t stored;    /* index into the stored list */
    const char *part; /* name in the view; differs from the stored one for a tied head's rows */
    bool as_stored;   /* every tensor keeps its stored name */
    struct hl_view_name *names; /* otherwise, the tensors in the view; all others are hidden */
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
    /* For a cut, which has one stage: all shards of the version that it was made from. A tensor
     * that all of that version's stages had, every stage gets. NULL = not a cut. */
    const struct hl_stored_part *made_from;
    size_t made_from_count;
};

/* Makes the view for the position (pp, tp, ep) of the split. stored: all shards of a version,
 * including optimizer state and blobs, which follow the part to which they belong. */
hl_status hl_view_position(const struct hl_stored_part *stored, size_t count,
                           const struct hl_view_want *want, struct hl_arena *arena,
                           struct hl_view *out) HL_CHECK;

/* The name that a tensor of a parameter part has when one stage has all layers. NULL: the arena is
 * out of memory. */
const char *hl_view_whole_name(const char *part, const char *stored, struct hl_arena *arena);

struct hl_view_layout {
    const char *part;
    const char *layout; /* core/model/layout.h, under the shown names */
};

/* The layouts of the view's parts, one entry per part, sorted by part. */
hl_status hl_view_layouts(const struct hl_stored_part *stored, const struct hl_view *view,
                          struct hl_arena *arena, struct hl_view_layout **out,
                          size_t *count) HL_CHECK;

/* Turns a shard's header into the one that the position sees: only the tensors in the view, under
 * their new names, with their data concatenated in the stored order. from: st->count entries; where
 * in the shard's data the bytes of each resulting tensor are. HL_ECORRUPT names a tensor that the
 * shard lacks; st is then unchanged. */
hl_status hl_view_header(struct hl_safetensors *st, const struct hl_view_name *names, size_t count,
                         uint64_t *from) HL_CHECK;

#endif
