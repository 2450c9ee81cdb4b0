/* Helios' own declarations of the CUDA driver, compared with cuda.h where that is installed: the
 * compiler compares numbers, layouts and signatures, so a wrong one does not build. */
#include "support/test.h"

#include <stdio.h>
#include <string.h>

#include "cuda/types.h"

#if __has_include(<cuda.h>)
#include <cuda.h>

#define HEADER 1

#define X(name, value) _Static_assert((unsigned)(name) == (value), #name);
CU_NUMBERS(X)
#undef X

#define SAME(ours, field, theirs, theirs_field)                                                    \
    _Static_assert(offsetof(struct ours, field) == offsetof(theirs, theirs_field) &&               \
                       sizeof(((struct ours *)0)->field) == sizeof(((theirs *)0)->theirs_field),   \
                   #ours "." #field)

_Static_assert(sizeof(struct cu_location) == sizeof(CUmemLocation), "cu_location");
SAME(cu_location, type, CUmemLocation, type);
SAME(cu_location, id, CUmemLocation, id);
_Static_assert(sizeof(struct cu_alloc_prop) == sizeof(CUmemAllocationProp), "cu_alloc_prop");
SAME(cu_alloc_prop, type, CUmemAllocationProp, type);
SAME(cu_alloc_prop, handle_types, CUmemAllocationProp, requestedHandleTypes);
SAME(cu_alloc_prop, location, CUmemAllocationProp, location);
SAME(cu_alloc_prop, win32, CUmemAllocationProp, win32HandleMetaData);
SAME(cu_alloc_prop, gpu_direct, CUmemAllocationProp, allocFlags.gpuDirectRDMACapable);
SAME(cu_alloc_prop, usage, CUmemAllocationProp, allocFlags.usage);
_Static_assert(sizeof(struct cu_access_desc) == sizeof(CUmemAccessDesc), "cu_access_desc");
SAME(cu_access_desc, location, CUmemAccessDesc, location);
SAME(cu_access_desc, flags, CUmemAccessDesc, flags);

/* From here on the table's structures are the header's own. */
_Static_assert(sizeof(struct cu_ipc_handle) == sizeof(CUipcMemHandle), "cu_ipc_handle");
#define cu_ipc_handle  CUipcMemHandle_st
#define cu_alloc_prop  CUmemAllocationProp_st
#define cu_access_desc CUmemAccessDesc_st
#include "cuda/driver.h"

#define X(name, args)                                                                              \
    _Static_assert(__builtin_types_compatible_p(__typeof__(&name), cu_result(*) args), #name);
CUDA_CALLS(X)
CUDA_VMM_CALLS(X)
CUDA_RUN_CALLS(X)
#if CUDA_VERSION >= 12050
CUDA_CONTEXT_CALLS(X)
#endif
#undef X
#else
#include "cuda/driver.h"

#define HEADER 0
#endif

TEST(declarations_agree_with_cuda_h)
{
    if (!HEADER) {
        TEST_SKIP("no cuda.h on this machine");
    }
}

TEST(a_missing_driver_is_named)
{
    struct cuda_driver cu = {.vmm = 7};
    assert_int_equal(cuda_driver_load("libno-such-driver.so.1", &cu), HL_EUNAVAIL);
    assert_non_null(strstr(hl_error_text(), "libno-such-driver.so.1"));
    assert_int_equal(cu.vmm, 7);
}

TEST(a_library_that_is_no_driver_is_told_by_what_it_lacks)
{
    struct cuda_driver cu;
    assert_int_equal(cuda_driver_load("libc.so.6", &cu), HL_EUNAVAIL);
    assert_non_null(strstr(hl_error_text(), "libc.so.6 has no cuInit"));
}
