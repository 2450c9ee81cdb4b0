/* The tests of test_bodies.c over the code for CPUs whose vectors are not known. The linker takes
 * these functions, not the library's. */
#define HL_PORTABLE
#include "maco/gemm_few.c"
#include "maco/gemm_tile.c"
#include "maco/vec.c"

#include "unit/maco/test_bodies.c"
