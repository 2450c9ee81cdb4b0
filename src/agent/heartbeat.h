/* agent/heartbeat.h - when the Agent speaks to the Controller next.
 *
 *     new --answered register--> registered --answered "not known"--> new
 *
 * A failed call is repeated after a pause that doubles up to a bound, starting anew after the next
 * good answer; a node that is registered does not keep silent for longer than a heartbeat.
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
};

void heartbeat_init(struct heartbeat *h);
/* Each returns the time until the next call. */
uint64_t heartbeat_failed(struct heartbeat *h);
/* period_ms: what the Controller wants; 0 or less: it does not say. */
uint64_t heartbeat_registered(struct heartbeat *h, int64_t period_ms);
uint64_t heartbeat_answered(struct heartbeat *h, bool known);
/* How long an answer is waited for; most_ms: of any call. */
int heartbeat_timeout_ms(const struct heartbeat *h, int most_ms);

#endif
