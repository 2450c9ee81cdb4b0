/* The part that all back ends share: chooses one by URL, checks limits, and converts JSON to text
 * and back.
 *
 *     the opening thread                         any thread
 *     get, scan, commit --.                      write (the store's writer)
 *     a batch: its text    '--> store->lock --> back end <-- store->lock --'
 *
 * The lock is held for a whole call of the back end, and so for an fsync and for a whole scan: a
 * loop that must not wait for the disk commits through writer.h. JSON becomes text outside of the
 * lock (a batch), so that a write under it only copies pointers. Only the opening thread looks at
 * `scanning`, which is why it needs no lock: it finds a callback that would wait for its own lock.
 * A write inside a callback is not found, and never returns. */
#include "store/store.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/crc32.h"
#include "store/ops.h"

#define KEY_MAX   512
#define VALUE_MAX (16u << 20)
#define BATCH_MAX 100000u

static const struct hl_store_ops *const backends[] = {&hl_store_mem, &hl_store_sqlite};

hl_status hl_store_open(const char *url, struct hl_store **out)
{
    for (size_t i = 0; i < HL_ARRAY_LEN(backends); i++) {
        size_t n = strlen(backends[i]->scheme);
        if (strncmp(url, backends[i]->scheme, n) != 0 || url[n] != ':')
            continue;
        HL_TRY(backends[i]->open(url + n + 1, out));
        pthread_mutex_init(&(*out)->lock, NULL);
        return HL_OK;
    }
    return hl_fail(HL_EINVAL, "store \"%s\": expected mem: or sqlite:PATH", url);
}

void hl_store_close(struct hl_store *store)
{
    if (store == NULL)
        return;
    pthread_mutex_destroy(&store->lock);
    store->ops->close(store);
}

/* A change during a scan could make the scan see half of it, in a different way for each back
 * end. */
static hl_status check_idle(const struct hl_store *store)
{
    if (store->scanning)
        return hl_fail(HL_EBUSY, "the store was used inside a scan's callback");
    return HL_OK;
}

static hl_status check_key(const char *key)
{
    if (key == NULL || key[0] == '\0')
        return hl_fail(HL_EINVAL, "a key of the store is empty");
    if (strnlen(key, KEY_MAX + 1) > KEY_MAX)
        return hl_fail(HL_EINVAL, "key \"%.64s...\" is longer than %d bytes", key, KEY_MAX);
    return HL_OK;
}

static uint32_t record_crc(const char *key, const char *json, size_t len)
{
    uint32_t crc = hl_crc32(0, key, strlen(key) + 1);
    return hl_crc32(crc, json, len);
}

/* A record is "crc32=1a2b3c4d {...}". JSON never begins with that text, so records without a
 * checksum are recognised. */
#define CRC_MARK "crc32="
#define CRC_LEN  (sizeof(CRC_MARK) - 1 + 8 + 1)

static void format_crc(const char *key, const char *json, size_t len, char *out)
{
    char text[CRC_LEN + 1];
    snprintf(text, sizeof(text), CRC_MARK "%08" PRIx32 " ", record_crc(key, json, len));
    memcpy(out, text, CRC_LEN);
}

/* Skips the checksum if there is one and it is right. */
static hl_status check_crc(const char *key, const char **text, size_t *len)
{
    char expected[CRC_LEN];
    if (*len < CRC_LEN || memcmp(*text, CRC_MARK, sizeof(CRC_MARK) - 1) != 0)
        return HL_OK;
    format_crc(key, *text + CRC_LEN, *len - CRC_LEN, expected);
    if (memcmp(*text, expected, CRC_LEN) != 0)
        return hl_fail(HL_ECORRUPT, "the record %s in the store fails its checksum", key);
    *text += CRC_LEN;
    *len -= CRC_LEN;
    return HL_OK;
}

static hl_status decode_value(const char *key, const char *text, size_t len, json_t **out)
{
    json_error_t error;
    HL_TRY(check_crc(key, &text, &len));
    json_t *value = json_loadb(text, len, JSON_DECODE_ANY | JSON_ALLOW_NUL, &error);
    if (value == NULL)
        return hl_fail(HL_ECORRUPT, "the value of key %s in the store is not JSON: %s", key,
                       error.text);
    *out = value;
    return HL_OK;
}

static hl_status encode_op(const struct hl_store_op *op, struct hl_store_row *row)
{
    HL_TRY(check_key(op->key));
    *row = (struct hl_store_row){.kind = op->kind, .key = strdup(op->key)};
    if (row->key == NULL)
        return hl_fail(HL_ENOMEM, "key %s: out of memory for its record", op->key);
    if (op->kind == HL_STORE_DELETE)
        return HL_OK;
    if (op->value == NULL)
        return hl_fail(HL_EINVAL, "key %s: there is no value to store", op->key);
    HL_AUTO(hl_freep) char *json = json_dumps(op->value, JSON_COMPACT | JSON_ENCODE_ANY);
    if (json == NULL)
        return hl_fail(HL_EINVAL, "key %s: the value can't be written as JSON", op->key);
    size_t len = strlen(json);
    if (len > VALUE_MAX)
        return hl_fail(HL_EINVAL, "key %s: a value of %zu bytes is above the limit of %u", op->key,
                       len, VALUE_MAX);
    row->text = malloc(CRC_LEN + len + 1);
    if (row->text == NULL)
        return hl_fail(HL_ENOMEM, "key %s: out of memory for its record", op->key);
    format_crc(op->key, json, len, row->text);
    memcpy(row->text + CRC_LEN, json, len + 1);
    row->len = CRC_LEN + len;
    return HL_OK;
}

/* The back end's text is only valid during the callback, under the lock, so it is decoded there. */
struct got {
    json_t *value;
};

static hl_status keep_value(void *arg, const char *key, const char *text, size_t len)
{
    struct got *got = arg;
    return decode_value(key, text, len, &got->value);
}

hl_status hl_store_get(struct hl_store *store, const char *key, json_t **out)
{
    struct got got = {NULL};
    HL_TRY(check_idle(store));
    HL_TRY(check_key(key));
    pthread_mutex_lock(&store->lock);
    hl_status st = store->ops->get(store, key, keep_value, &got);
    pthread_mutex_unlock(&store->lock);
    HL_TRY(st);
    *out = got.value;
    return HL_OK;
}

void hl_store_batch_destroy(struct hl_store_batch *batch)
{
    for (size_t i = 0; batch != NULL && i < batch->count; i++) {
        free(batch->rows[i].key);
        free(batch->rows[i].text);
    }
    if (batch != NULL)
        free(batch->rows);
    free(batch);
}

size_t hl_store_batch_size(const struct hl_store_batch *batch)
{
    return batch->count;
}

hl_status hl_store_batch_create(const struct hl_store_op *ops, size_t n,
                                struct hl_store_batch **out)
{
    if (n > BATCH_MAX)
        return hl_fail(HL_EINVAL, "a batch of %zu operations is above the limit of %u", n,
                       BATCH_MAX);
    struct hl_store_batch *batch = calloc(1, sizeof(*batch));
    if (batch != NULL)
        batch->rows = calloc(n + 1, sizeof(*batch->rows));
    if (batch == NULL || batch->rows == NULL) {
        free(batch);
        return hl_fail(HL_ENOMEM, "out of memory allocating a batch of %zu operations", n);
    }
    batch->count = n; /* rows that are not encoded yet are empty */
    hl_status st = HL_OK;
    for (size_t i = 0; i < n && st == HL_OK; i++)
        st = encode_op(&ops[i], &batch->rows[i]);
    if (st != HL_OK) {
        hl_store_batch_destroy(batch);
        return st;
    }
    *out = batch;
    return HL_OK;
}

static hl_status write_rows(struct hl_store *store, const struct hl_store_row *rows, size_t n)
{
    pthread_mutex_lock(&store->lock);
    hl_status st = store->ops->commit(store, rows, n);
    pthread_mutex_unlock(&store->lock);
    return st;
}

hl_status hl_store_write(struct hl_store *store, struct hl_store_batch *const *batches, size_t n)
{
    size_t count = 0, at = 0;
    for (size_t i = 0; i < n; i++)
        count += batches[i]->count;
    if (count == 0)
        return HL_OK;
    struct hl_store_row *rows = calloc(count, sizeof(*rows)); /* the batches own the texts */
    if (rows == NULL)
        return hl_fail(HL_ENOMEM, "out of memory for a commit of %zu operations", count);
    for (size_t i = 0; i < n; i++)
        for (size_t k = 0; k < batches[i]->count; k++)
            rows[at++] = batches[i]->rows[k];
    hl_status st = write_rows(store, rows, count);
    free(rows);
    return st;
}

hl_status hl_store_commit(struct hl_store *store, const struct hl_store_op *ops, size_t n)
{
    struct hl_store_batch *batch;
    HL_TRY(check_idle(store));
    if (n == 0)
        return HL_OK;
    HL_TRY(hl_store_batch_create(ops, n, &batch));
    hl_status st = hl_store_write(store, &batch, 1);
    hl_store_batch_destroy(batch);
    return st;
}

struct scan {
    hl_store_visit visit;
    hl_store_damaged damaged; /* NULL = ends the scan */
    void *arg;
};

static hl_status show_value(void *arg, const char *key, const char *text, size_t len)
{
    struct scan *scan = arg;
    json_t *value = NULL;
    hl_status st = decode_value(key, text, len, &value);
    if (st == HL_ECORRUPT && scan->damaged != NULL)
        return scan->damaged(scan->arg, key);
    HL_TRY(st);
    st = scan->visit(scan->arg, key, value);
    json_decref(value);
    return st;
}

hl_status hl_store_scan_past_damage(struct hl_store *store, const char *prefix,
                                    hl_store_visit visit, hl_store_damaged damaged, void *arg)
{
    struct scan scan = {visit, damaged, arg};
    HL_TRY(check_idle(store));
    if (strnlen(prefix, KEY_MAX + 1) > KEY_MAX)
        return hl_fail(HL_EINVAL, "prefix \"%.64s...\" is longer than a key can be", prefix);
    pthread_mutex_lock(&store->lock);
    store->scanning = true;
    hl_status st = store->ops->scan(store, prefix, show_value, &scan);
    store->scanning = false;
    pthread_mutex_unlock(&store->lock);
    return st;
}

hl_status hl_store_scan(struct hl_store *store, const char *prefix, hl_store_visit visit, void *arg)
{
    return hl_store_scan_past_damage(store, prefix, visit, NULL, arg);
}
