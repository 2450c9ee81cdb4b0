/* kube/http.h - one request to the API server, or one watch.
 *
 * Owns:    its connections and the last token. The config is borrowed and outlives it.
 * Threads: any; each request takes a connection of its own.
 * Errors:  HL_EPERM (401, 403: what the server says is missing), HL_ENOENT (404), HL_ECONFLICT
 *          (409), HL_EEXIST (409 AlreadyExists), HL_ESTALE (410), HL_EINVAL (other refusals),
 *          HL_EUNAVAIL (nobody there, 429, 5xx,
 *          no credentials), HL_ETIMEDOUT, HL_ECANCELED, HL_EPROTO (no JSON).
 *          Nothing is tried again here, but once after 401 with the token as it is then.
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

/* `cancel` (may be NULL): what is under way ends soon after it is not 0. */
hl_status hl_kube_open(const struct hl_kube_config *config, const atomic_bool *cancel,
                       struct hl_kube **out) HL_CHECK;
/* NULL is fine. No request is under way. */
void hl_kube_close(struct hl_kube *k);

struct hl_kube_request {
    const char *method; /* GET POST PUT PATCH DELETE */
    const char *path;   /* "/api/v1/pods?limit=500", encoded */
    const json_t *body; /* NULL = none */
    const char *text;   /* of the body, where there is no object of it; NULL = none */
    const char *type;   /* of the body; NULL = application/json */
    int timeout_ms;     /* 0 = 30000 */
    bool only_metadata; /* of the objects that the server answers with */
    int gather_ms;      /* of a watch: so long what comes is left with the kernel, when it has been
                           quiet; each waking costs as much as an event. 0 = not at all */
    const struct hl_kube_members *members; /* of the answer that are taken (parse.h); NULL = all */
    int *retry_after_s;                    /* NULL, or what a refusal asked for; 0 = nothing */
};

/* *out (may be NULL) is the answer's object; new reference. */
hl_status hl_kube_call(struct hl_kube *k, const struct hl_kube_request *r, json_t **out) HL_CHECK;
/* The answer as it is, appended to `out`; at most what that still takes. */
hl_status hl_kube_text(struct hl_kube *k, const char *path, int timeout_ms,
                       struct hl_buf *out) HL_CHECK;
/* A GET, until the server ends the stream (HL_OK), it fails, or `timeout_ms` have passed. What is
 * taken of objects is the stream's to say. */
hl_status hl_kube_watch(struct hl_kube *k, const struct hl_kube_request *r,
                        struct hl_kube_stream *stream) HL_CHECK;

#endif
