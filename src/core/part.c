#include "core/part.h"

#include <stdio.h>
#include <string.h>

struct hl_part hl_part_of(const char *name)
{
    struct hl_part part = {.kind = HL_PART_MODEL, .dp_size = 1};
    int dp, dp_size, len = 0;
    if (strncmp(name, "extra-", 6) == 0)
        part.kind = HL_PART_EXTRA;
    if (strncmp(name, "optim-", 6) != 0)
        return part;
    part.kind = HL_PART_OPTIM;
    if (sscanf(name, "optim-dp%9dof%9d-%n", &dp, &dp_size, &len) == 2 && len > 0 && dp > 0 &&
        dp < dp_size) {
        part.dp = dp;
        part.dp_size = dp_size;
    }
    return part;
}
