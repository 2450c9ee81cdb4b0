/* core/catalog/retention.h - retention of finished items: which are removed, by number and by age,
 * oldest first; which finished job is still in use; how often the trash is scanned.
 *
 * Owns:    nothing; items belong to the caller.
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
    size_t keep;    /* how many are kept; 0 = any number */
    int64_t age_ms; /* how long they are kept; 0 = for ever */
    size_t round;   /* at most this many are removed at once */
};

struct hl_ended {
    void *item;
    int64_t since_ms;  /* when it ended */
    int64_t second_ms; /* breaks ties: the smaller one is older */
    uint64_t order;    /* likewise */
};

/* Sorts the list, oldest first, and moves the items to remove to its front; returns how many. Items
 * that are still needed stay, and count towards `keep`. */
size_t hl_retention_choose(struct hl_ended *list, size_t count, const struct hl_retention *rule,
                           int64_t now_ms, bool (*is_needed)(void *arg, const void *item),
                           void *arg);

/* The interval between scans of the trash for items older than keep_ms: a quarter of that time,
 * within bounds; 0 = never, because the trash is kept for ever. */
uint64_t hl_trash_look_ms(uint64_t keep_ms);

/* Reasons to keep a finished job. */
struct hl_job_uses {
    bool unsaved;       /* the store does not have its last state */
    bool holds_slots;   /* containers may still run */
    bool names_version; /* a loadable version names the job as its writer */
    bool has_executor;  /* its executor still has something of the job */
    bool was_read;      /* one of its logs was requested */
    uint64_t unread_ns; /* time since that request */
};

/* A log that was requested recently counts as still being read. */
bool hl_job_in_use(const struct hl_job_uses *uses);

#endif
