/* core/reshard/proof.h - the proof of a version by what its shards say of themselves: layouts and
 * the CRC of every tensor.
 *
 * The model's config is planned again (core/reshard/whole.h), and core/reshard/coverage.h compares
 * what the ranks hold with it: every element of every logical tensor is held once, and replicas
 * have equal CRCs. Optimizer state that follows parameters (core/reshard/reshard_state.h) is held
 * to the same; besides, the tensor ranks of a stage have state of the same names. Pieces of state
 * (core/reshard/piece.h) are put together first: the data-parallel ranks have each element of it,
 * once.
 *
 * Of an unsliced model (core/model/partition.h) every tensor is held once, and there are as many
 * elements as its config says; an import has exactly those, a save may have been of others.
 *
 * What can't be proved is no failure: another model without a Hugging Face config, shards without a
 * layout or without CRCs, tensors that the config does not ask for, state of other shapes.
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
    bool joined;        /* by hl_proof_join_pieces */
};

struct hl_proof_input {
    const char *skip;   /* why nothing shall be proved; NULL = all */
    const char *config; /* of the version's own split: hl_split_config() */
    const struct hl_proof_shard *shards;
    size_t count;
    bool imported; /* by the import that wrote the config */
};

struct hl_proof {
    bool proved;                     /* all of it */
    bool state_proved;               /* its optimizer state, or it has none */
    char unproved[HL_PROOF_WHY_MAX]; /* what is not, and why; of several the first */
};

/* The shards with those of pieces put together, as if one data-parallel rank had saved the whole
 * state; all else stays as it is. HL_EINVAL names the tensor that its pieces don't cover once, or
 * whose shape is not its parameter's. */
hl_status hl_proof_join_pieces(const struct hl_proof_shard *shards, size_t count,
                               struct hl_arena *arena, struct hl_proof_shard **out,
                               size_t *out_count) HL_CHECK;
hl_status hl_proof_check(const struct hl_proof_input *in, struct hl_proof *out) HL_CHECK;

#endif
