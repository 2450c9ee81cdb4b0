/* The tensors that a config implies, in the order of the table: the contents of a checkpoint. */
#include "core/families/logical.h"

#include <stdlib.h>
#include <string.h>

#include "base/buf.h"

#define TENSORS_MAX      ((size_t)1 << 24)
#define NAMES_MAX        ((size_t)4 << 30)
#define LOGICAL_NAME_MAX 256

struct lister {
    const struct hl_hf_config *config;
    const struct hl_checkpoint *has;
    const struct hl_family_prefix *prefix;
    struct hl_buf names;
    struct hl_tensor *list;
    size_t count, cap;
};

static bool is_copy(const struct lister *l, const char *name)
{
    size_t i;
    json_t *copy;
    json_array_foreach (l->has->copies, i, copy)
        if (json_is_string(copy) && strcmp(json_string_value(copy), name) == 0)
            return true;
    return false;
}

/* `repeats`: only if the checkpoint has it. The buffer of names moves while it grows, so names are
 * offsets until the end. */
HL_CHECK static hl_status list_source(struct lister *l, const struct hl_family_tensor *row,
                                      size_t k, uint64_t layer, uint64_t expert, bool repeats)
{
    struct hl_family_scope scope = hl_hf_scope(l->config, layer);
    struct hl_dims dims;
    char name[LOGICAL_NAME_MAX];
    HL_TRY(hl_family_source_name(l->config->family, l->prefix, row, k, layer, expert, name,
                                 sizeof(name)));
    if (repeats && !is_copy(l, name))
        return HL_OK;
    HL_TRY(hl_family_source_dims(&scope, row, k, &dims));
    if (l->count == l->cap) {
        size_t cap = l->cap == 0 ? 256 : l->cap * 2;
        struct hl_tensor *more = cap <= TENSORS_MAX ? realloc(l->list, cap * sizeof(*more)) : NULL;
        if (more == NULL)
            return hl_fail(HL_ENOMEM, "out of memory allocating a list of %zu tensors", cap);
        l->list = more;
        l->cap = cap;
    }
    struct hl_tensor *t = &l->list[l->count++];
    *t = (struct hl_tensor){.name = (const char *)(uintptr_t)l->names.len, .rank = dims.rank};
    memcpy(t->shape, dims.shape, sizeof(dims.shape));
    return hl_buf_append(&l->names, name, strlen(name) + 1);
}

HL_CHECK static hl_status list_row(struct lister *l, const struct hl_family_tensor *row,
                                   uint64_t layer)
{
    struct hl_family_scope scope = hl_hf_scope(l->config, layer);
    uint64_t wanted, experts = 1;
    bool head = row->place == HL_PLACE_HEAD && row->split == HL_SPLIT_VOCABULARY;
    bool copy = row->place == HL_PLACE_MTP_COPY;
    bool repeats = (copy && !l->has->mtp_copies) || (head && l->config->tied);
    size_t sources = copy ? 1 : hl_family_source_count(row);
    HL_TRY(hl_family_size(&scope, row->when, 1, &wanted));
    if (wanted == 0)
        return HL_OK;
    if (row->place == HL_PLACE_EXPERT && !(row->form & HL_FORM_STACKED))
        HL_TRY(hl_family_size(&scope, "experts", 0, &experts));
    for (uint64_t e = 0; e < experts; e++)
        for (size_t k = 0; k < sources; k++)
            HL_TRY(list_source(l, row, k, layer, e, repeats));
    return HL_OK;
}

HL_CHECK static hl_status list_place(struct lister *l, enum hl_family_place place, uint64_t layer)
{
    for (const struct hl_family_tensor *t = l->config->family->tensors; t->name != NULL; t++)
        if (t->place == place && !(t->form & HL_FORM_SEPARATE))
            HL_TRY(list_row(l, t, layer));
    return HL_OK;
}

HL_CHECK static hl_status list_layer(struct lister *l, uint64_t layer)
{
    HL_TRY(list_place(l, HL_PLACE_LAYER, layer));
    return list_place(l, HL_PLACE_EXPERT, layer);
}

HL_CHECK static hl_status list_mtp(struct lister *l)
{
    struct hl_family_scope scope = hl_hf_scope(l->config, l->config->layers);
    static const char symbol[] = "mtp_layers";
    uint64_t count = 0;
    if (hl_family_symbol_index(l->config->family, symbol, strlen(symbol)) >= 0)
        HL_TRY(hl_family_size(&scope, symbol, 0, &count));
    for (uint64_t i = l->config->layers; i < l->config->layers + count; i++) {
        HL_TRY(list_place(l, HL_PLACE_MTP, i));
        HL_TRY(list_layer(l, i));
        HL_TRY(list_place(l, HL_PLACE_MTP_COPY, i));
    }
    return HL_OK;
}

HL_CHECK static hl_status list_all(struct lister *l)
{
    HL_TRY(list_place(l, HL_PLACE_EMBEDDING, 0));
    for (uint64_t i = 0; i < l->config->layers; i++)
        HL_TRY(list_layer(l, i));
    HL_TRY(list_place(l, HL_PLACE_HEAD, 0));
    return l->has->mtp ? list_mtp(l) : HL_OK;
}

HL_CHECK static hl_status find_prefix(struct lister *l)
{
    const struct hl_family *family = l->config->family;
    for (l->prefix = family->prefixes; l->prefix->body != NULL; l->prefix++)
        if (l->has->prefix == NULL || strcmp(l->prefix->body, l->has->prefix) == 0)
            return HL_OK;
    return hl_fail(HL_EINVAL, "names of a %s model do not begin with '%.60s'", family->name,
                   l->has->prefix);
}

hl_status hl_family_logical(const struct hl_hf_config *config, const struct hl_checkpoint *has,
                            struct hl_logical *out)
{
    struct lister l = {.config = config, .has = has, .names = HL_BUF(NAMES_MAX)};
    HL_TRY(find_prefix(&l));
    hl_status st = list_all(&l);
    if (st != HL_OK) {
        free(l.list);
        hl_buf_fini(&l.names);
        return st;
    }
    *out = (struct hl_logical){.tensors = l.list, .count = l.count, .names = hl_buf_take(&l.names)};
    for (size_t i = 0; i < out->count; i++)
        out->tensors[i].name = out->names + (uintptr_t)out->tensors[i].name;
    return HL_OK;
}

void hl_logical_fini(struct hl_logical *logical)
{
    free(logical->tensors);
    free(logical->names);
    *logical = (struct hl_logical){0};
}
