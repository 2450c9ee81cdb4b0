#include "core/placement/index_list.h"

#include <stdlib.h>

#define ROOM_MIN 64
#define ROOM_MAX (UINT32_C(1) << 31)

hl_status hl_index_list_add(struct hl_index_list *list, uint32_t index)
{
    if (list->count == list->room) {
        uint32_t room = list->room == 0 ? ROOM_MIN : list->room * 2;
        uint32_t *items =
            list->room == ROOM_MAX ? NULL : realloc(list->items, (size_t)room * sizeof(*items));
        if (items == NULL)
            return hl_fail(HL_ENOMEM, "out of memory allocating a list of %u shards", room);
        list->items = items;
        list->room = room;
    }
    list->items[list->count++] = index;
    return HL_OK;
}

void hl_index_list_remove(struct hl_index_list *list, uint32_t at)
{
    list->items[at] = list->items[--list->count];
}

uint64_t hl_index_list_bytes(const struct hl_index_list *list)
{
    return (uint64_t)list->room * sizeof(*list->items);
}

void hl_index_list_fini(struct hl_index_list *list)
{
    free(list->items);
    *list = (struct hl_index_list){0};
}
