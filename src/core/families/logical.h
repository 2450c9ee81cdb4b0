/* core/families/logical.h - the Hugging Face tensors that a config.json asks for, or that a list of
 * them names.
 *
 * Owns:    hl_logical owns its tensors and names (hl_logical_fini).
 * Threads: any; pure.
 * Errors:  HL_EINVAL names the family and the expression; HL_ENOMEM.
 * Units:   elements.
 * Limits:  2^24 tensors.
 */
#ifndef HL_CORE_FAMILIES_LOGICAL_H
#define HL_CORE_FAMILIES_LOGICAL_H

#include <stdbool.h>

#include "core/model/hf.h"
#include "core/safetensors/safetensors.h"

struct hl_logical {
    struct hl_tensor *tensors; /* name, rank and shape; dtype, offset and size mean nothing */
    size_t count;
    char *names;
};

/* What a checkpoint has that its config.json does not say. */
struct hl_checkpoint {
    const char *prefix;   /* of names below the model; NULL = the family's usual one */
    const json_t *copies; /* names of tensors that repeat another one; NULL = none */
    bool mtp;             /* layers that predict more tokens, if the config has any */
    bool mtp_copies;      /* in those, copies of the embedding and the head: as Hugging Face has */
};

hl_status hl_family_logical(const struct hl_hf_config *config, const struct hl_checkpoint *has,
                            struct hl_logical *out) HL_CHECK;
void hl_logical_fini(struct hl_logical *logical);

/* A list of tensors as JSON: where layers and experts are alike, one entry for all of them. Only
 * those with `keep` not 0. NULL = out of memory. */
json_t *hl_logical_json(const struct hl_tensor *tensors, const unsigned char *keep, size_t count);
/* Back, with dtypes and sizes; the order is that of the entries. */
hl_status hl_logical_read(const json_t *list, struct hl_logical *out) HL_CHECK;

#endif
