/* kube/stream_private.h - shared by the files of a stream.
 *
 * Threads: one at a time per stream.
 */
#ifndef HL_KUBE_STREAM_PRIVATE_H
#define HL_KUBE_STREAM_PRIVATE_H

#include "kube/stream.h"

extern const char *const stream_events[]; /* names of enum hl_kube_event; ends with NULL */

hl_status stream_on_error(struct hl_kube_stream *s, const json_t *status);
/* frames.c: does the same as hl_kube_stream_feed, for Protocol Buffers. */
hl_status stream_feed_frames(struct hl_kube_stream *s, const char *bytes, size_t len);

#endif
