/* base/utf8.h - checks whether foreign text is UTF-8, cleans it if not, and finds control
 * characters.
 *
 * Owns:    nothing; a cleaned copy lives in the arena.
 * Threads: any.
 * Errors:  NULL when out of memory.
 * Units:   bytes.
 * Limits:  none. Sequences as in RFC 3629, section 4: no surrogates, none longer than needed.
 */
#ifndef HL_BASE_UTF8_H
#define HL_BASE_UTF8_H

#include "base/arena.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Length of the valid sequence at `text`, 1 to 4; 0 if there is none. NUL is not a sequence. */
size_t hl_utf8_sequence(const char *text, size_t left);
/* Every byte up to the NUL belongs to a valid sequence. */
bool hl_utf8_valid(const char *text);
/* Length of the control character at `text`: 1 (U+0000 to U+001F, U+007F) or 2 (U+0080 to U+009F);
 * 0 if there is none. */
size_t hl_utf8_control(const char *text, size_t left);
/* One of the bytes is a control character of ASCII. */
bool hl_ascii_has_control(const char *text, size_t len);
/* Length of the longest prefix of at most `most` bytes that does not end within a character. */
size_t hl_utf8_fit(const char *text, size_t most);
/* A copy of `text` in which U+FFFD replaces every byte that belongs to no valid sequence. */
char *hl_utf8_clean(struct hl_arena *arena, const char *text, size_t len);

#ifdef __cplusplus
}
#endif

#endif
