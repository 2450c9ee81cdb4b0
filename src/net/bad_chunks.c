/* The chunks of a read that have a wrong checksum: the first ones, in order. */
#include "net/net.h"

void hl_net_bad_note(struct hl_net_bad *bad, size_t chunk)
{
    size_t i = bad->count < HL_NET_BAD_MAX ? bad->count : HL_NET_BAD_MAX;
    bad->count++;
    if (i == HL_NET_BAD_MAX) {
        if (bad->chunk[i - 1] < chunk)
            return;
        i--;
    }
    for (; i > 0 && bad->chunk[i - 1] > chunk; i--)
        bad->chunk[i] = bad->chunk[i - 1];
    bad->chunk[i] = (uint32_t)chunk;
}
