/* The tests of test_bodies.c over the code for CPUs whose vectors are not known. The linker takes
 * these functions, not the library's. */
#define HL_PORTABLE
#include "maco/kernels/gemm_few.c"
#include "maco/kernels/gemm_tile.c"
#include "maco/kernels/vec.c"

#include "unit/maco/kernels/test_bodies.c"
