/* Estimates what a model needs in chunks, from its config or its number of parameters. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/model/hf.h"
#include "hybridps/layout/layout.h"

#define TENSORS_MAX ((size_t)1 << 24)
#define CHUNK_LEAST ((uint64_t)4 << 20)  /* shorter copies don't reach the link's rate */
#define CHUNK_MOST  ((uint64_t)64 << 20) /* as in the client: longer ones pin more of the device */
#define ASPECT      64                   /* width / depth of an assumed model */

void hl_estimate_fini(struct hl_estimate *e)
{
    free(e->tensors);
    free(e->modules);
    *e = (struct hl_estimate){0};
}

/* ---- tensors --------------------------------------------------------------------------------- */

static hl_status fail_memory(void)
{
    return hl_fail(HL_ENOMEM, "out of memory allocating the tensors of the model");
}

static hl_status add_tensor(struct hl_estimate *e, uint64_t elements)
{
    if (elements == 0)
        return HL_OK;
    if (e->count == TENSORS_MAX || elements > (uint64_t)INT64_MAX / 1024 - e->parameters)
        return hl_fail(HL_EINVAL, "the model is too large for an estimate");
    if (e->count == e->cap) {
        size_t cap = e->cap == 0 ? 256 : e->cap * 2;
        struct hl_estimate_tensor *p = realloc(e->tensors, cap * sizeof(*p));
        if (p == NULL)
            return fail_memory();
        e->tensors = p;
        e->cap = cap;
    }
    e->tensors[e->count++] = (struct hl_estimate_tensor){.elements = elements,
                                                         .module = (uint32_t)(e->module_count - 1)};
    e->parameters += elements;
    return HL_OK;
}

/* Adds a module with a weight and a bias (0 = none). layer < 0: the module belongs to no layer. */
static hl_status add_module(struct hl_estimate *e, int64_t layer, const char *name, uint64_t weight,
                            uint64_t bias)
{
    if (e->module_count == e->module_cap) {
        size_t cap = e->module_cap == 0 ? 128 : e->module_cap * 2;
        char(*p)[48] = realloc(e->modules, cap * sizeof(*p));
        if (p == NULL)
            return fail_memory();
        e->modules = p;
        e->module_cap = cap;
    }
    char *text = e->modules[e->module_count++];
    if (layer < 0)
        snprintf(text, sizeof(e->modules[0]), "%s", name);
    else
        snprintf(text, sizeof(e->modules[0]), "layers.%" PRId64 ".%s", layer, name);
    HL_TRY(add_tensor(e, weight));
    return add_tensor(e, bias);
}

static hl_status add_gpt_layer(struct hl_estimate *e, int64_t layer, uint64_t h, uint64_t ffn)
{
    HL_TRY(add_module(e, layer, "ln_1", h, h));
    HL_TRY(add_module(e, layer, "attn.c_attn", 3 * h * h, 3 * h));
    HL_TRY(add_module(e, layer, "attn.c_proj", h * h, h));
    HL_TRY(add_module(e, layer, "ln_2", h, h));
    HL_TRY(add_module(e, layer, "mlp.c_fc", h * ffn, ffn));
    return add_module(e, layer, "mlp.c_proj", ffn * h, h);
}

static hl_status add_llama_layer(struct hl_estimate *e, int64_t layer, const struct hl_hf_config *c)
{
    uint64_t h = c->hidden, q = c->heads * c->head_dim, kv = c->kv_heads * c->head_dim;
    uint64_t mlp = c->mlp_bias ? c->ffn : 0;
    HL_TRY(add_module(e, layer, "input_layernorm", h, 0));
    HL_TRY(add_module(e, layer, "self_attn.q_proj", q * h, c->qkv_bias ? q : 0));
    HL_TRY(add_module(e, layer, "self_attn.k_proj", kv * h, c->qkv_bias ? kv : 0));
    HL_TRY(add_module(e, layer, "self_attn.v_proj", kv * h, c->qkv_bias ? kv : 0));
    HL_TRY(add_module(e, layer, "self_attn.o_proj", h * q, c->proj_bias ? h : 0));
    HL_TRY(add_module(e, layer, "post_attention_layernorm", h, 0));
    HL_TRY(add_module(e, layer, "mlp.gate_proj", c->ffn * h, mlp));
    HL_TRY(add_module(e, layer, "mlp.up_proj", c->ffn * h, mlp));
    return add_module(e, layer, "mlp.down_proj", h * c->ffn, c->mlp_bias ? h : 0);
}

static hl_status add_config(struct hl_estimate *e, const struct hl_hf_config *c)
{
    int gpt2 = c->layout == HL_LAYOUT_GPT2;
    HL_TRY(add_module(e, -1, gpt2 ? "wte" : "embed_tokens", c->vocab * c->hidden, 0));
    if (gpt2)
        HL_TRY(add_module(e, -1, "wpe", c->max_positions * c->hidden, 0));
    for (uint64_t i = 0; i < c->layers; i++)
        HL_TRY(gpt2 ? add_gpt_layer(e, (int64_t)i, c->hidden, c->ffn)
                    : add_llama_layer(e, (int64_t)i, c));
    HL_TRY(add_module(e, -1, gpt2 ? "ln_f" : "norm", c->hidden, gpt2 ? c->hidden : 0));
    return c->tied ? HL_OK : add_module(e, -1, "lm_head", c->vocab * c->hidden, 0);
}

hl_status hl_estimate_of_config(const struct hl_hf_config *c, struct hl_estimate *out)
{
    *out = (struct hl_estimate){0};
    if (c->layout == HL_LAYOUT_OTHER)
        return hl_fail(HL_EUNSUPPORTED,
                       "the memory of a %s model can't be estimated from its config.json; give the "
                       "number of its parameters",
                       c->architecture);
    hl_status st = add_config(out, c);
    if (st != HL_OK)
        hl_estimate_fini(out);
    return st;
}

static uint64_t gpt_layer(uint64_t h)
{
    return 12 * h * h + 13 * h;
}

static hl_status add_count(struct hl_estimate *e, uint64_t parameters)
{
    double n = (double)parameters;
    uint64_t layers = (uint64_t)(cbrt(n / (12.0 * ASPECT * ASPECT)) + 0.5);
    layers = layers > 0 ? layers : 1;
    uint64_t h = (uint64_t)sqrt(n / (12.0 * (double)layers)) + 1;
    while (h > 0 && gpt_layer(h) * layers > parameters)
        h--;
    for (uint64_t i = 0; h > 0 && i < layers; i++)
        HL_TRY(add_gpt_layer(e, (int64_t)i, h, 4 * h));
    e->layers = layers;
    e->hidden = h;
    return parameters > e->parameters ? add_module(e, -1, "rest", parameters - e->parameters, 0)
                                      : HL_OK;
}

hl_status hl_estimate_of_count(uint64_t parameters, struct hl_estimate *out)
{
    *out = (struct hl_estimate){0};
    if (parameters == 0 || parameters > (uint64_t)1 << 50)
        return hl_fail(HL_EINVAL, "%" PRIu64 " is an invalid number of parameters", parameters);
    hl_status st = add_count(out, parameters);
    if (st != HL_OK)
        hl_estimate_fini(out);
    return st;
}

/* ---- chunks ---------------------------------------------------------------------------------- */

static void set_kind_bytes(struct hl_estimate *e, const struct hl_estimate_options *o)
{
    int half = o->element_bytes == 2;
    uint64_t each[HYBRIDPS_KINDS] = {
        [HYBRIDPS_PARAM] = o->element_bytes,
        [HYBRIDPS_GRAD] = o->reuse ? 0 : o->element_bytes,
        [HYBRIDPS_P32] = half ? 4 : 0,
        [HYBRIDPS_MOMENTUM] = 4,
        [HYBRIDPS_VARIANCE] = 4,
    };
    e->total = 0;
    for (int k = 0; k < HYBRIDPS_KINDS; k++) {
        e->per_parameter[k] = each[k];
        e->bytes[k] = each[k] * e->parameters;
        e->total += e->bytes[k];
    }
}

static size_t make_items(const struct hl_estimate *e, struct hl_layout_item *items)
{
    size_t n = 0;
    for (uint32_t k = 0; k < HYBRIDPS_KINDS; k++)
        for (size_t i = 0; i < e->count && e->per_parameter[k] > 0; i++)
            items[n++] = (struct hl_layout_item){
                .bytes = e->tensors[i].elements * e->per_parameter[k], .kind = k};
    return n;
}

/* The bytes of all chunks with parameters or gradients of a module; these come first in the items.
 * A module has few chunks, so a linear search for repeated ones is enough. */
static uint64_t pinned_bytes(const struct hl_estimate *e, size_t first, size_t count,
                             const uint32_t *chunk_of, const uint64_t *chunk_bytes)
{
    uint64_t sum = 0;
    size_t kinds = e->per_parameter[HYBRIDPS_GRAD] > 0 ? 2 : 1;
    for (size_t k = 0; k < kinds; k++)
        for (size_t i = 0; i < count; i++) {
            size_t at = k * e->count + first + i, seen = 0;
            for (size_t j = 0; j < i; j++)
                seen += chunk_of[k * e->count + first + j] == chunk_of[at];
            sum += seen == 0 ? chunk_bytes[chunk_of[at]] : 0;
        }
    return sum;
}

static uint64_t round_up(uint64_t n, uint64_t unit)
{
    return (n + unit - 1) / unit * unit;
}

uint64_t hl_estimate_share(uint64_t bytes, int kind, uint64_t world)
{
    if (kind == HYBRIDPS_PARAM || kind == HYBRIDPS_GRAD)
        return bytes;
    return bytes / world + (bytes % world != 0);
}

/* A chunk has the length of the layout, or that of its only tensor if that is longer. */
static void chunk_lengths(struct hl_estimate *e, const struct hl_layout_item *items, size_t n,
                          uint64_t granule, const uint32_t *chunk_of, uint64_t *out)
{
    for (size_t i = 0; i < n; i++) {
        uint64_t length = e->layout.chunk_bytes;
        if (items[i].bytes > length)
            length = round_up(items[i].bytes, granule);
        if (length > out[chunk_of[i]]) {
            e->allocated[items[i].kind] += length - out[chunk_of[i]];
            out[chunk_of[i]] = length;
        }
    }
}

static void find_widest(struct hl_estimate *e, const uint32_t *chunk_of,
                        const uint64_t *chunk_bytes)
{
    e->smallest = 0;
    for (size_t first = 0, end; first < e->count; first = end) {
        for (end = first; end < e->count && e->tensors[end].module == e->tensors[first].module;)
            end++;
        uint64_t bytes = pinned_bytes(e, first, end - first, chunk_of, chunk_bytes);
        if (bytes > e->smallest) {
            e->smallest = bytes;
            e->widest = e->tensors[first].module;
        }
    }
}

static hl_status lay_out(struct hl_estimate *e, const struct hl_estimate_options *o,
                         struct hl_layout_item *items, uint32_t *chunk_of, uint64_t *chunk_bytes)
{
    uint64_t granule = o->granule > 64 ? o->granule : 64, size = o->chunk_bytes;
    size_t n = make_items(e, items);
    if (size == 0) {
        struct hl_layout_options lo = {
            .least = CHUNK_LEAST, .most = CHUNK_MOST, .granule = granule};
        if (e->total / 16 < lo.least) /* small models have small chunks too */
            lo.least = e->total / 16 > granule ? e->total / 16 : granule;
        HL_TRY(hl_layout_search(items, n, &lo, &e->layout));
        size = e->layout.chunk_bytes;
    }
    HL_TRY(hl_layout_fill(items, n, size, granule, chunk_of, &e->layout));
    chunk_lengths(e, items, n, granule, chunk_of, chunk_bytes);
    find_widest(e, chunk_of, chunk_bytes);
    return HL_OK;
}

hl_status hl_estimate_run(struct hl_estimate *e, const struct hl_estimate_options *o)
{
    if (o->element_bytes != 2 && o->element_bytes != 4)
        return hl_fail(HL_EINVAL, "invalid parameter size of %" PRIu64 " bytes", o->element_bytes);
    set_kind_bytes(e, o);
    size_t most = e->count * HYBRIDPS_KINDS;
    struct hl_layout_item *items = calloc(most, sizeof(*items));
    uint32_t *chunk_of = calloc(most, sizeof(*chunk_of));
    uint64_t *chunk_bytes = calloc(most, sizeof(*chunk_bytes));
    hl_status st = items == NULL || chunk_of == NULL || chunk_bytes == NULL
                       ? fail_memory()
                       : lay_out(e, o, items, chunk_of, chunk_bytes);
    free(items);
    free(chunk_of);
    free(chunk_bytes);
    return st;
}
