/* net/put_list.c - encoding and decoding; all decoded bytes are untrusted. */
#include "net/put_list.h"

#include <string.h>

#include "base/status.h"

#define HEAD 24 /* bytes of an entry's header */

size_t hl_wire_entry(size_t len)
{
    return (HEAD + len + HL_WIRE_ALIGN - 1) & ~(size_t)(HL_WIRE_ALIGN - 1);
}

static int next_entry(struct hl_wire_list *list, void *head, size_t len_at, const uint8_t **bytes)
{
    uint32_t len;
    if (list->left == 0)
        return 0;
    if (list->left < HEAD)
        return -1;
    memcpy(&len, list->at + len_at, sizeof(len));
    if (len > HL_WIRE_LIST_MAX || hl_wire_entry(len) > list->left)
        return -1;
    memcpy(head, list->at, HEAD);
    *bytes = list->at + HEAD;
    list->at += hl_wire_entry(len);
    list->left -= hl_wire_entry(len);
    return 1;
}

int hl_wire_next_item(struct hl_wire_list *list, struct hl_wire_item *out, const uint8_t **bytes)
{
    struct hl_wire_item item;
    const uint8_t *at;
    int got = next_entry(list, &item, offsetof(struct hl_wire_item, len), &at);
    if (got != 1)
        return got;
    if (item.len == 0)
        return -1;
    *out = item;
    *bytes = at;
    return 1;
}

int hl_wire_next_result(struct hl_wire_list *list, struct hl_wire_result *out,
                        const uint8_t **bytes)
{
    struct hl_wire_result result;
    const uint8_t *at;
    int got = next_entry(list, &result, offsetof(struct hl_wire_result, len), &at);
    if (got != 1)
        return got;
    if (result.status > 0 || result.status < HL_EINTERNAL)
        return -1;
    *out = result;
    *bytes = at;
    return 1;
}

static size_t add_entry(uint8_t *to, const void *head, const void *bytes, size_t len)
{
    size_t whole = hl_wire_entry(len);
    memcpy(to, head, HEAD);
    if (len > 0)
        memcpy(to + HEAD, bytes, len);
    memset(to + HEAD + len, 0, whole - HEAD - len);
    return whole;
}

size_t hl_wire_add_item(uint8_t *to, const struct hl_wire_item *item, const void *bytes)
{
    return add_entry(to, item, bytes, item->len);
}

size_t hl_wire_add_result(uint8_t *to, const struct hl_wire_result *result, const void *bytes)
{
    return add_entry(to, result, bytes, result->len);
}
