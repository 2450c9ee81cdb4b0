#include "base/text.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

const char *hl_scan_number(const char *text, uint64_t max, uint64_t *out)
{
    uint64_t value = 0;
    const char *p = text;
    for (; isdigit((unsigned char)*p); p++)
        if (__builtin_mul_overflow(value, 10u, &value) ||
            __builtin_add_overflow(value, (uint64_t)(*p - '0'), &value) || value > max)
            return NULL;
    if (p == text)
        return NULL;
    *out = value;
    return p;
}

bool hl_parse_number(const char *text, uint64_t max, uint64_t *out)
{
    uint64_t value;
    const char *end = hl_scan_number(text, max, &value);
    if (end == NULL || *end != '\0')
        return false;
    *out = value;
    return true;
}

bool hl_parse_hex(const char *text, size_t digits, uint64_t *out)
{
    size_t len = strspn(text, "0123456789abcdefABCDEF");
    if (len == 0 || len > digits || len > 16 || text[len] != '\0')
        return false;
    *out = strtoull(text, NULL, 16);
    return true;
}

struct unit {
    const char *name;
    uint64_t scale;
};

/* clang-format off */
static const struct unit byte_units[] = {
    {"", 1}, {"b", 1},
    {"k", 1ull << 10}, {"kib", 1ull << 10}, {"kb", 1000ull},
    {"m", 1ull << 20}, {"mib", 1ull << 20}, {"mb", 1000000ull},
    {"g", 1ull << 30}, {"gib", 1ull << 30}, {"gb", 1000000000ull},
    {"t", 1ull << 40}, {"tib", 1ull << 40}, {"tb", 1000000000000ull},
};
static const struct unit time_units[] = {
    {"", 1}, {"ms", 1}, {"s", 1000}, {"m", 60000}, {"min", 60000}, {"h", 3600000}, {"d", 86400000},
};
static const struct unit rate_units[] = {
    {"", 1}, {"bit", 1}, {"bit/s", 1}, {"bps", 1},
    {"k", 1000}, {"kbit", 1000}, {"kbit/s", 1000}, {"kbps", 1000},
    {"m", 1000000}, {"mbit", 1000000}, {"mbit/s", 1000000}, {"mbps", 1000000},
    {"g", 1000000000ull}, {"gbit", 1000000000ull}, {"gbit/s", 1000000000ull},
    {"gbps", 1000000000ull},
    {"t", 1000000000000ull}, {"tbit", 1000000000000ull}, {"tbit/s", 1000000000000ull},
    {"tbps", 1000000000000ull},
};

/* clang-format on */

/* Parses digits, an optional fraction of at most nine digits, blanks, a unit. The fraction is kept
 * as fraction / power, so "1.5GiB" is exact. */
static bool parse_quantity(const char *text, const struct unit *units, size_t count, uint64_t *out)
{
    const char *p = text;
    uint64_t whole = 0, fraction = 0, power = 1;
    if (!isdigit((unsigned char)*p))
        return false;
    for (; isdigit((unsigned char)*p); p++)
        if (__builtin_mul_overflow(whole, 10u, &whole) ||
            __builtin_add_overflow(whole, (uint64_t)(*p - '0'), &whole))
            return false;
    if (*p == '.') {
        if (!isdigit((unsigned char)*++p))
            return false;
        for (; isdigit((unsigned char)*p); p++) {
            if (power >= 1000000000ull)
                return false;
            fraction = fraction * 10 + (uint64_t)(*p - '0');
            power *= 10;
        }
    }
    while (*p == ' ')
        p++;
    for (size_t i = 0; i < count; i++) {
        if (strcasecmp(p, units[i].name) != 0)
            continue;
        uint64_t value;
        if (__builtin_mul_overflow(whole, units[i].scale, &value))
            return false;
        value += fraction * (units[i].scale / power) + fraction * (units[i].scale % power) / power;
        if (value > INT64_MAX)
            return false;
        *out = value;
        return true;
    }
    return false;
}

hl_status hl_parse_bytes(const char *text, uint64_t *out)
{
    if (!parse_quantity(text, byte_units, HL_ARRAY_LEN(byte_units), out))
        return hl_fail(HL_EINVAL, "'%.64s' is not a size: write a number of bytes, or 512MiB, 4GiB",
                       text);
    return HL_OK;
}

hl_status hl_parse_duration_ms(const char *text, uint64_t *out)
{
    if (!parse_quantity(text, time_units, HL_ARRAY_LEN(time_units), out))
        return hl_fail(HL_EINVAL, "'%.64s' is not a duration: write 500ms, 10s, 5m or 2h", text);
    return HL_OK;
}

hl_status hl_parse_rate(const char *text, uint64_t *out)
{
    if (!parse_quantity(text, rate_units, HL_ARRAY_LEN(rate_units), out))
        return hl_fail(HL_EINVAL, "'%.64s' is not a rate: write 100Gbit, 2.5Gbit or 800Mbit", text);
    return HL_OK;
}

const char *hl_format_bytes(uint64_t bytes, char *buf, size_t cap)
{
    static const char *const names[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
    double value = (double)bytes;
    size_t i = 0;
    while (value >= 1024 && i + 1 < HL_ARRAY_LEN(names)) {
        value /= 1024;
        i++;
    }
    snprintf(buf, cap, i == 0 ? "%.0f %s" : "%.1f %s", value, names[i]);
    return buf;
}

const char *hl_format_duration_ms(uint64_t ms, char *buf, size_t cap)
{
    unsigned s = (unsigned)(ms / 1000);
    if (ms < 1000)
        snprintf(buf, cap, "%u ms", (unsigned)ms);
    else if (s < 120)
        snprintf(buf, cap, "%.3g s", (double)ms / 1000);
    else if (s < 7200 && s % 60 == 0)
        snprintf(buf, cap, "%u min", s / 60);
    else if (s < 7200)
        snprintf(buf, cap, "%u min %u s", s / 60, s % 60);
    else
        snprintf(buf, cap, "%.1f h", (double)ms / 3600000);
    return buf;
}

#define WORD_MAX 64

static size_t min_of_three(size_t a, size_t b, size_t c)
{
    size_t m = a < b ? a : b;
    return m < c ? m : c;
}

/* The edit distance, ignoring case; swapping two adjacent characters costs one. */
static size_t edit_distance(const char *a, size_t la, const char *b, size_t lb)
{
    size_t d[3][WORD_MAX + 1];
    for (size_t j = 0; j <= lb; j++)
        d[0][j] = j;
    for (size_t i = 1; i <= la; i++) {
        size_t *row = d[i % 3], *up = d[(i - 1) % 3], *up2 = d[(i + 1) % 3];
        row[0] = i;
        for (size_t j = 1; j <= lb; j++) {
            int ca = tolower((unsigned char)a[i - 1]), cb = tolower((unsigned char)b[j - 1]);
            row[j] = min_of_three(up[j] + 1, row[j - 1] + 1, up[j - 1] + (ca != cb));
            if (i > 1 && j > 1 && ca == tolower((unsigned char)b[j - 2]) &&
                tolower((unsigned char)a[i - 2]) == cb && up2[j - 2] + 1 < row[j])
                row[j] = up2[j - 2] + 1;
        }
    }
    return d[la % 3][lb];
}

/* snake_case, kebab-case and camelCase are three spellings of one name. */
static size_t squeeze_name(const char *text, char *out)
{
    size_t n = 0;
    for (const char *p = text; *p != '\0' && n < WORD_MAX; p++)
        if (*p != '_' && *p != '-')
            out[n++] = *p;
    return n;
}

void hl_text_wrap(struct hl_buf *out, const char *text, size_t indent, size_t width)
{
    size_t at = indent;
    for (const char *p = text; *p != '\0';) {
        size_t len = strcspn(p, " ");
        if (at > indent && at + 1 + len > width) {
            (void)hl_buf_printf(out, "\n%*s", (int)indent, "");
            at = indent;
        }
        (void)hl_buf_printf(out, "%s%.*s", at > indent ? " " : "", (int)len, p);
        at += len + (at > indent);
        p += len;
        p += strspn(p, " ");
    }
}

const char *hl_did_you_mean(const char *text, const char *const *names, size_t count)
{
    char want[WORD_MAX], name[WORD_MAX];
    size_t want_len = squeeze_name(text, want);
    const char *best = NULL;
    size_t best_distance = SIZE_MAX;
    if (strlen(text) > WORD_MAX)
        return NULL;
    for (size_t i = 0; i < count; i++) {
        size_t len = squeeze_name(names[i], name);
        size_t d = edit_distance(want, want_len, name, len);
        size_t longest = len > want_len ? len : want_len;
        if (d < best_distance && d <= (longest < 5 ? 1 : longest / 3)) {
            best_distance = d;
            best = names[i];
        }
    }
    return best;
}
