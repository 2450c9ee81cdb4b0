/* mem/reshard_window.h - a range of a target tensor's bytes, made by the operations of a plan.
 *
 * Owns:    nothing.
 * Threads: any.
 * Errors:  those of `source`.
 * Units:   bytes.
 * Limits:  operations are sorted by dst, as in a plan; the range consists of whole elements.
 */
#ifndef HL_MEM_RESHARD_WINDOW_H
#define HL_MEM_RESHARD_WINDOW_H

#include <stddef.h>
#include <stdint.h>

#include "core/reshard/reshard.h"

/* Returns the first byte of the operation's source tensor, of which bytes [first, end) are read
 * next. */
typedef hl_status (*hl_reshard_source_fn)(void *arg, const struct hl_reshard_op *op, uint64_t first,
                                          uint64_t end, const uint8_t **out);

/* Bytes [begin, end) of the target tensor, at dst. */
struct hl_reshard_window {
    uint8_t *dst;
    uint64_t begin;
    uint64_t end;
    hl_reshard_source_fn source;
    void *arg;
};

/* End of the range that an operation writes. */
uint64_t hl_reshard_op_end(const struct hl_reshard_op *op);
/* Writes the part of the operations' output that falls into the window. */
hl_status hl_reshard_fill(const struct hl_reshard_window *w, const struct hl_reshard_op *ops,
                          size_t count) HL_CHECK;

#endif
