/* Replaces NCCL's device API when the kernels are compiled for the CPU: windows of
 * tests/support/nccl_stub_window.c, in their own layout. */
#ifndef HL_TESTS_NCCL_DEVICE_H
#define HL_TESTS_NCCL_DEVICE_H

#include <stddef.h>
#include <stdint.h>

#define NCCL_VERSION_CODE 22809
#define NCCL_STUB_RANKS   8

struct ncclWindow_vidmem {
    uint64_t
        at[NCCL_STUB_RANKS]; /* each rank's memory as this rank reaches it; 0 = not reachable */
    void *memory;            /* this rank's own memory */
    struct ncclWindow_vidmem *next;
};

typedef struct ncclWindow_vidmem *ncclWindow_t;

static inline void *ncclGetPeerPointer(ncclWindow_t w, size_t offset, int peer)
{
    return w->at[peer] != 0 ? (void *)(uintptr_t)(w->at[peer] + offset) : NULL;
}

#endif
