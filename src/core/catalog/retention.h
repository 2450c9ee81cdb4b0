/* core/catalog/retention.h - which of what is over goes: by number, by age, the oldest first; which
 * ended job is still in use; how often the trash is looked through.
 *
 * Owns:    nothing; items are the caller's.
 * Threads: any. Pure: time is an argument.
 * Errors:  none.
 * Units:   ms, and ns, of one clock that does not jump.
 * Limits:  none.
 */
#ifndef HL_CORE_CATALOG_RETENTION_H
#define HL_CORE_CATALOG_RETENTION_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct hl_retention {
    size_t keep;    /* so many stay; 0 = any number */
    int64_t age_ms; /* for so long; 0 = for ever */
    size_t round;   /* at most so many go at once */
};

struct hl_ended {
    void *item;
    int64_t since_ms;  /* over since then */
    int64_t second_ms; /* where that is the same: the smaller one is older */
    uint64_t order;    /* likewise */
};

/* Sorts the list, oldest first, and moves those that go to its front; returns how many. What is
 * still needed stays, and counts among those that are kept. */
size_t hl_retention_choose(struct hl_ended *list, size_t count, const struct hl_retention *rule,
                           int64_t now_ms, bool (*is_needed)(void *arg, const void *item),
                           void *arg);

/* How often the trash is looked through for what was kept for keep_ms: four times in that time,
 * within reason; 0 = never, it is kept for ever. */
uint64_t hl_trash_look_ms(uint64_t keep_ms);

/* What keeps an ended job. */
struct hl_job_uses {
    bool unsaved;       /* the store does not have its last state */
    bool holds_slots;   /* containers may still run */
    bool names_version; /* one that can be loaded says that the job has written it */
    bool has_executor;  /* its executor has something of it */
    bool was_read;      /* a log of it was asked for */
    uint64_t unread_ns; /* ago */
};

/* A log that was asked for a short while ago is being read. */
bool hl_job_in_use(const struct hl_job_uses *uses);

#endif
