#include "cli/bench/model.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/cli/cli.h"
#include "core/safetensors/safetensors.h"
#include "os/file.h"

#define BLOCK      ((uint64_t)1 << 20)
#define PER_LAYER  9 /* tensors per layer, without experts */
#define NAME_BYTES 96

struct shape {
    uint64_t hidden, ffn, vocab, heads, kv_heads, layers;
    uint64_t experts; /* of a mixtral; 0 = a llama */
};

static uint64_t layer_tensors(const struct shape *s)
{
    return s->experts == 0 ? PER_LAYER : PER_LAYER - 3 + 1 + 3 * s->experts;
}

static uint64_t layer_elements(const struct shape *s)
{
    uint64_t kv = s->hidden / s->heads * s->kv_heads, gates = s->experts > 0 ? s->experts : 1;
    return 2 * s->hidden * s->hidden + 2 * kv * s->hidden + 3 * s->hidden * s->ffn * gates +
           2 * s->hidden + s->hidden * s->experts;
}

/* llama's proportions, with experts a quarter as wide; the number of layers determines the size. */
static struct shape choose_shape(uint64_t bytes, const struct bench_model *m)
{
    struct shape s = {.hidden = 2048, .ffn = 5632, .vocab = 32000, .heads = 32, .kv_heads = 8};
    if (bytes < 400000000)
        s = (struct shape){.hidden = 1024, .ffn = 2816, .vocab = 16000, .heads = 16, .kv_heads = 4};
    while (s.kv_heads < (uint64_t)m->tp)
        s.kv_heads *= 2;
    s.experts = (uint64_t)m->experts;
    if (s.experts > 0)
        s.ffn /= 4;
    uint64_t fixed = 2 * s.vocab * s.hidden + s.hidden, all = bytes / 2;
    uint64_t layers = all > fixed ? (all - fixed) / layer_elements(&s) : 0;
    layers -= layers % (uint64_t)m->pp;
    s.layers = layers > 0 ? layers : (uint64_t)m->pp;
    return s;
}

static hl_status write_config(const char *dir, const struct shape *s)
{
    char path[512], text[1024], more[64] = "";
    bool moe = s->experts > 0;
    snprintf(path, sizeof(path), "%s/config.json", dir);
    if (moe)
        snprintf(more, sizeof(more), "\"num_local_experts\": %llu, ",
                 (unsigned long long)s->experts);
    snprintf(text, sizeof(text),
             "{\"architectures\": [\"%sForCausalLM\"], \"model_type\": \"%s\", %s"
             "\"hidden_size\": %llu, \"intermediate_size\": %llu, \"vocab_size\": %llu, "
             "\"num_attention_heads\": %llu, \"num_key_value_heads\": %llu, "
             "\"num_hidden_layers\": %llu, \"hidden_act\": \"silu\", \"rms_norm_eps\": 1e-05, "
             "\"max_position_embeddings\": 4096, \"tie_word_embeddings\": false, "
             "\"torch_dtype\": \"bfloat16\"}\n",
             moe ? "Mixtral" : "Llama", moe ? "mixtral" : "llama", more,
             (unsigned long long)s->hidden, (unsigned long long)s->ffn,
             (unsigned long long)s->vocab, (unsigned long long)s->heads,
             (unsigned long long)s->kv_heads, (unsigned long long)s->layers);
    return outfile_text(path, text);
}

struct list {
    struct hl_tensor *tensors;
    char (*names)[NAME_BYTES];
    size_t count;
};

static void add_tensor(struct list *l, const char *name, uint64_t rows, uint64_t cols)
{
    struct hl_tensor *t = &l->tensors[l->count];
    snprintf(l->names[l->count], NAME_BYTES, "%s", name);
    *t = (struct hl_tensor){.name = l->names[l->count], .dtype = HL_DTYPE_BF16};
    t->rank = cols > 0 ? 2 : 1;
    t->shape[0] = rows;
    t->shape[1] = cols;
    l->count++;
}

struct part {
    const char *name;
    uint64_t rows, cols;
};

static void add_parts(struct list *l, const char *at, const struct part *parts, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        char name[NAME_BYTES];
        snprintf(name, sizeof(name), "%.60s.%.24s.weight", at, parts[i].name);
        add_tensor(l, name, parts[i].rows, parts[i].cols);
    }
}

static void add_layer(struct list *l, const struct shape *s, uint64_t layer)
{
    uint64_t kv = s->hidden / s->heads * s->kv_heads;
    const struct part attention[] = {
        {"input_layernorm", s->hidden, 0},          {"self_attn.q_proj", s->hidden, s->hidden},
        {"self_attn.k_proj", kv, s->hidden},        {"self_attn.v_proj", kv, s->hidden},
        {"self_attn.o_proj", s->hidden, s->hidden}, {"post_attention_layernorm", s->hidden, 0},
    };
    const struct part gated[] = {{"mlp.gate_proj", s->ffn, s->hidden},
                                 {"mlp.up_proj", s->ffn, s->hidden},
                                 {"mlp.down_proj", s->hidden, s->ffn}};
    const struct part expert[] = {
        {"w1", s->ffn, s->hidden}, {"w3", s->ffn, s->hidden}, {"w2", s->hidden, s->ffn}};
    const struct part router = {"block_sparse_moe.gate", s->experts, s->hidden};
    char at[80];
    snprintf(at, sizeof(at), "model.layers.%llu", (unsigned long long)layer);
    add_parts(l, at, attention, HL_ARRAY_LEN(attention));
    if (s->experts == 0)
        add_parts(l, at, gated, HL_ARRAY_LEN(gated));
    else
        add_parts(l, at, &router, 1);
    for (uint64_t e = 0; e < s->experts; e++) {
        snprintf(at, sizeof(at), "model.layers.%llu.block_sparse_moe.experts.%llu",
                 (unsigned long long)layer, (unsigned long long)e);
        add_parts(l, at, expert, HL_ARRAY_LEN(expert));
    }
}

/* A block of noise with a changing stamp: unlike zeros, it allows no shortcuts. */
static hl_status write_noise(struct outfile *f, uint64_t len)
{
    HL_AUTO(hl_freep) uint64_t *block = malloc(BLOCK);
    uint64_t x = 0x243f6a8885a308d3;
    if (block == NULL)
        return hl_fail(HL_ENOMEM, "out of memory allocating a block of weights");
    for (size_t i = 0; i < BLOCK / 8; i++) {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        block[i] = x & UINT64_C(0x3fff3fff3fff3fff); /* finite bf16 values */
    }
    for (uint64_t at = 0; at < len; at += BLOCK) {
        block[at / BLOCK % (BLOCK / 8)] = at;
        HL_TRY(outfile_write(f, block, len - at < BLOCK ? len - at : BLOCK));
    }
    return HL_OK;
}

static hl_status write_model(const char *path, const struct shape *s, struct list *l,
                             uint64_t *size)
{
    struct hl_safetensors_image image = {0};
    struct outfile f;
    add_tensor(l, "model.embed_tokens.weight", s->vocab, s->hidden);
    for (uint64_t i = 0; i < s->layers; i++)
        add_layer(l, s, i);
    add_tensor(l, "model.norm.weight", s->hidden, 0);
    add_tensor(l, "lm_head.weight", s->vocab, s->hidden);
    struct hl_safetensors_layout layout = {.tensors = l->tensors, .count = l->count};
    HL_TRY(hl_safetensors_write(&layout, &image));
    hl_status st = outfile_open(path, &f);
    if (st == HL_OK) {
        st = outfile_write(&f, image.bytes, image.size);
        if (st == HL_OK)
            st = write_noise(&f, image.data_size);
        if (st == HL_OK)
            st = outfile_commit(&f);
        outfile_abort(&f);
    }
    *size = image.size + image.data_size;
    hl_safetensors_image_fini(&image);
    return st;
}

/* Written pages are in the cache; reading makes sure that none has been dropped. */
static hl_status warm_file(const char *path)
{
    HL_AUTO(hl_closep) int fd = open(path, O_RDONLY | O_CLOEXEC);
    HL_AUTO(hl_freep) char *block = malloc(BLOCK);
    ssize_t n = -1;
    if (fd >= 0 && block != NULL)
        while ((n = read(fd, block, BLOCK)) > 0)
            ;
    return n == 0 ? HL_OK : hl_fail(HL_EIO, "read %s: %s", path, strerror(errno));
}

hl_status bench_model_make(const char *dir, uint64_t bytes, const struct bench_model *m,
                           uint64_t *size)
{
    struct shape s = choose_shape(bytes, m);
    size_t max = s.layers * layer_tensors(&s) + 3;
    struct list l = {.tensors = calloc(max, sizeof(*l.tensors)),
                     .names = calloc(max, sizeof(*l.names))};
    char path[512];
    uint64_t made = 0;
    hl_status st = HL_OK;
    snprintf(path, sizeof(path), "%s/model.safetensors", dir);
    if (l.tensors == NULL || l.names == NULL)
        st = hl_fail(HL_ENOMEM, "out of memory allocating %zu tensors", max);
    if (st == HL_OK)
        st = write_config(dir, &s);
    if (st == HL_OK)
        st = write_model(path, &s, &l, &made);
    if (st == HL_OK)
        st = warm_file(path);
    free(l.tensors);
    free(l.names);
    if (st == HL_OK)
        *size = made;
    return st;
}

hl_status bench_model_bytes(struct cli *cli, const char *gb, uint64_t *bytes)
{
    char *end;
    double size = strtod(gb, &end);
    if (*end != '\0' || !(size >= 0.05) || size > 1000)
        return cli_usage(cli, "--gb '%s' is not a size from 0.05 to 1000", gb);
    *bytes = (uint64_t)(size * 1e9);
    return HL_OK;
}

hl_status bench_model_dir_make(struct cli *cli, const char *parent, char dir[BENCH_MODEL_DIR_MAX])
{
    char made[BENCH_MODEL_DIR_MAX];
    int n = snprintf(made, sizeof(made), "%s/helios-bench-model-XXXXXX", parent);
    if (n < 0 || (size_t)n >= sizeof(made))
        return cli_usage(cli, "--dir is too long");
    if (mkdtemp(made) == NULL)
        return hl_fail(HL_EIO, "make directory %s: %s", made, strerror(errno));
    memcpy(dir, made, sizeof(made));
    return HL_OK;
}

void bench_model_dir_remove(char dir[BENCH_MODEL_DIR_MAX])
{
    if (dir[0] != '\0' && hl_dir_remove(dir) != HL_OK)
        hl_error_clear();
    dir[0] = '\0';
}
