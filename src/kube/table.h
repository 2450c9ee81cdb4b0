/* kube/table.h - what a watcher has brought, by a key that its owner finds in each object.
 *
 * A list takes the place of what there was with its last page, so that nobody sees the half of it.
 *
 * Owns:    references to the objects.
 * Threads: one at a time.
 * Errors:  HL_ENOMEM: the object is not known, or the table stays as it was before the list.
 * Units:   none.
 * Limits:  none.
 */
#ifndef HL_KUBE_TABLE_H
#define HL_KUBE_TABLE_H

#include <jansson.h>
#include <stdbool.h>

#include "kube/stream.h"

struct hl_kube_table {
    const char *(*key)(const json_t *object); /* borrowed of it; NULL: it is left out */
    json_t *now;                              /* key -> object */
    json_t *next;                             /* of a list whose pages come in; NULL = none */
    bool synced;                              /* it was listed */
};

hl_status hl_kube_table_init(struct hl_kube_table *t,
                             const char *(*key)(const json_t *object)) HL_CHECK;
/* NULLs are fine. */
void hl_kube_table_fini(struct hl_kube_table *t);
/* As a watcher's `listed` and `changed` have them (watcher.h). */
hl_status hl_kube_table_list(struct hl_kube_table *t, const json_t *objects,
                             unsigned page) HL_CHECK;
hl_status hl_kube_table_change(struct hl_kube_table *t, enum hl_kube_event type,
                               json_t *object) HL_CHECK;
/* Borrowed; NULL = there is none. */
json_t *hl_kube_table_find(const struct hl_kube_table *t, const char *key);

#endif
