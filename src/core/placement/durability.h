/* core/placement/durability.h - decides whether a shard is stored safely enough for its version to
 * count as committed, and where another copy should go.
 *
 *     pool       a verified copy of each shard outside of devices
 *     two        verified copies in two failure domains; the archive is one of its own
 *     archive    a verified copy in the archive
 *
 * Owns:    nothing.
 * Threads: any. Pure.
 * Errors:  HL_EINVAL for an unknown word.
 * Units:   bytes.
 * Limits:  none.
 */
#ifndef HL_CORE_PLACEMENT_DURABILITY_H
#define HL_CORE_PLACEMENT_DURABILITY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "api/types.h"
#include "base/status.h"

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
    uint32_t domain; /* failure domain, such as a server or a rack; the caller numbers them */
    uint8_t tier;    /* enum hl_api_tier */
    bool verified;   /* its checksum was verified where it is stored */
    bool reachable;  /* its holder is known to be up */
};

bool hl_durability_holds(enum hl_durability durability, const struct hl_holder *holders,
                         size_t count);

/* A node that may get a copy. */
struct hl_durability_node {
    uint32_t domain;
    uint64_t free_bytes; /* of its L2 */
    bool takes;          /* it is there, and was not tried in vain */
    bool reads;          /* it will read the shard, so it is preferred */
};

struct hl_durability_ways {
    bool pool; /* it is there, and was not tried in vain */
    uint32_t pool_domain;
    bool archive; /* likewise */
    const struct hl_durability_node *nodes;
    size_t node_count;
};

enum hl_durability_step {
    HL_DURABILITY_HELD,    /* nothing is missing */
    HL_DURABILITY_TO_POOL, /* the pool has lost it, and never evicts a shard that is only there */
    HL_DURABILITY_TO_ARCHIVE, /* an archive gets the bytes anyway, and needs no memory */
    HL_DURABILITY_TO_NODE,
    HL_DURABILITY_NO_WAY,
};

/* The next step towards the durability; *node: index of the node, for TO_NODE. */
enum hl_durability_step hl_durability_next(enum hl_durability durability, uint64_t size_bytes,
                                           const struct hl_holder *holders, size_t count,
                                           const struct hl_durability_ways *ways, size_t *node);

#endif
