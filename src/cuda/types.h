/* cuda/types.h - the types and constants of the CUDA driver API that Helios uses.
 *
 * They are declared here because Helios is built without CUDA. If cuda.h is installed,
 * tests/unit/cuda/test_driver.c compares every line with it.
 *
 * Owns:    nothing.
 * Threads: any.
 * Errors:  none.
 * Units:   bytes.
 * Limits:  Linux, 64 bits.
 */
#ifndef HL_CUDA_TYPES_H
#define HL_CUDA_TYPES_H

#include <stddef.h>
#include <stdint.h>

struct CUctx_st;
struct CUstream_st;
struct CUevent_st;
struct CUmod_st;
struct CUfunc_st;

typedef unsigned int cu_result;       /* CUresult */
typedef unsigned int cu_enum;         /* any other enumeration */
typedef int cu_device;                /* CUdevice */
typedef unsigned long long cu_ptr;    /* CUdeviceptr */
typedef unsigned long long cu_handle; /* CUmemGenericAllocationHandle */
typedef void (*cu_host_fn)(void *);   /* CUhostFn */

/* clang-format off */
#define CU_NUMBERS(X)                              \
    X(CUDA_SUCCESS,                             0) \
    X(CUDA_ERROR_INVALID_VALUE,                 1) \
    X(CUDA_ERROR_OUT_OF_MEMORY,                 2) \
    X(CUDA_ERROR_NOT_INITIALIZED,               3) \
    X(CUDA_ERROR_NO_DEVICE,                   100) \
    X(CUDA_ERROR_INVALID_DEVICE,              101) \
    X(CUDA_ERROR_INVALID_CONTEXT,             201) \
    X(CUDA_ERROR_ALREADY_MAPPED,              208) \
    X(CUDA_ERROR_NO_BINARY_FOR_GPU,           209) \
    X(CUDA_ERROR_NOT_MAPPED,                  211) \
    X(CUDA_ERROR_INVALID_HANDLE,              400) \
    X(CUDA_ERROR_NOT_READY,                   600) \
    X(CUDA_ERROR_ILLEGAL_ADDRESS,             700) \
    X(CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED, 712) \
    X(CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED,  713) \
    X(CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE, 720) \
    X(CUDA_ERROR_NOT_PERMITTED,               800) \
    X(CUDA_ERROR_NOT_SUPPORTED,               801) \
    X(CUDA_ERROR_UNKNOWN,                     999) \
    X(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT,                        16) \
    X(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR,                    75) \
    X(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR,                    76) \
    X(CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH,                          95) \
    X(CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED,        102) \
    X(CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED, 103) \
    X(CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED,    110) \
    X(CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_SUPPORTED,                  116) \
    X(CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS,              122) \
    X(CU_MEM_ALLOCATION_TYPE_PINNED,            1) \
    X(CU_MEM_LOCATION_TYPE_DEVICE,              1) \
    X(CU_MEM_HANDLE_TYPE_NONE,                  0) \
    X(CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 1) \
    X(CU_MEM_ALLOC_GRANULARITY_MINIMUM,         0) \
    X(CU_MEM_ACCESS_FLAGS_PROT_READ,            1) \
    X(CU_MEM_ACCESS_FLAGS_PROT_READWRITE,       3) \
    X(CU_STREAM_NON_BLOCKING,                   1) \
    X(CU_EVENT_DISABLE_TIMING,                  2) \
    X(CU_MEMHOSTREGISTER_PORTABLE,              1) \
    X(CU_MEMHOSTALLOC_DEVICEMAP,                2) \
    X(CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS,       1) \
    X(CU_STREAM_WAIT_VALUE_GEQ,                 0) \
    X(CU_STREAM_WRITE_VALUE_DEFAULT,            0)

/* clang-format on */

enum {

#define X(name, value) HL_##name = (value),
    CU_NUMBERS(X)
#undef X
};

struct cu_ipc_handle { /* CUipcMemHandle */
    char reserved[64];
};

struct cu_location { /* CUmemLocation */
    cu_enum type;
    int id;
};

struct cu_alloc_prop { /* CUmemAllocationProp */
    cu_enum type;
    cu_enum handle_types;
    struct cu_location location;
    void *win32;
    unsigned char compression;
    unsigned char gpu_direct;
    unsigned short usage;
    unsigned char reserved[4];
};

struct cu_access_desc { /* CUmemAccessDesc */
    struct cu_location location;
    cu_enum flags;
};

#endif
