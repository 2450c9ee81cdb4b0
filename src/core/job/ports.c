#include "core/job/ports.h"

#include <string.h>

#include "base/crc32.h"
#include "core/job/jobnodes.h"

uint16_t hl_ports_candidate(const char *controller, uint64_t job, int attempt, uint64_t skip)
{
    uint32_t first = hl_crc32(0, controller, strlen(controller)) % HL_PORTS_COUNT;
    return (uint16_t)(HL_PORTS_FIRST +
                      (first + job * 7 + (uint64_t)attempt + skip) % HL_PORTS_COUNT);
}

enum hl_ports_next hl_ports_after(hl_status answer)
{
    if (answer == HL_OK)
        return HL_PORTS_SETTLED;
    if (answer == HL_EBUSY)
        return HL_PORTS_ONWARD;
    return hl_node_call_retryable(answer) ? HL_PORTS_AGAIN : HL_PORTS_BLIND;
}
