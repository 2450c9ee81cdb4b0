/* base/id.h - 128-bit random identifiers and their 32-hex-digit text.
 *
 * Owns:    nothing.
 * Threads: any.
 * Errors:  HL_EINVAL for text that is not 32 hex digits; the arena remembers HL_ENOMEM.
 * Units:   none.
 * Limits:  the all-zero id means "none".
 */
#ifndef HL_BASE_ID_H
#define HL_BASE_ID_H

#include <stdbool.h>
#include <stdint.h>

#include "base/arena.h"
#include "base/status.h"

#define HL_ID_TEXT_LEN 32

struct hl_id {
    uint64_t hi;
    uint64_t lo;
};

struct hl_id_text {
    char s[HL_ID_TEXT_LEN + 1];
};

/* A new id from the kernel's random source. */
struct hl_id hl_id_random(void);
uint64_t hl_random_u64(void);
/* Returned by value, for use in a printf: hl_id_format(id).s */
struct hl_id_text hl_id_format(struct hl_id id);
/* "" for none; NULL when out of memory. */
const char *hl_id_print(struct hl_id id, struct hl_arena *arena);
hl_status hl_id_parse(const char *text, struct hl_id *out) HL_CHECK;

static inline bool hl_id_equal(struct hl_id a, struct hl_id b)
{
    return a.hi == b.hi && a.lo == b.lo;
}

/* A hash of the id. Ids are random or digests; the multiplication also spreads ids that were made
 * to collide. The upper bits are the better ones. */
static inline uint64_t hl_id_mix(struct hl_id id)
{
    return (id.lo ^ id.hi * UINT64_C(0xbf58476d1ce4e5b9)) * UINT64_C(0x9e3779b97f4a7c15);
}

static inline bool hl_id_is_none(struct hl_id a)
{
    return a.hi == 0 && a.lo == 0;
}

#endif
