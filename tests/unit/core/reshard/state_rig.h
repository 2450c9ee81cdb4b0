/* unit/core/reshard/state_rig.h - optimizer state of a tiny model at one layout, and the expected
 * state at another.
 *
 * Owns:    struct layout owns its slices and what it has saved (layout_close).
 * Threads: one.
 * Errors:  fail the test.
 * Units:   bytes.
 * Limits:  those of struct saved.
 */
#ifndef HL_TESTS_STATE_RIG_H
#define HL_TESTS_STATE_RIG_H

#include "core/reshard/reshard_state.h"
#include "support/reshard_models.h"

static const char *const prefixes[] = {"exp_avg.", "state.exp_avg_sq."};

/* Parts of a layout's state, prefix by prefix; the bytes are those of `moments`. */
struct saved {
    struct hl_reshard_state_part parts[1024];
    size_t count;
    struct hl_tensor tensors[8192];
    char names[8192][160];
    const uint8_t *data[8192];
    size_t tensor_count;
    bool pieces;
};

static inline void saved_make(struct saved *v, const struct hf_slices *s,
                              const struct hf_slices moments[2])
{
    v->count = v->tensor_count = 0;
    v->pieces = false;
    for (size_t i = 0; i < s->plan.shard_count; i++) {
        const struct hl_partition_shard *p = &s->plan.shards[i];
        v->parts[v->count++] =
            (struct hl_reshard_state_part){.pp = p->pp,
                                           .tp = p->tp,
                                           .ep = p->ep,
                                           .of = p->part,
                                           .tensors = &v->tensors[v->tensor_count],
                                           .count = 2 * (size_t)p->tensor_count};
        for (int k = 0; k < 2; k++)
            for (uint32_t t = p->tensor_first; t < p->tensor_first + p->tensor_count; t++) {
                size_t n = v->tensor_count++;
                assert_true(n < HL_ARRAY_LEN(v->tensors));
                snprintf(v->names[n], sizeof(v->names[n]), "%s%s", prefixes[k], s->list[t].name);
                v->tensors[n] = moments[k].list[t].tensor;
                v->tensors[n].name = v->names[n];
                v->data[n] = moments[k].list[t].data;
            }
    }
}

static inline size_t saved_find(const struct saved *v, const struct hl_partition_shard *at,
                                const char *name)
{
    for (size_t i = 0; i < v->count; i++) {
        const struct hl_reshard_state_part *p = &v->parts[i];
        if (p->pp != at->pp || p->tp != at->tp || p->ep != at->ep)
            continue;
        for (size_t k = 0; k < p->count; k++)
            if (strcmp(p->tensors[k].name, name) == 0)
                return (size_t)(&p->tensors[k] - v->tensors);
    }
    fail_msg("pp %d, tp %d, ep %d should not hold %s", at->pp, at->tp, at->ep, name);
    return 0;
}

/* Moments are models of their own: the same tensors, F32 and other bytes. */
struct layout {
    struct hf_slices s, moments[2];
    struct saved *saved;
};

static inline void layout_close(struct layout *l)
{
    hf_slices_free(&l->s);
    hf_slices_free(&l->moments[0]);
    hf_slices_free(&l->moments[1]);
    free(l->saved);
}

static inline void same_tensor(const struct hf_slices *from, const struct layout *b,
                               const struct hl_reshard_state *state,
                               const struct hl_reshard_plan *plan, size_t shard, uint32_t tensor)
{
    const struct hl_tensor *t = &state->b.tensors[tensor];
    const struct hl_partition_shard *s = &state->b.shards[shard];
    size_t want = saved_find(b->saved, s, t->name);
    uint8_t *got = malloc(t->size + 1), *hits = calloc(t->size + 1, 1);
    for (uint32_t i = plan->op_first[tensor]; i < plan->op_first[tensor + 1]; i++)
        rs_apply(&plan->ops[i], from, got, hits, t->size);
    for (uint64_t i = 0; i < t->size; i++)
        assert_int_equal(hits[i], 1);
    assert_int_equal(t->dtype, HL_DTYPE_F32);
    assert_int_equal(t->size, b->saved->tensors[want].size);
    assert_memory_equal(got, b->saved->data[want], t->size);
    free(got);
    free(hits);
}

/* What the source has saved, in the form of its plan; free(list). */
static inline struct hf_slices slices_of(const struct layout *a,
                                         const struct hl_reshard_state *state)
{
    struct hf_slices from = {.count = state->a.tensor_count, .plan = state->a};
    from.list = calloc(from.count, sizeof(*from.list));
    for (size_t i = 0; i < from.count; i++) {
        assert_string_equal(state->a.tensors[i].name, a->saved->names[i]);
        from.list[i].tensor = state->a.tensors[i];
        from.list[i].data = (uint8_t *)(uintptr_t)a->saved->data[i];
    }
    return from;
}

static inline void state_pair(const struct hf_model *m, const struct layout *a,
                              const struct layout *b)
{
    struct hl_reshard_state state;
    struct hl_reshard_plan plan;
    if (hl_reshard_state(m->tensors, &a->s.plan, &b->s.plan, a->saved->parts, a->saved->count,
                         &state) != HL_OK ||
        hl_reshard_plan(state.logical, state.logical_count, &state.a, &state.b, &plan) != HL_OK)
        fail_msg("%s", hl_error_text());
    assert_int_equal(state.b.tensor_count, 2 * b->s.plan.tensor_count);
    struct hf_slices from = slices_of(a, &state);
    for (size_t i = 0; i < state.b.shard_count; i++) {
        const struct hl_partition_shard *s = &state.b.shards[i];
        assert_memory_equal(s->part, "optim-", 6);
        for (uint32_t k = s->tensor_first; k < s->tensor_first + s->tensor_count; k++)
            same_tensor(&from, b, &state, &plan, i, k);
        /* Only pp changes: layers are aliases. */
        if (!a->saved->pieces && a->s.o.tp == b->s.o.tp && strncmp(s->part, "optim-layer", 11) == 0)
            assert_int_not_equal(plan.shards[i].alias, HL_RESHARD_NONE);
    }
    free(from.list);
    hl_reshard_fini(&plan);
    hl_reshard_state_fini(&state);
}

#endif
