#include "api/api.h"

#include <stdio.h>
#include <string.h>

/* ---- enums ---- */

const char *hl_api_enum_word(const struct hl_api_enum *e, int value)
{
    return value >= 0 && (size_t)value < e->count ? e->words[value] : "?";
}

int hl_api_enum_find(const struct hl_api_enum *e, const char *word)
{
    for (size_t i = 0; i < e->count; i++)
        if (strcmp(e->words[i], word) == 0)
            return (int)i;
    return -1;
}

const char *hl_api_enum_unknown(const struct hl_api_enum *e, const char *word, char *out)
{
    size_t size = HL_API_UNKNOWN_MAX;
    size_t first = e->words[0][0] == '\0'; /* skips the word for an unset value */
    int n = snprintf(out, size, "unknown %s '%.80s' (expected ", e->name, word);
    for (size_t i = first; i < e->count && n >= 0 && (size_t)n < size; i++)
        n += snprintf(out + n, size - (size_t)n, "%s%s%s",
                      i == first          ? ""
                      : i + 1 == e->count ? " or "
                                          : ", ",
                      e->words[i], i + 1 == e->count ? ")" : "");
    return out;
}

hl_status hl_api_enum_parse(const struct hl_api_enum *e, const char *word, int *out)
{
    char text[HL_API_UNKNOWN_MAX];
    int value = hl_api_enum_find(e, word);
    if (value < 0)
        return hl_fail(HL_EINVAL, "%s", hl_api_enum_unknown(e, word, text));
    *out = value;
    return HL_OK;
}

/* ---- copies ---- */

size_t hl_api_element_size(const struct hl_api_field *field)
{
    switch (field->kind) {
    case HL_API_BOOL:
        return sizeof(bool);
    case HL_API_UINT16:
        return sizeof(uint16_t);
    case HL_API_INT32:
    case HL_API_UINT32:
        return sizeof(uint32_t);
    case HL_API_INT64:
    case HL_API_UINT64:
        return sizeof(uint64_t);
    case HL_API_FLOAT64:
        return sizeof(double);
    case HL_API_TEXT:
        return sizeof(const char *);
    case HL_API_DATA:
        return sizeof(struct hl_api_data);
    case HL_API_ENUM:
        return sizeof(int);
    case HL_API_STRUCT:
        return field->type->size;
    }
    return 0;
}

static hl_status struct_copy_members(const struct hl_api_type *type, struct hl_arena *arena,
                                     char *value);

/* `value` holds a flat copy of an element: copies what it points to into the arena. */
static hl_status element_copy_members(const struct hl_api_field *field, struct hl_arena *arena,
                                      char *value)
{
    if (field->kind == HL_API_STRUCT)
        return struct_copy_members(field->type, arena, value);
    if (field->kind == HL_API_TEXT) {
        const char *text;
        memcpy(&text, value, sizeof(text));
        text = hl_arena_strdup(arena, text != NULL || field->optional ? text : "");
        memcpy(value, &text, sizeof(text));
    } else if (field->kind == HL_API_DATA) {
        struct hl_api_data data;
        memcpy(&data, value, sizeof(data));
        data.bytes = data.size > 0 ? hl_arena_text(arena, data.bytes, data.size) : NULL;
        memcpy(value, &data, sizeof(data));
    }
    return hl_arena_failed(arena) ? hl_fail(HL_ENOMEM, "out of memory copying %s", field->name)
                                  : HL_OK;
}

static hl_status list_copy_members(const struct hl_api_field *field, struct hl_arena *arena,
                                   char *value)
{
    struct hl_api_list list;
    size_t size = hl_api_element_size(field);
    memcpy(&list, value, sizeof(list));
    char *items = hl_arena_array(arena, list.count, size);
    if (items == NULL)
        return hl_fail(HL_ENOMEM, "out of memory copying %s", field->name);
    if (list.count > 0)
        memcpy(items, list.items, list.count * size);
    for (size_t i = 0; i < list.count; i++)
        HL_TRY(element_copy_members(field, arena, items + i * size));
    list.items = items;
    memcpy(value, &list, sizeof(list));
    return HL_OK;
}

static hl_status struct_copy_members(const struct hl_api_type *type, struct hl_arena *arena,
                                     char *value)
{
    for (size_t i = 0; i < type->field_count; i++) {
        const struct hl_api_field *field = &type->fields[i];
        HL_TRY(field->list ? list_copy_members(field, arena, value + field->offset)
                           : element_copy_members(field, arena, value + field->offset));
    }
    return HL_OK;
}

hl_status hl_api_copy(const struct hl_api_type *type, const void *from, struct hl_arena *arena,
                      void *to)
{
    char *value = hl_arena_alloc(arena, type->size);
    if (value == NULL)
        return hl_fail(HL_ENOMEM, "out of memory copying %s", type->name);
    memcpy(value, from, type->size);
    HL_TRY(struct_copy_members(type, arena, value));
    memcpy(to, value, type->size);
    return HL_OK;
}
