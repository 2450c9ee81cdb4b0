#include "net/zmq/library.h"

#include "os/late.h"

struct zmq_calls zmq_calls;

static struct hl_late late = HL_LATE("libzmq.so.5", ZMQ_CALLS, zmq_calls);

hl_status hl_zmq_load(void)
{
    return hl_late_load(&late);
}
