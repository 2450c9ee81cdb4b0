/* kube/stream.h - splits the answer of a watch, which arrives in arbitrary pieces, into events: one
 * JSON object per line or, if the caller accepts them, Protocol Buffers, each after its length.
 *
 * Owns:    the bytes of the incomplete line.
 * Threads: one at a time. Pure.
 * Errors:  HL_EPROTO (not an event), HL_ENOMEM (also for a line beyond the limit), HL_ESTALE (the
 *          server no longer knows our version: list again), HL_EUNAVAIL (any other ERROR event,
 *          with its message); and whatever `event` returns.
 * Units:   bytes.
 * Limits:  HL_KUBE_LINE_MAX bytes per line, and per event of Protocol Buffers.
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
    const struct hl_kube_members *members; /* members to keep (parse.h); NULL = all */
    char version[64];                      /* of the last event, bookmarks included; opaque */
    int retry_after_s;                     /* delay that an ERROR event asked for */
    /* Takes the object, also on failure. */
    hl_status (*event)(void *arg, enum hl_kube_event type, json_t *object);
    /* Gets an object in Protocol Buffers, borrowed; NULL = only JSON is accepted. */
    hl_status (*encoded)(void *arg, enum hl_kube_event type, const char *bytes, size_t len);
    bool is_encoded;          /* the server sends Protocol Buffers */
    void (*begun)(void *arg); /* the server has started the watch; can be NULL */
    void *arg;
};

void hl_kube_stream_init(struct hl_kube_stream *s, const char *version,
                         hl_status (*event)(void *arg, enum hl_kube_event type, json_t *object),
                         void *arg);
/* Feeds more bytes. After a failure the stream has ended. */
hl_status hl_kube_stream_feed(struct hl_kube_stream *s, const char *bytes, size_t len) HL_CHECK;
void hl_kube_stream_fini(struct hl_kube_stream *s);

/* Decodes an answer's Status object from Protocol Buffers. New reference; NULL: it is not one. */
json_t *hl_kube_status_decode(const char *bytes, size_t len);
/* Turns a Status object into an error whose text begins with `what`. */
hl_status hl_kube_status_fail(const json_t *status, const char *what);

#endif
