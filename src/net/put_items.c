#include "net/put_items.h"

#include <stdio.h>

#include "net/put_list.h"

#define OPEN ((hl_status)1)

uint64_t hl_put_items_begin(struct hl_put_items *p, struct hl_net_item *items, size_t count)
{
    uint64_t bytes = 0;
    p->items = items;
    p->count = count;
    p->first = HL_OK;
    p->words[0] = '\0';
    for (size_t i = 0; i < count; i++) {
        items[i].status = OPEN;
        bytes += items[i].len;
    }
    return bytes;
}

bool hl_put_items_small(const struct hl_put_items *p, size_t i, size_t batch_bytes)
{
    size_t len = p->items[i].len;
    return len <= batch_bytes && hl_wire_entry(len) <= batch_bytes;
}

size_t hl_put_items_pack(const struct hl_put_items *p, size_t first, size_t batch_bytes,
                         uint8_t *to, size_t *len)
{
    size_t i = first, done = 0;
    for (; i < p->count && hl_put_items_small(p, i, batch_bytes); i++) {
        const struct hl_net_item *item = &p->items[i];
        if (done + hl_wire_entry(item->len) > batch_bytes)
            break;
        struct hl_wire_item head = {item->id.hi, item->id.lo, (uint32_t)item->len, item->crc};
        done += hl_wire_add_item(to + done, &head, item->data);
    }
    *len = done;
    return i - first;
}

void hl_put_items_settle(struct hl_put_items *p, size_t i, hl_status st, struct hl_id id,
                         const void *words, size_t len)
{
    struct hl_net_item *item = &p->items[i];
    const char *text = len > 0 ? words : "";
    item->status = st;
    if (st == HL_OK) {
        item->id = id;
        return;
    }
    if (item->words != NULL)
        snprintf(item->words, item->words_cap, "%.*s", (int)len, text);
    if (p->first == HL_OK || i < p->first_item) {
        p->first = st;
        p->first_item = i;
        snprintf(p->words, sizeof(p->words), "%.*s", (int)len, text);
    }
}

void hl_put_items_fail(struct hl_put_items *p, size_t i, hl_status st)
{
    hl_put_items_settle(p, i, st, (struct hl_id){0, 0}, hl_error_text(), HL_ERROR_TEXT_MAX - 1);
}

bool hl_put_items_settle_list(struct hl_put_items *p, size_t first, size_t count,
                              const void *results, size_t len)
{
    struct hl_wire_list list = {results, len};
    struct hl_wire_result r;
    const uint8_t *words;
    size_t seen = 0;
    int got;
    while ((got = hl_wire_next_result(&list, &r, &words)) == 1 && seen < count)
        hl_put_items_settle(p, first + seen++, (hl_status)r.status,
                            (struct hl_id){r.id_hi, r.id_lo}, words, r.len);
    return got == 0 && seen == count;
}

hl_status hl_put_items_end(struct hl_put_items *p, hl_status st)
{
    bool open = false; /* a stopping server may have answered all items first */
    for (size_t i = 0; i < p->count; i++)
        if (p->items[i].status == OPEN) {
            hl_put_items_fail(p, i, st);
            open = true;
        }
    if (open)
        return st;
    return p->first == HL_OK ? HL_OK : hl_fail(p->first, "%s", p->words);
}
