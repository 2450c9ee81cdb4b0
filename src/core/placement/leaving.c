#include "core/placement/leaving.h"

#include <stdlib.h>

#include "core/placement/sets.h"

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

/* Shards of a set side by side, and sets of a version. */
static int compare_groups(const void *left, const void *right)
{
    const struct hl_leaving *a = left, *b = right;
    int by = compare_indices(a->version, b->version);
    by = by != 0 ? by : compare_indices(a->set, b->set);
    return by != 0 ? by : compare_ids(a->id, b->id);
}

static int compare_leaving(const void *left, const void *right)
{
    const struct hl_leaving *a = left, *b = right;
    int by = (int)b->is_part - (int)a->is_part;
    by = by != 0 ? by : compare_numbers(a->version_order, b->version_order);
    by = by != 0 ? by : compare_indices(a->version, b->version);
    by = by != 0 ? by : compare_numbers(a->set_order, b->set_order);
    by = by != 0 ? by : compare_indices(a->set, b->set);
    by = by != 0 ? by : compare_numbers(a->order, b->order);
    return by != 0 ? by : compare_ids(a->id, b->id);
}

/* Items of one set, or one without a set. */
static size_t end_of_set(const struct hl_leaving *items, size_t count, size_t first)
{
    size_t end = first + 1;
    if (items[first].set != HL_SET_NONE)
        while (end < count && items[end].set == items[first].set)
            end++;
    return end;
}

static size_t end_of_version(const struct hl_leaving *items, size_t count, size_t first)
{
    size_t end = first + 1;
    if (items[first].version != HL_SET_NONE)
        while (end < count && items[end].version == items[first].version)
            end++;
    return end;
}

static double longest_of(const struct hl_leaving *items, size_t first, size_t end)
{
    double longest = items[first].order;
    for (size_t i = first + 1; i < end; i++)
        longest = items[i].order > longest ? items[i].order : longest;
    return longest;
}

void hl_leaving_sort(struct hl_leaving *items, size_t count,
                     uint32_t (*whole)(const void *arg, uint32_t set), const void *arg)
{
    if (count == 0)
        return;
    qsort(items, count, sizeof(*items), compare_groups);
    for (size_t i = 0, end; i < count; i = end) {
        end = end_of_set(items, count, i);
        double order = longest_of(items, i, end);
        bool is_part =
            whole != NULL && items[i].set != HL_SET_NONE && end - i < whole(arg, items[i].set);
        for (size_t k = i; k < end; k++) {
            items[k].set_order = order;
            items[k].is_part = is_part;
        }
    }
    for (size_t i = 0, end; i < count; i = end) {
        end = end_of_version(items, count, i);
        double order = longest_of(items, i, end);
        for (size_t k = i; k < end; k++)
            items[k].version_order = order;
    }
    qsort(items, count, sizeof(*items), compare_leaving);
}
