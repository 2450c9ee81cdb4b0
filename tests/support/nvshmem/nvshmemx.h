/* See nvshmem.h. */
#ifndef HL_TESTS_NVSHMEMX_H
#define HL_TESTS_NVSHMEMX_H

#include "nvshmem.h"

#define NVSHMEM_STUB_VERSION(type) ((1 << 16) + (int)sizeof(type))

typedef struct {
    int version;
    char internal[124];
} nvshmemx_uniqueid_t;

typedef struct {
    int version;
    const nvshmemx_uniqueid_t *id;
    int myrank, nranks;
} nvshmemx_init_attr_t;

#define NVSHMEMX_UNIQUEID_INITIALIZER                                                              \
    {                                                                                              \
        NVSHMEM_STUB_VERSION(nvshmemx_uniqueid_t),                                                 \
        {                                                                                          \
            0                                                                                      \
        }                                                                                          \
    }
#define NVSHMEMX_INIT_ATTR_INITIALIZER                                                             \
    {                                                                                              \
        NVSHMEM_STUB_VERSION(nvshmemx_init_attr_t), NULL, 0, 0                                     \
    }

enum flags { NVSHMEMX_INIT_WITH_UNIQUEID = 1 << 3 };

typedef enum {
    NVSHMEM_STATUS_NOT_INITIALIZED = 0,
    NVSHMEM_STATUS_IS_BOOTSTRAPPED,
    NVSHMEM_STATUS_IS_INITIALIZED,
} nvshmemx_init_status_t;

#ifdef __cplusplus
extern "C" {
#endif

int nvshmemx_init_status(void);
int nvshmemx_get_uniqueid(nvshmemx_uniqueid_t *id);
int nvshmemx_set_attr_uniqueid_args(int rank, int ranks, const nvshmemx_uniqueid_t *id,
                                    nvshmemx_init_attr_t *attr);
int nvshmemx_hostlib_init_attr(unsigned int flags, nvshmemx_init_attr_t *attr);
void nvshmemx_hostlib_finalize(void);

#ifdef __cplusplus
}
#endif

#endif
