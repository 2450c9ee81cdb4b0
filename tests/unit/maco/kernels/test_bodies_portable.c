/* The tests of test_bodies.c on the code for CPUs with unknown vectors: this program has the
 * kernels compiled with HL_PORTABLE (cmake/helios.cmake). */
#include "unit/maco/kernels/test_bodies.c"
