#include "hybridps/plan/trace.h"

#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static hl_status fail_memory(void)
{
    return hl_fail(HL_ENOMEM, "out of memory allocating a trace");
}

/* Makes room for one more element of `size` bytes. */
static hl_status grow_list(void *list, size_t *cap, size_t count, size_t size)
{
    void *p;
    if (count < *cap)
        return HL_OK;
    memcpy(&p, list, sizeof(p));
    size_t more = *cap == 0 ? 4 : *cap * 2;
    p = realloc(p, more * size);
    if (p == NULL)
        return fail_memory();
    memcpy(list, &p, sizeof(p));
    *cap = more;
    return HL_OK;
}

void hl_trace_fini(struct hl_trace *t)
{
    for (size_t i = 0; i < t->chunk_count; i++) {
        free(t->chunks[i].id);
        free(t->chunks[i].kind);
    }
    for (size_t i = 0; i < t->moment_count; i++) {
        free(t->moments[i].stage);
        free(t->moments[i].op);
        free(t->moments[i].need);
        free(t->moments[i].free);
    }
    free(t->chunks);
    free(t->moments);
    *t = (struct hl_trace){0};
}

static hl_status copy_both(const char *a, const char *b, char **out_a, char **out_b)
{
    char *x = strdup(a != NULL ? a : ""), *y = strdup(b != NULL ? b : "");
    if (x == NULL || y == NULL) {
        free(x);
        free(y);
        return fail_memory();
    }
    *out_a = x;
    *out_b = y;
    return HL_OK;
}

hl_status hl_trace_add_chunk(struct hl_trace *t, const char *id, bool id_is_number,
                             const char *kind, uint64_t bytes, bool has_content)
{
    struct hl_trace_chunk c = {
        .id_is_number = id_is_number, .bytes = bytes, .has_content = has_content};
    if (t->chunk_count >= HL_TRACE_CHUNKS_MAX)
        return hl_fail(HL_EINVAL, "more than %u chunks", HL_TRACE_CHUNKS_MAX);
    HL_TRY(grow_list(&t->chunks, &t->chunk_cap, t->chunk_count, sizeof(c)));
    HL_TRY(copy_both(id, kind, &c.id, &c.kind));
    t->chunks[t->chunk_count++] = c;
    return HL_OK;
}

hl_status hl_trace_add_moment(struct hl_trace *t, const char *stage, const char *op, uint64_t avail)
{
    struct hl_trace_moment m = {.avail = avail};
    if (t->moment_count >= HL_TRACE_MOMENTS_MAX)
        return hl_fail(HL_EINVAL, "more than %u moments", HL_TRACE_MOMENTS_MAX);
    HL_TRY(grow_list(&t->moments, &t->moment_cap, t->moment_count, sizeof(m)));
    HL_TRY(copy_both(stage, op, &m.stage, &m.op));
    t->moments[t->moment_count++] = m;
    return HL_OK;
}

/* Finds the moment that is appended to; fails if there is no moment or no such chunk. */
static hl_status last_moment(const struct hl_trace *t, uint32_t chunk, struct hl_trace_moment **out)
{
    if (t->moment_count == 0 || chunk >= t->chunk_count)
        return hl_fail(HL_EINVAL, "chunk %u in moment %zu: the trace has %zu chunks, %zu moments",
                       (unsigned)chunk, t->moment_count, t->chunk_count, t->moment_count);
    *out = &t->moments[t->moment_count - 1];
    return HL_OK;
}

hl_status hl_trace_add_need(struct hl_trace *t, uint32_t chunk, bool on_host, bool write)
{
    struct hl_trace_moment *m = NULL;
    struct hl_trace_use *same = NULL;
    HL_TRY(last_moment(t, chunk, &m));
    for (size_t i = 0; i < m->need_count; i++) {
        struct hl_trace_use *u = &m->need[i];
        if (u->chunk != chunk)
            continue;
        if (u->on_host == on_host)
            same = u;
        else if (u->write || write)
            return hl_fail(HL_EINVAL,
                           "chunk \"%s\" is needed on the device and on the host, and written",
                           t->chunks[chunk].id);
    }
    if (same != NULL) {
        same->write |= write;
        return HL_OK;
    }
    HL_TRY(grow_list(&m->need, &m->need_cap, m->need_count, sizeof(*m->need)));
    m->need[m->need_count++] =
        (struct hl_trace_use){.chunk = chunk, .on_host = on_host, .write = write};
    return HL_OK;
}

hl_status hl_trace_add_free(struct hl_trace *t, uint32_t chunk)
{
    struct hl_trace_moment *m = NULL;
    HL_TRY(last_moment(t, chunk, &m));
    for (size_t i = 0; i < m->free_count; i++)
        if (m->free[i] == chunk)
            return HL_OK;
    HL_TRY(grow_list(&m->free, &m->free_cap, m->free_count, sizeof(*m->free)));
    m->free[m->free_count++] = chunk;
    return HL_OK;
}

const char *hl_trace_moment_name(const struct hl_trace *t, size_t moment, char *buf, size_t cap)
{
    const struct hl_trace_moment *m = &t->moments[moment];
    const char *space = m->stage[0] != '\0' && m->op[0] != '\0' ? " " : "";
    if (m->stage[0] == '\0' && m->op[0] == '\0')
        snprintf(buf, cap, "moment %zu", moment);
    else
        snprintf(buf, cap, "moment %zu (%s%s%s)", moment, m->stage, space, m->op);
    return buf;
}

/* ---- reading ---- */

struct trace_reader {
    struct hl_trace t;
    json_t *ids; /* maps an id's key to its index */
    uint64_t bytes;
};

/* A byte count: an integer, possibly written as 1e9. */
static hl_status get_count(const json_t *obj, const char *key, uint64_t max, uint64_t *out)
{
    const json_t *v = json_object_get(obj, key);
    if (v == NULL)
        return hl_fail(HL_EINVAL, ".%s is missing", key);
    if (json_is_integer(v) && json_integer_value(v) >= 0 &&
        (uint64_t)json_integer_value(v) <= max) {
        *out = (uint64_t)json_integer_value(v);
        return HL_OK;
    }
    double real = json_is_real(v) ? json_real_value(v) : -1;
    if (real < 0 || real > (double)max || floor(real) < real)
        return hl_fail(HL_EINVAL, ".%s is not a whole number from 0 to %" PRIu64, key, max);
    *out = (uint64_t)real;
    return HL_OK;
}

/* Copies a string or an integer into buf as text; an absent one gives "". */
static hl_status get_label(const json_t *v, const char *key, char *buf, size_t cap)
{
    int n = 0;
    buf[0] = '\0';
    if (v == NULL || json_is_null(v))
        return HL_OK;
    if (json_is_string(v))
        n = snprintf(buf, cap, "%s", json_string_value(v));
    else if (json_is_integer(v))
        n = snprintf(buf, cap, "%" JSON_INTEGER_FORMAT, json_integer_value(v));
    else
        return hl_fail(HL_EINVAL, "%s is neither a text nor an integer", key);
    if ((size_t)n >= cap)
        return hl_fail(HL_EINVAL, "%s is longer than %zu bytes", key, cap - 1);
    return HL_OK;
}

/* 5 and "5" are different ids. */
static hl_status id_key(const json_t *v, char *buf, size_t cap)
{
    if (!json_is_string(v) && !json_is_integer(v))
        return hl_fail(HL_EINVAL, "id is neither a text nor an integer");
    buf[0] = json_is_string(v) ? 's' : 'i';
    return get_label(v, "id", buf + 1, cap - 1);
}

static hl_status read_chunk(struct trace_reader *r, const json_t *c)
{
    char key[256], kind[256];
    uint64_t bytes;
    if (!json_is_object(c))
        return hl_fail(HL_EINVAL, " is not an object");
    hl_status st = id_key(json_object_get(c, "id"), key, sizeof(key));
    if (st == HL_OK)
        st = get_label(json_object_get(c, "kind"), "kind", kind, sizeof(kind));
    if (st != HL_OK)
        return hl_fail_prefix(st, ".");
    HL_TRY(get_count(c, "bytes", HL_TRACE_BYTES_MAX, &bytes));
    if (bytes == 0 || bytes > HL_TRACE_BYTES_MAX - r->bytes)
        return hl_fail(HL_EINVAL,
                       ".bytes: a chunk, and all chunks together, must have 1 to 2^60 bytes");
    const json_t *init = json_object_get(c, "init");
    const char *where = init == NULL ? "cpu" : json_string_value(init);
    if (where == NULL || (strcmp(where, "cpu") != 0 && strcmp(where, "none") != 0))
        return hl_fail(HL_EINVAL, ".init is neither \"cpu\" nor \"none\"");
    if (json_object_get(r->ids, key) != NULL)
        return hl_fail(HL_EINVAL, ".id \"%s\" is another chunk's already", key + 1);
    if (json_object_set_new(r->ids, key, json_integer((json_int_t)r->t.chunk_count)) != 0)
        return fail_memory();
    r->bytes += bytes;
    return hl_trace_add_chunk(&r->t, key + 1, key[0] == 'i', kind, bytes, where[0] == 'c');
}

static hl_status find_chunk(struct trace_reader *r, const json_t *id, uint32_t *out)
{
    char key[256];
    hl_status st = id_key(id, key, sizeof(key));
    if (st != HL_OK)
        return hl_fail_prefix(st, ": ");
    const json_t *at = json_object_get(r->ids, key);
    if (at == NULL)
        return hl_fail(HL_EINVAL, ": unknown chunk \"%s\"", key + 1);
    *out = (uint32_t)json_integer_value(at);
    return HL_OK;
}

static bool one_of(const json_t *v, const char *a, const char *b, bool *is_b)
{
    const char *s = json_string_value(v);
    if (s == NULL || (strcmp(s, a) != 0 && strcmp(s, b) != 0))
        return false;
    *is_b = strcmp(s, b) == 0;
    return true;
}

static hl_status read_need(struct trace_reader *r, const json_t *need)
{
    uint32_t chunk = 0;
    bool on_host, write;
    if (!json_is_array(need) || json_array_size(need) != 3 ||
        !one_of(json_array_get(need, 1), "gpu", "cpu", &on_host) ||
        !one_of(json_array_get(need, 2), "r", "w", &write))
        return hl_fail(HL_EINVAL, " is not [id, \"gpu\" or \"cpu\", \"r\" or \"w\"]");
    HL_TRY(find_chunk(r, json_array_get(need, 0), &chunk));
    hl_status st = hl_trace_add_need(&r->t, chunk, on_host, write);
    return st == HL_OK ? st : hl_fail_prefix(st, ": ");
}

static hl_status read_free(struct trace_reader *r, const json_t *id)
{
    uint32_t chunk = 0;
    HL_TRY(find_chunk(r, id, &chunk));
    return hl_trace_add_free(&r->t, chunk);
}

/* Calls read for each element of an array, which may be absent unless `wanted`. */
static hl_status read_list(struct trace_reader *r, const json_t *obj, const char *key, int wanted,
                           hl_status (*read)(struct trace_reader *, const json_t *))
{
    const json_t *list = json_object_get(obj, key), *v;
    size_t i;
    if (list == NULL && !wanted)
        return HL_OK;
    if (!json_is_array(list))
        return hl_fail(HL_EINVAL, "%s is %s", key, list == NULL ? "missing" : "no array");
    json_array_foreach (list, i, v) {
        hl_status st = read(r, v);
        if (st != HL_OK)
            return hl_fail_prefix(st, "%s[%zu]", key, i);
    }
    return HL_OK;
}

static hl_status read_moment(struct trace_reader *r, const json_t *m)
{
    char stage[256], op[256];
    uint64_t avail;
    if (!json_is_object(m))
        return hl_fail(HL_EINVAL, " is not an object");
    hl_status st = get_label(json_object_get(m, "stage"), "stage", stage, sizeof(stage));
    if (st == HL_OK)
        st = get_label(json_object_get(m, "op"), "op", op, sizeof(op));
    if (st != HL_OK)
        return hl_fail_prefix(st, ".");
    HL_TRY(get_count(m, "avail", INT64_MAX, &avail));
    HL_TRY(hl_trace_add_moment(&r->t, stage, op, avail));
    st = read_list(r, m, "need", 0, read_need);
    if (st == HL_OK)
        st = read_list(r, m, "free", 0, read_free);
    return st == HL_OK ? st : hl_fail_prefix(st, ".");
}

static hl_status read_all(struct trace_reader *r, const json_t *doc)
{
    if (!json_is_object(doc))
        return hl_fail(HL_EINVAL, "it is not an object");
    HL_TRY(read_list(r, doc, "chunks", 1, read_chunk));
    HL_TRY(read_list(r, doc, "iteration", 1, read_moment));
    if (r->t.moment_count == 0)
        return hl_fail(HL_EINVAL, "iteration has no moment");
    hl_status st = HL_OK;
    r->t.iterations = 1;
    if (json_object_get(doc, "capacity") != NULL)
        st = get_count(doc, "capacity", INT64_MAX, &r->t.capacity);
    if (st == HL_OK && json_object_get(doc, "iterations") != NULL)
        st = get_count(doc, "iterations", HL_TRACE_ITERATIONS_MAX, &r->t.iterations);
    if (st == HL_OK && r->t.iterations == 0)
        st = hl_fail(HL_EINVAL, ".iterations is 0");
    return st;
}

hl_status hl_trace_parse(const char *text, size_t len, struct hl_trace *out)
{
    json_error_t err;
    struct trace_reader r = {.ids = json_object()};
    json_t *doc = json_loadb(text, len, JSON_REJECT_DUPLICATES, &err);
    hl_status st;
    if (r.ids == NULL)
        st = fail_memory();
    else if (doc == NULL)
        st = hl_fail(HL_EINVAL, "trace: line %d column %d: %s", err.line, err.column, err.text);
    else
        st = read_all(&r, doc);
    if (st != HL_OK && doc != NULL)
        st = hl_fail_prefix(st, "trace: ");
    json_decref(doc);
    json_decref(r.ids);
    if (st != HL_OK)
        hl_trace_fini(&r.t);
    else
        *out = r.t;
    return st;
}

/* ---- writing ---- */

static json_t *id_json(const struct hl_trace_chunk *c)
{
    return c->id_is_number ? json_integer(strtoll(c->id, NULL, 10)) : json_string(c->id);
}

static json_t *moment_json(const struct hl_trace *t, const struct hl_trace_moment *m)
{
    json_t *need = json_array(), *gone = json_array();
    for (size_t i = 0; i < m->need_count; i++) {
        const struct hl_trace_use *u = &m->need[i];
        json_array_append_new(need, json_pack("[o,s,s]", id_json(&t->chunks[u->chunk]),
                                              u->on_host ? "cpu" : "gpu", u->write ? "w" : "r"));
    }
    for (size_t i = 0; i < m->free_count; i++)
        json_array_append_new(gone, id_json(&t->chunks[m->free[i]]));
    return json_pack("{s:s, s:s, s:I, s:o, s:o}", "stage", m->stage, "op", m->op, "avail",
                     (json_int_t)m->avail, "need", need, "free", gone);
}

hl_status hl_trace_print(const struct hl_trace *t, char **out)
{
    json_t *chunks = json_array(), *moments = json_array();
    for (size_t i = 0; i < t->chunk_count; i++) {
        const struct hl_trace_chunk *c = &t->chunks[i];
        json_array_append_new(chunks, json_pack("{s:o, s:s, s:I, s:s}", "id", id_json(c), "kind",
                                                c->kind, "bytes", (json_int_t)c->bytes, "init",
                                                c->has_content ? "cpu" : "none"));
    }
    for (size_t i = 0; i < t->moment_count; i++)
        json_array_append_new(moments, moment_json(t, &t->moments[i]));
    json_t *doc = json_pack("{s:o, s:o, s:I}", "chunks", chunks, "iteration", moments, "iterations",
                            (json_int_t)t->iterations);
    if (t->capacity > 0)
        json_object_set_new(doc, "capacity", json_integer((json_int_t)t->capacity));
    char *text = doc != NULL ? json_dumps(doc, JSON_COMPACT) : NULL;
    json_decref(doc);
    if (text == NULL)
        return hl_fail(HL_EINVAL, "a trace can't be printed: out of memory, or a text is not "
                                  "UTF-8");
    *out = text;
    return HL_OK;
}
