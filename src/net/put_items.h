/* net/put_items.h - the objects of one put call: packed into batches, settled as answers come.
 *
 * Owns:    nothing; items, their bytes and their words are the caller's.
 * Threads: one at a time, as the client.
 * Errors:  hl_put_items_settle_list returns false for bytes that are not the results it expects.
 * Units:   bytes.
 * Limits:  a batch is a list of put_list.h.
 *
 *     open (no answer yet) --settle, fail--> its status, its id or its words
 *
 * What is still open at the end gets the status of the connection's.
 */
#ifndef HL_NET_PUT_ITEMS_H
#define HL_NET_PUT_ITEMS_H

#include <stdbool.h>

#include "net/net.h"

struct hl_put_items {
    struct hl_net_item *items;
    size_t count;
    hl_status first; /* that is not HL_OK, of the item with the lowest number */
    size_t first_item;
    char words[HL_ERROR_TEXT_MAX]; /* of `first` */
};

/* All are open; returns the bytes of all. */
uint64_t hl_put_items_begin(struct hl_put_items *p, struct hl_net_item *items, size_t count);
/* Whether item i goes into a batch of at most batch_bytes. */
bool hl_put_items_small(const struct hl_put_items *p, size_t i, size_t batch_bytes);
/* As many small items from `first` on as fit, packed at `to`; *len = bytes written. */
size_t hl_put_items_pack(const struct hl_put_items *p, size_t first, size_t batch_bytes,
                         uint8_t *to, size_t *len);
/* What became of item i. `words` count where st is not HL_OK. */
void hl_put_items_settle(struct hl_put_items *p, size_t i, hl_status st, struct hl_id id,
                         const void *words, size_t len);
/* The same, with the error text of this thread. */
void hl_put_items_fail(struct hl_put_items *p, size_t i, hl_status st);
/* What became of the `count` items from `first` on: a list of results. */
bool hl_put_items_settle_list(struct hl_put_items *p, size_t first, size_t count,
                              const void *results, size_t len) HL_CHECK;
/* The status of the call: st where items were still open, else the first that is not HL_OK. */
hl_status hl_put_items_end(struct hl_put_items *p, hl_status st);

#endif
