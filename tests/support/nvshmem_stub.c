/* A stand-in for NVSHMEM's host library over the stand-in for the driver, between the processes of
 * one node. A process that breaks a rule is aborted. Nothing works before initialisation, which all
 * PEs do once per process, with attributes set up by their initializers; malloc, free and finalize
 * are collective and wait without a deadline; all PEs allocate the same size; everything allocated
 * is freed before the end.
 *
 * Environment: NVSHMEM_STUB_FAR: a PE whose memory the others cannot reach; NVSHMEM_STUB_FULL: out
 * of memory; NVSHMEM_STUB_ABSENT: a PE that fails before it meets the others. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "support/cuda_stub.h"
#include "support/nvshmem/nvshmemx.h"

#define VISIBLE __attribute__((visibility("default")))
#define PES     8

/* Shared by the processes. */
struct shared {
    int arrived, round;
    size_t size[PES];
    struct cu_ipc_handle handle[PES];
};

static struct {
    int status, ended, me, n;
    struct shared *s;
    cu_ptr at[PES]; /* addresses of the one allocated piece */
    size_t size;
} w;

static void never(int wrong, const char *what)
{
    if (!wrong)
        return;
    fprintf(stderr, "nvshmem stub: %s\n", what);
    abort();
}

static int setting(const char *name)
{
    return getenv(name) != NULL ? atoi(getenv(name)) : -1;
}

static void meet(void)
{
    int round = __atomic_load_n(&w.s->round, __ATOMIC_ACQUIRE);
    if (__atomic_add_fetch(&w.s->arrived, 1, __ATOMIC_ACQ_REL) == w.n) {
        __atomic_store_n(&w.s->arrived, 0, __ATOMIC_RELAXED);
        __atomic_store_n(&w.s->round, round + 1, __ATOMIC_RELEASE);
        return;
    }
    while (__atomic_load_n(&w.s->round, __ATOMIC_ACQUIRE) == round)
        nanosleep(&(struct timespec){.tv_nsec = 100000}, NULL);
}

VISIBLE int nvshmemx_init_status(void)
{
    return w.status;
}

/* The id names the shared memory. */
VISIBLE int nvshmemx_get_uniqueid(nvshmemx_uniqueid_t *id)
{
    never(id->version != NVSHMEM_STUB_VERSION(*id), "an id without its initializer");
    int fd = memfd_create("nvshmem-stub", MFD_CLOEXEC);
    if (fd < 0 || ftruncate(fd, sizeof(struct shared)) != 0)
        return 1;
    snprintf(id->internal, sizeof(id->internal), "/proc/%d/fd/%d", (int)getpid(), fd);
    return 0;
}

VISIBLE int nvshmemx_set_attr_uniqueid_args(int rank, int ranks, const nvshmemx_uniqueid_t *id,
                                            nvshmemx_init_attr_t *attr)
{
    attr->id = id;
    attr->myrank = rank;
    attr->nranks = ranks;
    return 0;
}

VISIBLE int nvshmemx_hostlib_init_attr(unsigned int flags, nvshmemx_init_attr_t *attr)
{
    never(w.status != 0 || w.ended, "it is initialised a second time");
    never(flags != NVSHMEMX_INIT_WITH_UNIQUEID || attr->version != NVSHMEM_STUB_VERSION(*attr) ||
              attr->id->version != NVSHMEM_STUB_VERSION(*attr->id),
          "attributes without their initializer");
    if (setting("NVSHMEM_STUB_ABSENT") == attr->myrank)
        return 7;
    int fd = open(attr->id->internal, O_RDWR | O_CLOEXEC);
    void *p = mmap(NULL, sizeof(struct shared), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    if (p == MAP_FAILED || attr->nranks > PES)
        return 1;
    w.s = p;
    w.me = attr->myrank;
    w.n = attr->nranks;
    meet();
    w.status = NVSHMEM_STATUS_IS_INITIALIZED;
    return 0;
}

static void map_others(void)
{
    for (int k = 0; k < w.n; k++) {
        never(w.s->size[k] != w.size, "PEs allocate different sizes");
        if (k != w.me)
            never(cuIpcOpenMemHandle_v2(&w.at[k], w.s->handle[k],
                                        HL_CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS) != HL_CUDA_SUCCESS,
                  "a PE's memory can't be mapped");
    }
}

VISIBLE void *nvshmem_malloc(size_t size)
{
    never(w.status == 0, "malloc before the initialisation");
    never(w.size != 0, "a second piece is allocated");
    if (size == 0)
        return NULL;
    if (setting("NVSHMEM_STUB_FULL") >= 0) {
        meet();
        return NULL;
    }
    never(cuMemAlloc_v2(&w.at[w.me], size) != HL_CUDA_SUCCESS ||
              cuIpcGetMemHandle(&w.s->handle[w.me], w.at[w.me]) != HL_CUDA_SUCCESS,
          "no memory for the heap");
    w.s->size[w.me] = w.size = size;
    meet();
    map_others();
    meet();
    return (void *)(uintptr_t)w.at[w.me];
}

VISIBLE void *nvshmem_ptr(const void *p, int pe)
{
    never(w.status == 0, "ptr before the initialisation");
    if (w.size == 0 || (uintptr_t)p - w.at[w.me] >= w.size || pe < 0 || pe >= w.n)
        return NULL;
    if (pe != w.me && setting("NVSHMEM_STUB_FAR") == pe)
        return NULL;
    return (void *)(uintptr_t)(w.at[pe] + ((uintptr_t)p - w.at[w.me]));
}

VISIBLE void nvshmem_free(void *p)
{
    if (p == NULL)
        return;
    never(w.status == 0 || w.size == 0 || (uintptr_t)p != w.at[w.me], "a stray pointer is freed");
    meet();
    for (int k = 0; k < w.n; k++)
        if (k != w.me)
            (void)cuIpcCloseMemHandle(w.at[k]);
    meet();
    (void)cuMemFree_v2(w.at[w.me]);
    w.size = 0;
}

VISIBLE void nvshmemx_hostlib_finalize(void)
{
    never(w.status == 0, "an end before the initialisation");
    never(w.size != 0, "an end before all is freed");
    meet();
    w.status = 0;
    w.ended = 1;
    (void)munmap(w.s, sizeof(*w.s));
}
