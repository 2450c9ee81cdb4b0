/* A hash of keys to JSON text. A scan collects and sorts what it shows: this back end is for tests,
 * where scans are small, and a tree would have to be tested itself. A batch is applied in order
 * with a log of what was there before; a failed precondition plays the log backwards. */
#include <stdlib.h>
#include <string.h>
#include <uthash.h>

#include "store/ops.h"

struct entry {
    char *key;
    char *text;
    size_t len;
    UT_hash_handle hh;
};

struct mem {
    struct hl_store store; /* first: the handle */
    struct entry *entries;
};

struct undo {
    struct entry *added;   /* to remove */
    struct entry *removed; /* to put back */
};

static void entry_free(struct entry *e)
{
    if (e == NULL)
        return;
    free(e->key);
    free(e->text);
    free(e);
}

static struct entry *entry_new(const struct hl_store_row *row)
{
    struct entry *e = calloc(1, sizeof(*e));
    if (e == NULL)
        return NULL;
    e->key = strdup(row->key);
    e->text = malloc(row->len + 1);
    if (e->key == NULL || e->text == NULL) {
        entry_free(e);
        return NULL;
    }
    memcpy(e->text, row->text, row->len + 1);
    e->len = row->len;
    return e;
}

static hl_status mem_open(const char *rest, struct hl_store **out)
{
    if (rest[0] != '\0')
        return hl_fail(HL_EINVAL, "store \"mem:%s\": nothing may follow mem:", rest);
    struct mem *m = calloc(1, sizeof(*m));
    if (m == NULL)
        return hl_fail(HL_ENOMEM, "out of memory allocating the store in memory");
    m->store.ops = &hl_store_mem;
    *out = &m->store;
    return HL_OK;
}

static void mem_close(struct hl_store *store)
{
    struct mem *m = (struct mem *)store;
    struct entry *e, *next;
    HASH_ITER (hh, m->entries, e, next) {
        HASH_DEL(m->entries, e);
        entry_free(e);
    }
    free(m);
}

static hl_status mem_get(struct hl_store *store, const char *key, hl_store_text_visit visit,
                         void *arg)
{
    struct mem *m = (struct mem *)store;
    struct entry *e = NULL;
    HASH_FIND_STR(m->entries, key, e);
    if (e == NULL)
        return hl_fail(HL_ENOENT, "key %s is not in the store", key);
    return visit(arg, e->key, e->text, e->len);
}

static hl_status apply_row(struct mem *m, const struct hl_store_row *row, struct undo *undo)
{
    struct entry *old = NULL, *new = NULL;
    HASH_FIND_STR(m->entries, row->key, old);
    if (row->kind == HL_STORE_CREATE && old != NULL)
        return hl_fail(HL_ECONFLICT, "key %s is in the store already", row->key);
    if (row->kind != HL_STORE_DELETE) {
        new = entry_new(row);
        if (new == NULL)
            return hl_fail(HL_ENOMEM, "out of memory allocating key %s", row->key);
    }
    if (old != NULL)
        HASH_DEL(m->entries, old);
    if (new != NULL)
        HASH_ADD_KEYPTR(hh, m->entries, new->key, strlen(new->key), new);
    *undo = (struct undo){new, old};
    return HL_OK;
}

static void take_back(struct mem *m, struct undo *undo)
{
    if (undo->added != NULL)
        HASH_DEL(m->entries, undo->added);
    entry_free(undo->added);
    if (undo->removed != NULL)
        HASH_ADD_KEYPTR(hh, m->entries, undo->removed->key, strlen(undo->removed->key),
                        undo->removed);
}

static hl_status mem_commit(struct hl_store *store, const struct hl_store_row *rows, size_t n)
{
    struct mem *m = (struct mem *)store;
    struct undo *log = calloc(n, sizeof(*log));
    if (log == NULL)
        return hl_fail(HL_ENOMEM, "out of memory allocating a batch of %zu operations", n);
    size_t done = 0;
    hl_status st = HL_OK;
    while (done < n && (st = apply_row(m, &rows[done], &log[done])) == HL_OK)
        done++;
    for (size_t i = done; i-- > 0;) {
        if (st != HL_OK)
            take_back(m, &log[i]);
        else
            entry_free(log[i].removed);
    }
    free(log);
    return st;
}

static int by_key(const void *a, const void *b)
{
    const struct entry *const *x = a, *const *y = b;
    return strcmp((*x)->key, (*y)->key);
}

static hl_status mem_scan(struct hl_store *store, const char *prefix, hl_store_text_visit visit,
                          void *arg)
{
    struct mem *m = (struct mem *)store;
    size_t count = 0, len = strlen(prefix);
    struct entry **found = calloc(HASH_COUNT(m->entries) + 1, sizeof(*found));
    if (found == NULL)
        return hl_fail(HL_ENOMEM, "out of memory scanning %s", prefix);
    for (struct entry *e = m->entries; e != NULL; e = e->hh.next)
        if (strncmp(e->key, prefix, len) == 0)
            found[count++] = e;
    qsort(found, count, sizeof(*found), by_key);
    hl_status st = HL_OK;
    for (size_t i = 0; i < count && st == HL_OK; i++)
        st = visit(arg, found[i]->key, found[i]->text, found[i]->len);
    free(found);
    return st;
}

const struct hl_store_ops hl_store_mem = {
    .scheme = "mem",
    .open = mem_open,
    .close = mem_close,
    .get = mem_get,
    .commit = mem_commit,
    .scan = mem_scan,
};
