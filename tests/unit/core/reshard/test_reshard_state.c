/* Optimizer state of every layout becomes that of every other: the contents are a function of the
 * logical tensor, so what each layout must hold is made by slicing a model of state. */
#include "support/test.h"

#include <inttypes.h>

#include "core/reshard/reshard_state.h"
#include "support/reshard_models.h"

static const char *const prefixes[] = {"exp_avg.", "state.exp_avg_sq."};

/* Parts of state of a layout, prefix by prefix; the bytes are those of `moments`. */
struct saved {
    struct hl_reshard_state_part parts[1024];
    size_t count;
    struct hl_tensor tensors[8192];
    char names[8192][160];
    const uint8_t *data[8192];
    size_t tensor_count;
    bool pieces;
};

static void saved_make(struct saved *v, const struct hf_slices *s,
                       const struct hf_slices moments[2])
{
    v->count = v->tensor_count = 0;
    v->pieces = false;
    for (size_t i = 0; i < s->plan.shard_count; i++) {
        const struct hl_partition_shard *p = &s->plan.shards[i];
        v->parts[v->count++] =
            (struct hl_reshard_state_part){.pp = p->pp,
                                           .tp = p->tp,
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

static uint64_t elements_of(const struct hl_tensor *t)
{
    return t->size / hl_dtype_size(t->dtype);
}

/* Where the pieces of data rank `dp` of `n` begin: anywhere, some are empty. */
static uint64_t piece_edge(const struct hl_tensor *t, size_t salt, int dp, int n)
{
    uint64_t all = elements_of(t);
    if (dp == 0 || dp == n)
        return dp == 0 ? 0 : all;
    uint64_t even = all * (uint64_t)dp / (uint64_t)n;
    return even + (salt * 7 + (uint64_t)dp * 3) % 5 > all ? all : even + (salt * 7) % 3;
}

static void saved_add_piece(struct saved *v, const struct hl_tensor *t, const uint8_t *data,
                            uint64_t start, uint64_t end)
{
    size_t n = v->tensor_count++;
    uint64_t elem = hl_dtype_size(t->dtype);
    assert_true(n < HL_ARRAY_LEN(v->tensors));
    int len = snprintf(v->names[n], sizeof(v->names[n]), "%s.at%" PRIu64 "of", t->name, start);
    for (uint32_t d = 0; d < t->rank; d++)
        len += snprintf(v->names[n] + len, sizeof(v->names[n]) - (size_t)len, "%s%" PRIu64,
                        d > 0 ? "x" : "", t->shape[d]);
    v->tensors[n] = (struct hl_tensor){.name = v->names[n],
                                       .dtype = t->dtype,
                                       .rank = 1,
                                       .shape = {end - start},
                                       .size = (end - start) * elem};
    v->data[n] = data + start * elem;
}

/* The same state shared out among `n` data ranks. */
static struct saved *saved_share(const struct saved *from, int n)
{
    struct saved *v = malloc(sizeof(*v));
    static char parts[4][64][64];
    v->count = v->tensor_count = 0;
    v->pieces = true;
    for (size_t i = 0; i < from->count; i++)
        for (int dp = 0; dp < n; dp++) {
            struct hl_reshard_state_part *part = &v->parts[v->count++];
            assert_true(v->count < HL_ARRAY_LEN(v->parts) && i < HL_ARRAY_LEN(parts[0]));
            *part = from->parts[i];
            snprintf(parts[dp][i], sizeof(parts[dp][i]), "optim-dp%dof%d-%s", dp, n, part->of);
            part->part = dp > 0 ? parts[dp][i] : NULL;
            part->tensors = &v->tensors[v->tensor_count];
            for (size_t k = 0; k < from->parts[i].count; k++) {
                const struct hl_tensor *t = &from->parts[i].tensors[k];
                const uint8_t *data = from->data[t - from->tensors];
                uint64_t start = piece_edge(t, k, dp, n), end = piece_edge(t, k, dp + 1, n);
                if (start < end)
                    saved_add_piece(v, t, data, start, end);
            }
            part->count = (size_t)(&v->tensors[v->tensor_count] - part->tensors);
        }
    return v;
}

static size_t saved_find(const struct saved *v, int pp, int tp, const char *name)
{
    for (size_t i = 0; i < v->count; i++)
        for (size_t k = 0; k < v->parts[i].count; k++)
            if (v->parts[i].pp == pp && v->parts[i].tp == tp &&
                strcmp(v->parts[i].tensors[k].name, name) == 0)
                return (size_t)(&v->parts[i].tensors[k] - v->tensors);
    fail_msg("pp %d, tp %d should not hold %s", pp, tp, name);
    return 0;
}

struct layout {
    struct hf_slices s, moments[2];
    struct saved *saved;
};

/* Moments are models of their own: the same tensors, F32 and other bytes. */
static void layout_open(struct layout *l, const struct hf_model *m, struct hf_model *const mm[2],
                        struct hl_partition_options o)
{
    assert_int_equal(hf_slice(m, &o, &l->s), HL_OK);
    for (int k = 0; k < 2; k++)
        assert_int_equal(hf_slice(mm[k], &o, &l->moments[k]), HL_OK);
    l->saved = malloc(sizeof(*l->saved));
    saved_make(l->saved, &l->s, l->moments);
}

static void layout_close(struct layout *l)
{
    hf_slices_free(&l->s);
    hf_slices_free(&l->moments[0]);
    hf_slices_free(&l->moments[1]);
    free(l->saved);
}

static void same_tensor(const struct layout *a, const struct layout *b,
                        const struct hl_reshard_state *state, const struct hl_reshard_plan *plan,
                        size_t shard, uint32_t tensor)
{
    const struct hl_tensor *t = &state->b.tensors[tensor];
    const struct hl_partition_shard *s = &state->b.shards[shard];
    size_t want = saved_find(b->saved, s->pp, s->tp, t->name);
    struct hf_slices from = {.count = state->a.tensor_count, .plan = state->a};
    uint8_t *got = malloc(t->size + 1), *hits = calloc(t->size + 1, 1);
    from.list = calloc(from.count, sizeof(*from.list));
    for (size_t i = 0; i < from.count; i++) { /* the source's plan has its tensors in order */
        assert_string_equal(state->a.tensors[i].name, a->saved->names[i]);
        from.list[i].tensor = state->a.tensors[i];
        from.list[i].data = (uint8_t *)(uintptr_t)a->saved->data[i];
    }
    for (uint32_t i = plan->op_first[tensor]; i < plan->op_first[tensor + 1]; i++)
        rs_apply(&plan->ops[i], &from, got, hits, t->size);
    for (uint64_t i = 0; i < t->size; i++)
        assert_int_equal(hits[i], 1);
    assert_int_equal(t->dtype, HL_DTYPE_F32);
    assert_int_equal(t->size, b->saved->tensors[want].size);
    assert_memory_equal(got, b->saved->data[want], t->size);
    free(from.list);
    free(got);
    free(hits);
}

static void state_pair(const struct hf_model *m, const struct layout *a, const struct layout *b)
{
    struct hl_reshard_state state;
    struct hl_reshard_plan plan;
    if (hl_reshard_state(m->tensors, &a->s.plan, &b->s.plan, a->saved->parts, a->saved->count,
                         &state) != HL_OK ||
        hl_reshard_plan(state.logical, state.logical_count, &state.a, &state.b, &plan) != HL_OK)
        fail_msg("%s", hl_error_text());
    assert_int_equal(state.b.tensor_count, 2 * b->s.plan.tensor_count);
    for (size_t i = 0; i < state.b.shard_count; i++) {
        const struct hl_partition_shard *s = &state.b.shards[i];
        assert_memory_equal(s->part, "optim-", 6);
        for (uint32_t k = s->tensor_first; k < s->tensor_first + s->tensor_count; k++)
            same_tensor(a, b, &state, &plan, i, k);
        /* A change of pp alone: layers are aliases. */
        if (!a->saved->pieces && a->s.o.tp == b->s.o.tp && strncmp(s->part, "optim-layer", 11) == 0)
            assert_int_not_equal(plan.shards[i].alias, HL_RESHARD_NONE);
    }
    hl_reshard_fini(&plan);
    hl_reshard_state_fini(&state);
}

static const int grid[][3] = {{1, 1, 1}, {2, 1, 1}, {2, 2, 2}, {4, 2, 1}, {1, 4, 1}};

/* A model and its state at every layout of the grid. */
struct family {
    struct hf_model *m, *moments[2];
    struct layout list[HL_ARRAY_LEN(grid)];
};

static void family_open(struct family *f, const struct hf_fixture *fixture)
{
    struct hf_fixture moment = *fixture;
    moment.dtype = HL_DTYPE_F32;
    f->m = hf_model_make(fixture);
    for (int i = 0; i < 2; i++)
        f->moments[i] = hf_model_make(&moment);
    for (size_t i = 0; i < f->moments[1]->count; i++)
        for (uint64_t k = 0; k < f->moments[1]->tensors[i].size; k++)
            f->moments[1]->data[i][k] ^= 0x5A;
    for (size_t i = 0; i < HL_ARRAY_LEN(grid); i++)
        layout_open(&f->list[i], f->m, f->moments,
                    (struct hl_partition_options){.tp = grid[i][0],
                                                  .pp = grid[i][1],
                                                  .virtual_stages = grid[i][2],
                                                  .vocab_divisor = 8});
}

static void family_close(struct family *f)
{
    for (size_t i = 0; i < HL_ARRAY_LEN(grid); i++)
        layout_close(&f->list[i]);
    hf_model_free(f->moments[0]);
    hf_model_free(f->moments[1]);
    hf_model_free(f->m);
}

TEST(state_follows_its_parameters_for_every_pair)
{
    for (size_t n = 0; n < 3; n++) {
        struct family f;
        family_open(&f, &rs_models[n]);
        for (size_t i = 0; i < HL_ARRAY_LEN(grid); i++)
            for (size_t k = 0; k < HL_ARRAY_LEN(grid); k++)
                state_pair(f.m, &f.list[i], &f.list[k]);
        family_close(&f);
    }
}

TEST(pieces_of_state_are_put_together_for_every_layout)
{
    for (size_t n = 0; n < 3; n++) {
        struct family f;
        family_open(&f, &rs_models[n]);
        for (size_t i = 0; i < HL_ARRAY_LEN(grid); i++)
            for (int dp = 2; dp <= 3; dp++) {
                struct layout shared = f.list[i];
                shared.saved = saved_share(f.list[i].saved, dp);
                for (size_t k = 0; k < HL_ARRAY_LEN(grid); k++)
                    state_pair(f.m, &shared, &f.list[k]);
                free(shared.saved);
            }
        family_close(&f);
    }
}

TEST(a_piece_that_nobody_holds_is_missed)
{
    struct hf_model *m = hf_model_make(&rs_models[1]);
    struct hf_model *const mm[2] = {m, m};
    struct hl_reshard_state made;
    struct hl_reshard_plan plan;
    struct layout l;
    layout_open(&l, m, mm, (struct hl_partition_options){.tp = 1, .pp = 1, .vocab_divisor = 8});
    struct saved *shared = saved_share(l.saved, 2);
    shared->parts[1].count--;
    assert_int_equal(
        hl_reshard_state(m->tensors, &l.s.plan, &l.s.plan, shared->parts, shared->count, &made),
        HL_OK);
    assert_int_equal(hl_reshard_plan(made.logical, made.logical_count, &made.a, &made.b, &plan),
                     HL_EINVAL);
    assert_non_null(strstr(hl_error_text(), "exp_avg_sq."));
    hl_reshard_state_fini(&made);
    free(shared);
    layout_close(&l);
    hf_model_free(m);
}

static void refused(const struct hf_model *m, const struct layout *l, const char *why)
{
    struct hl_reshard_state state;
    assert_int_equal(hl_reshard_state(m->tensors, &l->s.plan, &l->s.plan, l->saved->parts,
                                      l->saved->count, &state),
                     HL_EINVAL);
    if (strstr(hl_error_text(), why) == NULL)
        fail_msg("'%s' does not say '%s'", hl_error_text(), why);
}

TEST(state_that_follows_no_parameter_is_refused_by_name)
{
    struct hf_model *m = hf_model_make(&rs_models[1]);
    struct hf_model *const mm[2] = {m, m};
    struct layout l;
    layout_open(&l, m, mm, (struct hl_partition_options){.tp = 2, .pp = 1, .vocab_divisor = 8});
    struct hl_tensor keep = l.saved->tensors[5];
    l.saved->tensors[5].name = "param_groups.step";
    refused(m, &l, "state 'param_groups.step' does not end with the name of a parameter");
    l.saved->tensors[5] = keep;
    l.saved->tensors[5].shape[0] += 1;
    refused(m, &l, "has shape");
    l.saved->tensors[5] = keep;
    l.saved->tensors[l.saved->tensor_count - 1].dtype = HL_DTYPE_F64;
    refused(m, &l, "is F64 here and F32 elsewhere");
    layout_close(&l);
    hf_model_free(m);
}
