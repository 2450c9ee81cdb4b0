/* core/families/logical.h - the Hugging Face tensors that a config.json asks for, or that a list of
 * them names.
 *
 * Owns:    hl_logical owns its tensors and names (hl_logical_fini).
 * Threads: any; pure.
 * Errors:  HL_EINVAL names the family and the expression; HL_ENOMEM.
 * Units:   elements.
 * Limits:  2^24 tensors. MTP layers, which a checkpoint may lack, are not listed.
 */
#ifndef HL_CORE_FAMILIES_LOGICAL_H
#define HL_CORE_FAMILIES_LOGICAL_H

#include "core/hf.h"
#include "core/safetensors.h"

struct hl_logical {
    struct hl_tensor *tensors; /* name, rank and shape; dtype, offset and size mean nothing */
    size_t count;
    char *names;
};

/* Names begin with the family's usual prefix; a tied head is not listed. */
hl_status hl_family_logical(const struct hl_hf_config *config, struct hl_logical *out) HL_CHECK;
void hl_logical_fini(struct hl_logical *logical);

/* A list of tensors as JSON: where layers and experts are alike, one entry for all of them. Only
 * those with `keep` not 0. NULL = out of memory. */
json_t *hl_logical_json(const struct hl_tensor *tensors, const unsigned char *keep, size_t count);
/* Back, with dtypes and sizes; the order is that of the entries. */
hl_status hl_logical_read(const json_t *list, struct hl_logical *out) HL_CHECK;

#endif
