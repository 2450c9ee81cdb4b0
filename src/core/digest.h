/* core/digest.h - 128-bit digests to compare values: the inputs of a plan, the boxes of a tensor.
 *
 * Owns:    nothing.
 * Threads: any. Pure.
 * Errors:  none.
 * Units:   none.
 * Limits:  no protection against forgery; the same on every machine.
 */
#ifndef HL_CORE_DIGEST_H
#define HL_CORE_DIGEST_H

#include "core/safetensors/safetensors.h"

struct hl_digest {
    uint64_t hi, lo;
};

void hl_digest_word(struct hl_digest *d, uint64_t word);
void hl_digest_text(struct hl_digest *d, const char *text);
/* Adds dtype and shape, but not the name. */
void hl_digest_shape(struct hl_digest *d, const struct hl_tensor *t);

#endif
