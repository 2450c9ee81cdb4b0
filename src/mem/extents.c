/* Every free extent is a node of two treaps at once: one holds all extents in order of start and
 * finds the neighbours to merge with; the other holds those of one region in order of (length,
 * start) and finds the best fit. Both cost O(log n), where a list would cost O(n) under the pool's
 * lock. Priorities are a hash of the node's number, so tree shapes are as good as random but
 * repeatable.
 *
 *     region 0 (ends[0])            region 1 (ends[1])
 *     [####....######..............][......########......]      # = used
 *          n0        n1              n2            n3
 *
 *     by_start:      n0 n1 n2 n3    neighbours of a freed extent
 *     by_length[0]:  n0 n1          best fit in region 0
 *     by_length[1]:  n2 n3          best fit in region 1; n2 and n3 are equal: lower one first
 *
 * n1 and n2 meet at the border but stay two nodes. An allocation that fits in no region is searched
 * across borders, by start. Unused nodes go to the list `spare`. There is no lock here: the caller
 * has one (the pool's, or the emulated device's). */
#include "mem/extents.h"

#include <assert.h>
#include <stdbool.h>
#include <stdlib.h>

#define NONE UINT32_MAX

enum order { BY_START, BY_LENGTH };

struct node {
    uint64_t start;
    uint64_t len;
    uint32_t prio;
    uint32_t region;
    uint32_t kid[2][2]; /* [order][0 before, 1 after] */
};

struct hl_extents {
    struct node *nodes;
    uint32_t by_start;
    uint32_t by_length[HL_EXTENTS_REGIONS];
    uint64_t ends[HL_EXTENTS_REGIONS];
    uint64_t free_in[HL_EXTENTS_REGIONS];
    uint32_t regions;
    uint32_t spare; /* list through kid[0][0] */
    uint32_t fresh; /* nodes from this number on were never used */
    uint32_t max;
    uint64_t count;
    uint64_t free;
};

struct key {
    uint64_t major, minor;
};

static struct key key_of(const struct node *n, enum order order)
{
    return order == BY_START ? (struct key){n->start, 0} : (struct key){n->len, n->start};
}

static bool key_less(struct key a, struct key b)
{
    return a.major < b.major || (a.major == b.major && a.minor < b.minor);
}

static uint32_t *root_of(struct hl_extents *x, enum order order, uint32_t node)
{
    return order == BY_START ? &x->by_start : &x->by_length[x->nodes[node].region];
}

/* Splits a tree: *before gets the nodes less than `key`, *after the rest. It walks down once from
 * the root; the two pointers are the links where the next smaller and the next larger part go. */
static void split_tree(struct hl_extents *x, enum order order, uint32_t tree, struct key key,
                       uint32_t *before, uint32_t *after)
{
    while (tree != NONE) {
        struct node *n = &x->nodes[tree];
        int side = key_less(key_of(n, order), key);
        if (side) {
            *before = tree;
            before = &n->kid[order][1];
        } else {
            *after = tree;
            after = &n->kid[order][0];
        }
        tree = n->kid[order][side];
    }
    *before = NONE;
    *after = NONE;
}

/* Requires all of `before` to be less than all of `after`. The root with the higher priority stays
 * on top. */
static void merge_trees(struct hl_extents *x, enum order order, uint32_t before, uint32_t after,
                        uint32_t *out)
{
    while (before != NONE && after != NONE) {
        int left = x->nodes[before].prio > x->nodes[after].prio;
        uint32_t *top = left ? &before : &after;
        *out = *top;
        out = &x->nodes[*top].kid[order][left];
        *top = *out;
    }
    *out = before != NONE ? before : after;
}

/* Descends to the first node of lower priority and splits the tree below it around the new node. */
static void insert_node(struct hl_extents *x, enum order order, uint32_t node)
{
    struct key key = key_of(&x->nodes[node], order);
    uint32_t *at = root_of(x, order, node);
    while (*at != NONE && x->nodes[*at].prio >= x->nodes[node].prio)
        at = &x->nodes[*at].kid[order][key_less(key_of(&x->nodes[*at], order), key)];
    uint32_t *kid = x->nodes[node].kid[order];
    split_tree(x, order, *at, key, &kid[0], &kid[1]);
    *at = node;
}

static void erase_node(struct hl_extents *x, enum order order, uint32_t node)
{
    struct key key = key_of(&x->nodes[node], order);
    uint32_t *at = root_of(x, order, node);
    while (*at != node) {
        assert(*at != NONE);
        at = &x->nodes[*at].kid[order][key_less(key_of(&x->nodes[*at], order), key)];
    }
    uint32_t *kid = x->nodes[node].kid[order];
    merge_trees(x, order, kid[0], kid[1], at);
}

static uint32_t region_of(const struct hl_extents *x, uint64_t unit)
{
    uint32_t r = 0;
    while (r + 1 < x->regions && unit >= x->ends[r])
        r++;
    return r;
}

/* The units must lie in one region. */
static void add_extent(struct hl_extents *x, uint64_t start, uint64_t len)
{
    uint32_t node = x->spare;
    if (node != NONE) {
        x->spare = x->nodes[node].kid[0][0];
    } else {
        assert(x->fresh < x->max);
        node = x->fresh++;
    }
    uint32_t mix = (node + 1) * UINT32_C(0x9e3779b1);
    mix = (mix ^ mix >> 15) * UINT32_C(0x85ebca6b);
    x->nodes[node] = (struct node){
        .start = start, .len = len, .prio = mix ^ mix >> 13, .region = region_of(x, start)};
    insert_node(x, BY_START, node);
    insert_node(x, BY_LENGTH, node);
    x->count++;
    x->free += len;
    x->free_in[x->nodes[node].region] += len;
}

static void drop_extent(struct hl_extents *x, uint32_t node)
{
    erase_node(x, BY_START, node);
    erase_node(x, BY_LENGTH, node);
    x->count--;
    x->free -= x->nodes[node].len;
    x->free_in[x->nodes[node].region] -= x->nodes[node].len;
    x->nodes[node].kid[0][0] = x->spare;
    x->spare = node;
}

hl_status hl_extents_create(uint64_t units, uint64_t max_used, struct hl_extents **out)
{
    if (max_used >= NONE - 2 * HL_EXTENTS_REGIONS)
        return hl_fail(HL_EINVAL, "the pool index has too many slots");
    struct hl_extents *x = calloc(1, sizeof(*x));
    size_t max = (size_t)max_used + 1 + HL_EXTENTS_REGIONS;
    struct node *nodes = calloc(max, sizeof(*nodes));
    if (x == NULL || nodes == NULL) {
        free(x);
        free(nodes);
        return hl_fail(HL_ENOMEM, "out of memory allocating the pool's allocator");
    }
    *x = (struct hl_extents){.nodes = nodes,
                             .by_start = NONE,
                             .spare = NONE,
                             .max = (uint32_t)max,
                             .regions = 1,
                             .ends = {units}};
    for (size_t i = 0; i < HL_EXTENTS_REGIONS; i++)
        x->by_length[i] = NONE;
    if (units > 0)
        add_extent(x, 0, units);
    *out = x;
    return HL_OK;
}

void hl_extents_divide(struct hl_extents *x, const uint64_t *ends, size_t count)
{
    assert(count > 0 && count <= HL_EXTENTS_REGIONS && ends[count - 1] == x->ends[0]);
    assert(x->regions == 1 && x->count <= 1 && x->free == x->ends[0]);
    if (x->count == 1)
        drop_extent(x, x->by_start);
    x->regions = (uint32_t)count;
    for (size_t i = 0; i < count; i++) {
        uint64_t from = i > 0 ? ends[i - 1] : 0;
        x->ends[i] = ends[i];
        assert(ends[i] >= from);
        if (ends[i] > from)
            add_extent(x, from, ends[i] - from);
    }
}

void hl_extents_destroy(struct hl_extents *x)
{
    if (x == NULL)
        return;
    free(x->nodes);
    free(x);
}

/* Returns the first node that is not before `key`, and in *last_before the last one that is; NONE
 * if there is none. */
static uint32_t find_bound(const struct hl_extents *x, enum order order, uint32_t tree,
                           struct key key, uint32_t *last_before)
{
    uint32_t found = NONE;
    *last_before = NONE;
    while (tree != NONE) {
        int side = key_less(key_of(&x->nodes[tree], order), key);
        if (side)
            *last_before = tree;
        else
            found = tree;
        tree = x->nodes[tree].kid[order][side];
    }
    return found;
}

/* Returns the length of the free run that crosses the border after region r: the free extent that
 * ends there, and those that follow without a gap. 0 if no free run crosses it. */
static uint64_t run_across(const struct hl_extents *x, uint32_t r, uint64_t *start)
{
    uint32_t left, next;
    next = find_bound(x, BY_START, x->by_start, (struct key){x->ends[r], 0}, &left);
    if (left == NONE || x->nodes[left].start + x->nodes[left].len != x->ends[r])
        return 0;
    uint64_t end = x->ends[r];
    *start = x->nodes[left].start;
    while (next != NONE && x->nodes[next].start == end) {
        end += x->nodes[next].len;
        next = find_bound(x, BY_START, x->by_start, (struct key){end, 0}, &left);
    }
    return end > x->ends[r] ? end - *start : 0;
}

/* Returns the shortest best fit among the regions in the mask; the lowest of equals. */
static uint32_t best_in(const struct hl_extents *x, uint64_t units, uint32_t mask)
{
    uint32_t best = NONE, smaller;
    for (uint32_t r = 0; r < x->regions; r++) {
        if ((mask >> r & 1) == 0)
            continue;
        uint32_t node = find_bound(x, BY_LENGTH, x->by_length[r], (struct key){units, 0}, &smaller);
        if (node != NONE && (best == NONE || x->nodes[node].len < x->nodes[best].len))
            best = node;
    }
    return best;
}

static hl_status take_across(struct hl_extents *x, uint64_t units, uint64_t *start)
{
    uint64_t best = 0, at = 0;
    for (uint32_t r = 0; r + 1 < x->regions; r++) {
        uint64_t from, len = run_across(x, r, &from);
        if (len >= units && (best == 0 || len < best)) {
            best = len;
            at = from;
        }
    }
    if (best == 0 || hl_extents_claim(x, at, units) != HL_OK)
        return HL_ENOSPC;
    *start = at;
    return HL_OK;
}

hl_status hl_extents_take(struct hl_extents *x, uint64_t units, uint64_t *start)
{
    return hl_extents_take_in(x, units, HL_EXTENTS_ANY, start);
}

hl_status hl_extents_take_in(struct hl_extents *x, uint64_t units, uint32_t regions,
                             uint64_t *start)
{
    if (units == 0)
        return HL_ENOSPC;
    uint32_t node = best_in(x, units, regions);
    if (node == NONE)
        node = best_in(x, units, ~regions);
    if (node == NONE)
        return take_across(x, units, start);
    uint64_t at = x->nodes[node].start, len = x->nodes[node].len;
    int from_end = (x->nodes[node].region & 1) != 0;
    drop_extent(x, node);
    if (len > units)
        add_extent(x, from_end ? at : at + units, len - units);
    *start = from_end ? at + len - units : at;
    return HL_OK;
}

/* Returns the node that contains all of [start, end), which must lie in one region, or NONE. */
static uint32_t holder_of(const struct hl_extents *x, uint64_t start, uint64_t end)
{
    uint32_t node;
    (void)find_bound(x, BY_START, x->by_start, (struct key){start + 1, 0}, &node);
    return node != NONE && end <= x->nodes[node].start + x->nodes[node].len ? node : NONE;
}

/* Returns the end of the part of [start, end) that lies in start's region. */
static uint64_t part_end(const struct hl_extents *x, uint64_t start, uint64_t end)
{
    uint64_t border = x->ends[region_of(x, start)];
    return border > start && border < end ? border : end;
}

hl_status hl_extents_claim(struct hl_extents *x, uint64_t start, uint64_t units)
{
    if (units == 0 || start > UINT64_MAX - units)
        return HL_ECONFLICT;
    for (uint64_t at = start, end; at < start + units; at = end) {
        end = part_end(x, at, start + units);
        if (holder_of(x, at, end) == NONE)
            return HL_ECONFLICT;
    }
    for (uint64_t at = start, end; at < start + units; at = end) {
        end = part_end(x, at, start + units);
        uint32_t node = holder_of(x, at, end);
        uint64_t from = x->nodes[node].start, to = from + x->nodes[node].len;
        drop_extent(x, node);
        if (at > from)
            add_extent(x, from, at - from);
        if (end < to)
            add_extent(x, end, to - end);
    }
    return HL_OK;
}

static void give_part(struct hl_extents *x, uint64_t start, uint64_t end)
{
    uint32_t before, region = region_of(x, start);
    uint32_t after = find_bound(x, BY_START, x->by_start, (struct key){start, 0}, &before);
    uint64_t from = start, to = end;
    assert(before == NONE || x->nodes[before].start + x->nodes[before].len <= start);
    assert(after == NONE || x->nodes[after].start >= end);
    if (before != NONE && x->nodes[before].region == region &&
        x->nodes[before].start + x->nodes[before].len == start)
        from = x->nodes[before].start;
    if (after != NONE && x->nodes[after].region == region && x->nodes[after].start == end)
        to += x->nodes[after].len;
    if (from != start)
        drop_extent(x, before);
    if (to != end)
        drop_extent(x, after);
    add_extent(x, from, to - from);
}

void hl_extents_give(struct hl_extents *x, uint64_t start, uint64_t units)
{
    for (uint64_t at = start, end; at < start + units; at = end) {
        end = part_end(x, at, start + units);
        give_part(x, at, end);
    }
}

uint64_t hl_extents_free(const struct hl_extents *x)
{
    return x->free;
}

uint64_t hl_extents_free_in(const struct hl_extents *x, size_t region)
{
    return region < x->regions ? x->free_in[region] : 0;
}

uint64_t hl_extents_largest(const struct hl_extents *x)
{
    uint64_t largest = 0, start;
    for (uint32_t r = 0; r < x->regions; r++) {
        uint32_t tree = x->by_length[r];
        while (tree != NONE && x->nodes[tree].kid[BY_LENGTH][1] != NONE)
            tree = x->nodes[tree].kid[BY_LENGTH][1];
        uint64_t run = r + 1 < x->regions ? run_across(x, r, &start) : 0;
        if (tree != NONE && x->nodes[tree].len > run)
            run = x->nodes[tree].len;
        largest = run > largest ? run : largest;
    }
    return largest;
}

uint64_t hl_extents_count(const struct hl_extents *x)
{
    return x->count;
}
