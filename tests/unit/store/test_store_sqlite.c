/* What only a database in a file can meet: killed writers, locks, foreign and damaged files. */
#include "unit/store/rig.h"

#include <fcntl.h>
#include <signal.h>
#include <sqlite3.h>
#include <sys/stat.h>
#include <sys/wait.h>

static void what_was_committed_is_there_after_reopening(void **state)
{
    struct rig *r = *state;
    put(r, "a", "{\"x\": 1}");
    reopen(r);
    assert_value(r, "a", "{\"x\": 1}");
    assert_scan(r, "", "a ");
}

enum { BATCH = 30 };

/* Commits batches that set all keys to one number, and reports each number after its commit. */
static void writer_main(const char *url, int out)
{
    struct hl_store *store = NULL;
    struct hl_store_op ops[BATCH];
    char keys[BATCH][16];
    if (hl_store_open(url, &store) != HL_OK)
        _exit(1);
    json_t *last = NULL;
    uint32_t begin =
        hl_store_get(store, "k00", &last) == HL_OK ? (uint32_t)json_integer_value(last) + 1 : 1;
    for (uint32_t n = begin;; n++) {
        json_t *value = json_integer(n);
        for (int i = 0; i < BATCH; i++) {
            snprintf(keys[i], sizeof(keys[i]), "k%02d", i);
            ops[i] = (struct hl_store_op){HL_STORE_PUT, keys[i], value};
        }
        if (hl_store_commit(store, ops, BATCH) != HL_OK || write(out, &n, sizeof(n)) < 0)
            _exit(1);
        json_decref(value);
    }
}

static uint32_t kill_writer_after(const char *url, int acks)
{
    int fds[2];
    assert_int_equal(pipe(fds), 0);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        alarm(60);
        writer_main(url, fds[1]);
    }
    close(fds[1]);
    uint32_t said = 0, n;
    for (int i = 0; i < acks; i++)
        assert_int_equal(read(fds[0], &said, sizeof(said)), sizeof(said));
    kill(pid, SIGKILL); /* it is somewhere in the next batch */
    while (read(fds[0], &n, sizeof(n)) == sizeof(n))
        said = n;
    int status = 0;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFSIGNALED(status));
    close(fds[0]);
    return said;
}

struct agree {
    int count;
    json_int_t value;
};

static hl_status all_the_same(void *arg, const char *key, json_t *value)
{
    struct agree *a = arg;
    (void)key;
    if (a->count++ == 0)
        a->value = json_integer_value(value);
    assert_int_equal(json_integer_value(value), a->value);
    return HL_OK;
}

static void a_killed_writer_leaves_whole_batches_and_none_it_confirmed_is_lost(void **state)
{
    struct rig *r = *state;
    hl_store_close(r->store);
    r->store = NULL;
    for (int round = 0; round < 15; round++) {
        uint32_t said = kill_writer_after(r->url, 1 + round % 4);
        assert_int_equal(hl_store_open(r->url, &r->store), HL_OK);
        struct agree a = {0, 0};
        assert_int_equal(hl_store_scan(r->store, "", all_the_same, &a), HL_OK);
        assert_int_equal(a.count, BATCH);
        assert_in_range(a.value, said, said + 1);
        hl_store_close(r->store);
        r->store = NULL;
    }
}

static void a_second_daemon_is_kept_out(void **state)
{
    struct rig *r = *state;
    struct hl_store *second = NULL;
    assert_int_equal(hl_store_open(r->url, &second), HL_EBUSY);
    assert_error_has("is in use by another daemon");
    assert_error_has(r->path);
    assert_null(second);
}

static void a_lock_by_another_process_is_busy_and_passes(void **state)
{
    struct rig *r = *state;
    int ready[2], release[2];
    put(r, "a", "1");
    assert_int_equal(pipe(ready), 0);
    assert_int_equal(pipe(release), 0);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        sqlite3 *db = NULL;
        char c = 0;
        alarm(60);
        int rc = sqlite3_open(r->path, &db);
        if (rc == SQLITE_OK)
            rc = sqlite3_exec(db, "BEGIN IMMEDIATE", NULL, NULL, NULL);
        _exit(rc != SQLITE_OK || write(ready[1], &c, 1) != 1 || read(release[0], &c, 1) != 1);
    }
    char c = 0;
    assert_int_equal(read(ready[0], &c, 1), 1);
    assert_int_equal(write_one(r->store, HL_STORE_PUT, "a", "2"), HL_EBUSY);
    assert_error_has("another process holds it locked");
    assert_value(r, "a", "1"); /* reading goes on */
    assert_int_equal(write(release[1], &c, 1), 1);
    int status = -1;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
    assert_int_equal(write_one(r->store, HL_STORE_PUT, "a", "2"), HL_OK);
    for (int i = 0; i < 2; i++) {
        close(ready[i]);
        close(release[i]);
    }
}

static void run_sql(const char *path, const char *text)
{
    sqlite3 *db = NULL;
    assert_int_equal(sqlite3_open(path, &db), SQLITE_OK);
    assert_int_equal(sqlite3_exec(db, text, NULL, NULL, NULL), SQLITE_OK);
    assert_int_equal(sqlite3_close(db), SQLITE_OK);
}

static void expect_refusal(struct rig *r, hl_status st, const char *text)
{
    assert_int_equal(hl_store_open(r->url, &r->store), st);
    assert_error_has(r->path);
    assert_error_has(text);
    assert_null(r->store);
}

static void a_newer_schema_is_refused(void **state)
{
    struct rig *r = *state;
    hl_store_close(r->store);
    r->store = NULL;
    run_sql(r->path, "PRAGMA user_version = 3");
    expect_refusal(r, HL_EUNSUPPORTED,
                   "has schema 3, this program knows 2: it was written by a newer Helios");
}

static void a_database_of_something_else_is_refused_unchanged(void **state)
{
    struct rig *r = *state;
    hl_store_close(r->store);
    r->store = NULL;
    unlink(r->path);
    run_sql(r->path, "CREATE TABLE cookies(a)");
    expect_refusal(r, HL_EINVAL, "is not from Helios");
    sqlite3 *db = NULL;
    sqlite3_stmt *s = NULL;
    assert_int_equal(sqlite3_open(r->path, &db), SQLITE_OK);
    assert_int_equal(sqlite3_prepare_v2(db, "PRAGMA journal_mode", -1, &s, NULL), SQLITE_OK);
    assert_int_equal(sqlite3_step(s), SQLITE_ROW);
    assert_string_equal((const char *)sqlite3_column_text(s, 0), "delete");
    sqlite3_finalize(s);
    sqlite3_close(db);
}

static void overwrite(const char *path, off_t at, size_t len)
{
    int fd = open(path, O_WRONLY | O_CREAT, 0600);
    assert_true(fd >= 0);
    char *noise = malloc(len);
    memset(noise, 0xA5, len);
    assert_int_equal(pwrite(fd, noise, len, at), (ssize_t)len);
    free(noise);
    close(fd);
}

static void a_file_that_is_no_database_is_corrupt(void **state)
{
    struct rig *r = *state;
    hl_store_close(r->store);
    r->store = NULL;
    unlink(r->path);
    overwrite(r->path, 0, 9000);
    expect_refusal(r, HL_ECORRUPT, "file is not a database");
}

static void a_damaged_page_is_found_at_opening(void **state)
{
    struct rig *r = *state;
    char key[32];
    for (int i = 0; i < 20; i++) {
        snprintf(key, sizeof(key), "key/%03d", i);
        json_t *value = json_sprintf("%0900d", i);
        struct hl_store_op op = {HL_STORE_PUT, key, value};
        assert_int_equal(hl_store_commit(r->store, &op, 1), HL_OK);
        json_decref(value);
    }
    hl_store_close(r->store);
    r->store = NULL;
    overwrite(r->path, 2 * 4096, 4096);
    expect_refusal(r, HL_ECORRUPT, "restore it from a backup");
}

static void a_truncated_file_is_corrupt(void **state)
{
    struct rig *r = *state;
    put(r, "a", "1");
    hl_store_close(r->store);
    r->store = NULL;
    assert_int_equal(truncate(r->path, 5000), 0);
    expect_refusal(r, HL_ECORRUPT, "");
}

static void a_value_that_is_no_json_names_its_key(void **state)
{
    struct rig *r = *state;
    run_sql(r->path, "INSERT INTO kv VALUES('job/1', x'7B22')");
    json_t *out = NULL;
    assert_int_equal(hl_store_get(r->store, "job/1", &out), HL_ECORRUPT);
    assert_error_has("key job/1");
    assert_null(out);
    char seen[RIG_SEEN_MAX] = "";
    assert_int_equal(hl_store_scan(r->store, "", append_key, seen), HL_ECORRUPT);
    assert_int_equal(write_one(r->store, HL_STORE_PUT, "job/1", "1"), HL_OK);
    assert_value(r, "job/1", "1");
}

static void flip_bit(const char *path, const char *key, int bit)
{
    sqlite3 *db = NULL;
    sqlite3_stmt *get = NULL, *set = NULL;
    unsigned char text[256];
    assert_int_equal(sqlite3_open(path, &db), SQLITE_OK);
    sqlite3_prepare_v2(db, "SELECT value FROM kv WHERE key = ?1", -1, &get, NULL);
    sqlite3_bind_text(get, 1, key, -1, SQLITE_STATIC);
    assert_int_equal(sqlite3_step(get), SQLITE_ROW);
    int len = sqlite3_column_bytes(get, 0);
    assert_in_range(len, bit / 8 + 1, sizeof(text));
    memcpy(text, sqlite3_column_blob(get, 0), (size_t)len);
    sqlite3_finalize(get);
    text[bit / 8] ^= (unsigned char)(1 << bit % 8);
    sqlite3_prepare_v2(db, "UPDATE kv SET value = ?2 WHERE key = ?1", -1, &set, NULL);
    sqlite3_bind_text(set, 1, key, -1, SQLITE_STATIC);
    sqlite3_bind_blob(set, 2, text, len, SQLITE_STATIC);
    assert_int_equal(sqlite3_step(set), SQLITE_DONE);
    sqlite3_finalize(set);
    assert_int_equal(sqlite3_close(db), SQLITE_OK);
}

static hl_status append_damaged(void *arg, const char *key)
{
    char *seen = arg; /* of RIG_SEEN_MAX bytes */
    size_t len = strlen(seen);
    snprintf(seen + len, RIG_SEEN_MAX - len, "damaged:%s ", key);
    return HL_OK;
}

/* Like bit rot of the disk that SQLite's page structure does not show. */
static void a_flipped_bit_costs_its_record_and_no_other(void **state)
{
    struct rig *r = *state;
    static const char json[] = "{\"pp\":0,\"tp\":1}";
    put(r, "shard/a", json);
    put(r, "shard/b", "7");
    for (int bit = 0; bit < 8 * (int)(sizeof("crc32=XXXXXXXX ") - 1 + sizeof(json) - 1); bit++) {
        json_t *out = NULL;
        flip_bit(r->path, "shard/a", bit);
        assert_int_equal(hl_store_get(r->store, "shard/a", &out), HL_ECORRUPT);
        assert_error_has("shard/a");
        assert_value(r, "shard/b", "7");
        flip_bit(r->path, "shard/a", bit);
        assert_value(r, "shard/a", json);
    }
    flip_bit(r->path, "shard/a", 0);
    char seen[RIG_SEEN_MAX] = "";
    assert_int_equal(
        hl_store_scan_past_damage(r->store, "shard/", append_key, append_damaged, seen), HL_OK);
    assert_string_equal(seen, "damaged:shard/a shard/b ");
}

static void a_record_of_another_key_is_damaged(void **state)
{
    struct rig *r = *state;
    put(r, "shard/a", "1");
    put(r, "shard/b", "2");
    run_sql(r->path, "UPDATE kv SET value = (SELECT value FROM kv WHERE key = 'shard/a') "
                     "WHERE key = 'shard/b'");
    json_t *out = NULL;
    assert_int_equal(hl_store_get(r->store, "shard/b", &out), HL_ECORRUPT);
    assert_value(r, "shard/a", "1");
}

static void records_of_the_first_schema_are_read(void **state)
{
    struct rig *r = *state;
    hl_store_close(r->store);
    r->store = NULL;
    unlink(r->path);
    run_sql(r->path, "CREATE TABLE kv(key TEXT PRIMARY KEY NOT NULL, value BLOB NOT NULL)"
                     " STRICT, WITHOUT ROWID; PRAGMA user_version = 1;"
                     "INSERT INTO kv VALUES('job/1', CAST('{\"a\":1}' AS BLOB))");
    assert_int_equal(hl_store_open(r->url, &r->store), HL_OK);
    assert_value(r, "job/1", "{\"a\": 1}");
    put(r, "job/2", "2");
    reopen(r);
    assert_value(r, "job/1", "{\"a\": 1}");
    assert_value(r, "job/2", "2");
}

/* It has the environments of jobs, and this directory may be open to others. */
static void other_users_cannot_read_it(void **state)
{
    static const char *const suffixes[] = {"", "-wal", "-shm", "-lock"};
    struct rig *r = *state;
    struct stat sb;
    put(r, "a", "1");
    for (size_t i = 0; i < HL_ARRAY_LEN(suffixes); i++) {
        char name[128];
        snprintf(name, sizeof(name), "%s%s", r->path, suffixes[i]);
        assert_int_equal(stat(name, &sb), 0);
        assert_int_equal(sb.st_mode & 0777, 0600);
    }
}

static void a_directory_that_is_missing_is_named(void **state)
{
    (void)state;
    struct hl_store *store = NULL;
    assert_int_equal(hl_store_open("sqlite:/nonexistent-helios/meta.db", &store), HL_EIO);
    assert_error_has("/nonexistent-helios/meta.db");
    assert_error_has("No such file or directory");
    assert_int_equal(hl_store_open("sqlite:", &store), HL_EINVAL);
    assert_int_equal(hl_store_open("mem:x", &store), HL_EINVAL);
    assert_int_equal(hl_store_open("redis://x", &store), HL_EINVAL);
    assert_error_has("store \"redis://x\": expected mem: or sqlite:PATH");
    assert_null(store);
    hl_store_close(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        WITH_STORE(what_was_committed_is_there_after_reopening),
        WITH_STORE(a_killed_writer_leaves_whole_batches_and_none_it_confirmed_is_lost),
        WITH_STORE(a_second_daemon_is_kept_out),
        WITH_STORE(a_lock_by_another_process_is_busy_and_passes),
        WITH_STORE(a_newer_schema_is_refused),
        WITH_STORE(a_database_of_something_else_is_refused_unchanged),
        WITH_STORE(a_file_that_is_no_database_is_corrupt),
        WITH_STORE(a_damaged_page_is_found_at_opening),
        WITH_STORE(a_truncated_file_is_corrupt),
        WITH_STORE(a_value_that_is_no_json_names_its_key),
        WITH_STORE(a_flipped_bit_costs_its_record_and_no_other),
        WITH_STORE(a_record_of_another_key_is_damaged),
        WITH_STORE(other_users_cannot_read_it),
        WITH_STORE(records_of_the_first_schema_are_read),
        cmocka_unit_test(a_directory_that_is_missing_is_named),
    };
    rig_kind = "sqlite";
    return cmocka_run_group_tests(tests, NULL, NULL);
}
