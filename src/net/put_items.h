/* net/put_items.h - the objects of one put call: packed into batches, and settled as answers
 * arrive.
 *
 * Owns:    nothing; items, their bytes and their words belong to the caller.
 * Threads: one at a time, as the client.
 * Errors:  hl_put_items_settle_list returns false for bytes that are not the results it expects.
 * Units:   bytes.
 * Limits:  a batch is a list of put_list.h.
 *
 *     open (no answer yet) --settle, fail--> its status, its id or its text
 *
 * Items that are still open at the end get the connection's status.
 */
#ifndef HL_NET_PUT_ITEMS_H
#define HL_NET_PUT_ITEMS_H

#include <stdbool.h>

#include "net/net.h"

struct hl_put_items {
    struct hl_net_item *items;
    size_t count;
    hl_status first; /* status that is not HL_OK of the item with the lowest number */
    size_t first_item;
    char words[HL_ERROR_TEXT_MAX]; /* of `first` */
};

/* Marks all items open; returns their bytes in total. */
uint64_t hl_put_items_begin(struct hl_put_items *p, struct hl_net_item *items, size_t count);
/* Whether item i goes into a batch of at most batch_bytes. */
bool hl_put_items_small(const struct hl_put_items *p, size_t i, size_t batch_bytes);
/* Packs as many small items from `first` on as fit at `to`; *len = bytes written. Returns how
 * many. */
size_t hl_put_items_pack(const struct hl_put_items *p, size_t first, size_t batch_bytes,
                         uint8_t *to, size_t *len);
/* Settles item i. `words` are used only when st is not HL_OK. */
void hl_put_items_settle(struct hl_put_items *p, size_t i, hl_status st, struct hl_id id,
                         const void *words, size_t len);
/* The same, with the error text of this thread. */
void hl_put_items_fail(struct hl_put_items *p, size_t i, hl_status st);
/* Settles the `count` items from `first` on with a list of results. */
bool hl_put_items_settle_list(struct hl_put_items *p, size_t first, size_t count,
                              const void *results, size_t len) HL_CHECK;
/* Returns the status of the call: st if items were still open, else the first status that is not
 * HL_OK. */
hl_status hl_put_items_end(struct hl_put_items *p, hl_status st);

#endif
