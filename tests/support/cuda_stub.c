/* A CUDA driver for tests: the calls of src/cuda/driver.h over memfds, with the rules of the real
 * one. Nothing works before cuInit, in a forked child, or without a current context where one is
 * needed; memory comes in 2 MiB units from a device of fixed size; addresses are reserved, mapped
 * once, made accessible, unmapped and given back in just that order and in whole pieces; the CPU
 * can't touch device memory; copies run later, on a thread of their stream. A process that releases
 * the last context and leaves something behind is aborted.
 *
 * Environment: CUDA_STUB_MEMORY (bytes, 256 MiB), CUDA_STUB_DEVICES (1), CUDA_STUB_WITHOUT ("vmm",
 * "export", "direct", "readonly", a list), CUDA_STUB_DELAY_US (of a copy; 2000), CUDA_STUB_FAIL
 * ("cuMemCreate:3" = its third call fails, "cuMemCreate:3:2" = with error 2), CUDA_STUB_NEAR,
 * CUDA_STUB_KERNELS, CUDA_STUB_MULTIPROCESSORS, CUDA_STUB_BLOCKS (cuda_stub_run.c). */
#include <errno.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "support/cuda_stub.h"

#define UNIT     ((size_t)2 << 20)
#define SOME     256
#define CONTEXTS 16

/* Physical memory. The CPU reaches it at `shadow`, never at the addresses of the device. */
struct memory {
    int live;     /* the handle was not released */
    int maps;     /* memory is freed when both are 0 */
    int imported; /* not allocated from this process's device */
    int shareable;
    int fd;
    size_t size;
    unsigned char *shadow;
};

struct mapping {
    cu_ptr at;
    size_t size;
    struct memory *memory; /* NULL: free entry */
    cu_enum access;
};

struct span {
    cu_ptr at;
    size_t size; /* 0: free entry */
};

pthread_mutex_t stub_lock = PTHREAD_MUTEX_INITIALIZER;
int stub_streams, stub_events, stub_others;
static pid_t initialised;
static struct CUctx_st contexts[CONTEXTS];
static struct memory memories[SOME];
static struct mapping mappings[SOME];
static struct span reserved[SOME], pinned[SOME];
static size_t used;
static _Thread_local struct CUctx_st *stack[CONTEXTS];
static _Thread_local int depth;

unsigned long stub_setting(const char *name, unsigned long otherwise)
{
    const char *text = getenv(name);
    return text != NULL ? strtoul(text, NULL, 0) : otherwise;
}

static int without(const char *what)
{
    const char *text = getenv("CUDA_STUB_WITHOUT");
    return text != NULL && strstr(text, what) != NULL;
}

/* The error configured for this call of `name`, else success. A changed setting restarts the
 * count. */
static cu_result ordered(const char *name)
{
    static char order[64];
    static unsigned long calls;
    const char *text = getenv("CUDA_STUB_FAIL");
    char which[48];
    unsigned long number = 0, error = HL_CUDA_ERROR_UNKNOWN;
    if (text == NULL || sscanf(text, "%47[A-Za-z0-9]:%lu:%lu", which, &number, &error) < 2 ||
        strncmp(which, name, strlen(which)) != 0 ||
        (name[strlen(which)] != '\0' && name[strlen(which)] != '_'))
        return HL_CUDA_SUCCESS;
    if (strcmp(order, text) != 0) {
        snprintf(order, sizeof(order), "%s", text);
        calls = 0;
    }
    return ++calls == number ? (cu_result)error : HL_CUDA_SUCCESS;
}

cu_result stub_begin(const char *name, int needs_context)
{
    pthread_mutex_lock(&stub_lock);
    cu_result r = ordered(name);
    if (r == HL_CUDA_SUCCESS && initialised != getpid())
        r = HL_CUDA_ERROR_NOT_INITIALIZED;
    if (r == HL_CUDA_SUCCESS && needs_context) {
        struct CUctx_st *c = depth > 0 ? stack[depth - 1] : NULL;
        r = c == NULL || c->retained == 0 ? HL_CUDA_ERROR_INVALID_CONTEXT : c->sticky;
        if (needs_context == EVEN_LOST && r != HL_CUDA_ERROR_INVALID_CONTEXT)
            r = HL_CUDA_SUCCESS;
    }
    if (r != HL_CUDA_SUCCESS)
        pthread_mutex_unlock(&stub_lock);
    return r;
}

struct CUctx_st *stub_context(void)
{
    return stack[depth - 1];
}

cu_result stub_end(cu_result r)
{
    pthread_mutex_unlock(&stub_lock);
    return r;
}

/* ---- the driver and its devices ---- */

cu_result cuInit(unsigned int flags)
{
    pthread_mutex_lock(&stub_lock);
    cu_result r = ordered(__func__);
    if (r == HL_CUDA_SUCCESS && flags != 0)
        r = HL_CUDA_ERROR_INVALID_VALUE;
    if (r == HL_CUDA_SUCCESS && stub_setting("CUDA_STUB_DEVICES", 1) == 0)
        r = HL_CUDA_ERROR_NO_DEVICE;
    /* As with the real driver, a child of a process that used it can't use it. */
    if (r == HL_CUDA_SUCCESS && initialised != 0 && initialised != getpid())
        r = HL_CUDA_ERROR_NOT_INITIALIZED;
    if (r == HL_CUDA_SUCCESS)
        initialised = getpid();
    return stub_end(r);
}

static const struct {
    cu_result r;
    const char *name;
} names[] = {

#define X(name, value) {value, #name},
    CU_NUMBERS(X)
#undef X
};

cu_result cuGetErrorName(cu_result r, const char **out)
{
    for (size_t i = 0; i < HL_ARRAY_LEN(names); i++) {
        if (names[i].r == r && strncmp(names[i].name, "CUDA_", 5) == 0) {
            *out = names[i].name;
            return HL_CUDA_SUCCESS;
        }
    }
    return HL_CUDA_ERROR_INVALID_VALUE;
}

cu_result cuGetErrorString(cu_result r, const char **out)
{
    *out = r == HL_CUDA_ERROR_OUT_OF_MEMORY ? "out of memory" : "text of the stub";
    return HL_CUDA_SUCCESS;
}

static int is_device(cu_device d)
{
    return d >= 0 && (unsigned long)d < stub_setting("CUDA_STUB_DEVICES", 1) && d < CONTEXTS;
}

cu_result cuDeviceGet(cu_device *out, int ordinal)
{
    BEGIN(0);
    if (!is_device(ordinal))
        return stub_end(HL_CUDA_ERROR_INVALID_DEVICE);
    *out = ordinal;
    return stub_end(HL_CUDA_SUCCESS);
}

cu_result cuDeviceGetByPCIBusId(cu_device *out, const char *id)
{
    unsigned bus;
    BEGIN(0);
    if (sscanf(id, "0000:%2x:00.0", &bus) != 1 || bus < 0x10 || !is_device((int)bus - 0x10))
        return stub_end(HL_CUDA_ERROR_INVALID_VALUE);
    *out = (int)bus - 0x10;
    return stub_end(HL_CUDA_SUCCESS);
}

cu_result cuDeviceGetPCIBusId(char *out, int cap, cu_device d)
{
    BEGIN(0);
    if (!is_device(d))
        return stub_end(HL_CUDA_ERROR_INVALID_DEVICE);
    snprintf(out, (size_t)cap, "0000:%02X:00.0", d + 0x10);
    return stub_end(HL_CUDA_SUCCESS);
}

cu_result cuDeviceGetName(char *out, int cap, cu_device d)
{
    BEGIN(0);
    if (!is_device(d))
        return stub_end(HL_CUDA_ERROR_INVALID_DEVICE);
    snprintf(out, (size_t)cap, "Stub");
    return stub_end(HL_CUDA_SUCCESS);
}

cu_result cuDeviceGetAttribute(int *out, cu_enum which, cu_device d)
{
    BEGIN(0);
    if (!is_device(d))
        return stub_end(HL_CUDA_ERROR_INVALID_DEVICE);
    switch (which) {
    case HL_CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED:
        *out = !without("vmm");
        break;
    case HL_CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED:
        *out = !without("vmm") && !without("export");
        break;
    case HL_CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_SUPPORTED:
    case HL_CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED:
        *out = !without("direct");
        break;
    case HL_CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT:
        *out = (int)stub_setting("CUDA_STUB_MULTIPROCESSORS", 8);
        break;
    case HL_CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR:
        *out = 9;
        break;
    case HL_CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR:
        *out = 0;
        break;
    case HL_CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH:
        *out = !without("cooperative");
        break;
    case HL_CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS:
        *out = !without("values");
        break;
    default:
        return stub_end(HL_CUDA_ERROR_INVALID_VALUE);
    }
    return stub_end(HL_CUDA_SUCCESS);
}

cu_result cuDevicePrimaryCtxRetain(struct CUctx_st **out, cu_device d)
{
    BEGIN(0);
    if (!is_device(d))
        return stub_end(HL_CUDA_ERROR_INVALID_DEVICE);
    contexts[d].device = d;
    contexts[d].retained++;
    *out = &contexts[d];
    return stub_end(HL_CUDA_SUCCESS);
}

static int count(void)
{
    int n = stub_streams + stub_events + stub_others;
    for (int i = 0; i < SOME; i++)
        n += memories[i].live + (mappings[i].memory != NULL) + (reserved[i].size > 0) +
             (pinned[i].size > 0);
    return n;
}

static void drop_memory(struct memory *m);

/* A lost context takes all it had along. */
static void drop_everything(void)
{
    for (int i = 0; i < SOME; i++) {
        mappings[i] = (struct mapping){0};
        reserved[i] = pinned[i] = (struct span){0};
        if (memories[i].size > 0) {
            memories[i].live = memories[i].maps = 0;
            drop_memory(&memories[i]);
        }
    }
    stub_streams = stub_events = stub_others = 0;
}

cu_result cuDevicePrimaryCtxRelease_v2(cu_device d)
{
    BEGIN(0);
    if (!is_device(d) || contexts[d].retained == 0)
        return stub_end(HL_CUDA_ERROR_INVALID_CONTEXT);
    if (--contexts[d].retained > 0)
        return stub_end(HL_CUDA_SUCCESS);
    int last = 1;
    for (int i = 0; i < CONTEXTS; i++)
        last &= contexts[i].retained == 0;
    if (last && contexts[d].sticky != HL_CUDA_SUCCESS)
        drop_everything();
    if (last && (count() > 0 || used > 0)) {
        fprintf(stderr, "cuda stub: %d things and %zu bytes were left behind\n", count(), used);
        abort();
    }
    contexts[d].sticky = HL_CUDA_SUCCESS;
    return stub_end(HL_CUDA_SUCCESS);
}

cu_result cuCtxPushCurrent_v2(struct CUctx_st *c)
{
    BEGIN(0);
    if (c == NULL || c->retained == 0 || depth == CONTEXTS)
        return stub_end(HL_CUDA_ERROR_INVALID_CONTEXT);
    stack[depth++] = c;
    return stub_end(HL_CUDA_SUCCESS);
}

cu_result cuCtxPopCurrent_v2(struct CUctx_st **out)
{
    BEGIN(0);
    if (depth == 0)
        return stub_end(HL_CUDA_ERROR_INVALID_CONTEXT);
    *out = stack[--depth];
    return stub_end(HL_CUDA_SUCCESS);
}

/* ---- memory ---- */

cu_result cuMemGetInfo_v2(size_t *free, size_t *total)
{
    BEGIN(1);
    *total = stub_setting("CUDA_STUB_MEMORY", 256ul << 20);
    *free = *total > used ? *total - used : 0;
    return stub_end(HL_CUDA_SUCCESS);
}

static void drop_memory(struct memory *m)
{
    if (m->live || m->maps > 0)
        return;
    munmap(m->shadow, m->size);
    close(m->fd);
    if (!m->imported)
        used -= m->size;
    *m = (struct memory){0};
}

static cu_result new_memory(size_t size, int fd, int imported, struct memory **out)
{
    for (int i = 0; i < SOME; i++) {
        struct memory *m = &memories[i];
        if (m->live || m->maps > 0)
            continue;
        void *shadow = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        if (shadow == MAP_FAILED)
            return HL_CUDA_ERROR_OUT_OF_MEMORY;
        *m = (struct memory){
            .live = 1, .imported = imported, .fd = fd, .size = size, .shadow = shadow};
        if (!imported)
            used += size;
        *out = m;
        return HL_CUDA_SUCCESS;
    }
    return HL_CUDA_ERROR_OUT_OF_MEMORY;
}

static cu_result create(size_t size, struct memory **out)
{
    size_t total = stub_setting("CUDA_STUB_MEMORY", 256ul << 20);
    if (size > total || used > total - size)
        return HL_CUDA_ERROR_OUT_OF_MEMORY;
    int fd = memfd_create("cuda-stub", MFD_CLOEXEC);
    if (fd < 0 || ftruncate(fd, (off_t)size) != 0)
        return HL_CUDA_ERROR_OUT_OF_MEMORY;
    cu_result r = new_memory(size, fd, 0, out);
    if (r != HL_CUDA_SUCCESS)
        close(fd);
    return r;
}

/* A handle is the entry's number with a mark, so that zero and stray values are not handles. */
static cu_handle handle_of(const struct memory *m)
{
    return 0x5000 + (cu_handle)(m - memories);
}

static struct memory *memory_of(cu_handle h)
{
    if (h < 0x5000 || h >= 0x5000 + SOME || !memories[h - 0x5000].live)
        return NULL;
    return &memories[h - 0x5000];
}

static int proper(const struct cu_alloc_prop *p)
{
    return p->type == HL_CU_MEM_ALLOCATION_TYPE_PINNED &&
           p->location.type == HL_CU_MEM_LOCATION_TYPE_DEVICE && is_device(p->location.id) &&
           (p->handle_types == HL_CU_MEM_HANDLE_TYPE_NONE ||
            (p->handle_types == HL_CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR &&
             !without("export"))) &&
           (!p->gpu_direct || !without("direct"));
}

cu_result cuMemGetAllocationGranularity(size_t *out, const struct cu_alloc_prop *prop,
                                        cu_enum option)
{
    BEGIN(1);
    if (!proper(prop) || option != HL_CU_MEM_ALLOC_GRANULARITY_MINIMUM)
        return stub_end(HL_CUDA_ERROR_INVALID_VALUE);
    *out = UNIT;
    return stub_end(HL_CUDA_SUCCESS);
}

cu_result cuMemCreate(cu_handle *out, size_t size, const struct cu_alloc_prop *prop,
                      unsigned long long flags)
{
    struct memory *m;
    BEGIN(1);
    if (without("vmm"))
        return stub_end(HL_CUDA_ERROR_NOT_SUPPORTED);
    if (!proper(prop) || size == 0 || size % UNIT != 0 || flags != 0)
        return stub_end(HL_CUDA_ERROR_INVALID_VALUE);
    cu_result r = create(size, &m);
    if (r == HL_CUDA_SUCCESS) {
        m->shareable = prop->handle_types == HL_CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
        *out = handle_of(m);
    }
    return stub_end(r);
}

cu_result cuMemRelease(cu_handle h)
{
    BEGIN(1);
    struct memory *m = memory_of(h);
    if (m == NULL)
        return stub_end(HL_CUDA_ERROR_INVALID_VALUE);
    m->live = 0;
    drop_memory(m);
    return stub_end(HL_CUDA_SUCCESS);
}

cu_result cuMemAddressReserve(cu_ptr *out, size_t size, size_t alignment, cu_ptr addr,
                              unsigned long long flags)
{
    BEGIN(1);
    if (without("vmm"))
        return stub_end(HL_CUDA_ERROR_NOT_SUPPORTED);
    if (size == 0 || size % UNIT != 0 || alignment > UNIT || addr != 0 || flags != 0)
        return stub_end(HL_CUDA_ERROR_INVALID_VALUE);
    for (int i = 0; i < SOME; i++) {
        if (reserved[i].size > 0)
            continue;
        void *p =
            mmap(NULL, size + UNIT, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (p == MAP_FAILED)
            return stub_end(HL_CUDA_ERROR_OUT_OF_MEMORY);
        uintptr_t from = (uintptr_t)p, at = (from + UNIT - 1) / UNIT * UNIT;
        if (at > from)
            munmap(p, at - from);
        munmap((void *)(at + size), from + UNIT - at);
        reserved[i] = (struct span){at, size};
        *out = at;
        return stub_end(HL_CUDA_SUCCESS);
    }
    return stub_end(HL_CUDA_ERROR_OUT_OF_MEMORY);
}

static int overlaps_mapping(cu_ptr at, size_t size)
{
    for (int i = 0; i < SOME; i++)
        if (mappings[i].memory != NULL && at < mappings[i].at + mappings[i].size &&
            mappings[i].at < at + size)
            return 1;
    return 0;
}

cu_result cuMemAddressFree(cu_ptr at, size_t size)
{
    BEGIN(1);
    for (int i = 0; i < SOME; i++) {
        if (reserved[i].size != size || reserved[i].at != at)
            continue;
        if (overlaps_mapping(at, size))
            return stub_end(HL_CUDA_ERROR_INVALID_VALUE);
        munmap((void *)(uintptr_t)at, size);
        reserved[i] = (struct span){0};
        return stub_end(HL_CUDA_SUCCESS);
    }
    return stub_end(HL_CUDA_ERROR_INVALID_VALUE);
}

static cu_result add_mapping(cu_ptr at, struct memory *m, cu_enum access)
{
    for (int i = 0; i < SOME; i++) {
        if (mappings[i].memory != NULL)
            continue;
        mappings[i] = (struct mapping){at, m->size, m, access};
        m->maps++;
        return HL_CUDA_SUCCESS;
    }
    return HL_CUDA_ERROR_OUT_OF_MEMORY;
}

cu_result cuMemMap(cu_ptr at, size_t size, size_t offset, cu_handle h, unsigned long long flags)
{
    BEGIN(1);
    struct memory *m = memory_of(h);
    int inside = 0;
    for (int i = 0; i < SOME; i++)
        inside |= reserved[i].size > 0 && at >= reserved[i].at &&
                  at + size <= reserved[i].at + reserved[i].size;
    if (m == NULL || offset != 0 || flags != 0 || size != m->size || at % UNIT != 0 || !inside)
        return stub_end(HL_CUDA_ERROR_INVALID_VALUE);
    if (overlaps_mapping(at, size))
        return stub_end(HL_CUDA_ERROR_ALREADY_MAPPED);
    return stub_end(add_mapping(at, m, 0));
}

static struct mapping *exactly(cu_ptr at, size_t size)
{
    for (int i = 0; i < SOME; i++)
        if (mappings[i].memory != NULL && mappings[i].at == at && mappings[i].size == size)
            return &mappings[i];
    return NULL;
}

/* With CUDA_STUB_NEAR: makes memory visible to the CPU at addresses of the device. */
static int show_near(cu_ptr at, size_t size, int fd, cu_enum access)
{
    int prot = access == HL_CU_MEM_ACCESS_FLAGS_PROT_READWRITE ? PROT_READ | PROT_WRITE : access;
    int flags = fd < 0 ? MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE : MAP_SHARED;
    return stub_setting("CUDA_STUB_NEAR", 0) &&
           mmap((void *)(uintptr_t)at, size, prot, flags | MAP_FIXED, fd, 0) == MAP_FAILED;
}

cu_result cuMemUnmap(cu_ptr at, size_t size)
{
    BEGIN(1);
    struct mapping *p = exactly(at, size);
    if (p == NULL)
        return stub_end(HL_CUDA_ERROR_INVALID_VALUE);
    struct memory *m = p->memory;
    if (show_near(at, size, -1, 0) != 0)
        return stub_end(HL_CUDA_ERROR_UNKNOWN);
    *p = (struct mapping){0};
    m->maps--;
    drop_memory(m);
    return stub_end(HL_CUDA_SUCCESS);
}

cu_result cuMemSetAccess(cu_ptr at, size_t size, const struct cu_access_desc *desc, size_t n)
{
    BEGIN(1);
    struct mapping *p = exactly(at, size);
    if (p == NULL || n != 1 || desc->location.type != HL_CU_MEM_LOCATION_TYPE_DEVICE ||
        !is_device(desc->location.id))
        return stub_end(HL_CUDA_ERROR_INVALID_VALUE);
    if (desc->flags == HL_CU_MEM_ACCESS_FLAGS_PROT_READ && without("readonly"))
        return stub_end(HL_CUDA_ERROR_NOT_SUPPORTED);
    if (show_near(at, size, p->memory->fd, desc->flags) != 0)
        return stub_end(HL_CUDA_ERROR_UNKNOWN);
    p->access = desc->flags;
    return stub_end(HL_CUDA_SUCCESS);
}

cu_result cuMemExportToShareableHandle(void *out, cu_handle h, cu_enum type,
                                       unsigned long long flags)
{
    BEGIN(1);
    struct memory *m = memory_of(h);
    if (m == NULL || !m->shareable || m->imported || flags != 0 ||
        type != HL_CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
        return stub_end(HL_CUDA_ERROR_INVALID_VALUE);
    int fd = dup(m->fd);
    if (fd < 0)
        return stub_end(HL_CUDA_ERROR_UNKNOWN);
    memcpy(out, &fd, sizeof(fd));
    return stub_end(HL_CUDA_SUCCESS);
}

cu_result cuMemImportFromShareableHandle(cu_handle *out, void *os, cu_enum type)
{
    struct memory *m;
    struct stat sb;
    BEGIN(1);
    int own = type == HL_CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR ? dup((int)(intptr_t)os) : -1;
    if (own < 0)
        return stub_end(HL_CUDA_ERROR_INVALID_VALUE);
    cu_result r = HL_CUDA_ERROR_INVALID_VALUE;
    if (fstat(own, &sb) == 0 && S_ISREG(sb.st_mode) && sb.st_size > 0 &&
        (size_t)sb.st_size % UNIT == 0)
        r = new_memory((size_t)sb.st_size, own, 1, &m);
    if (r == HL_CUDA_SUCCESS)
        *out = handle_of(m);
    else
        close(own);
    return stub_end(r);
}

/* Memory without VMM, in units as well. Its address is that of its shadow plus a distance, so that
 * the CPU can't use it; or that of the shadow, for kernels that run on the CPU instead of the
 * device. */
#define FAR (stub_setting("CUDA_STUB_NEAR", 0) ? 0 : (cu_ptr)1 << 62)

cu_result cuMemAlloc_v2(cu_ptr *out, size_t size)
{
    struct memory *m;
    BEGIN(1);
    if (size == 0)
        return stub_end(HL_CUDA_ERROR_INVALID_VALUE);
    cu_result r = create((size + UNIT - 1) / UNIT * UNIT, &m);
    if (r == HL_CUDA_SUCCESS) {
        cu_ptr at = FAR + (uintptr_t)m->shadow;
        r = add_mapping(at, m, HL_CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
        m->live = 0; /* the mapping keeps it */
        drop_memory(m);
        if (r == HL_CUDA_SUCCESS)
            *out = at;
    }
    return stub_end(r);
}

API int cuda_stub_holds_frees; /* as the real driver does while the device is busy */

cu_result cuMemFree_v2(cu_ptr at)
{
    while (__atomic_load_n(&cuda_stub_holds_frees, __ATOMIC_ACQUIRE))
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    BEGIN(1);
    for (int i = 0; i < SOME; i++) {
        struct memory *m = mappings[i].memory;
        if (m == NULL || mappings[i].at != at || at != FAR + (uintptr_t)m->shadow)
            continue;
        mappings[i] = (struct mapping){0};
        m->maps--;
        drop_memory(m);
        return stub_end(HL_CUDA_SUCCESS);
    }
    return stub_end(HL_CUDA_ERROR_INVALID_VALUE);
}

int stub_memfd(cu_ptr at, size_t *size)
{
    for (int i = 0; i < SOME; i++) {
        *size = mappings[i].size;
        if (mappings[i].memory != NULL && mappings[i].at == at && !mappings[i].memory->imported)
            return mappings[i].memory->fd;
    }
    return -1;
}

cu_result stub_map(int fd, size_t size, cu_ptr *out)
{
    struct memory *m;
    cu_result r = new_memory(size, fd, 1, &m);
    if (r != HL_CUDA_SUCCESS)
        return r;
    *out = FAR + (uintptr_t)m->shadow;
    r = add_mapping(*out, m, HL_CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
    m->live = 0;
    drop_memory(m);
    return r;
}

cu_result cuMemHostRegister_v2(void *p, size_t size, unsigned int flags)
{
    struct span *entry = NULL;
    cu_ptr at = (uintptr_t)p;
    BEGIN(1);
    if (p == NULL || size == 0 || flags != HL_CU_MEMHOSTREGISTER_PORTABLE)
        return stub_end(HL_CUDA_ERROR_INVALID_VALUE);
    for (int i = 0; i < SOME; i++) {
        if (pinned[i].size == 0)
            entry = &pinned[i];
        else if (at < pinned[i].at + pinned[i].size && pinned[i].at < at + size)
            return stub_end(HL_CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
    }
    if (entry == NULL)
        return stub_end(HL_CUDA_ERROR_OUT_OF_MEMORY);
    *entry = (struct span){at, size};
    return stub_end(HL_CUDA_SUCCESS);
}

cu_result cuMemHostUnregister(void *p)
{
    BEGIN(1);
    for (int i = 0; i < SOME; i++) {
        if (pinned[i].size > 0 && pinned[i].at == (uintptr_t)p) {
            pinned[i] = (struct span){0};
            return stub_end(HL_CUDA_SUCCESS);
        }
    }
    return stub_end(HL_CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
}

unsigned char *stub_shadow(cu_ptr at, size_t len, cu_enum *access)
{
    for (int i = 0; i < SOME; i++) {
        struct mapping *p = &mappings[i];
        if (p->memory == NULL || at < p->at || at + len > p->at + p->size)
            continue;
        *access = p->access;
        return p->memory->shadow + (at - p->at);
    }
    return NULL;
}
