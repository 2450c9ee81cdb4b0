/* support/hf_slices.h - slices of a fixture model in memory, and their re-assembly.
 *
 * The plan's operations are executed element by element. The re-assembly knows Megatron's rules,
 * not the plan: it looks tensors up by name and computes for every Hugging Face element where it
 * must be.
 *
 * Owns: hf_slices owns its bytes.  Threads: one at a time.  Errors: status of the planner.
 * Units: bytes.  Limits: those of hf_fixture.h.
 */
#ifndef HL_TESTS_HF_SLICES_H
#define HL_TESTS_HF_SLICES_H

#include "core/model/partition.h"
#include "support/hf_fixture.h"

struct hf_slice {
    struct hl_tensor tensor;
    char name[160];
    int pp, tp;
    char part[HL_PARTITION_PART_MAX];
    int seen; /* set by the re-assembly */
    uint8_t *data;
};

struct hf_slices {
    struct hf_slice *list;
    size_t count;
    struct hl_partition_options o;
    struct hl_partition_plan plan; /* names of list[] are copies */
};

/* One operation, element by element; returns the bytes written. */
static inline uint64_t hf_copy(const struct hl_copy_op *op, const struct hf_model *m, uint8_t *dst)
{
    const uint8_t *src = op->kind == HL_COPY_ZERO ? NULL : m->data[op->source];
    uint64_t size = op->kind == HL_COPY_ZERO ? 0 : m->tensors[op->source].size, n = 0;
    if (op->kind == HL_COPY_ZERO) {
        memset(dst, 0, op->run);
        return op->run;
    }
    if (op->kind == HL_COPY_RUNS) {
        for (uint64_t i = 0; i < op->rows; i++, n += op->run) {
            hf_require(op->src + i * op->stride + op->run <= size, "a run outside its source");
            memcpy(dst + n, src + op->src + i * op->stride, op->run);
        }
        return n;
    }
    for (uint64_t i = 0; i < op->rows; i++)
        for (uint64_t j = 0; j < op->cols; j++, n += op->elem) {
            uint64_t at = op->src + j * op->stride + i * op->step;
            hf_require(at + op->elem <= size, "an element outside its source");
            memcpy(dst + n, src + at, op->elem);
        }
    return n;
}

static inline void hf_slices_free(struct hf_slices *s)
{
    for (size_t i = 0; i < s->count; i++)
        free(s->list[i].data);
    free(s->list);
    hl_partition_fini(&s->plan);
}

static inline hl_status hf_plan(const struct hf_model *m, const struct hl_partition_options *o,
                                struct hl_partition_plan *plan)
{
    struct hl_hf_config config;
    char *text = hf_config_text(m->f);
    hl_status st = hl_hf_config_parse(text, strlen(text), "config.json", &config);
    free(text);
    if (st != HL_OK)
        return st;
    st = hl_partition_plan(&config, m->tensors, m->count, o, plan);
    hl_hf_config_fini(&config);
    return st;
}

/* Takes ownership of the plan. */
static inline void hf_slice_by(const struct hf_model *m, const struct hl_partition_options *o,
                               struct hl_partition_plan plan, struct hf_slices *s)
{
    *s = (struct hf_slices){.o = *o, .plan = plan, .count = plan.tensor_count};
    s->list = calloc(s->count, sizeof(*s->list));
    for (size_t k = 0; k < plan.shard_count; k++) {
        const struct hl_partition_shard *shard = &plan.shards[k];
        uint64_t offset = 0;
        for (uint32_t i = shard->tensor_first; i < shard->tensor_first + shard->tensor_count; i++) {
            struct hf_slice *out = &s->list[i];
            out->tensor = plan.tensors[i];
            out->pp = shard->pp;
            out->tp = shard->tp;
            snprintf(out->part, sizeof(out->part), "%s", shard->part);
            snprintf(out->name, sizeof(out->name), "%s", plan.tensors[i].name);
            out->data = malloc(out->tensor.size + 1);
            hf_require(out->tensor.offset == offset, "tensors of a shard follow each other");
            offset += out->tensor.size;
            uint64_t at = 0;
            for (uint32_t q = plan.op_first[i]; q < plan.op_first[i + 1]; q++) {
                hf_require(plan.ops[q].dst == at, "operations fill a tensor in order");
                hf_require(at + hl_copy_bytes(&plan.ops[q]) <= out->tensor.size, "overrun");
                at += hf_copy(&plan.ops[q], m, out->data + at);
            }
            hf_require(at == out->tensor.size, "operations fill the whole tensor");
        }
        hf_require(offset == shard->data_size, "size of a shard");
    }
}

static inline hl_status hf_slice(const struct hf_model *m, const struct hl_partition_options *o,
                                 struct hf_slices *s)
{
    struct hl_partition_plan plan;
    HL_TRY(hf_plan(m, o, &plan));
    hf_slice_by(m, o, plan, s);
    return HL_OK;
}

static inline struct hf_slice *hf_slices_find(const struct hf_slices *s, int pp, int tp,
                                              const char *name)
{
    for (size_t i = 0; i < s->count; i++)
        if (s->list[i].pp == pp && s->list[i].tp == tp && strcmp(s->list[i].name, name) == 0)
            return &s->list[i];
    return NULL;
}

/* ---- re-assembly ----------------------------------------------------------------------------- */

struct hf_check {
    const struct hf_model *m;
    struct hf_slices *s;
    int pp; /* stage and prefix of the tensor being checked */
    char prefix[64];
    uint64_t elem;
};

/* How the full Megatron tensor is split over tp. */
enum hf_cut { HF_WHOLE, HF_ROWS, HF_COLS, HF_PAIRS };

/* Element [row, col] of the full rows x cols tensor (cols 1 for a vector); NULL if it is
 * missing. */
static inline const uint8_t *hf_element(struct hf_check *c, const char *name, enum hf_cut cut,
                                        uint64_t rows, uint64_t cols, uint64_t row, uint64_t col)
{
    char full[224];
    uint64_t T = (uint64_t)c->s->o.tp, t = 0, n = rows, w = cols;
    if (cut == HF_ROWS) {
        n = rows / T;
        t = row / n;
        row %= n;
    } else if (cut == HF_COLS) {
        w = cols / T;
        t = col / w;
        col %= w;
    } else if (cut == HF_PAIRS) { /* [gate; up]: each half is split, and the pieces are paired */
        uint64_t half = rows / 2, piece = half / T, up = row / half;
        t = row % half / piece;
        row = up * piece + row % half % piece;
        n = rows / T;
    }
    snprintf(full, sizeof(full), "%s%s", c->prefix, name);
    for (uint64_t k = 0; k < T; k++) {
        struct hf_slice *s = hf_slices_find(c->s, c->pp, (int)k, full);
        if (s == NULL || s->tensor.size != n * w * c->elem)
            return NULL;
        s->seen = 1;
    }
    return hf_slices_find(c->s, c->pp, (int)t, full)->data + (row * w + col) * c->elem;
}

/* The source element [row, col] in Megatron's orientation. */
static inline const uint8_t *hf_source(struct hf_check *c, const char *name, int transposed,
                                       uint64_t row, uint64_t col)
{
    int i = hf_find(c->m, name);
    hf_require(i >= 0, name);
    const struct hl_tensor *t = &c->m->tensors[i];
    uint64_t at = t->rank == 1 ? row
                  : transposed ? col * t->shape[1] + row
                               : row * t->shape[1] + col;
    return c->m->data[i] + at * c->elem;
}

/* Source rows [from, from + rows) are at rows [to, ...) of the full tensor. */
static inline int hf_same(struct hf_check *c, const char *hf, int transposed, uint64_t from,
                          const char *name, enum hf_cut cut, uint64_t full_rows, uint64_t cols,
                          uint64_t to, uint64_t rows)
{
    for (uint64_t r = 0; r < rows; r++)
        for (uint64_t k = 0; k < cols; k++) {
            const uint8_t *got = hf_element(c, name, cut, full_rows, cols, to + r, k);
            if (got == NULL ||
                memcmp(got, hf_source(c, hf, transposed, from + r, k), c->elem) != 0) {
                fprintf(stderr, "%s%s [%d,%d] is not %s\n", c->prefix, name, (int)(to + r), (int)k,
                        hf);
                return 0;
            }
        }
    return 1;
}

static inline int hf_check_vocab(struct hf_check *c, const char *hf, const char *name)
{
    const struct hf_fixture *f = c->m->f;
    uint64_t V = f->vocab, unit = (uint64_t)(c->s->o.vocab_divisor ? c->s->o.vocab_divisor : 128);
    uint64_t padded = V;
    while (padded % (unit * (uint64_t)c->s->o.tp) != 0)
        padded++;
    static const uint8_t zero[8];
    if (!hf_same(c, hf, 0, 0, name, HF_ROWS, padded, f->hidden, 0, V))
        return 0;
    for (uint64_t r = V; r < padded; r++)
        for (uint64_t k = 0; k < f->hidden; k++) {
            const uint8_t *want =
                c->s->o.pad == HL_API_VOCAB_PADDING_ZERO ? zero : hf_source(c, hf, 0, V - 1, k);
            const uint8_t *got = hf_element(c, name, HF_ROWS, padded, f->hidden, r, k);
            if (got == NULL || memcmp(got, want, c->elem) != 0)
                return 0;
        }
    return 1;
}

/* Checks q, k and v of every group, weight or bias. */
static inline int hf_check_qkv(struct hf_check *c, const char *from, int bias)
{
    const struct hf_fixture *f = c->m->f;
    int gpt2 = strcmp(f->arch, "gpt2") == 0, ok = 1;
    uint64_t D = hf_head_dim(f), NG = gpt2 ? f->heads : f->kv_heads, per = f->heads / NG;
    uint64_t all = (f->heads + 2 * NG) * D, cols = bias ? 1 : f->hidden, to = 0;
    char hf[128], name[96];
    const char *kind = bias ? "bias" : "weight";
    snprintf(name, sizeof(name), "self_attention.linear_qkv.%s", kind);
    for (uint64_t g = 0; g < NG && ok; g++)
        for (int i = 0; i < 3 && ok; i++) {
            uint64_t n = (i == 0 ? per : 1) * D;
            uint64_t row = g * n + (gpt2 ? (uint64_t)i * f->hidden : 0);
            if (gpt2)
                snprintf(hf, sizeof(hf), "%sattn.c_attn.%s", from, kind);
            else
                snprintf(hf, sizeof(hf), "%sself_attn.%c_proj.%s", from, "qkv"[i], kind);
            ok = hf_same(c, hf, gpt2, row, name, HF_ROWS, all, cols, to, n);
            to += n;
        }
    return ok;
}

struct hf_row {
    const char *hf;
    const char *local;
    const char *te; /* NULL = as in the local spec */
    enum hf_cut cut;
    uint64_t rows, cols, to, full;
    int transposed;
};

static inline int hf_check_rows(struct hf_check *c, const char *from, const struct hf_row *rows,
                                size_t n)
{
    char hf[160];
    for (size_t i = 0; i < n; i++) {
        const struct hf_row *r = &rows[i];
        snprintf(hf, sizeof(hf), "%s%s", from, r->hf);
        const char *name =
            c->s->o.naming == HL_API_LAYER_NAMING_TE && r->te != NULL ? r->te : r->local;
        if (!hf_same(c, hf, r->transposed, 0, name, r->cut, r->full ? r->full : r->rows, r->cols,
                     r->to, r->rows))
            return 0;
    }
    return 1;
}

static inline int hf_check_layer(struct hf_check *c, uint64_t l)
{
    const struct hf_fixture *f = c->m->f;
    uint64_t H = f->hidden, F = f->ffn, Q = f->heads * hf_head_dim(f);
    char from[64];
    const struct hf_row llama[] = {
        {"input_layernorm.weight", "input_layernorm.weight",
         "self_attention.linear_qkv.layer_norm_weight", HF_WHOLE, H, 1, 0, 0, 0},
        {"post_attention_layernorm.weight", "pre_mlp_layernorm.weight",
         "mlp.linear_fc1.layer_norm_weight", HF_WHOLE, H, 1, 0, 0, 0},
        {"self_attn.o_proj.weight", "self_attention.linear_proj.weight", NULL, HF_COLS, H, Q, 0, 0,
         0},
        {"mlp.gate_proj.weight", "mlp.linear_fc1.weight", NULL, HF_PAIRS, F, H, 0, 2 * F, 0},
        {"mlp.up_proj.weight", "mlp.linear_fc1.weight", NULL, HF_PAIRS, F, H, F, 2 * F, 0},
        {"mlp.down_proj.weight", "mlp.linear_fc2.weight", NULL, HF_COLS, H, F, 0, 0, 0},
    };
    const struct hf_row gpt2[] = {
        {"ln_1.weight", "input_layernorm.weight", "self_attention.linear_qkv.layer_norm_weight",
         HF_WHOLE, H, 1, 0, 0, 0},
        {"ln_1.bias", "input_layernorm.bias", "self_attention.linear_qkv.layer_norm_bias", HF_WHOLE,
         H, 1, 0, 0, 0},
        {"ln_2.weight", "pre_mlp_layernorm.weight", "mlp.linear_fc1.layer_norm_weight", HF_WHOLE, H,
         1, 0, 0, 0},
        {"ln_2.bias", "pre_mlp_layernorm.bias", "mlp.linear_fc1.layer_norm_bias", HF_WHOLE, H, 1, 0,
         0, 0},
        {"attn.c_proj.weight", "self_attention.linear_proj.weight", NULL, HF_COLS, H, H, 0, 0, 1},
        {"attn.c_proj.bias", "self_attention.linear_proj.bias", NULL, HF_WHOLE, H, 1, 0, 0, 0},
        {"mlp.c_fc.weight", "mlp.linear_fc1.weight", NULL, HF_ROWS, F, H, 0, 0, 1},
        {"mlp.c_fc.bias", "mlp.linear_fc1.bias", NULL, HF_ROWS, F, 1, 0, 0, 0},
        {"mlp.c_proj.weight", "mlp.linear_fc2.weight", NULL, HF_COLS, H, F, 0, 0, 1},
        {"mlp.c_proj.bias", "mlp.linear_fc2.bias", NULL, HF_WHOLE, H, 1, 0, 0, 0},
    };
    if (strcmp(f->arch, "gpt2") == 0) {
        snprintf(from, sizeof(from), "%sh.%d.", hf_prefix(f), (int)l);
        return hf_check_rows(c, from, gpt2, HL_ARRAY_LEN(gpt2)) && hf_check_qkv(c, from, 0) &&
               hf_check_qkv(c, from, 1);
    }
    snprintf(from, sizeof(from), "%slayers.%d.", hf_prefix(f), (int)l);
    return hf_check_rows(c, from, llama, HL_ARRAY_LEN(llama)) && hf_check_qkv(c, from, 0) &&
           (strcmp(f->arch, "qwen2") != 0 || hf_check_qkv(c, from, 1));
}

/* Stage, chunk and local number of layer l for even stages, computed by dealing out layers one by
 * one. */
static inline void hf_place(const struct hf_slices *s, uint64_t layers, uint64_t l, int *pp,
                            int *chunk, uint64_t *local)
{
    uint64_t P = (uint64_t)s->o.pp, V = s->o.virtual_stages > 1 ? (uint64_t)s->o.virtual_stages : 1;
    uint64_t at = 0, per = layers / P / V;
    for (uint64_t v = 0; v < V; v++)
        for (uint64_t p = 0; p < P; p++)
            for (uint64_t i = 0; i < per; i++, at++)
                if (at == l) {
                    *pp = (int)p;
                    *chunk = (int)v;
                    *local = i;
                }
}

/* Checks that every element of the model is where Megatron wants it, and that the slices hold
 * nothing else. Even stages only. */
static inline int hf_reassemble(const struct hf_model *m, struct hf_slices *s)
{
    const struct hf_fixture *f = m->f;
    int gpt2 = strcmp(f->arch, "gpt2") == 0, virtual = s->o.virtual_stages > 1, ok;
    struct hf_check c = {.m = m, .s = s, .elem = hl_dtype_size(f->dtype)};
    char embedding[64], name[64];
    snprintf(embedding, sizeof(embedding), "%s%s", hf_prefix(f),
             gpt2 ? "wte.weight" : "embed_tokens.weight");
    snprintf(c.prefix, sizeof(c.prefix), "%s", virtual ? "model0." : "");
    ok = hf_check_vocab(&c, embedding, "embedding.word_embeddings.weight");
    snprintf(name, sizeof(name), "%swpe.weight", hf_prefix(f));
    ok = ok && (!gpt2 || hf_same(&c, name, 0, 0, "embedding.position_embeddings.weight", HF_WHOLE,
                                 f->positions, f->hidden, 0, f->positions));
    for (uint64_t l = 0; l < f->layers && ok; l++) {
        int chunk = 0;
        uint64_t local = 0;
        hf_place(s, f->layers, l, &c.pp, &chunk, &local);
        if (virtual)
            snprintf(c.prefix, sizeof(c.prefix), "model%d.decoder.layers.%d.", chunk, (int)local);
        else
            snprintf(c.prefix, sizeof(c.prefix), "decoder.layers.%d.", (int)local);
        ok = hf_check_layer(&c, l);
    }
    c.pp = s->o.pp - 1;
    c.prefix[0] = '\0';
    if (virtual)
        snprintf(c.prefix, sizeof(c.prefix), "model%d.", s->o.virtual_stages - 1);
    for (int bias = 0; bias <= gpt2 && ok; bias++) {
        char mcore[64];
        snprintf(name, sizeof(name), "%s%s.%s", hf_prefix(f), gpt2 ? "ln_f" : "norm",
                 bias ? "bias" : "weight");
        snprintf(mcore, sizeof(mcore), "decoder.final_layernorm.%s", bias ? "bias" : "weight");
        ok = hf_same(&c, name, 0, 0, mcore, HF_WHOLE, f->hidden, 1, 0, f->hidden);
    }
    if (ok && (!f->tied || s->o.pp > 1))
        ok = hf_check_vocab(&c, f->tied ? embedding : "lm_head.weight", "output_layer.weight");
    for (size_t i = 0; i < s->count && ok; i++)
        if (!s->list[i].seen) {
            fprintf(stderr, "%s should not be there\n", s->list[i].name);
            ok = 0;
        }
    return ok;
}

#endif
