/* core/families/logical.h - the Hugging Face tensors that a config.json implies, or that a list of
 * tensors names.
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
    struct hl_tensor *tensors; /* name, rank and shape; dtype, offset and size are meaningless */
    size_t count;
    char *names;
};

/* What a checkpoint contains beyond what its config.json says. */
struct hl_checkpoint {
    const char *prefix;   /* prefix of names below the model; NULL = the family's usual one */
    const json_t *copies; /* names of tensors that repeat another one; NULL = none */
    bool mtp;             /* multi-token prediction layers, if the config has any */
    /* those layers contain copies of the embedding and the head, as in Hugging Face */
    bool mtp_copies;
};

hl_status hl_family_logical(const struct hl_hf_config *config, const struct hl_checkpoint *has,
                            struct hl_logical *out) HL_CHECK;
void hl_logical_fini(struct hl_logical *logical);

/* A list of tensors as JSON, with one entry for all layers or experts that are alike. Only tensors
 * whose `keep` is not 0. NULL = out of memory. */
json_t *hl_logical_json(const struct hl_tensor *tensors, const unsigned char *keep, size_t count);
/* Reads such a list, with dtypes and sizes, in the order of the entries. */
hl_status hl_logical_read(const json_t *list, struct hl_logical *out) HL_CHECK;

#endif
