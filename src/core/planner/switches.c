/* Slurm's topology.conf: lines of KEY=VALUE, lists of names with ranges in brackets. */
#include "core/planner/switches.h"

#include <ctype.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#define LINE_BYTES_MAX 65536

struct reader {
    const char *file;
    int line;
    struct hl_switches *out;
};

static hl_status HL_PRINTF(2, 3) bad(const struct reader *r, const char *fmt, ...)
{
    char text[320];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    return hl_fail(HL_EINVAL, "%s:%d: %s", r->file, r->line, text);
}

/* ---- lists of names -------------------------------------------------------------------------- */

typedef hl_status (*name_fn)(struct reader *r, const char *name, const char *above);

static hl_status add_entry(const struct reader *r, struct hl_switch_entry **table, const char *name,
                           const char *above, const char *what)
{
    struct hl_switch_entry *e;
    HASH_FIND_STR(*table, name, e);
    if (e != NULL && e->above[0] != '\0')
        return bad(r, "%s '%s' is attached to two switches, %s and %s", what, name, e->above,
                   above);
    if (e != NULL) {
        snprintf(e->above, sizeof(e->above), "%s", above);
        return HL_OK;
    }
    if (HASH_COUNT(r->out->nodes) + HASH_COUNT(r->out->switches) >= HL_SWITCHES_NAMES_MAX)
        return bad(r, "more than %d nodes and switches", HL_SWITCHES_NAMES_MAX);
    e = calloc(1, sizeof(*e));
    if (e == NULL)
        return hl_fail(HL_ENOMEM, "out of memory reading %s", r->file);
    snprintf(e->name, sizeof(e->name), "%s", name);
    snprintf(e->above, sizeof(e->above), "%s", above);
    HASH_ADD_STR(*table, name, e);
    return HL_OK;
}

static hl_status add_node(struct reader *r, const char *name, const char *above)
{
    return add_entry(r, &r->out->nodes, name, above, "node");
}

static hl_status add_below(struct reader *r, const char *name, const char *above)
{
    if (strcmp(name, above) == 0)
        return bad(r, "switch '%s' is attached to itself", name);
    return add_entry(r, &r->out->switches, name, above, "switch");
}

/* Reads a number and its width in digits. */
static bool read_number(const char **at, long *out, int *width)
{
    const char *from = *at;
    *out = 0;
    while (isdigit((unsigned char)**at) && *at - from < 9)
        *out = *out * 10 + (*(*at)++ - '0');
    *width = (int)(*at - from);
    return *width > 0;
}

static hl_status add_name(struct reader *r, const char *text, size_t len, const char *above,
                          name_fn add)
{
    char name[HL_SWITCH_NAME_MAX + 1];
    if (len == 0 || len > HL_SWITCH_NAME_MAX)
        return bad(r, "a name must have 1 to %d characters", HL_SWITCH_NAME_MAX);
    memcpy(name, text, len);
    name[len] = '\0';
    if (strpbrk(name, "[]") != NULL)
        return bad(r, "'%s' has more than one pair of brackets", name);
    return add(r, name, above);
}

/* "node-[0-3,07-09]x": expands the ranges in the brackets in order. */
static hl_status expand_name(struct reader *r, const char *text, size_t len, const char *above,
                             name_fn add)
{
    const char *open = memchr(text, '[', len);
    const char *close = open != NULL ? memchr(open, ']', (size_t)(text + len - open)) : NULL;
    if (open == NULL)
        return add_name(r, text, len, above, add);
    if (close == NULL)
        return bad(r, "'%.*s' has no closing bracket", (int)(len < 80 ? len : 80), text);
    for (const char *at = open + 1;; at++) {
        long from, to;
        int width, other;
        if (!read_number(&at, &from, &width))
            return bad(r, "'%.*s': brackets hold numbers and ranges, as [0-3,7]",
                       (int)(len < 80 ? len : 80), text);
        to = from;
        if (*at == '-') {
            at++;
            if (!read_number(&at, &to, &other) || to < from)
                return bad(r, "'%.*s': a range goes from a number to a larger one",
                           (int)(len < 80 ? len : 80), text);
        }
        for (long n = from; n <= to; n++) {
            char name[2 * HL_SWITCH_NAME_MAX];
            int used = snprintf(name, sizeof(name), "%.*s%0*ld%.*s", (int)(open - text), text,
                                width, n, (int)(text + len - close - 1), close + 1);
            HL_TRY(add_name(r, name, used < (int)sizeof(name) ? (size_t)used : 0, above, add));
        }
        if (at == close)
            return HL_OK;
        if (*at != ',')
            return bad(r, "'%.*s': brackets hold numbers and ranges, as [0-3,7]",
                       (int)(len < 80 ? len : 80), text);
    }
}

/* Names separated by commas outside brackets. */
static hl_status read_list(struct reader *r, const char *text, const char *above, name_fn add)
{
    const char *from = text;
    int depth = 0;
    for (const char *at = text;; at++) {
        depth += (*at == '[') - (*at == ']');
        if (*at != '\0' && (*at != ',' || depth > 0))
            continue;
        if (*at == '\0' && depth > 0)
            return bad(r, "'%.80s' has no closing bracket", from);
        HL_TRY(expand_name(r, from, (size_t)(at - from), above, add));
        if (*at == '\0')
            return HL_OK;
        from = at + 1;
    }
}

/* ---- lines ---------------------------------------------------------------------------------- */

/* The value of "KEY=VALUE"; NULL: another key. */
static const char *value_of(const char *word, const char *key)
{
    size_t len = strlen(key);
    return strncasecmp(word, key, len) == 0 && word[len] == '=' ? word + len + 1 : NULL;
}

static hl_status declare_switch(struct reader *r, const char *name)
{
    struct hl_switch_entry *e;
    if (*name == '\0' || strlen(name) > HL_SWITCH_NAME_MAX)
        return bad(r, "a switch's name must have 1 to %d characters", HL_SWITCH_NAME_MAX);
    HASH_FIND_STR(r->out->switches, name, e);
    return e != NULL ? HL_OK : add_entry(r, &r->out->switches, name, "", "switch");
}

static hl_status read_line(struct reader *r, char *line)
{
    const char *name = NULL, *nodes = NULL, *switches = NULL, *ignored = NULL;
    char *rest = NULL;
    for (char *word = strtok_r(line, " \t\r", &rest); word; word = strtok_r(NULL, " \t\r", &rest)) {
        const char **to = value_of(word, "SwitchName") != NULL  ? &name
                          : value_of(word, "Nodes") != NULL     ? &nodes
                          : value_of(word, "Switches") != NULL  ? &switches
                          : value_of(word, "LinkSpeed") != NULL ? &ignored
                                                                : NULL;
        if (to == NULL)
            return bad(r, "'%.80s' is not one of SwitchName=, Nodes=, Switches=, LinkSpeed=", word);
        if (*to != NULL)
            return bad(r, "'%.80s' appears twice", word);
        *to = strchr(word, '=') + 1;
    }
    if (name == NULL && nodes == NULL && switches == NULL && ignored == NULL)
        return HL_OK;
    if (name == NULL || (nodes == NULL) == (switches == NULL))
        return bad(r, "a line is SwitchName=NAME and either Nodes=LIST or Switches=LIST");
    HL_TRY(declare_switch(r, name));
    return nodes != NULL ? read_list(r, nodes, name, add_node)
                         : read_list(r, switches, name, add_below);
}

static hl_status read_all(struct reader *r, const char *text)
{
    HL_AUTO(hl_freep) char *line = malloc(LINE_BYTES_MAX);
    size_t used = 0;
    if (line == NULL)
        return hl_fail(HL_ENOMEM, "out of memory reading %s", r->file);
    for (const char *at = text; *at != '\0';) {
        size_t len = strcspn(at, "\n"), end = len;
        r->line++;
        const char *comment = memchr(at, '#', len);
        if (comment != NULL)
            end = (size_t)(comment - at);
        bool more = end > 0 && at[end - 1] == '\\';
        end -= more;
        if (used + end + 2 > LINE_BYTES_MAX)
            return bad(r, "a line has more than %d bytes", LINE_BYTES_MAX);
        memcpy(line + used, at, end);
        used += end;
        line[used] = '\0';
        at += len + (at[len] == '\n');
        if (more && *at != '\0')
            continue;
        HL_TRY(read_line(r, line));
        used = 0;
    }
    return HL_OK;
}

hl_status hl_switches_parse(const char *text, const char *name, struct hl_switches *out)
{
    struct hl_switches all = {0};
    struct reader r = {.file = name, .out = &all};
    hl_status st = read_all(&r, text);
    if (st != HL_OK) {
        hl_switches_fini(&all);
        return st;
    }
    *out = all;
    return HL_OK;
}

static void table_free(struct hl_switch_entry *table)
{
    struct hl_switch_entry *e, *next;
    HASH_ITER (hh, table, e, next) {
        HASH_DEL(table, e);
        free(e);
    }
}

void hl_switches_fini(struct hl_switches *s)
{
    table_free(s->nodes);
    table_free(s->switches);
    *s = (struct hl_switches){0};
}

bool hl_switches_find(const struct hl_switches *s, const char *node, const char **leaf,
                      const char **spine)
{
    struct hl_switch_entry *e;
    HASH_FIND_STR(s->nodes, node, e);
    if (e == NULL)
        return false;
    *leaf = e->above;
    HASH_FIND_STR(s->switches, *leaf, e);
    *spine = e != NULL ? e->above : "";
    return true;
}
