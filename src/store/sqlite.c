/* One table in a SQLite file. The write-ahead log with synchronous=FULL makes a commit durable by
 * one fsync, and a process killed at any point leaves the state before or after a batch. A lock
 * file next to the database keeps a second daemon out while this process runs, but `sqlite3 FILE`
 * can still read. SQLite's own exclusive mode was rejected because it also excludes readers.
 *
 * The loop's thread and the writer's use one connection and its statements in turn, under the lock
 * of the front (store.c). So a statement is always reset before a call returns: one that is left in
 * the middle of its rows keeps a read transaction open, and the log grows behind it. */
#include <errno.h>
#include <fcntl.h>
#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#include "store/ops.h"

#define SCHEMA_VERSION  2 /* 1: records without checksums; they stay readable */
#define BUSY_TIMEOUT_MS 1000
#define PATH_LEN_MAX    4000

enum statement {
    GET,
    PUT,
    CREATE,
    DELETE,
    SCAN,
    SCAN_TAIL,
    BEGIN,
    COMMIT,
    ROLLBACK,
    STATEMENT_COUNT
};

static const char *const sql[STATEMENT_COUNT] = {
    [GET] = "SELECT key, value FROM kv WHERE key = ?1",
    [PUT] = ("INSERT INTO kv(key, value) VALUES(?1, ?2) "
             "ON CONFLICT(key) DO UPDATE SET value = excluded.value"),
    [CREATE] = "INSERT INTO kv(key, value) VALUES(?1, ?2) ON CONFLICT(key) DO NOTHING",
    [DELETE] = "DELETE FROM kv WHERE key = ?1",
    [SCAN] = "SELECT key, value FROM kv WHERE key >= ?1 AND key < ?2 ORDER BY key",
    [SCAN_TAIL] = "SELECT key, value FROM kv WHERE key >= ?1 ORDER BY key",
    [BEGIN] = "BEGIN IMMEDIATE",
    [COMMIT] = "COMMIT",
    [ROLLBACK] = "ROLLBACK",
};

struct lite {
    struct hl_store store; /* first: the handle */
    sqlite3 *db;
    sqlite3_stmt *statements[STATEMENT_COUNT];
    int lock_fd;
    char *path;
};

static hl_status status_of(int rc)
{
    switch (rc & 0xFF) {
    case SQLITE_BUSY:
    case SQLITE_LOCKED:
        return HL_EBUSY;
    case SQLITE_CORRUPT:
    case SQLITE_NOTADB:
        return HL_ECORRUPT;
    case SQLITE_FULL:
        return HL_ENOSPC;
    case SQLITE_NOMEM:
        return HL_ENOMEM;
    case SQLITE_PERM:
    case SQLITE_READONLY:
    case SQLITE_AUTH:
        return HL_EPERM;
    default:
        return HL_EIO;
    }
}

static const char *failure_advice(hl_status st)
{
    switch (st) {
    case HL_EBUSY:
        return "; another process holds it locked";
    case HL_ECORRUPT:
        return "; restore it from a backup, or move it away to start with an empty one";
    case HL_ENOSPC:
        return "; make room on its disk";
    case HL_EPERM:
        return "; the daemon needs write access to the file and its directory";
    default:
        return "";
    }
}

static hl_status db_failed(const struct lite *l, int rc, const char *doing)
{
    hl_status st = status_of(rc);
    int number = l->db != NULL ? sqlite3_system_errno(l->db) : 0;
    const char *why = l->db != NULL ? sqlite3_errmsg(l->db) : sqlite3_errstr(rc);
    return hl_fail(st, "%s the database %s: %s%s%s%s", doing, l->path, why, number != 0 ? ": " : "",
                   number != 0 ? strerror(number) : "", failure_advice(st));
}

static hl_status run_sql(struct lite *l, const char *text, const char *doing)
{
    int rc = sqlite3_exec(l->db, text, NULL, NULL, NULL);
    return rc == SQLITE_OK ? HL_OK : db_failed(l, rc, doing);
}

/* Runs the query and returns the first column of its first row. */
static hl_status ask_int(struct lite *l, const char *text, int64_t *out)
{
    sqlite3_stmt *s = NULL;
    int rc = sqlite3_prepare_v2(l->db, text, -1, &s, NULL);
    if (rc == SQLITE_OK && (rc = sqlite3_step(s)) == SQLITE_ROW) {
        *out = sqlite3_column_int64(s, 0);
        rc = SQLITE_OK;
    }
    hl_status st = rc == SQLITE_OK ? HL_OK : db_failed(l, rc, "read");
    sqlite3_finalize(s);
    return st;
}

static hl_status take_lock(struct lite *l)
{
    char name[PATH_LEN_MAX + 8];
    snprintf(name, sizeof(name), "%s-lock", l->path);
    l->lock_fd = open(name, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (l->lock_fd < 0)
        return hl_fail(errno == EACCES || errno == EROFS ? HL_EPERM : HL_EIO,
                       "open the database %s: create %s: %m", l->path, name);
    if (flock(l->lock_fd, LOCK_EX | LOCK_NB) == 0)
        return HL_OK;
    return hl_fail(HL_EBUSY,
                   "the database %s is in use by another daemon; stop it, or give another file",
                   l->path);
}

static hl_status check_whole(struct lite *l)
{
    sqlite3_stmt *s = NULL;
    hl_status st = HL_OK;
    int rc = sqlite3_prepare_v2(l->db, "PRAGMA quick_check(1)", -1, &s, NULL);
    if (rc == SQLITE_OK)
        rc = sqlite3_step(s);
    const char *text = rc == SQLITE_ROW ? (const char *)sqlite3_column_text(s, 0) : NULL;
    if (rc != SQLITE_ROW)
        st = db_failed(l, rc, "check");
    else if (text == NULL || strcmp(text, "ok") != 0)
        st = hl_fail(HL_ECORRUPT, "the database %s is damaged: %s%s", l->path,
                     text != NULL ? text : "no answer", failure_advice(HL_ECORRUPT));
    sqlite3_finalize(s);
    return st;
}

/* Runs before anything is changed, so that a file that isn't ours stays as it is. *version 0: an
 * empty file. */
static hl_status check_schema(struct lite *l, int64_t *version)
{
    int64_t tables = 0;
    HL_TRY(ask_int(l, "PRAGMA user_version", version));
    HL_TRY(ask_int(l, "SELECT count(*) FROM sqlite_schema", &tables));
    if (*version > SCHEMA_VERSION)
        return hl_fail(HL_EUNSUPPORTED,
                       "the database %s has schema %lld, this program knows %d: it was written by "
                       "a newer Helios; upgrade this one, or give another file",
                       l->path, (long long)*version, SCHEMA_VERSION);
    if ((*version == 0) != (tables == 0))
        return hl_fail(HL_EINVAL,
                       "the database %s is not from Helios: it has %lld tables and schema %lld; "
                       "give another file",
                       l->path, (long long)tables, (long long)*version);
    return HL_OK;
}

/* Makes the schema in one transaction, so that a daemon killed here leaves an empty file or the
 * whole schema. */
static hl_status make_schema(struct lite *l)
{
    return run_sql(l,
                   "BEGIN IMMEDIATE;"
                   "CREATE TABLE kv(key TEXT PRIMARY KEY NOT NULL, value BLOB NOT NULL)"
                   " STRICT, WITHOUT ROWID;"
                   "PRAGMA user_version = 2;"
                   "COMMIT",
                   "set up");
}

/* The environments of jobs are in it, and its directory may be open to other users. SQLite gives
 * the files beside it the same mode, and reports what is wrong with the path. The lock is held: no
 * other descriptor of this process has locks that the close would release. */
static void create_private(const struct lite *l)
{
    int fd = open(l->path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (fd >= 0)
        close(fd);
}

static hl_status set_up(struct lite *l)
{
    HL_TRY(take_lock(l));
    create_private(l);
    int rc = sqlite3_open_v2(l->path, &l->db, SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE, NULL);
    if (rc != SQLITE_OK)
        return db_failed(l, rc, "open");
    sqlite3_busy_timeout(l->db, BUSY_TIMEOUT_MS);
    int64_t version = 0;
    HL_TRY(check_schema(l, &version));
    HL_TRY(run_sql(l, "PRAGMA journal_mode = WAL", "open"));
    HL_TRY(run_sql(l, "PRAGMA synchronous = FULL", "open"));
    if (version == 0)
        HL_TRY(make_schema(l));
    else if (version < SCHEMA_VERSION) /* an older program would take our records for damaged */
        HL_TRY(run_sql(l, "PRAGMA user_version = 2", "upgrade"));
    HL_TRY(check_whole(l));
    for (int i = 0; i < STATEMENT_COUNT; i++) {
        rc = sqlite3_prepare_v3(l->db, sql[i], -1, SQLITE_PREPARE_PERSISTENT, &l->statements[i],
                                NULL);
        if (rc != SQLITE_OK)
            return db_failed(l, rc, "open");
    }
    return HL_OK;
}

static void lite_close(struct hl_store *store)
{
    struct lite *l = (struct lite *)store;
    for (int i = 0; i < STATEMENT_COUNT; i++)
        sqlite3_finalize(l->statements[i]);
    sqlite3_close(l->db);
    if (l->lock_fd >= 0)
        close(l->lock_fd);
    free(l->path);
    free(l);
}

static hl_status lite_open(const char *rest, struct hl_store **out)
{
    if (rest[0] == '\0' || rest[0] == ':' || strlen(rest) > PATH_LEN_MAX)
        return hl_fail(HL_EINVAL, "store \"sqlite:%.64s\": expected a path of 1 to %d bytes", rest,
                       PATH_LEN_MAX);
    struct lite *l = calloc(1, sizeof(*l));
    if (l == NULL)
        return hl_fail(HL_ENOMEM, "out of memory allocating the store in %s", rest);
    l->store.ops = &hl_store_sqlite;
    l->lock_fd = -1;
    l->path = strdup(rest);
    hl_status st = l->path != NULL
                       ? set_up(l)
                       : hl_fail(HL_ENOMEM, "out of memory allocating the store in %s", rest);
    if (st != HL_OK) {
        lite_close(&l->store);
        return st;
    }
    *out = &l->store;
    return HL_OK;
}

static void bind_text(sqlite3_stmt *s, int at, const char *text)
{
    sqlite3_bind_text(s, at, text, -1, SQLITE_STATIC);
}

static hl_status show_row(sqlite3_stmt *s, hl_store_text_visit visit, void *arg)
{
    const char *key = (const char *)sqlite3_column_text(s, 0);
    const char *text = sqlite3_column_blob(s, 1);
    size_t len = (size_t)sqlite3_column_bytes(s, 1);
    if (key == NULL)
        return hl_fail(HL_ENOMEM, "out of memory allocating a row of the store");
    return visit(arg, key, text != NULL ? text : "", len);
}

static hl_status lite_get(struct hl_store *store, const char *key, hl_store_text_visit visit,
                          void *arg)
{
    struct lite *l = (struct lite *)store;
    sqlite3_stmt *s = l->statements[GET];
    bind_text(s, 1, key);
    int rc = sqlite3_step(s);
    hl_status st;
    if (rc == SQLITE_ROW)
        st = show_row(s, visit, arg);
    else if (rc == SQLITE_DONE)
        st = hl_fail(HL_ENOENT, "key %s is not in the store", key);
    else
        st = db_failed(l, rc, "read");
    sqlite3_reset(s);
    sqlite3_clear_bindings(s);
    return st;
}

static hl_status step_once(struct lite *l, enum statement which)
{
    int rc = sqlite3_step(l->statements[which]);
    hl_status st = rc == SQLITE_DONE ? HL_OK : db_failed(l, rc, "write");
    sqlite3_reset(l->statements[which]);
    return st;
}

static hl_status write_row(struct lite *l, const struct hl_store_row *row)
{
    static const enum statement of_kind[] = {
        [HL_STORE_PUT] = PUT, [HL_STORE_CREATE] = CREATE, [HL_STORE_DELETE] = DELETE};
    enum statement which = of_kind[row->kind];
    sqlite3_stmt *s = l->statements[which];
    bind_text(s, 1, row->key);
    if (row->kind != HL_STORE_DELETE)
        sqlite3_bind_blob64(s, 2, row->text, row->len, SQLITE_STATIC);
    hl_status st = step_once(l, which);
    if (st == HL_OK && row->kind == HL_STORE_CREATE && sqlite3_changes(l->db) == 0)
        st = hl_fail(HL_ECONFLICT, "key %s is in the store already", row->key);
    sqlite3_clear_bindings(s);
    return st;
}

static hl_status lite_commit(struct hl_store *store, const struct hl_store_row *rows, size_t n)
{
    struct lite *l = (struct lite *)store;
    HL_TRY(step_once(l, BEGIN));
    hl_status st = HL_OK;
    for (size_t i = 0; i < n && st == HL_OK; i++)
        st = write_row(l, &rows[i]);
    if (st == HL_OK)
        st = step_once(l, COMMIT);
    /* After some failures (disk full, I/O) SQLite has rolled back already. The error text stays
     * that of the cause. */
    if (st != HL_OK && !sqlite3_get_autocommit(l->db)) {
        sqlite3_step(l->statements[ROLLBACK]);
        sqlite3_reset(l->statements[ROLLBACK]);
    }
    return st;
}

/* Finds the first key after all keys with this prefix; false if there is none. Keys compare as
 * bytes. */
static bool end_of(const char *prefix, char *out)
{
    size_t n = strlen(prefix);
    while (n > 0 && (unsigned char)prefix[n - 1] == 0xFF)
        n--;
    if (n == 0)
        return false;
    memcpy(out, prefix, n);
    out[n - 1]++;
    out[n] = '\0';
    return true;
}

static hl_status lite_scan(struct hl_store *store, const char *prefix, hl_store_text_visit visit,
                           void *arg)
{
    struct lite *l = (struct lite *)store;
    char end[1024];
    bool bounded = end_of(prefix, end);
    sqlite3_stmt *s = l->statements[bounded ? SCAN : SCAN_TAIL];
    bind_text(s, 1, prefix);
    if (bounded)
        bind_text(s, 2, end);
    hl_status st = HL_OK;
    int rc = SQLITE_ROW;
    while (st == HL_OK && (rc = sqlite3_step(s)) == SQLITE_ROW)
        st = show_row(s, visit, arg);
    if (st == HL_OK && rc != SQLITE_DONE)
        st = db_failed(l, rc, "read");
    sqlite3_reset(s);
    sqlite3_clear_bindings(s);
    return st;
}

const struct hl_store_ops hl_store_sqlite = {
    .scheme = "sqlite",
    .open = lite_open,
    .close = lite_close,
    .get = lite_get,
    .commit = lite_commit,
    .scan = lite_scan,
};
