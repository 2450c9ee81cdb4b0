/* controller/commits.h - writing records, and changes of the catalogue that are applied once they
 * are durable.
 *
 * Owns:    a change from change_start to its `done`, which frees it.
 * Threads: the Controller's loop; the disk is written by the store's thread.
 * Errors:  what the store says; HL_ECANCELED when the Controller ends; HL_EBUSY while a change is
 *          under way and another one can't wait.
 * Units:   none.
 * Limits:  one change of the catalogue at a time is on its way to the disk.
 */
#ifndef HL_CONTROLLER_COMMITS_H
#define HL_CONTROLLER_COMMITS_H

#include <stdbool.h>

#include "base/status.h"
#include "core/catalog/catalog.h"
#include "store/writer.h"

struct hl_controller;

/* A change of the catalogue that is on its way: the first member of what it needs. */
struct change {
    /* Call one hl_catalog_* function with commit_records and `c`; called twice (commits.c). What
     * depends on more than the catalogue is checked only while !durable. */
    hl_status (*make)(struct change *ch);
    /* After the last make, or when the commit failed, with hl_error_text(); frees the change. */
    void (*done)(struct change *ch, hl_status st);
    struct hl_controller *c;
    struct change *next;
    struct hl_records records; /* as last written */
    bool writing, durable, applied;
    int tries;
};

/* hl_catalog_commit_fn: arg is the controller. Within a change it never blocks; elsewhere it waits
 * for the disk, and fails with HL_EBUSY while a change is under way. */
hl_status commit_records(void *arg, const struct hl_records *records);
/* Write and go on. The Controller outlives `done`, which begins with controller_stopped. */
hl_status controller_write(struct hl_controller *c, const struct hl_records *records,
                           hl_store_written done, void *arg) HL_CHECK;
/* Takes the change; it is made when those before it are done. */
void change_start(struct hl_controller *c, struct change *ch);
/* End what is under way with HL_ECANCELED. */
void changes_stop(struct hl_controller *c);

#endif
