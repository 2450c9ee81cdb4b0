/* Accessors for a pickle's values. They know two classes by name: torch.Size is a sequence, and
 * collections.OrderedDict a dictionary. */
#include "core/torch/value.h"
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

const char *hl_pickle_class(const struct hl_pickle_value *v)
{
    if (v != NULL && v->kind == HL_PICKLE_OBJECT)
        v = v->object->callable;
    return v != NULL && v->kind == HL_PICKLE_CLASS ? v->text.data : NULL;
}

bool hl_pickle_is(const struct hl_pickle_value *v, const char *class_name)
{
    const char *name = hl_pickle_class(v);
    return name != NULL && v->kind == HL_PICKLE_OBJECT && strcmp(name, class_name) == 0;
}

const char *hl_pickle_what(const struct hl_pickle_value *v, char *buf, size_t cap)
{
    static const char *const names[HL_PICKLE_KIND_COUNT] = {
        [HL_PICKLE_NONE] = "None",
        [HL_PICKLE_BOOL] = "a bool",
        [HL_PICKLE_INT] = "an int",
        [HL_PICKLE_BIG] = "an int beyond 64 bits",
        [HL_PICKLE_FLOAT] = "a float",
        [HL_PICKLE_TEXT] = "a str",
        [HL_PICKLE_BYTES] = "bytes",
        [HL_PICKLE_TUPLE] = "a tuple",
        [HL_PICKLE_LIST] = "a list",
        [HL_PICKLE_DICT] = "a dict",
        [HL_PICKLE_SET] = "a set",
        [HL_PICKLE_CLASS] = "the class",
        [HL_PICKLE_PERSISTENT] = "a storage",
        [HL_PICKLE_OBJECT] = "an object",
    };
    const char *class_name = hl_pickle_class(v);
    if (class_name != NULL)
        snprintf(buf, cap, "%s %s%.200s", names[v->kind],
                 v->kind == HL_PICKLE_OBJECT ? "of class " : "", class_name);
    else
        snprintf(buf, cap, "%s", v != NULL ? names[v->kind] : "nothing");
    return buf;
}

bool hl_pickle_text_is(const struct hl_pickle_value *v, const char *text)
{
    return v != NULL && v->kind == HL_PICKLE_TEXT && v->text.len == strlen(text) &&
           memcmp(v->text.data, text, v->text.len) == 0;
}

const struct hl_pickle_items *hl_pickle_sequence(const struct hl_pickle_value *v)
{
    /* torch.Size is called with one tuple. */
    if (hl_pickle_is(v, "torch.Size") && v->object->args->items.count == 1)
        v = v->object->args->items.at[0];
    return v != NULL && (v->kind == HL_PICKLE_TUPLE || v->kind == HL_PICKLE_LIST) ? &v->items
                                                                                  : NULL;
}

const struct hl_pickle_items *hl_pickle_pairs(const struct hl_pickle_value *v)
{
    if (v != NULL && v->kind == HL_PICKLE_DICT)
        return &v->items;
    /* An OrderedDict that is called with arguments contains more than its pairs. */
    return hl_pickle_is(v, "collections.OrderedDict") && v->object->args->items.count == 0 &&
                   v->object->keywords == NULL
               ? &v->object->pairs
               : NULL;
}

const struct hl_pickle_value *hl_pickle_find(const struct hl_pickle_value *v, const char *key)
{
    const struct hl_pickle_items *pairs = hl_pickle_pairs(v);
    for (uint32_t i = pairs != NULL ? pairs->count : 0; i >= 2; i -= 2)
        if (hl_pickle_text_is(pairs->at[i - 2], key))
            return pairs->at[i - 1];
    return NULL;
}

const struct hl_pickle_value *hl_pickle_attribute(const struct hl_pickle_value *v, const char *name)
{
    return v != NULL && v->kind == HL_PICKLE_OBJECT ? hl_pickle_find(v->object->state, name) : NULL;
}

hl_status hl_pickle_int(const struct hl_pickle_value *v, int64_t *out)
{
    char what[256];
    if (v == NULL || v->kind != HL_PICKLE_INT)
        return hl_fail(HL_EINVAL, "an int is expected, not %s",
                       hl_pickle_what(v, what, sizeof(what)));
    *out = v->integer;
    return HL_OK;
}

hl_status hl_pickle_size(const struct hl_pickle_value *v, uint64_t *out)
{
    int64_t n = 0;
    HL_TRY(hl_pickle_int(v, &n));
    if (n < 0)
        return hl_fail(HL_EINVAL, "%" PRId64 " is negative", n);
    *out = (uint64_t)n;
    return HL_OK;
}

hl_status hl_pickle_sizes(const struct hl_pickle_value *v, uint64_t *list, uint32_t max,
                          uint32_t *count)
{
    char what[256];
    const struct hl_pickle_items *items = hl_pickle_sequence(v);
    if (items == NULL)
        return hl_fail(HL_EINVAL, "a tuple of ints is expected, not %s",
                       hl_pickle_what(v, what, sizeof(what)));
    if (items->count > max)
        return hl_fail(HL_EUNSUPPORTED, "%u dimensions, at most %u", items->count, max);
    for (uint32_t i = 0; i < items->count; i++)
        HL_TRY(hl_pickle_size(items->at[i], &list[i]));
    *count = items->count;
    return HL_OK;
}
