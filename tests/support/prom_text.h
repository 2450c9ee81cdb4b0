/* A strict reader of the Prometheus text format 0.0.4 for tests; it shares no code with the writer.
 * prom_parse() fails the test at the first thing that a scraper would refuse. */
#ifndef HL_TESTS_SUPPORT_PROM_TEXT_H
#define HL_TESTS_SUPPORT_PROM_TEXT_H

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PROM_MAX 2048

struct prom_sample {
    char name[128];
    char labels[512]; /* as written, without the braces */
    double value;
};

struct prom {
    size_t count;
    struct prom_sample sample[PROM_MAX];
};

static inline int prom_name_char(int c, int first)
{
    return isalpha(c) || c == '_' || c == ':' || (!first && isdigit(c));
}

static inline const char *prom_name(const char *s, char *out, size_t cap)
{
    size_t n = 0;
    while (prom_name_char((unsigned char)*s, n == 0) && n + 1 < cap)
        out[n++] = *s++;
    out[n] = '\0';
    if (n == 0)
        fail_msg("a name was expected at '%.60s'", s);
    return s;
}

/* name="value" pairs up to the closing brace; returns what follows it. */
static inline const char *prom_labels(const char *s, char *out, size_t cap)
{
    const char *begin = s;
    while (*s != '}') {
        char name[128];
        s = prom_name(s, name, sizeof(name));
        if (s[0] != '=' || s[1] != '"')
            fail_msg("=\" was expected at '%.60s'", s);
        for (s += 2; *s != '"'; s++) {
            if (*s == '\0' || *s == '\n')
                fail_msg("a label's value does not end: '%.60s'", begin);
            if (*s == '\\' && !strchr("\\\"n", *++s))
                fail_msg("unknown escape \\%c", *s);
        }
        s++;
        if (*s == ',')
            s++;
        else if (*s != '}')
            fail_msg("a comma or } was expected at '%.60s'", s);
    }
    if ((size_t)(s - begin) >= cap)
        fail_msg("labels too long: '%.60s'", begin);
    memcpy(out, begin, (size_t)(s - begin));
    out[s - begin] = '\0';
    return s + 1;
}

/* One line without its newline; `family` and `type` of the TYPE line that governs it. */
static inline void prom_sample_line(struct prom *p, const char *line, const char *family,
                                    const char *type)
{
    struct prom_sample *s = &p->sample[p->count];
    assert_true(p->count < PROM_MAX);
    const char *at = prom_name(line, s->name, sizeof(s->name));
    s->labels[0] = '\0';
    if (*at == '{')
        at = prom_labels(at + 1, s->labels, sizeof(s->labels));
    if (*at != ' ')
        fail_msg("a blank was expected before the value: '%s'", line);
    char *end;
    s->value = strtod(at + 1, &end);
    if (end == at + 1 || *end != '\0')
        fail_msg("not a number: '%s'", line);
    if (strncmp(s->name, family, strlen(family)))
        fail_msg("'%s' stands under the family %s", line, family);
    const char *tail = s->name + strlen(family);
    if (strcmp(type, "histogram") == 0)
        assert_true(!strcmp(tail, "_bucket") || !strcmp(tail, "_sum") || !strcmp(tail, "_count"));
    else
        assert_string_equal(tail, "");
    for (size_t i = 0; i < p->count; i++)
        if (!strcmp(p->sample[i].name, s->name) && !strcmp(p->sample[i].labels, s->labels))
            fail_msg("twice: '%s'", line);
    p->count++;
}

/* Checks that the buckets of a histogram never fall, end with +Inf, and that +Inf equals _count. */
static inline void prom_histograms(const struct prom *p)
{
    double last = 0, inf = -1;
    for (size_t i = 0; i < p->count; i++) {
        const char *name = p->sample[i].name, *tail = strrchr(name, '_');
        if (tail && !strcmp(tail, "_bucket")) {
            assert_true(p->sample[i].value >= last);
            last = p->sample[i].value;
            if (strstr(p->sample[i].labels, "le=\"+Inf\""))
                inf = last;
        } else {
            if (tail && !strcmp(tail, "_count"))
                assert_true(p->sample[i].value == inf);
            if (tail && strcmp(tail, "_sum"))
                inf = -1;
            last = 0;
        }
    }
}

static inline void prom_parse(const char *text, struct prom *p)
{
    char seen[64][128], family[128] = "", type[32] = "";
    size_t families = 0;
    p->count = 0;
    assert_true(*text == '\0' || text[strlen(text) - 1] == '\n');
    while (*text) {
        char line[1024];
        size_t n = strcspn(text, "\n");
        assert_true(n > 0 && n < sizeof(line));
        memcpy(line, text, n);
        line[n] = '\0';
        text += n + 1;
        if (strncmp(line, "# HELP ", 7) == 0)
            continue;
        if (line[0] != '#') {
            prom_sample_line(p, line, family, type);
            continue;
        }
        assert_int_equal(sscanf(line, "# TYPE %127s %31s", family, type), 2);
        assert_true(!strcmp(type, "counter") || !strcmp(type, "gauge") ||
                    !strcmp(type, "histogram"));
        for (size_t i = 0; i < families; i++)
            if (!strcmp(seen[i], family))
                fail_msg("family %s comes twice", family);
        assert_true(families < 64);
        memcpy(seen[families++], family, sizeof(family));
    }
    prom_histograms(p);
}

/* The value, or -1 if there is no such sample. */
static inline double prom_value(const struct prom *p, const char *name, const char *labels)
{
    for (size_t i = 0; i < p->count; i++)
        if (!strcmp(p->sample[i].name, name) && !strcmp(p->sample[i].labels, labels))
            return p->sample[i].value;
    return -1;
}

#endif
