#include "agent/heartbeat.h"

#define BACKOFF_MIN_MS 100
#define BACKOFF_MAX_MS 5000
#define TIMEOUT_MIN_MS 2000

void heartbeat_init(struct heartbeat *h)
{
    *h = (struct heartbeat){.period_ms = HEARTBEAT_DEFAULT_MS, .backoff_ms = BACKOFF_MIN_MS};
}

uint64_t heartbeat_failed(struct heartbeat *h)
{
    h->backoff_ms = h->backoff_ms * 2 > BACKOFF_MAX_MS ? BACKOFF_MAX_MS : h->backoff_ms * 2;
    return h->registered && h->period_ms < h->backoff_ms ? h->period_ms : h->backoff_ms;
}

uint64_t heartbeat_registered(struct heartbeat *h, uint64_t sent_ms, int64_t period_ms,
                              int64_t lost_ms)
{
    *h = (struct heartbeat){.registered = true,
                            .period_ms = period_ms > 0 ? (uint64_t)period_ms : HEARTBEAT_DEFAULT_MS,
                            .lost_ms = lost_ms > 0 ? (uint64_t)lost_ms : 0,
                            .heard_ms = sent_ms,
                            .backoff_ms = BACKOFF_MIN_MS};
    return 0;
}

uint64_t heartbeat_answered(struct heartbeat *h, uint64_t sent_ms, bool known)
{
    uint64_t delay = h->again || !known ? 0 : h->period_ms;
    h->registered = known;
    if (known)
        h->heard_ms = sent_ms;
    h->again = false;
    h->backoff_ms = BACKOFF_MIN_MS;
    return delay;
}

uint64_t heartbeat_lapses_ms(const struct heartbeat *h)
{
    return h->lost_ms > 0 && h->heard_ms <= UINT64_MAX - h->lost_ms ? h->heard_ms + h->lost_ms
                                                                    : UINT64_MAX;
}

int heartbeat_timeout_ms(const struct heartbeat *h, int most_ms)
{
    uint64_t ms = h->period_ms * 3 < TIMEOUT_MIN_MS ? TIMEOUT_MIN_MS : h->period_ms * 3;
    return ms < (uint64_t)most_ms ? (int)ms : most_ms;
}
