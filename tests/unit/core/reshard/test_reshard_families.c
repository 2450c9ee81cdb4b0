/* Every family of the table at every layout of a grid is resharded to every other one, with its
 * optimizer state: the result equals a fresh import at the target. A model has the tensors that its
 * config asks for. */
#include "support/test.h"

#include "core/families/logical.h"
#include "core/families/tables.h"
#include "state_rig.h"

#define SIZES                                                                                      \
    "\"num_hidden_layers\": 4, \"hidden_size\": 8, \"num_attention_heads\": 4,"                    \
    "\"num_key_value_heads\": 2, \"head_dim\": 4, \"vocab_size\": 10,"                             \
    "\"max_position_embeddings\": 8, \"intermediate_size\": 16"
#define MLA                                                                                        \
    "\"qk_nope_head_dim\": 4, \"qk_rope_head_dim\": 2, \"v_head_dim\": 4, \"kv_lora_rank\": 5,"
#define MOE                                                                                        \
    "\"moe_intermediate_size\": 4, \"n_routed_experts\": 4, \"n_shared_experts\": 2,"              \
    "\"first_k_dense_replace\": 1,"
#define MODEL(type, more) "{\"model_type\": \"" type "\", " more SIZES "}"

static const char *const configs[] = {
    MODEL("llama", ""),
    MODEL("mistral", "\"tie_word_embeddings\": true,"),
    MODEL("mixtral", "\"num_local_experts\": 4,"),
    MODEL("qwen2", "\"tie_word_embeddings\": true,"),
    MODEL("qwen2_moe", "\"decoder_sparse_step\": 2, \"mlp_only_layers\": [3], \"num_experts\": 4,"
                       "\"moe_intermediate_size\": 4, \"shared_expert_intermediate_size\": 8,"),
    MODEL("qwen3", ""),
    MODEL("qwen3_moe", "\"num_experts\": 4, \"moe_intermediate_size\": 4,"),
    MODEL("gemma2", ""),
    MODEL("gemma3_text", ""),
    MODEL("phi3", ""),
    MODEL("deepseek_v2", MLA MOE),
    MODEL("deepseek_v3", MLA MOE "\"q_lora_rank\": 3, \"num_nextn_predict_layers\": 1,"),
    MODEL("glm4_moe",
          MOE "\"attention_bias\": true, \"use_qk_norm\": true, \"num_nextn_predict_layers\": 1,"),
    MODEL("gpt_oss", "\"num_local_experts\": 4,"),
    MODEL("gpt_neox", ""),
    "{\"model_type\": \"gpt2\", \"n_layer\": 4, \"n_embd\": 8, \"n_head\": 4, \"n_inner\": 16,"
    "\"vocab_size\": 10, \"n_positions\": 8}",
    "{\"model_type\": \"llama4\", \"text_config\": {\"interleave_moe_layer_step\": 2,"
    "\"intermediate_size_mlp\": 32, \"num_local_experts\": 4, " SIZES "}}",
};

/* tp, pp, virtual stages, ep, etp. A family without experts uses those with ep 1. */
static const int grid[][5] = {
    {1, 1, 1, 1, 0}, {2, 1, 1, 1, 0}, {4, 1, 1, 1, 0}, {1, 2, 1, 1, 0}, {2, 2, 1, 1, 0},
    {2, 2, 2, 1, 0}, {4, 2, 2, 1, 0}, {1, 4, 1, 1, 0}, {4, 4, 1, 1, 0}, {1, 1, 1, 2, 1},
    {1, 2, 1, 4, 1}, {2, 1, 1, 2, 2}, {2, 2, 2, 2, 1}, {4, 1, 1, 4, 2}, {4, 2, 1, 1, 1},
};

/* The tensors of a checkpoint of the family, with contents that depend on name and position;
 * `twist` makes other contents. */
static struct hf_model *make_model(const struct hl_hf_config *c, enum hl_dtype dtype, uint8_t twist)
{
    struct hl_logical l;
    struct hf_model *m = calloc(1, sizeof(*m));
    const struct hl_checkpoint has = {.mtp = true};
    assert_int_equal(hl_family_logical(c, &has, &l), HL_OK);
    assert_true(l.count > 4 && l.count < HF_TENSORS);
    for (size_t i = 0; i < l.count; i++) {
        struct hl_tensor *t = &m->tensors[i];
        *t = l.tensors[i];
        snprintf(m->names[i], sizeof(m->names[i]), "%s", t->name);
        t->name = m->names[i];
        t->dtype = dtype;
        t->offset = 0;
        assert_int_equal(hl_tensor_bytes(t, &t->size), HL_OK);
        m->data[i] = malloc(t->size + 1);
        hf_fill(t->name, m->data[i], t->size);
        for (uint64_t k = 0; k < t->size; k++)
            m->data[i][k] ^= twist;
    }
    m->count = l.count;
    hl_logical_fini(&l);
    return m;
}

/* Returns false if it is not a layout of the family. */
static bool slice(const struct hl_hf_config *c, const struct hf_model *m,
                  const struct hl_partition_options *o, struct hf_slices *out)
{
    struct hl_partition_plan plan;
    hl_status st = hl_partition_plan(c, m->tensors, m->count, o, &plan);
    if (st == HL_OK)
        hf_slice_by(m, o, plan, out);
    else if (st != HL_EINVAL)
        fail_msg("%s: %s", c->family->name, hl_error_text());
    return st == HL_OK;
}

static bool open_layout(const struct hl_hf_config *c, struct hf_model *const models[3],
                        const int g[5], struct layout *out)
{
    const struct hl_partition_options o = {.tp = g[0],
                                           .pp = g[1],
                                           .virtual_stages = g[2],
                                           .ep = g[3],
                                           .etp = g[4],
                                           .vocab_divisor = 3};
    if (!slice(c, models[0], &o, &out->s))
        return false;
    for (int k = 0; k < 2; k++)
        assert_true(slice(c, models[1 + k], &o, &out->moments[k]));
    out->saved = malloc(sizeof(*out->saved));
    saved_make(out->saved, &out->s, out->moments);
    return true;
}

static void every_pair(const struct hl_hf_config *c)
{
    struct hf_model *const models[] = {make_model(c, HL_DTYPE_BF16, 0),
                                       make_model(c, HL_DTYPE_F32, 0x11),
                                       make_model(c, HL_DTYPE_F32, 0x5A)};
    struct layout list[HL_ARRAY_LEN(grid)];
    size_t n = 0;
    for (size_t i = 0; i < HL_ARRAY_LEN(grid); i++)
        n += open_layout(c, models, grid[i], &list[n]);
    if (n < 6)
        fail_msg("%s has %zu layouts: %s", c->family->name, n, hl_error_text());
    for (size_t i = 0; i < n; i++)
        for (size_t k = 0; k < n; k++) {
            struct rs_layout a = {.s = list[i].s}, b = {.s = list[k].s};
            snprintf(a.name, sizeof(a.name), "%s %zu", c->family->name, i);
            snprintf(b.name, sizeof(b.name), "%zu", k);
            rs_check_pair(models[0], &a, &b);
            state_pair(models[0], &list[i], &list[k]);
        }
    for (size_t i = 0; i < n; i++)
        layout_close(&list[i]);
    for (size_t i = 0; i < HL_ARRAY_LEN(models); i++)
        hf_model_free(models[i]);
}

TEST(every_family_at_every_layout_becomes_what_an_import_at_any_other_makes)
{
    size_t families = 0, seen = 0;
    for (size_t i = 0; hl_families[i] != NULL; i++)
        families++;
    for (size_t i = 0; i < HL_ARRAY_LEN(configs); i++) {
        struct hl_hf_config c;
        assert_int_equal(hl_hf_config_parse(configs[i], strlen(configs[i]), "config.json", &c), 0);
        every_pair(&c);
        for (size_t k = 0; hl_families[k] != NULL; k++)
            seen |= (size_t)(hl_families[k] == c.family) << k;
        hl_hf_config_fini(&c);
    }
    assert_int_equal(seen, ((size_t)1 << families) - 1); /* none is left out */
}
