/* A trace of any bytes. What is accepted must come out as it came in, and be planned or refused. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "hybridps/plan/plan.h"
#include "hybridps/plan/trace.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void plan(const struct hl_trace *t, int copy)
{
    struct hl_chunk_plan_options o = {.copy = copy, .iterations = 2};
    struct hl_chunk_plan *p = NULL;
    if (hl_chunk_plan_make(t, &o, &p) == HL_OK)
        hl_chunk_plan_free(p);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct hl_trace t = {0}, again = {0};
    char *one = NULL, *two = NULL;
    if (hl_trace_parse((const char *)data, size, &t) != HL_OK)
        return 0;
    if (hl_trace_print(&t, &one) != HL_OK || hl_trace_parse(one, strlen(one), &again) != HL_OK ||
        hl_trace_print(&again, &two) != HL_OK || strcmp(one, two) != 0)
        abort();
    plan(&t, 0);
    plan(&t, 1);
    free(one);
    free(two);
    hl_trace_fini(&t);
    hl_trace_fini(&again);
    return 0;
}
