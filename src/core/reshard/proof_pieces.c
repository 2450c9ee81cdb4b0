/* Shares of a part's state belong together if they have the same place (pp, tp, ep, part), however
 * many there are. */
#include "core/reshard/proof.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/model/layout.h"
#include "core/model/part.h"
#include "core/reshard/piece.h"

#define CRC_DIGITS 8

/* A shard that holds parameters or state. */
struct member {
    const struct hl_proof_shard *shard;
    struct hl_part part;
    size_t index; /* index in the input */
};

struct joiner {
    struct hl_arena *arena;
    struct member *members; /* by place, parameters before state */
    size_t member_count;
    struct hl_proof_shard *out;
    size_t out_count;
};

/* State sorts to the place of its parameters. */
static int place_order(const struct member *x, const struct member *y)
{
    const struct hl_proof_shard *a = x->shard, *b = y->shard;
    return hl_part_at_order(&(struct hl_part_at){a->pp, a->tp, a->ep, x->part.of},
                            &(struct hl_part_at){b->pp, b->tp, b->ep, y->part.of});
}

static int member_order(const void *a, const void *b)
{
    const struct member *x = a, *y = b;
    int c = place_order(x, y);
    if (c != 0)
        return c;
    if (x->part.kind != y->part.kind)
        return x->part.kind == HL_PART_MODEL ? -1 : 1;
    if (x->part.dp != y->part.dp)
        return x->part.dp < y->part.dp ? -1 : 1;
    return (x->index > y->index) - (x->index < y->index);
}

/* ---- the parameters -------------------------------------------------------------------------- */

/* The tensors of one shard, sorted by name. */
struct listed {
    struct hl_tensor *tensors;
    size_t count;
};

static int name_order(const void *key, const void *element)
{
    return strcmp(key, ((const struct hl_tensor *)element)->name);
}

static const struct hl_tensor *find_parameter(const struct listed *parameters, const char *state)
{
    for (const char *at = state; at != NULL;) {
        const struct hl_tensor *t = bsearch(at, parameters->tensors, parameters->count,
                                            sizeof(*parameters->tensors), name_order);
        if (t != NULL)
            return t;
        at = strchr(at, '.');
        at = at != NULL ? at + 1 : NULL;
    }
    return NULL;
}

HL_CHECK static hl_status check_shapes(const struct listed *parameters, const struct listed *state)
{
    char has[192], want[192];
    for (size_t i = 0; i < state->count; i++) {
        const struct hl_tensor *t = &state->tensors[i], *p = find_parameter(parameters, t->name);
        if (p == NULL)
            return hl_fail(HL_EINVAL, "optimizer tensor '%s' belongs to no parameter of its part",
                           t->name);
        if (p->rank != t->rank || memcmp(p->shape, t->shape, p->rank * sizeof(*p->shape)) != 0)
            return hl_fail(HL_EINVAL,
                           "optimizer tensor '%s' is in pieces of shape %s, and its parameter has "
                           "shape %s",
                           t->name, hl_tensor_shape_text(t, has, sizeof(has)),
                           hl_tensor_shape_text(p, want, sizeof(want)));
    }
    return HL_OK;
}

/* ---- one place ------------------------------------------------------------------------------- */

HL_CHECK static hl_status read_share(struct joiner *j, const struct hl_proof_shard *s,
                                     struct hl_piece_share *out)
{
    struct hl_tensor *tensors;
    struct hl_piece_share share = {.writer = s->rank};
    HL_TRY(hl_layout_read(s->layout, j->arena, &tensors, &share.count));
    share.tensors = tensors;
    if (s->crcs != NULL && strlen(s->crcs) == CRC_DIGITS * share.count) {
        uint32_t *crcs = hl_arena_array(j->arena, share.count + 1, sizeof(*crcs));
        for (size_t i = 0; crcs != NULL && i < share.count; i++)
            crcs[i] = hl_layout_crc(s->crcs, i);
        share.crcs = crcs;
    }
    *out = share;
    return HL_OK;
}

static bool is_piece(const struct hl_tensor *t)
{
    return t->name[hl_piece_name_len(t->name, strlen(t->name))] != '\0';
}

/* *out: the state is in pieces. Then all of it must be, so that a reader can tell from any of the
 * shares. */
HL_CHECK static hl_status find_pieces(const struct hl_piece_share *shares, size_t count, bool *out)
{
    const char *whole = NULL;
    int writer = 0;
    *out = false;
    for (size_t i = 0; i < count; i++)
        for (size_t k = 0; k < shares[i].count; k++) {
            const struct hl_tensor *t = &shares[i].tensors[k];
            *out = *out || is_piece(t);
            if (!is_piece(t)) {
                whole = t->name;
                writer = shares[i].writer;
            }
        }
    if (*out && whole != NULL)
        return hl_fail(HL_EINVAL,
                       "optimizer tensor '%s' of rank %d is whole, and other state of its part is "
                       "in pieces; pass it as a piece too",
                       whole, writer);
    return HL_OK;
}

/* Replaces the members from `first` on, whose state was joined. */
HL_CHECK static hl_status add_joined(struct joiner *j, const struct member *first,
                                     const struct listed *state, const uint32_t *crcs)
{
    HL_AUTO(hl_freep) char *layout = NULL;
    HL_AUTO(hl_freep) char *text = NULL;
    struct hl_proof_shard *to = &j->out[j->out_count++];
    HL_TRY(hl_layout_text(state->tensors, state->count, &layout));
    if (crcs != NULL)
        HL_TRY(hl_layout_crcs(state->tensors, crcs, state->count, &text));
    *to = *first->shard;
    to->joined = true;
    to->part = hl_arena_printf(j->arena, "optim-%s", first->part.of);
    to->layout = hl_arena_strdup(j->arena, layout);
    to->crcs = hl_arena_strdup(j->arena, text);
    if (hl_arena_failed(j->arena))
        return hl_fail(HL_ENOMEM, "out of memory for the optimizer state of %s", first->part.of);
    return HL_OK;
}

/* Joins `n` members with state of one place. `parameters` is the shard with its parameters, or
 * NULL. */
HL_CHECK static hl_status join_state(struct joiner *j, const struct hl_proof_shard *parameters,
                                     const struct member *m, size_t n)
{
    struct hl_piece_share *shares = hl_arena_array(j->arena, n + 1, sizeof(*shares));
    struct listed state, model;
    uint32_t *crcs;
    bool known = true, pieces = false;
    if (shares == NULL)
        return hl_fail(HL_ENOMEM, "out of memory for %zu shares of optimizer state", n);
    for (size_t i = 0; i < n; i++)
        known = known && m[i].shard->layout != NULL;
    for (size_t i = 0; known && i < n; i++)
        HL_TRY(read_share(j, m[i].shard, &shares[i]));
    if (known)
        HL_TRY(find_pieces(shares, n, &pieces));
    if (!pieces) {
        for (size_t i = 0; i < n; i++)
            j->out[j->out_count++] = *m[i].shard;
        return HL_OK;
    }
    HL_TRY(hl_pieces_join(shares, n, j->arena, &state.tensors, &crcs, &state.count));
    if (parameters != NULL && parameters->layout != NULL) {
        HL_TRY(hl_layout_read(parameters->layout, j->arena, &model.tensors, &model.count));
        HL_TRY(check_shapes(&model, &state));
    }
    return add_joined(j, m, &state, crcs);
}

HL_CHECK static hl_status join_place(struct joiner *j, const struct member *m, size_t n)
{
    char place[HL_PART_PLACE_MAX];
    const struct hl_proof_shard *parameters = NULL, *s = m->shard;
    size_t models = 0;
    for (; models < n && m[models].part.kind == HL_PART_MODEL; models++) {
        parameters = m[models].shard;
        j->out[j->out_count++] = *parameters;
    }
    hl_status st = models < n ? join_state(j, parameters, m + models, n - models) : HL_OK;
    if (st == HL_EINVAL)
        return hl_fail_prefix(st, "%s: ", hl_part_place(s->pp, s->tp, s->ep, m->part.of, place));
    return st;
}

hl_status hl_proof_join_pieces(const struct hl_proof_shard *shards, size_t count,
                               struct hl_arena *arena, struct hl_proof_shard **out,
                               size_t *out_count)
{
    struct joiner j = {.arena = arena};
    j.members = hl_arena_array(arena, count + 1, sizeof(*j.members));
    j.out = hl_arena_array(arena, count + 1, sizeof(*j.out));
    if (j.members == NULL || j.out == NULL)
        return hl_fail(HL_ENOMEM, "out of memory for %zu shards", count);
    for (size_t i = 0; i < count; i++) {
        struct hl_part part = hl_part_of(shards[i].part);
        if (part.kind == HL_PART_EXTRA)
            j.out[j.out_count++] = shards[i];
        else
            j.members[j.member_count++] = (struct member){&shards[i], part, i};
    }
    qsort(j.members, j.member_count, sizeof(*j.members), member_order);
    for (size_t i = 0, end; i < j.member_count; i = end) {
        for (end = i + 1; end < j.member_count && place_order(&j.members[i], &j.members[end]) == 0;)
            end++;
        HL_TRY(join_place(&j, &j.members[i], end - i));
    }
    *out = j.out;
    *out_count = j.out_count;
    return HL_OK;
}
