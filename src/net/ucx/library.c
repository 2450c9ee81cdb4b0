#include "net/ucx/library.h"

#include "os/late.h"

struct ucx_calls ucx_calls;

static const char *const names[] = {
#define X(name) #name,
    UCX_CALLS(X)
#undef X
};

/* libucs, which has the ucs_ among them, comes with libucp. */
hl_status hl_ucx_load(void)
{
    static struct hl_late late = {.library = "libucp.so.0",
                                  .names = names,
                                  .calls = &ucx_calls,
                                  .count = HL_ARRAY_LEN(names),
                                  .lock = PTHREAD_MUTEX_INITIALIZER};
    return hl_late_load(&late);
}
