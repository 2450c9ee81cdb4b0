/* The S3 back end with a server that sends prepared answers: failures that a healthy store does not
 * show. */
#include "support/test.h"

#include "mem/archive/s3.h"
#include "unit/mem/archive/s3_server.h"

#define EMPTY_LIST "<ListBucketResult><IsTruncated>false</IsTruncated></ListBucketResult>"
#define NO_UPLOADS "<ListMultipartUploadsResult></ListMultipartUploadsResult>"

static void say_empty(struct server *s)
{
    say(s, (struct answer){.head = "200 OK", .body = EMPTY_LIST});
    say(s, (struct answer){.head = "200 OK", .body = NO_UPLOADS});
}

static hl_status try_open(struct server *s, struct rig *r, unsigned timeout_ms, uint64_t part)
{
    *r = (struct rig){.endpoint = s->endpoint, .timeout_ms = timeout_ms, .part = part};
    snprintf(r->url, sizeof(r->url), "s3://bucket/a/b");
    return rig_try_open(r);
}

static void open_at(struct server *s, struct rig *r, unsigned timeout_ms, uint64_t part)
{
    if (try_open(s, r, timeout_ms, part) != HL_OK)
        fail_msg("%s", hl_error_text());
}

static void assert_asked(const struct server *s, unsigned i, const char *part)
{
    if (strcasestr(s->requests[i], part) == NULL)
        fail_msg("request %u has no '%s': %s", i, part, s->requests[i]);
}

/* ---- lists ----------------------------------------------------------------------------------- */

TEST(a_list_of_many_pages_is_read_to_its_end)
{
    struct server s;
    struct rig r;
    char first[600], second[600];
    server_start(&s);
    snprintf(first, sizeof(first),
             "<?xml version='1.0'?><ListBucketResult xmlns=\"x\"><IsTruncated>true</IsTruncated>"
             "<Contents><Key>a/b/%s.safetensors</Key><Size>100</Size></Contents>"
             "<Contents><Key>a/b/R&amp;D.txt</Key><Size>1</Size></Contents>"
             "<NextContinuationToken>t/1+&quot;=</NextContinuationToken></ListBucketResult>",
             hl_id_format(id_of(1)).s);
    snprintf(second, sizeof(second),
             "<ListBucketResult><IsTruncated>false</IsTruncated>"
             "<Contents><Key>a/b/%s.safetensors</Key><Size>23</Size></Contents>"
             "</ListBucketResult>",
             hl_id_format(id_of(2)).s);
    say(&s, (struct answer){.head = "200 OK", .body = first});
    say(&s, (struct answer){.head = "200 OK", .body = second});
    say(&s, (struct answer){.head = "200 OK", .body = NO_UPLOADS});
    server_run(&s);
    open_at(&s, &r, 5000, 0);
    assert_int_equal(info(&r).count, 2);
    assert_int_equal(info(&r).used_bytes, 123);
    assert_int_equal(info(&r).foreign, 1);
    assert_asked(&s, 0, "GET /bucket?list-type=2&max-keys=1000&prefix=a%2Fb%2F ");
    assert_asked(&s, 1,
                 "GET /bucket?continuation-token=t%2F1%2B%22%3D&list-type=2&max-keys=1000&prefix=");
    assert_asked(&s, 0, "Authorization: AWS4-HMAC-SHA256 Credential=key:with:colons/");
    rig_close(&r);
    server_stop(&s);
}

/* A store that returns its tokens in a circle of `length`, one page each. */
static void list_in_a_circle(unsigned length, unsigned pages)
{
    struct server s;
    struct rig r;
    char page[8][400];
    server_start(&s);
    for (unsigned i = 0; i < pages; i++) {
        char *at = page[i % length];
        snprintf(at, sizeof(page[0]),
                 "<ListBucketResult><IsTruncated>true</IsTruncated>"
                 "<Contents><Key>a/b/%s.safetensors</Key><Size>100</Size></Contents>"
                 "<NextContinuationToken>t%u</NextContinuationToken></ListBucketResult>",
                 hl_id_format(id_of(1)).s, i % length);
        say(&s, (struct answer){.head = "200 OK", .body = at});
    }
    server_run(&s);
    assert_int_equal(try_open(&s, &r, 1000, 0), HL_EPROTO);
    assert_non_null(strstr(hl_error_text(), "the list of objects does not end"));
    assert_null(r.archive);
    server_stop(&s); /* these pages and no others were requested */
}

TEST(a_list_that_goes_round_in_a_circle_is_refused)
{
    list_in_a_circle(1, 2);
    list_in_a_circle(2, 4);
    list_in_a_circle(3, 7);
    list_in_a_circle(5, 13);
}

TEST(what_is_no_list_is_refused)
{
    static const char *const bodies[] = {
        "",
        "<html>hello</html>",
        "<ListBucketResult>",
        "<ListBucketResult><IsTruncated>true</IsTruncated></ListBucketResult>",
        "<ListBucketResult><Contents><Key>x</Key></Contents></ListBucketResult>",
        "<ListBucketResult><Contents><Key>x</Key><Size>12 kB</Size></Contents></ListBucketResult>",
        "<ListBucketResult><Contents><Key>x</Key><Size>-1</Size></Contents></ListBucketResult>",
        "<ListBucketResult><Contents><Key>x</Key><Size></Size></Contents></ListBucketResult>"};
    for (size_t i = 0; i < HL_ARRAY_LEN(bodies); i++) {
        struct server s;
        struct rig r;
        server_start(&s);
        say(&s, (struct answer){.head = "200 OK", .body = bodies[i]});
        server_run(&s);
        assert_int_equal(try_open(&s, &r, 1000, 0), HL_EPROTO);
        assert_null(r.archive);
        server_stop(&s);
    }
}

/* ---- temporary and permanent faults
 * --------------------------------------------------------------
 */

TEST(a_store_that_is_busy_is_asked_again)
{
    struct server s;
    struct rig r;
    struct shard sh = shard_make(id_of(1), 1000, 1, 1);
    server_start(&s);
    say(&s,
        (struct answer){.head = "503 Slow Down", .body = "<Error><Code>SlowDown</Code></Error>"});
    say_empty(&s);
    say(&s, (struct answer){.head = "500 Oops"});
    say(&s, (struct answer){.head = NULL});
    say(&s, (struct answer){.head = "200 OK"});
    server_run(&s);
    open_at(&s, &r, 20000, 0);
    assert_int_equal(put(&r, &sh), HL_OK);
    char crc[64];
    snprintf(crc, sizeof(crc), "x-amz-meta-helios-crc32: %08x", sh.crc);
    for (unsigned i = 3; i < 6; i++)
        assert_asked(&s, i, crc);
    rig_close(&r);
    server_stop(&s);
    free(sh.bytes);
}

TEST(a_store_that_stays_busy_is_given_up)
{
    struct server s;
    struct rig r;
    struct shard sh = shard_make(id_of(1), 1000, 1, 1);
    server_start(&s);
    say_empty(&s);
    for (int i = 0; i < 12; i++)
        say(&s, (struct answer){.head = "503 Slow Down",
                                .body = "<Error><Code>SlowDown</Code><Message>not now</Message>"
                                        "</Error>"});
    server_run(&s);
    open_at(&s, &r, 600, 0);
    assert_int_equal(put(&r, &sh), HL_EUNAVAIL);
    assert_error_has("SlowDown: not now");
    assert_error_has(hl_id_format(sh.id).s);
    assert_int_equal(info(&r).used_bytes, 0);
    rig_close(&r);
    s.count = atomic_load(&s.served); /* how often is left to the client */
    assert_true(s.count >= 4);
    server_stop(&s);
    free(sh.bytes);
}

TEST(refusals_are_told_by_the_stores_own_code)
{
    static const struct {
        const char *head, *body;
        hl_status st;
        const char *text;
    } cases[] = {
        {"403 Forbidden", "<Error><Code>AccessDenied</Code></Error>", HL_EPERM, "AccessDenied"},
        {"400 Bad Request", "<Error><Code>XAmzContentSHA256Mismatch</Code></Error>", HL_EINVAL,
         "XAmzContentSHA256Mismatch"},
        {"400 Bad Request", "not XML at all", HL_EINVAL, "HTTP 400"},
        {"507 Insufficient Storage", "", HL_ENOSPC, "507"},
        {"403 Forbidden", "<Error><Code>QuotaExceeded</Code></Error>", HL_ENOSPC, "QuotaExceeded"},
    };
    struct shard sh = shard_make(id_of(1), 1000, 1, 1);
    for (size_t i = 0; i < HL_ARRAY_LEN(cases); i++) {
        struct server s;
        struct rig r;
        server_start(&s);
        say_empty(&s);
        say(&s, (struct answer){.head = cases[i].head, .body = cases[i].body});
        server_run(&s);
        open_at(&s, &r, 5000, 0);
        assert_int_equal(put(&r, &sh), cases[i].st);
        assert_error_has(cases[i].text);
        assert_int_equal(info(&r).used_bytes, 0);
        rig_close(&r);
        server_stop(&s);
    }
    free(sh.bytes);
}

TEST(nobody_there_and_nobody_answering_have_deadlines)
{
    struct server s;
    struct rig r;
    server_start(&s);
    say(&s, (struct answer){.mute = true});
    server_run(&s);
    assert_int_equal(try_open(&s, &r, 300, 0), HL_ETIMEDOUT);
    assert_error_has(s.endpoint);
    server_stop(&s);
    assert_int_equal(try_open(&s, &r, 300, 0), HL_EUNAVAIL); /* the port is closed now */
    assert_error_has(s.endpoint);
}

TEST(a_cancelled_transfer_ends_at_once)
{
    struct server s;
    struct rig r = {0};
    atomic_bool cancel = false;
    struct shard sh = shard_make(id_of(1), 1000, 1, 1);
    server_start(&s);
    say_empty(&s);
    server_run(&s);
    assert_int_equal(hl_archive_open(&(struct hl_archive_options){.url = "s3://bucket/a/b",
                                                                  .s3_endpoint = s.endpoint,
                                                                  .cancel = &cancel},
                                     &r.archive),
                     HL_OK);
    atomic_bool stop = true;
    hl_archive_stop_with(&stop); /* this thread's operations */
    assert_int_equal(put(&r, &sh), HL_ECANCELED);
    hl_archive_stop_with(NULL);
    atomic_store(&cancel, true);
    assert_int_equal(put(&r, &sh), HL_ECANCELED);
    rig_close(&r);
    server_stop(&s);
    free(sh.bytes);
}

/* ---- downloads ------------------------------------------------------------------------------- */

static void say_stored(struct server *s, const struct shard *sh, char *list, size_t cap)
{
    snprintf(list, cap,
             "<ListBucketResult><Contents><Key>a/b/%s.safetensors</Key><Size>%llu</Size></Contents>"
             "</ListBucketResult>",
             hl_id_format(sh->id).s, (unsigned long long)sh->size);
    say(s, (struct answer){.head = "200 OK", .body = list});
    say(s, (struct answer){.head = "200 OK", .body = NO_UPLOADS});
}

TEST(a_download_that_breaks_off_goes_on_where_it_stopped)
{
    struct server s;
    struct rig r;
    struct shard sh = shard_make(id_of(1), 50000, 1, 1);
    char list[400], range[120];
    server_start(&s);
    say_stored(&s, &sh, list, sizeof(list));
    say(&s, (struct answer){.head = "200 OK",
                            .extra = "ETag: \"e1\"\r\n",
                            .body = sh.bytes,
                            .body_len = sh.size,
                            .cut = 20000});
    snprintf(range, sizeof(range), "ETag: \"e1\"\r\nContent-Range: bytes 20000-%llu/%llu\r\n",
             (unsigned long long)sh.size - 1, (unsigned long long)sh.size);
    say(&s, (struct answer){.head = "206 Partial Content",
                            .extra = range,
                            .body = sh.bytes + 20000,
                            .body_len = sh.size - 20000});
    server_run(&s);
    open_at(&s, &r, 5000, 0);
    assert_readable(&r, &sh);
    assert_asked(&s, 3, "Range: bytes=20000-");
    assert_asked(&s, 3, "If-Match: \"e1\"");
    rig_close(&r);
    server_stop(&s);
    free(sh.bytes);
}

TEST(an_object_that_changed_or_lies_about_its_size_is_corrupt)
{
    struct shard sh = shard_make(id_of(1), 50000, 1, 1);
    char list[400];
    const struct answer last[] = {
        /* shorter, longer, and everything where a part was requested */
        {.head = "200 OK", .body = sh.bytes, .body_len = sh.size - 1},
        {.head = "200 OK", .body = list, .body_len = sizeof(list)},
        {.head = "206 Partial Content",
         .extra = "Content-Range: bytes 0-99/100\r\n",
         .body = sh.bytes,
         .body_len = 100},
    };
    for (size_t i = 0; i < HL_ARRAY_LEN(last); i++) {
        struct server s;
        struct rig r;
        server_start(&s);
        say_stored(&s, &sh, list, sizeof(list));
        say(&s, last[i]);
        server_run(&s);
        open_at(&s, &r, 5000, 0);
        assert_int_equal(get_status(&r, &sh), HL_ECORRUPT);
        rig_close(&r);
        server_stop(&s);
    }
    struct server s;
    struct rig r;
    server_start(&s);
    say_stored(&s, &sh, list, sizeof(list));
    say(&s, (struct answer){.head = "200 OK",
                            .extra = "ETag: \"e1\"\r\n",
                            .body = sh.bytes,
                            .body_len = sh.size,
                            .cut = 7});
    say(&s, (struct answer){.head = "412 Precondition Failed"});
    server_run(&s);
    open_at(&s, &r, 5000, 0);
    assert_int_equal(get_status(&r, &sh), HL_ECORRUPT);
    assert_error_has("changed");
    rig_close(&r);
    server_stop(&s);
    free(sh.bytes);
}

/* ---- uploads in parts ------------------------------------------------------------------------ */

#define UPLOAD                                                                                     \
    "<InitiateMultipartUploadResult><UploadId>u&amp;1</UploadId></InitiateMultipartUploadResult>"

TEST(an_upload_that_fails_is_aborted)
{
    struct server s;
    struct rig r;
    struct shard sh = shard_make(id_of(1), 20000, 1, 1);
    server_start(&s);
    say_empty(&s);
    say(&s, (struct answer){.head = "200 OK", .body = UPLOAD});
    say(&s, (struct answer){.head = "200 OK", .extra = "ETag: \"p1\"\r\n"});
    say(&s, (struct answer){.head = "403 Forbidden", .body = "<Code>AccessDenied</Code>"});
    say(&s, (struct answer){.head = "204 No Content"});
    server_run(&s);
    open_at(&s, &r, 5000, 8192);
    assert_int_equal(put(&r, &sh), HL_EPERM);
    assert_asked(&s, 2, "POST /bucket/a/b/");
    assert_asked(&s, 2, ".safetensors?uploads= ");
    assert_asked(&s, 3, "?partNumber=1&uploadId=u%261 ");
    assert_asked(&s, 5, "DELETE /bucket/a/b/");
    assert_asked(&s, 5, "?uploadId=u%261 ");
    assert_int_equal(info(&r).used_bytes, 0);
    rig_close(&r);
    server_stop(&s);
    free(sh.bytes);
}

struct stopping {
    struct server *server;
    unsigned served;
    atomic_bool stop;
};

/* Stops the put once the server has taken so many requests. */
static void *stop_main(void *arg)
{
    struct stopping *s = arg;
    while (atomic_load(&s->server->served) < s->served)
        usleep(1000);
    atomic_store(&s->stop, true);
    return NULL;
}

TEST(an_upload_that_is_stopped_is_aborted)
{
    struct server s;
    struct rig r;
    struct stopping stopping = {.server = &s, .served = 4};
    pthread_t thread;
    struct shard sh = shard_make(id_of(1), 20000, 1, 1);
    server_start(&s);
    say_empty(&s);
    say(&s, (struct answer){.head = "200 OK", .body = UPLOAD});
    say(&s, (struct answer){.mute = true}); /* the first part */
    say(&s, (struct answer){.head = "204 No Content"});
    server_run(&s);
    open_at(&s, &r, 30000, 8192);
    assert_int_equal(pthread_create(&thread, NULL, stop_main, &stopping), 0);
    hl_archive_stop_with(&stopping.stop);
    assert_int_equal(put(&r, &sh), HL_ECANCELED);
    assert_asked(&s, 4, "DELETE /bucket/a/b/");
    assert_asked(&s, 4, "?uploadId=u%261 ");
    assert_int_equal(put(&r, &sh), HL_ECANCELED); /* the thread is still stopped */
    hl_archive_stop_with(NULL);
    pthread_join(thread, NULL);
    rig_close(&r);
    server_stop(&s);
    free(sh.bytes);
}

TEST(a_completion_that_says_200_and_means_no_is_a_failure)
{
    struct server s;
    struct rig r;
    struct shard sh = shard_make(id_of(1), 10000, 1, 1);
    server_start(&s);
    say_empty(&s);
    say(&s, (struct answer){.head = "200 OK", .body = UPLOAD});
    say(&s, (struct answer){.head = "200 OK", .extra = "ETag: \"p1\"\r\n"});
    say(&s, (struct answer){.head = "200 OK", .extra = "ETag: \"p2\"\r\n"});
    say(&s, (struct answer){.head = "200 OK", .body = "<Error><Code>InternalError</Code></Error>"});
    say(&s, (struct answer){.head = "204 No Content"});
    server_run(&s);
    open_at(&s, &r, 5000, 8192);
    assert_int_equal(put(&r, &sh), HL_EIO);
    assert_error_has("InternalError");
    rig_close(&r);
    server_stop(&s);
    free(sh.bytes);
}

TEST(an_object_that_was_kept_otherwise_is_not_taken_for_stored)
{
    struct server s;
    struct rig r;
    struct shard sh = shard_make(id_of(1), 10000, 1, 1);
    server_start(&s);
    say_empty(&s);
    say(&s, (struct answer){.head = "200 OK", .body = UPLOAD});
    say(&s, (struct answer){.head = "200 OK", .extra = "ETag: \"p1\"\r\n"});
    say(&s, (struct answer){.head = "200 OK", .extra = "ETag: \"p2\"\r\n"});
    say(&s, (struct answer){.head = "200 OK", .body = "<CompleteMultipartUploadResult/>"});
    say(&s, (struct answer){.head = "200 OK", .body = sh.bytes, .body_len = 8192}); /* HEAD */
    say(&s, (struct answer){.head = "204 No Content"});
    server_run(&s);
    open_at(&s, &r, 5000, 8192);
    assert_int_equal(put(&r, &sh), HL_EIO);
    assert_error_has("8192");
    assert_asked(&s, 6, "HEAD ");
    assert_asked(&s, 7, "DELETE ");
    rig_close(&r);
    server_stop(&s);
    free(sh.bytes);
}

/* ---- moves and claims
 * -------------------------------------------------------------------------- */

/* A list with one shard of `size` bytes, text that lives as long as the caller's buffer. */
static void say_one(struct server *s, char *buf, size_t cap, struct hl_id id, const char *size)
{
    snprintf(buf, cap,
             "<ListBucketResult><IsTruncated>false</IsTruncated><Contents><Key>a/b/%s.safetensors"
             "</Key><Size>%s</Size></Contents></ListBucketResult>",
             hl_id_format(id).s, size);
    say(s, (struct answer){.head = "200 OK", .body = buf});
    say(s, (struct answer){.head = "200 OK", .body = NO_UPLOADS});
}

TEST(a_shard_is_removed_only_after_its_copy_was_looked_at)
{
    struct server s;
    struct rig r;
    char list[400], path[200];
    static const char eight[8] = "12345678";
    server_start(&s);
    say_one(&s, list, sizeof(list), id_of(1), "8");
    say(&s, (struct answer){.head = "200 OK", .body = "<CopyObjectResult/>"});
    say(&s, (struct answer){.head = "200 OK", .body = eight, .body_len = 8}); /* HEAD */
    say(&s, (struct answer){.head = "204 No Content"});
    server_run(&s);
    open_at(&s, &r, 5000, 0);
    assert_int_equal(hl_archive_trash(r.archive, id_of(1), 1700000000123, NULL), HL_OK);
    snprintf(path, sizeof(path), "PUT /bucket/a/b/trash/1700000000123-%s.safetensors ",
             hl_id_format(id_of(1)).s);
    assert_asked(&s, 2, path);
    snprintf(path, sizeof(path), "x-amz-copy-source: /bucket/a/b/%s.safetensors\r\n",
             hl_id_format(id_of(1)).s);
    assert_asked(&s, 2, path);
    assert_asked(&s, 2, "x-amz-copy-source;"); /* signed */
    assert_asked(&s, 3, "HEAD /bucket/a/b/trash/1700000000123-");
    snprintf(path, sizeof(path), "DELETE /bucket/a/b/%s.safetensors ", hl_id_format(id_of(1)).s);
    assert_asked(&s, 4, path);
    assert_int_equal(info(&r).count, 0);
    assert_int_equal(info(&r).trashed, 1);
    rig_close(&r);
    server_stop(&s);
}

/* The last one is more than a store copies in one request: it is not requested. */
TEST(a_copy_that_failed_leaves_the_shard_where_it_is)
{
    static const struct {
        const char *size;
        struct answer copied, looked_at;
        hl_status st;
    } cases[] = {
        {"8", {.head = "200 OK", .body = "<Error><Code>Oops</Code></Error>"}, {0}, HL_EIO},
        {"8", {.head = "200 OK"}, {.head = "200 OK", .body = "1234", .body_len = 4}, HL_EIO},
        {"5368709121", {0}, {0}, HL_EUNSUPPORTED}};

    for (size_t i = 0; i < HL_ARRAY_LEN(cases); i++) {
        struct server s;
        struct rig r;
        char list[400];
        server_start(&s);
        say_one(&s, list, sizeof(list), id_of(1), cases[i].size);
        if (cases[i].copied.head != NULL)
            say(&s, cases[i].copied);
        if (cases[i].looked_at.head != NULL)
            say(&s, cases[i].looked_at);
        server_run(&s);
        open_at(&s, &r, 5000, 0);
        assert_int_equal(hl_archive_trash(r.archive, id_of(1), 1, NULL), cases[i].st);
        assert_int_equal(info(&r).count, 1);
        assert_int_equal(info(&r).trashed, 0);
        rig_close(&r);
        server_stop(&s);
    }
}

TEST(the_owner_is_an_object_of_its_own)
{
    struct server s;
    struct rig r;
    struct hl_archive_claim c;
    server_start(&s);
    say(&s, (struct answer){
                .head = "200 OK",
                .body = "<ListBucketResult><IsTruncated>false</IsTruncated><Contents><Key>a/b/"
                        "helios-cluster.json</Key><Size>70</Size></Contents></ListBucketResult>"});
    say(&s, (struct answer){.head = "200 OK", .body = NO_UPLOADS});
    say(&s, (struct answer){
                .head = "200 OK",
                .body = "{\"cluster\": \"0123456789abcdef00000000000000ff\", \"revision\": 12}"});
    say(&s, (struct answer){.head = "200 OK"});
    server_run(&s);
    open_at(&s, &r, 5000, 0);
    hl_archive_claimed(r.archive, &c);
    assert_true(hl_id_equal(c.cluster, (struct hl_id){UINT64_C(0x0123456789abcdef), 0xff}));
    assert_int_equal(c.revision, 12);
    assert_int_equal(info(&r).foreign, 0);
    c.revision = 13;
    assert_int_equal(hl_archive_claim(r.archive, &c), HL_OK);
    assert_asked(&s, 2, "GET /bucket/a/b/helios-cluster.json ");
    assert_asked(&s, 3, "PUT /bucket/a/b/helios-cluster.json ");
    assert_asked(&s, 3, "\"revision\": 13");
    rig_close(&r);
    server_stop(&s);
}

/* ---- options, XML ---------------------------------------------------------------------------- */

TEST(bad_places_are_refused_before_anybody_is_asked)
{
    static const char *const urls[] = {"s3:bucket/x",    "s3://b/x",        "s3://",
                                       "s3://buc ket/x", "s3://bucket/a b", "s3://bucket/a/../b",
                                       "s3://bucket//a"};
    struct hl_archive *a = NULL;
    for (size_t i = 0; i < HL_ARRAY_LEN(urls); i++)
        assert_int_equal(hl_archive_open(&(struct hl_archive_options){.url = urls[i]}, &a),
                         HL_EINVAL);
    assert_int_equal(
        hl_archive_open(
            &(struct hl_archive_options){.url = "s3://bucket/a", .s3_endpoint = "ftp://x"}, &a),
        HL_EINVAL);
    assert_int_equal(hl_archive_open(&(struct hl_archive_options){.url = "s3://bucket/a",
                                                                  .s3_endpoint = "http://u:p@x"},
                                     &a),
                     HL_EINVAL);
    assert_null(a);
}

static hl_status parse_xml(const char *text, struct hl_arena *arena, struct s3_node **root)
{
    return s3_xml_parse(text, strlen(text), arena, root);
}

TEST(xml_becomes_a_tree_of_elements)
{
    struct hl_arena arena = {0};
    struct s3_node *root = NULL;
    assert_int_equal(parse_xml("<?xml version='1.0'?><A x='1' xmlns='u'><Key>a&lt;b&#43;&#x2b;&amp;"
                               "</Key>\n <Keys>no</Keys><Empty/><B><Key>inner</Key></B></A>",
                               &arena, &root),
                     HL_OK);
    assert_string_equal(root->name, "A");
    assert_string_equal(s3_node_text(root, "Key"), "a<b++&");
    assert_string_equal(s3_node_text(root, "Keys"), "no");
    assert_string_equal(s3_node_text(root, "Empty"), "");
    assert_string_equal(s3_node_text(root, "B"), "");
    assert_null(s3_node_text(root, "C"));
    hl_arena_fini(&arena);
}

TEST(xml_that_is_cut_or_hostile_is_refused)
{
    static const char whole[] = "<A><Key>x</Key></A>";
    static const char *const bad[] = {"",
                                      "x",
                                      "<A><B></A></B>",
                                      "<A>&bogus;</A>",
                                      "<A>\xFF</A>",
                                      "<A/><B/>",
                                      "<!DOCTYPE A [<!ENTITY e 'eeeeeeee'>]><A>&e;</A>",
                                      "<a><a><a><a><a><a><a><a><a><a><a><a><a><a><a><a><a></a></"
                                      "a></a></a></a></a></a></a></a></a>"
                                      "</a></a></a></a></a></a></a>"};
    struct hl_arena arena = {0};
    struct s3_node *root = NULL;
    for (size_t i = 0; i < HL_ARRAY_LEN(bad); i++)
        assert_int_equal(parse_xml(bad[i], &arena, &root), HL_EPROTO);
    for (size_t cut = 0; cut < sizeof(whole) - 1; cut++)
        assert_int_equal(s3_xml_parse(whole, cut, &arena, &root), HL_EPROTO);
    assert_null(root);
    hl_arena_fini(&arena);
}

TEST(an_error_is_told_by_its_root)
{
    struct hl_buf text = HL_BUF(4096);
    char code[16] = "kept", message[64] = "kept";
    assert_int_equal(hl_buf_printf(&text, "<List><Code>NoError</Code></List>"), HL_OK);
    assert_int_equal(s3_error_of(&text, code, sizeof(code), message, sizeof(message)), 0);
    assert_string_equal(code, "kept");
    hl_buf_clear(&text);
    assert_int_equal(
        hl_buf_printf(&text, "<Error><Code>SlowDown</Code><Message>later</Message></Error>"),
        HL_OK);
    assert_int_equal(s3_error_of(&text, code, sizeof(code), message, sizeof(message)), 1);
    assert_string_equal(code, "SlowDown");
    assert_string_equal(message, "later");
    hl_buf_fini(&text);
}

TEST(a_value_of_a_query_is_encoded)
{
    char out[32];
    assert_int_equal(s3_encode("a/b c~é", out, sizeof(out)), 1);
    assert_string_equal(out, "a%2Fb%20c~%C3%A9");
    assert_int_equal(s3_encode("////////////", out, sizeof(out)), 0);
}

int main(int argc, char **argv)
{
    setenv("AWS_ACCESS_KEY_ID", "key:with:colons", 1);
    setenv("AWS_SECRET_ACCESS_KEY", "secret", 1);
    return tests_run(argc, argv);
}
