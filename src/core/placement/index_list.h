/* core/placement/index_list.h - a growable list of shard indices.
 *
 * Owns:    its items; zero-initialise, end with hl_index_list_fini.
 * Threads: one at a time.
 * Errors:  HL_ENOMEM.
 * Units:   none.
 * Limits:  2^31 indices.
 */
#ifndef HL_CORE_PLACEMENT_INDEX_LIST_H
#define HL_CORE_PLACEMENT_INDEX_LIST_H

#include <stdint.h>

#include "base/status.h"

struct hl_index_list {
    uint32_t *items;
    uint32_t count, room;
};

hl_status hl_index_list_add(struct hl_index_list *list, uint32_t index) HL_CHECK;
/* Removes the entry; the last one takes its place. */
void hl_index_list_remove(struct hl_index_list *list, uint32_t at);
uint64_t hl_index_list_bytes(const struct hl_index_list *list);
void hl_index_list_fini(struct hl_index_list *list);

#endif
