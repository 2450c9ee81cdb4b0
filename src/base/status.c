#include "base/status.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/utf8.h"

static _Thread_local char error_text[HL_ERROR_TEXT_MAX];
static _Thread_local char error_where[128];

struct status_row {
    hl_status value;
    const char *name;
    const char *text;
};

static const struct status_row status_table[] = {
#define X(name, value, text) {HL_##name, #name, text},
    HL_STATUS_MAP(X)
#undef X
};

const char *hl_status_text(hl_status st)
{
    for (size_t i = 0; i < HL_ARRAY_LEN(status_table); i++)
        if (status_table[i].value == st)
            return status_table[i].text;
    return "unknown status";
}

const char *hl_status_name(hl_status st)
{
    for (size_t i = 0; i < HL_ARRAY_LEN(status_table); i++)
        if (status_table[i].value == st)
            return status_table[i].name;
    return "EINTERNAL";
}

hl_status hl_status_by_name(const char *name)
{
    for (size_t i = 0; i < HL_ARRAY_LEN(status_table); i++)
        if (strcmp(status_table[i].name, name) == 0)
            return status_table[i].value;
    return HL_EINTERNAL;
}

bool hl_status_retryable(hl_status st)
{
    return st == HL_EUNAVAIL || st == HL_EBUSY || st == HL_ETIMEDOUT || st == HL_ESTALE;
}

/* A text that its buffer cut ends with a whole character. */
static void end_cut_text(char text[HL_ERROR_TEXT_MAX], size_t len)
{
    if (len >= HL_ERROR_TEXT_MAX)
        text[hl_utf8_fit(text, HL_ERROR_TEXT_MAX - 2)] = '\0';
}

hl_status hl_fail_at(hl_status st, const char *file, int line, const char *fmt, ...)
{
    char text[HL_ERROR_TEXT_MAX]; /* the arguments may point into error_text */
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    if (n >= 0)
        end_cut_text(text, (size_t)n);
    memcpy(error_text, text, sizeof(text));
    snprintf(error_where, sizeof(error_where), "%s:%d", file, line);
    return st;
}

hl_status hl_fail_prefix(hl_status st, const char *fmt, ...)
{
    char text[HL_ERROR_TEXT_MAX];
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    if (n >= 0 && (size_t)n < sizeof(text))
        n += snprintf(text + n, sizeof(text) - (size_t)n, "%s", error_text);
    if (n >= 0)
        end_cut_text(text, (size_t)n);
    memcpy(error_text, text, sizeof(text));
    return st;
}

const char *hl_error_text(void)
{
    return error_text;
}

const char *hl_error_where(void)
{
    return error_where;
}

void hl_error_clear(void)
{
    error_text[0] = '\0';
    error_where[0] = '\0';
}

void hl_freep(void *pp)
{
    void **p = pp;
    free(*p);
    *p = NULL;
}
