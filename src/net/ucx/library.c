#include "net/ucx/library.h"

#include "os/late.h"

struct ucx_calls ucx_calls;

/* libucs, which has the ucs_ among them, comes with libucp. */
static struct hl_late late = HL_LATE("libucp.so.0", UCX_CALLS, ucx_calls);

hl_status hl_ucx_load(void)
{
    return hl_late_load(&late);
}
