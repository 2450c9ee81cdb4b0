/* How a program ends. */
#include <stdio.h>

#include "program/daemon.h"

int program_exit(const char *name, hl_status st)
{
    if (st == HL_OK || st == HL_ECANCELED)
        return 0;
    fprintf(stderr, "%s: %s\n", name, hl_error_text());
    return st == HL_EINVAL ? 2 : 1;
}
