/* Headers of the data protocol over TCP, as the server and the client decode them. What decodes
 * must encode to the same bytes, each type has one direction, and no payload is longer than a
 * buffer. */
#include <stdlib.h>
#include <string.h>

#include "base/crc32.h"
#include "net/put_list.h"
#include "net/tcp/wire.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check(int ok)
{
    if (!ok)
        abort();
}

static void header(const uint8_t *head)
{
    struct hl_tcp_msg up, down;
    uint8_t again[HL_TCP_HEAD];
    bool to_server = hl_tcp_decode(HL_TCP_TO_SERVER, head, &up);
    bool to_client = hl_tcp_decode(HL_TCP_TO_CLIENT, head, &down);
    check(!(to_server && to_client));
    if (!to_server && !to_client)
        return;
    const struct hl_tcp_msg *m = to_server ? &up : &down;
    hl_tcp_encode(m, again);
    check(memcmp(again, head, sizeof(again)) == 0);
    check(hl_tcp_version(head) == HL_TCP_VERSION);
    check(m->type == HL_TCP_TYPE_DATA ? m->payload <= HL_CHUNK : m->payload <= HL_WIRE_LIST_MAX);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    uint8_t head[HL_TCP_HEAD] = {0};
    (void)hl_tcp_begins(data, size);
    if (size == 0 || size > sizeof(head))
        return 0;
    memcpy(head, data, size);
    header(head);
    /* The same with the magic and the checksum made right, which a mutation seldom does. */
    memcpy(head, "HLT1\1", 5);
    uint32_t crc = hl_crc32(0, head, HL_TCP_HEAD - 4);
    for (int i = 0; i < 4; i++)
        head[HL_TCP_HEAD - 4 + i] = (uint8_t)(crc >> 8 * i);
    header(head);
    return 0;
}
