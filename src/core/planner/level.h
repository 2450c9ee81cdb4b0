/* core/planner/level.h - levels of the network, and how far groups of ranks may be spread over
 * them.
 *
 * Owns:    nothing.
 * Threads: any.
 * Errors:  HL_EINVAL names the word.
 * Units:   none.
 * Limits:  none.
 */
#ifndef HL_CORE_PLANNER_LEVEL_H
#define HL_CORE_PLANNER_LEVEL_H

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "base/status.h"

/* A slot is a NUMA node; a server is attached to a leaf switch, and that to a spine. */
enum hl_level { HL_LEVEL_ANY, HL_LEVEL_NUMA, HL_LEVEL_SERVER, HL_LEVEL_LEAF, HL_LEVEL_SPINE };

/* The group must stay within one domain of that level; if not required, it does where possible. */
struct hl_place_rule {
    enum hl_level level;
    bool required;
};

struct hl_place_rules {
    struct hl_place_rule tensor;   /* each tensor-parallel group */
    struct hl_place_rule pipeline; /* all stages of one replica */
    struct hl_place_rule data;     /* all replicas of one stage */
    struct hl_place_rule gang;
};

static inline const char *hl_level_name(enum hl_level level)
{
    static const char *const names[] = {"any", "numa", "server", "leaf", "spine"};
    return names[level];
}

/* ANY has no name that can be parsed. */
HL_CHECK static inline hl_status hl_level_parse(const char *name, enum hl_level *out)
{
    for (enum hl_level l = HL_LEVEL_NUMA; l <= HL_LEVEL_SPINE; l++)
        if (strcmp(hl_level_name(l), name) == 0) {
            *out = l;
            return HL_OK;
        }
    return hl_fail(HL_EINVAL, "'%.64s' is not one of numa, server, leaf, spine", name);
}

/* Parses "server required" or "leaf preferred". */
HL_CHECK static inline hl_status hl_place_rule_parse(const char *text, struct hl_place_rule *out)
{
    char level[16] = "", how[16] = "", more = 0;
    struct hl_place_rule rule;
    int words = sscanf(text, "%15s %15s %c", level, how, &more);
    rule.required = strcmp(how, "required") == 0;
    if (words != 2 || (!rule.required && strcmp(how, "preferred") != 0) ||
        hl_level_parse(level, &rule.level) != HL_OK)
        return hl_fail(HL_EINVAL,
                       "'%.64s' must be a level (numa, server, leaf or spine) and required or "
                       "preferred, as in: server required",
                       text);
    *out = rule;
    return HL_OK;
}

#endif
