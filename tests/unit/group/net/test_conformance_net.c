/* Groups over the network. */
#define OVER_NET 1
#include "unit/group/test_conformance.c"
