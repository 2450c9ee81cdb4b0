/* core/reshard/piece.h - pieces of optimizer state: the ranges of a parameter's elements that
 * Megatron's distributed optimizer assigns to one data-parallel rank.
 *
 * A piece is a vector. Its name says where in the state it begins and what shape the whole state
 * has: "exp_avg.decoder.layers.0.mlp.linear_fc1.weight.at128of64x32" are elements from 128 on of a
 * 64 x 32 tensor. So header, catalogue and manifest record the range along with name and shape.
 *
 * Owns:    nothing; names are borrowed, results are in the arena.
 * Threads: any; pure.
 * Errors:  HL_EINVAL names the tensor, the elements and the ranks.
 * Units:   elements of the tensor, in row-major order.
 * Limits:  those of core/safetensors/safetensors.h.
 */
#ifndef HL_CORE_RESHARD_PIECE_H
#define HL_CORE_RESHARD_PIECE_H

#include <stdbool.h>

#include "base/arena.h"
#include "core/safetensors/safetensors.h"

struct hl_piece {
    bool whole;         /* the tensor is not a piece but complete */
    size_t name_len;    /* length of the state's name, with which the tensor's name begins */
    const char *suffix; /* the rest of it */
    uint32_t rank;      /* of the whole state, like its shape */
    uint64_t shape[HL_TENSOR_RANK_MAX];
    uint64_t start, end;
};

/* Length of the name without a piece's suffix; the full length if it is not a piece. */
size_t hl_piece_name_len(const char *name, size_t len);
/* Parses a tensor's name; a tensor that is not a piece covers all of its own elements. */
hl_status hl_piece_read(const struct hl_tensor *t, struct hl_piece *out) HL_CHECK;

/* The share of a part's state that one rank holds. */
struct hl_piece_share {
    int writer; /* global rank; -1 = not known */
    const struct hl_tensor *tensors;
    const uint32_t *crcs; /* per tensor; NULL = not known */
    size_t count;
};

/* Joins the shares of a part's state: returns whole tensors, sorted by name, with the CRCs of their
 * bytes. Each element must be in exactly one share. *crcs is NULL if a share has none. */
hl_status hl_pieces_join(const struct hl_piece_share *shares, size_t count, struct hl_arena *arena,
                         struct hl_tensor **out, uint32_t **crcs, size_t *out_count) HL_CHECK;

#endif
