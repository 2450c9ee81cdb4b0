#include "core/placement/durability.h"

#include <string.h>

static const char *const words[] = {
#define X(name, word) [HL_DURABILITY_##name] = (word),
    HL_DURABILITY_MAP(X)
#undef X
};

const char *hl_durability_word(enum hl_durability durability)
{
    return words[durability];
}

hl_status hl_durability_parse(const char *word, enum hl_durability *out)
{
    for (enum hl_durability i = 0; i < HL_DURABILITIES; i++)
        if (strcmp(word, words[i]) == 0) {
            *out = i;
            return HL_OK;
        }
    return hl_fail(HL_EINVAL, "durability '%s': it must be pool, two or archive", word);
}

/* A device loses its memory with the process that uses it, so copies there do not count. */
static bool does_count(const struct hl_holder *h)
{
    return h->verified && h->reachable && h->tier >= HL_API_TIER_L2 && h->tier <= HL_API_TIER_L4;
}

/* Both are in the same failure domain. */
static bool fail_together(const struct hl_holder *a, const struct hl_holder *b)
{
    bool archived = a->tier == HL_API_TIER_L4, other_archived = b->tier == HL_API_TIER_L4;
    return archived || other_archived ? archived && other_archived : a->domain == b->domain;
}

bool hl_durability_holds(enum hl_durability durability, const struct hl_holder *holders,
                         size_t count)
{
    const struct hl_holder *first = NULL;
    for (size_t i = 0; i < count; i++) {
        const struct hl_holder *h = &holders[i];
        if (!does_count(h) || (durability == HL_DURABILITY_ARCHIVE && h->tier != HL_API_TIER_L4))
            continue;
        if (durability != HL_DURABILITY_TWO || (first != NULL && !fail_together(first, h)))
            return true;
        first = first != NULL ? first : h;
    }
    return false;
}

/* No copy that counts is in this failure domain. */
static bool is_new_domain(uint32_t domain, const struct hl_holder *holders, size_t count)
{
    const struct hl_holder there = {.domain = domain, .tier = HL_API_TIER_L2};
    for (size_t i = 0; i < count; i++)
        if (does_count(&holders[i]) && fail_together(&holders[i], &there))
            return false;
    return true;
}

static bool node_is_better(const struct hl_durability_node *a, const struct hl_durability_node *b)
{
    return a->reads != b->reads ? a->reads : a->free_bytes > b->free_bytes;
}

static bool find_node(const struct hl_durability_ways *ways, uint64_t size_bytes,
                      const struct hl_holder *holders, size_t count, size_t *out)
{
    bool found = false;
    for (size_t i = 0; i < ways->node_count; i++) {
        const struct hl_durability_node *n = &ways->nodes[i];
        if (!n->takes || n->free_bytes < size_bytes || !is_new_domain(n->domain, holders, count) ||
            (found && !node_is_better(n, &ways->nodes[*out])))
            continue;
        *out = i;
        found = true;
    }
    return found;
}

enum hl_durability_step hl_durability_next(enum hl_durability durability, uint64_t size_bytes,
                                           const struct hl_holder *holders, size_t count,
                                           const struct hl_durability_ways *ways, size_t *node)
{
    bool has_source = false, archived = false;
    for (size_t i = 0; i < count; i++) {
        has_source |= does_count(&holders[i]);
        archived |= does_count(&holders[i]) && holders[i].tier == HL_API_TIER_L4;
    }
    if (hl_durability_holds(durability, holders, count))
        return HL_DURABILITY_HELD;
    if (!has_source)
        return HL_DURABILITY_NO_WAY;
    if (durability == HL_DURABILITY_TWO && ways->pool && !archived &&
        is_new_domain(ways->pool_domain, holders, count))
        return HL_DURABILITY_TO_POOL;
    if (ways->archive && !archived)
        return HL_DURABILITY_TO_ARCHIVE;
    if (durability != HL_DURABILITY_ARCHIVE && find_node(ways, size_bytes, holders, count, node))
        return HL_DURABILITY_TO_NODE;
    return HL_DURABILITY_NO_WAY;
}
