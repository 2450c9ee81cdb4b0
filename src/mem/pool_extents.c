/* Every free extent is a node of two treaps at once: one in order of start, which finds the
 * neighbours to join with, one in order of (length, start), which finds the best fit. Both cost
 * O(log n) where a list would cost O(n) under the pool's lock. Priorities are a hash of the node's
 * number, so shapes are as good as random and runs repeat exactly. */
#include "mem/pool_extents.h"

#include <assert.h>
#include <stdlib.h>

#define NONE UINT32_MAX

enum order { BY_START, BY_LENGTH };

struct node {
    uint64_t start;
    uint64_t len;
    uint32_t prio;
    uint32_t kid[2][2]; /* [order][0 before, 1 after] */
};

struct hl_extents {
    struct node *nodes;
    uint32_t root[2];
    uint32_t spare; /* list through kid[0][0] */
    uint32_t fresh; /* nodes from here on were never used */
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

static int less(struct key a, struct key b)
{
    return a.major < b.major || (a.major == b.major && a.minor < b.minor);
}

/* *before gets what is less than `key`, *after the rest. */
static void split(struct hl_extents *x, enum order order, uint32_t tree, struct key key,
                  uint32_t *before, uint32_t *after)
{
    while (tree != NONE) {
        struct node *n = &x->nodes[tree];
        int side = less(key_of(n, order), key);
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

static void merge(struct hl_extents *x, enum order order, uint32_t before, uint32_t after,
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

static void insert(struct hl_extents *x, enum order order, uint32_t node)
{
    struct key key = key_of(&x->nodes[node], order);
    uint32_t *at = &x->root[order];
    while (*at != NONE && x->nodes[*at].prio >= x->nodes[node].prio)
        at = &x->nodes[*at].kid[order][less(key_of(&x->nodes[*at], order), key)];
    uint32_t *kid = x->nodes[node].kid[order];
    split(x, order, *at, key, &kid[0], &kid[1]);
    *at = node;
}

static void erase(struct hl_extents *x, enum order order, uint32_t node)
{
    struct key key = key_of(&x->nodes[node], order);
    uint32_t *at = &x->root[order];
    while (*at != node) {
        assert(*at != NONE);
        at = &x->nodes[*at].kid[order][less(key_of(&x->nodes[*at], order), key)];
    }
    uint32_t *kid = x->nodes[node].kid[order];
    merge(x, order, kid[0], kid[1], at);
}

static void add(struct hl_extents *x, uint64_t start, uint64_t len)
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
    x->nodes[node] = (struct node){.start = start, .len = len, .prio = mix ^ mix >> 13};
    insert(x, BY_START, node);
    insert(x, BY_LENGTH, node);
    x->count++;
    x->free += len;
}

static void drop(struct hl_extents *x, uint32_t node)
{
    erase(x, BY_START, node);
    erase(x, BY_LENGTH, node);
    x->count--;
    x->free -= x->nodes[node].len;
    x->nodes[node].kid[0][0] = x->spare;
    x->spare = node;
}

hl_status hl_extents_create(uint64_t units, uint64_t max_used, struct hl_extents **out)
{
    if (max_used >= NONE - 1)
        return hl_fail(HL_EINVAL, "pool index: too many slots");
    struct hl_extents *x = calloc(1, sizeof(*x));
    struct node *nodes = calloc((size_t)max_used + 2, sizeof(*nodes));
    if (x == NULL || nodes == NULL) {
        free(x);
        free(nodes);
        return hl_fail(HL_ENOMEM, "pool allocator");
    }
    *x = (struct hl_extents){
        .nodes = nodes, .root = {NONE, NONE}, .spare = NONE, .max = (uint32_t)max_used + 2};
    if (units > 0)
        add(x, 0, units);
    *out = x;
    return HL_OK;
}

void hl_extents_destroy(struct hl_extents *x)
{
    if (x == NULL)
        return;
    free(x->nodes);
    free(x);
}

/* The first node that is not before `key`, and the last one that is; NONE when there is none. */
static uint32_t bound(const struct hl_extents *x, enum order order, struct key key,
                      uint32_t *last_before)
{
    uint32_t found = NONE, tree = x->root[order];
    *last_before = NONE;
    while (tree != NONE) {
        int side = less(key_of(&x->nodes[tree], order), key);
        if (side)
            *last_before = tree;
        else
            found = tree;
        tree = x->nodes[tree].kid[order][side];
    }
    return found;
}

hl_status hl_extents_take(struct hl_extents *x, uint64_t units, uint64_t *start)
{
    uint32_t smaller;
    uint32_t node = bound(x, BY_LENGTH, (struct key){units, 0}, &smaller);
    if (node == NONE || units == 0)
        return HL_ENOSPC;
    uint64_t at = x->nodes[node].start, len = x->nodes[node].len;
    drop(x, node);
    if (len > units)
        add(x, at + units, len - units);
    *start = at;
    return HL_OK;
}

hl_status hl_extents_claim(struct hl_extents *x, uint64_t start, uint64_t units)
{
    uint32_t node;
    if (units == 0 || start > UINT64_MAX - units)
        return HL_ECONFLICT;
    (void)bound(x, BY_START, (struct key){start + 1, 0}, &node); /* the last that begins <= start */
    if (node == NONE)
        return HL_ECONFLICT;
    uint64_t at = x->nodes[node].start, len = x->nodes[node].len;
    if (start + units > at + len)
        return HL_ECONFLICT;
    drop(x, node);
    if (start > at)
        add(x, at, start - at);
    if (start + units < at + len)
        add(x, start + units, at + len - start - units);
    return HL_OK;
}

void hl_extents_give(struct hl_extents *x, uint64_t start, uint64_t units)
{
    uint32_t before;
    uint32_t after = bound(x, BY_START, (struct key){start, 0}, &before);
    uint64_t from = start, to = start + units;
    if (before != NONE && x->nodes[before].start + x->nodes[before].len == start)
        from = x->nodes[before].start;
    else
        assert(before == NONE || x->nodes[before].start + x->nodes[before].len < start);
    if (after != NONE && x->nodes[after].start == to)
        to += x->nodes[after].len;
    else
        assert(after == NONE || x->nodes[after].start > to);
    if (from != start)
        drop(x, before);
    if (to != start + units)
        drop(x, after);
    add(x, from, to - from);
}

uint64_t hl_extents_free(const struct hl_extents *x)
{
    return x->free;
}

uint64_t hl_extents_largest(const struct hl_extents *x)
{
    uint32_t tree = x->root[BY_LENGTH];
    if (tree == NONE)
        return 0;
    while (x->nodes[tree].kid[BY_LENGTH][1] != NONE)
        tree = x->nodes[tree].kid[BY_LENGTH][1];
    return x->nodes[tree].len;
}

uint64_t hl_extents_count(const struct hl_extents *x)
{
    return x->count;
}
