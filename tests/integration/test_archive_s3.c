/* The archive in an S3 store: Debian's Swift, which checks signatures and checksums for real. */
#include <ftw.h>
#include <stdatomic.h>

#include "base/clock.h"
#include "curl/library.h"
#include "support/swift_s3.h"
#include "unit/mem/archive/archive_conformance.h"

#define MIB ((uint64_t)1 << 20)

#define IN_RIG(test) cmocka_unit_test_setup_teardown(test, s3_setup, s3_teardown)

static struct swift swift;
static unsigned prefixes;

static int s3_setup(void **state)
{
    struct rig *r = calloc(1, sizeof(*r));
    if (r == NULL)
        return -1;
    r->endpoint = swift.endpoint;
    r->part = MIB;
    r->keeps_crc = 1;
    r->rounds = 3;
    snprintf(r->url, sizeof(r->url), "s3://%s/test/%u", swift.bucket, ++prefixes);
    *state = r;
    hl_status st = rig_try_open(r);
    if (st != HL_OK)
        print_error("%s\n", hl_error_text());
    return st;
}

static int s3_teardown(void **state)
{
    struct rig *r = *state;
    rig_close(r);
    free(r);
    return 0;
}

/* The store as another program sees it: curl encodes the address and signs by itself. */
static size_t collect(char *from, size_t size, size_t n, void *arg)
{
    return hl_buf_append(arg, from, size * n) == HL_OK ? size * n : 0;
}

static long raw(const char *method, const char *path, const char *secret, const void *body,
                struct hl_buf *out)
{
    char url[512], user[128];
    long code = 0;
    assert_int_equal(hl_curl_load(), HL_OK);
    CURL *c = curl_easy_init();
    struct curl_slist *h = curl_slist_append(NULL, "x-amz-content-sha256: UNSIGNED-PAYLOAD");
    snprintf(url, sizeof(url), "%s/%s/%s", swift.endpoint, swift.bucket, path);
    snprintf(user, sizeof(user), "%s", swift.access_key);
    curl_easy_setopt(c, CURLOPT_URL, url);
    curl_easy_setopt(c, CURLOPT_CUSTOMREQUEST, method);
    curl_easy_setopt(c, CURLOPT_USERNAME, user);
    curl_easy_setopt(c, CURLOPT_PASSWORD, secret);
    curl_easy_setopt(c, CURLOPT_AWS_SIGV4, "aws:amz:us-east-1:s3");
    curl_easy_setopt(c, CURLOPT_HTTPHEADER, h);
    curl_easy_setopt(c, CURLOPT_TIMEOUT, 20L);
    if (body != NULL)
        curl_easy_setopt(c, CURLOPT_POSTFIELDS, body);
    curl_easy_setopt(c, CURLOPT_WRITEFUNCTION, collect);
    curl_easy_setopt(c, CURLOPT_WRITEDATA, out);
    assert_int_equal(curl_easy_perform(c), CURLE_OK);
    curl_easy_getinfo(c, CURLINFO_RESPONSE_CODE, &code);
    curl_slist_free_all(h);
    curl_easy_cleanup(c);
    return code;
}

static void path_of(const struct rig *r, struct hl_id id, char *out, size_t cap)
{
    snprintf(out, cap, "%s/%s.safetensors", strstr(r->url, "/test/") + 1, hl_id_format(id).s);
}

static void a_shard_lies_there_as_a_file_anyone_can_open(void **state)
{
    struct rig *r = *state;
    struct hl_buf got = HL_BUF(8 * MIB);
    char path[160];
    static const uint64_t sizes[] = {5000, 3 * MIB + 100}; /* one request, and four parts */
    for (unsigned i = 0; i < 2; i++) {
        struct shard s = shard_make(id_of(i + 1), sizes[i], i, 1);
        assert_int_equal(put(r, &s), HL_OK);
        path_of(r, s.id, path, sizeof(path));
        hl_buf_clear(&got);
        assert_int_equal(raw("GET", path, swift.secret_key, NULL, &got), 200);
        assert_int_equal(got.len, s.size);
        assert_memory_equal(got.data, s.bytes, s.size);
        free(s.bytes);
    }
    hl_buf_fini(&got);
}

static void what_others_put_there_is_left_alone_or_checked(void **state)
{
    struct rig *r = *state;
    struct hl_buf got = HL_BUF(MIB);
    struct shard s = shard_make(id_of(1), 1000, 1, 1);
    uint32_t crc = 0;
    char path[160], text[] = "somebody else's notes";
    snprintf(path, sizeof(path), "%s/notes.txt", strstr(r->url, "/test/") + 1);
    assert_int_equal(raw("PUT", path, swift.secret_key, text, &got), 200);
    assert_int_equal(put(r, &s), HL_OK);
    /* another object takes the place of the shard: other size, no checksum */
    path_of(r, s.id, path, sizeof(path));
    assert_int_equal(raw("PUT", path, swift.secret_key, text, &got), 200);
    assert_int_equal(get_status(r, &s), HL_ECORRUPT);
    assert_error_has(hl_id_format(s.id).s);
    rig_reopen(r, 0);
    assert_int_equal(info(r).foreign, 1);
    assert_int_equal(info(r).count, 1);
    assert_int_equal(get_status(r, &s), HL_ECORRUPT);
    assert_int_equal(hl_archive_crc(r->archive, s.id, &crc), HL_ECORRUPT);
    assert_int_equal(raw("DELETE", path, swift.secret_key, NULL, &got), 204);
    uint64_t size = 0;
    assert_int_equal(hl_archive_size(r->archive, s.id, &size), HL_OK);
    char *back = malloc(size);
    assert_int_equal(hl_archive_get(r->archive, s.id, back, size, 1), HL_ENOENT);
    assert_error_has("NoSuchKey");
    free(back);
    free(s.bytes);
    hl_buf_fini(&got);
}

static void half_uploads_of_a_dead_predecessor_are_aborted(void **state)
{
    struct rig *r = *state;
    struct hl_buf got = HL_BUF(MIB);
    char path[200], ours[160];
    path_of(r, id_of(5), ours, sizeof(ours));
    snprintf(path, sizeof(path), "%s?uploads=", ours);
    assert_int_equal(raw("POST", path, swift.secret_key, "", &got), 200);
    snprintf(path, sizeof(path), "%s/other.bin?uploads=", strstr(r->url, "/test/") + 1);
    assert_int_equal(raw("POST", path, swift.secret_key, "", &got), 200); /* not one of ours */
    rig_reopen(r, 0);
    assert_int_equal(info(r).discarded, 1);
    rig_reopen(r, 0);
    assert_int_equal(info(r).discarded, 0);
    hl_buf_fini(&got);
}

static void wrong_credentials_and_buckets_are_told_apart(void **state)
{
    struct rig *r = *state;
    rig_close(r);
    setenv("AWS_SECRET_ACCESS_KEY", "not-the-secret", 1);
    assert_int_equal(rig_try_open(r), HL_EPERM);
    assert_error_has("SignatureDoesNotMatch");
    assert_null(strstr(hl_error_text(), "not-the-secret"));
    setenv("AWS_ACCESS_KEY_ID", "no:body", 1);
    assert_int_equal(rig_try_open(r), HL_EPERM);
    unsetenv("AWS_ACCESS_KEY_ID");
    assert_int_equal(rig_try_open(r), HL_EINVAL);
    assert_error_has("AWS_ACCESS_KEY_ID");
    /* from a file, as the AWS tools write it */
    char file[96], text[256];
    snprintf(file, sizeof(file), "%s/credentials", swift.dir);
    int n = snprintf(text, sizeof(text),
                     "[default]\naws_access_key_id = %s\naws_secret_access_key=%s\n[other]\n"
                     "aws_access_key_id = x\naws_secret_access_key = y\n",
                     swift.access_key, swift.secret_key);
    assert_int_equal(hl_file_write_atomic(file, text, (size_t)n), HL_OK);
    assert_int_equal(hl_archive_open(&(struct hl_archive_options){.url = r->url,
                                                                  .s3_endpoint = r->endpoint,
                                                                  .s3_credentials = file},
                                     &r->archive),
                     HL_OK);
    rig_close(r);
    setenv("AWS_ACCESS_KEY_ID", swift.access_key, 1);
    setenv("AWS_SECRET_ACCESS_KEY", swift.secret_key, 1);
    snprintf(r->url, sizeof(r->url), "s3://no-such-bucket/x");
    assert_int_equal(rig_try_open(r), HL_ENOENT);
    assert_error_has("NoSuchBucket");
    assert_null(r->archive);
}

/* ---- the server dies ------------------------------------------------------------------------- */

struct putter {
    struct rig *rig;
    struct shard s;
    hl_status st;
    atomic_int ended;
};

static void *putter_main(void *arg)
{
    struct putter *p = arg;
    p->st = put(p->rig, &p->s);
    atomic_store(&p->ended, 1);
    return NULL;
}

static int stored_files;

static int count_stored(const char *path, const struct stat *st, int kind, struct FTW *where)
{
    const char *end = strrchr(path, '.');
    (void)st, (void)where;
    stored_files += kind == FTW_F && end != NULL && strcmp(end, ".data") == 0;
    return 0;
}

/* Objects and parts that the server has on its disk. */
static int count_objects(void)
{
    stored_files = 0;
    (void)nftw(swift.dir, count_stored, 16, FTW_PHYS);
    return stored_files;
}

/* Returns 1 if the server was killed while it had some of the shard's parts and the put was still
 * running. */
static int put_through_a_restart(struct rig *r, struct putter *p)
{
    pthread_t thread;
    int before = count_objects(), ended;
    uint64_t limit = hl_now_ns() + 30 * HL_NS_PER_S;
    assert_int_equal(pthread_create(&thread, NULL, putter_main, p), 0);
    while (count_objects() < before + 2 && !atomic_load(&p->ended))
        assert_true(hl_now_ns() < limit);
    swift_kill(&swift);
    ended = atomic_load(&p->ended);
    swift_launch(&swift);
    assert_int_equal(swift_wait(&swift), 0);
    pthread_join(thread, NULL);
    if (p->st != HL_OK)
        fail_msg("%s", hl_status_name(p->st));
    assert_readable(r, &p->s);
    return !ended;
}

/* The server is killed in the middle of a transfer and restarted at the same address: the put
 * continues. */
static void a_server_that_comes_back_is_waited_for(void **state)
{
    struct rig *r = *state;
    uint64_t tries = 0;
    int interrupted = 0;
    rig_close(r);
    r->timeout_ms = 60000;
    rig_open(r);
    while (!interrupted && tries++ < 5) {
        struct putter p = {.rig = r, .s = shard_make(id_of(tries), 24 * MIB, 1, 1)};
        interrupted = put_through_a_restart(r, &p);
        free(p.s.bytes);
    }
    assert_true(interrupted);
    rig_reopen(r, 0);
    assert_int_equal(info(r).count, tries);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        ARCHIVE_CONFORMANCE(s3_setup, s3_teardown),
        IN_RIG(a_shard_lies_there_as_a_file_anyone_can_open),
        IN_RIG(what_others_put_there_is_left_alone_or_checked),
        IN_RIG(half_uploads_of_a_dead_predecessor_are_aborted),
        IN_RIG(wrong_credentials_and_buckets_are_told_apart),
        IN_RIG(a_server_that_comes_back_is_waited_for),
    };
    int rc = swift_start(&swift);
    if (rc != 0)
        return rc;
    rc = cmocka_run_group_tests_name("archive s3", tests, NULL, NULL);
    swift_stop(&swift);
    return rc;
}
