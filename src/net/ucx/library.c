#include "net/ucx/library.h"

#include "os/late.h"

struct ucx_calls ucx_calls;

/* libucp brings libucs, which has the ucs_ functions among these. */
static struct hl_late late = HL_LATE("libucp.so.0", UCX_CALLS, ucx_calls);

hl_status hl_ucx_load(void)
{
    return hl_late_load(&late);
}
