/* Optimizer state of every layout is resharded to every other one. The contents are a function of
 * the logical tensor, so the expected state of each layout is made by slicing a model of state. */
#include "support/test.h"

#include <inttypes.h>

#include "state_rig.h"

static uint64_t elements_of(const struct hl_tensor *t)
{
    return t->size / hl_dtype_size(t->dtype);
}

/* Where the pieces of data rank `dp` of `n` begin: anywhere, and some are empty. */
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

/* The same state divided among `n` data ranks. */
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
