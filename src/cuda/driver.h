/* cuda/driver.h - the CUDA driver library, loaded on demand.
 *
 * Owns:    each loaded library stays loaded until the process ends, as drivers must.
 * Threads: any.
 * Errors:  HL_EUNAVAIL (no such library, or it lacks functions that Helios needs);
 *          cuda_fail: HL_ENOSPC, HL_EUNSUPPORTED, HL_EPERM, HL_EEXIST, else HL_EIO, with the
 *          driver's name and text of the error.
 * Units:   bytes.
 * Limits:  none.
 */
#ifndef HL_CUDA_DRIVER_H
#define HL_CUDA_DRIVER_H

#include "base/status.h"
#include "cuda/types.h"

#define CUDA_DRIVER_NAME "libcuda.so.1"

/* clang-format off */
/* X(name in the library, arguments) */
#define CUDA_CALLS(X)                                                                              \
    X(cuInit, (unsigned int))                                                                      \
    X(cuGetErrorName, (cu_result, const char **))                                                  \
    X(cuGetErrorString, (cu_result, const char **))                                                \
    X(cuDeviceGet, (cu_device *, int))                                                             \
    X(cuDeviceGetByPCIBusId, (cu_device *, const char *))                                          \
    X(cuDeviceGetPCIBusId, (char *, int, cu_device))                                               \
    X(cuDeviceGetName, (char *, int, cu_device))                                                   \
    X(cuDeviceGetAttribute, (int *, cu_enum, cu_device))                                           \
    X(cuDevicePrimaryCtxRetain, (struct CUctx_st **, cu_device))                                   \
    X(cuDevicePrimaryCtxRelease_v2, (cu_device))                                                   \
    X(cuCtxPushCurrent_v2, (struct CUctx_st *))                                                    \
    X(cuCtxPopCurrent_v2, (struct CUctx_st **))                                                    \
    X(cuCtxSynchronize, (void))                                                                    \
    X(cuMemGetInfo_v2, (size_t *, size_t *))                                                       \
    X(cuMemAlloc_v2, (cu_ptr *, size_t))                                                           \
    X(cuMemFree_v2, (cu_ptr))                                                                      \
    X(cuMemHostRegister_v2, (void *, size_t, unsigned int))                                        \
    X(cuMemHostUnregister, (void *))                                                               \
    X(cuMemcpyHtoDAsync_v2, (cu_ptr, const void *, size_t, struct CUstream_st *))                  \
    X(cuMemcpyDtoHAsync_v2, (void *, cu_ptr, size_t, struct CUstream_st *))                        \
    X(cuMemcpyDtoDAsync_v2, (cu_ptr, cu_ptr, size_t, struct CUstream_st *))                        \
    X(cuStreamCreate, (struct CUstream_st **, unsigned int))                                       \
    X(cuStreamDestroy_v2, (struct CUstream_st *))                                                  \
    X(cuStreamQuery, (struct CUstream_st *))                                                       \
    X(cuEventCreate, (struct CUevent_st **, unsigned int))                                         \
    X(cuEventRecord, (struct CUevent_st *, struct CUstream_st *))                                  \
    X(cuEventQuery, (struct CUevent_st *))                                                         \
    X(cuEventDestroy_v2, (struct CUevent_st *))

/* Since CUDA 10.2; a driver without them has no VMM. */
#define CUDA_VMM_CALLS(X)                                                                          \
    X(cuMemGetAllocationGranularity, (size_t *, const struct cu_alloc_prop *, cu_enum))            \
    X(cuMemAddressReserve, (cu_ptr *, size_t, size_t, cu_ptr, unsigned long long))                 \
    X(cuMemAddressFree, (cu_ptr, size_t))                                                          \
    X(cuMemCreate, (cu_handle *, size_t, const struct cu_alloc_prop *, unsigned long long))        \
    X(cuMemRelease, (cu_handle))                                                                   \
    X(cuMemMap, (cu_ptr, size_t, size_t, cu_handle, unsigned long long))                           \
    X(cuMemUnmap, (cu_ptr, size_t))                                                                \
    X(cuMemSetAccess, (cu_ptr, size_t, const struct cu_access_desc *, size_t))                     \
    X(cuMemExportToShareableHandle, (void *, cu_handle, cu_enum, unsigned long long))              \
    X(cuMemImportFromShareableHandle, (cu_handle *, void *, cu_enum))

/* Functions to run kernels, and for streams that wait for words of memory; since CUDA 11.7. */
#define CUDA_RUN_CALLS(X)                                                                          \
    X(cuModuleLoadData, (struct CUmod_st **, const void *))                                        \
    X(cuModuleUnload, (struct CUmod_st *))                                                         \
    X(cuModuleGetFunction, (struct CUfunc_st **, struct CUmod_st *, const char *))                 \
    X(cuOccupancyMaxActiveBlocksPerMultiprocessor, (int *, struct CUfunc_st *, int, size_t))       \
    X(cuLaunchCooperativeKernel,                                                                   \
      (struct CUfunc_st *, unsigned int, unsigned int, unsigned int, unsigned int, unsigned int,   \
       unsigned int, unsigned int, struct CUstream_st *, void **))                                 \
    X(cuLaunchHostFunc, (struct CUstream_st *, cu_host_fn, void *))                                \
    X(cuMemcpyAsync, (cu_ptr, cu_ptr, size_t, struct CUstream_st *))                               \
    X(cuIpcGetMemHandle, (struct cu_ipc_handle *, cu_ptr))                                         \
    X(cuIpcOpenMemHandle_v2, (cu_ptr *, struct cu_ipc_handle, unsigned int))                       \
    X(cuIpcCloseMemHandle, (cu_ptr))                                                               \
    X(cuMemHostAlloc, (void **, size_t, unsigned int))                                             \
    X(cuMemFreeHost, (void *))                                                                     \
    X(cuMemHostGetDevicePointer_v2, (cu_ptr *, void *, unsigned int))                              \
    X(cuStreamWaitEvent, (struct CUstream_st *, struct CUevent_st *, unsigned int))                \
    X(cuStreamWaitValue64_v2, (struct CUstream_st *, cu_ptr, uint64_t, unsigned int))              \
    X(cuStreamWriteValue64_v2, (struct CUstream_st *, cu_ptr, uint64_t, unsigned int))

/* Records an event for everything that was begun in a context; since CUDA 12.5. */
#define CUDA_CONTEXT_CALLS(X) X(cuCtxRecordEvent, (struct CUctx_st *, struct CUevent_st *))

/* clang-format on */

struct cuda_driver {

#define X(name, args) cu_result(*name) args;
    CUDA_CALLS(X)
    CUDA_VMM_CALLS(X)
    CUDA_RUN_CALLS(X)
    CUDA_CONTEXT_CALLS(X)
#undef X
    int vmm;     /* all of CUDA_VMM_CALLS exist */
    int run;     /* all of CUDA_RUN_CALLS exist */
    int context; /* all of CUDA_CONTEXT_CALLS exist */
};

/* Loads and initialises the driver. library: NULL = CUDA_DRIVER_NAME. */
hl_status cuda_driver_load(const char *library, struct cuda_driver *out) HL_CHECK;
/* Calls hl_fail with the driver's text for `r`; call: the function's name. */
hl_status cuda_fail(const struct cuda_driver *cu, const char *call, cu_result r);

#define CUDA_TRY(cu, call, args)                                                                   \
    do {                                                                                           \
        cu_result cuda_try_ = (cu)->call args;                                                     \
        if (cuda_try_ != HL_CUDA_SUCCESS)                                                          \
            return cuda_fail((cu), #call, cuda_try_);                                              \
    } while (0)

#endif
