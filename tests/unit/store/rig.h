/* unit/store/rig.h - a store in a directory of its own, and short helpers to use it.
 *
 * Owns:    the store and the directory, which the teardown removes.
 * Threads: the test's.
 * Errors:  cmocka assertions.
 * Units:   none.
 * Limits:  none.
 */
#ifndef HL_TESTS_STORE_RIG_H
#define HL_TESTS_STORE_RIG_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>
#include <jansson.h>

#include "store/store.h"

#define RIG_SEEN_MAX 4096

struct rig {
    struct hl_store *store;
    char dir[64];
    char path[96];
    char url[128];
};

static const char *rig_kind = "mem"; /* back end of the tests that follow */

static inline int rig_setup(void **state)
{
    struct rig *r = calloc(1, sizeof(*r));
    snprintf(r->dir, sizeof(r->dir), "/tmp/hl-store-XXXXXX");
    if (r == NULL || mkdtemp(r->dir) == NULL)
        return -1;
    snprintf(r->path, sizeof(r->path), "%s/meta.db", r->dir);
    if (strcmp(rig_kind, "mem") == 0)
        snprintf(r->url, sizeof(r->url), "mem:");
    else
        snprintf(r->url, sizeof(r->url), "sqlite:%s", r->path);
    *state = r;
    return hl_store_open(r->url, &r->store);
}

static inline int rig_teardown(void **state)
{
    static const char *const suffixes[] = {"", "-wal", "-shm", "-lock", "-journal"};
    struct rig *r = *state;
    hl_store_close(r->store);
    for (size_t i = 0; i < HL_ARRAY_LEN(suffixes); i++) {
        char name[128];
        snprintf(name, sizeof(name), "%s%s", r->path, suffixes[i]);
        unlink(name);
    }
    int rc = rmdir(r->dir);
    free(r);
    return rc;
}

static inline void reopen(struct rig *r)
{
    hl_store_close(r->store);
    r->store = NULL;
    assert_int_equal(hl_store_open(r->url, &r->store), HL_OK);
}

#define assert_error_has(part)                                                                     \
    do {                                                                                           \
        if (strstr(hl_error_text(), (part)) == NULL)                                               \
            fail_msg("\"%s\" is not in \"%s\"", (part), hl_error_text());                          \
    } while (0)

static inline hl_status write_one(struct hl_store *s, enum hl_store_op_kind op, const char *key,
                                  const char *json)
{
    json_t *value = json != NULL ? json_loads(json, JSON_DECODE_ANY, NULL) : NULL;
    hl_status st = hl_store_commit(s, &(struct hl_store_op){op, key, value}, 1);
    json_decref(value);
    return st;
}

static inline void put(struct rig *r, const char *key, const char *json)
{
    assert_int_equal(write_one(r->store, HL_STORE_PUT, key, json), HL_OK);
}

static inline void assert_value(struct rig *r, const char *key, const char *json)
{
    json_t *value = NULL, *want = json_loads(json, JSON_DECODE_ANY, NULL);
    assert_int_equal(hl_store_get(r->store, key, &value), HL_OK);
    assert_true(json_equal(value, want));
    json_decref(value);
    json_decref(want);
}

static inline void assert_absent(struct rig *r, const char *key)
{
    json_t *value = NULL;
    assert_int_equal(hl_store_get(r->store, key, &value), HL_ENOENT);
    assert_null(value);
}

static inline hl_status append_key(void *arg, const char *key, json_t *value)
{
    char *seen = arg; /* of RIG_SEEN_MAX bytes */
    size_t len = strlen(seen);
    assert_non_null(value);
    assert_true(snprintf(seen + len, RIG_SEEN_MAX - len, "%s ", key) < (int)(RIG_SEEN_MAX - len));
    return HL_OK;
}

static inline void assert_scan(struct rig *r, const char *prefix, const char *keys)
{
    char seen[RIG_SEEN_MAX] = "";
    assert_int_equal(hl_store_scan(r->store, prefix, append_key, seen), HL_OK);
    assert_string_equal(seen, keys);
}

#define WITH_STORE(test) cmocka_unit_test_setup_teardown(test, rig_setup, rig_teardown)

#endif
