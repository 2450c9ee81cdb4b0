/* base/text.h - parses numbers, sizes, durations and rates, and guesses what people meant.
 *
 * Owns:    nothing.
 * Threads: any.
 * Errors:  HL_EINVAL with the text and what is expected; callers prepend the place. Functions for
 *          plain numbers return true or false.
 * Units:   bytes, milliseconds, bits per second.
 * Limits:  values below 2^63.
 */
#ifndef HL_BASE_TEXT_H
#define HL_BASE_TEXT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/status.h"

/* Parses the digits of a number up to `max` and nothing else: no sign, no blanks, nothing behind.
 * True: it is such a number. */
bool hl_parse_number(const char *text, uint64_t max, uint64_t *out);
/* The same in hexadecimal, of 1 to `digits` digits without "0x". */
bool hl_parse_hex(const char *text, size_t digits, uint64_t *out);
/* Parses the number at the start of a longer text; returns where it ends, NULL: there is none. */
const char *hl_scan_number(const char *text, uint64_t max, uint64_t *out);
/* "4096", "512MiB", "2GB". KiB MiB GiB TiB are powers of 1024, KB MB GB TB of 1000, and K M G T
 * alone (any case) of 1024, as docker reads them. Fractions are fine ("1.5GiB"). */
hl_status hl_parse_bytes(const char *text, uint64_t *out) HL_CHECK;
/* "250" (ms), "250ms", "10s", "5m", "2h", "1.5s". */
hl_status hl_parse_duration_ms(const char *text, uint64_t *out) HL_CHECK;
/* Bits per second: "100Gbit", "2.5 Gbit/s", "1000000"; K M G T are powers of 1000. */
hl_status hl_parse_rate(const char *text, uint64_t *out) HL_CHECK;
/* "2.0 GiB" into buf. */
const char *hl_format_bytes(uint64_t bytes, char *buf, size_t cap);
/* Appends the text in lines of at most `width` columns; lines after the first are indented. The
 * first line starts at column `indent` of the present line. */
void hl_text_wrap(struct hl_buf *out, const char *text, size_t indent, size_t width);
/* "200 ms", "5.5 s", "2 min 1 s", "3.0 h" into buf. */
const char *hl_format_duration_ms(uint64_t ms, char *buf, size_t cap);
/* The closest of `names` if it is close enough to be a typo, else NULL. */
const char *hl_did_you_mean(const char *text, const char *const *names, size_t count);

#endif
