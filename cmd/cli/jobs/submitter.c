#include "cli/jobs/submitter.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/text.h"
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
            return hl_fail(HL_EINVAL, "--export: the quote of %s does not end before a comma",
                           *name);
        *value = strndup(from, (size_t)(end - from));
        if (*value == NULL)
            return hl_fail(HL_ENOMEM, "out of memory for --export");
        p = quote != '\0' ? end + 1 : end;
    }
    *next = *p == ',' ? p + 1 : p;
    return HL_OK;
}

static json_t *variable(const char *name, const char *value)
{
    return json_pack("{s:s s:s}", "key", name, "value", value);
}

/* Everything but what belongs to Helios or to the shell itself. */
static hl_status add_all(json_t *list)
{
    for (char **p = environ; *p != NULL; p++) {
        const char *equals = strchr(*p, '=');
        size_t n = equals != NULL ? (size_t)(equals - *p) : 0;
        HL_AUTO(hl_freep) char *name = strndup(*p, n);
        if (name == NULL)
            return hl_fail(HL_ENOMEM, "out of memory for --export");
        if (n == 0 || hl_job_var_problem(name, HL_JOB_VAR_ALL) != NULL)
            continue;
        json_t *var = strlen(equals + 1) <= HL_JOB_VALUE_MAX ? variable(name, equals + 1) : NULL;
        if (var == NULL)
            fprintf(stderr,
                    "warning: --export ALL leaves out %s, whose value is no UTF-8 text or has more "
                    "than %d bytes\n",
                    name, HL_JOB_VALUE_MAX);
        else
            json_array_append_new(list, var);
    }
    return HL_OK;
}

static hl_status add_named(const char *name, const char *value, json_t *list)
{
    const char *why = hl_job_var_problem(name, HL_JOB_VAR_EXPORT);
    if (why != NULL)
        return hl_fail(HL_EINVAL, "--export: '%.64s' %s", name, why);
    if (value == NULL && (value = getenv(name)) == NULL)
        return hl_fail(HL_EINVAL,
                       "--export: this shell has no variable %s; export it, or give %s=VALUE", name,
                       name);
    json_t *var = variable(name, value);
    if (var == NULL)
        return hl_fail(HL_EINVAL, "--export: the value of %s is no UTF-8 text", name);
    json_array_append_new(list, var);
    return HL_OK;
}

static hl_status add_parts(const char *text, json_t *exported, json_t *inherited)
{
    while (*text != '\0') {
        HL_AUTO(hl_freep) char *name = NULL;
        HL_AUTO(hl_freep) char *value = NULL;
        HL_TRY(next_part(text, &name, &value, &text));
        if (strcmp(name, "ALL") == 0 && value == NULL)
            HL_TRY(json_array_size(inherited) == 0 ? add_all(inherited) : HL_OK);
        else if (strcmp(name, "NONE") != 0 || value != NULL)
            HL_TRY(add_named(name, value, exported));
    }
    return HL_OK;
}

hl_status submitter_export(const char *list, json_t *params)
{
    json_t *exported = json_array(), *inherited = json_array();
    json_object_set_new(params, "exported", exported);
    json_object_set_new(params, "inherited", inherited);
    return add_parts(list, exported, inherited);
}
