#include "core/digest.h"

#include <string.h>

/* Two lanes of multiply and shift; the constants are those of splitmix64 and of wyhash. */
void hl_digest_word(struct hl_digest *d, uint64_t word)
{
    d->hi = (d->hi ^ word) * 0xBF58476D1CE4E5B9ull;
    d->hi ^= d->hi >> 31;
    d->lo = (d->lo + word) * 0xA0761D6478BD642Full;
    d->lo ^= d->lo >> 29;
}

void hl_digest_text(struct hl_digest *d, const char *text)
{
    size_t len = strlen(text);
    hl_digest_word(d, len);
    for (size_t at = 0; at < len; at += 8) {
        uint64_t word = 0;
        for (size_t i = at; i < at + 8 && i < len; i++)
            word |= (uint64_t)(unsigned char)text[i] << 8 * (i - at);
        hl_digest_word(d, word);
    }
}

void hl_digest_shape(struct hl_digest *d, const struct hl_tensor *t)
{
    hl_digest_text(d, hl_dtype_name(t->dtype));
    hl_digest_word(d, t->rank);
    for (uint32_t i = 0; i < t->rank; i++)
        hl_digest_word(d, t->shape[i]);
}
