/* store/ops.h - the interface that a back end of the store implements.
 *
 * Owns:    the back end embeds struct hl_store as its first member and frees it in close.
 * Threads: one call at a time, from changing threads; the front holds `lock` around each, and also
 *          while the back end calls `visit`.
 * Errors:  as in store.h; the front checks limits, JSON and re-entrance; the back end sees only
 *          text.
 * Units:   bytes.
 * Limits:  as in store.h.
 */
#ifndef HL_STORE_OPS_H
#define HL_STORE_OPS_H

#include <pthread.h>
#include <stdbool.h>

#include "store/store.h"

struct hl_store_ops;

struct hl_store {
    const struct hl_store_ops *ops;
    pthread_mutex_t lock; /* of the back end */
    bool scanning;        /* a scan is running; used only by the thread that opened the store */
};

/* One operation of a batch with its value as text: a checksum and JSON. */
struct hl_store_row {
    enum hl_store_op_kind kind;
    char *key;
    char *text; /* NULL for DELETE */
    size_t len;
};

struct hl_store_batch {
    struct hl_store_row *rows;
    size_t count;
};

typedef hl_status (*hl_store_text_visit)(void *arg, const char *key, const char *text, size_t len);

struct hl_store_ops {
    const char *scheme;
    hl_status (*open)(const char *rest, struct hl_store **out);
    void (*close)(struct hl_store *store);
    /* Calls visit once, or returns HL_ENOENT. */
    hl_status (*get)(struct hl_store *store, const char *key, hl_store_text_visit visit, void *arg);
    hl_status (*commit)(struct hl_store *store, const struct hl_store_row *rows, size_t n);
    hl_status (*scan)(struct hl_store *store, const char *prefix, hl_store_text_visit visit,
                      void *arg);
};

extern const struct hl_store_ops hl_store_mem;
extern const struct hl_store_ops hl_store_sqlite;

#endif
