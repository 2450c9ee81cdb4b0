/* The part of NVSHMEM that libhelios_nvshmem uses, as NVIDIA documents it, for a stand-in
 * (tests/support/nvshmem_stub.c): names and signatures are NVSHMEM's. */
#ifndef HL_TESTS_NVSHMEM_H
#define HL_TESTS_NVSHMEM_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

void *nvshmem_malloc(size_t size);
void nvshmem_free(void *ptr);
void *nvshmem_ptr(const void *ptr, int pe);

#ifdef __cplusplus
}
#endif

#endif
