/* A CUDA device, through the driver API.
 *
 * With virtual memory management (VMM) a block is one physical allocation (cuMemCreate), which is
 * mapped at the wanted address and can be exported as a descriptor. Without VMM a block comes from
 * cuMemAlloc: the driver chooses its address, and only this process can use it.
 *
 * Every call is made inside the device's primary context, which is pushed and popped, because the
 * threads of a training process may have other contexts current. Each direction has a stream. Waits
 * poll the stream's event, because the driver's own waits have no deadline. */
#include "mem/device/device_private.h"

#include <ctype.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/text.h"
#include "cuda/driver.h"
#include "os/file.h"

#define PLAIN_GRANULE ((uint64_t)64 << 10) /* assumed for cuMemAlloc, in the accounting only */
#define SPIN_NS       50000                /* small copies end within this time */
#define NAP_NS        50000

/* A copy in flight, or its event, kept for the next copy. */
struct flight {
    struct flight *next;
    struct CUevent_st *event;
};

struct cuda {
    struct cuda_driver cu;
    cu_device device;
    bool retained;
    struct CUctx_st *context;
    struct CUstream_st *stream[3]; /* by direction */
    bool vmm;
    int ordinal;           /* the driver's number of the device, which the handle has too */
    pthread_mutex_t lock;  /* guards the lists; events are the driver's, which is thread-safe */
    struct flight *spare;  /* kept with their events, which cost more than starting a copy */
    struct flight *flying; /* only to find what is left at the close */
};

static struct cuda *cuda_of(struct hl_device *d)
{
    return d->impl;
}

static hl_status enter_context(struct cuda *c)
{
    CUDA_TRY(&c->cu, cuCtxPushCurrent_v2, (c->context));
    return HL_OK;
}

static void leave_context(struct cuda *c)
{
    struct CUctx_st *old;
    (void)c->cu.cuCtxPopCurrent_v2(&old);
}

/* ---- opening ---- */

struct spec {
    char pci[16]; /* "" = by ordinal */
    int ordinal;
    uint64_t bytes;
};

static hl_status cuda_parse(const char *rest, struct spec *out)
{
    unsigned domain, bus, device, function;
    int used = 0;
    const char *at = rest[0] == ':' ? rest + 1 : rest;
    if (sscanf(at, "%4x:%2x:%2x.%1x%n", &domain, &bus, &device, &function, &used) == 4) {
        snprintf(out->pci, sizeof(out->pci), "%04x:%02x:%02x.%x", domain & 0xffff, bus & 0xff,
                 device & 0xff, function & 0xf);
        at += used;
    } else if (isdigit((unsigned char)at[0])) {
        char *end;
        unsigned long n = strtoul(at, &end, 10);
        out->ordinal = n > 1023 ? 1023 : (int)n;
        at = end;
    } else {
        return hl_fail(HL_EINVAL, "no CUDA device given: expected cuda:ORDINAL[:BYTES], or a PCI "
                                  "id such as 0000:04:00.0 in place of the ordinal");
    }
    if (at[0] == '\0')
        return HL_OK;
    if (at[0] != ':')
        return hl_fail(HL_EINVAL, "\"%s\" is not :BYTES", at);
    return hl_parse_bytes(at + 1, &out->bytes);
}

static int cuda_attribute(struct cuda *c, cu_enum which)
{
    int value = 0;
    return c->cu.cuDeviceGetAttribute(&value, which, c->device) == HL_CUDA_SUCCESS ? value : 0;
}

/* The NUMA node of the device's slot, as Linux reports it. */
static int node_of(const char *pci)
{
    char path[96];
    int64_t node = -1;
    snprintf(path, sizeof(path), "/sys/bus/pci/devices/%s/numa_node", pci);
    return hl_file_read_number(path, &node) && node >= 0 && node < INT_MAX ? (int)node : -1;
}

static struct cu_alloc_prop alloc_properties(struct hl_device *d)
{
    struct cuda *c = cuda_of(d);
    return (struct cu_alloc_prop){
        .type = HL_CU_MEM_ALLOCATION_TYPE_PINNED,
        .handle_types =
            d->shareable ? HL_CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR : HL_CU_MEM_HANDLE_TYPE_NONE,
        .location = {.type = HL_CU_MEM_LOCATION_TYPE_DEVICE, .id = c->ordinal},
        .gpu_direct = (unsigned char)d->nic_direct};
}

static hl_status find_device(struct hl_device *d, const struct spec *spec)
{
    struct cuda *c = cuda_of(d);
    if (spec->pci[0] != '\0')
        CUDA_TRY(&c->cu, cuDeviceGetByPCIBusId, (&c->device, spec->pci));
    else
        CUDA_TRY(&c->cu, cuDeviceGet, (&c->device, spec->ordinal));
    c->ordinal = c->device;
    CUDA_TRY(&c->cu, cuDevicePrimaryCtxRetain, (&c->context, c->device));
    c->retained = true;
    (void)c->cu.cuDeviceGetPCIBusId(d->pci, sizeof(d->pci), c->device);
    for (char *p = d->pci; *p != '\0'; p++)
        *p = (char)tolower((unsigned char)*p);
    d->numa = node_of(d->pci);
    char name[64] = "CUDA device";
    (void)c->cu.cuDeviceGetName(name, sizeof(name), c->device);
    snprintf(d->name, sizeof(d->name), "cuda:%d (%s)", c->ordinal, name);
    return HL_OK;
}

/* Finds what the device and its driver can do, and how much of its memory is ours. Called in the
 * context. */
static hl_status find_facts(struct hl_device *d, uint64_t bytes)
{
    struct cuda *c = cuda_of(d);
    size_t granule = PLAIN_GRANULE, free, total;
    c->vmm = c->cu.vmm &&
             cuda_attribute(c, HL_CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED) != 0;
    d->has_ranges = c->vmm;
    d->shareable =
        c->vmm &&
        cuda_attribute(c, HL_CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED) != 0;
    d->nic_direct =
        cuda_attribute(c, HL_CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_SUPPORTED) != 0 &&
        (!c->vmm ||
         cuda_attribute(c, HL_CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED) != 0);
    snprintf(d->backing, sizeof(d->backing), "%s",
             c->vmm ? "cuda vmm" : "cuda memory: no ranges, no export");
    if (c->vmm) {
        struct cu_alloc_prop prop = alloc_properties(d);
        CUDA_TRY(&c->cu, cuMemGetAllocationGranularity,
                 (&granule, &prop, HL_CU_MEM_ALLOC_GRANULARITY_MINIMUM));
    }
    CUDA_TRY(&c->cu, cuMemGetInfo_v2, (&free, &total));
    if (bytes > total)
        return hl_fail(HL_ENOSPC, "%" PRIu64 " bytes requested, but the device has %zu", bytes,
                       total);
    d->granule = granule;
    d->bounded = bytes > 0;
    d->capacity = (bytes > 0 ? bytes : free) / granule * granule;
    if (bytes > 0 && d->capacity == 0)
        return hl_fail(HL_EINVAL, "%" PRIu64 " bytes are less than the driver's unit of %zu", bytes,
                       granule);
    for (size_t i = 0; i < HL_ARRAY_LEN(c->stream); i++)
        CUDA_TRY(&c->cu, cuStreamCreate, (&c->stream[i], HL_CU_STREAM_NON_BLOCKING));
    return HL_OK;
}

static void end_flights(struct cuda *c, struct flight *f)
{
    while (f != NULL) {
        struct flight *next = f->next;
        if (f->event != NULL)
            (void)c->cu.cuEventDestroy_v2(f->event);
        free(f);
        f = next;
    }
}

static void cuda_close(struct hl_device *d)
{
    struct cuda *c = cuda_of(d);
    if (c->context != NULL && enter_context(c) == HL_OK) {
        for (size_t i = 0; i < HL_ARRAY_LEN(c->stream); i++)
            if (c->stream[i] != NULL)
                (void)c->cu.cuStreamDestroy_v2(c->stream[i]);
        end_flights(c, c->spare);
        end_flights(c, c->flying);
        leave_context(c);
    }
    if (c->retained)
        (void)c->cu.cuDevicePrimaryCtxRelease_v2(c->device);
    pthread_mutex_destroy(&c->lock);
    free(c);
}

static hl_status cuda_open(struct hl_device *d, const char *rest,
                           const struct hl_device_options *options)
{
    struct spec spec = {0};
    struct cuda_driver cu;
    HL_TRY(cuda_parse(rest, &spec));
    HL_TRY(cuda_driver_load(options->cuda_driver, &cu));
    struct cuda *c = calloc(1, sizeof(*c));
    if (c == NULL)
        return hl_fail(HL_ENOMEM, "out of memory");
    c->cu = cu;
    pthread_mutex_init(&c->lock, NULL);
    d->impl = c;
    hl_status st = find_device(d, &spec);
    if (st == HL_OK)
        st = enter_context(c);
    if (st == HL_OK) {
        st = find_facts(d, spec.bytes);
        leave_context(c);
    }
    if (st != HL_OK)
        cuda_close(d);
    return st;
}

/* ---- blocks; each function of the table enters the context around its part ---- */

static hl_status create_memory(struct hl_device *d, struct device_mem *m)
{
    struct cuda *c = cuda_of(d);
    cu_result r;
    size_t free = 0, total = 0;
    cu_handle handle = 0;
    if (c->vmm) {
        struct cu_alloc_prop prop = alloc_properties(d);
        r = c->cu.cuMemCreate(&handle, m->size, &prop, 0);
    } else {
        r = c->cu.cuMemAlloc_v2(&handle, m->size);
    }
    if (r == HL_CUDA_ERROR_OUT_OF_MEMORY) {
        (void)c->cu.cuMemGetInfo_v2(&free, &total);
        return hl_fail(
            HL_ENOSPC,
            "%s: %" PRIu64
            " bytes requested, but the driver has %zu of %zu free: others use the device too",
            d->name, m->size, free, total);
    }
    if (r != HL_CUDA_SUCCESS)
        return cuda_fail(&c->cu, c->vmm ? "cuMemCreate" : "cuMemAlloc", r);
    m->handle = handle;
    return HL_OK;
}

static hl_status cuda_create(struct hl_device *d, struct device_mem *m)
{
    HL_TRY(enter_context(cuda_of(d)));
    hl_status st = create_memory(d, m);
    leave_context(cuda_of(d));
    return st;
}

static void cuda_destroy(struct hl_device *d, struct device_mem *m)
{
    struct cuda *c = cuda_of(d);
    if (enter_context(c) != HL_OK)
        return;
    if (c->vmm)
        (void)c->cu.cuMemRelease(m->handle);
    else
        (void)c->cu.cuMemFree_v2(m->handle);
    leave_context(c);
}

static hl_status allow_access(struct hl_device *d, struct device_mem *m, cu_ptr at)
{
    struct cuda *c = cuda_of(d);
    struct cu_access_desc desc = {
        .location = {.type = HL_CU_MEM_LOCATION_TYPE_DEVICE, .id = c->ordinal},
        .flags =
            m->imported ? HL_CU_MEM_ACCESS_FLAGS_PROT_READ : HL_CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    cu_result r = c->cu.cuMemSetAccess(at, m->size, &desc, 1);
    if (r != HL_CUDA_SUCCESS && m->imported) {
        /* A driver may not support read-only device memory; then only this library enforces it. */
        desc.flags = HL_CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
        r = c->cu.cuMemSetAccess(at, m->size, &desc, 1);
    }
    return r == HL_CUDA_SUCCESS ? HL_OK : cuda_fail(&c->cu, "cuMemSetAccess", r);
}

static hl_status cuda_map_memory(struct hl_device *d, struct device_mem *m, cu_ptr at)
{
    struct cuda *c = cuda_of(d);
    CUDA_TRY(&c->cu, cuMemMap, (at, m->size, 0, m->handle, 0));
    hl_status st = allow_access(d, m, at);
    if (st != HL_OK)
        (void)c->cu.cuMemUnmap(at, m->size);
    return st;
}

static hl_status map_anywhere(struct hl_device *d, struct device_mem *m, cu_ptr *at)
{
    struct cuda *c = cuda_of(d);
    CUDA_TRY(&c->cu, cuMemAddressReserve, (at, m->size, d->granule, 0, 0));
    hl_status st = cuda_map_memory(d, m, *at);
    if (st != HL_OK)
        (void)c->cu.cuMemAddressFree(*at, m->size);
    return st;
}

static hl_status cuda_map(struct hl_device *d, struct device_mem *m, uint64_t where)
{
    struct cuda *c = cuda_of(d);
    cu_ptr at = where;
    if (!c->vmm) {
        m->address = m->handle;
        return HL_OK;
    }
    HL_TRY(enter_context(c));
    hl_status st =
        where == HL_DEVICE_ANYWHERE ? map_anywhere(d, m, &at) : cuda_map_memory(d, m, at);
    leave_context(c);
    HL_TRY(st);
    m->address = at;
    m->own_address = where == HL_DEVICE_ANYWHERE;
    return HL_OK;
}

static void cuda_unmap(struct hl_device *d, struct device_mem *m)
{
    struct cuda *c = cuda_of(d);
    if (c->vmm && enter_context(c) == HL_OK) {
        (void)c->cu.cuMemUnmap(m->address, m->size);
        if (m->own_address)
            (void)c->cu.cuMemAddressFree(m->address, m->size);
        leave_context(c);
    }
    m->address = 0;
    m->own_address = false;
}

static hl_status cuda_reserve(struct hl_device *d, uint64_t size, uint64_t *address)
{
    struct cuda *c = cuda_of(d);
    cu_ptr at = 0;
    HL_TRY(enter_context(c));
    cu_result r = c->cu.cuMemAddressReserve(&at, size, d->granule, 0, 0);
    leave_context(c);
    if (r != HL_CUDA_SUCCESS)
        return cuda_fail(&c->cu, "cuMemAddressReserve", r);
    *address = at;
    return HL_OK;
}

static void cuda_unreserve(struct hl_device *d, uint64_t address, uint64_t size)
{
    struct cuda *c = cuda_of(d);
    if (enter_context(c) != HL_OK)
        return;
    (void)c->cu.cuMemAddressFree(address, size);
    leave_context(c);
}

static void cuda_room(struct hl_device *d, uint64_t left, uint64_t *free, uint64_t *largest)
{
    struct cuda *c = cuda_of(d);
    size_t now = 0, total;
    if (enter_context(c) == HL_OK) {
        if (c->cu.cuMemGetInfo_v2(&now, &total) != HL_CUDA_SUCCESS)
            now = 0;
        leave_context(c);
    }
    *free = left < now ? left : now;
    /* Free physical memory can be combined from units; without VMM the largest block is unknown. */
    *largest = *free / d->granule * d->granule;
}

/* ---- other processes ---- */

static hl_status cuda_export(struct hl_device *d, const struct device_mem *m, int *out)
{
    struct cuda *c = cuda_of(d);
    int fd = -1;
    HL_TRY(enter_context(c));
    cu_result r = c->cu.cuMemExportToShareableHandle(
        &fd, m->handle, HL_CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
    leave_context(c);
    if (r != HL_CUDA_SUCCESS)
        return cuda_fail(&c->cu, "cuMemExportToShareableHandle", r);
    *out = fd;
    return HL_OK;
}

static hl_status import_memory(struct hl_device *d, int fd, struct device_mem *m, cu_ptr *at)
{
    struct cuda *c = cuda_of(d);
    cu_handle handle = 0;
    /* cuMemMap maps a handle only as a whole. */
    if (m->offset != 0)
        return hl_fail(HL_EINVAL, "%s: an imported block must begin at offset 0 of its handle",
                       d->name);
    CUDA_TRY(&c->cu, cuMemImportFromShareableHandle,
             (&handle, (void *)(intptr_t)fd, HL_CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
    m->handle = handle;
    hl_status st = map_anywhere(d, m, at);
    if (st != HL_OK)
        (void)c->cu.cuMemRelease(handle);
    return st;
}

static hl_status cuda_import(struct hl_device *d, int fd, struct device_mem *m)
{
    struct cuda *c = cuda_of(d);
    cu_ptr at = 0;
    if (!c->vmm)
        return hl_fail(HL_EUNSUPPORTED, "%s: the driver can't share memory", d->name);
    HL_TRY(enter_context(c));
    hl_status st = import_memory(d, fd, m, &at);
    leave_context(c);
    HL_TRY(st);
    m->address = at;
    m->own_address = true;
    return HL_OK;
}

/* ---- copies ---- */

/* A flight in neither list belongs to its caller, so no driver call is made under the lock. */
static hl_status take_flight(struct hl_device *d, struct flight **out)
{
    struct cuda *c = cuda_of(d);
    pthread_mutex_lock(&c->lock);
    struct flight *f = c->spare;
    if (f != NULL)
        c->spare = f->next;
    pthread_mutex_unlock(&c->lock);
    if (f == NULL) {
        f = calloc(1, sizeof(*f));
        if (f == NULL)
            return hl_fail(HL_ENOMEM, "out of memory");
        cu_result r = c->cu.cuEventCreate(&f->event, HL_CU_EVENT_DISABLE_TIMING);
        if (r != HL_CUDA_SUCCESS) {
            free(f);
            return cuda_fail(&c->cu, "cuEventCreate", r);
        }
    }
    pthread_mutex_lock(&c->lock);
    f->next = c->flying;
    c->flying = f;
    pthread_mutex_unlock(&c->lock);
    *out = f;
    return HL_OK;
}

static void end_flight(struct cuda *c, struct flight *f)
{
    pthread_mutex_lock(&c->lock);
    struct flight **p = &c->flying;
    while (*p != f)
        p = &(*p)->next;
    *p = f->next;
    f->next = c->spare;
    c->spare = f;
    pthread_mutex_unlock(&c->lock);
}

/* Polls until the event has completed or, without an event, the stream is empty. Called in the
 * context. */
static cu_result ask_until(struct cuda *c, struct CUevent_st *event, struct CUstream_st *stream,
                           int timeout_ms)
{
    uint64_t start = hl_now_ns(), limit = (uint64_t)timeout_ms * HL_NS_PER_MS;
    for (;;) {
        cu_result r = event != NULL ? c->cu.cuEventQuery(event) : c->cu.cuStreamQuery(stream);
        uint64_t past = hl_now_ns() - start;
        if (r != HL_CUDA_ERROR_NOT_READY || past >= limit)
            return r;
        /* The driver can't wait for an event or a stream with a deadline, and a hanging device must
         * not block this thread: it polls. */
        if (past > SPIN_NS)
            nanosleep(&(struct timespec){.tv_nsec = NAP_NS}, NULL);
    }
}

static hl_status launch_copy(struct cuda *c, const struct device_op *op, struct flight *f,
                             int timeout_ms)
{
    struct CUstream_st *stream = c->stream[op->dir];
    if (op->dir == DEVICE_IN)
        CUDA_TRY(&c->cu, cuMemcpyHtoDAsync_v2,
                 (op->dst, (const void *)(uintptr_t)op->src, op->len, stream));
    else if (op->dir == DEVICE_OUT)
        CUDA_TRY(&c->cu, cuMemcpyDtoHAsync_v2,
                 ((void *)(uintptr_t)op->dst, op->src, op->len, stream));
    else
        CUDA_TRY(&c->cu, cuMemcpyDtoDAsync_v2, (op->dst, op->src, op->len, stream));
    cu_result r = c->cu.cuEventRecord(f->event, stream);
    if (r == HL_CUDA_SUCCESS)
        return HL_OK;
    /* The copy is running, and without an event only its whole stream can be waited for. */
    (void)ask_until(c, NULL, stream, timeout_ms);
    return cuda_fail(&c->cu, "cuEventRecord", r);
}

static hl_status cuda_begin(struct hl_device *d, const struct device_op *op, void **handle)
{
    struct cuda *c = cuda_of(d);
    struct flight *f = NULL;
    HL_TRY(enter_context(c));
    hl_status st = take_flight(d, &f);
    if (st == HL_OK && op->len > 0) {
        st = launch_copy(c, op, f, d->timeout_ms);
        if (st != HL_OK)
            end_flight(c, f);
    }
    leave_context(c);
    if (st == HL_OK)
        *handle = f;
    return st;
}

static hl_status cuda_wait(struct hl_device *d, void *handle, int timeout_ms)
{
    struct cuda *c = cuda_of(d);
    struct flight *f = handle;
    HL_TRY(enter_context(c));
    cu_result r = ask_until(c, f->event, NULL, timeout_ms);
    leave_context(c);
    if (r == HL_CUDA_ERROR_NOT_READY)
        return hl_fail(HL_ETIMEDOUT, "%s: a copy is not done after %d ms", d->name, timeout_ms);
    end_flight(c, f);
    return r == HL_CUDA_SUCCESS ? HL_OK : cuda_fail(&c->cu, "copying", r);
}

static hl_status cuda_copy(struct hl_device *d, const struct device_op *op)
{
    void *handle;
    HL_TRY(cuda_begin(d, op, &handle));
    return cuda_wait(d, handle, d->timeout_ms);
}

static void cuda_settle(struct hl_device *d)
{
    struct cuda *c = cuda_of(d);
    if (enter_context(c) != HL_OK)
        return;
    for (struct flight *f = c->flying; f != NULL; f = f->next)
        (void)ask_until(c, f->event, NULL, d->timeout_ms);
    leave_context(c);
}

/* Waits for the whole context, including streams of other users. A driver older than CUDA 12.5 has
 * no event for it and blocks without a deadline. Called in the context. */
static cu_result context_quiesce(struct cuda *c, struct flight *f, int timeout_ms)
{
    if (!c->cu.context)
        return c->cu.cuCtxSynchronize();
    cu_result r = c->cu.cuCtxRecordEvent(c->context, f->event);
    return r == HL_CUDA_SUCCESS ? ask_until(c, f->event, NULL, timeout_ms) : r;
}

static hl_status cuda_quiesce(struct hl_device *d, int timeout_ms)
{
    struct cuda *c = cuda_of(d);
    struct flight *f = NULL;
    HL_TRY(enter_context(c));
    hl_status st = take_flight(d, &f);
    cu_result r = st == HL_OK ? context_quiesce(c, f, timeout_ms) : HL_CUDA_SUCCESS;
    leave_context(c);
    HL_TRY(st);
    end_flight(c, f);
    if (r == HL_CUDA_ERROR_NOT_READY)
        return hl_fail(HL_ETIMEDOUT, "%s: its work is not done after %d ms", d->name, timeout_ms);
    return r == HL_CUDA_SUCCESS ? HL_OK : cuda_fail(&c->cu, "waiting for the device", r);
}

static hl_status cuda_pin(struct hl_device *d, void *ptr, size_t len)
{
    struct cuda *c = cuda_of(d);
    HL_TRY(enter_context(c));
    cu_result r = c->cu.cuMemHostRegister_v2(ptr, len, HL_CU_MEMHOSTREGISTER_PORTABLE);
    leave_context(c);
    return r == HL_CUDA_SUCCESS ? HL_OK : cuda_fail(&c->cu, "cuMemHostRegister", r);
}

static void cuda_unpin(struct hl_device *d, void *ptr)
{
    struct cuda *c = cuda_of(d);
    if (enter_context(c) != HL_OK)
        return;
    (void)c->cu.cuMemHostUnregister(ptr);
    leave_context(c);
}

const struct device_ops device_cuda = {
    .kind = "cuda",
    .open = cuda_open,
    .settle = cuda_settle,
    .close = cuda_close,
    .create = cuda_create,
    .destroy = cuda_destroy,
    .map = cuda_map,
    .unmap = cuda_unmap,
    .reserve = cuda_reserve,
    .unreserve = cuda_unreserve,
    .copy = cuda_copy,
    .begin = cuda_begin,
    .wait = cuda_wait,
    .quiesce = cuda_quiesce,
    .pin = cuda_pin,
    .unpin = cuda_unpin,
    .export = cuda_export,
    .import = cuda_import,
    .room = cuda_room,
};
