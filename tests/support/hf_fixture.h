/* support/hf_fixture.h - tiny Hugging Face checkpoints for tests, in memory or as a directory.
 *
 * Owns:    hf_model owns its tensors (hf_model_free).
 * Threads: one at a time.
 * Errors:  aborts: a test that can't make its input has no result.
 * Units:   bytes; the contents are a function of tensor name and byte position.
 * Limits:  HF_TENSORS tensors.
 */
#ifndef HL_TESTS_HF_FIXTURE_H
#define HL_TESTS_HF_FIXTURE_H

#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "core/safetensors/safetensors.h"

#define HF_TENSORS 512

struct hf_fixture {
    const char *arch; /* "llama", "mistral", "qwen2", "gpt2" */
    uint64_t layers, hidden, heads, kv_heads, ffn, vocab;
    uint64_t head_dim; /* 0 = hidden / heads, not written to config.json */
    uint64_t positions;
    int tied;
    enum hl_dtype dtype;
    int files;        /* 0 or 1 = model.safetensors, more = sharded with an index */
    int bare;         /* names without the prefix "transformer." or "model." */
    int buffers;      /* masks and rotary frequencies, which must be dropped */
    int head_anyway;  /* lm_head in spite of tying: 1 = equal, 2 = different */
    const char *skip; /* leave this tensor out */
};

struct hf_model {
    struct hl_tensor tensors[HF_TENSORS];
    char names[HF_TENSORS][96];
    uint8_t *data[HF_TENSORS];
    size_t count;
    const struct hf_fixture *f;
};

static inline void hf_require(int ok, const char *what)
{
    if (!ok) {
        fprintf(stderr, "hf_fixture: %s: %s\n", what, hl_error_text());
        abort();
    }
}

/* Contents that depend only on the name and the position. */
static inline void hf_fill(const char *name, uint8_t *data, uint64_t size)
{
    uint64_t x = 0x9E3779B97F4A7C15ull;
    for (const char *s = name; *s != '\0'; s++)
        x = (x ^ (uint64_t)(unsigned char)*s) * 0x100000001B3ull;
    for (uint64_t i = 0; i < size; i++) {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        data[i] = (uint8_t)(x >> 32);
    }
}

__attribute__((format(printf, 6, 7))) static inline void hf_add(struct hf_model *m,
                                                                enum hl_dtype dtype, uint32_t rank,
                                                                uint64_t d0, uint64_t d1,
                                                                const char *fmt, ...)
{
    hf_require(m->count < HF_TENSORS, "too many tensors");
    size_t i = m->count;
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(m->names[i], sizeof(m->names[i]), fmt, ap);
    va_end(ap);
    if (m->f->skip != NULL && strcmp(m->f->skip, m->names[i]) == 0)
        return;
    m->count++;
    m->tensors[i] =
        (struct hl_tensor){.name = m->names[i], .dtype = dtype, .rank = rank, .shape = {d0, d1}};
    hf_require(hl_tensor_bytes(&m->tensors[i], &m->tensors[i].size) == HL_OK, m->names[i]);
    m->data[i] = malloc(m->tensors[i].size + 1);
    hf_fill(m->names[i], m->data[i], m->tensors[i].size);
}

static inline uint64_t hf_head_dim(const struct hf_fixture *f)
{
    return f->head_dim != 0 ? f->head_dim : f->hidden / f->heads;
}

static inline int hf_find(const struct hf_model *m, const char *name)
{
    for (size_t i = 0; i < m->count; i++)
        if (strcmp(m->names[i], name) == 0)
            return (int)i;
    return -1;
}

static inline void hf_add_llama_layer(struct hf_model *m, const char *p, uint64_t l)
{
    const struct hf_fixture *f = m->f;
    uint64_t H = f->hidden, Q = f->heads * hf_head_dim(f), K = f->kv_heads * hf_head_dim(f);
    enum hl_dtype d = f->dtype;
    int n = (int)l;
    hf_add(m, d, 1, H, 0, "%slayers.%d.input_layernorm.weight", p, n);
    hf_add(m, d, 2, Q, H, "%slayers.%d.self_attn.q_proj.weight", p, n);
    hf_add(m, d, 2, K, H, "%slayers.%d.self_attn.k_proj.weight", p, n);
    hf_add(m, d, 2, K, H, "%slayers.%d.self_attn.v_proj.weight", p, n);
    if (strcmp(f->arch, "qwen2") == 0) {
        hf_add(m, d, 1, Q, 0, "%slayers.%d.self_attn.q_proj.bias", p, n);
        hf_add(m, d, 1, K, 0, "%slayers.%d.self_attn.k_proj.bias", p, n);
        hf_add(m, d, 1, K, 0, "%slayers.%d.self_attn.v_proj.bias", p, n);
    }
    hf_add(m, d, 2, H, Q, "%slayers.%d.self_attn.o_proj.weight", p, n);
    hf_add(m, d, 1, H, 0, "%slayers.%d.post_attention_layernorm.weight", p, n);
    hf_add(m, d, 2, f->ffn, H, "%slayers.%d.mlp.gate_proj.weight", p, n);
    hf_add(m, d, 2, f->ffn, H, "%slayers.%d.mlp.up_proj.weight", p, n);
    hf_add(m, d, 2, H, f->ffn, "%slayers.%d.mlp.down_proj.weight", p, n);
    if (f->buffers)
        hf_add(m, HL_DTYPE_F32, 1, 4, 0, "%slayers.%d.self_attn.rotary_emb.inv_freq", p, n);
}

static inline void hf_add_gpt2_layer(struct hf_model *m, const char *p, uint64_t l)
{
    const struct hf_fixture *f = m->f;
    uint64_t H = f->hidden, F = f->ffn;
    enum hl_dtype d = f->dtype;
    int n = (int)l;
    hf_add(m, d, 1, H, 0, "%sh.%d.ln_1.weight", p, n);
    hf_add(m, d, 1, H, 0, "%sh.%d.ln_1.bias", p, n);
    hf_add(m, d, 2, H, 3 * H, "%sh.%d.attn.c_attn.weight", p, n);
    hf_add(m, d, 1, 3 * H, 0, "%sh.%d.attn.c_attn.bias", p, n);
    hf_add(m, d, 2, H, H, "%sh.%d.attn.c_proj.weight", p, n);
    hf_add(m, d, 1, H, 0, "%sh.%d.attn.c_proj.bias", p, n);
    hf_add(m, d, 1, H, 0, "%sh.%d.ln_2.weight", p, n);
    hf_add(m, d, 1, H, 0, "%sh.%d.ln_2.bias", p, n);
    hf_add(m, d, 2, H, F, "%sh.%d.mlp.c_fc.weight", p, n);
    hf_add(m, d, 1, F, 0, "%sh.%d.mlp.c_fc.bias", p, n);
    hf_add(m, d, 2, F, H, "%sh.%d.mlp.c_proj.weight", p, n);
    hf_add(m, d, 1, H, 0, "%sh.%d.mlp.c_proj.bias", p, n);
    if (f->buffers)
        hf_add(m, HL_DTYPE_U8, 2, 4, 4, "%sh.%d.attn.bias", p, n);
}

static inline const char *hf_prefix(const struct hf_fixture *f)
{
    return f->bare ? "" : strcmp(f->arch, "gpt2") == 0 ? "transformer." : "model.";
}

static inline struct hf_model *hf_model_make(const struct hf_fixture *f)
{
    struct hf_model *m = calloc(1, sizeof(*m));
    int gpt2 = strcmp(f->arch, "gpt2") == 0;
    const char *p = hf_prefix(f);
    m->f = f;
    hf_add(m, f->dtype, 2, f->vocab, f->hidden, "%s%s.weight", p, gpt2 ? "wte" : "embed_tokens");
    if (gpt2)
        hf_add(m, f->dtype, 2, f->positions, f->hidden, "%swpe.weight", p);
    for (uint64_t l = 0; l < f->layers; l++) {
        if (gpt2)
            hf_add_gpt2_layer(m, p, l);
        else
            hf_add_llama_layer(m, p, l);
    }
    hf_add(m, f->dtype, 1, f->hidden, 0, "%s%s.weight", p, gpt2 ? "ln_f" : "norm");
    if (gpt2)
        hf_add(m, f->dtype, 1, f->hidden, 0, "%sln_f.bias", p);
    if (!f->tied || f->head_anyway)
        hf_add(m, f->dtype, 2, f->vocab, f->hidden, "lm_head.weight");
    if (f->tied && f->head_anyway == 1)
        memcpy(m->data[m->count - 1], m->data[0], m->tensors[0].size);
    return m;
}

static inline void hf_model_free(struct hf_model *m)
{
    for (size_t i = 0; i < m->count; i++)
        free(m->data[i]);
    free(m);
}

/* config.json as text; free() it. */
static inline char *hf_config_text(const struct hf_fixture *f)
{
    char *text = NULL, dim[48] = "";
    if (f->head_dim != 0)
        snprintf(dim, sizeof(dim), ", \"head_dim\": %d", (int)f->head_dim);
    const char *tied = f->tied ? "true" : "false";
    int n =
        strcmp(f->arch, "gpt2") == 0
            ? asprintf(&text,
                       "{\"model_type\": \"gpt2\", \"n_layer\": %d, \"n_embd\": %d, \"n_head\": %d,"
                       " \"n_inner\": %d, \"vocab_size\": %d, \"n_positions\": %d,"
                       " \"tie_word_embeddings\": %s, \"layer_norm_epsilon\": 1e-05}",
                       (int)f->layers, (int)f->hidden, (int)f->heads, (int)f->ffn, (int)f->vocab,
                       (int)f->positions, tied)
            : asprintf(&text,
                       "{\"model_type\": \"%s\", \"num_hidden_layers\": %d, \"hidden_size\": %d,"
                       " \"num_attention_heads\": %d, \"num_key_value_heads\": %d,"
                       " \"intermediate_size\": %d, \"vocab_size\": %d,"
                       " \"max_position_embeddings\": 64, \"tie_word_embeddings\": %s%s,"
                       " \"rms_norm_eps\": 1e-05, \"rope_theta\": 10000.0}",
                       f->arch, (int)f->layers, (int)f->hidden, (int)f->heads, (int)f->kv_heads,
                       (int)f->ffn, (int)f->vocab, tied, dim);
    hf_require(n > 0, "config.json");
    return text;
}

static inline FILE *hf_create(const char *dir, const char *name)
{
    char path[512];
    snprintf(path, sizeof(path), "%s/%s", dir, name);
    FILE *file = fopen(path, "wb");
    hf_require(file != NULL, path);
    return file;
}

/* Writes tensors i with i % step == first as one safetensors file. */
static inline void hf_save_file(const struct hf_model *m, const char *dir, const char *name,
                                size_t first, size_t step)
{
    struct hl_tensor list[HF_TENSORS];
    struct hl_safetensors_image image;
    size_t n = 0;
    for (size_t i = first; i < m->count; i += step)
        list[n++] = m->tensors[i];
    hf_require(hl_safetensors_write(&(struct hl_safetensors_layout){.tensors = list, .count = n},
                                    &image) == HL_OK,
               name);
    FILE *file = hf_create(dir, name);
    fwrite(image.bytes, 1, image.size, file);
    for (size_t i = first; i < m->count; i += step)
        fwrite(m->data[i], 1, m->tensors[i].size, file);
    hf_require(fclose(file) == 0, name);
    hl_safetensors_image_fini(&image);
}

/* The directory must exist. */
static inline void hf_model_save(const struct hf_model *m, const char *dir)
{
    size_t files = m->f->files > 1 ? (size_t)m->f->files : 1;
    char name[64];
    char *config = hf_config_text(m->f);
    FILE *file = hf_create(dir, "config.json");
    fputs(config, file);
    hf_require(fclose(file) == 0, "config.json");
    free(config);
    if (files == 1) {
        hf_save_file(m, dir, "model.safetensors", 0, 1);
        return;
    }
    file = hf_create(dir, "model.safetensors.index.json");
    fprintf(file, "{\"metadata\": {}, \"weight_map\": {");
    for (size_t i = 0; i < m->count; i++)
        fprintf(file, "%s\"%s\": \"model-%05zu-of-%05zu.safetensors\"", i > 0 ? ", " : "",
                m->names[i], i % files + 1, files);
    fprintf(file, "}}");
    hf_require(fclose(file) == 0, "index");
    for (size_t k = 0; k < files; k++) {
        snprintf(name, sizeof(name), "model-%05zu-of-%05zu.safetensors", k + 1, files);
        hf_save_file(m, dir, name, k, files);
    }
}

/* Builds, saves and frees; creates `dir` if it is missing. */
static inline void hf_checkpoint(const struct hf_fixture *f, const char *dir)
{
    struct hf_model *m = hf_model_make(f);
    (void)mkdir(dir, 0700);
    hf_model_save(m, dir);
    hf_model_free(m);
}

#endif
