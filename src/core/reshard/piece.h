/* core/reshard/piece.h - pieces of optimizer state: ranges of a parameter's elements that one
 * data-parallel rank holds, as Megatron's distributed optimizer shares state out.
 *
 * A piece is a vector. Its name says where in the state it begins and what shape all of it has:
 * "exp_avg.decoder.layers.0.mlp.linear_fc1.weight.at128of64x32" are elements 128 and on of 64 x 32.
 * So header, catalogue and manifest know the range, as they know name and shape.
 *
 * Owns:    nothing; names are borrowed, results are the arena's.
 * Threads: any; pure.
 * Errors:  HL_EINVAL names the tensor, the elements and the ranks.
 * Units:   elements, of the tensor in row-major order.
 * Limits:  those of core/safetensors/safetensors.h.
 */
#ifndef HL_CORE_RESHARD_PIECE_H
#define HL_CORE_RESHARD_PIECE_H

#include <stdbool.h>

#include "base/arena.h"
#include "core/safetensors/safetensors.h"

struct hl_piece {
    bool whole;         /* the tensor is no piece */
    size_t name_len;    /* of the state's name, which the tensor's begins with */
    const char *suffix; /* the rest of it */
    uint32_t rank;      /* of all the state, and its shape */
    uint64_t shape[HL_TENSOR_RANK_MAX];
    uint64_t start, end;
};

/* Length of the name without what makes it a piece's; all of it where it is none. */
size_t hl_piece_name_len(const char *name, size_t len);
/* A tensor that is no piece is all elements of itself. */
hl_status hl_piece_read(const struct hl_tensor *t, struct hl_piece *out) HL_CHECK;

/* What one rank holds of the state of a part. */
struct hl_piece_share {
    int writer; /* global rank; -1 = not known */
    const struct hl_tensor *tensors;
    const uint32_t *crcs; /* per tensor; NULL = not known */
    size_t count;
};

/* All state of a part out of its shares: whole tensors, sorted by name, with the CRCs of their
 * bytes. Each element is in one share, once. *crcs is NULL where a share has none. */
hl_status hl_pieces_join(const struct hl_piece_share *shares, size_t count, struct hl_arena *arena,
                         struct hl_tensor **out, uint32_t **crcs, size_t *out_count) HL_CHECK;

#endif
