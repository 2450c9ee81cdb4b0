/* Converts recursively; depth and the number of values are limited, because a pickle's values can
 * contain themselves. */
#include "core/torch/plain.h"
#include <inttypes.h>
#include <math.h>
#include <stdio.h>

#define DEPTH_MAX  16
#define VALUES_MAX ((size_t)1 << 16)
#define KEY_MAX    255

struct plainer {
    unsigned depth;
    size_t values;
};

static json_t *plain_value(struct plainer *p, const struct hl_pickle_value *v);

static json_t *plain_list(struct plainer *p, const struct hl_pickle_items *items)
{
    json_t *list = json_array();
    for (uint32_t i = 0; i < items->count && p->values < VALUES_MAX; i++) {
        json_t *value = plain_value(p, items->at[i]);
        json_array_append_new(list, value != NULL ? value : json_null());
    }
    return list;
}

/* Adds a member to the object. A key that is neither text nor a number is left out. */
static void plain_member(json_t *object, const struct hl_pickle_value *key, json_t *value)
{
    char name[KEY_MAX + 1];
    if (key->kind == HL_PICKLE_INT)
        snprintf(name, sizeof(name), "%" PRId64, key->integer);
    else if (key->kind == HL_PICKLE_TEXT && key->text.len <= KEY_MAX)
        snprintf(name, sizeof(name), "%.*s", (int)key->text.len, key->text.data);
    else
        name[0] = '\0';
    if (value != NULL && name[0] != '\0')
        (void)json_object_set(object, name, value); /* left out if not UTF-8 or out of memory */
    json_decref(value);
}

static json_t *plain_pairs(struct plainer *p, const struct hl_pickle_items *pairs)
{
    json_t *object = json_object();
    for (uint32_t i = 0; i + 1 < pairs->count && p->values < VALUES_MAX; i += 2)
        plain_member(object, pairs->at[i], plain_value(p, pairs->at[i + 1]));
    return object;
}

static json_t *plain_value(struct plainer *p, const struct hl_pickle_value *v)
{
    json_t *out = NULL;
    if (v == NULL || p->depth == DEPTH_MAX || p->values++ >= VALUES_MAX)
        return NULL;
    p->depth++;
    if (v->kind == HL_PICKLE_NONE)
        out = json_null();
    else if (v->kind == HL_PICKLE_BOOL)
        out = json_boolean(v->integer != 0);
    else if (v->kind == HL_PICKLE_INT)
        out = json_integer(v->integer);
    else if (v->kind == HL_PICKLE_FLOAT && isfinite(v->real))
        out = json_real(v->real);
    else if (v->kind == HL_PICKLE_TEXT)
        out = json_stringn(v->text.data, v->text.len);
    else if (hl_pickle_sequence(v) != NULL)
        out = plain_list(p, hl_pickle_sequence(v));
    else if (hl_pickle_pairs(v) != NULL)
        out = plain_pairs(p, hl_pickle_pairs(v));
    p->depth--;
    return out;
}

json_t *hl_pickle_json(const struct hl_pickle_value *v)
{
    struct plainer p = {0};
    return plain_value(&p, v);
}
