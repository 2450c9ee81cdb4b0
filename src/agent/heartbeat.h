/* agent/heartbeat.h - when the Agent speaks to the Controller next.
 *
 *     new --answered register--> registered --answered "not known"--> new
 *
 * A failed call is repeated after a pause that doubles up to a bound, starting anew after the next
 * good answer; a node that is registered does not keep silent for longer than a heartbeat.
 *
 * The Controller counts silence, and after lost_ms of it jobs go on without the node. What it has
 * ordered before that may reach an Agent that was stopped long after: heartbeat_is_lapsed says that
 * such an order is not to be obeyed before the Controller has been heard again.
 *
 * Owns:    nothing.
 * Threads: one at a time. Pure: no clock.
 * Errors:  none.
 * Units:   ms.
 * Limits:  pauses are at most 5 s.
 */
#ifndef HL_AGENT_HEARTBEAT_H
#define HL_AGENT_HEARTBEAT_H

#include <stdbool.h>
#include <stdint.h>

#define HEARTBEAT_DEFAULT_MS 1000

struct heartbeat {
    bool registered; /* the Controller knew us when we last heard of it */
    bool again;      /* something changed since the call under way was made */
    uint64_t period_ms;
    uint64_t backoff_ms;
    uint64_t lost_ms;  /* 0 = the Controller does not say */
    uint64_t heard_ms; /* when the last call was made that was answered well */
};

void heartbeat_init(struct heartbeat *h);
/* Each returns the time until the next call. sent_ms: when the one that was answered was made. */
uint64_t heartbeat_failed(struct heartbeat *h);
/* What the Controller wants; 0 or less: it does not say. */
uint64_t heartbeat_registered(struct heartbeat *h, uint64_t sent_ms, int64_t period_ms,
                              int64_t lost_ms);
uint64_t heartbeat_answered(struct heartbeat *h, uint64_t sent_ms, bool known);
/* The Controller may have given up what runs here. */
bool heartbeat_is_lapsed(const struct heartbeat *h, uint64_t now_ms);
/* How long an answer is waited for; most_ms: of any call. */
int heartbeat_timeout_ms(const struct heartbeat *h, int most_ms);

#endif
