/* group/net/steps.h - ranks on several hosts: their addresses, and one step that all take together.
 *
 * A collective is a sequence of steps. In a step each rank sends one message to every other rank
 * and receives one from each, or fewer where a message would carry nothing. Every message begins
 * with what the sender is doing, so that ranks that do different things notice. No rank is more
 * than one step ahead of those it hears from, which bounds the messages that wait in an inbox.
 *
 * Owns:    a group owns its inbox, its outboxes and the messages of the step.
 * Threads: one at a time.
 * Errors:  HL_EUNAVAIL a rank died or left, or reports that of another; HL_ETIMEDOUT a rank does
 *          not answer; HL_ECONFLICT other ranks do something else, or the number of ranks differs.
 *          All name the rank, its address and what was being done.
 * Units:   bytes, milliseconds.
 * Limits:  HL_COLLECTIVE_RANKS ranks. Identities are not checked and nothing is encrypted: use it
 *          only in a network of trusted hosts.
 */
#ifndef HL_GROUP_NET_STEPS_H
#define HL_GROUP_NET_STEPS_H

#include <stdbool.h>

#include "group/group.h"
#include "group/net/inbox.h"
#include "net/addr.h"

#define HL_COLLECTIVE_HEADER  192 /* a multiple of 64 */
#define HL_COLLECTIVE_LOOK_MS 500 /* time between two checks of the ports of silent ranks */

hl_status hl_collective_net_open(const hybridps_net_options *options,
                                 hybridps_transport *out) HL_CHECK;

/* What a rank is doing; each message begins with it. */
struct hl_net_call {
    uint32_t magic, kind;
    int32_t arg; /* type, src or tag; in a hello the number of ranks */
    int32_t op;
    uint32_t version;
    uint64_t bytes;
    char what[96];
};

struct hl_net_rank {
    char address[HL_ADDR_TEXT_MAX];
    struct hl_outbox *outbox;
    struct hl_inbox_message *got;
    struct hl_inbox_message *last; /* it has left; NULL = not heard */
    bool answers; /* its port has accepted a connection before, so a refusal is meaningful */
    bool gone;    /* no process listens on its port any more */
    bool waits;   /* we wait for its message in this step */
    bool sends;   /* a message to it is being sent */
    uint64_t sent, received; /* pieces exchanged between the two */
};

struct hl_collective_net {
    int rank, world, timeout_ms;
    uint64_t group, number; /* of the next step */
    uint64_t calls;
    struct hl_inbox *inbox;
    struct hl_net_rank *ranks;
    struct hl_net_call call;
    uint8_t *out;                                           /* the message that is sent in a step */
    uint8_t last[HL_COLLECTIVE_HEADER + HL_ERROR_TEXT_MAX]; /* last words to the other ranks */
    bool told;                                              /* `last` was sent, or tried */
    int cancelled;
    pid_t pid;
};

/* rendezvous.c: after it all ranks know each other's address and the group's number. */
hl_status hl_collective_meet(const hybridps_net_options *o, struct hl_collective_net *g) HL_CHECK;
/* True when its port has accepted a connection before and refuses one now: no process listens on it
 * any more. A host that does not answer at all may come back before the deadline. */
bool hl_collective_gone(struct hl_net_rank *p);

#endif
