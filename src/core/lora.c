/* A family is made of the base's: for every matrix that the adapter changes two rows, with the rank
 * of A and B as a number. Layers in sequence with one rank share them. */
#include "core/lora.h"

#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/arena.h"
#include "core/families/logical.h"

#define PREFIX   "base_model.model."
#define ROWS_MAX 65536
#define NAME_CAP 256

static const char *const half_endings[] = {".lora_A.weight", ".lora_B.weight"};

struct lora {
    const struct hl_hf_config *base;
    const struct hl_tensor *sources;
    size_t count;
    const struct hl_tensor **by_name; /* of the adapter */
    struct hl_logical logical;        /* of the base */
    const struct hl_tensor **modules; /* of the base, by name */
    struct hl_arena arena;
    struct hl_family family;
    struct hl_family_prefix prefixes[2];
    struct hl_family_tensor *rows;
    size_t row_count;
};

/* ---- names ----------------------------------------------------------------------------------- */

static int by_name(const void *a, const void *b)
{
    const struct hl_tensor *const *x = a, *const *y = b;
    return strcmp((*x)->name, (*y)->name);
}

static const struct hl_tensor *find_tensor(const struct hl_tensor **sorted, size_t count,
                                           const char *name)
{
    const struct hl_tensor key = {.name = name}, *at = &key;
    const struct hl_tensor **hit =
        count > 0 ? bsearch(&at, sorted, count, sizeof(*sorted), by_name) : NULL;
    return hit != NULL ? *hit : NULL;
}

HL_CHECK static hl_status sort_tensors(const struct hl_tensor *tensors, size_t count,
                                       const struct hl_tensor ***out)
{
    const struct hl_tensor **list = calloc(count + 1, sizeof(*list));
    if (list == NULL)
        return hl_fail(HL_ENOMEM, "out of memory allocating the names of %zu tensors", count);
    for (size_t i = 0; i < count; i++)
        list[i] = &tensors[i];
    qsort(list, count, sizeof(*list), by_name);
    *out = list;
    return HL_OK;
}

/* "base_model.model.X.lora_A.weight": X, and which half; false = another name. */
static bool split_name(const char *name, char *module, size_t cap, int *half)
{
    size_t n = strlen(name), p = strlen(PREFIX);
    if (strncmp(name, PREFIX, p) != 0)
        return false;
    for (int i = 0; i < 2; i++) {
        size_t e = strlen(half_endings[i]);
        if (n <= p + e || n - p - e >= cap || strcmp(name + n - e, half_endings[i]) != 0)
            continue;
        snprintf(module, cap, "%.*s", (int)(n - p - e), name + p);
        *half = i;
        return true;
    }
    return false;
}

/* ---- the adapter against its base ------------------------------------------------------------ */

HL_CHECK static hl_status fail_kind(const char *name)
{
    static const struct {
        const char *has, *what;
    } kinds[] = {{"lora_embedding_", "adapters of embeddings"},
                 {"lora_magnitude_vector", "DoRA"},
                 {"modules_to_save", "whole modules beside the adapter (modules_to_save)"},
                 {".bias", "trained biases"}};

    for (size_t i = 0; i < HL_ARRAY_LEN(kinds); i++)
        if (strstr(name, kinds[i].has) != NULL)
            return hl_fail(HL_EUNSUPPORTED, "adapter tensor '%s': %s can't be sliced", name,
                           kinds[i].what);
    return hl_fail(HL_EINVAL,
                   "adapter tensor '%s' is none of LoRA: its name is not '" PREFIX
                   "<module>.lora_A.weight' or '.lora_B.weight'",
                   name);
}

/* in and out of a module of the base; Conv1D of gpt2 is stored [in, out]. */
static void module_sizes(const struct lora *l, const struct hl_tensor *weight, uint64_t *in,
                         uint64_t *out)
{
    bool turned = strcmp(l->base->family->name, "gpt2") == 0;
    *out = weight->shape[turned ? 1 : 0];
    *in = weight->shape[turned ? 0 : 1];
}

HL_CHECK static hl_status check_half(const struct lora *l, const struct hl_tensor *t)
{
    char module[NAME_CAP], name[NAME_CAP + 64], has[192];
    uint64_t in, out;
    int half;
    if (!split_name(t->name, module, sizeof(module), &half))
        return fail_kind(t->name);
    snprintf(name, sizeof(name), "%s.weight", module);
    const struct hl_tensor *weight = find_tensor(l->modules, l->logical.count, name);
    if (weight == NULL || weight->rank != 2)
        return hl_fail(HL_EINVAL,
                       "adapter tensor '%s': the base, a %s model of %" PRIu64
                       " layers, has no matrix '%s'; it is an adapter for another base",
                       t->name, l->base->architecture, l->base->layers, name);
    module_sizes(l, weight, &in, &out);
    if (t->rank != 2 || t->shape[1 - half] != (half == 0 ? in : out) || t->shape[half] == 0)
        return hl_fail(HL_EINVAL,
                       "adapter tensor '%s' has shape %s, the base's '%s' has %" PRIu64
                       " inputs and %" PRIu64 " outputs; it is an adapter for another base",
                       t->name, hl_tensor_shape_text(t, has, sizeof(has)), name, in, out);
    snprintf(name, sizeof(name), PREFIX "%s%s", module, half_endings[1 - half]);
    const struct hl_tensor *other = find_tensor(l->by_name, l->count, name);
    if (other == NULL)
        return hl_fail(HL_ENOENT, "adapter tensor '%s' has no other half: '%s' is missing", t->name,
                       name);
    if (half == 0 && other->rank == 2 && other->shape[1] != t->shape[0])
        return hl_fail(HL_EINVAL,
                       "adapter tensors '%s' and '%s' differ in rank: %" PRIu64 " and %" PRIu64,
                       t->name, name, t->shape[0], other->shape[1]);
    return HL_OK;
}

/* ---- rows of the table ----------------------------------------------------------------------- */

/* The rank of source k of a row at a layer; 0 = the adapter leaves it alone. */
HL_CHECK static hl_status rank_at(const struct lora *l, const struct hl_family_tensor *row,
                                  size_t k, uint64_t layer, uint64_t *out)
{
    char name[NAME_CAP], half[2 * NAME_CAP];
    *out = 0;
    HL_TRY(hl_family_source_name(l->base->family, l->base->family->prefixes, row, k, layer, 0, name,
                                 sizeof(name)));
    size_t n = strlen(name), w = strlen(".weight");
    if (n <= w || strcmp(name + n - w, ".weight") != 0)
        return HL_OK;
    snprintf(half, sizeof(half), PREFIX "%.*s%s", (int)(n - w), name, half_endings[0]);
    const struct hl_tensor *a = find_tensor(l->by_name, l->count, half);
    *out = a != NULL ? a->shape[0] : 0;
    return HL_OK;
}

/* Of what a fused matrix is adapted by: as Megatron-Bridge's canonical LoRA calls it. */
static const char *adapter_of(const struct hl_family_tensor *row, size_t k)
{
    static const char *const qkv[] = {"adapter.adapter_q", "adapter.adapter_k",
                                      "adapter.adapter_v"};
    static const char *const pairs[] = {"adapter.adapter_gate", "adapter.adapter_up"};
    if (hl_family_source_count(row) == 1)
        return "adapter";
    return row->split == HL_SPLIT_QKV ? qkv[k] : pairs[k];
}

static const char *rows_of(const struct hl_family_tensor *row, size_t k)
{
    if (row->split == HL_SPLIT_QKV)
        return k == 0 ? "heads * head_dim" : "kv_heads * head_dim";
    return row->rows;
}

/* A and B of source k for the layers [first, end). */
HL_CHECK static hl_status add_rows(struct lora *l, const struct hl_family_tensor *row, size_t k,
                                   uint64_t rank, uint64_t first, uint64_t end)
{
    bool fused = hl_family_source_count(row) > 1, columns = row->split == HL_SPLIT_COLUMNS;
    size_t module = strlen(row->name) - strlen(".weight");
    size_t hf = strlen(row->hf[k]) - strlen(".weight");
    const char *r = hl_arena_printf(&l->arena, "%" PRIu64, rank);
    const char *when =
        hl_arena_printf(&l->arena, "layer >= %" PRIu64 " && layer < %" PRIu64 " && (%s)", first,
                        end, row->when != NULL ? row->when : "1");
    for (int half = 0; half < 2; half++) {
        if (l->row_count == ROWS_MAX)
            return hl_fail(HL_EUNSUPPORTED, "an adapter with more than %d ranks of its own",
                           ROWS_MAX / 2);
        struct hl_family_tensor *t = &l->rows[l->row_count++];
        *t = (struct hl_family_tensor){.place = row->place,
                                       .split = half == 0 ? (columns ? row->split : HL_SPLIT_WHOLE)
                                                : columns ? HL_SPLIT_WHOLE
                                                : fused   ? HL_SPLIT_ROWS
                                                          : row->split,
                                       .cols = half == 0 ? row->cols : r,
                                       .rows = half == 0 ? r : rows_of(row, k),
                                       .when = when};
        t->name = hl_arena_printf(&l->arena, "%.*s.%s.linear_%s.weight", (int)module, row->name,
                                  adapter_of(row, k), half == 0 ? "in" : "out");
        t->hf[0] = hl_arena_printf(&l->arena, "%.*s%s", (int)hf, row->hf[k], half_endings[half]);
        if (t->name == NULL || t->hf[0] == NULL || r == NULL || when == NULL)
            return hl_fail(HL_ENOMEM, "out of memory allocating a table of %zu adapters",
                           l->row_count);
    }
    return HL_OK;
}

HL_CHECK static hl_status check_source(const struct lora *l, const struct hl_family_tensor *row,
                                       const struct hl_partition_options *o)
{
    uint64_t groups = l->base->kv_heads, tp = o->tp > 0 ? (uint64_t)o->tp : 1;
    if (row->place == HL_PLACE_HEAD && l->base->tied)
        return hl_fail(HL_EUNSUPPORTED,
                       "adapter of '%s': the base's head is its embedding, which can't be adapted",
                       row->hf[0]);
    if (row->place == HL_PLACE_EXPERT || row->place == HL_PLACE_MTP)
        return hl_fail(HL_EUNSUPPORTED, "adapters of '%s' can't be sliced", row->hf[0]);
    if (row->split == HL_SPLIT_QKV && hl_family_source_count(row) > 1 && groups % tp != 0)
        return hl_fail(HL_EINVAL,
                       "tp %" PRIu64 " cuts the %" PRIu64
                       " query groups of the base, so an adapter of q, k and v has no slices; "
                       "use a tp that divides them",
                       tp, groups);
    return HL_OK;
}

HL_CHECK static hl_status add_source(struct lora *l, const struct hl_family_tensor *row, size_t k,
                                     const struct hl_partition_options *o)
{
    uint64_t layers = row->place == HL_PLACE_LAYER ? l->base->layers : 1, from = 0, was = 0;
    for (uint64_t i = 0; i <= layers; i++) {
        uint64_t rank = 0;
        if (i < layers)
            HL_TRY(rank_at(l, row, k, i, &rank));
        if (rank != 0)
            HL_TRY(check_source(l, row, o));
        if (rank == was)
            continue;
        if (was != 0)
            HL_TRY(add_rows(l, row, k, was, from, i));
        was = rank;
        from = i;
    }
    return HL_OK;
}

HL_CHECK static hl_status make_family(struct lora *l, const struct hl_partition_options *o)
{
    const struct hl_family *base = l->base->family;
    l->rows = calloc(ROWS_MAX + 1, sizeof(*l->rows));
    if (l->rows == NULL)
        return hl_fail(HL_ENOMEM, "out of memory allocating a table of adapters");
    for (const struct hl_family_tensor *row = base->tensors; row->name != NULL; row++)
        for (size_t k = 0; row->cols != NULL && row->place != HL_PLACE_MTP_COPY &&
                           k < hl_family_source_count(row);
             k++)
            HL_TRY(add_source(l, row, k, o));
    if (l->row_count == 0)
        return hl_fail(HL_EINVAL, "the adapter changes no matrix of its base, a %s model",
                       base->name);
    l->prefixes[0].body = hl_arena_printf(&l->arena, PREFIX "%s", base->prefixes[0].body);
    l->prefixes[0].head = hl_arena_printf(&l->arena, PREFIX "%s", base->prefixes[0].head);
    if (hl_arena_failed(&l->arena))
        return hl_fail(HL_ENOMEM, "out of memory allocating a table of %zu adapters", l->row_count);
    l->family = *base;
    l->family.tensors = l->rows;
    l->family.prefixes = l->prefixes;
    return HL_OK;
}

HL_CHECK static hl_status plan_adapter(struct lora *l, const struct hl_partition_options *options,
                                       struct hl_partition_plan *out)
{
    HL_TRY(sort_tensors(l->sources, l->count, &l->by_name));
    HL_TRY(hl_family_logical(l->base, &(struct hl_checkpoint){0}, &l->logical));
    HL_TRY(sort_tensors(l->logical.tensors, l->logical.count, &l->modules));
    for (size_t i = 0; i < l->count; i++)
        HL_TRY(check_half(l, &l->sources[i]));
    HL_TRY(make_family(l, options));
    struct hl_hf_config config = *l->base;
    config.family = &l->family;
    HL_AUTO(hl_freep) unsigned char *all = malloc(l->count + 1);
    if (all == NULL)
        return hl_fail(HL_ENOMEM, "out of memory allocating a list of %zu tensors", l->count);
    memset(all, 1, l->count + 1);
    HL_TRY(hl_partition_plan(&config, l->sources, l->count, options, out));
    out->logical = hl_logical_json(l->sources, all, l->count);
    if (out->logical != NULL)
        return HL_OK;
    hl_partition_fini(out);
    return hl_fail(HL_ENOMEM, "out of memory allocating a list of %zu tensors", l->count);
}

hl_status hl_lora_plan(const struct hl_hf_config *base, const struct hl_tensor *sources,
                       size_t source_count, const struct hl_partition_options *options,
                       struct hl_partition_plan *out)
{
    struct lora l = {.base = base, .sources = sources, .count = source_count};
    hl_status st = plan_adapter(&l, options, out);
    free(l.by_name);
    free(l.modules);
    free(l.rows);
    hl_logical_fini(&l.logical);
    hl_arena_fini(&l.arena);
    return st;
}

/* ---- adapter_config.json --------------------------------------------------------------------- */

/* PEFT's members, which it may leave out or have as null. */
HL_CHECK static hl_status read_peft(const json_t *doc, const char *file, struct hl_lora_config *out)
{
    const json_t *type = json_object_get(doc, "peft_type");
    const json_t *base = json_object_get(doc, "base_model_name_or_path");
    const json_t *dora = json_object_get(doc, "use_dora");
    if (!json_is_object(doc))
        return hl_fail(HL_EINVAL, "%s: not a JSON object", file);
    if (!json_is_string(type) || strcmp(json_string_value(type), "LORA") != 0)
        return hl_fail(HL_EUNSUPPORTED, "%s: field 'peft_type' is '%.40s': only LORA can be sliced",
                       file, json_is_string(type) ? json_string_value(type) : "");
    if (base != NULL && !json_is_null(base) && !json_is_string(base))
        return hl_fail(HL_EINVAL, "%s: field 'base_model_name_or_path' is not text", file);
    if (dora != NULL && !json_is_null(dora) && !json_is_boolean(dora))
        return hl_fail(HL_EINVAL, "%s: field 'use_dora' is neither true nor false", file);
    if (json_is_true(dora))
        return hl_fail(HL_EUNSUPPORTED, "%s: field 'use_dora': DoRA can't be sliced", file);
    out->base = json_is_string(base) ? json_string_value(base) : "";
    return HL_OK;
}

hl_status hl_lora_config_parse(const char *text, size_t len, const char *file,
                               struct hl_lora_config *out)
{
    json_error_t error;
    json_t *doc = json_loadb(text, len, JSON_REJECT_DUPLICATES, &error);
    if (doc == NULL)
        return hl_fail(HL_EINVAL, "%s:%d:%d: %s", file, error.line, error.column, error.text);
    struct hl_lora_config c = {.peft = doc};
    hl_status st = read_peft(doc, file, &c);
    if (st != HL_OK) {
        json_decref(doc);
        return st;
    }
    *out = c;
    return HL_OK;
}

void hl_lora_config_fini(struct hl_lora_config *c)
{
    json_decref(c->peft);
    *c = (struct hl_lora_config){0};
}
