#include "api/lists.h"

#include <string.h>

static struct hl_api_key_value *find_pair(const struct hl_api_key_value_list *list, const char *key)
{
    for (size_t i = 0; i < list->count; i++)
        if (strcmp(list->items[i].key, key) == 0)
            return &list->items[i];
    return NULL;
}

const char *hl_api_pair_find(const struct hl_api_key_value_list *list, const char *key,
                             const char *absent)
{
    const struct hl_api_key_value *pair = find_pair(list, key);
    return pair != NULL ? pair->value : absent;
}

/* Copies the list, because a decoded one has no room for another element. */
static struct hl_api_key_value *add_pair(struct hl_arena *arena, struct hl_api_key_value_list *list,
                                         const char *key)
{
    const char *name = hl_arena_strdup(arena, key);
    struct hl_api_key_value *items = hl_arena_array(arena, list->count + 1, sizeof(*items));
    if (name == NULL || items == NULL)
        return NULL;
    if (list->count > 0)
        memcpy(items, list->items, list->count * sizeof(*items));
    items[list->count] = (struct hl_api_key_value){name, ""};
    list->items = items;
    return &list->items[list->count++];
}

void hl_api_pair_set(struct hl_arena *arena, struct hl_api_key_value_list *list, const char *key,
                     const char *value)
{
    const char *copy = hl_arena_strdup(arena, value);
    struct hl_api_key_value *pair = find_pair(list, key);
    if (copy != NULL && pair == NULL)
        pair = add_pair(arena, list, key);
    if (copy != NULL && pair != NULL)
        pair->value = copy;
}

void hl_api_pair_remove(struct hl_api_key_value_list *list, const char *key)
{
    struct hl_api_key_value *pair = find_pair(list, key);
    if (pair == NULL)
        return;
    size_t behind = list->count - (size_t)(pair - list->items) - 1;
    memmove(pair, pair + 1, behind * sizeof(*pair));
    list->count--;
}

void hl_api_pairs_merge(struct hl_arena *arena, struct hl_api_key_value_list *list,
                        const struct hl_api_key_value_list *more)
{
    for (size_t i = 0; i < more->count; i++)
        hl_api_pair_set(arena, list, more->items[i].key, more->items[i].value);
}

void hl_api_text_add(struct hl_arena *arena, struct hl_api_text_list *list, const char *text)
{
    const char *copy = hl_arena_strdup(arena, text);
    const char **items = hl_arena_grow(arena, list->items, list->count, sizeof(*items));
    if (copy == NULL || items == NULL)
        return;
    list->items = items;
    list->items[list->count++] = copy;
}
