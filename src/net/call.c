#include "net/call.h"

#include <stdio.h>

static void describe_call(const struct hl_net_call *call, const char *address, const char *path,
                          char *text, size_t cap)
{
    char what[128];
    if (call->ranged)
        snprintf(what, sizeof(what), "%s of %llu bytes at %llu from", call->what,
                 (unsigned long long)call->len, (unsigned long long)call->offset);
    else if (call->objects > 0)
        snprintf(what, sizeof(what), "%s of %zu objects with %llu bytes to", call->what,
                 call->objects, (unsigned long long)call->len);
    else
        snprintf(what, sizeof(what), "%s", call->what);
    snprintf(text, cap, "%s %s over %s, after %llu ms", what, address, path,
             (unsigned long long)((hl_now_ns() - call->since_ns) / HL_NS_PER_MS));
}

void hl_net_death_note(struct hl_net_death *d, const struct hl_net_call *call, const char *address,
                       const char *path, hl_status st, const char *fmt, va_list ap)
{
    char what[512], why[400];
    if (d->status != HL_OK)
        return;
    describe_call(call, address, path, what, sizeof(what));
    vsnprintf(why, sizeof(why), fmt, ap);
    snprintf(d->words, sizeof(d->words), "%s: %s", what, why);
    d->status = st;
}

hl_status hl_net_death_check(const struct hl_net_death *d, const char *address)
{
    if (d->status == HL_OK)
        return HL_OK;
    return hl_fail(HL_EUNAVAIL,
                   "the connection to %s is closed; connect again (it ended with: %.700s)", address,
                   d->words);
}

hl_status hl_net_fetch_end(const struct hl_net_call *call, const char *address, hl_status refused,
                           const char *refused_text, const struct hl_net_bad *bad)
{
    if (refused != HL_OK)
        return hl_fail(refused, "%s", refused_text);
    if (bad->count > 0)
        return hl_fail(HL_ECORRUPT,
                       "fetch of %llu+%llu from %s: %zu chunks of 1 MiB have a wrong checksum, the "
                       "first is chunk %u; fetch them again",
                       (unsigned long long)call->offset, (unsigned long long)call->len, address,
                       bad->count, bad->chunk[0]);
    return HL_OK;
}
