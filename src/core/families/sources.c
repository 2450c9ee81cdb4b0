/* The Hugging Face tensors that make up a row of a table. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "core/families/family.h"

size_t hl_family_source_count(const struct hl_family_tensor *row)
{
    size_t n = 0;
    while (n < HL_FAMILY_SOURCES_MAX && row->hf[n] != NULL)
        n++;
    return n;
}

hl_status hl_family_fill(const char *pattern, uint64_t number, char *out, size_t cap)
{
    const char *star = strchr(pattern, '*');
    int n = star == NULL ? snprintf(out, cap, "%s", pattern)
                         : snprintf(out, cap, "%.*s%" PRIu64 "%s", (int)(star - pattern), pattern,
                                    number, star + 1);
    if (n < 0 || (size_t)n >= cap)
        return hl_fail(HL_EINVAL, "a tensor's name is too long: %.80s", pattern);
    return HL_OK;
}

hl_status hl_family_source_name(const struct hl_family *family,
                                const struct hl_family_prefix *prefix,
                                const struct hl_family_tensor *row, size_t k, uint64_t layer,
                                uint64_t expert, char *out, size_t cap)
{
    const char *pattern = row->hf[k];
    int n;
    if (pattern[0] == '/') {
        n = snprintf(out, cap, "%s", prefix->head);
        pattern++;
    } else if (row->place == HL_PLACE_EMBEDDING || row->place == HL_PLACE_HEAD) {
        n = snprintf(out, cap, "%s", prefix->body);
    } else {
        n = snprintf(out, cap, "%s%s%" PRIu64 ".", prefix->body, family->layers, layer);
    }
    if (n < 0 || (size_t)n >= cap)
        return hl_fail(HL_EINVAL, "a tensor's name is too long: %.80s", pattern);
    return hl_family_fill(pattern, expert, out + n, cap - (size_t)n);
}

/* The number of rows of source k in Megatron's orientation. */
HL_CHECK static hl_status source_rows(const struct hl_family_scope *scope,
                                      const struct hl_family_tensor *row, size_t k, uint64_t *out)
{
    int whole = hl_family_source_count(row) == 1;
    if (row->split == HL_SPLIT_QKV)
        return hl_family_size(scope,
                              whole    ? "(heads + 2 * kv_heads) * head_dim"
                              : k == 0 ? "heads * head_dim"
                                       : "kv_heads * head_dim",
                              0, out);
    HL_TRY(hl_family_size(scope, row->rows, 1, out));
    if (row->split == HL_SPLIT_PAIRS && whole)
        *out *= 2;
    return HL_OK;
}

hl_status hl_family_source_dims(const struct hl_family_scope *scope,
                                const struct hl_family_tensor *row, size_t k, struct hl_dims *out)
{
    uint64_t rows, cols, experts;
    struct hl_dims d = {0};
    HL_TRY(source_rows(scope, row, k, &rows));
    HL_TRY(hl_family_size(scope, row->cols, 1, &cols));
    if (row->form & HL_FORM_STACKED) {
        HL_TRY(hl_family_size(scope, "experts", 0, &experts));
        d.shape[d.rank++] = experts;
    }
    int transposed = (row->form & HL_FORM_TRANSPOSED) != 0 && row->cols != NULL;
    d.shape[d.rank++] = transposed ? cols : rows;
    if (row->cols != NULL)
        d.shape[d.rank++] = transposed ? rows : cols;
    *out = d;
    return HL_OK;
}
