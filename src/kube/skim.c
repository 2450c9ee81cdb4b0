#include "kube/skim.h"

#include <string.h>

/* Where we are in the text; `end` is not part of it. */
struct place {
    const char *at, *end;
};

static int is_space(char c)
{
    return c == ' ' || c == '\t' || c == '\r' || c == '\n';
}

static void skip_space(struct place *p)
{
    while (p->at < p->end && is_space(*p->at))
        p->at++;
}

/* From its opening quote to behind its closing one. */
static void skip_string(struct place *p)
{
    for (p->at++; p->at < p->end && *p->at != '"'; p->at++)
        if (*p->at == '\\')
            p->at++;
    p->at = p->at < p->end ? p->at + 1 : p->end;
}

static void skip_value(struct place *p)
{
    size_t depth = 0;
    skip_space(p);
    while (p->at < p->end) {
        char c = *p->at;
        if (depth == 0 && (c == ',' || c == '}' || c == ']'))
            return;
        if (c == '"') {
            skip_string(p);
        } else {
            depth += c == '{' || c == '[';
            depth -= c == '}' || c == ']';
            p->at++;
        }
    }
}

static int is_named(const char *key, size_t len, const char *const *names)
{
    for (; *names != NULL; names++)
        if (strlen(*names) == len && memcmp(*names, key, len) == 0)
            return 1;
    return 0;
}

/* After a member that went: its comma goes too, the one behind it or, for the last, the one before.
 */
static void skip_comma(struct place *p, struct hl_buf *out)
{
    size_t n = out->len;
    skip_space(p);
    if (p->at < p->end && *p->at == ',') {
        p->at++;
        return;
    }
    while (n > 0 && is_space(out->data[n - 1]))
        n--;
    if (n == 0 || out->data[n - 1] != ',')
        return;
    out->len = n - 1;
    out->data[out->len] = '\0';
}

hl_status hl_kube_skim(const char *text, size_t len, const char *const *names, struct hl_buf *out)
{
    struct place p = {text, text + len};
    const char *from = text; /* what is not copied yet */
    while (p.at < p.end) {
        const char *key = memchr(p.at, '"', (size_t)(p.end - p.at));
        if (key == NULL)
            break;
        p.at = key;
        skip_string(&p);
        size_t n = (size_t)(p.at - key);
        skip_space(&p);
        if (p.at == p.end || *p.at != ':' || n < 2 || !is_named(key + 1, n - 2, names))
            continue;
        HL_TRY(hl_buf_append(out, from, (size_t)(key - from)));
        p.at++;
        skip_value(&p);
        skip_comma(&p, out);
        from = p.at;
    }
    return hl_buf_append(out, from, (size_t)(p.end - from));
}
