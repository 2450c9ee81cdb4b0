/* The part of the stub that runs kernels. A module's image is only checked; its functions come from
 * the library CUDA_STUB_KERNELS, kernels compiled for the CPU: NAME(grid, block, argument) and
 * NAME_argument, the size of the one argument. Such kernels need memory that the CPU reaches:
 * CUDA_STUB_NEAR=1. A launch takes CUDA_STUB_MULTIPROCESSORS (8) times CUDA_STUB_BLOCKS (1)
 * CTAs.
 */
#include <dlfcn.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "support/cuda_stub.h"

#define FATBIN 0xba55ed50u

struct CUmod_st {
    void *so;
};

struct CUfunc_st {
    void (*run)(unsigned grid, unsigned block, void *argument);
    size_t argument;
};

static struct CUfunc_st functions[8];

cu_result cuModuleLoadData(struct CUmod_st **out, const void *image)
{
    const char *library = getenv("CUDA_STUB_KERNELS");
    uint32_t magic;
    BEGIN(1);
    memcpy(&magic, image, sizeof(magic));
    if (magic != FATBIN)
        return stub_end(HL_CUDA_ERROR_INVALID_VALUE);
    struct CUmod_st *m = calloc(1, sizeof(*m));
    if (m == NULL || library == NULL || (m->so = dlopen(library, RTLD_NOW | RTLD_LOCAL)) == NULL) {
        fprintf(stderr, "cuda stub: CUDA_STUB_KERNELS: %s\n", library != NULL ? dlerror() : "none");
        free(m);
        return stub_end(HL_CUDA_ERROR_NO_BINARY_FOR_GPU);
    }
    stub_others++;
    *out = m;
    return stub_end(HL_CUDA_SUCCESS);
}

cu_result cuModuleUnload(struct CUmod_st *m)
{
    BEGIN(EVEN_LOST);
    stub_others--;
    free(m); /* the library stays loaded: a thread may still be returning from it */
    return stub_end(HL_CUDA_SUCCESS);
}

cu_result cuModuleGetFunction(struct CUfunc_st **out, struct CUmod_st *m, const char *name)
{
    char size[64];
    BEGIN(1);
    snprintf(size, sizeof(size), "%s_argument", name);
    void *run = dlsym(m->so, name);
    const size_t *argument = dlsym(m->so, size);
    if (run == NULL || argument == NULL)
        return stub_end(HL_CUDA_ERROR_INVALID_VALUE);
    struct CUfunc_st *f = functions;
    while (f->argument != 0 && memcmp(&f->run, &run, sizeof(run)) != 0)
        f++;
    if (f->argument == 0) { /* otherwise another thread may be running it */
        memcpy(&f->run, &run, sizeof(run));
        f->argument = *argument;
    }
    *out = f;
    return stub_end(HL_CUDA_SUCCESS);
}

cu_result cuOccupancyMaxActiveBlocksPerMultiprocessor(int *out, struct CUfunc_st *f, int threads,
                                                      size_t shared)
{
    BEGIN(1);
    (void)f;
    *out = threads > 1024 || shared > 48 << 10 ? 0 : (int)stub_setting("CUDA_STUB_BLOCKS", 1);
    return stub_end(HL_CUDA_SUCCESS);
}

struct launch {
    struct CUfunc_st *f;
    unsigned grid, block;
    unsigned char argument[];
};

static void run_launch(void *arg)
{
    struct launch *l = arg;
    l->f->run(l->grid, l->block, l->argument);
    free(l);
}

cu_result cuLaunchCooperativeKernel(struct CUfunc_st *f, unsigned gx, unsigned gy, unsigned gz,
                                    unsigned bx, unsigned by, unsigned bz, unsigned shared,
                                    struct CUstream_st *s, void **arguments)
{
    BEGIN(1);
    unsigned long room =
        stub_setting("CUDA_STUB_MULTIPROCESSORS", 8) * stub_setting("CUDA_STUB_BLOCKS", 1);
    if (gx == 0 || gy != 1 || gz != 1 || bx == 0 || by != 1 || bz != 1 || shared != 0)
        return stub_end(HL_CUDA_ERROR_INVALID_VALUE);
    if (gx > room)
        return stub_end(HL_CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE);
    struct launch *l = malloc(sizeof(*l) + f->argument);
    if (l == NULL)
        return stub_end(HL_CUDA_ERROR_OUT_OF_MEMORY);
    *l = (struct launch){.f = f, .grid = gx, .block = bx};
    memcpy(l->argument, arguments[0], f->argument);
    cu_result r =
        stub_add_task(s, &(struct stub_task){.what = STUB_CALL, .call = run_launch, .arg = l});
    if (r != HL_CUDA_SUCCESS)
        free(l);
    return stub_end(r);
}

/* ---- host memory that the device reaches ---- */

cu_result cuMemHostAlloc(void **out, size_t size, unsigned int flags)
{
    BEGIN(1);
    if (size == 0 || flags != HL_CU_MEMHOSTALLOC_DEVICEMAP)
        return stub_end(HL_CUDA_ERROR_INVALID_VALUE);
    *out = aligned_alloc(4096, (size + 4095) / 4096 * 4096);
    if (*out == NULL)
        return stub_end(HL_CUDA_ERROR_OUT_OF_MEMORY);
    stub_others++;
    return stub_end(HL_CUDA_SUCCESS);
}

cu_result cuMemFreeHost(void *p)
{
    BEGIN(EVEN_LOST);
    stub_others--;
    free(p);
    return stub_end(HL_CUDA_SUCCESS);
}

cu_result cuMemHostGetDevicePointer_v2(cu_ptr *out, void *p, unsigned int flags)
{
    BEGIN(1);
    if (flags != 0)
        return stub_end(HL_CUDA_ERROR_INVALID_VALUE);
    *out = (uintptr_t)p;
    return stub_end(HL_CUDA_SUCCESS);
}

/* ---- memory of other processes: at its memfd; not this process's own, as on a real device ---- */

struct ipc {
    int pid, fd;
    size_t size;
};

cu_result cuIpcGetMemHandle(struct cu_ipc_handle *out, cu_ptr at)
{
    BEGIN(1);
    struct ipc ipc = {.pid = getpid()};
    ipc.fd = stub_memfd(at, &ipc.size);
    memset(out, 0, sizeof(*out));
    memcpy(out, &ipc, sizeof(ipc));
    return stub_end(ipc.fd >= 0 ? HL_CUDA_SUCCESS : HL_CUDA_ERROR_INVALID_VALUE);
}

cu_result cuIpcOpenMemHandle_v2(cu_ptr *out, struct cu_ipc_handle handle, unsigned int flags)
{
    struct ipc ipc;
    char path[64];
    BEGIN(1);
    memcpy(&ipc, &handle, sizeof(ipc));
    snprintf(path, sizeof(path), "/proc/%d/fd/%d", ipc.pid, ipc.fd);
    int fd = -1;
    if (ipc.pid != getpid() && flags == HL_CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS)
        fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0)
        return stub_end(HL_CUDA_ERROR_INVALID_VALUE);
    cu_result r = stub_map(fd, ipc.size, out);
    if (r != HL_CUDA_SUCCESS)
        close(fd);
    return stub_end(r);
}

cu_result cuIpcCloseMemHandle(cu_ptr at)
{
    return cuMemFree_v2(at);
}

cu_result stub_alias(cu_ptr at, cu_ptr *out)
{
    size_t size;
    BEGIN(1);
    int fd = stub_memfd(at, &size);
    fd = fd >= 0 ? dup(fd) : -1;
    return stub_end(fd >= 0 ? stub_map(fd, size, out) : HL_CUDA_ERROR_INVALID_VALUE);
}
