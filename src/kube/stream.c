#include "kube/stream_private.h"

#include <stdio.h>
#include <string.h>

#include "core/json.h"

void hl_kube_stream_init(struct hl_kube_stream *s, const char *version,
                         hl_status (*event)(void *arg, enum hl_kube_event type, json_t *object),
                         void *arg)
{
    *s = (struct hl_kube_stream){.line = HL_BUF(HL_KUBE_LINE_MAX), .event = event, .arg = arg};
    snprintf(s->version, sizeof(s->version), "%s", version);
}

void hl_kube_stream_fini(struct hl_kube_stream *s)
{
    hl_buf_fini(&s->line);
}

static void read_version(const struct hl_kube_stream *s, const json_t *object, char *out)
{
    const char *v = hl_json_str(json_object_get(object, "metadata"), "resourceVersion", "");
    bool fits = v[0] != '\0' && strlen(v) < sizeof(s->version);
    snprintf(out, sizeof(s->version), "%s", fits ? v : s->version);
}

static hl_status on_event(struct hl_kube_stream *s, json_t *event)
{
    const char *type = hl_json_str(event, "type", "");
    const json_t *object = json_object_get(event, "object");
    if (!json_is_object(object))
        return hl_fail(HL_EPROTO, "watch: an event without an object");
    if (strcmp(type, "ERROR") == 0)
        return stream_on_error(s, object);
    char version[sizeof(s->version)];
    read_version(s, object, version);
    for (size_t i = 0; stream_events[i] != NULL; i++)
        if (strcmp(type, stream_events[i]) == 0)
            HL_TRY(s->event(s->arg, (enum hl_kube_event)i, hl_json_take(event, "object")));
    /* Stores the version only after the event was delivered: a version ahead of the cache would
     * lose what is in between. Unknown types of events are ignored, as BOOKMARK is. */
    memcpy(s->version, version, sizeof(s->version));
    return HL_OK;
}

static hl_status on_line(struct hl_kube_stream *s, const char *line, size_t len)
{
    json_t *event = NULL;
    if (len == 0 || (len == 1 && line[0] == '\r'))
        return HL_OK;
    hl_status st = hl_kube_parse(line, len, s->members, &event);
    if (st == HL_ENOMEM)
        return st;
    if (st != HL_OK || !json_is_object(event)) {
        json_decref(event);
        return hl_fail(HL_EPROTO, "watch: a line of %zu bytes is not an event", len);
    }
    st = on_event(s, event);
    json_decref(event);
    return st;
}

static hl_status feed_lines(struct hl_kube_stream *s, const char *bytes, size_t len)
{
    while (len > 0) {
        const char *end = memchr(bytes, '\n', len);
        size_t n = end != NULL ? (size_t)(end - bytes) : len;
        if (end == NULL || s->line.len > 0)
            HL_TRY(hl_buf_append(&s->line, bytes, n));
        if (end == NULL)
            return HL_OK;
        hl_status st =
            s->line.len > 0 ? on_line(s, s->line.data, s->line.len) : on_line(s, bytes, n);
        hl_buf_clear(&s->line);
        HL_TRY(st);
        bytes += n + 1;
        len -= n + 1;
    }
    return HL_OK;
}

hl_status hl_kube_stream_feed(struct hl_kube_stream *s, const char *bytes, size_t len)
{
    return s->is_encoded ? stream_feed_frames(s, bytes, len) : feed_lines(s, bytes, len);
}
