/* kube/http.h - one request to the API server, or one watch.
 *
 * Owns:    its connections and the last token. The config is borrowed and outlives it.
 * Threads: any; each request uses its own connection.
 * Errors:  HL_EPERM (401, 403: what the server says is missing), HL_ENOSPC (403: a ResourceQuota is
 *          used up), HL_ENOENT (404), HL_ECONFLICT (409), HL_EEXIST (409 AlreadyExists), HL_ESTALE
 *          (410), HL_EINVAL (other refusals), HL_EUNAVAIL (unreachable, 429, 5xx, no credentials),
 *          HL_ETIMEDOUT, HL_ECANCELED, HL_EPROTO (not JSON). Requests are not retried, except once
 *          after 401 with a new token.
 * Units:   bytes, ms; seconds where a name ends in _s.
 * Limits:  answers of HL_KUBE_ANSWER_MAX bytes.
 */
#ifndef HL_KUBE_HTTP_H
#define HL_KUBE_HTTP_H

#include <jansson.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "kube/config.h"
#include "kube/parse.h"
#include "kube/stream.h"

#define HL_KUBE_ANSWER_MAX ((size_t)256 << 20)
#define HL_KUBE_MERGE      "application/merge-patch+json"

struct hl_kube;

/* cancel: NULL is allowed. Requests end soon after it is not 0. */
hl_status hl_kube_open(const struct hl_kube_config *config, const atomic_bool *cancel,
                       struct hl_kube **out) HL_CHECK;
/* No request may be running. NULL is allowed. */
void hl_kube_close(struct hl_kube *k);

struct hl_kube_request {
    const char *method; /* GET POST PUT PATCH DELETE */
    const char *path;   /* "/api/v1/pods?limit=500", encoded */
    const json_t *body; /* NULL = none */
    const char *text;   /* the body as text, if it is not an object; NULL = none */
    const char *type;   /* type of the body; NULL = application/json */
    int timeout_ms;     /* 0 = 30000 */
    bool only_metadata; /* ask for the metadata of objects only */
    int gather_ms;      /* for a watch: after a quiet time, data waits in the kernel this long,
                         * because each wakeup costs as much as an event. 0 = never */
    const struct hl_kube_members *members; /* members of the answer to keep (parse.h); NULL = all */
    int *retry_after_s;                    /* NULL, or gets the delay that a refusal asks for; 0 =
                                            * none */
};

/* *out: the answer's object, a new reference; out can be NULL. */
hl_status hl_kube_call(struct hl_kube *k, const struct hl_kube_request *r, json_t **out) HL_CHECK;
/* Appends the unparsed answer to `out`, up to its remaining capacity. */
hl_status hl_kube_text(struct hl_kube *k, const char *path, int timeout_ms,
                       struct hl_buf *out) HL_CHECK;
/* Runs a GET until the server ends the stream (HL_OK), it fails, or `timeout_ms` have passed. The
 * stream's own `members` apply. */
hl_status hl_kube_watch(struct hl_kube *k, const struct hl_kube_request *r,
                        struct hl_kube_stream *stream) HL_CHECK;

#endif
