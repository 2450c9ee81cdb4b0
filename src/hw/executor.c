#include "hw/executor.h"

#include <string.h>

#include "hw/process_executor.h"

hl_status hl_executor_open(const struct hl_executor_opts *opts, struct hl_executor **out)
{
    if (strcmp(opts->name, "process") == 0)
        return hl_process_executor_open(opts, out);
    return hl_fail(HL_EUNSUPPORTED, "executor '%s' is not known: use process", opts->name);
}
