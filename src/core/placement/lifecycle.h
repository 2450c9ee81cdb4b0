/* core/placement/lifecycle.h - the life cycle of a shard: states, events, and one table of the
 * transitions.
 *
 *     created -> preheat -> active -> cooling -> migrating -> archived L3 -> expired L4
 *
 * and for shards that are read: demoted L2 or L3 -> migrated -> stable warm L2 or L3. A move is
 * decided, copied, switched and cleaned up: preheat, migrating and demoted last until the switch,
 * migrated until the old copy is gone. LOST, FOUND, KEPT and LEFT are no transitions: they tell in
 * a shard's history what became of its copies without a move, and of the old copy of a move.
 *
 * Owns:    nothing; all texts are static.
 * Threads: any. Pure.
 * Errors:  none: an event without a transition from a state leads to HL_LIFE_NONE.
 * Units:   none.
 * Limits:  16 states: two fit into a byte.
 */
#ifndef HL_CORE_PLACEMENT_LIFECYCLE_H
#define HL_CORE_PLACEMENT_LIFECYCLE_H

#include <stdbool.h>

/* clang-format off */
#define HL_LIFE_MAP(X)                                                                          \
    X(CREATED,     "created")                                                                   \
    X(PREHEAT,     "preheat")                                                                   \
    X(ACTIVE,      "active")                                                                    \
    X(COOLING,     "cooling")                                                                   \
    X(MIGRATING,   "migrating")                                                                 \
    X(DEMOTED_L2,  "demoted to L2")                                                             \
    X(DEMOTED_L3,  "demoted to L3")                                                             \
    X(MIGRATED,    "migrated")                                                                  \
    X(ARCHIVED_L3, "archived in L3")                                                            \
    X(EXPIRED_L4,  "expired to L4")                                                             \
    X(WARM_L2,     "stable warm in L2")                                                         \
    X(WARM_L3,     "stable warm in L3")

/* name, reason in words, meaning of its two numbers */
#define HL_LIFE_EVENT_MAP(X)                                                                    \
    X(LOAD,       "goes to its latest reader",          "accesses, needed")                     \
    X(LOADED,     "copy is complete",                   "seconds, expected")                    \
    X(WARM,       "heat is high",                       "heat, threshold")                      \
    X(COOL,       "heat is low",                        "heat, threshold")                      \
    X(LEAVE,      "stays cool",                         "seconds cool, residence")              \
    X(PRESSURE,   "L1 is above its high watermark",     "use in %, watermark")                  \
    X(REMOTE,     "another server reads it frequently", "accesses, threshold")                  \
    X(SPREAD,     "many servers read it frequently",    "servers, threshold")                   \
    X(RECALL,     "readers are scattered",              "share of the first reader, threshold") \
    X(PREFETCH,   "L1 is below its low watermark",      "use in %, watermark")                  \
    X(ACCESS,     "is read again",                      "accesses, needed")                     \
    X(IDLE,       "is not read any more",               "seconds idle, limit")                  \
    X(SWITCHED,   "copy is verified and in force",      "seconds, expected")                    \
    X(CLEANED_L2, "old copy is gone",                   "seconds, readers' grace")              \
    X(CLEANED_L3, "old copy is gone",                   "seconds, readers' grace")              \
    X(UNDONE,     "copy was cancelled or failed",       "seconds, expected")                    \
    X(LOST,       "no copy can be read",                "tier now, before")                     \
    X(FOUND,      "nearest copy is here now",           "tier now, before")                     \
    X(KEPT,       "old copy stays for durability",      "seconds, readers' grace")              \
    X(LEFT,       "old copy was not dropped in time",   "seconds, readers' grace")

/* clang-format on */

enum hl_life_state {

#define X(name, text) HL_LIFE_##name,
    HL_LIFE_MAP(X)
#undef X
        HL_LIFE_STATES,
    HL_LIFE_NONE = HL_LIFE_STATES
};

enum hl_life_event {

#define X(name, text, numbers) HL_LIFE_ON_##name,
    HL_LIFE_EVENT_MAP(X)
#undef X
        HL_LIFE_EVENTS
};

const char *hl_life_state_text(enum hl_life_state state);
const char *hl_life_event_text(enum hl_life_event event);
/* "accesses, threshold": the meaning of the two numbers of such a change. */
const char *hl_life_event_numbers(enum hl_life_event event);

/* before: the state to which an undone move returns. */
enum hl_life_state hl_life_next(enum hl_life_state state, enum hl_life_event event,
                                enum hl_life_state before);
/* The section of the specification that defines this transition; "" = none. */
const char *hl_life_section(enum hl_life_state state, enum hl_life_event event);
/* A copy is in flight, or the old one is not cleaned up yet. */
bool hl_life_is_moving(enum hl_life_state state);

#endif
