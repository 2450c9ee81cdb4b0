#include "core/replace/exits.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define EX_FIRST 64 /* sysexits.h */
#define EX_LAST  78

static const char *const words[] = {
    [HL_FAILURE_UNSAID] = "",
    [HL_FAILURE_FAIL] = "fail",
    [HL_FAILURE_COUNT] = "count",
    [HL_FAILURE_IGNORE] = "ignore",
};

/* Wrong usage, data or configuration, or a program that can't be run. */
static bool is_mistake(int code)
{
    return code == 2 || code == 126 || code == 127 || (code >= EX_FIRST && code <= EX_LAST);
}

enum hl_api_failure_kind hl_exit_kind_of(const struct hl_exit *e)
{
    if (e->signal != 0)
        return e->oom && e->signal == SIGKILL ? HL_API_FAILURE_KIND_MEMORY
                                              : HL_API_FAILURE_KIND_SIGNAL;
    if (e->code == 0)
        return HL_API_FAILURE_KIND_UNSAID;
    if (is_mistake(e->code))
        return HL_API_FAILURE_KIND_MISTAKE;
    return e->saving ? HL_API_FAILURE_KIND_SAVE : HL_API_FAILURE_KIND_EXIT;
}

static enum hl_failure_then then_named(const char *word)
{
    for (size_t i = HL_FAILURE_FAIL; i < HL_ARRAY_LEN(words); i++)
        if (strcmp(word, words[i]) == 0)
            return (enum hl_failure_then)i;
    return HL_FAILURE_UNSAID;
}

static enum hl_api_failure_kind kind_named(const char *word)
{
    for (int i = HL_API_FAILURE_KIND_UNSAID + 1; i < HL_API_FAILURE_KIND_COUNT; i++)
        if (strcmp(word, hl_api_failure_kind_name((enum hl_api_failure_kind)i)) == 0)
            return (enum hl_api_failure_kind)i;
    return HL_API_FAILURE_KIND_UNSAID;
}

/* 1 to 255; 0: the key is no exit code. */
static int code_of(const char *key)
{
    size_t digits = strspn(key, "0123456789");
    int code = 0;
    if (digits == 0 || digits > 3 || key[digits] != '\0' || key[0] == '0')
        return 0;
    for (size_t i = 0; i < digits; i++)
        code = 10 * code + (key[i] - '0');
    return code <= 255 ? code : 0;
}

hl_status hl_failure_rules_set(struct hl_failure_rules *rules, const char *key, const char *then)
{
    enum hl_failure_then said = then_named(then);
    enum hl_api_failure_kind kind = kind_named(key);
    int code = code_of(key);
    if (kind == HL_API_FAILURE_KIND_LOST)
        return hl_fail(HL_EINVAL, "onNodeLost decides about lost nodes; remove the key");
    if (kind == HL_API_FAILURE_KIND_UNSAID && code == 0)
        return hl_fail(HL_EINVAL,
                       "'%.64s' is neither an exit code, 1 to 255, nor one of exit, signal, "
                       "memory, launch, mistake, stall, save",
                       key);
    if (said == HL_FAILURE_UNSAID)
        return hl_fail(HL_EINVAL, "'%.64s' is not one of fail, count, ignore", then);
    if (code > 0)
        rules->code[code] = (uint8_t)said;
    else
        rules->kind[kind] = (uint8_t)said;
    return HL_OK;
}

enum hl_failure_then hl_failure_rules_then(const struct hl_failure_rules *rules,
                                           enum hl_api_failure_kind kind, int code)
{
    uint8_t said = code > 0 && code <= 255 ? rules->code[code] : HL_FAILURE_UNSAID;
    if (said == HL_FAILURE_UNSAID)
        said = rules->kind[kind];
    if (said != HL_FAILURE_UNSAID)
        return (enum hl_failure_then)said;
    return kind == HL_API_FAILURE_KIND_MISTAKE ? HL_FAILURE_FAIL : HL_FAILURE_COUNT;
}

bool hl_failure_rules_next(const struct hl_failure_rules *rules, size_t *at,
                           char key[HL_FAILURE_RULE_MAX], const char **then)
{
    const size_t kinds = HL_ARRAY_LEN(rules->kind);
    for (; *at < kinds + HL_ARRAY_LEN(rules->code); (*at)++) {
        uint8_t said = *at < kinds ? rules->kind[*at] : rules->code[*at - kinds];
        if (said == HL_FAILURE_UNSAID)
            continue;
        if (*at < kinds)
            snprintf(key, HL_FAILURE_RULE_MAX, "%s",
                     hl_api_failure_kind_name((enum hl_api_failure_kind) * at));
        else
            snprintf(key, HL_FAILURE_RULE_MAX, "%d", (int)(*at - kinds));
        *then = words[said];
        (*at)++;
        return true;
    }
    return false;
}

void hl_failure_rules_print(const struct hl_failure_rules *rules, char *out, size_t cap)
{
    char key[HL_FAILURE_RULE_MAX];
    const char *then;
    size_t at = 0, used = 0;
    out[0] = '\0';
    while (used < cap && hl_failure_rules_next(rules, &at, key, &then))
        used += (size_t)snprintf(out + used, cap - used, "%s%s=%s", used > 0 ? " " : "", key, then);
}

hl_status hl_failure_rules_parse(const char *text, struct hl_failure_rules *out)
{
    struct hl_failure_rules rules = {0};
    for (const char *at = text; *at != '\0';) {
        char key[HL_FAILURE_RULE_MAX], then[HL_FAILURE_RULE_MAX];
        size_t len = strcspn(at, " "), of_key = strcspn(at, "=");
        if (of_key >= len || of_key >= sizeof(key) || len - of_key - 1 >= sizeof(then))
            return hl_fail(HL_EINVAL, "rule '%.64s' is not KIND=WORD", at);
        snprintf(key, sizeof(key), "%.*s", (int)of_key, at);
        snprintf(then, sizeof(then), "%.*s", (int)(len - of_key - 1), at + of_key + 1);
        HL_TRY(hl_failure_rules_set(&rules, key, then));
        at += len;
        at += strspn(at, " ");
    }
    *out = rules;
    return HL_OK;
}
