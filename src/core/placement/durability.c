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

/* A device loses its memory with the process that uses it. */
static bool does_count(const struct hl_holder *h)
{
    return h->verified && h->reachable && h->tier >= HL_API_TIER_L2 && h->tier <= HL_API_TIER_L4;
}

/* In the same failure domain. */
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

struct hl_durability_verdict hl_durability_judge(enum hl_durability durability,
                                                 const struct hl_held_shard *shards, size_t count)
{
    struct hl_durability_verdict v = {0};
    for (size_t i = 0; i < count; i++)
        if (!hl_durability_holds(durability, shards[i].holders, shards[i].count) &&
            v.lacking++ == 0)
            v.first_lacking = shards[i].id;
    v.committed = count > 0 && v.lacking == 0;
    return v;
}
