/* store/store.h - durable metadata: ordered keys with JSON values, changed by atomic batches.
 *
 * Keys are text like "job/01J…/spec", ordered by their bytes. The operations of a batch take effect
 * one after the other: deleting a key and creating it again in one batch is fine. Back ends: "mem"
 * (tests) and "sqlite" (default); all pass one conformance suite.
 *
 * Each record carries a CRC-32 of its key and value, which every read checks. So corruption by the
 * medium is an error of that record, and never yields a wrong value. Records from before schema 2
 * have no CRC.
 *
 * Owns:    the connection to the back end; with sqlite also PATH-lock, which keeps a second daemon
 *          out.
 * Threads: hl_store_write() may be called from any thread; all other functions from one thread.
 * Errors:  HL_ENOENT, HL_ECONFLICT (a precondition failed), HL_EBUSY (another process holds the
 *          database, waited 1 s; or the store is used inside a scan's callback), HL_EINVAL
 *          (limits), HL_ENOSPC, HL_EPERM, HL_EIO, HL_ECORRUPT (damaged file or value),
 *          HL_EUNSUPPORTED (written by a newer Helios). A failed commit has written nothing.
 * Units:   none.
 * Limits:  key 1..512 bytes, value <= 16 MiB of JSON text, batch <= 100,000 operations.
 */
#ifndef HL_STORE_STORE_H
#define HL_STORE_STORE_H

#include <jansson.h>
#include <stdint.h>

#include "base/status.h"

struct hl_store;

enum hl_store_op_kind {
    HL_STORE_PUT,    /* value replaces the existing one */
    HL_STORE_CREATE, /* HL_ECONFLICT when the key exists */
    HL_STORE_DELETE, /* the key may be absent */
};

struct hl_store_op {
    enum hl_store_op_kind kind;
    const char *key;
    const json_t *value; /* PUT, CREATE */
};

/* url: "mem:" or "sqlite:PATH". Creates a missing database. */
hl_status hl_store_open(const char *url, struct hl_store **out) HL_CHECK;
void hl_store_close(struct hl_store *store);
/* New reference. */
hl_status hl_store_get(struct hl_store *store, const char *key, json_t **out) HL_CHECK;
/* All or nothing, durable on return. */
hl_status hl_store_commit(struct hl_store *store, const struct hl_store_op *ops, size_t n) HL_CHECK;
/* A batch as text, independent of the values, so that one thread can make it and another write
 * it. */
struct hl_store_batch;
hl_status hl_store_batch_create(const struct hl_store_op *ops, size_t n,
                                struct hl_store_batch **out) HL_CHECK;
void hl_store_batch_destroy(struct hl_store_batch *batch);
/* Number of operations in it. */
size_t hl_store_batch_size(const struct hl_store_batch *batch);
/* Commits all batches, in this order, as one: all or nothing, durable on return. */
hl_status hl_store_write(struct hl_store *store, struct hl_store_batch *const *batches,
                         size_t n) HL_CHECK;
/* Visits every key with this prefix ("" = all), in key order. A callback result other than HL_OK
 * ends the scan and is returned. Key and value are borrowed for the call. The callback must not
 * touch the store. */
typedef hl_status (*hl_store_visit)(void *arg, const char *key, json_t *value);
hl_status hl_store_scan(struct hl_store *store, const char *prefix, hl_store_visit visit,
                        void *arg) HL_CHECK;
/* Called for a damaged record; hl_error_text() says how. HL_OK skips the record, any other status
 * ends the scan. */
typedef hl_status (*hl_store_damaged)(void *arg, const char *key);
hl_status hl_store_scan_past_damage(struct hl_store *store, const char *prefix,
                                    hl_store_visit visit, hl_store_damaged damaged,
                                    void *arg) HL_CHECK;

#endif
