/* Determines the format of a table, has it checked, and makes the report. */
#include "ranktable/lint.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ranktable/lint_private.h"

#define TEXT_MAX ((size_t)(HL_RANKTABLE_FAULTS_MAX + 1) * LINT_SENTENCE_MAX)

hl_status hl_ranktable_chip_parse(const char *name, enum hl_ranktable_chip *out)
{
    static const char *const names[] = {"a2", "a3", "a5"};
    for (size_t i = 0; i < HL_ARRAY_LEN(names); i++)
        if (strcmp(name, names[i]) == 0) {
            *out = (enum hl_ranktable_chip)i;
            return HL_OK;
        }
    return hl_fail(HL_EINVAL, "chip '%.32s' is not one of a2, a3, a5", name);
}

static hl_status report_take(struct lint *l, struct hl_ranktable_report *out)
{
    if (l->faults > HL_RANKTABLE_FAULTS_MAX)
        hl_buf_printf(&l->text, "and %zu more\n", l->faults - HL_RANKTABLE_FAULTS_MAX);
    hl_buf_append(&l->text, "", 0);
    if (l->text.failed) {
        hl_buf_fini(&l->text);
        return hl_fail(HL_ENOMEM, "out of memory judging a rank table");
    }
    *out = (struct hl_ranktable_report){.text = hl_buf_take(&l->text),
                                        .faults = l->faults,
                                        .servers = l->servers,
                                        .devices = l->devices};
    return HL_OK;
}

void hl_ranktable_report_fini(struct hl_ranktable_report *r)
{
    free(r->text);
    *r = (struct hl_ranktable_report){0};
}

/* ---- a table --------------------------------------------------------------------------------- */

static json_t *parse_table(struct lint *l, const char *text, size_t len)
{
    json_error_t why;
    json_t *doc = json_loadb(text, len, JSON_REJECT_DUPLICATES, &why);
    if (doc == NULL)
        lint_say(l, "", "it is not JSON: %s, in line %d, column %d%s", why.text, why.line,
                 why.column,
                 memmem(text, len, "//", 2) != NULL ? "; JSON has no comments, take them out" : "");
    else if (!json_is_object(doc))
        lint_say(l, "", "it is not a JSON object");
    else
        return doc;
    json_decref(doc);
    return NULL;
}

/* Ranks read a table only if it says "completed"; with any other status they wait. */
static bool is_complete(struct lint *l, const json_t *doc)
{
    const char *status = lint_text(l, "", doc, "status", l->chip != HL_RANKTABLE_A5, 64);
    if (status == NULL)
        return true;
    if (strcmp(status, "initializing") == 0)
        lint_say(l, "", "status is \"initializing\": the table is not made yet, and ranks wait");
    else if (strcmp(status, "completed") != 0)
        lint_say(l, "", "status is '%.64s', neither \"completed\" nor \"initializing\"", status);
    return strcmp(status, "initializing") != 0;
}

static void lint_as(struct lint *l, const json_t *doc, const char *version)
{
    static const char *const wanted[] = {"1.0", "1.2 (1.0 for servers outside of super pods)",
                                         "2.0"};
    bool is_servers = strcmp(version, "1.0") == 0 && l->chip != HL_RANKTABLE_A5;
    bool is_pods = strcmp(version, "1.2") == 0 && l->chip == HL_RANKTABLE_A3;
    bool is_ranks = strcmp(version, "2.0") == 0 && l->chip == HL_RANKTABLE_A5;
    if (is_servers || is_pods)
        lint_servers(l, doc, is_pods);
    else if (is_ranks)
        lint_ranks(l, doc);
    else
        lint_say(l, "", "version is '%.16s'; this chip reads %s", version, wanted[l->chip]);
}

static void lint_table(struct lint *l, const json_t *doc)
{
    if (!is_complete(l, doc))
        return;
    if (json_object_get(doc, "group_list") != NULL) {
        lint_say(l, "", "group_list is the first format (v1), which only Ascend 910 reads");
        return;
    }
    const char *version = lint_text(l, "", doc, "version", true, 16);
    if (version != NULL)
        lint_as(l, doc, version);
}

hl_status hl_ranktable_lint(enum hl_ranktable_chip chip, const char *text, size_t len,
                            struct hl_ranktable_report *out)
{
    struct lint l = {.chip = chip, .text = HL_BUF(TEXT_MAX)};
    json_t *doc = parse_table(&l, text, len);
    if (doc != NULL)
        lint_table(&l, doc);
    json_decref(doc);
    return report_take(&l, out);
}

hl_status hl_ranktable_lint_job(enum hl_ranktable_chip chip, const json_t *const *objects,
                                size_t count, struct hl_ranktable_report *out)
{
    struct lint l = {.chip = chip, .text = HL_BUF(TEXT_MAX)};
    lint_objects(&l, objects, count);
    return report_take(&l, out);
}
