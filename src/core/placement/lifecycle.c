#include "core/placement/lifecycle.h"

#include <stddef.h>

#include "base/status.h"

#define BEFORE HL_LIFE_NONE /* as target: the state before the move */

struct life_row {
    enum hl_life_state from;
    enum hl_life_event event;
    enum hl_life_state to;
    const char *section; /* section of the specification */
};

#define ROW(from, event, to, section)                                                              \
    {                                                                                              \
        HL_LIFE_##from, HL_LIFE_ON_##event, HL_LIFE_##to, section                                  \
    }
#define UNDO(from)                                                                                 \
    {                                                                                              \
        HL_LIFE_##from, HL_LIFE_ON_UNDONE, BEFORE, "3.6"                                           \
    }

/* The graph of 3.5; demotion, which is possible from every state with a place; the low watermark of
 * 3.2; and the ends of moves, 3.6. */
static const struct life_row rows[] = {
    ROW(CREATED, LOAD, PREHEAT, "3.5"),
    ROW(PREHEAT, LOADED, ACTIVE, "3.5"),

    ROW(ACTIVE, COOL, COOLING, "3.5"),
    ROW(WARM_L2, COOL, COOLING, "3.5"),
    ROW(WARM_L3, COOL, ARCHIVED_L3, "3.5"), /* it is already in its place */
    ROW(COOLING, WARM, ACTIVE, "3.5"),
    ROW(WARM_L2, WARM, ACTIVE, "3.5"),
    ROW(COOLING, LEAVE, MIGRATING, "3.5"),
    ROW(MIGRATING, WARM, ACTIVE, "3.5"), /* while the copy is made */
    ROW(MIGRATING, SWITCHED, ARCHIVED_L3, "3.5"),
    ROW(ARCHIVED_L3, IDLE, EXPIRED_L4, "3.5"),
    ROW(ARCHIVED_L3, ACCESS, PREHEAT, "3.5"),
    ROW(EXPIRED_L4, ACCESS, PREHEAT, "3.5"),
    ROW(WARM_L3, ACCESS, PREHEAT, "3.5"),

    ROW(ACTIVE, PRESSURE, DEMOTED_L2, "3.5"),
    ROW(COOLING, PRESSURE, DEMOTED_L2, "3.5"),
    ROW(ACTIVE, REMOTE, DEMOTED_L2, "3.3"),
    ROW(COOLING, REMOTE, DEMOTED_L2, "3.3"),
    ROW(MIGRATING, REMOTE, DEMOTED_L2, "3.3"),
    ROW(WARM_L2, REMOTE, DEMOTED_L2, "3.3"),
    ROW(ACTIVE, SPREAD, DEMOTED_L3, "3.5"),
    ROW(COOLING, SPREAD, DEMOTED_L3, "3.3"),
    ROW(MIGRATING, SPREAD, DEMOTED_L3, "3.3"),
    ROW(WARM_L2, SPREAD, DEMOTED_L3, "3.3"),
    ROW(ACTIVE, RECALL, DEMOTED_L3, "3.3"),
    ROW(COOLING, RECALL, DEMOTED_L3, "3.3"),
    ROW(WARM_L2, RECALL, DEMOTED_L3, "3.3"),

    ROW(ACTIVE, PREFETCH, PREHEAT, "3.2"),
    ROW(WARM_L2, PREFETCH, PREHEAT, "3.2"),
    ROW(WARM_L3, PREFETCH, PREHEAT, "3.2"),
    ROW(ARCHIVED_L3, PREFETCH, PREHEAT, "3.2"),

    ROW(DEMOTED_L2, SWITCHED, MIGRATED, "3.3"),
    ROW(DEMOTED_L3, SWITCHED, MIGRATED, "3.3"),
    ROW(MIGRATED, CLEANED_L2, WARM_L2, "3.6"),
    ROW(MIGRATED, CLEANED_L3, WARM_L3, "3.6"),

    UNDO(PREHEAT),
    UNDO(MIGRATING),
    UNDO(DEMOTED_L2),
    UNDO(DEMOTED_L3),
};

static const struct life_row *find_row(enum hl_life_state state, enum hl_life_event event)
{
    for (size_t i = 0; i < HL_ARRAY_LEN(rows); i++)
        if (rows[i].from == state && rows[i].event == event)
            return &rows[i];
    return NULL;
}

enum hl_life_state hl_life_next(enum hl_life_state state, enum hl_life_event event,
                                enum hl_life_state before)
{
    const struct life_row *row = find_row(state, event);
    if (row == NULL)
        return HL_LIFE_NONE;
    return row->to == BEFORE ? before : row->to;
}

const char *hl_life_section(enum hl_life_state state, enum hl_life_event event)
{
    const struct life_row *row = find_row(state, event);
    return row == NULL ? "" : row->section;
}

bool hl_life_is_moving(enum hl_life_state state)
{
    return state == HL_LIFE_PREHEAT || state == HL_LIFE_MIGRATING || state == HL_LIFE_DEMOTED_L2 ||
           state == HL_LIFE_DEMOTED_L3 || state == HL_LIFE_MIGRATED;
}

const char *hl_life_state_text(enum hl_life_state state)
{
    static const char *const texts[] = {
#define X(name, text) [HL_LIFE_##name] = (text),
        HL_LIFE_MAP(X)
#undef X
    };
    return texts[state];
}

const char *hl_life_event_text(enum hl_life_event event)
{
    static const char *const texts[] = {
#define X(name, text, numbers) [HL_LIFE_ON_##name] = (text),
        HL_LIFE_EVENT_MAP(X)
#undef X
    };
    return texts[event];
}

const char *hl_life_event_numbers(enum hl_life_event event)
{
    static const char *const texts[] = {
#define X(name, text, numbers) [HL_LIFE_ON_##name] = (numbers),
        HL_LIFE_EVENT_MAP(X)
#undef X
    };
    return texts[event];
}
