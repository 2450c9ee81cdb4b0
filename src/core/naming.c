#include "core/naming.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"

#define TEXT_MAX (2 * (size_t)HL_SAFETENSORS_HEADER_MAX)
#define KEY_MAX  (sizeof(HL_CRC_KEY) + HL_TENSOR_NAME_MAX)

/* What stands between the layer's name and "weight" or "bias". */
static const struct norm {
    const char *local;
    const char *te;
    bool stays_with_experts;
    bool stays_with_latent; /* attention */
    bool needs_latent;      /* elsewhere the local name is that of another norm */
} norms[] = {
    {".input_layernorm.", ".self_attention.linear_qkv.layer_norm_", false, true, false},
    {".pre_mlp_layernorm.", ".mlp.linear_fc1.layer_norm_", true, false, false},
    {".self_attention.q_layernorm.", ".self_attention.linear_q_up_proj.layer_norm_", false, false,
     true},
    {".self_attention.kv_layernorm.", ".self_attention.linear_kv_up_proj.layer_norm_", false, false,
     true},
};

const char *hl_naming_transformer_impl(enum hl_api_layer_naming naming)
{
    return naming == HL_API_LAYER_NAMING_TE ? "transformer_engine" : "local";
}

/* `word` at the start of the text, as a whole component of a name. */
static bool has_component(const char *text, const char *word)
{
    size_t n = strlen(word);
    return strncmp(text, word, n) == 0 && (text[n] == '\0' || text[n] == '.');
}

/* Where the norm's pattern of that naming stands in the name; NULL = the name is no norm's. */
static const char *norm_find(const char *name, const struct norm *norm,
                             enum hl_api_layer_naming naming)
{
    const char *pattern = naming == HL_API_LAYER_NAMING_TE ? norm->te : norm->local;
    const char *at = strstr(name, pattern);
    if (at == NULL)
        return NULL;
    const char *rest = at + strlen(pattern);
    return has_component(rest, "weight") || has_component(rest, "bias") ? at : NULL;
}

/* "local_experts.3.linear_fc1.weight" and "linear_fc1.weight3", below "mlp.experts.". Returns the
 * length that the other name has (snprintf's), -1: the name is no expert's of the other naming. */
static int rename_expert(const char *name, enum hl_api_layer_naming to, char *out, size_t cap)
{
    static const char root[] = ".mlp.experts.", local[] = "local_experts.";
    static const char *const kinds[] = {"linear_fc1.weight", "linear_fc1.bias", "linear_fc2.weight",
                                        "linear_fc2.bias"};
    const char *at = strstr(name, root);
    if (at == NULL)
        return -1;
    const char *from = at + sizeof(root) - 1, *number = from + sizeof(local) - 1;
    bool is_local = strncmp(from, local, sizeof(local) - 1) == 0;
    size_t digits = is_local ? strspn(number, "0123456789") : 0, n;
    if (is_local != (to == HL_API_LAYER_NAMING_TE) || (is_local && number[digits] != '.'))
        return -1;
    const char *kind = is_local ? number + digits + 1 : from;
    for (size_t i = 0; i < HL_ARRAY_LEN(kinds); i++) {
        if (strncmp(kind, kinds[i], n = strlen(kinds[i])) != 0)
            continue;
        number = is_local ? number : kind + n;
        digits = is_local ? digits : strspn(number, "0123456789");
        const char *rest = is_local ? kind + n : number + digits;
        if (digits == 0 || (*rest != '\0' && *rest != '.'))
            continue;
        if (is_local)
            return snprintf(out, cap, "%.*s%s%.*s%s", (int)(from - name), name, kinds[i],
                            (int)digits, number, rest);
        return snprintf(out, cap, "%.*s%s%.*s.%s%s", (int)(from - name), name, local, (int)digits,
                        number, kinds[i], rest);
    }
    return -1;
}

/* `latent`: the layer of this tensor has latent attention. */
HL_CHECK static hl_status rename_norm(const char *name, enum hl_api_layer_naming to, bool experts,
                                      bool latent, char *out, size_t cap)
{
    enum hl_api_layer_naming from =
        to == HL_API_LAYER_NAMING_TE ? HL_API_LAYER_NAMING_LOCAL : HL_API_LAYER_NAMING_TE;
    int n = rename_expert(name, to, out, cap);
    for (size_t i = 0; i < HL_ARRAY_LEN(norms) && n < 0; i++) {
        const struct norm *norm = &norms[i];
        const char *at = norm_find(name, norm, from);
        bool stays = (experts && norm->stays_with_experts) ||
                     (latent ? norm->stays_with_latent : norm->needs_latent);
        if (at == NULL || (to == HL_API_LAYER_NAMING_TE && stays))
            continue;
        const char *old = from == HL_API_LAYER_NAMING_TE ? norm->te : norm->local;
        n = snprintf(out, cap, "%.*s%s%s", (int)(at - name), name,
                     to == HL_API_LAYER_NAMING_TE ? norm->te : norm->local, at + strlen(old));
    }
    if (n < 0)
        n = snprintf(out, cap, "%s", name);
    if (n < 0 || (size_t)n >= cap)
        return hl_fail(HL_EINVAL, "tensor '%.80s…' has too long a name under naming %s", name,
                       hl_api_layer_naming_name(to));
    return HL_OK;
}

hl_status hl_naming_rename(const char *name, enum hl_api_layer_naming to, bool experts, char *out,
                           size_t cap)
{
    return rename_norm(name, to, experts, false, out, cap);
}

static const char *const expert_signs[] = {".mlp.router.", ".mlp.experts.", ".mlp.shared_experts.",
                                           NULL};
static const char *const latent_signs[] = {".self_attention.linear_kv_down_proj.", NULL};

/* Has the layer of this norm one of the signs? Its name up to the norm is the layer's. */
static bool layer_has(const struct hl_safetensors *st, const char *name, const char *const *signs)
{
    const char *end = NULL;
    for (size_t i = 0; i < HL_ARRAY_LEN(norms) && end == NULL; i++)
        end = norm_find(name, &norms[i], HL_API_LAYER_NAMING_LOCAL);
    if (end == NULL)
        return false;
    size_t layer = (size_t)(end - name);
    for (size_t i = 0; i < st->count; i++) {
        const char *other = st->tensors[i].name;
        for (size_t k = 0; signs[k] != NULL; k++)
            if (strncmp(other, name, layer) == 0 &&
                strncmp(other + layer, signs[k], strlen(signs[k])) == 0)
                return true;
    }
    return false;
}

/* The new texts of a header while they are collected: pointers are offsets until the end. */
struct renaming {
    const struct hl_safetensors *st;
    enum hl_api_layer_naming to;
    struct hl_buf text;
    struct hl_tensor *tensors;
    struct hl_safetensors_meta *meta;
    size_t meta_count;
    uint32_t *by_name;
};

static void renaming_fini(struct renaming *r)
{
    hl_buf_fini(&r->text);
    free(r->tensors);
    free(r->meta);
    free(r->by_name);
}

static const char *add_text(struct renaming *r, const char *text)
{
    size_t at = r->text.len;
    (void)hl_buf_append(&r->text, text, strlen(text) + 1);
    return (const char *)(uintptr_t)at;
}

HL_CHECK static hl_status add_name(struct renaming *r, const char *prefix, const char *name,
                                   const char **out)
{
    char text[KEY_MAX];
    size_t n = strlen(prefix);
    bool te = r->to == HL_API_LAYER_NAMING_TE;
    bool experts = te && layer_has(r->st, name, expert_signs);
    bool latent = te && layer_has(r->st, name, latent_signs);
    memcpy(text, prefix, n);
    HL_TRY(rename_norm(name, r->to, experts, latent, text + n, HL_TENSOR_NAME_MAX + 1));
    *out = add_text(r, text);
    return HL_OK;
}

HL_CHECK static hl_status add_meta(struct renaming *r, const struct hl_safetensors_meta *pair)
{
    size_t n = strlen(HL_CRC_KEY);
    struct hl_safetensors_meta *to = &r->meta[r->meta_count];
    if (strcmp(pair->key, HL_NAMING_KEY) == 0)
        return HL_OK;
    if (strncmp(pair->key, HL_CRC_KEY, n) == 0 && strlen(pair->key) - n <= HL_TENSOR_NAME_MAX)
        HL_TRY(add_name(r, HL_CRC_KEY, pair->key + n, &to->key));
    else
        to->key = add_text(r, pair->key);
    to->value = add_text(r, pair->value);
    r->meta_count++;
    return HL_OK;
}

HL_CHECK static hl_status collect(struct renaming *r)
{
    const struct hl_safetensors *st = r->st;
    r->tensors = malloc((st->count + 1) * sizeof(*r->tensors));
    r->meta = malloc((st->meta_count + 1) * sizeof(*r->meta));
    r->by_name = malloc((st->count + 1) * sizeof(*r->by_name));
    if (r->tensors == NULL || r->meta == NULL || r->by_name == NULL)
        return hl_fail(HL_ENOMEM, "out of memory renaming %zu tensors", st->count);
    for (size_t i = 0; i < st->count; i++) {
        r->tensors[i] = st->tensors[i];
        r->by_name[i] = (uint32_t)i;
        HL_TRY(add_name(r, "", st->tensors[i].name, &r->tensors[i].name));
    }
    for (size_t i = 0; i < st->meta_count; i++)
        HL_TRY(add_meta(r, &st->meta[i]));
    struct hl_safetensors_meta *own = &r->meta[r->meta_count++];
    own->key = add_text(r, HL_NAMING_KEY);
    own->value = add_text(r, hl_api_layer_naming_name(r->to));
    if (r->text.failed)
        return hl_fail(HL_ENOMEM, "out of memory renaming %zu tensors", st->count);
    return HL_OK;
}

static int by_name(const void *a, const void *b, void *tensors)
{
    const struct hl_tensor *t = tensors;
    return strcmp(t[*(const uint32_t *)a].name, t[*(const uint32_t *)b].name);
}

/* Offsets become pointers, and names are put in order. */
HL_CHECK static hl_status settle(struct renaming *r)
{
    const char *base = r->text.data;
    size_t count = r->st->count;
    for (size_t i = 0; i < count; i++)
        r->tensors[i].name = base + (uintptr_t)r->tensors[i].name;
    for (size_t i = 0; i < r->meta_count; i++) {
        r->meta[i].key = base + (uintptr_t)r->meta[i].key;
        r->meta[i].value = base + (uintptr_t)r->meta[i].value;
    }
    qsort_r(r->by_name, count, sizeof(*r->by_name), by_name, r->tensors);
    for (size_t i = 1; i < count; i++) {
        const char *name = r->tensors[r->by_name[i]].name;
        if (strcmp(r->tensors[r->by_name[i - 1]].name, name) == 0)
            return hl_fail(HL_EINVAL, "tensor '%s' is there under both namings, local and te",
                           name);
    }
    return HL_OK;
}

hl_status hl_naming_apply(struct hl_safetensors *st, enum hl_api_layer_naming to)
{
    HL_AUTO(renaming_fini)
    struct renaming r = {.st = st, .to = to, .text = HL_BUF(TEXT_MAX)};
    HL_TRY(collect(&r));
    HL_TRY(settle(&r));
    free(st->tensors);
    free(st->meta);
    free(st->by_name);
    free(st->text);
    st->tensors = r.tensors;
    st->meta = r.meta;
    st->meta_count = r.meta_count;
    st->by_name = r.by_name;
    st->text = hl_buf_take(&r.text);
    r.tensors = NULL;
    r.meta = NULL;
    r.by_name = NULL;
    return HL_OK;
}
