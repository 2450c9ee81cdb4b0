/* Renames by patterns inside a name, so that its prefixes and suffixes are kept. Whether a norm
 * keeps its name depends on what else its layer has. */
#include "core/model/naming.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/families/family.h"
#include "core/safetensors/safetensors_rename.h"

/* The part of a norm's name between the layer's name and "weight" or "bias". */
static const struct norm {
    const char *local;
    const char *te;
    bool stays_with_experts;
    bool stays_with_latent; /* attention */
    bool needs_latent;      /* without it, the local name belongs to another norm */
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

/* The text starts with `word` as a whole component of a name. */
static bool has_component(const char *text, const char *word)
{
    size_t n = strlen(word);
    return strncmp(text, word, n) == 0 && (text[n] == '\0' || text[n] == '.');
}

/* The start of the norm's pattern, in that naming, within the name; NULL = not the name of a
 * norm. */
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

/* Converts between "local_experts.3.linear_fc1.weight" and "linear_fc1.weight3", below
 * "mlp.experts.". Returns the length of the new name (as snprintf does), or -1 if the name is not
 * that of an expert in the other naming. */
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

/* `latent`: the tensor's layer has latent attention. */
HL_CHECK static hl_status rename_norm(const char *name, enum hl_api_layer_naming to, bool experts,
                                      bool latent, char *out, size_t cap)
{
    enum hl_api_layer_naming from =
        to == HL_API_LAYER_NAMING_TE ? HL_API_LAYER_NAMING_LOCAL : HL_API_LAYER_NAMING_TE;
    bool vision = hl_vision_name(name) != NULL;
    int n = vision ? -1 : rename_expert(name, to, out, cap);
    for (size_t i = 0; i < HL_ARRAY_LEN(norms) && n < 0 && !vision; i++) {
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

/* True if the layer of this norm has one of the signs. The name up to the norm is the layer's. */
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

/* The new name of a tensor of that header. */
HL_CHECK static hl_status rename_tensor(const struct hl_safetensors *st, const char *name,
                                        enum hl_api_layer_naming to,
                                        char out[HL_TENSOR_NAME_MAX + 1])
{
    bool te = to == HL_API_LAYER_NAMING_TE;
    bool experts = te && layer_has(st, name, expert_signs);
    bool latent = te && layer_has(st, name, latent_signs);
    return rename_norm(name, to, experts, latent, out, HL_TENSOR_NAME_MAX + 1);
}

hl_status hl_naming_names(const char *const *names, size_t count, enum hl_api_layer_naming to,
                          struct hl_arena *arena, const char ***out)
{
    char name[HL_TENSOR_NAME_MAX + 1];
    struct hl_safetensors st = {.count = count};
    const char **made = hl_arena_array(arena, count + 1, sizeof(*made));
    st.tensors = hl_arena_array(arena, count + 1, sizeof(*st.tensors));
    if (made == NULL || st.tensors == NULL)
        return hl_fail(HL_ENOMEM, "out of memory renaming %zu tensors", count);
    for (size_t i = 0; i < count; i++)
        st.tensors[i].name = names[i];
    for (size_t i = 0; i < count; i++) {
        HL_TRY(rename_tensor(&st, names[i], to, name));
        made[i] = hl_arena_strdup(arena, name);
        if (made[i] == NULL)
            return hl_fail(HL_ENOMEM, "out of memory renaming %zu tensors", count);
    }
    *out = made;
    return HL_OK;
}

HL_CHECK static hl_status rename_all(struct hl_rename *r, const struct hl_safetensors *st,
                                     enum hl_api_layer_naming to)
{
    char name[HL_TENSOR_NAME_MAX + 1];
    size_t n = strlen(HL_CRC_KEY);
    for (size_t i = 0; i < st->count; i++) {
        HL_TRY(rename_tensor(st, st->tensors[i].name, to, name));
        hl_rename_add(r, &st->tensors[i], name);
    }
    for (size_t i = 0; i < st->meta_count; i++) {
        const struct hl_safetensors_meta *pair = &st->meta[i];
        if (strcmp(pair->key, HL_NAMING_KEY) == 0)
            continue;
        if (strncmp(pair->key, HL_CRC_KEY, n) == 0 && strlen(pair->key) - n <= HL_TENSOR_NAME_MAX) {
            HL_TRY(rename_tensor(st, pair->key + n, to, name));
            hl_rename_add_meta(r, HL_CRC_KEY, name, pair->value);
        } else {
            hl_rename_add_meta(r, "", pair->key, pair->value);
        }
    }
    hl_rename_add_meta(r, "", HL_NAMING_KEY, hl_api_layer_naming_name(to));
    return HL_OK;
}

HL_CHECK static hl_status check_twice(const struct hl_safetensors *st)
{
    for (size_t i = 1; i < st->count; i++) {
        const char *name = st->tensors[st->by_name[i]].name;
        if (strcmp(st->tensors[st->by_name[i - 1]].name, name) == 0)
            return hl_fail(HL_EINVAL, "tensor '%s' exists under both namings, local and te", name);
    }
    return HL_OK;
}

hl_status hl_naming_apply(struct hl_safetensors *st, enum hl_api_layer_naming to)
{
    HL_AUTO(hl_rename_fini) struct hl_rename r = {0};
    HL_AUTO(hl_safetensors_fini) struct hl_safetensors renamed = {0};
    HL_TRY(hl_rename_init(&r, st));
    HL_TRY(rename_all(&r, st, to));
    HL_TRY(hl_rename_take(&r, st->data_offset, &renamed));
    HL_TRY(check_twice(&renamed));
    hl_safetensors_fini(st);
    *st = renamed;
    renamed = (struct hl_safetensors){0};
    return HL_OK;
}
