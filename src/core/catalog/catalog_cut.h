/* core/catalog/catalog_cut.h - derived shards: a version as other tensor parallel sizes have it.
 *
 * A version is stored as its ranks have saved it. For a reader of another tensor parallel size it
 * is cut once, for one pipeline stage; every number of stages is then a view of the cut, as it is
 * of the version's own shards (core/model/view.h). A cut comes and goes as a whole, in one record.
 * It is a cache: what it holds is neither archived nor described in manifests, and when a shard of
 * it is gone the cut is dropped.
 *
 *     version --own shards--> view --> position (pp, tp) of the version's tp
 *        '--cut tp4 --------> view --> position (pp, tp) of tp 4
 *
 * Owns:    the catalogue owns cuts and their shards; pointers are borrowed until the next change.
 * Threads: one owner thread. Pure: no I/O, no clock.
 * Errors:  HL_EUNSUPPORTED for a version that can't be cut, HL_EINVAL with the arithmetic of a
 *          split that does not work out; HL_ENOMEM.
 * Units:   bytes.
 * Limits:  those of core/model/partition.h. Optimizer state that data-parallel ranks share out so
 *          that nothing says how it fits together, and blobs of modules that differ between tensor
 *          ranks, are left out, and the cut says so.
 */
#ifndef HL_CORE_CATALOG_CATALOG_CUT_H
#define HL_CORE_CATALOG_CATALOG_CUT_H

#include "base/arena.h"
#include "core/catalog/catalog.h"
#include "core/reshard/whole.h"

/* The version has to be cut for the split `want`, which is not done yet. */
bool hl_version_needs_cut(const struct hl_version_rec *v, const struct hl_api_split *want);
/* The whole cut that serves `want`; NULL: there is none. */
struct hl_cut_rec *hl_version_find_cut(const struct hl_version_rec *v,
                                       const struct hl_api_split *want);
/* For which split it has to be cut: one stage, every size said. */
struct hl_api_split hl_version_cut_split(const struct hl_version_rec *v,
                                         const struct hl_api_split *want);
/* The split can be cut from the version's shards; fails before a byte is read. */
hl_status hl_version_check_cut(const struct hl_version_rec *v,
                               const struct hl_api_split *want) HL_CHECK;
/* What hl_version_check_cut() needs of a version, as a version that the arena owns: it may be
 * checked in another thread while the catalogue changes. */
hl_status hl_version_copy_for_cut(const struct hl_version_rec *v, struct hl_arena *arena,
                                  struct hl_version_rec **out) HL_CHECK;
/* The shards of that split, as they would be cut: the plan's tensors have the version's dtypes. */
hl_status hl_version_plan_cut(const struct hl_version_rec *v, const struct hl_api_split *want,
                              struct hl_whole *out) HL_CHECK;
/* Data-parallel ranks share optimizer state out in a way that nothing gives its place in its
 * parameter. Pieces that cover it (core/reshard/piece.h) and whole tensors, each in one share, have
 * one. The share of rank 0 has the name that shared state has (core/model/part.h), so this is known
 * of the version only, which keeps the answer until it gets other shards. */
bool hl_version_shares_state(struct hl_version_rec *v);
/* Blobs of modules that are the same on every tensor rank: a rank of any other split has them too,
 * from the version's own shard at tp 0. Those of experts are not. */
bool hl_shard_is_common(const struct hl_version_rec *v, const struct hl_shard_rec *s);
/* The shard is a source of cuts. */
bool hl_shard_can_be_cut(const struct hl_shard_rec *s, bool shares);
/* What of the version is in no cut, and why, in buf; "" = nothing. */
const char *hl_version_left_out(struct hl_version_rec *v, char *buf, size_t cap);

/* Feed the record of a cut back, once all shards are there; HL_ECORRUPT: it is not made. */
hl_status hl_catalog_load_cut(struct hl_catalog *c, const char *key, const json_t *value) HL_CHECK;
/* In place of the cuts of the same split; ids of their shards are appended to `ids` (free()). */
hl_status hl_catalog_add_cut(struct hl_catalog *c, struct hl_version_rec *v,
                             const struct hl_api_split *split,
                             const struct hl_api_shard_list *shards, hl_catalog_commit_fn commit,
                             void *arg, struct hl_id **ids, size_t *id_count) HL_CHECK;
/* Every cut that lacks a shard goes; ids of their shards as above. */
hl_status hl_catalog_drop_lost_cuts(struct hl_catalog *c, hl_catalog_commit_fn commit, void *arg,
                                    struct hl_id **ids, size_t *id_count) HL_CHECK;
bool hl_catalog_has_lost_cuts(const struct hl_catalog *c);

/* A cut with a shard that is lost. */
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
