/* As much of XML as S3 answers need: elements without attributes of interest, five entities. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "mem/archive/s3.h"

static const char *find_text(const char *at, const char *end, const char *what)
{
    return at < end ? memmem(at, (size_t)(end - at), what, strlen(what)) : NULL;
}

int s3_xml_inside(const char *at, const char *end, const char *name, const char **from,
                  const char **to)
{
    char open[64], close[64];
    size_t len = (size_t)snprintf(open, sizeof(open), "<%s", name);
    snprintf(close, sizeof(close), "</%s>", name);
    for (const char *tag = find_text(at, end, open); tag != NULL;
         tag = find_text(tag + len, end, open)) {
        const char *gt = tag + len;
        if (gt < end && *gt != '>' && *gt != ' ')
            continue; /* a longer name */
        gt = find_text(gt, end, ">");
        const char *stop = gt != NULL ? find_text(gt + 1, end, close) : NULL;
        if (stop == NULL)
            return 0;
        *from = gt + 1;
        *to = stop;
        return 1;
    }
    return 0;
}

static char take_entity(const char **at, const char *end)
{
    static const struct {
        const char *name;
        char c;
    } all[] = {{"&amp;", '&'}, {"&lt;", '<'}, {"&gt;", '>'}, {"&quot;", '"'}, {"&apos;", '\''}};

    for (size_t i = 0; i < HL_ARRAY_LEN(all); i++) {
        size_t len = strlen(all[i].name);
        if ((size_t)(end - *at) >= len && memcmp(*at, all[i].name, len) == 0) {
            *at += len;
            return all[i].c;
        }
    }
    if (end - *at > 2 && (*at)[1] == '#') { /* &#34; and the like; only ASCII is of use here */
        char *stop = NULL;
        long code = (*at)[2] == 'x' ? strtol(*at + 3, &stop, 16) : strtol(*at + 2, &stop, 10);
        if (stop < end && *stop == ';' && code > 0 && code < 128) {
            *at = stop + 1;
            return (char)code;
        }
    }
    return *(*at)++;
}

int s3_xml_text(const char *at, const char *end, const char *name, char *out, size_t cap,
                const char **next)
{
    const char *from, *to;
    size_t n = 0;
    if (!s3_xml_inside(at, end, name, &from, &to))
        return 0;
    if (next != NULL)
        *next = to;
    while (from < to) {
        if (n + 1 >= cap)
            return 0;
        out[n++] = *from == '&' ? take_entity(&from, to) : *from++;
    }
    out[n] = '\0';
    return 1;
}

int s3_encode(const char *text, char *out, size_t cap)
{
    size_t n = 0;
    for (; *text != '\0'; text++) {
        unsigned char c = (unsigned char)*text;
        int plain = (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') ||
                    strchr("-._~", c) != NULL;
        if (n + 4 > cap)
            return 0;
        if (plain)
            out[n++] = (char)c;
        else
            n += (size_t)snprintf(out + n, cap - n, "%%%02X", c);
    }
    out[n] = '\0';
    return 1;
}
