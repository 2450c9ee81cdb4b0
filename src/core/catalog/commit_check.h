/* core/catalog/commit_check.h - the check before a version becomes visible: L3 must have every
 * shard of it, with the size and the checksum that its ranks stated.
 *
 * Owns:    nothing.
 * Threads: any. Pure.
 * Errors:  HL_ENOENT, HL_EINVAL name the shard; HL_ENOMEM.
 * Units:   bytes.
 * Limits:  none.
 */
#ifndef HL_CORE_CATALOG_COMMIT_CHECK_H
#define HL_CORE_CATALOG_COMMIT_CHECK_H

#include "api/types.h"
#include "base/arena.h"
#include "base/status.h"

struct hl_version_rec;

/* Ids of the version's shards and of those that a rank names; allocated in the arena. */
struct hl_api_text_list hl_commit_check_ids(const struct hl_version_rec *v,
                                            const struct hl_api_shard_list *named,
                                            struct hl_arena *arena);
/* found: what L3.look answered about these ids. */
hl_status hl_commit_check(const struct hl_version_rec *v, const struct hl_api_shard_list *named,
                          const struct hl_api_found_shard_list *found) HL_CHECK;

#endif
