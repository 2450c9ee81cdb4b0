#include "os/poll.h"

#include <errno.h>

#include "base/clock.h"

int hl_poll_until(int fd, short events, uint64_t deadline_ns)
{
    struct pollfd p = {.fd = fd, .events = events};
    for (;;) {
        uint64_t now = hl_now_ns();
        uint64_t ms = now < deadline_ns ? (deadline_ns - now) / HL_NS_PER_MS + 1 : 0;
        int ready = poll(&p, 1, ms > INT32_MAX ? INT32_MAX : (int)ms);
        if (ready > 0 || (ready < 0 && errno != EINTR))
            return ready;
        if (ready == 0 && hl_now_ns() >= deadline_ns)
            return 0;
    }
}
