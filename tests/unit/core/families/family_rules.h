/* core/families/family_rules.h - sources and rules that families share, for test_family_slices.c.
 *
 * Owns:    nothing.  Threads: one at a time.  Errors: fail the test.  Units: elements.
 * Limits:  one model at a time: `layer` and `body` are global.
 */
#ifndef HL_TESTS_FAMILY_RULES_H
#define HL_TESTS_FAMILY_RULES_H

#include "unit/core/families/family_oracle.h"

#define L  4
#define H  8
#define NH 4
#define NG 2
#define D  4
#define F  16
#define FE 4
#define FS 8
#define E  4
#define V  10

#define SIZES                                                                                      \
    "\"num_hidden_layers\": 4, \"hidden_size\": 8, \"num_attention_heads\": 4,"                    \
    "\"num_key_value_heads\": 2, \"head_dim\": 4, \"vocab_size\": 10,"                             \
    "\"max_position_embeddings\": 32, \"intermediate_size\": 16"
#define SRC(...) mx_source(w, hf(w_text(__VA_ARGS__)))

static const struct hl_partition_options layouts[] = {
    {.tp = 1, .pp = 1, .vocab_divisor = 1},
    {.tp = 2, .pp = 2, .vocab_divisor = 1, .naming = HL_API_LAYER_NAMING_TE},
    {.tp = 4, .pp = 1, .vocab_divisor = 4},
    {.tp = 2, .pp = 1, .ep = 2, .vocab_divisor = 1},
    {.tp = 1, .pp = 4, .ep = 4, .etp = 2, .naming = HL_API_LAYER_NAMING_TE, .vocab_divisor = 3},
    {.tp = 4, .pp = 2, .ep = 2, .etp = 1, .vocab_divisor = 1},
};

static uint64_t layer; /* the layer being built or checked */
static const char *body;

static const char *hf(const char *name)
{
    return w_text("%slayers.%d.%s", body, (int)layer, name);
}

static void add(struct world *w, const char *name, uint64_t d0, uint64_t d1)
{
    w_add(w, hf(name), d1 > 0 ? 2 : 1, d0, d1, 0);
}

/* ---- sources and rules that families share ----------------------------------------------------
 */

static void add_ends(struct world *w, const char *embedding, const char *norm, const char *head)
{
    w_add(w, w_text("%s%s", body, embedding), 2, V, H, 0);
    w_add(w, w_text("%s%s", body, norm), 1, H, 0, 0);
    if (head != NULL)
        w_add(w, head, 2, V, H, 0);
}

static struct mx padded(const struct world *w, struct mx m)
{
    uint64_t unit = (uint64_t)(w->o.vocab_divisor * w->o.tp);
    while (m.r % unit != 0)
        m = mx_join(m, mx_rows(m, m.r - 1, 1, 1));
    return m;
}

/* head NULL = tied. */
static void check_ends(struct world *w, const char *embedding, const char *norm, const char *head)
{
    struct mx words = mx_source(w, w_text("%s%s", body, embedding));
    w->at[0] = '\0';
    w->pp = 0;
    snprintf(w->part, sizeof(w->part), "%s", "embedding");
    by_rows(w, "embedding.word_embeddings.weight", padded(w, words));
    w->pp = w->o.pp - 1;
    snprintf(w->part, sizeof(w->part), "%s", "head");
    whole(w, "decoder.final_layernorm.weight", NULL, mx_source(w, w_text("%s%s", body, norm)));
    if (head != NULL || w->o.pp > 1)
        by_rows(w, "output_layer.weight", padded(w, head != NULL ? mx_source(w, head) : words));
}

static void add_qkvo(struct world *w)
{
    add(w, "input_layernorm.weight", H, 0);
    add(w, "self_attn.q_proj.weight", NH * D, H);
    add(w, "self_attn.k_proj.weight", NG * D, H);
    add(w, "self_attn.v_proj.weight", NG * D, H);
    add(w, "self_attn.o_proj.weight", H, NH * D);
}

static void add_qkv_bias(struct world *w)
{
    add(w, "self_attn.q_proj.bias", NH * D, 0);
    add(w, "self_attn.k_proj.bias", NG * D, 0);
    add(w, "self_attn.v_proj.bias", NG * D, 0);
}

static void check_input_norm(struct world *w)
{
    whole(w, "input_layernorm.weight", "self_attention.linear_qkv.layer_norm_weight",
          SRC("input_layernorm.weight"));
}

static void check_qkv(struct world *w, const char *kind)
{
    by_rows(w, w_text("self_attention.linear_qkv.%s", kind),
            mx_qkv(SRC("self_attn.q_proj.%s", kind), SRC("self_attn.k_proj.%s", kind),
                   SRC("self_attn.v_proj.%s", kind), NH, NG, D));
}

static void check_qkvo(struct world *w)
{
    check_input_norm(w);
    check_qkv(w, "weight");
    by_cols(w, "self_attention.linear_proj.weight", SRC("self_attn.o_proj.weight"));
}

static void add_qk_norm(struct world *w)
{
    add(w, "self_attn.q_norm.weight", D, 0);
    add(w, "self_attn.k_norm.weight", D, 0);
}

static void check_qk_norm(struct world *w)
{
    whole(w, "self_attention.q_layernorm.weight", NULL, SRC("self_attn.q_norm.weight"));
    whole(w, "self_attention.k_layernorm.weight", NULL, SRC("self_attn.k_norm.weight"));
}

static void add_gated(struct world *w, const char *from, uint64_t ffn)
{
    add(w, w_text("%s.gate_proj.weight", from), ffn, H);
    add(w, w_text("%s.up_proj.weight", from), ffn, H);
    add(w, w_text("%s.down_proj.weight", from), H, ffn);
}

static void check_gated(struct world *w, const char *from, const char *to)
{
    by_pairs(w, w_text("%s.linear_fc1.weight", to), SRC("%s.gate_proj.weight", from),
             SRC("%s.up_proj.weight", from));
    by_cols(w, w_text("%s.linear_fc2.weight", to), SRC("%s.down_proj.weight", from));
}

static void check_mlp_norm(struct world *w, const char *from, int moe)
{
    whole(w, "pre_mlp_layernorm.weight", moe ? NULL : "mlp.linear_fc1.layer_norm_weight",
          SRC("%s", from));
}

static void add_experts(struct world *w, const char *from, const char *gate, const char *up,
                        const char *down, uint64_t ffn)
{
    for (int e = 0; e < E; e++) {
        add(w, w_text("%s.%d.%s.weight", from, e, gate), ffn, H);
        add(w, w_text("%s.%d.%s.weight", from, e, up), ffn, H);
        add(w, w_text("%s.%d.%s.weight", from, e, down), H, ffn);
    }
}

static void check_experts(struct world *w, const char *from, const char *gate, const char *up,
                          const char *down)
{
    w->experts = E;
    for (uint64_t e = 0; e < E; e++) {
        expert(w, e, layer, "linear_fc1", "weight", SRC("%s.%d.%s.weight", from, (int)e, gate),
               SRC("%s.%d.%s.weight", from, (int)e, up), 0);
        expert(w, e, layer, "linear_fc2", "weight", SRC("%s.%d.%s.weight", from, (int)e, down),
               (struct mx){0}, 0);
    }
}

#endif
