/* group/net/steps.h - ranks on several hosts: their addresses, and one step of all together.
 *
 * A collective is a row of steps. In a step a rank sends each other one message and has one of
 * each, or less where that would say nothing; every message begins with what the sender is doing,
 * so that ranks that do different things find out. No rank is more than a step ahead of those it
 * hears from, which bounds what waits in an inbox.
 *
 * Owns:    a group its inbox, its outboxes and the messages of the step.
 * Threads: one at a time.
 * Errors:  HL_EUNAVAIL a rank that died or left, or what it says of another; HL_ETIMEDOUT one that
 *          does not answer; HL_ECONFLICT other ranks do something else, or the number of ranks
 *          differs. All name the rank, its address and what was being done.
 * Units:   bytes, milliseconds.
 * Limits:  HL_COLLECTIVE_RANKS ranks. No identity is checked and nothing is encrypted: for a
 *          network of trusted hosts.
 */
#ifndef HL_GROUP_NET_STEPS_H
#define HL_GROUP_NET_STEPS_H

#include <stdbool.h>

#include "group/group.h"
#include "group/net/inbox.h"
#include "net/addr.h"

#define HL_COLLECTIVE_HEADER  192 /* a multiple of 64 */
#define HL_COLLECTIVE_LOOK_MS 500 /* between two checks of the ports of silent ranks */

hl_status hl_collective_net_open(const hybridps_net_options *options,
                                 hybridps_transport *out) HL_CHECK;

/* What a rank is doing: the beginning of each message. */
struct hl_net_call {
    uint32_t magic, kind;
    int32_t arg; /* type, src or tag; of a hello the number of ranks */
    int32_t op;
    uint32_t version;
    uint64_t bytes;
    char what[96];
};

struct hl_net_rank {
    char address[HL_ADDR_TEXT_MAX];
    struct hl_outbox *outbox;
    struct hl_inbox_message *got;
    bool answers; /* its port took a connection once, so that a refusal means something */
    bool gone;    /* no process has its port any more */
    bool waits;   /* for its message, in this step */
    bool sends;   /* a message to it is under way */
    uint64_t sent, received; /* pieces, between the two of them */
};

struct hl_collective_net {
    int rank, world, timeout_ms;
    uint64_t group, number; /* of the next step */
    uint64_t calls;
    struct hl_inbox *inbox;
    struct hl_net_rank *ranks;
    struct hl_net_call call;
    uint8_t *out;                                           /* what is sent in a step */
    uint8_t last[HL_COLLECTIVE_HEADER + HL_ERROR_TEXT_MAX]; /* words to the others */
    int cancelled;
    pid_t pid;
};

/* rendezvous.c: all ranks know each other's address, and the group's number. */
hl_status hl_collective_meet(const hybridps_net_options *o, struct hl_collective_net *g) HL_CHECK;
/* 1 when its port took a connection once and refuses one now: no process has it any more. A host
 * that does not answer may come back before the deadline. */
bool hl_collective_gone(struct hl_net_rank *p);

#endif
