/* core/reshard/reshard_private.h - shared between the files of reshard: finds equal tensors and
 * shards.
 *
 * Threads: any; they read only what they are given.
 */
#ifndef HL_CORE_RESHARD_RESHARD_PRIVATE_H
#define HL_CORE_RESHARD_RESHARD_PRIVATE_H

#include "core/reshard/reshard.h"

/* Fills in out->same and out->shards[].alias, which must be allocated. */
hl_status hl_reshard_find_same(const struct hl_partition_plan *a, const struct hl_partition_plan *b,
                               struct hl_reshard_plan *out) HL_CHECK;

#endif
