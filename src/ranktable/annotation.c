/* Two readers: a fast one for the form that device plugins write, and jansson for all else. */
#include "ranktable/annotation.h"

#include <ctype.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/text.h"
#include "core/json.h"

#define BYTES_MAX 65536

/* Reads an optional member: printable text, or a whole number. */
static hl_status text_member(const char *pod, const json_t *obj, const char *key, char *out,
                             size_t cap)
{
    const json_t *v = json_object_get(obj, key);
    const char *s = json_string_value(v);
    out[0] = '\0';
    if (v == NULL || json_is_null(v))
        return HL_OK;
    if (json_is_integer(v)) {
        snprintf(out, cap, "%" JSON_INTEGER_FORMAT, json_integer_value(v));
        return HL_OK;
    }
    if (s == NULL || json_string_length(v) >= cap)
        return hl_fail(HL_EINVAL, "%.253s: %s in its device annotation is %s", pod, key,
                       s == NULL ? "not a text" : "too long");
    for (size_t i = 0; i < json_string_length(v); i++)
        if (!isgraph((unsigned char)s[i]))
            return hl_fail(HL_EINVAL,
                           "%.253s: %s in its device annotation has a character that "
                           "can't be printed",
                           pod, key);
    snprintf(out, cap, "%s", s);
    return HL_OK;
}

static hl_status read_device(const char *pod, const json_t *from, struct hl_ranktable_device *out)
{
    json_t *levels = json_object_get(from, "levelList");
    if (!json_is_object(from))
        return hl_fail(HL_EINVAL, "%.253s: a device in its annotation is not an object", pod);
    HL_TRY(text_member(pod, from, "device_id", out->id, sizeof(out->id)));
    HL_TRY(text_member(pod, from, "device_ip", out->ip, sizeof(out->ip)));
    HL_TRY(text_member(pod, from, "super_device_id", out->super_id, sizeof(out->super_id)));
    if (levels != NULL && !json_is_array(levels))
        return hl_fail(HL_EINVAL, "%.253s: levelList in its device annotation is not a list", pod);
    out->levels = json_incref(levels);
    return HL_OK;
}

static hl_status read_devices(const json_t *doc, struct hl_ranktable_instance *out)
{
    const json_t *list = hl_json_list(doc, "devices");
    size_t n = json_array_size(list);
    if (n == 0 || n > HL_RANKTABLE_DEVICES_MAX)
        return hl_fail(HL_EINVAL, "%s: its device annotation has %zu devices; 1 to %d are right",
                       out->name, n, HL_RANKTABLE_DEVICES_MAX);
    out->devices = calloc(n, sizeof(*out->devices));
    if (out->devices == NULL)
        return hl_fail(HL_ENOMEM, "out of memory allocating the devices of %s", out->name);
    for (size_t i = 0; i < n; i++) {
        out->device_count = i + 1;
        HL_TRY(read_device(out->name, json_array_get(list, i), &out->devices[i]));
    }
    return HL_OK;
}

static hl_status read_all(const json_t *doc, struct hl_ranktable_instance *out)
{
    const char *pod = out->name;
    if (!json_is_object(doc))
        return hl_fail(HL_EINVAL, "%s: its device annotation is not a JSON object", pod);
    HL_TRY(text_member(pod, doc, "server_id", out->server_id, sizeof(out->server_id)));
    HL_TRY(text_member(pod, doc, "host_ip", out->host_ip, sizeof(out->host_ip)));
    HL_TRY(text_member(pod, doc, "hardware_type", out->hardware_type, sizeof(out->hardware_type)));
    HL_TRY(text_member(pod, doc, "super_pod_id", out->super_pod_id, sizeof(out->super_pod_id)));
    if (out->server_id[0] == '\0')
        return hl_fail(HL_EINVAL, "%s: its device annotation has no server_id", pod);
    HL_TRY(read_devices(doc, out));
    return hl_ranktable_check_devices(out);
}

/* ---- the usual form -------------------------------------------------------------------------- */

/* Fast reader for the form that device plugins write: an object of plain texts and a list of such
 * objects, with only known members, each at most once. It builds no JSON objects, so it takes a
 * tenth of the time. For any other form it gives up, and read_all reads the text and says what is
 * wrong. */
struct usual {
    const char *at, *end;
    struct hl_ranktable_instance *out;
};

struct text_place {
    const char *key;
    size_t offset, cap; /* 0: the value is not used */
};

#define PLACE(type, key, member)                                                                   \
    {                                                                                              \
        key, offsetof(struct type, member), sizeof(((struct type *)NULL)->member)                  \
    }

static const struct text_place of_device[] = {
    PLACE(hl_ranktable_device, "device_id", id),
    PLACE(hl_ranktable_device, "device_ip", ip),
    PLACE(hl_ranktable_device, "super_device_id", super_id),
};
static const struct text_place of_pod[] = {
    {"pod_name", 0, 0},
    PLACE(hl_ranktable_instance, "server_id", server_id),
    PLACE(hl_ranktable_instance, "host_ip", host_ip),
    PLACE(hl_ranktable_instance, "hardware_type", hardware_type),
    PLACE(hl_ranktable_instance, "super_pod_id", super_pod_id),
};

static bool is_space(char c)
{
    return c == ' ' || c == '\t' || c == '\r' || c == '\n';
}

static bool usual_mark(struct usual *u, char c)
{
    while (u->at < u->end && is_space(*u->at))
        u->at++;
    if (u->at == u->end || *u->at != c)
        return false;
    u->at++;
    return true;
}

/* Reads a quoted text without escapes; borrowed. */
static bool usual_text(struct usual *u, const char **text, size_t *len)
{
    if (!usual_mark(u, '"'))
        return false;
    *text = u->at;
    while (u->at<u->end && * u->at> ' ' && *u->at < 0x7f && *u->at != '"' && *u->at != '\\')
        u->at++;
    *len = (size_t)(u->at - *text);
    return u->at < u->end && *u->at++ == '"';
}

/* Reads a text member that is not yet in `seen`. */
static bool usual_member(struct usual *u, const char *key, size_t key_len,
                         const struct text_place *places, size_t count, void *into, unsigned *seen)
{
    const char *text;
    size_t len, i = 0;
    while (i < count && (strncmp(places[i].key, key, key_len) != 0 || places[i].key[key_len] != 0))
        i++;
    if (i == count || (*seen & 1u << i) != 0 || !usual_text(u, &text, &len) ||
        (places[i].cap > 0 && len >= places[i].cap))
        return false;
    *seen |= 1u << i;
    if (places[i].cap > 0)
        memcpy((char *)into + places[i].offset, text, len); /* `into` was zeroed */
    return true;
}

static bool usual_device(struct usual *u, struct hl_ranktable_device *d)
{
    unsigned seen = 0;
    const char *key;
    size_t len;
    if (!usual_mark(u, '{'))
        return false;
    do
        if (!usual_text(u, &key, &len) || !usual_mark(u, ':') ||
            !usual_member(u, key, len, of_device, HL_ARRAY_LEN(of_device), d, &seen))
            return false;
    while (usual_mark(u, ','));
    return usual_mark(u, '}');
}

static bool usual_devices(struct usual *u)
{
    struct hl_ranktable_device all[HL_RANKTABLE_DEVICES_MAX] = {0};
    size_t n = 0;
    if (u->out->devices != NULL || !usual_mark(u, '['))
        return false;
    do
        if (n == HL_RANKTABLE_DEVICES_MAX || !usual_device(u, &all[n++]))
            return false;
    while (usual_mark(u, ','));
    u->out->devices = malloc(n * sizeof(*all));
    if (u->out->devices == NULL || !usual_mark(u, ']'))
        return false;
    memcpy(u->out->devices, all, n * sizeof(*all));
    u->out->device_count = n;
    return true;
}

static bool usual_end(struct usual *u)
{
    while (u->at < u->end && is_space(*u->at))
        u->at++;
    return u->at == u->end;
}

static bool usual_pod(struct usual *u)
{
    static const char devices[] = "devices";
    unsigned seen = 0;
    const char *key;
    size_t len;
    if (!usual_mark(u, '{'))
        return false;
    do {
        if (!usual_text(u, &key, &len) || !usual_mark(u, ':'))
            return false;
        bool is_list = len == strlen(devices) && memcmp(key, devices, len) == 0;
        if (is_list ? !usual_devices(u)
                    : !usual_member(u, key, len, of_pod, HL_ARRAY_LEN(of_pod), u->out, &seen))
            return false;
    } while (usual_mark(u, ','));
    return usual_mark(u, '}') && usual_end(u) && u->out->server_id[0] != '\0' &&
           u->out->device_count > 0;
}

/* False: the text has another form, and *out is unchanged. */
static bool read_usual(const char *text, size_t len, struct hl_ranktable_instance *out)
{
    struct hl_ranktable_instance made = *out;
    struct usual u = {.at = text, .end = text + len, .out = &made};
    bool ok = usual_pod(&u);
    if (ok)
        *out = made;
    else
        free(made.devices);
    return ok;
}

static hl_status read_text(const char *text, size_t len, struct hl_ranktable_instance *out)
{
    if (read_usual(text, len, out))
        return hl_ranktable_check_devices(out);
    json_t *doc = json_loadb(text, len, JSON_REJECT_DUPLICATES, NULL);
    hl_status st = read_all(doc, out);
    json_decref(doc);
    return st;
}

hl_status hl_ranktable_annotation(const char *text, size_t len, struct hl_ranktable_instance *out)
{
    if (text == NULL)
        return hl_fail(HL_ENOENT, "%s: it has no device annotation yet", out->name);
    if (len > BYTES_MAX)
        return hl_fail(HL_EINVAL, "%s: its device annotation has more than %d bytes", out->name,
                       BYTES_MAX);
    struct hl_ranktable_instance before = *out;
    hl_status st = read_text(text, len, out);
    if (st != HL_OK) {
        char why[HL_ERROR_TEXT_MAX];
        snprintf(why, sizeof(why), "%s", hl_error_text());
        hl_ranktable_instance_fini(out);
        *out = before;
        return hl_fail(st, "%s", why);
    }
    return HL_OK;
}

hl_status hl_ranktable_wanted_index(const char *text, size_t len, struct hl_ranktable_instance *out)
{
    char number[33];
    uint64_t index;
    snprintf(number, sizeof(number), "%.*s", (int)(len < sizeof(number) ? len : sizeof(number)),
             text);
    if (len >= sizeof(number) || !hl_parse_number(number, HL_RANKTABLE_INDEX_MAX, &index))
        return hl_fail(HL_EINVAL, "%.253s: hccl/rankIndex is '%s', not a number from 0 to %d",
                       out->name, number, HL_RANKTABLE_INDEX_MAX);
    out->rank_index = (int32_t)index;
    return HL_OK;
}
