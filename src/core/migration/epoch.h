/* core/migration/epoch.h - decides which Controller a holder of copies obeys.
 *
 * Each start of a Controller begins a new epoch of its cluster, with a higher number than any
 * before. A holder rejects orders of an epoch older than the newest it has heard of, because an
 * order of a replaced Controller may arrive long after those of its successor.
 *
 * Owns:    nothing.
 * Threads: any. Pure: the time is an argument.
 * Errors:  HL_EPERM names both epochs; HL_EINVAL for a text that is not an epoch.
 * Units:   s.
 * Limits:  epoch numbers are based on seconds since 1970, so they fit 32 bits until 2106.
 */
#ifndef HL_CORE_MIGRATION_EPOCH_H
#define HL_CORE_MIGRATION_EPOCH_H

#include <stddef.h>
#include <stdint.h>

#include "base/id.h"
#include "base/status.h"

struct hl_epoch {
    struct hl_id cluster; /* no id: not stated, as in an order */
    uint64_t number;      /* 0: not from a Controller */
};

/* The epoch number of a start: greater than `last`, and at least the clock's seconds. So a
 * Controller whose state was restored from an old copy is still newer than the one it replaces. */
uint64_t hl_epoch_next(uint64_t last, int64_t wall_s);
/* Sets *newest to `told` unless `told` is older (HL_EPERM). An epoch of another cluster replaces
 * it, because the holder has registered there. Requests that don't come from a Controller are
 * accepted. */
hl_status hl_epoch_hear(struct hl_epoch *newest, const struct hl_epoch *told) HL_CHECK;

#define HL_EPOCH_TEXT_MAX 64

/* "CLUSTER NUMBER", the form in which a holder stores it. */
void hl_epoch_print(const struct hl_epoch *epoch, char text[HL_EPOCH_TEXT_MAX]);
hl_status hl_epoch_parse(const char *text, struct hl_epoch *out) HL_CHECK;

#endif
