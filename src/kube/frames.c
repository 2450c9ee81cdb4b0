/* A watch in Protocol Buffers: frames with a length of four bytes, the highest first, and a
 * WatchEvent {type, object {raw}}. Raw has the form of any answer: "k8s", a 0, and an Unknown with
 * the object in `raw`. The field numbers are those of k8s.io.apimachinery and never change. */
#include "base/protobuf.h"

#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "kube/stream_private.h"

#define LENGTH 4 /* size in bytes */

enum { EVENT_TYPE = 1, EVENT_OBJECT, EXTENSION_RAW = 1, UNKNOWN_RAW = 2 };

enum { OBJECT_METADATA = 1, META_VERSION = 6 };

enum { STATUS_MESSAGE = 3, STATUS_REASON, STATUS_DETAILS, STATUS_CODE, DETAILS_RETRY_AFTER = 5 };

static const char magic[] = {'k', '8', 's', '\0'};

/* Finds the object of an answer; false: it has none. */
static bool unwrap_object(const char *bytes, size_t len, struct hl_protobuf_field *out)
{
    return len >= sizeof(magic) && memcmp(bytes, magic, sizeof(magic)) == 0 &&
           hl_protobuf_find(bytes + sizeof(magic), len - sizeof(magic), UNKNOWN_RAW, out);
}

static int64_t find_number(const char *bytes, size_t len, uint32_t number)
{
    struct hl_protobuf p = hl_protobuf(bytes, len);
    struct hl_protobuf_field f;
    int64_t value = 0;
    while (hl_protobuf_next(&p, &f))
        if (f.number == number && !f.is_bytes)
            value = (int64_t)f.value;
    return value;
}

json_t *hl_kube_status_decode(const char *bytes, size_t len)
{
    struct hl_protobuf_field status, none = {.bytes = ""};
    if (!unwrap_object(bytes, len, &status))
        return NULL;
    struct hl_protobuf_field message = none, reason = none, details = none;
    (void)hl_protobuf_find(status.bytes, status.len, STATUS_MESSAGE, &message);
    (void)hl_protobuf_find(status.bytes, status.len, STATUS_REASON, &reason);
    (void)hl_protobuf_find(status.bytes, status.len, STATUS_DETAILS, &details);
    return json_pack("{s:s% s:s% s:{s:I} s:I}", "message", message.bytes, message.len, "reason",
                     reason.bytes, reason.len, "details", "retryAfterSeconds",
                     (json_int_t)find_number(details.bytes, details.len, DETAILS_RETRY_AFTER),
                     "code", (json_int_t)find_number(status.bytes, status.len, STATUS_CODE));
}

static void read_version(const struct hl_protobuf_field *object, char *out, size_t cap)
{
    struct hl_protobuf_field meta, version;
    if (hl_protobuf_find(object->bytes, object->len, OBJECT_METADATA, &meta) &&
        hl_protobuf_find(meta.bytes, meta.len, META_VERSION, &version) && version.len > 0 &&
        version.len < cap)
        snprintf(out, cap, "%.*s", (int)version.len, version.bytes);
}

static bool is_text(const struct hl_protobuf_field *f, const char *text)
{
    return f->len == strlen(text) && memcmp(f->bytes, text, f->len) == 0;
}

static hl_status on_object(struct hl_kube_stream *s, const struct hl_protobuf_field *type,
                           const struct hl_protobuf_field *raw)
{
    struct hl_protobuf_field object;
    if (is_text(type, "ERROR")) {
        json_t *status = hl_kube_status_decode(raw->bytes, raw->len);
        hl_status st = stream_on_error(s, status);
        json_decref(status);
        return st;
    }
    if (!unwrap_object(raw->bytes, raw->len, &object))
        return hl_fail(HL_EPROTO, "watch: an event without an object");
    for (size_t i = 0; stream_events[i] != NULL; i++)
        if (is_text(type, stream_events[i]))
            HL_TRY(s->encoded(s->arg, (enum hl_kube_event)i, object.bytes, object.len));
    read_version(&object, s->version, sizeof(s->version)); /* only now, as in stream.c */
    return HL_OK;
}

static hl_status on_frame(struct hl_kube_stream *s, const char *bytes, size_t len)
{
    struct hl_protobuf_field type, extension, raw;
    if (!hl_protobuf_find(bytes, len, EVENT_TYPE, &type) ||
        !hl_protobuf_find(bytes, len, EVENT_OBJECT, &extension) ||
        !hl_protobuf_find(extension.bytes, extension.len, EXTENSION_RAW, &raw))
        return hl_fail(HL_EPROTO, "watch: %zu bytes are not an event", len);
    return on_object(s, &type, &raw);
}

static size_t frame_len(const char *at)
{
    const unsigned char *b = (const unsigned char *)at;
    return (size_t)b[0] << 24 | (size_t)b[1] << 16 | (size_t)b[2] << 8 | b[3];
}

/* Collects a frame that arrives in parts: up to its length, and then to its end. */
static hl_status gather_frame(struct hl_kube_stream *s, const char **bytes, size_t *len)
{
    size_t want = s->line.len < LENGTH ? LENGTH : LENGTH + frame_len(s->line.data);
    size_t n = want - s->line.len < *len ? want - s->line.len : *len;
    HL_TRY(hl_buf_append(&s->line, *bytes, n));
    *bytes += n;
    *len -= n;
    if (s->line.len < LENGTH)
        return HL_OK;
    size_t frame = frame_len(s->line.data);
    if (frame > HL_KUBE_LINE_MAX - LENGTH)
        return hl_fail(HL_ENOMEM, "watch: an event of %zu bytes is too large", frame);
    if (s->line.len < LENGTH + frame)
        return HL_OK;
    hl_status st = on_frame(s, s->line.data + LENGTH, frame);
    hl_buf_clear(&s->line);
    return st;
}

hl_status stream_feed_frames(struct hl_kube_stream *s, const char *bytes, size_t len)
{
    while (len > 0) {
        bool is_whole = s->line.len == 0 && len >= LENGTH && len - LENGTH >= frame_len(bytes);
        if (!is_whole) {
            HL_TRY(gather_frame(s, &bytes, &len));
            continue;
        }
        size_t n = frame_len(bytes);
        HL_TRY(on_frame(s, bytes + LENGTH, n));
        bytes += LENGTH + n;
        len -= LENGTH + n;
    }
    return HL_OK;
}
