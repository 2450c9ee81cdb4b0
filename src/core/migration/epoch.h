/* core/migration/epoch.h - which Controller a holder of copies obeys.
 *
 * Each start of a Controller begins an epoch of its cluster, with a greater number than any before.
 * A holder obeys none before the newest that it has heard of: an order of a Controller that was
 * replaced may arrive long after those of the next one.
 *
 * Owns:    nothing.
 * Threads: any. Pure: the time is an argument.
 * Errors:  HL_EPERM names both epochs; HL_EINVAL a text that is none.
 * Units:   s.
 * Limits:  as numbers of seconds since 1970 the epochs of a start fit 32 bits until 2106.
 */
#ifndef HL_CORE_MIGRATION_EPOCH_H
#define HL_CORE_MIGRATION_EPOCH_H

#include <stddef.h>
#include <stdint.h>

#include "base/id.h"
#include "base/status.h"

struct hl_epoch {
    struct hl_id cluster; /* none: it is not said, as in an order */
    uint64_t number;      /* 0: no Controller's */
};

/* That of a start, after `last`. The clock's, where that is more: a Controller whose state was
 * restored from an old copy is newer than the one that it replaces. */
uint64_t hl_epoch_next(uint64_t last, int64_t wall_s);
/* The newest so far becomes `told`, unless that is older. Another cluster's takes its place: the
 * holder has registered there. What no Controller has ordered is obeyed. */
hl_status hl_epoch_hear(struct hl_epoch *newest, const struct hl_epoch *told) HL_CHECK;

#define HL_EPOCH_TEXT_MAX 64

/* "CLUSTER NUMBER", as a holder keeps it. */
void hl_epoch_print(const struct hl_epoch *epoch, char text[HL_EPOCH_TEXT_MAX]);
hl_status hl_epoch_parse(const char *text, struct hl_epoch *out) HL_CHECK;

#endif
