/* core/placement/durability.h - whether a version is safe enough to count as committed: which of
 * its shards are held in too few failure domains.
 *
 *     pool       a verified copy of each shard outside of devices
 *     two        verified copies in two failure domains; the archive is one of its own
 *     archive    a verified copy in the archive
 *
 * Owns:    nothing.
 * Threads: any. Pure.
 * Errors:  HL_EINVAL for a word that names none.
 * Units:   none.
 * Limits:  none.
 */
#ifndef HL_CORE_PLACEMENT_DURABILITY_H
#define HL_CORE_PLACEMENT_DURABILITY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "api/types.h"
#include "base/id.h"

/* clang-format off */
#define HL_DURABILITY_MAP(X)                                                                    \
    X(POOL,    "pool")                                                                          \
    X(TWO,     "two")                                                                           \
    X(ARCHIVE, "archive")

/* clang-format on */

enum hl_durability {

#define X(name, word) HL_DURABILITY_##name,
    HL_DURABILITY_MAP(X)
#undef X
        HL_DURABILITIES
};

const char *hl_durability_word(enum hl_durability durability);
hl_status hl_durability_parse(const char *word, enum hl_durability *out) HL_CHECK;

/* A copy of a shard. */
struct hl_holder {
    uint32_t domain; /* what fails together, as a server or a rack: the caller's numbers */
    uint8_t tier;    /* enum hl_api_tier */
    bool verified;   /* its checksum was found right where it lies */
    bool reachable;  /* its holder is known to be there */
};

struct hl_held_shard {
    struct hl_id id;
    const struct hl_holder *holders;
    size_t count;
};

bool hl_durability_holds(enum hl_durability durability, const struct hl_holder *holders,
                         size_t count);

struct hl_durability_verdict {
    bool committed; /* never of a version without shards */
    size_t lacking; /* shards that are held in too few places */
    struct hl_id first_lacking;
};

struct hl_durability_verdict hl_durability_judge(enum hl_durability durability,
                                                 const struct hl_held_shard *shards, size_t count);

#endif
