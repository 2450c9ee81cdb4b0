#include "cli/cluster/prom.h"

#include <stdlib.h>
#include <string.h>

/* A line of the text format, split in place (each | is where a NUL is written):
 *
 *     name|key|"value|,key|"value|} 12.5 1700000000
 *
 * In a value \\, \" and \n stand for a backslash, a quote and a line break, so unescaping only
 * shortens it. A timestamp after the number is ignored. */

/* Unescapes the quoted value that begins at *at, in place, and moves *at past its end. */
static bool take_value(char **at, const char **out)
{
    char *from = *at, *to = *at;
    for (*out = to; *from != '"'; from++) {
        char c = *from;
        if (c == '\\') {
            c = *++from;
            c = c == 'n' ? '\n' : c;
        }
        if (c == '\0')
            return false;
        *to++ = c;
    }
    *at = from + 1;
    *to = '\0';
    return true;
}

/* Parses what follows '{'. */
static bool take_labels(char **at, struct prom_sample *s)
{
    while (**at != '}') {
        char *equals = strstr(*at, "=\"");
        if (equals == NULL || s->labels == PROM_LABELS)
            return false;
        *equals = '\0';
        s->key[s->labels] = *at;
        *at = equals + 2;
        if (!take_value(at, &s->word[s->labels++]))
            return false;
        if (**at == ',')
            ++*at;
    }
    ++*at;
    return true;
}

static bool take_line(char *line, struct prom_sample *s)
{
    char *at = line + strcspn(line, "{ "), *end;
    s->name = line;
    if (*at == '{') {
        *at++ = '\0';
        if (!take_labels(&at, s))
            return false;
    }
    if (*at != ' ')
        return false;
    *at++ = '\0';
    s->value = strtod(at, &end);
    return end != at && (*end == '\0' || *end == ' ');
}

static struct prom_sample *add_sample(struct prom *p)
{
    if (p->count == p->cap) {
        size_t cap = p->cap > 0 ? 2 * p->cap : 256;
        struct prom_sample *more = realloc(p->samples, cap * sizeof(*more));
        if (more == NULL)
            return NULL;
        p->samples = more;
        p->cap = cap;
    }
    struct prom_sample *s = &p->samples[p->count++];
    memset(s, 0, sizeof(*s));
    return s;
}

hl_status prom_read(const char *text, struct prom *out)
{
    struct prom p = {.text = strdup(text)};
    char *save = NULL;
    hl_status st = p.text == NULL ? hl_fail(HL_ENOMEM, "out of memory reading metrics") : HL_OK;
    char *line = st == HL_OK ? strtok_r(p.text, "\n", &save) : NULL;
    for (; line != NULL && st == HL_OK; line = strtok_r(NULL, "\n", &save)) {
        if (line[0] == '#')
            continue;
        struct prom_sample *s = add_sample(&p);
        if (s == NULL)
            st = hl_fail(HL_ENOMEM, "out of memory reading metrics");
        else if (!take_line(line, s))
            st =
                hl_fail(HL_EPROTO, "metrics: '%.80s' is not a line of the Prometheus format", line);
    }
    if (st != HL_OK) {
        prom_fini(&p);
        return st;
    }
    *out = p;
    return HL_OK;
}

void prom_fini(struct prom *p)
{
    free(p->samples);
    free(p->text);
    *p = (struct prom){0};
}

const char *prom_label(const struct prom_sample *s, const char *key)
{
    for (size_t i = 0; i < s->labels; i++)
        if (strcmp(s->key[i], key) == 0)
            return s->word[i];
    return "";
}

double prom_find(const struct prom *p, const char *name, const char *key1, const char *word1,
                 const char *key2, const char *word2, double absent)
{
    for (size_t i = 0; i < p->count; i++) {
        const struct prom_sample *s = &p->samples[i];
        if (strcmp(s->name, name) == 0 && strcmp(prom_label(s, key1), word1) == 0 &&
            (key2 == NULL || strcmp(prom_label(s, key2), word2) == 0))
            return s->value;
    }
    return absent;
}
