/* libhelios_nvshmem: NVSHMEM's host library for maco/cuda/peers/nvshmem.c. The initialisation is
 * the host library's own (nvshmemx_hostlib_init_attr): the one in NVSHMEM's header is for programs
 * with kernels that call NVSHMEM, and ends the process where it fails. */
#include <nvshmem.h>
#include <nvshmemx.h>

#include <cstring>

#include "maco/cuda/nvshmem/plugin.h"

static_assert(sizeof(nvshmemx_uniqueid_t) <= HL_NVSHMEM_ID, "NVSHMEM's id is too large");

static int is_on(void)
{
    return nvshmemx_init_status() >= NVSHMEM_STATUS_IS_BOOTSTRAPPED;
}

static int make_id(void *id)
{
    nvshmemx_uniqueid_t own = NVSHMEMX_UNIQUEID_INITIALIZER;
    int failed = nvshmemx_get_uniqueid(&own);
    memcpy(id, &own, sizeof(own));
    return failed;
}

/* The device is that of the current context. A PE is a rank. */
static int plugin_init(const void *id, int rank, int ranks)
{
    nvshmemx_uniqueid_t shared = NVSHMEMX_UNIQUEID_INITIALIZER;
    nvshmemx_init_attr_t attr = NVSHMEMX_INIT_ATTR_INITIALIZER;
    memcpy(&shared, id, sizeof(shared));
    int failed = nvshmemx_set_attr_uniqueid_args(rank, ranks, &shared, &attr);
    if (failed == 0)
        failed = nvshmemx_hostlib_init_attr(NVSHMEMX_INIT_WITH_UNIQUEID, &attr);
    return failed;
}

static void *plugin_alloc(size_t bytes)
{
    return nvshmem_malloc(bytes);
}

static void *plugin_address(void *memory, int rank)
{
    return nvshmem_ptr(memory, rank);
}

static void plugin_free(void *memory)
{
    nvshmem_free(memory);
}

static void plugin_finalize(void)
{
    nvshmemx_hostlib_finalize();
}

extern "C" __attribute__((visibility("default"))) const hl_nvshmem *hl_nvshmem_plugin_1(void)
{
    static const hl_nvshmem table = {is_on,          make_id,     plugin_init,    plugin_alloc,
                                     plugin_address, plugin_free, plugin_finalize};
    return &table;
}
