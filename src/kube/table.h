/* kube/table.h - the objects that a watcher has delivered, by a key that the owner finds in them.
 *
 * A new list replaces the old objects with its last page, so readers never see half of it.
 *
 * Owns:    references to the objects.
 * Threads: one at a time.
 * Errors:  HL_ENOMEM: the object is not added, or the table stays as it was before the list.
 * Units:   none.
 * Limits:  none.
 */
#ifndef HL_KUBE_TABLE_H
#define HL_KUBE_TABLE_H

#include <jansson.h>
#include <stdbool.h>

#include "kube/stream.h"

struct hl_kube_table {
    const char *(*key)(const json_t *object); /* borrowed from it; NULL: leave the object out */
    json_t *now;                              /* key -> object */
    json_t *next;                             /* a list whose pages are arriving; NULL = none */
    bool synced;                              /* a list is complete */
};

hl_status hl_kube_table_init(struct hl_kube_table *t,
                             const char *(*key)(const json_t *object)) HL_CHECK;
/* A zeroed table is allowed. */
void hl_kube_table_fini(struct hl_kube_table *t);
/* The same as a watcher's `listed` and `changed` (watcher.h). */
hl_status hl_kube_table_list(struct hl_kube_table *t, const json_t *objects,
                             unsigned page) HL_CHECK;
hl_status hl_kube_table_change(struct hl_kube_table *t, enum hl_kube_event type,
                               json_t *object) HL_CHECK;
/* Borrowed; NULL = there is none. */
json_t *hl_kube_table_find(const struct hl_kube_table *t, const char *key);

#endif
