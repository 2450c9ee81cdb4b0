#include "core/part.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

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
