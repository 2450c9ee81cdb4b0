/* group/group.h - the implementation of a group: its built-in transport and the reductions.
 *
 * Owns:    an open transport owns its mapping until its `close`.
 * Threads: one at a time on a transport, except `cancel` from any; the reductions from any.
 * Errors:  as helios/hybridps.h says of groups.
 * Units:   bytes, milliseconds; reductions count elements.
 * Limits:  HL_COLLECTIVE_RANKS ranks.
 */
#ifndef HL_GROUP_GROUP_H
#define HL_GROUP_GROUP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "helios/hybridps.h"

#define HL_COLLECTIVE_RANKS      256
#define HL_COLLECTIVE_TIMEOUT_MS 300000

hl_status hl_collective_shm_open(const hybridps_shm_options *options,
                                 hybridps_transport *out) HL_CHECK;

/* Checks whether a reduction of n elements on `world` ranks is valid; call: for the message. */
hl_status hl_collective_check(const char *call, const char *what, const void *data, uint64_t n,
                              int type, int op, int world) HL_CHECK;

/* The caller's name for what is communicated, or "". */
static inline const char *hl_collective_name(const char *what)
{
    return what != NULL ? what : "";
}

/* Bytes of an element; 0 for an unknown type. */
size_t hl_collective_size(int type);
/* Whether the operation exists and is defined for this type. */
bool hl_collective_op_fits(int op, int type);
/* dst[i] = parts[0][i] op parts[1][i] op ... for `first` <= i < `first` + n, rounded to the type
 * each time; dst may be one of the parts. HYBRIDPS_MEAN only adds; the caller divides
 * afterwards. */
void hl_collective_reduce(void *dst, const void *const *parts, int count, int type, int op,
                          size_t first, size_t n);
/* data[i] /= by, for floating-point types. */
void hl_collective_divide(void *data, size_t n, int type, int by);

#endif
