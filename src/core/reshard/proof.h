/* core/reshard/proof.h - proves a version from its shards' metadata: their layouts and the CRC of
 * every tensor.
 *
 * The plan is made again from the model's config (core/reshard/whole.h), and
 * core/reshard/coverage.h compares what the ranks hold with it: every element of every logical
 * tensor is held once, and replicas have equal CRCs. The same is required of optimizer state that
 * follows parameters (core/reshard/reshard_state.h); in addition, the tensor ranks of a stage must
 * have state with the same names. Pieces of state (core/reshard/piece.h) are joined first: together
 * the data-parallel ranks must have each element exactly once.
 *
 * For an unsliced model (core/model/partition.h) every tensor must be held once, and the number of
 * elements must match its config; an import has exactly those tensors, a save may have others.
 *
 * It is not a failure if something can't be proved: other models without a Hugging Face config,
 * shards without a layout or CRCs, tensors that the config does not ask for, state with other
 * shapes.
 *
 * Owns:    nothing; the input is borrowed.
 * Threads: any; pure.
 * Errors:  HL_EINVAL, HL_ECORRUPT, HL_ECONFLICT: the version is refuted; the text names tensor,
 *          range and ranks. HL_ENOMEM: nothing is known.
 * Units:   none.
 * Limits:  those of core/reshard/coverage.h.
 */
#ifndef HL_CORE_RESHARD_PROOF_H
#define HL_CORE_RESHARD_PROOF_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/arena.h"
#include "base/status.h"

#define HL_PROOF_WHY_MAX 512

struct hl_proof_shard {
    int pp;
    int tp;
    int ep;
    int rank; /* that wrote it; -1 = an import */
    const char *part;
    const char *layout; /* core/model/layout.h; NULL = not known */
    const char *crcs;   /* 8 hexadecimal digits per tensor, in the layout's order; NULL = not
                           known */
    bool joined;        /* made by hl_proof_join_pieces */
};

struct hl_proof_input {
    const char *skip;   /* why nothing is to be proved; NULL = prove everything */
    const char *config; /* for the version's own split: hl_split_config() */
    const struct hl_proof_shard *shards;
    size_t count;
    bool imported; /* the shards come from the import that wrote the config */
};

struct hl_proof {
    bool proved;                     /* everything is proved */
    bool state_proved;               /* its optimizer state is proved, or it has none */
    char unproved[HL_PROOF_WHY_MAX]; /* the first thing that is not proved, and why */
};

/* Joins the shards that have pieces, as if one data-parallel rank had saved the whole state; all
 * other shards stay unchanged. HL_EINVAL names a tensor that its pieces don't cover exactly once,
 * or whose shape differs from its parameter's. */
hl_status hl_proof_join_pieces(const struct hl_proof_shard *shards, size_t count,
                               struct hl_arena *arena, struct hl_proof_shard **out,
                               size_t *out_count) HL_CHECK;
hl_status hl_proof_check(const struct hl_proof_input *in, struct hl_proof *out) HL_CHECK;

#endif
