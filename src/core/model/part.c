/* Parses and writes names of parts. Any name that is not optimizer state or blobs counts as
 * parameters. */
#include "core/model/part.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

#define NAME_MAX_LEN 63

hl_status hl_part_name_check(const char *name)
{
    size_t n = strnlen(name, NAME_MAX_LEN + 1), good = 0;
    while (good < n && (isalnum((unsigned char)name[good]) || strchr("._-:", name[good]) != NULL))
        good++;
    if (n >= 1 && n <= NAME_MAX_LEN && good == n && name[0] != '.')
        return HL_OK;
    return hl_fail(HL_EINVAL,
                   "invalid part name '%.64s' (expected 1 to %d letters, digits, '.', '_', '-' or "
                   "':', the first of them not '.')",
                   name, NAME_MAX_LEN);
}

struct hl_part hl_part_of(const char *name)
{
    struct hl_part part = {.kind = HL_PART_MODEL, .dp_size = 1, .of = name};
    int dp, dp_size, len = 0;
    bool extra = strncmp(name, "extra-", 6) == 0;
    if (!extra && strncmp(name, "optim-", 6) != 0)
        return part;
    part.kind = extra ? HL_PART_EXTRA : HL_PART_OPTIM;
    part.of = name + 6;
    if (extra)
        return part;
    if (sscanf(name, "optim-dp%9dof%9d-%n", &dp, &dp_size, &len) == 2 && len > 0 && dp > 0 &&
        dp < dp_size) {
        part.dp = dp;
        part.dp_size = dp_size;
        part.of = name + len;
    }
    return part;
}

bool hl_part_has_parameters(const char *name)
{
    return hl_part_of(name).kind == HL_PART_MODEL;
}

bool hl_part_has_experts(const char *name)
{
    return strncmp(hl_part_of(name).of, "experts-", 8) == 0;
}

int hl_part_at_order(const struct hl_part_at *a, const struct hl_part_at *b)
{
    if (a->pp != b->pp)
        return a->pp < b->pp ? -1 : 1;
    if (a->tp != b->tp)
        return a->tp < b->tp ? -1 : 1;
    if (a->ep != b->ep)
        return a->ep < b->ep ? -1 : 1;
    return strcmp(a->part, b->part);
}

const char *hl_part_place(int pp, int tp, int ep, const char *part, char buf[HL_PART_PLACE_MAX])
{
    if (hl_part_has_experts(part))
        snprintf(buf, HL_PART_PLACE_MAX, "pp%d/tp%d/ep%d/%.63s", pp, tp, ep, part);
    else
        snprintf(buf, HL_PART_PLACE_MAX, "pp%d/tp%d/%.63s", pp, tp, part);
    return buf;
}
