/* controller/commits.h - writes records to the store, and applies changes of the catalogue once
 * they are durable.
 *
 * Owns:    a change, from change_start to its `done`, which frees it.
 * Threads: the Controller's loop; the store's thread writes to the disk.
 * Errors:  the store's errors; HL_ECANCELED when the Controller ends; HL_EBUSY if a change is in
 *          progress and the caller can't wait.
 * Units:   none.
 * Limits:  only one change of the catalogue at a time is being written.
 */
#ifndef HL_CONTROLLER_COMMITS_H
#define HL_CONTROLLER_COMMITS_H

#include <stdbool.h>

#include "base/status.h"
#include "core/catalog/catalog.h"
#include "store/writer.h"

struct hl_controller;

/* A change of the catalogue in progress; make it the first member of a struct with its data. */
struct change {
    /* Must call one hl_catalog_* function with commit_records and `c`; it is called twice
     * (commits.c). Checks that depend on more than the catalogue are made only while !durable. */
    hl_status (*make)(struct change *ch);
    /* Called after the last make, or when the commit failed, with hl_error_text(); frees the
     * change. */
    void (*done)(struct change *ch, hl_status st);
    struct hl_controller *c;
    struct change *next;
    struct hl_records records; /* as last written */
    bool writing, durable, applied;
    int tries;
};

/* An hl_catalog_commit_fn; arg is the Controller. Within a change it never blocks. Elsewhere it
 * waits for the disk, and fails with HL_EBUSY while a change is in progress. */
hl_status commit_records(void *arg, const struct hl_records *records);
/* Writes without blocking. The Controller outlives `done`, which must begin with
 * controller_stopped. */
hl_status controller_write(struct hl_controller *c, const struct hl_records *records,
                           hl_store_written done, void *arg) HL_CHECK;
/* Takes ownership of the change; it is made once those before it are done. */
void change_start(struct hl_controller *c, struct change *ch);
/* Ends all changes in progress with HL_ECANCELED. */
void changes_stop(struct hl_controller *c);

#endif
