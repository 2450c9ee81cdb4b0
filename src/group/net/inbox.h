/* group/net/inbox.h - messages between the ranks of a group on several hosts: each has an
 * inbox (net/net.h: RDMA where there is, else TCP) and one outbox to each peer.
 *
 * A message is known by its sender and a number. Messages of another group are refused.
 *
 * Owns:    an inbox its server, its threads and messages not yet taken; a taken message is the
 *          caller's, for free(). What is sent is borrowed until the send has ended.
 * Threads: one at a time, but for the inbox's own.
 * Errors:  those of net/net.h, with the words of the failed put.
 * Units:   bytes; ns of hl_now_ns for deadlines.
 * Limits:  HL_INBOX_BYTES a message; numbers below 2^47. Of each rank an inbox keeps six messages
 *          whose numbers have HL_INBOX_AHEAD and six others; more are refused with HL_EBUSY.
 */
#ifndef HL_GROUP_NET_INBOX_H
#define HL_GROUP_NET_INBOX_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

#define HL_INBOX_BYTES ((size_t)8 << 20)
#define HL_INBOX_HELLO UINT64_C(0x48454c4c4f484c47) /* the group of those that have none yet */
#define HL_INBOX_AHEAD (UINT64_C(1) << 46)          /* in the number of what may come too early */

struct hl_inbox;
struct hl_outbox;

struct hl_inbox_message {
    struct hl_inbox_message *next;
    uint64_t group, number;
    int from;
    size_t size;
    _Alignas(64) uint8_t data[];
};

hl_status hl_inbox_open(const char *listen, int ranks, struct hl_inbox **out) HL_CHECK;
const char *hl_inbox_address(const struct hl_inbox *b);
/* Messages of this group are taken from now on, and hellos as long as it is asked for. */
void hl_inbox_join(struct hl_inbox *b, uint64_t group, int hellos);
/* NULL when it isn't there; of hellos `number` is 0. */
struct hl_inbox_message *hl_inbox_take(struct hl_inbox *b, uint64_t group, int from,
                                       uint64_t number);
/* Returns when something has come or has been sent since the last call, or at `until_ns`. */
void hl_inbox_wait(struct hl_inbox *b, uint64_t until_ns);
/* From any thread: a wait ends. */
void hl_inbox_wake(struct hl_inbox *b);
/* After its outboxes. NULL is allowed. */
void hl_inbox_close(struct hl_inbox *b);

/* Connects with the first send. */
hl_status hl_outbox_open(struct hl_inbox *b, const char *address, int stall_ms,
                         struct hl_outbox **out) HL_CHECK;
/* One at a time; it ends by itself. */
hl_status hl_outbox_send(struct hl_outbox *l, uint64_t group, int from, uint64_t number,
                         const void *data, size_t size, int timeout_ms) HL_CHECK;
/* 1 while the last send is under way, else *st is its end, and *words what went wrong. */
bool hl_outbox_sending(struct hl_outbox *l, hl_status *st, const char **words);
/* 1: its last connection was one that any TCP client could make. */
bool hl_outbox_is_tcp(struct hl_outbox *l);
/* What is queued or under way is given up, soon. NULL is allowed. */
void hl_outbox_close(struct hl_outbox *l);

#endif
