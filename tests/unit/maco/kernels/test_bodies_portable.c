/* The tests of test_bodies.c on the code for CPUs with unknown vectors. The linker takes these
 * functions instead of the library's. */
#define HL_PORTABLE
#include "maco/kernels/gemm_few.c"
#include "maco/kernels/gemm_tile.c"
#include "maco/kernels/vec.c"

#include "unit/maco/kernels/test_bodies.c"
