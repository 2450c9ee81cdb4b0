/* Which driver the tests of CUDA devices load: the stub of this build, or the real one that
 * HELIOS_TEST_CUDA names, as libcuda.so.1. With the real one, tests of what only the stub can do (a
 * failing call, a slow copy) are skipped. */
#ifndef TESTS_SUPPORT_CUDA_LIBRARY_H
#define TESTS_SUPPORT_CUDA_LIBRARY_H

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

static inline bool cuda_is_real(void)
{
    return getenv("HELIOS_TEST_CUDA") != NULL;
}

static inline void cuda_library(char *out, size_t size)
{
    const char *build = getenv("HELIOS_BUILD"), *real = getenv("HELIOS_TEST_CUDA");
    if (real != NULL)
        snprintf(out, size, "%s", real);
    else
        snprintf(out, size, "%s/tests/libcuda_stub.so", build != NULL ? build : "build");
}

#endif
