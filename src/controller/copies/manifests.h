/* controller/copies/manifests.h - the manifest of each visible version (core/manifest.h), kept
 * beside its shards: in the pool, and where there is an archive in that too.
 *
 * It is written when the version has become visible, after whoever made it was answered. What is
 * missing at a sweep is written again; what belongs to no version goes as an orphan.
 *
 * Owns:    what the last sweep has seen of them.
 * Threads: the Controller's loop.
 * Errors:  a manifest that can't be written is logged, and tried again at the next sweep.
 * Units:   none.
 * Limits:  MANIFEST_PUTS at a time.
 */
#ifndef HL_CONTROLLER_COPIES_MANIFESTS_H
#define HL_CONTROLLER_COPIES_MANIFESTS_H

#include <stddef.h>

#include "api/types.h"
#include "base/id.h"

struct hl_controller;
struct hl_model_rec;
struct hl_version_rec;

/* The version is visible: write its manifest, and don't wait. */
void manifest_write(struct hl_controller *c, const struct hl_version_rec *v);
/* The sweep has seen one, in the pool or in the archive. */
void manifests_note(struct hl_controller *c, struct hl_id id, int archived);
/* The whole inventory was seen: missing ones are written, those of no version are noted as
 * orphans. */
void manifests_settle(struct hl_controller *c);
/* Adds ids of those that are in the pool only, until the list has `max`, for which it has room. */
void manifests_not_archived(const struct hl_controller *c, struct hl_api_text_list *ids, size_t max,
                            struct hl_arena *arena);
/* Those of the versions that are going: a list of ids that the caller frees, NULL without
 * memory: then they go as orphans. number -1: all of the model. */
struct hl_id *manifests_of(const struct hl_model_rec *m, int64_t number, size_t *count);
void manifests_fini(struct hl_controller *c);

#endif
