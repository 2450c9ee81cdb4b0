/* core/copies/repair.h - repairing a copy that is said to be bad: what the good bytes must be, what
 * a source's answer says of the shard, and what is done about the copy of a node.
 *
 * Owns:    nothing.
 * Threads: any. Pure.
 * Errors:  none.
 * Units:   bytes.
 * Limits:  none.
 */
#ifndef HL_CORE_COPIES_REPAIR_H
#define HL_CORE_COPIES_REPAIR_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"

/* What is known of a shard's bytes. Sizes: 0 = that one has none. */
struct hl_repair_known {
    uint64_t pool_size, archive_size;
    uint64_t stated_size; /* by the caller that orders the repair, with the CRC */
    uint32_t pool_crc, stated_crc;
};

/* Size 0: no source knows the shard. */
struct hl_repair_want {
    uint64_t size;
    uint32_t crc;
    bool crc_known;
};

/* The pool's index counts more than the archive's, and that more than what was stated. */
struct hl_repair_want hl_repair_want(const struct hl_repair_known *known);

enum hl_repair_answer {
    HL_REPAIR_GOOD,
    HL_REPAIR_BAD, /* it has other bytes, or damaged ones */
    HL_REPAIR_NONE,
    HL_REPAIR_UNASKED, /* it may have good ones: while one did not answer, no shard is lost */
};

/* st: of reading a source; HL_OK: it gave bytes with that CRC. */
enum hl_repair_answer hl_repair_judge(const struct hl_repair_want *want, hl_status st,
                                      uint32_t crc);

/* A copy in a node's store. */
enum hl_repair_copy {
    HL_REPAIR_COPY_IS_GOOD, /* the fault was the reader's own */
    HL_REPAIR_COPY_AGAIN,   /* it is gone: made again from another one */
    HL_REPAIR_COPY_REPLACE, /* it is bad: dropped, then made again */
    HL_REPAIR_COPY_LOST,    /* there is no other; what is left of a bad one stays */
    HL_REPAIR_COPY_UNKNOWN, /* it could not be read through */
};

/* st: of reading it through; is_whole counts with HL_OK. */
enum hl_repair_copy hl_repair_copy(hl_status st, bool is_whole, bool has_other);

#endif
