/* Opens a GPU for MACO and closes it; closing waits for the device only up to a deadline. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/abi.h"
#include "base/clock.h"
#include "base/log.h"
#include "maco/cuda/host/context.h"
#include "maco/cuda/peers/peers.h"

#define CLOSE_NS ((uint64_t)10 * HL_NS_PER_S)

/* ---- the device ---- */

static hl_status driver_with_kernels(const char *library, struct cuda_driver *cu,
                                     const void **image, size_t *size)
{
    HL_TRY(hl_maco_cuda_image(image, size));
    HL_TRY(cuda_driver_load(library, cu));
    if (!cu->run)
        return hl_fail(HL_EUNSUPPORTED, "the CUDA driver is too old for MACO: it has no "
                                        "cuStreamWaitValue64_v2, which CUDA 11.7 introduced");
    return HL_OK;
}

int maco_cuda_available(const char *driver)
{
    struct cuda_driver cu;
    const void *image;
    size_t size;
    cu_device device;
    HL_TRY(driver_with_kernels(driver, &cu, &image, &size));
    CUDA_TRY(&cu, cuDeviceGet, (&device, 0));
    return HL_OK;
}

static int device_attribute(const maco_cuda *c, cu_enum which)
{
    int value = 0;
    return c->cu.cuDeviceGetAttribute(&value, which, c->device) == HL_CUDA_SUCCESS ? value : 0;
}

static hl_status find_device(maco_cuda *c, int ordinal)
{
    maco_cuda_info *i = &c->info;
    CUDA_TRY(&c->cu, cuDeviceGet, (&c->device, ordinal));
    CUDA_TRY(&c->cu, cuDeviceGetName, (i->name, sizeof(i->name), c->device));
    i->multiprocessors = device_attribute(c, HL_CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
    i->major = device_attribute(c, HL_CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR);
    i->minor = device_attribute(c, HL_CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR);
    if (!device_attribute(c, HL_CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH))
        return hl_fail(HL_EUNSUPPORTED, "%s can't launch cooperatively", i->name);
    CUDA_TRY(&c->cu, cuDevicePrimaryCtxRetain, (&c->context, c->device));
    c->retained = 1;
    return HL_OK;
}

static hl_status load_kernel(maco_cuda *c, const void *image)
{
    int blocks = 0;
    cu_result r = c->cu.cuModuleLoadData(&c->module, image);
    if (r == HL_CUDA_ERROR_NO_BINARY_FOR_GPU)
        return hl_fail(HL_EUNSUPPORTED,
                       "%s (compute capability %d.%d) is older than the kernels of this libhelios",
                       c->info.name, c->info.major, c->info.minor);
    if (r != HL_CUDA_SUCCESS)
        return cuda_fail(&c->cu, "cuModuleLoadData", r);
    CUDA_TRY(&c->cu, cuModuleGetFunction, (&c->kernel, c->module, HL_GPU_KERNEL));
    CUDA_TRY(&c->cu, cuOccupancyMaxActiveBlocksPerMultiprocessor,
             (&blocks, c->kernel, HL_GPU_THREADS, 0));
    if (blocks == 0)
        return hl_fail(HL_EUNSUPPORTED, "%s has no room for a CTA of the kernel", c->info.name);
    c->info.limit = blocks * c->info.multiprocessors;
    return HL_OK;
}

static hl_status make_streams(maco_cuda *c)
{
    CUDA_TRY(&c->cu, cuStreamCreate, (&c->own, HL_CU_STREAM_NON_BLOCKING));
    CUDA_TRY(&c->cu, cuEventCreate, (&c->begun, HL_CU_EVENT_DISABLE_TIMING));
    CUDA_TRY(&c->cu, cuEventCreate, (&c->ended, HL_CU_EVENT_DISABLE_TIMING));
    CUDA_TRY(&c->cu, cuEventCreate, (&c->copied, HL_CU_EVENT_DISABLE_TIMING));
    for (uint32_t g = 0; g < c->options.n_comms; g++)
        CUDA_TRY(&c->cu, cuStreamCreate, (&c->streams[g], HL_CU_STREAM_NON_BLOCKING));
    return HL_OK;
}

/* ---- groups ---- */

static void warn_of_connections(void)
{
    const char *text = getenv("CUDA_DEVICE_MAX_CONNECTIONS");
    if (text != NULL && strcmp(text, "1") == 0)
        hl_warn("CUDA_DEVICE_MAX_CONNECTIONS=1: streams share one queue, so a waiting stream can "
                "block the kernel that it waits for; unset it to overlap communication");
}

static hl_status open_groups(maco_cuda *c)
{
    int any = 0;
    for (uint32_t g = 0; g < c->options.n_comms; g++)
        any |= c->comms[g] != NULL;
    if (c->options.n_comms > 0)
        warn_of_connections();
    if (c->options.n_comms > 0 &&
        !device_attribute(c, HL_CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS))
        return hl_fail(HL_EUNSUPPORTED,
                       "%s: its streams can't wait for 64-bit words, which "
                       "communication needs",
                       c->info.name);
    if (any)
        HL_TRY(hl_nccl_load(c->options.nccl, &c->nccl));
    return hl_cuda_peers_open(c);
}

/* ---- opening and closing ---- */

static hl_status take_options(maco_cuda *c, const maco_cuda_options *o)
{
    if (o->workers < 0 || o->workers > 4096 || o->reserved < 0)
        return hl_fail(HL_EINVAL, "%d workers, %d reserved: 0 to 4096, and none negative",
                       o->workers, o->reserved);
    if (o->ring != 0 && (o->ring < 2 || o->ring > 65536 || (o->ring & (o->ring - 1)) != 0))
        return hl_fail(HL_EINVAL, "a ring of %u slots: a power of two from 2 to 65536", o->ring);
    if (o->n_comms > HL_GPU_GROUPS || (o->n_comms > 0 && o->comms == NULL && o->groups == NULL))
        return hl_fail(HL_EINVAL, "%u communicators: at most %d, in an array", o->n_comms,
                       HL_GPU_GROUPS);
    c->options = *o;
    if (o->timeout_ns == 0)
        c->options.timeout_ns = (uint64_t)60 * HL_NS_PER_S;
    if (o->ring == 0)
        c->options.ring = 1024;
    if (o->peer_ctas > HL_PEER_CTAS)
        return hl_fail(HL_EINVAL, "%u CTAs for a group's communication: at most %d", o->peer_ctas,
                       HL_PEER_CTAS);
    for (uint32_t g = 0; g < o->n_comms; g++) {
        c->comms[g] = o->comms != NULL ? o->comms[g] : NULL;
        c->groups[g] = o->groups != NULL ? o->groups[g] : NULL;
    }
    c->options.comms = NULL;
    c->options.groups = NULL;
    return HL_OK;
}

static hl_status open_inside(maco_cuda *c, const void *image)
{
    HL_TRY(load_kernel(c, image));
    HL_TRY(make_streams(c));
    return open_groups(c);
}

static hl_status open_device(maco_cuda *c, int ordinal)
{
    const void *image;
    size_t size;
    HL_TRY(driver_with_kernels(c->options.driver, &c->cu, &image, &size));
    c->info.image_bytes = size;
    HL_TRY(find_device(c, ordinal));
    HL_TRY(hl_cuda_enter(c));
    hl_status st = open_inside(c, image);
    hl_cuda_leave(c);
    return st;
}

int maco_cuda_open(int device, const maco_cuda_options *options, maco_cuda **out)
{
    maco_cuda_options o = {MACO_CUDA_OPTIONS_INIT};
    if (out == NULL)
        return hl_fail(HL_EINVAL, "maco_cuda_open: out is NULL");
    if (options != NULL)
        HL_TRY(HL_ABI_READ(maco_cuda_options, options, &o));
    maco_cuda *c = calloc(1, sizeof(*c));
    if (c == NULL)
        return hl_fail(HL_ENOMEM, "out of memory allocating a runtime");
    hl_status st = take_options(c, &o);
    if (st == HL_OK)
        st = open_device(c, device);
    if (st != HL_OK) {
        char why[HL_ERROR_TEXT_MAX];
        snprintf(why, sizeof(why), "%s", hl_error_text());
        maco_cuda_close(c);
        return hl_fail(st, "%s", why);
    }
    *out = c;
    return HL_OK;
}

static void close_inside(maco_cuda *c)
{
    for (uint32_t g = 0; g < HL_GPU_GROUPS; g++)
        if (c->streams[g] != NULL)
            (void)c->cu.cuStreamDestroy_v2(c->streams[g]);
    if (c->own != NULL)
        (void)c->cu.cuStreamDestroy_v2(c->own);
    struct CUevent_st *events[] = {c->begun, c->ended, c->copied};
    for (size_t i = 0; i < HL_ARRAY_LEN(events); i++)
        if (events[i] != NULL)
            (void)c->cu.cuEventDestroy_v2(events[i]);
    if (c->module != NULL)
        (void)c->cu.cuModuleUnload(c->module);
}

/* Call in the device's context. */
static void give_back(maco_cuda *c)
{
    hl_cuda_unload(c);
    hl_cuda_peers_close(c);
    close_inside(c);
    (void)c->cu.cuDevicePrimaryCtxRelease_v2(c->device);
    free(c);
}

struct closing {
    struct hl_cuda_job job;
    maco_cuda *c;
};

static void close_later(struct hl_cuda_job *job)
{
    give_back(((struct closing *)job)->c);
}

/* The driver frees nothing before the device has finished what it runs, and NCCL may wait for other
 * ranks. All of that shares one deadline; what returns later is freed then. */
static hl_status close_in_time(maco_cuda *c)
{
    struct closing *k = calloc(1, sizeof(*k));
    if (k == NULL)
        return HL_ENOMEM;
    k->c = c;
    HL_TRY(hl_cuda_job_start(c, &k->job, close_later));
    if (hl_cuda_job_wait(&k->job, CLOSE_NS, "releasing the resources of a runtime") != HL_OK)
        hl_warn("%s: it continues; keep the device and communicators until then", hl_error_text());
    hl_cuda_job_drop(&k->job);
    return HL_OK;
}

void maco_cuda_close(maco_cuda *c)
{
    if (c == NULL)
        return;
    if (c->running) {
        maco_cuda_cancel(c);
        (void)maco_cuda_wait(c);
    }
    if (!c->retained) {
        free(c);
        return;
    }
    hl_cuda_peers_part(c);
    if (close_in_time(c) == HL_OK)
        return;
    struct CUctx_st *old; /* ignored: no thread uses it any more */
    const struct cuda_driver cu = c->cu;
    int entered = hl_cuda_enter(c) == HL_OK;
    give_back(c);
    if (entered)
        (void)cu.cuCtxPopCurrent_v2(&old);
}

int maco_cuda_describe(const maco_cuda *c, maco_cuda_info *out)
{
    return HL_ABI_WRITE(maco_cuda_info, &c->info, out);
}
