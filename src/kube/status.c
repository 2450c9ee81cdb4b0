/* The meaning of Status objects, and the names of watch events. */
#include "kube/stream_private.h"

#include <string.h>

#include "core/json.h"

const char *const stream_events[] = {"ADDED", "MODIFIED", "DELETED", NULL};

hl_status hl_kube_status_fail(const json_t *status, const char *what)
{
    long code = (long)hl_json_int(status, "code", 0);
    const char *reason = hl_json_str(status, "reason", "");
    const char *message = hl_json_str(status, "message", "");
    hl_status st = code == 404                               ? HL_ENOENT
                   : code == 401 || code == 403              ? HL_EPERM
                   : code == 409                             ? HL_ECONFLICT
                   : code == 410                             ? HL_ESTALE
                   : code == 429 || code >= 500 || code == 0 ? HL_EUNAVAIL
                                                             : HL_EINVAL;
    if (strcmp(reason, "AlreadyExists") == 0)
        st = HL_EEXIST;
    if (code == 403 && strstr(message, "exceeded quota: ") != NULL)
        st = HL_ENOSPC; /* only its text tells a full ResourceQuota from a missing right */
    return hl_fail(st, "%s: %ld %s: %.400s", what, code, reason, message);
}

hl_status stream_on_error(struct hl_kube_stream *s, const json_t *status)
{
    s->retry_after_s = (int)hl_json_int(json_object_get(status, "details"), "retryAfterSeconds", 0);
    return hl_kube_status_fail(status, "watch");
}
