/* api/lists.h - lists of pairs and of texts that are put together.
 *
 * Owns:    nothing; what is added is copied into the arena.
 * Threads: any; a list is its owner's.
 * Errors:  out of memory leaves the list as it was; the arena remembers it (hl_arena_failed).
 * Units:   none.
 * Limits:  a pair is found by looking at all: for tens of them.
 */
#ifndef HL_API_LISTS_H
#define HL_API_LISTS_H

#include "api/types.h"

/* The value of a key, borrowed; `absent` without one. */
const char *hl_api_pair_find(const struct hl_api_key_value_list *list, const char *key,
                             const char *absent);
/* The key has this value from now on. */
void hl_api_pair_set(struct hl_arena *arena, struct hl_api_key_value_list *list, const char *key,
                     const char *value);
void hl_api_pair_remove(struct hl_api_key_value_list *list, const char *key);
/* All pairs of `more` are set in `list`. */
void hl_api_pairs_merge(struct hl_arena *arena, struct hl_api_key_value_list *list,
                        const struct hl_api_key_value_list *more);

/* To a list that was empty at first and that only this has made longer. */
void hl_api_text_add(struct hl_arena *arena, struct hl_api_text_list *list, const char *text);

#endif
