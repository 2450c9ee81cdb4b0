/* agent/heartbeat.h - decides when the Agent calls the Controller next.
 *
 *     new --answered register--> registered --answered "not known"--> new
 *
 * A failed call is repeated after a pause that doubles up to a bound and is reset by the next good
 * answer. A registered node never stays silent for longer than a heartbeat period.
 *
 * The Controller measures silence, and after lost_ms of it jobs continue without the node. An order
 * that it sent before that may reach an Agent that was paused much later: after
 * heartbeat_lapses_ms such an order must not be obeyed before the Controller has been heard again.
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
    bool registered; /* the Controller knew us when we last heard from it */
    bool again;      /* something has changed since the call in progress was made */
    uint64_t period_ms;
    uint64_t backoff_ms;
    uint64_t lost_ms;  /* 0 = the Controller does not say */
    uint64_t heard_ms; /* when the last successful call was made */
};

void heartbeat_init(struct heartbeat *h);
/* Each returns the time until the next call. sent_ms: when the answered call was made. */
uint64_t heartbeat_failed(struct heartbeat *h);
/* period_ms and lost_ms as the Controller wants them; 0 or less: it does not say. */
uint64_t heartbeat_registered(struct heartbeat *h, uint64_t sent_ms, int64_t period_ms,
                              int64_t lost_ms);
uint64_t heartbeat_answered(struct heartbeat *h, uint64_t sent_ms, bool known);
/* After that, the Controller may have given up what runs here, unless it is heard before.
 * UINT64_MAX: never. */
uint64_t heartbeat_lapses_ms(const struct heartbeat *h);
/* Timeout of a call; most_ms: the upper limit for any call. */
int heartbeat_timeout_ms(const struct heartbeat *h, int most_ms);

#endif
