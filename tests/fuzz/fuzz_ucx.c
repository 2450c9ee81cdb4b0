/* Control messages, tags and lists of the UCX protocol, as the server and the client decode them.
 * What decodes must encode to what it was, and no list may reach beyond its bytes. */
#include <stdlib.h>
#include <string.h>

#include "base/crc32.h"
#include "net/ucx/wire.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check(int ok)
{
    if (!ok)
        abort();
}

/* Exactly as long as the input, so that the sanitizer sees a byte beyond it. */
static uint8_t *copy_of(const uint8_t *data, size_t size)
{
    uint8_t *copy = malloc(size + (size == 0));
    check(copy != NULL);
    if (size > 0)
        memcpy(copy, data, size);
    return copy;
}

static void headers(const uint8_t *data, size_t size)
{
    size_t header_len = size < sizeof(struct hl_wire) ? size : sizeof(struct hl_wire);
    uint8_t *header = copy_of(data, header_len);
    struct hl_wire up, down;
    size_t payload = size - header_len;
    int to_server = hl_wire_decode(HL_WIRE_TO_SERVER, header, header_len, payload, &up);
    int to_client = hl_wire_decode(HL_WIRE_TO_CLIENT, header, header_len, payload, &down);
    check(!(to_server && to_client)); /* each type has one direction */
    if (to_server)
        check(payload == 0 && memcmp(&up, header, sizeof(up)) == 0);
    if (to_client)
        check(payload <= HL_WIRE_LIST_MAX || down.type == HL_WIRE_DATA);
    free(header);
}

static void tags(const uint8_t *data, size_t size)
{
    uint64_t tag;
    struct hl_wire_tag t;
    if (size < sizeof(tag))
        return;
    memcpy(&tag, data, sizeof(tag));
    if (hl_wire_tag_decode(tag, &t))
        check(hl_wire_tag(&t) == tag && t.session != 0 && t.number < HL_WIRE_PIECES_MAX);
}

static void items(const uint8_t *data, size_t size)
{
    uint8_t *bytes = copy_of(data, size), *again = malloc(size + 1);
    struct hl_wire_list list = {bytes, size};
    struct hl_wire_item item;
    const uint8_t *at;
    size_t used = 0;
    check(again != NULL);
    while (hl_wire_next_item(&list, &item, &at) == 1) {
        (void)hl_crc32(0, at, item.len);
        used += hl_wire_add_item(again + used, &item, at);
        check(used + list.left == size && item.len > 0);
    }
    struct hl_wire_list second = {again, used};
    while (used > 0 && hl_wire_next_item(&second, &item, &at) == 1)
        continue;
    check(second.left == 0);
    free(again);
    free(bytes);
}

static void results(const uint8_t *data, size_t size)
{
    uint8_t *bytes = copy_of(data, size);
    struct hl_wire_list list = {bytes, size};
    struct hl_wire_result r;
    const uint8_t *at;
    while (hl_wire_next_result(&list, &r, &at) == 1) {
        (void)hl_crc32(0, at, r.len);
        check(r.status <= 0 && at + r.len <= bytes + size);
    }
    free(bytes);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size == 0)
        return 0;
    switch (data[0] % 4) {
    case 0:
        headers(data + 1, size - 1);
        break;
    case 1:
        tags(data + 1, size - 1);
        break;
    case 2:
        items(data + 1, size - 1);
        break;
    default:
        results(data + 1, size - 1);
        break;
    }
    return 0;
}
