#include "cli/jobs/submitter.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/text.h"
#include "base/utf8.h"
#include "core/job.h"

extern char **environ;

/* Takes a part of the list; *next is behind its comma. */
static hl_status next_part(const char *list, char **name, char **value, const char **next)
{
    size_t n = strcspn(list, "=,");
    const char *p = list + n;
    *name = strndup(list, n);
    *value = NULL;
    if (*name == NULL)
        return hl_fail(HL_ENOMEM, "out of memory for --export");
    if (*p == '=') {
        char quote = p[1] == '\'' || p[1] == '"' ? p[1] : '\0';
        const char *from = quote != '\0' ? p + 2 : p + 1;
        const char *end = quote != '\0' ? strchr(from, quote) : from + strcspn(from, ",");
        if (end == NULL || (quote != '\0' && end[1] != ',' && end[1] != '\0'))
            return hl_fail(HL_EINVAL, "--export: the quote of %s is not closed before a comma",
                           *name);
        *value = strndup(from, (size_t)(end - from));
        if (*value == NULL)
            return hl_fail(HL_ENOMEM, "out of memory for --export");
        p = quote != '\0' ? end + 1 : end;
    }
    *next = *p == ',' ? p + 1 : p;
    return HL_OK;
}

/* A list that grows in the arena; the room it outgrew stays there. */
struct vars {
    struct hl_api_key_value_list list;
    size_t cap;
    struct hl_arena *arena;
};

static hl_status add_var(struct vars *vars, const char *name, const char *value)
{
    if (vars->list.count == vars->cap) {
        size_t cap = vars->cap * 2 + 16;
        struct hl_api_key_value *items = hl_arena_array(vars->arena, cap, sizeof(*items));
        if (items == NULL)
            return hl_fail(HL_ENOMEM, "out of memory for --export");
        if (vars->list.count > 0)
            memcpy(items, vars->list.items, vars->list.count * sizeof(*items));
        vars->list.items = items;
        vars->cap = cap;
    }
    struct hl_api_key_value var = {hl_arena_strdup(vars->arena, name),
                                   hl_arena_strdup(vars->arena, value)};
    if (hl_arena_failed(vars->arena))
        return hl_fail(HL_ENOMEM, "out of memory for --export");
    vars->list.items[vars->list.count++] = var;
    return HL_OK;
}

/* Everything but what belongs to Helios or to the shell itself. */
static hl_status add_all(struct vars *vars)
{
    for (char **p = environ; *p != NULL; p++) {
        const char *equals = strchr(*p, '=');
        size_t n = equals != NULL ? (size_t)(equals - *p) : 0;
        HL_AUTO(hl_freep) char *name = strndup(*p, n);
        if (name == NULL)
            return hl_fail(HL_ENOMEM, "out of memory for --export");
        if (n == 0 || hl_job_var_problem(name, HL_JOB_VAR_ALL) != NULL)
            continue;
        if (strlen(equals + 1) <= HL_JOB_VALUE_MAX && hl_utf8_valid(*p))
            HL_TRY(add_var(vars, name, equals + 1));
        else
            fprintf(stderr,
                    "warning: --export ALL leaves out %s, whose value is no UTF-8 text or has more "
                    "than %d bytes\n",
                    name, HL_JOB_VALUE_MAX);
    }
    return HL_OK;
}

static hl_status add_named(const char *name, const char *value, struct vars *vars)
{
    const char *why = hl_job_var_problem(name, HL_JOB_VAR_EXPORT);
    if (why != NULL)
        return hl_fail(HL_EINVAL, "--export: '%.64s' %s", name, why);
    if (value == NULL && (value = getenv(name)) == NULL)
        return hl_fail(HL_EINVAL,
                       "--export: this shell has no variable %s; export it, or give %s=VALUE", name,
                       name);
    if (!hl_utf8_valid(value))
        return hl_fail(HL_EINVAL, "--export: the value of %s is not UTF-8 text", name);
    return add_var(vars, name, value);
}

static hl_status add_parts(const char *text, struct vars *exported, struct vars *inherited)
{
    while (*text != '\0') {
        HL_AUTO(hl_freep) char *name = NULL;
        HL_AUTO(hl_freep) char *value = NULL;
        HL_TRY(next_part(text, &name, &value, &text));
        if (strcmp(name, "ALL") == 0 && value == NULL)
            HL_TRY(inherited->list.count == 0 ? add_all(inherited) : HL_OK);
        else if (strcmp(name, "NONE") != 0 || value != NULL)
            HL_TRY(add_named(name, value, exported));
    }
    return HL_OK;
}

hl_status submitter_export(const char *list, struct hl_arena *arena,
                           struct hl_api_key_value_list *exported,
                           struct hl_api_key_value_list *inherited)
{
    struct vars named = {.arena = arena}, all = {.arena = arena};
    HL_TRY(add_parts(list, &named, &all));
    *exported = named.list;
    *inherited = all.list;
    return HL_OK;
}
