#include "cli/jobs/submitter.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/lists.h"
#include "base/text.h"
#include "base/utf8.h"
#include "core/job/job.h"

extern char **environ;

/* Takes one part of the list; *next is after its comma. */
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

/* Adds all variables except those that belong to Helios or to the shell itself. */
static hl_status add_all(struct hl_arena *arena, struct hl_api_key_value_list *vars)
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
            hl_api_pair_set(arena, vars, name, equals + 1);
        else
            fprintf(stderr,
                    "warning: --export ALL leaves out %s, whose value is not UTF-8 text or has "
                    "more than %d bytes\n",
                    name, HL_JOB_VALUE_MAX);
    }
    return HL_OK;
}

static hl_status add_named(const char *name, const char *value, struct hl_arena *arena,
                           struct hl_api_key_value_list *vars)
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
    hl_api_pair_set(arena, vars, name, value);
    return HL_OK;
}

hl_status submitter_export(const char *list, struct hl_arena *arena,
                           struct hl_api_key_value_list *exported,
                           struct hl_api_key_value_list *inherited)
{
    struct hl_api_key_value_list named = {0}, all = {0};
    while (*list != '\0') {
        HL_AUTO(hl_freep) char *name = NULL;
        HL_AUTO(hl_freep) char *value = NULL;
        HL_TRY(next_part(list, &name, &value, &list));
        if (strcmp(name, "ALL") == 0 && value == NULL)
            HL_TRY(add_all(arena, &all));
        else if (strcmp(name, "NONE") != 0 || value != NULL)
            HL_TRY(add_named(name, value, arena, &named));
    }
    if (hl_arena_failed(arena))
        return hl_fail(HL_ENOMEM, "out of memory for --export");
    *exported = named;
    *inherited = all;
    return HL_OK;
}
