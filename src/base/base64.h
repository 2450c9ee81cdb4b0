/* base/base64.h - base64 (RFC 4648), the encoding of bytes in JSON.
 *
 * Owns:    nothing.
 * Threads: any.
 * Errors:  HL_EINVAL for text that is not base64; HL_ENOMEM from the buffer.
 * Units:   bytes.
 * Limits:  the buffer's maximum.
 */
#ifndef HL_BASE_BASE64_H
#define HL_BASE_BASE64_H

#include "base/buf.h"

/* Both append to `out`. */
hl_status hl_base64_encode(const void *data, size_t len, struct hl_buf *out) HL_CHECK;
hl_status hl_base64_decode(const char *text, struct hl_buf *out) HL_CHECK;

#endif
