/* core/copies/repair.h - repair of a copy that is reported as bad: what the correct bytes must be,
 * what a source's answer means for the shard, and what to do with a node's copy.
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

/* What is known about a shard's bytes. A size of 0 means that this source has none. */
struct hl_repair_known {
    uint64_t pool_size, archive_size;
    uint64_t stated_size; /* by the caller that orders the repair, like stated_crc */
    uint32_t pool_crc, stated_crc;
};

/* Size 0: no source knows the shard. */
struct hl_repair_want {
    uint64_t size;
    uint32_t crc;
    bool crc_known;
};

/* The pool's index takes precedence over the archive's, and that over what the caller stated. */
struct hl_repair_want hl_repair_want(const struct hl_repair_known *known);

enum hl_repair_answer {
    HL_REPAIR_GOOD,
    HL_REPAIR_BAD, /* it has wrong or damaged bytes */
    HL_REPAIR_NONE,
    /* it did not answer and may have good bytes, so the shard does not count as lost */
    HL_REPAIR_UNASKED,
};

/* st: result of reading a source; HL_OK: it returned bytes with that CRC. */
enum hl_repair_answer hl_repair_judge(const struct hl_repair_want *want, hl_status st,
                                      uint32_t crc);

/* A copy in a node's store. */
enum hl_repair_copy {
    HL_REPAIR_COPY_IS_GOOD, /* the fault was the reader's own */
    HL_REPAIR_COPY_AGAIN,   /* it is gone: copy it again from another one */
    HL_REPAIR_COPY_REPLACE, /* it is bad: drop it, then copy it again */
    HL_REPAIR_COPY_LOST,    /* there is no other copy; the remains of a bad one stay */
    HL_REPAIR_COPY_UNKNOWN, /* it could not be read to the end */
};

/* st: result of reading the whole copy; is_whole is only valid with HL_OK. */
enum hl_repair_copy hl_repair_copy(hl_status st, bool is_whole, bool has_other);

#endif
