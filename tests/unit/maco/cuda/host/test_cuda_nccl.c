/* Helios' own declarations of NCCL, compared by the compiler with nccl.h where that is installed;
 * and MACO's numbers with NCCL's. */
#include "support/test.h"

#include <string.h>

#include "helios/maco.h"

#if __has_include(<nccl.h>)
#include <nccl.h>

#define HEADER 1
#endif

#include "maco/cuda/host/nccl.h"

#ifdef HEADER
#define X(name, value) _Static_assert((int)(name) == (value), #name);
NCCL_NUMBERS(X)
#if NCCL_VERSION_CODE >= 22800
NCCL_WINDOW_NUMBERS(X)
_Static_assert(__builtin_types_compatible_p(ncclWindow_t, struct ncclWindow_vidmem *), "windows");
#endif
#undef X

_Static_assert(sizeof(nccl_result) == sizeof(ncclResult_t), "nccl_result");
_Static_assert(sizeof(nccl_type) == sizeof(ncclDataType_t), "nccl_type");
_Static_assert(sizeof(nccl_op) == sizeof(ncclRedOp_t), "nccl_op");
_Static_assert(__builtin_types_compatible_p(ncclComm_t, struct ncclComm *), "ncclComm_t");
#endif

TEST(declarations_agree_with_nccl_h)
{
#ifndef HEADER
    TEST_SKIP("no nccl.h on this machine");
#endif
}

TEST(numbers_are_those_of_nccl)
{
    assert_int_equal(hl_nccl_type(MACO_F32), HL_ncclFloat32);
    assert_int_equal(hl_nccl_type(MACO_BF16), HL_ncclBfloat16);
    assert_int_equal(hl_nccl_type(MACO_U8), HL_ncclUint8);
    assert_int_equal(hl_nccl_op(MACO_AVG), HL_ncclAvg);
    assert_int_equal(hl_nccl_op(MACO_MIN), HL_ncclMin);
    assert_int_equal(hl_nccl_op(MACO_MAX), HL_ncclMax);
    assert_int_equal(hl_nccl_op(MACO_PROD), HL_ncclProd);
}

TEST(a_missing_library_is_named)
{
    struct hl_nccl n;
    assert_int_equal(hl_nccl_load("libno-such-nccl.so.2", &n), HL_EUNAVAIL);
    assert_non_null(strstr(hl_error_text(), "libno-such-nccl.so.2"));
    assert_int_equal(hl_nccl_load("libc.so.6", &n), HL_EUNAVAIL);
    assert_non_null(strstr(hl_error_text(), "libc.so.6 has no ncclGetErrorString"));
}
