/* base/hash.h - FNV-1a of strings and other bytes, for hash tables and for names of files. It does
 * not protect against deliberate collisions.
 *
 * Owns:    nothing.
 * Threads: any. Pure.
 * Errors:  none.
 * Units:   none.
 * Limits:  none. The values must never change, because files are named after them.
 */
#ifndef HL_BASE_HASH_H
#define HL_BASE_HASH_H

#include <stddef.h>
#include <stdint.h>

#define HL_HASH_START UINT64_C(14695981039346656037)

/* Continues a hash; start with HL_HASH_START. */
static inline uint64_t hl_hash_add(uint64_t hash, const void *bytes, size_t n)
{
    const uint8_t *at = bytes;
    for (size_t i = 0; i < n; i++)
        hash = (hash ^ at[i]) * UINT64_C(1099511628211);
    return hash;
}

static inline uint64_t hl_hash_text(const char *text)
{
    uint64_t hash = HL_HASH_START;
    for (; *text != '\0'; text++)
        hash = hl_hash_add(hash, text, 1);
    return hash;
}

#endif
