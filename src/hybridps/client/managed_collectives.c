/* Results of collectives as managed tensors, built from public calls. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "group/group.h"

/* Allocates the result's place on the host and copies `local` into it. */
static hl_status begin_result(hybridps *h, const char *name, const void *local, uint64_t bytes,
                              uint32_t *tensor, void **data)
{
    hybridps_tensor_info info = {HYBRIDPS_TENSOR_INFO_INIT};
    if (local == NULL || bytes == 0 || tensor == NULL)
        return hl_fail(HL_EINVAL, "\"%s\": a result needs at least one byte and a tensor number",
                       hl_collective_name(name));
    if (*tensor == HYBRIDPS_NEW) {
        HL_TRY((hl_status)hybridps_add(h, name, HYBRIDPS_OTHER, bytes, tensor));
        HL_TRY((hl_status)hybridps_layout(h));
    }
    HL_TRY((hl_status)hybridps_tensor(h, *tensor, &info));
    if (info.bytes != bytes || info.state == HYBRIDPS_COMPUTE)
        return hl_fail(HL_EINVAL,
                       "\"%s\" has %" PRIu64 " bytes, its tensor %" PRIu32 " has %" PRIu64 "%s",
                       hl_collective_name(name), bytes, *tensor, info.bytes,
                       info.state == HYBRIDPS_COMPUTE ? " and is in use" : "");
    hybridps_use use = {.tensor = *tensor, .where = HYBRIDPS_HOST, .write = 1};
    HL_TRY((hl_status)hybridps_access(h, &use, 1));
    memcpy(use.address, local, bytes);
    *data = use.address;
    return HL_OK;
}

/* Frees the result after a failure, since a partial result is not content. The error keeps the text
 * of `code`. */
static int end_result(hybridps *h, uint32_t tensor, int code)
{
    char text[HL_ERROR_TEXT_MAX];
    snprintf(text, sizeof(text), "%s", hl_error_text());
    int rc = hybridps_release(h, &tensor, 1, code == 0 ? HYBRIDPS_HOLD : HYBRIDPS_FREE);
    return code != 0 ? hl_fail((hl_status)code, "%s", text) : rc;
}

int hybridps_allreduce(hybridps *h, hybridps_group *g, const char *name, const void *local,
                       uint64_t n, int type, int op, uint32_t *tensor)
{
    void *data = NULL;
    HL_TRY(hl_collective_check("allreduce", name, local, n, type, op, 1));
    HL_TRY(begin_result(h, name, local, n * hl_collective_size(type), tensor, &data));
    int code = g != NULL ? hybridps_group_allreduce(g, name, data, n, type, op) : 0;
    return end_result(h, *tensor, code);
}

int hybridps_broadcast(hybridps *h, hybridps_group *g, const char *name, const void *local,
                       uint64_t bytes, int src, uint32_t *tensor)
{
    void *data = NULL;
    int world = hybridps_group_world(g);
    if (src < 0 || src >= world)
        return hl_fail(HL_EINVAL, "broadcast of \"%s\": src is %d, there are ranks 0 to %d",
                       hl_collective_name(name), src, world - 1);
    HL_TRY(begin_result(h, name, local, bytes, tensor, &data));
    int code = g != NULL ? hybridps_group_broadcast(g, name, data, bytes, src) : 0;
    return end_result(h, *tensor, code);
}
