/* Reads a pod from Protocol Buffers: fields of k8s.io.api.core.v1.Pod and of the messages in it,
 * whose numbers never change. */
#include "base/protobuf.h"

#include <string.h>
#include <time.h>

#include "ranktable/pod_private.h"

enum { POD_METADATA = 1, POD_SPEC, POD_STATUS };

enum {
    META_NAME = 1,
    META_NAMESPACE = 3,
    META_UID = 5,
    META_CREATED = 8,
    META_DELETED = 9,
    META_LABELS = 11,
    META_ANNOTATIONS = 12,
    META_OWNERS = 13,
};

enum { OWNER_UID = 4, TIME_SECONDS = 1, SPEC_CONTAINERS = 2, CONTAINER_RESOURCES = 8 };

enum { RESOURCES_LIMITS = 1, QUANTITY_TEXT = 1, ENTRY_KEY = 1, ENTRY_VALUE };

enum { STATUS_PHASE = 1, STATUS_POD_IP = 6 };

/* False: the bytes are not such a message. */
typedef bool field_reader(struct pod_view *v, const struct hl_protobuf_field *f);

static bool read_fields(struct pod_view *v, const struct hl_protobuf_field *message,
                        field_reader *read)
{
    struct hl_protobuf p = hl_protobuf(message->bytes, message->len);
    struct hl_protobuf_field f;
    while (hl_protobuf_next(&p, &f))
        if (f.is_bytes && !read(v, &f))
            return false;
    return !p.bad;
}

static struct pod_text text_of(const struct hl_protobuf_field *f)
{
    return (struct pod_text){f->bytes, f->len};
}

/* ---- metadata -------------------------------------------------------------------------------- */

struct map_entry {
    struct pod_text key, value;
};

static bool read_entry(const struct hl_protobuf_field *message, struct map_entry *out)
{
    struct hl_protobuf p = hl_protobuf(message->bytes, message->len);
    struct hl_protobuf_field f;
    *out = (struct map_entry){.key = {"", 0}, .value = {"", 0}};
    while (hl_protobuf_next(&p, &f))
        if (f.is_bytes && f.number == ENTRY_KEY)
            out->key = text_of(&f);
        else if (f.is_bytes && f.number == ENTRY_VALUE)
            out->value = text_of(&f);
    return !p.bad;
}

static bool read_mark(const struct hl_protobuf_field *f, struct pod_text *out)
{
    struct map_entry e;
    if (!read_entry(f, &e))
        return false;
    for (int i = 0; i < POD_KEYS; i++)
        if (strncmp(pod_keys[i], e.key.at, e.key.len) == 0 && pod_keys[i][e.key.len] == '\0')
            out[i] = e.value;
    return true;
}

/* Writes the time as in JSON: RFC 3339. */
static bool read_time(const struct hl_protobuf_field *message, char *out, size_t cap)
{
    struct hl_protobuf p = hl_protobuf(message->bytes, message->len);
    struct hl_protobuf_field f;
    struct tm utc;
    time_t seconds = 0;
    while (hl_protobuf_next(&p, &f))
        if (!f.is_bytes && f.number == TIME_SECONDS)
            seconds = (time_t)f.value;
    if (message->len == 0) /* absent */
        return true;
    return !p.bad && gmtime_r(&seconds, &utc) != NULL &&
           strftime(out, cap, "%Y-%m-%dT%H:%M:%SZ", &utc) > 0;
}

static bool read_owner(struct pod_view *v, const struct hl_protobuf_field *message)
{
    struct hl_protobuf_field uid = {.bytes = ""};
    struct hl_protobuf p = hl_protobuf(message->bytes, message->len);
    struct hl_protobuf_field f;
    while (hl_protobuf_next(&p, &f))
        if (f.is_bytes && f.number == OWNER_UID)
            uid = f;
    return !p.bad && hl_buf_append(&v->owners, uid.bytes, uid.len) == HL_OK &&
           hl_buf_append(&v->owners, "\n", 1) == HL_OK;
}

static bool read_meta(struct pod_view *v, const struct hl_protobuf_field *f)
{
    switch (f->number) {
    case META_NAME:
        v->name = text_of(f);
        return true;
    case META_NAMESPACE:
        v->ns = text_of(f);
        return true;
    case META_UID:
        v->uid = text_of(f);
        return true;
    case META_CREATED:
        return read_time(f, v->born, sizeof(v->born));
    case META_DELETED:
        v->gone = true;
        return true;
    case META_LABELS:
        return read_mark(f, v->labels);
    case META_ANNOTATIONS:
        return read_mark(f, v->annotations);
    case META_OWNERS:
        return read_owner(v, f);
    default:
        return true;
    }
}

/* ---- spec and status ------------------------------------------------------------------------- */

static bool read_limit(struct pod_view *v, const struct hl_protobuf_field *f)
{
    struct hl_protobuf_field amount = {.bytes = ""};
    struct map_entry e;
    if (f->number != RESOURCES_LIMITS)
        return true;
    if (!read_entry(f, &e))
        return false;
    (void)hl_protobuf_find(e.value.at, e.value.len, QUANTITY_TEXT, &amount);
    v->asks |= pod_is_device(e.key, text_of(&amount));
    return true;
}

static bool read_container(struct pod_view *v, const struct hl_protobuf_field *f)
{
    return f->number != CONTAINER_RESOURCES || read_fields(v, f, read_limit);
}

static bool read_spec(struct pod_view *v, const struct hl_protobuf_field *f)
{
    return f->number != SPEC_CONTAINERS || read_fields(v, f, read_container);
}

static bool read_status(struct pod_view *v, const struct hl_protobuf_field *f)
{
    static const char failed[] = "Failed";
    if (f->number == STATUS_PHASE)
        v->gone |= f->len == strlen(failed) && memcmp(f->bytes, failed, f->len) == 0;
    else if (f->number == STATUS_POD_IP)
        v->ip = text_of(f);
    return true;
}

static bool read_part(struct pod_view *v, const struct hl_protobuf_field *f)
{
    switch (f->number) {
    case POD_METADATA:
        return read_fields(v, f, read_meta);
    case POD_SPEC:
        return read_fields(v, f, read_spec);
    case POD_STATUS:
        return read_fields(v, f, read_status);
    default:
        return true;
    }
}

hl_status hl_ranktable_pod_decode(const char *bytes, size_t len, struct hl_ranktable_pod **out)
{
    struct pod_view v = POD_VIEW;
    hl_buf_printf(&v.owners, "\n");
    if (read_fields(&v, &(struct hl_protobuf_field){.bytes = bytes, .len = len}, read_part))
        return pod_of_view(&v, out);
    hl_status st = v.owners.failed ? hl_fail(HL_ENOMEM, "out of memory allocating a pod")
                                   : hl_fail(HL_EPROTO, "%zu bytes are not a pod", len);
    hl_buf_fini(&v.owners);
    return st;
}
