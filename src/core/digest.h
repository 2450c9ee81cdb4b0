/* core/digest.h - 128 bits that tell two values apart: what a plan was made from, boxes of a
 * tensor.
 *
 * Owns:    nothing.
 * Threads: any. Pure.
 * Errors:  none.
 * Units:   none.
 * Limits:  of no use against forgery; the same on every machine.
 */
#ifndef HL_CORE_DIGEST_H
#define HL_CORE_DIGEST_H

#include "core/safetensors/safetensors.h"

struct hl_digest {
    uint64_t hi, lo;
};

void hl_digest_word(struct hl_digest *d, uint64_t word);
void hl_digest_text(struct hl_digest *d, const char *text);
/* Dtype and shape, not the name. */
void hl_digest_shape(struct hl_digest *d, const struct hl_tensor *t);

#endif
