/* core/catalog/settle.h - the config of a model that was made by a save with a config.json.
 *
 * What that does not say, the dtype, the naming and how the vocabulary is padded, is read off the
 * stored tensors; then the plan of an import is made, and every part has to be as it has it.
 *
 * Owns:    nothing; the input is borrowed.
 * Threads: any; pure. It plans a model: too long for an event loop.
 * Errors:  HL_EINVAL names the part and the tensor that are not what the config asks for.
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

/* The model's config, free(). NULL where it has no Hugging Face config: there is nothing to
 * settle. */
hl_status hl_settle(const struct hl_settle *in, char **out) HL_CHECK;

#endif
