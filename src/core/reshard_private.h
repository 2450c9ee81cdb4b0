/* core/reshard_private.h - shared between the files of reshard: digests, and what is alike. */
#ifndef HL_CORE_RESHARD_PRIVATE_H
#define HL_CORE_RESHARD_PRIVATE_H

#include "core/reshard.h"

struct hl_digest {
    uint64_t hi, lo;
};

void hl_digest_word(struct hl_digest *d, uint64_t word);
void hl_digest_text(struct hl_digest *d, const char *text);
/* Dtype, shape and operations of a tensor, not its name. */
void hl_digest_tensor(struct hl_digest *d, const struct hl_partition_plan *plan, size_t tensor);

/* Fill out->same and out->shards[].alias, which are allocated. */
hl_status hl_reshard_find_same(const struct hl_partition_plan *a, const struct hl_partition_plan *b,
                               struct hl_reshard_plan *out) HL_CHECK;

#endif
