#include "net/zmq/library.h"

#include "os/late.h"

struct zmq_calls zmq_calls;

static const char *const names[] = {
#define X(name) #name,
    ZMQ_CALLS(X)
#undef X
};

hl_status hl_zmq_load(void)
{
    static struct hl_late late = {.library = "libzmq.so.5",
                                  .names = names,
                                  .calls = &zmq_calls,
                                  .count = HL_ARRAY_LEN(names),
                                  .lock = PTHREAD_MUTEX_INITIALIZER};
    return hl_late_load(&late);
}
