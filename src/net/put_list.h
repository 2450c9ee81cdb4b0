/* net/put_list.h - encoding of batches of small puts and of their results: lists of entries.
 *
 * Owns:    nothing.
 * Threads: any.
 * Errors:  a decoder returns -1 for bytes that are not a list of such entries.
 * Units:   bytes; little endian. Lists may lie at any address.
 * Limits:  a list has at most HL_WIRE_LIST_MAX bytes.
 */
#ifndef HL_NET_PUT_LIST_H
#define HL_NET_PUT_LIST_H

#include <assert.h>
#include <stddef.h>
#include <stdint.h>

#define HL_WIRE_LIST_MAX (64u << 10)
/* Each entry begins at a multiple of this. */
#define HL_WIRE_ALIGN 8

/* An object of a batch; its bytes follow. */
struct hl_wire_item {
    uint64_t id_hi; /* id it wants, 0 = any */
    uint64_t id_lo;
    uint32_t len; /* not 0 */
    uint32_t crc;
};

/* The result for an object; its text follows. */
struct hl_wire_result {
    uint64_t id_hi;
    uint64_t id_lo;
    int32_t status; /* never positive */
    uint32_t len;   /* of the text */
};

static_assert(sizeof(struct hl_wire_item) == 24 && sizeof(struct hl_wire_result) == 24,
              "entries have no padding");

struct hl_wire_list {
    const uint8_t *at;
    size_t left;
};

/* 1 = *out and *bytes (borrowed), 0 = the end, -1 = the rest is not a list of such entries. */
int hl_wire_next_item(struct hl_wire_list *list, struct hl_wire_item *out, const uint8_t **bytes);
int hl_wire_next_result(struct hl_wire_list *list, struct hl_wire_result *out,
                        const uint8_t **bytes);
/* Bytes of an entry with `len` bytes behind its head. */
size_t hl_wire_entry(size_t len);
/* Write an entry at `to`; return hl_wire_entry(len). */
size_t hl_wire_add_item(uint8_t *to, const struct hl_wire_item *item, const void *bytes);
size_t hl_wire_add_result(uint8_t *to, const struct hl_wire_result *result, const void *bytes);

#endif
