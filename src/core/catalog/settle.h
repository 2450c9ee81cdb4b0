/* core/catalog/settle.h - completes the config of a model that was created by a save with a
 * config.json.
 *
 * The dtype, the naming and the padding of the vocabulary are not in the config.json; they are
 * derived from the stored tensors. Then the same plan as for an import is made, and every part must
 * match it.
 *
 * Owns:    nothing; the input is borrowed.
 * Threads: any; pure. It plans a model, which takes too long for an event loop.
 * Errors:  HL_EINVAL names the part and the tensor that don't match the config.
 * Units:   none.
 * Limits:  those of core/model/partition.h.
 */
#ifndef HL_CORE_CATALOG_SETTLE_H
#define HL_CORE_CATALOG_SETTLE_H

#include "api/types.h"
#include "core/reshard/proof.h"

struct hl_settle {
    const char *model;         /* its name */
    const char *config;        /* of the model, before its first version */
    struct hl_api_split split; /* of the version */
    const struct hl_proof_shard *shards;
    size_t count;
};

/* The completed config of the model; free(). NULL if it has no Hugging Face config, so there is
 * nothing to complete. */
hl_status hl_settle(const struct hl_settle *in, char **out) HL_CHECK;

#endif
