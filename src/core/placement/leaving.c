#include "core/placement/leaving.h"

#include <stdlib.h>

#define ROOM_MIN 64

/* Sums over the listed shards of a set, as a rank's set and as a version. */
struct hl_leaving_set {
    uint32_t round, version_round; /* the list that the other fields belong to */
    uint32_t count;
    double order, version_order;
};

void hl_leaving_fini(struct hl_leaving_list *list)
{
    free(list->items);
    free(list->sets);
    *list = (struct hl_leaving_list){0};
}

uint64_t hl_leaving_bytes(const struct hl_leaving_list *list)
{
    return list->room * sizeof(*list->items) + (uint64_t)list->set_room * sizeof(*list->sets);
}

void hl_leaving_clear(struct hl_leaving_list *list)
{
    list->count = list->heap = 0;
}

hl_status hl_leaving_add(struct hl_leaving_list *list, const struct hl_leaving *item)
{
    if (list->count == list->room) {
        size_t room = list->room == 0 ? ROOM_MIN : list->room * 2;
        struct hl_leaving *items = realloc(list->items, room * sizeof(*items));
        if (items == NULL)
            return hl_fail(HL_ENOMEM, "out of memory allocating an order of %zu shards", room);
        list->items = items;
        list->room = room;
    }
    list->items[list->count++] = *item;
    return HL_OK;
}

/* ---- sets ------------------------------------------------------------------------------------ */

/* Invalidates the sums of all sets. */
static hl_status begin_sets(struct hl_leaving_list *list, uint32_t count)
{
    if (list->set_room < count) {
        uint32_t room = count + count / 2;
        struct hl_leaving_set *sets = calloc(room, sizeof(*sets));
        if (sets == NULL)
            return hl_fail(HL_ENOMEM, "out of memory allocating an order of %u sets", count);
        free(list->sets);
        list->sets = sets;
        list->set_room = room;
        list->round = 0;
    }
    if (++list->round == 0) { /* round wrapped: sets may still have this number from an old list */
        for (uint32_t i = 0; i < list->set_room; i++)
            list->sets[i].round = list->sets[i].version_round = 0;
        list->round = 1;
    }
    return HL_OK;
}

static void note_order(double *longest, uint32_t *round, uint32_t now, double order)
{
    if (*round != now || *longest < order)
        *longest = order;
    *round = now;
}

static void note_sets(struct hl_leaving_list *list)
{
    for (size_t i = 0; i < list->count; i++) {
        const struct hl_leaving *x = &list->items[i];
        if (x->set != HL_SET_NONE) {
            struct hl_leaving_set *set = &list->sets[x->set];
            set->count = set->round == list->round ? set->count + 1 : 1;
            note_order(&set->order, &set->round, list->round, x->order);
        }
        if (x->version != HL_SET_NONE) {
            struct hl_leaving_set *version = &list->sets[x->version];
            note_order(&version->version_order, &version->version_round, list->round, x->order);
        }
    }
}

static void work_out(struct hl_leaving_list *list, const struct hl_set_table *sets, bool by_parts)
{
    for (size_t i = 0; i < list->count; i++) {
        struct hl_leaving *x = &list->items[i];
        bool has_set = x->set != HL_SET_NONE;
        x->set_order = has_set ? list->sets[x->set].order : x->order;
        x->version_order =
            x->version != HL_SET_NONE ? list->sets[x->version].version_order : x->order;
        x->is_part = by_parts && has_set && list->sets[x->set].count < sets->sets[x->set].shards;
    }
}

/* ---- the order ------------------------------------------------------------------------------- */

static int compare_numbers(double a, double b)
{
    return a < b ? -1 : a > b;
}

static int compare_ids(struct hl_id a, struct hl_id b)
{
    return a.hi != b.hi ? (a.hi < b.hi ? -1 : 1) : a.lo < b.lo ? -1 : a.lo > b.lo;
}

static int compare_indices(uint32_t a, uint32_t b)
{
    return a < b ? -1 : a > b;
}

static bool leaves_before(const struct hl_leaving *a, const struct hl_leaving *b)
{
    int by = (int)b->is_part - (int)a->is_part;
    by = by != 0 ? by : compare_numbers(a->version_order, b->version_order);
    by = by != 0 ? by : compare_indices(a->version, b->version);
    by = by != 0 ? by : compare_numbers(a->set_order, b->set_order);
    by = by != 0 ? by : compare_indices(a->set, b->set);
    by = by != 0 ? by : compare_numbers(a->order, b->order);
    by = by != 0 ? by : compare_ids(a->id, b->id);
    return by < 0;
}

/* Puts `x` at place `at` of the heap or below it. */
static void sink_item(struct hl_leaving *heap, size_t count, size_t at, struct hl_leaving x)
{
    for (size_t child; (child = 2 * at + 1) < count; at = child) {
        child += child + 1 < count && leaves_before(&heap[child + 1], &heap[child]);
        if (!leaves_before(&heap[child], &x))
            break;
        heap[at] = heap[child];
    }
    heap[at] = x;
}

hl_status hl_leaving_order(struct hl_leaving_list *list, const struct hl_set_table *sets,
                           bool by_parts)
{
    HL_TRY(begin_sets(list, sets->end));
    note_sets(list);
    work_out(list, sets, by_parts);
    list->heap = list->count;
    for (size_t i = list->heap / 2; i > 0; i--)
        sink_item(list->items, list->heap, i - 1, list->items[i - 1]);
    return HL_OK;
}

const struct hl_leaving *hl_leaving_at(struct hl_leaving_list *list, size_t i)
{
    while (list->count - list->heap <= i) {
        struct hl_leaving first = list->items[0], last = list->items[--list->heap];
        sink_item(list->items, list->heap, 0, last);
        list->items[list->heap] = first;
    }
    return &list->items[list->count - 1 - i];
}
