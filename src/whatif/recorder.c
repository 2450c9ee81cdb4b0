#include "whatif/recorder.h"

#include <string.h>

#define NS_PER_MS INT64_C(1000000)

/* Replaces characters that a column can't contain by '_'. */
static void name_clean(const char *name, char out[HL_ACCESS_NAME_MAX + 1])
{
    size_t n = strnlen(name, HL_ACCESS_NAME_MAX);
    for (size_t i = 0; i < n; i++)
        out[i] = (unsigned char)name[i] <= ' ' || name[i] == 127 || strchr(",\"'", name[i]) != NULL
                     ? '_'
                     : name[i];
    out[n] = '\0';
    if (n == 0)
        memcpy(out, "-", 2);
}

hl_status hl_recorder_add(struct hl_recorder *r, const struct hl_told_access *told)
{
    char node[HL_ACCESS_NAME_MAX + 1], shard[HL_ACCESS_NAME_MAX + 1];
    int64_t at_ms = told->at_ms, span_ms = told->span_ms;
    if (at_ms < r->begin_ms || told->size_bytes == 0) {
        *(at_ms < r->begin_ms ? &r->before : &r->unknown) += told->count;
        return HL_OK;
    }
    if (span_ms > at_ms - r->begin_ms)
        span_ms = at_ms - r->begin_ms;
    name_clean(told->node, node);
    name_clean(told->shard, shard);
    for (uint32_t i = 0; i < told->count; i++) {
        /* the last access is at at_ms, the first one after the start of the span */
        int64_t back_ns = (int64_t)((double)(span_ms * NS_PER_MS) / told->count * i);
        const struct hl_trace_access access = {.at_ns = (at_ms - r->begin_ms) * NS_PER_MS - back_ns,
                                               .node = node,
                                               .shard = shard,
                                               .size_bytes = told->size_bytes,
                                               .is_write = told->is_write};
        if (access.at_ns / NS_PER_MS <= r->end_ms - r->begin_ms)
            HL_TRY(hl_access_trace_put(&r->trace, &access));
    }
    return HL_OK;
}

void hl_recorder_finish(struct hl_recorder *r)
{
    hl_access_trace_sort(&r->trace);
}

void hl_recorder_fini(struct hl_recorder *r)
{
    hl_access_trace_fini(&r->trace);
}
