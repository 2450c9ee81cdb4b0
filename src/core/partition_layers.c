/* What stands in an embedding, a layer and a head shard. The rows of the fused QKV weight are
 * grouped per query group: the group's q heads, its k head, its v head. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "core/partition_private.h"

static int is_gpt2(const struct hl_planner *p)
{
    return p->config->layout == HL_LAYOUT_GPT2;
}

/* A whole vector on every rank. */
HL_CHECK static hl_status replicate(struct hl_planner *p, uint32_t source, const char *fmt,
                                    uint64_t local)
{
    char name[128];
    uint64_t n = p->sources[source].shape[0];
    struct hl_rows all = {.kind = HL_ROWS_PLAIN, .source = source, .count = n};
    if (local == UINT64_MAX)
        snprintf(name, sizeof(name), "%s", fmt);
    else
        snprintf(name, sizeof(name), "decoder.layers.%" PRIu64 ".%s", local, fmt);
    HL_TRY(hl_planner_tensor(p, source, 1, n, 0, "%s", name));
    return hl_planner_rows(p, &all, 1, 0, n, 1);
}

/* This rank's rows of a [vocab, hidden] matrix with padding. */
HL_CHECK static hl_status vocab_rows(struct hl_planner *p, uint32_t source, const char *name)
{
    const struct hl_hf_config *c = p->config;
    uint64_t padded = p->plan->padded_vocab, n = padded / (uint64_t)p->o->tp;
    struct hl_rows blocks[2] = {
        {.kind = HL_ROWS_PLAIN, .source = source, .count = c->vocab},
        {.kind = p->o->pad == HL_API_VOCAB_PADDING_ZERO ? HL_ROWS_ZERO : HL_ROWS_REPEAT,
         .source = source,
         .first = c->vocab - 1,
         .count = padded - c->vocab},
    };
    HL_TRY(hl_planner_tensor(p, source, 2, n, c->hidden, "%s", name));
    return hl_planner_rows(p, blocks, 2, n * (uint64_t)p->tp, n, c->hidden);
}

HL_CHECK static hl_status embedding_source(struct hl_planner *p, uint32_t *out)
{
    return hl_planner_source(p, 2, p->config->vocab, p->config->hidden, out, "%s%s", p->prefix,
                             is_gpt2(p) ? "wte.weight" : "embed_tokens.weight");
}

hl_status hl_planner_embedding(struct hl_planner *p)
{
    const struct hl_hf_config *c = p->config;
    uint32_t word, position;
    HL_TRY(embedding_source(p, &word));
    HL_TRY(vocab_rows(p, word, "embedding.word_embeddings.weight"));
    if (!is_gpt2(p))
        return HL_OK;
    HL_TRY(
        hl_planner_source(p, 2, c->max_positions, c->hidden, &position, "%swpe.weight", p->prefix));
    HL_TRY(hl_planner_tensor(p, position, 2, c->max_positions, c->hidden,
                             "embedding.position_embeddings.weight"));
    struct hl_rows all = {.kind = HL_ROWS_PLAIN, .source = position, .count = c->max_positions};
    return hl_planner_rows(p, &all, 1, 0, c->max_positions, c->hidden);
}

hl_status hl_planner_head(struct hl_planner *p)
{
    const struct hl_hf_config *c = p->config;
    const char *norm = is_gpt2(p) ? "ln_f" : "norm";
    uint32_t weight, bias, head;
    HL_TRY(hl_planner_source(p, 1, c->hidden, 0, &weight, "%s%s.weight", p->prefix, norm));
    HL_TRY(replicate(p, weight, "decoder.final_layernorm.weight", UINT64_MAX));
    if (is_gpt2(p)) {
        HL_TRY(hl_planner_source(p, 1, c->hidden, 0, &bias, "%s%s.bias", p->prefix, norm));
        HL_TRY(replicate(p, bias, "decoder.final_layernorm.bias", UINT64_MAX));
    }
    if (c->tied && p->o->pp == 1)
        return HL_OK;
    if (c->tied) {
        HL_TRY(embedding_source(p, &head));
    } else {
        HL_TRY(hl_planner_source(p, 2, c->vocab, c->hidden, &head, "lm_head.weight"));
    }
    return vocab_rows(p, head, "output_layer.weight");
}

/* ---- one layer ------------------------------------------------------------------------------- */

struct layer {
    uint64_t local;
    char from[64]; /* "model.layers.3." */
    int gpt2;
};

HL_CHECK static hl_status norm(struct hl_planner *p, const struct layer *l, const char *hf,
                               const char *local_name, const char *te_name)
{
    int te = p->o->naming == HL_API_LAYER_NAMING_TE;
    uint32_t source;
    char name[96];
    for (int bias = 0; bias <= l->gpt2; bias++) {
        const char *kind = bias ? "bias" : "weight";
        HL_TRY(
            hl_planner_source(p, 1, p->config->hidden, 0, &source, "%s%s.%s", l->from, hf, kind));
        snprintf(name, sizeof(name), te ? "%s.layer_norm_%s" : "%s.%s", te ? te_name : local_name,
                 kind);
        HL_TRY(replicate(p, source, name, l->local));
    }
    return HL_OK;
}

/* Blocks of fused rows in the order of Megatron; q, k, v begin at base[i] of source[i]. */
HL_CHECK static hl_status qkv_blocks(struct hl_planner *p, const uint32_t source[3],
                                     const uint64_t base[3], int transposed, struct hl_rows **out)
{
    const struct hl_hf_config *c = p->config;
    uint64_t dim = c->head_dim, q = c->heads / c->kv_heads * dim;
    struct hl_rows *blocks = malloc(3 * c->kv_heads * sizeof(*blocks));
    if (blocks == NULL)
        return hl_fail(HL_ENOMEM, "%" PRIu64 " query groups", c->kv_heads);
    for (uint64_t g = 0; g < c->kv_heads; g++) {
        for (int i = 0; i < 3; i++) {
            uint64_t n = i == 0 ? q : dim;
            blocks[3 * g + (uint64_t)i] =
                (struct hl_rows){.kind = transposed ? HL_ROWS_TRANSPOSED : HL_ROWS_PLAIN,
                                 .source = source[i],
                                 .first = base[i] + g * n,
                                 .count = n};
        }
    }
    *out = blocks;
    return HL_OK;
}

HL_CHECK static hl_status qkv_sources(struct hl_planner *p, const struct layer *l, int bias,
                                      uint32_t source[3], uint64_t base[3])
{
    static const char letters[] = "qkv";
    const struct hl_hf_config *c = p->config;
    const char *kind = bias ? "bias" : "weight";
    uint32_t rank = bias ? 1 : 2;
    if (l->gpt2) {
        HL_TRY(hl_planner_source(p, rank, bias ? 3 * c->hidden : c->hidden, 3 * c->hidden,
                                 &source[0], "%sattn.c_attn.%s", l->from, kind));
        for (int i = 0; i < 3; i++) {
            source[i] = source[0];
            base[i] = (uint64_t)i * c->hidden;
        }
        return HL_OK;
    }
    for (int i = 0; i < 3; i++) {
        uint64_t heads = i == 0 ? c->heads : c->kv_heads;
        HL_TRY(hl_planner_source(p, rank, heads * c->head_dim, c->hidden, &source[i],
                                 "%sself_attn.%c_proj.%s", l->from, letters[i], kind));
        base[i] = 0;
    }
    return HL_OK;
}

HL_CHECK static hl_status qkv(struct hl_planner *p, const struct layer *l, int bias)
{
    const struct hl_hf_config *c = p->config;
    uint32_t source[3];
    uint64_t base[3];
    uint64_t n = (c->heads + 2 * c->kv_heads) * c->head_dim / (uint64_t)p->o->tp;
    HL_AUTO(hl_freep) struct hl_rows *blocks = NULL;
    HL_TRY(qkv_sources(p, l, bias, source, base));
    HL_TRY(qkv_blocks(p, source, base, l->gpt2 && !bias, &blocks));
    HL_TRY(hl_planner_tensor(p, source[0], bias ? 1 : 2, n, c->hidden,
                             "decoder.layers.%" PRIu64 ".self_attention.linear_qkv.%s", l->local,
                             bias ? "bias" : "weight"));
    return hl_planner_rows(p, blocks, 3 * c->kv_heads, n * (uint64_t)p->tp, n,
                           bias ? 1 : c->hidden);
}

/* Row parallel: this rank's columns of the weight, the whole bias. */
HL_CHECK static hl_status row_parallel(struct hl_planner *p, const struct layer *l, const char *hf,
                                       const char *name, uint64_t in, int with_bias)
{
    uint64_t out = p->config->hidden, n = in / (uint64_t)p->o->tp;
    uint32_t weight, bias;
    char text[96];
    HL_TRY(hl_planner_source(p, 2, l->gpt2 ? in : out, l->gpt2 ? out : in, &weight, "%s%s.weight",
                             l->from, hf));
    HL_TRY(hl_planner_tensor(p, weight, 2, out, n, "decoder.layers.%" PRIu64 ".%s.weight", l->local,
                             name));
    HL_TRY(hl_planner_cols(p, weight, l->gpt2, out, in, n * (uint64_t)p->tp, n));
    if (!with_bias)
        return HL_OK;
    HL_TRY(hl_planner_source(p, 1, out, 0, &bias, "%s%s.bias", l->from, hf));
    snprintf(text, sizeof(text), "%s.bias", name);
    return replicate(p, bias, text, l->local);
}

/* fc1: this rank's rows of gate, then of up; GPT-2 has one matrix. */
HL_CHECK static hl_status fc1(struct hl_planner *p, const struct layer *l, int bias)
{
    static const char *const llama[] = {"mlp.gate_proj", "mlp.up_proj"};
    static const char *const gpt2[] = {"mlp.c_fc"};
    const struct hl_hf_config *c = p->config;
    const char *const *names = l->gpt2 ? gpt2 : llama;
    const char *kind = bias ? "bias" : "weight";
    uint64_t n = c->ffn / (uint64_t)p->o->tp, pieces = l->gpt2 ? 1 : 2;
    uint32_t source[2], rank = bias ? 1 : 2;
    int transposed = l->gpt2 && !bias;
    for (uint64_t i = 0; i < pieces; i++)
        HL_TRY(hl_planner_source(p, rank, transposed ? c->hidden : c->ffn,
                                 transposed ? c->ffn : c->hidden, &source[i], "%s%s.%s", l->from,
                                 names[i], kind));
    HL_TRY(hl_planner_tensor(p, source[0], rank, pieces * n, c->hidden,
                             "decoder.layers.%" PRIu64 ".mlp.linear_fc1.%s", l->local, kind));
    for (uint64_t i = 0; i < pieces; i++) {
        struct hl_rows all = {.kind = transposed ? HL_ROWS_TRANSPOSED : HL_ROWS_PLAIN,
                              .source = source[i],
                              .count = c->ffn};
        HL_TRY(hl_planner_rows(p, &all, 1, n * (uint64_t)p->tp, n, bias ? 1 : c->hidden));
    }
    return HL_OK;
}

hl_status hl_planner_layer(struct hl_planner *p, uint64_t global, uint64_t local)
{
    const struct hl_hf_config *c = p->config;
    struct layer l = {.local = local, .gpt2 = is_gpt2(p)};
    snprintf(l.from, sizeof(l.from), "%s%s.%" PRIu64 ".", p->prefix, l.gpt2 ? "h" : "layers",
             global);
    HL_TRY(norm(p, &l, l.gpt2 ? "ln_1" : "input_layernorm", "input_layernorm",
                "self_attention.linear_qkv"));
    HL_TRY(qkv(p, &l, 0));
    if (c->qkv_bias)
        HL_TRY(qkv(p, &l, 1));
    HL_TRY(row_parallel(p, &l, l.gpt2 ? "attn.c_proj" : "self_attn.o_proj",
                        "self_attention.linear_proj", c->heads * c->head_dim, c->proj_bias));
    HL_TRY(norm(p, &l, l.gpt2 ? "ln_2" : "post_attention_layernorm", "pre_mlp_layernorm",
                "mlp.linear_fc1"));
    HL_TRY(fc1(p, &l, 0));
    if (c->mlp_bias)
        HL_TRY(fc1(p, &l, 1));
    return row_parallel(p, &l, l.gpt2 ? "mlp.c_proj" : "mlp.down_proj", "mlp.linear_fc2", c->ffn,
                        c->mlp_bias);
}
