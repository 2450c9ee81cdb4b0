/* net/call.h - what the clients of all back ends share: the call in progress, and how a client
 * dies.
 *
 * Owns:    nothing.
 * Threads: one at a time, as the client.
 * Errors:  hl_net_death_note keeps the first cause; later ones change nothing.
 * Units:   ns of hl_now_ns, bytes.
 * Limits:  none.
 *
 *     usable (status == HL_OK) --hl_net_death_note--> dead for good, with the first call's text
 */
#ifndef HL_NET_CALL_H
#define HL_NET_CALL_H

#include <stdarg.h>
#include <stdbool.h>

#include "base/pace.h"
#include "net/net.h"

/* The call in progress, for the text of its failure. */
struct hl_net_call {
    const char *what; /* "fetch" */
    bool ranged;      /* offset is meaningful */
    uint64_t offset, len;
    size_t objects; /* 0: don't mention any */
    uint64_t since_ns;
};

struct hl_net_death {
    hl_status status; /* HL_OK while usable */
    char words[HL_ERROR_TEXT_MAX];
};

/* Notes a death with the text "what was being done, with whom, by which path, for how long:
 * why". */
void hl_net_death_note(struct hl_net_death *d, const struct hl_net_call *call, const char *address,
                       const char *path, hl_status st, const char *fmt, va_list ap)
    __attribute__((format(printf, 6, 0)));
/* Fails when the client is dead. */
hl_status hl_net_death_check(const struct hl_net_death *d, const char *address) HL_CHECK;
/* The result of a fetch: HL_OK, the status that the server refused it with, or HL_ECORRUPT with the
 * first bad chunk. */
hl_status hl_net_fetch_end(const struct hl_net_call *call, const char *address, hl_status refused,
                           const char *refused_text, const struct hl_net_bad *bad) HL_CHECK;

/* Whether the running call was cancelled. */
static inline bool hl_net_is_cancelled(const struct hl_net_head *head, const atomic_bool *cancel)
{
    return (cancel != NULL && atomic_load(cancel)) ||
           (head->stop != NULL && atomic_load(head->stop));
}

/* How long to wait before the next bytes may be sent; 0 = not at all. */
static inline uint64_t hl_net_pace_wait_ns(const struct hl_net_head *head, uint64_t now_ns)
{
    return head->pace != NULL ? hl_pace_wait_ns(head->pace, now_ns) : 0;
}

static inline uint64_t hl_net_deadline(uint64_t now_ns, int timeout_ms)
{
    return now_ns + (uint64_t)(timeout_ms > 0 ? timeout_ms : 0) * HL_NS_PER_MS;
}

#endif
