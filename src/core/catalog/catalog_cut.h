/* core/catalog/catalog_cut.h - derived shards: a version cut for other tensor parallel sizes.
 *
 * A version is stored as its ranks saved it. For readers with another tensor parallel size it is
 * cut once, for a single pipeline stage; any number of stages is then a view of the cut, just as it
 * is of the version's own shards (core/model/view.h). A cut is added and removed as a whole, in one
 * record. It is a cache: its shards are neither archived nor listed in manifests, and when one of
 * them is gone the whole cut is dropped.
 *
 *     version --own shards--> view --> position (pp, tp) of the version's tp
 *        '--cut tp4 --------> view --> position (pp, tp) of tp 4
 *
 * Owns:    the catalogue owns cuts and their shards; pointers are borrowed until the next change.
 * Threads: one owner thread. Pure: no I/O, no clock.
 * Errors:  HL_EUNSUPPORTED for a version that can't be cut, HL_EINVAL with the arithmetic if a
 *          split is impossible; HL_ENOMEM.
 * Units:   bytes.
 * Limits:  those of core/model/partition.h. A cut leaves out, and says so: optimizer state that is
 *          distributed over data-parallel ranks without information on how it fits together, and
 *          module blobs that differ between tensor ranks.
 */
#ifndef HL_CORE_CATALOG_CATALOG_CUT_H
#define HL_CORE_CATALOG_CATALOG_CUT_H

#include "base/arena.h"
#include "core/catalog/catalog.h"
#include "core/reshard/whole.h"

/* The version must be cut for the split `want`, and no such cut exists yet. */
bool hl_version_needs_cut(const struct hl_version_rec *v, const struct hl_api_split *want);
/* A cut that serves `want` and has lost no shard; NULL: there is none. */
struct hl_cut_rec *hl_version_find_cut(const struct hl_version_rec *v,
                                       const struct hl_api_split *want);
/* The split for which it must be cut: one stage, with every size stated. */
struct hl_api_split hl_version_cut_split(const struct hl_version_rec *v,
                                         const struct hl_api_split *want);
/* Checks that the split can be cut from the version's shards, before a byte is read. */
hl_status hl_version_check_cut(const struct hl_version_rec *v,
                               const struct hl_api_split *want) HL_CHECK;
/* Copies what hl_version_check_cut() needs into a version that the arena owns, so that it can be
 * checked in another thread while the catalogue changes. */
hl_status hl_version_copy_for_cut(const struct hl_version_rec *v, struct hl_arena *arena,
                                  struct hl_version_rec **out) HL_CHECK;
/* Plans the shards of that split; the plan's tensors have the version's dtypes. */
hl_status hl_version_plan_cut(const struct hl_version_rec *v, const struct hl_api_split *want,
                              struct hl_whole *out) HL_CHECK;
/* Optimizer state is distributed over data-parallel ranks without information on its place in the
 * parameters. State whose place is known does not count: complete sets of pieces
 * (core/reshard/piece.h), and whole tensors that are each in one share. Rank 0's share is named
 * like replicated state (core/model/part.h), so the question can only be answered for the whole
 * version, which caches the answer until its shards change. */
bool hl_version_shares_state(struct hl_version_rec *v);
/* The shard holds module blobs that are identical on every tensor rank. A rank of any other split
 * gets them from the version's own shard at tp 0. Blobs of experts never count as common. */
bool hl_shard_is_common(const struct hl_version_rec *v, const struct hl_shard_rec *s);
/* The shard can be a source of cuts. */
bool hl_shard_can_be_cut(const struct hl_shard_rec *s, bool shares);
/* Writes what cuts leave out of the version, and why, into buf; "" = nothing. */
const char *hl_version_left_out(struct hl_version_rec *v, char *buf, size_t cap);

/* Loads the stored record of a cut, after all shards; HL_ECORRUPT: the cut is not created. */
hl_status hl_catalog_load_cut(struct hl_catalog *c, const char *key, const json_t *value) HL_CHECK;
/* Adds a cut, and replaces cuts of the same split; ids of their shards are appended to `ids`
 * (free()). */
hl_status hl_catalog_add_cut(struct hl_catalog *c, struct hl_version_rec *v,
                             const struct hl_api_split *split,
                             const struct hl_api_shard_list *shards, hl_catalog_commit_fn commit,
                             void *arg, struct hl_id **ids, size_t *id_count) HL_CHECK;
/* Drops every cut that has lost a shard; ids of their shards as above. */
hl_status hl_catalog_drop_lost_cuts(struct hl_catalog *c, hl_catalog_commit_fn commit, void *arg,
                                    struct hl_id **ids, size_t *id_count) HL_CHECK;
bool hl_catalog_has_lost_cuts(const struct hl_catalog *c);

/* The cut has lost a shard. */
static inline bool hl_cut_is_lost(const struct hl_cut_rec *cut)
{
    for (size_t i = 0; i < cut->shard_count; i++)
        if (cut->shards[i]->lost)
            return true;
    return false;
}

static inline uint64_t hl_cut_bytes(const struct hl_cut_rec *cut)
{
    uint64_t bytes = 0;
    for (size_t i = 0; i < cut->shard_count; i++)
        bytes += cut->shards[i]->size_bytes;
    return bytes;
}

#endif
