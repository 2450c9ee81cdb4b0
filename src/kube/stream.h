/* kube/stream.h - the answer of a watch, cut anywhere: JSON objects, one to a line; or, where
 * somebody takes them so, Protocol Buffers, each behind its length.
 *
 * Owns:    the bytes of the line that is not at its end yet.
 * Threads: one at a time. Pure.
 * Errors:  HL_EPROTO (what is no event), HL_ENOMEM (also for a line beyond the limit),
 *          HL_ESTALE (the server no longer knows our version: list again), HL_EUNAVAIL (any other
 *          ERROR event, with what it says); and whatever `event` returns.
 * Units:   bytes.
 * Limits:  HL_KUBE_LINE_MAX bytes to a line, and to an event of Protocol Buffers.
 */
#ifndef HL_KUBE_STREAM_H
#define HL_KUBE_STREAM_H

#include <jansson.h>

#include "base/buf.h"
#include "base/status.h"
#include "kube/parse.h"

#define HL_KUBE_LINE_MAX ((size_t)16 << 20)

enum hl_kube_event { HL_KUBE_ADDED, HL_KUBE_MODIFIED, HL_KUBE_DELETED };

struct hl_kube_stream {
    struct hl_buf line;
    const struct hl_kube_members *members; /* that are taken (parse.h); NULL = all */
    char version[64];                      /* of the last event, bookmarks too; opaque */
    int retry_after_s;                     /* that an ERROR event asked for */
    /* Owns the object from now on, also when it fails. */
    hl_status (*event)(void *arg, enum hl_kube_event type, json_t *object);
    /* An object of Protocol Buffers, borrowed; NULL = only JSON is taken. */
    hl_status (*encoded)(void *arg, enum hl_kube_event type, const char *bytes, size_t len);
    bool is_encoded;          /* the server sends Protocol Buffers */
    void (*begun)(void *arg); /* the server has taken the watch up; NULL = nobody asks */
    void *arg;
};

void hl_kube_stream_init(struct hl_kube_stream *s, const char *version,
                         hl_status (*event)(void *arg, enum hl_kube_event type, json_t *object),
                         void *arg);
/* More bytes. After a failure the stream is at its end. */
hl_status hl_kube_stream_feed(struct hl_kube_stream *s, const char *bytes, size_t len) HL_CHECK;
void hl_kube_stream_fini(struct hl_kube_stream *s);

/* A Status object of Protocol Buffers, as an answer has it. New reference; NULL: it is none. */
json_t *hl_kube_status_decode(const char *bytes, size_t len);
/* What a Status object means. `what` stands in front. */
hl_status hl_kube_status_fail(const json_t *status, const char *what);

#endif
