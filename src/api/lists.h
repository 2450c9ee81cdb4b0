/* api/lists.h - builds lists of pairs and of texts.
 *
 * Owns:    nothing; what is added is copied into the arena.
 * Threads: any; a list is its owner's.
 * Errors:  out of memory leaves the list as it was; the arena remembers it (hl_arena_failed).
 * Units:   none.
 * Limits:  pairs are searched one by one: meant for tens of them.
 */
#ifndef HL_API_LISTS_H
#define HL_API_LISTS_H

#include "api/types.h"

/* The value of a key, borrowed; `absent` if the list lacks the key. */
const char *hl_api_pair_find(const struct hl_api_key_value_list *list, const char *key,
                             const char *absent);
/* The key has this value from now on. */
void hl_api_pair_set(struct hl_arena *arena, struct hl_api_key_value_list *list, const char *key,
                     const char *value);
void hl_api_pair_remove(struct hl_api_key_value_list *list, const char *key);
/* All pairs of `more` are set in `list`. */
void hl_api_pairs_merge(struct hl_arena *arena, struct hl_api_key_value_list *list,
                        const struct hl_api_key_value_list *more);

/* Appends to a list that was empty at first and that only this function has grown. */
void hl_api_text_add(struct hl_arena *arena, struct hl_api_text_list *list, const char *text);

#endif
