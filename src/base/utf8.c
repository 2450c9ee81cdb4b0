#include "base/utf8.h"

#include <string.h>

static const char replacement[] = "\xEF\xBF\xBD"; /* U+FFFD */

size_t hl_utf8_sequence(const char *text, size_t left)
{
    const unsigned char *p = (const unsigned char *)text;
    if (left == 0 || p[0] == 0)
        return 0;
    if (p[0] < 0x80)
        return 1;
    size_t len = p[0] >= 0xF0 ? 4 : p[0] >= 0xE0 ? 3 : 2;
    if (p[0] < 0xC2 || p[0] > 0xF4 || left < len)
        return 0;
    unsigned char low = p[0] == 0xE0 ? 0xA0 : p[0] == 0xF0 ? 0x90 : 0x80;
    unsigned char high = p[0] == 0xED ? 0x9F : p[0] == 0xF4 ? 0x8F : 0xBF;
    if (p[1] < low || p[1] > high)
        return 0;
    for (size_t i = 2; i < len; i++)
        if ((p[i] & 0xC0) != 0x80)
            return 0;
    return len;
}

bool hl_utf8_valid(const char *text)
{
    size_t left = strlen(text), n = 0;
    for (; left > 0; text += n, left -= n)
        if ((n = hl_utf8_sequence(text, left)) == 0)
            return false;
    return true;
}

size_t hl_utf8_control(const char *text, size_t left)
{
    const unsigned char *p = (const unsigned char *)text;
    if (left == 0)
        return 0;
    if (p[0] < 0x20 || p[0] == 0x7F)
        return 1;
    return left > 1 && p[0] == 0xC2 && p[1] >= 0x80 && p[1] < 0xA0 ? 2 : 0;
}

bool hl_ascii_has_control(const char *text, size_t len)
{
    for (size_t i = 0; i < len; i++)
        if ((unsigned char)text[i] < 0x20 || text[i] == 0x7F)
            return true;
    return false;
}

size_t hl_utf8_fit(const char *text, size_t most)
{
    size_t len = strnlen(text, most + 1);
    if (len <= most)
        return len;
    len = most;
    while (len > 0 && ((unsigned char)text[len] & 0xC0) == 0x80)
        len--; /* the first byte left out would continue a character */
    return len;
}

char *hl_utf8_clean(struct hl_arena *arena, const char *text, size_t len)
{
    size_t bad = 0, n;
    for (size_t i = 0; i < len; i += n == 0 ? 1 : n) {
        n = hl_utf8_sequence(text + i, len - i);
        bad += n == 0;
    }
    if (bad == 0)
        return hl_arena_text(arena, text, len);
    char *copy = hl_arena_array(arena, len + 1, sizeof(replacement) - 1), *to = copy;
    if (copy == NULL)
        return NULL;
    for (size_t i = 0; i < len; i += n == 0 ? 1 : n) {
        n = hl_utf8_sequence(text + i, len - i);
        memcpy(to, n == 0 ? replacement : text + i, n == 0 ? sizeof(replacement) - 1 : n);
        to += n == 0 ? sizeof(replacement) - 1 : n;
    }
    return copy;
}
