/* Converts the events of libyaml to jansson values by recursive descent. Every value gets an entry
 * in a hash of JSON pointers, so that later checks can say where it is in the file. An alias is a
 * deep copy. Its values are counted against the limit before it is made, which stops the "billion
 * laughs" attack. */
#include "conf/yaml.h"

#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <uthash.h>
#include <yaml.h>

#include "base/buf.h"

struct yaml_place {
    struct hl_yaml_pos key;
    struct hl_yaml_pos value;
    UT_hash_handle hh;
    char pointer[];
};

struct hl_yaml {
    char *name;
    json_t *root;
    struct yaml_place *places;
};

struct anchor {
    json_t *value; /* an owned reference */
    size_t values;
    UT_hash_handle hh;
    char name[];
};

struct yaml_reader {
    yaml_parser_t parser;
    struct hl_yaml *doc;
    struct anchor *anchors;
    struct hl_buf path;
    size_t values;
    size_t place_bytes;
    int depth;
};

static struct hl_yaml_pos pos_of(yaml_mark_t mark)
{
    return (struct hl_yaml_pos){(int)mark.line + 1, (int)mark.column + 1};
}

#define fail_at(r, mark, ...) fail_pos((r), pos_of(mark), __VA_ARGS__)

static hl_status HL_PRINTF(3, 4)
    fail_pos(struct yaml_reader *r, struct hl_yaml_pos pos, const char *fmt, ...)
{
    char text[512];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    return hl_fail(HL_EINVAL, "%s:%d:%d: %s", r->doc->name, pos.line, pos.column, text);
}

static hl_status out_of_memory(struct yaml_reader *r)
{
    return hl_fail(HL_ENOMEM, "%s: out of memory", r->doc->name);
}

static hl_status next_event(struct yaml_reader *r, yaml_event_t *ev)
{
    if (yaml_parser_parse(&r->parser, ev))
        return HL_OK;
    const char *problem = r->parser.problem != NULL ? r->parser.problem : "not readable as YAML";
    if (r->parser.error == YAML_MEMORY_ERROR)
        return out_of_memory(r);
    if (r->parser.error == YAML_READER_ERROR)
        return hl_fail(HL_EINVAL, "%s: %s at byte %zu", r->doc->name, problem,
                       r->parser.problem_offset);
    if (r->parser.context != NULL)
        return fail_at(r, r->parser.problem_mark, "%s %s", problem, r->parser.context);
    return fail_at(r, r->parser.problem_mark, "%s", problem);
}

/* With long keys, the pointers could be far larger than the text that they come from. */
#define PLACE_BYTES_MAX (32u << 20)

static hl_status remember_place(struct yaml_reader *r, struct hl_yaml_pos key,
                                struct hl_yaml_pos value)
{
    const char *pointer = r->path.data != NULL ? r->path.data : "";
    r->place_bytes += r->path.len + 1;
    if (r->place_bytes > PLACE_BYTES_MAX)
        return fail_pos(r, value, "too many values under long keys");
    struct yaml_place *p = malloc(sizeof(*p) + r->path.len + 1);
    if (p == NULL)
        return out_of_memory(r);
    p->key = key;
    p->value = value;
    memcpy(p->pointer, pointer, r->path.len + 1);
    HASH_ADD_KEYPTR(hh, r->doc->places, p->pointer, r->path.len, p);
    return HL_OK;
}

/* Appends "/key", with the escapes of RFC 6901. */
static hl_status path_push(struct yaml_reader *r, const char *key)
{
    HL_TRY(hl_buf_append(&r->path, "/", 1));
    for (const char *p = key; *p != '\0'; p++) {
        const char *escaped = *p == '~' ? "~0" : *p == '/' ? "~1" : NULL;
        HL_TRY(escaped != NULL ? hl_buf_append(&r->path, escaped, 2)
                               : hl_buf_append(&r->path, p, 1));
    }
    return HL_OK;
}

static void path_cut(struct yaml_reader *r, size_t len)
{
    r->path.len = len;
    if (r->path.data != NULL)
        r->path.data[len] = '\0';
}

static hl_status count_values(struct yaml_reader *r, yaml_mark_t mark, size_t more)
{
    if (more > HL_YAML_VALUES_MAX - r->values)
        return fail_at(r, mark, "more than %d values (aliases count in full)", HL_YAML_VALUES_MAX);
    r->values += more;
    return HL_OK;
}

static size_t span_digits(const char *p)
{
    return strspn(p, "0123456789");
}

/* [-+]? digits, as base 10, 0x or 0o. */
static json_t *as_integer(const char *text)
{
    const char *digits = text + (*text == '-' || *text == '+');
    char *end;
    int base = 10;
    if (strncmp(text, "0x", 2) == 0 || strncmp(text, "0o", 2) == 0) {
        base = text[1] == 'x' ? 16 : 8;
        digits = text + 2;
        if (strspn(digits, base == 16 ? "0123456789abcdefABCDEF" : "01234567") != strlen(digits))
            return NULL;
    } else if (span_digits(digits) != strlen(digits)) {
        return NULL;
    }
    if (*digits == '\0')
        return NULL;
    errno = 0;
    long long value = strtoll(base == 10 ? text : digits, &end, base);
    return errno == 0 && *end == '\0' ? json_integer(value) : NULL;
}

static json_t *as_real(const char *text)
{
    const char *p = text + (*text == '-' || *text == '+');
    size_t whole = span_digits(p), fraction = 0;
    p += whole;
    if (*p == '.') {
        fraction = span_digits(p + 1);
        p += 1 + fraction;
    }
    if (whole + fraction == 0)
        return NULL;
    if (*p == 'e' || *p == 'E') {
        p += 1 + (p[1] == '-' || p[1] == '+');
        if (span_digits(p) == 0)
            return NULL;
        p += span_digits(p);
    }
    return *p == '\0' ? json_real(strtod(text, NULL)) : NULL; /* NULL on overflow */
}

static bool is_one_of(const char *text, const char *a, const char *b, const char *c)
{
    return strcmp(text, a) == 0 || strcmp(text, b) == 0 || strcmp(text, c) == 0;
}

static json_t *type_plain(const char *text, size_t len)
{
    if (len == 0 || strcmp(text, "~") == 0 || is_one_of(text, "null", "Null", "NULL"))
        return json_null();
    if (is_one_of(text, "true", "True", "TRUE"))
        return json_true();
    if (is_one_of(text, "false", "False", "FALSE"))
        return json_false();
    json_t *v = as_integer(text);
    if (v == NULL)
        v = as_real(text);
    return v != NULL ? v : json_stringn(text, len);
}

static hl_status read_scalar(struct yaml_reader *r, const yaml_event_t *ev, json_t **out)
{
    const char *text = (const char *)ev->data.scalar.value;
    const char *tag = (const char *)ev->data.scalar.tag;
    size_t len = ev->data.scalar.length;
    int plain = ev->data.scalar.style == YAML_PLAIN_SCALAR_STYLE;
    if (memchr(text, '\0', len) != NULL)
        return fail_at(r, ev->start_mark, "a text must not contain the character \\0");
    if (tag != NULL && strcmp(tag, YAML_STR_TAG) != 0)
        return fail_at(r, ev->start_mark, "the tag %.64s is not supported; write the value plainly",
                       tag);
    *out = plain && tag == NULL ? type_plain(text, len) : json_stringn(text, len);
    return *out != NULL ? HL_OK : out_of_memory(r);
}

static hl_status read_node(struct yaml_reader *r, yaml_event_t *ev, const struct hl_yaml_pos *key,
                           json_t **out);

static hl_status read_sequence(struct yaml_reader *r, json_t *list)
{
    size_t base = r->path.len;
    for (size_t i = 0;; i++) {
        yaml_event_t ev;
        char index[24];
        json_t *value = NULL;
        HL_TRY(next_event(r, &ev));
        if (ev.type == YAML_SEQUENCE_END_EVENT) {
            yaml_event_delete(&ev);
            return HL_OK;
        }
        snprintf(index, sizeof(index), "%zu", i);
        hl_status st = path_push(r, index);
        if (st == HL_OK)
            st = read_node(r, &ev, NULL, &value);
        yaml_event_delete(&ev);
        HL_TRY(st);
        path_cut(r, base);
        if (json_array_append_new(list, value) != 0)
            return out_of_memory(r);
    }
}

static hl_status read_key(struct yaml_reader *r, const yaml_event_t *ev, const json_t *map)
{
    const char *key = (const char *)ev->data.scalar.value;
    struct hl_yaml_pos first;
    if (ev->type != YAML_SCALAR_EVENT)
        return fail_at(r, ev->start_mark, "a key must be a text");
    if (strlen(key) != ev->data.scalar.length)
        return fail_at(r, ev->start_mark, "a key must not contain the character \\0");
    HL_TRY(path_push(r, key));
    if (json_object_get(map, key) == NULL)
        return HL_OK;
    first = hl_yaml_where_key(r->doc, r->path.data);
    return fail_at(r, ev->start_mark, "the key '%.64s' appears twice, first in line %d", key,
                   first.line);
}

static hl_status read_mapping(struct yaml_reader *r, json_t *map)
{
    size_t base = r->path.len;
    for (;;) {
        yaml_event_t key_ev, ev;
        json_t *value = NULL;
        HL_TRY(next_event(r, &key_ev));
        if (key_ev.type == YAML_MAPPING_END_EVENT) {
            yaml_event_delete(&key_ev);
            return HL_OK;
        }
        struct hl_yaml_pos key_pos = pos_of(key_ev.start_mark);
        hl_status st = read_key(r, &key_ev, map);
        if (st == HL_OK)
            st = next_event(r, &ev);
        if (st == HL_OK) {
            st = read_node(r, &ev, &key_pos, &value);
            yaml_event_delete(&ev);
        }
        if (st == HL_OK &&
            json_object_set_new(map, (const char *)key_ev.data.scalar.value, value) != 0)
            st = out_of_memory(r);
        yaml_event_delete(&key_ev);
        HL_TRY(st);
        path_cut(r, base);
    }
}

static hl_status read_collection(struct yaml_reader *r, const yaml_event_t *ev, json_t **out)
{
    bool is_map = ev->type == YAML_MAPPING_START_EVENT;
    const yaml_char_t *tag = is_map ? ev->data.mapping_start.tag : ev->data.sequence_start.tag;
    if (tag != NULL)
        return fail_at(r, ev->start_mark, "the tag %.64s is not supported", (const char *)tag);
    if (r->depth >= HL_YAML_DEPTH_MAX)
        return fail_at(r, ev->start_mark, "nested deeper than %d levels", HL_YAML_DEPTH_MAX);
    json_t *value = is_map ? json_object() : json_array();
    if (value == NULL)
        return out_of_memory(r);
    r->depth++;
    hl_status st = is_map ? read_mapping(r, value) : read_sequence(r, value);
    r->depth--;
    if (st != HL_OK) {
        json_decref(value);
        return st;
    }
    *out = value;
    return HL_OK;
}

static hl_status add_anchor(struct yaml_reader *r, const char *name, json_t *value, size_t values)
{
    size_t len = strlen(name);
    struct anchor *a = NULL, *old = NULL;
    HASH_FIND(hh, r->anchors, name, len, old);
    if (old != NULL) { /* in YAML a later anchor may reuse the name */
        HASH_DEL(r->anchors, old);
        json_decref(old->value);
        free(old);
    }
    a = malloc(sizeof(*a) + len + 1);
    if (a == NULL)
        return out_of_memory(r);
    a->value = json_incref(value);
    a->values = values;
    memcpy(a->name, name, len + 1);
    HASH_ADD_KEYPTR(hh, r->anchors, a->name, len, a);
    return HL_OK;
}

static hl_status read_alias(struct yaml_reader *r, const yaml_event_t *ev, json_t **out)
{
    const char *name = (const char *)ev->data.alias.anchor;
    struct anchor *a = NULL;
    HASH_FIND(hh, r->anchors, name, strlen(name), a);
    if (a == NULL)
        return fail_at(r, ev->start_mark, "the alias *%.64s has no anchor before it", name);
    HL_TRY(count_values(r, ev->start_mark, a->values));
    *out = json_deep_copy(a->value);
    return *out != NULL ? HL_OK : out_of_memory(r);
}

static hl_status read_node(struct yaml_reader *r, yaml_event_t *ev, const struct hl_yaml_pos *key,
                           json_t **out)
{
    struct hl_yaml_pos pos = pos_of(ev->start_mark);
    size_t before = r->values;
    const yaml_char_t *anchor = NULL;
    json_t *value = NULL;
    HL_TRY(remember_place(r, key != NULL ? *key : pos, pos));
    HL_TRY(count_values(r, ev->start_mark, 1));
    switch (ev->type) {
    case YAML_ALIAS_EVENT:
        return read_alias(r, ev, out);
    case YAML_SCALAR_EVENT:
        anchor = ev->data.scalar.anchor;
        HL_TRY(read_scalar(r, ev, &value));
        break;
    case YAML_SEQUENCE_START_EVENT:
        anchor = ev->data.sequence_start.anchor;
        HL_TRY(read_collection(r, ev, &value));
        break;
    case YAML_MAPPING_START_EVENT:
        anchor = ev->data.mapping_start.anchor;
        HL_TRY(read_collection(r, ev, &value));
        break;
    default:
        return fail_pos(r, pos, "a value is missing");
    }
    if (anchor != NULL) {
        hl_status st = add_anchor(r, (const char *)anchor, value, r->values - before);
        if (st != HL_OK) {
            json_decref(value);
            return st;
        }
    }
    *out = value;
    return HL_OK;
}

static hl_status expect_event(struct yaml_reader *r, yaml_event_type_t type, const char *otherwise)
{
    yaml_event_t ev;
    HL_TRY(next_event(r, &ev));
    hl_status st = ev.type == type ? HL_OK : fail_at(r, ev.start_mark, "%s", otherwise);
    yaml_event_delete(&ev);
    return st;
}

static hl_status read_document(struct yaml_reader *r)
{
    yaml_event_t ev;
    HL_TRY(expect_event(r, YAML_STREAM_START_EVENT, "not a YAML stream"));
    HL_TRY(next_event(r, &ev));
    if (ev.type == YAML_STREAM_END_EVENT) {
        yaml_event_delete(&ev);
        r->doc->root = json_null();
        return remember_place(r, (struct hl_yaml_pos){1, 1}, (struct hl_yaml_pos){1, 1});
    }
    yaml_event_delete(&ev);
    HL_TRY(next_event(r, &ev));
    hl_status st = read_node(r, &ev, NULL, &r->doc->root);
    yaml_event_delete(&ev);
    HL_TRY(st);
    HL_TRY(expect_event(r, YAML_DOCUMENT_END_EVENT, "the document does not end here"));
    return expect_event(r, YAML_STREAM_END_EVENT, "a second document begins here; one is allowed");
}

static void free_anchors(struct yaml_reader *r)
{
    struct anchor *a, *next;
    HASH_ITER (hh, r->anchors, a, next) {
        HASH_DEL(r->anchors, a);
        json_decref(a->value);
        free(a);
    }
}

hl_status hl_yaml_parse(const char *name, const char *text, size_t len, struct hl_yaml **out)
{
    HL_AUTO(hl_yaml_freep) struct hl_yaml *doc = calloc(1, sizeof(*doc));
    if (doc == NULL || (doc->name = strdup(name)) == NULL)
        return hl_fail(HL_ENOMEM, "%s: out of memory", name);
    if (len > HL_YAML_BYTES_MAX)
        return hl_fail(HL_EINVAL, "%s: %zu bytes of YAML, at most %u are read", name, len,
                       HL_YAML_BYTES_MAX);
    if (len >= 3 && memcmp(text, "\xef\xbb\xbf", 3) == 0) { /* a byte order mark */
        text += 3;
        len -= 3;
    }
    struct yaml_reader r = {.doc = doc, .path = HL_BUF(4 * HL_YAML_BYTES_MAX)};
    if (!yaml_parser_initialize(&r.parser))
        return hl_fail(HL_ENOMEM, "%s: out of memory", name);
    yaml_parser_set_encoding(&r.parser, YAML_UTF8_ENCODING);
    yaml_parser_set_input_string(&r.parser, (const unsigned char *)text, len);
    hl_status st = read_document(&r);
    free_anchors(&r);
    hl_buf_fini(&r.path);
    yaml_parser_delete(&r.parser);
    HL_TRY(st);
    *out = hl_steal(&doc);
    return HL_OK;
}

hl_status hl_yaml_load(const char *path, struct hl_yaml **out)
{
    struct hl_buf text = HL_BUF(HL_YAML_BYTES_MAX + 2);
    FILE *f = fopen(path, "re");
    if (f == NULL)
        return hl_fail(errno == ENOENT ? HL_ENOENT : HL_EIO, "%s can't be read: %m", path);
    char *room = hl_buf_room(&text, HL_YAML_BYTES_MAX + 1);
    size_t n = room != NULL ? fread(room, 1, HL_YAML_BYTES_MAX + 1, f) : 0;
    hl_status st = HL_OK;
    if (room == NULL)
        st = HL_ENOMEM;
    else if (ferror(f))
        st = hl_fail(HL_EIO, "%s can't be read: %m", path);
    fclose(f);
    if (st == HL_OK)
        st = hl_yaml_parse(path, room, n, out);
    hl_buf_fini(&text);
    return st;
}

void hl_yaml_free(struct hl_yaml *doc)
{
    struct yaml_place *p, *next;
    if (doc == NULL)
        return;
    HASH_ITER (hh, doc->places, p, next) {
        HASH_DEL(doc->places, p);
        free(p);
    }
    json_decref(doc->root);
    free(doc->name);
    free(doc);
}

void hl_yaml_freep(struct hl_yaml **doc)
{
    hl_yaml_free(*doc);
    *doc = NULL;
}

json_t *hl_yaml_root(const struct hl_yaml *doc)
{
    return doc->root;
}

const char *hl_yaml_name(const struct hl_yaml *doc)
{
    return doc->name;
}

static const struct yaml_place *find_place(const struct hl_yaml *doc, const char *pointer)
{
    for (size_t len = strlen(pointer);; len--) {
        struct yaml_place *p = NULL;
        HASH_FIND(hh, doc->places, pointer, len, p);
        if (p != NULL || len == 0)
            return p;
        while (len > 1 && pointer[len - 1] != '/')
            len--;
    }
}

struct hl_yaml_pos hl_yaml_where(const struct hl_yaml *doc, const char *pointer)
{
    const struct yaml_place *p = find_place(doc, pointer);
    return p != NULL ? p->value : (struct hl_yaml_pos){1, 1};
}

struct hl_yaml_pos hl_yaml_where_key(const struct hl_yaml *doc, const char *pointer)
{
    const struct yaml_place *p = find_place(doc, pointer);
    return p != NULL ? p->key : (struct hl_yaml_pos){1, 1};
}

void hl_yaml_locate(const void *doc, const char *pointer, bool of_key, int *line, int *column)
{
    struct hl_yaml_pos pos = of_key ? hl_yaml_where_key(doc, pointer) : hl_yaml_where(doc, pointer);
    *line = pos.line;
    *column = pos.column;
}
