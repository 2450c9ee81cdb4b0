/* quantized_rig.h - a tiny model in every form in which quantized matrices are stored, sliced and
 * re-assembled.
 *
 * Owns:    models and slices are the caller's (hf_model_free, hf_slices_free).
 * Threads: one.
 * Errors:  fail the test.
 * Units:   elements; rows and columns.
 * Limits:  those of hf_fixture.h.
 */
#ifndef HL_TESTS_QUANTIZED_RIG_H
#define HL_TESTS_QUANTIZED_RIG_H

#include "support/test.h"

#include "unit/core/families/family_oracle.h"

#include <inttypes.h>

#include "core/families/logical.h"
#include "core/reshard/whole.h"
#include "support/reshard_models.h"

#define H      16
#define NH     4
#define NG     2
#define DIM    4
#define F      16
#define LAYERS 2

struct subject {
    const char *name, *config; /* quantization_config */
    enum hl_dtype dtype;
    const char *weight; /* ending */
    uint64_t per_byte;
    const char *scale;
    enum hl_dtype scale_dtype;
    uint32_t scale_rank;
    uint64_t block[2];      /* 0 = all of that dimension */
    const char *numbers[3]; /* endings of further scales, one number each */
    uint32_t number_rank;
};

static const struct subject subjects[] = {
    {"blocks",
     "{\"quant_method\": \"fp8\", \"weight_block_size\": [4, 4]}",
     HL_DTYPE_F8_E4M3,
     "weight",
     1,
     "weight_scale_inv",
     HL_DTYPE_F32,
     2,
     {4, 4},
     {NULL},
     0},
    {"blocks of compressed-tensors",
     "{\"quant_method\": \"compressed-tensors\", \"config_groups\": {\"group_0\": {\"weights\": "
     "{\"block_structure\": [2, 4]}}}}",
     HL_DTYPE_F8_E5M2,
     "weight",
     1,
     "weight_scale",
     HL_DTYPE_F8_E8M0,
     2,
     {2, 4},
     {NULL},
     0},
    {"blocks that end inside heads and gates",
     "{\"quant_method\": \"fp8\", \"weight_block_size\": [6, 4]}",
     HL_DTYPE_F8_E4M3,
     "weight",
     1,
     "weight_scale_inv",
     HL_DTYPE_F32,
     2,
     {6, 4},
     {NULL},
     0},
    {"rows",
     "{\"quant_method\": \"compressed-tensors\"}",
     HL_DTYPE_F8_E4M3,
     "weight",
     1,
     "weight_scale",
     HL_DTYPE_BF16,
     2,
     {1, 0},
     {NULL},
     0},
    {"rows as a vector",
     "{\"quant_method\": \"fbgemm_fp8\"}",
     HL_DTYPE_F8_E4M3,
     "weight",
     1,
     "weight_scale",
     HL_DTYPE_F32,
     1,
     {1, 0},
     {"input_scale", "input_scale_ub"},
     1},
    {"one number",
     "{\"quant_method\": \"modelopt\"}",
     HL_DTYPE_F8_E4M3,
     "weight",
     1,
     "weight_scale",
     HL_DTYPE_F32,
     0,
     {0, 0},
     {"input_scale"},
     0},
    {"one number in a list",
     "{\"quant_method\": \"fp8\"}",
     HL_DTYPE_F8_E4M3,
     "weight",
     1,
     "weight_scale",
     HL_DTYPE_F32,
     1,
     {0, 0},
     {"input_scale"},
     1},
    {"NVFP4",
     "{\"quant_method\": \"modelopt\"}",
     HL_DTYPE_U8,
     "weight",
     2,
     "weight_scale",
     HL_DTYPE_F8_E4M3,
     2,
     {1, 4},
     {"weight_scale_2", "input_scale"},
     0},
    {"NVFP4 of compressed-tensors",
     "{\"quant_method\": \"compressed-tensors\"}",
     HL_DTYPE_U8,
     "weight_packed",
     2,
     "weight_scale",
     HL_DTYPE_F8_E4M3,
     2,
     {1, 4},
     {"weight_global_scale", "input_global_scale"},
     1},
};

static const char *const projections[] = {
    "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj",
    "mlp.gate_proj",    "mlp.up_proj",      "mlp.down_proj"};
static const uint64_t sizes[][2] = {{NH * DIM, H}, {NG * DIM, H}, {NG * DIM, H}, {H, NH *DIM},
                                    {F, H},        {F, H},        {H, F}};

static inline void add(struct hf_model *m, const char *name, enum hl_dtype dtype, uint32_t rank,
                       const uint64_t *shape)
{
    size_t i = m->count++;
    struct hl_tensor *t = &m->tensors[i];
    snprintf(m->names[i], sizeof(m->names[i]), "%s", name);
    *t = (struct hl_tensor){.name = m->names[i], .dtype = dtype, .rank = rank};
    if (rank > 0) /* a scalar has no shape to copy */
        memcpy(t->shape, shape, rank * sizeof(*shape));
    assert_int_equal(hl_tensor_bytes(t, &t->size), HL_OK);
    m->data[i] = malloc(t->size + 8);
    hf_fill(name, m->data[i], t->size);
}

static inline void add_projection(struct hf_model *m, const struct subject *s, const char *at,
                                  size_t k)
{
    uint64_t rows = sizes[k][0], cols = sizes[k][1];
    add(m, w_text("%s.%s", at, s->weight), s->dtype, 2, (uint64_t[]){rows, cols / s->per_byte});
    uint64_t shape[2] = {s->block[0] > 0 ? (rows + s->block[0] - 1) / s->block[0] : 1,
                         s->block[1] > 0 ? (cols + s->block[1] - 1) / s->block[1] : 1};
    add(m, w_text("%s.%s", at, s->scale), s->scale_dtype, s->scale_rank, shape);
    for (size_t i = 0; i < 3 && s->numbers[i] != NULL; i++)
        add(m, w_text("%s.%s", at, s->numbers[i]), HL_DTYPE_F32, s->number_rank, (uint64_t[]){1});
}

static inline struct hf_model *model_of(const struct subject *s)
{
    struct hf_model *m = calloc(1, sizeof(*m));
    add(m, "model.embed_tokens.weight", HL_DTYPE_BF16, 2, (uint64_t[]){10, H});
    for (int l = 0; l < LAYERS; l++) {
        add(m, w_text("model.layers.%d.input_layernorm.weight", l), HL_DTYPE_BF16, 1,
            (uint64_t[]){H});
        add(m, w_text("model.layers.%d.post_attention_layernorm.weight", l), HL_DTYPE_BF16, 1,
            (uint64_t[]){H});
        for (size_t k = 0; k < HL_ARRAY_LEN(projections); k++)
            add_projection(m, s, w_text("model.layers.%d.%s", l, projections[k]), k);
    }
    add(m, "model.norm.weight", HL_DTYPE_BF16, 1, (uint64_t[]){H});
    add(m, "lm_head.weight", HL_DTYPE_BF16, 2, (uint64_t[]){10, H});
    return m;
}

static inline void parse_config(const char *quantization, struct hl_hf_config *out)
{
    const char *text = w_text("{\"model_type\": \"llama\", \"num_hidden_layers\": 2,"
                              "\"hidden_size\": 16, \"num_attention_heads\": 4,");
    char *all = oracle_alloc(1024);
    snprintf(all, 1024,
             "%s \"num_key_value_heads\": 2, \"intermediate_size\": 16, \"vocab_size\": 10,"
             "\"quantization_config\": %s}",
             text, quantization);
    if (hl_hf_config_parse(all, strlen(all), "config.json", out) != HL_OK)
        fail_msg("%s", hl_error_text());
}

static inline hl_status slice(const struct subject *s, const struct hf_model *m,
                              const struct hl_partition_options *o, struct hf_slices *out)
{
    struct hl_hf_config c;
    struct hl_partition_plan plan;
    parse_config(s->config, &c);
    hl_status st = hl_partition_plan(&c, m->tensors, m->count, o, &plan);
    if (st == HL_OK)
        hf_slice_by(m, o, plan, out);
    hl_hf_config_fini(&c);
    return st;
}

/* ---- pairs ----------------------------------------------------------------------------------- */

/* A stored tensor: of the checkpoint or of a rank. */
struct held {
    const struct hl_tensor *t;
    const uint8_t *data;
};

static inline struct held held_of(const struct hf_model *m, const struct hf_slices *s, int tp,
                                  const char *name)
{
    for (size_t i = 0; m != NULL && i < m->count; i++)
        if (strcmp(m->names[i], name) == 0)
            return (struct held){&m->tensors[i], m->data[i]};
    for (size_t i = 0; s != NULL && i < s->count; i++)
        if (s->list[i].tp == tp && strcmp(s->list[i].name, name) == 0)
            return (struct held){&s->list[i].tensor, s->list[i].data};
    fail_msg("no tensor %s at tp %d", name, tp);
    return (struct held){0};
}

static inline hl_status find_slice(void *arg, const struct hl_partition_shard *shard,
                                   const char *name, const struct hl_tensor **out)
{
    struct hf_slices *s = arg;
    for (size_t i = 0; i < s->count; i++)
        if (s->list[i].tp == shard->tp && s->list[i].pp == shard->pp &&
            strcmp(s->list[i].part, shard->part) == 0 && strcmp(s->list[i].name, name) == 0) {
            *out = &s->list[i].tensor;
            return HL_OK;
        }
    return hl_fail(HL_ENOENT, "no '%s'", name);
}

static inline void check_whole(const char *title, const struct hl_hf_config *c,
                               const struct hf_model *m, struct hf_slices *got)
{
    struct hl_whole w;
    char *doc;
    size_t seen = 0;
    assert_int_equal(hl_partition_config(c, &got->o, &got->plan, &doc), HL_OK);
    if (hl_whole_plan(doc, find_slice, got, &w) != HL_OK)
        fail_msg("%s: %s", title, hl_error_text());
    for (size_t i = 0; i < w.whole.tensor_count; i++, seen++) {
        struct held want = held_of(m, NULL, 0, w.whole.tensors[i].name);
        const struct hl_tensor *t = &w.whole.tensors[i];
        assert_int_equal(t->dtype, want.t->dtype);
        assert_int_equal(t->rank, want.t->rank);
        assert_memory_equal(t->shape, want.t->shape, t->rank * sizeof(*t->shape));
        uint8_t *out = malloc(t->size + 1), *hits = calloc(t->size + 1, 1);
        for (uint32_t k = w.plan.op_first[i]; k < w.plan.op_first[i + 1]; k++)
            rs_apply(&w.plan.ops[k], got, out, hits, t->size);
        if (memcmp(out, want.data, t->size) != 0)
            fail_msg("%s: %s differs", title, t->name);
        free(out);
        free(hits);
    }
    assert_int_equal(seen, m->count);
    free(doc);
    hl_whole_fini(&w);
}

#endif
