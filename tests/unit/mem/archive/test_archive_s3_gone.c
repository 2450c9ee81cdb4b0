/* The S3 back end when objects or the bucket are removed while the archive is open, and when puts
 * end after their object has come into being. */
#include "support/test.h"

#include "unit/mem/archive/s3_server.h"

#define NO_UPLOADS "<ListMultipartUploadsResult></ListMultipartUploadsResult>"
#define NO_BUCKET  "<Error><Code>NoSuchBucket</Code></Error>"

struct text {
    char s[512];
};

/* The list of shards 1 to `count`. */
static struct text list_of(unsigned count, uint64_t size)
{
    struct text t;
    int n = snprintf(t.s, sizeof(t.s), "<ListBucketResult>");
    for (unsigned i = 1; i <= count; i++)
        n += snprintf(t.s + n, sizeof(t.s) - (size_t)n,
                      "<Contents><Key>a/b/%s.safetensors</Key><Size>%llu</Size></Contents>",
                      hl_id_format(id_of(i)).s, (unsigned long long)size);
    snprintf(t.s + n, sizeof(t.s) - (size_t)n, "</ListBucketResult>");
    return t;
}

static void say_list(struct server *s, const struct text *list)
{
    say(s, (struct answer){.head = "200 OK", .body = list->s});
}

static void say_size(struct server *s, size_t size)
{
    say(s, (struct answer){.head = "200 OK", .body = "", .body_len = size}); /* of a HEAD */
}

static void say_missing(struct server *s)
{
    say(s, (struct answer){.head = "404 Not Found"});
}

static void begin(struct server *s, const struct text *list)
{
    server_start(s);
    say_list(s, list);
    say(s, (struct answer){.head = "200 OK", .body = NO_UPLOADS});
}

static void open_parts_at(struct server *s, struct rig *r, uint64_t part)
{
    server_run(s);
    *r = (struct rig){.endpoint = s->endpoint, .timeout_ms = 5000, .part = part};
    snprintf(r->url, sizeof(r->url), "s3://bucket/a/b");
    if (rig_try_open(r) != HL_OK)
        fail_msg("%s", hl_error_text());
}

static void open_at(struct server *s, struct rig *r)
{
    open_parts_at(s, r, 0);
}

static void end(struct server *s, struct rig *r)
{
    rig_close(r);
    server_stop(s);
}

static void assert_asked(const struct server *s, unsigned i, const char *begin, const char *part)
{
    if (strncmp(s->requests[i], begin, strlen(begin)) != 0 || strstr(s->requests[i], part) == NULL)
        fail_msg("request %u is not %s with '%s': %s", i, begin, part, s->requests[i]);
}

TEST(an_object_that_is_gone_is_forgotten_while_its_bucket_is_there)
{
    struct server s;
    struct rig r;
    bool gone;
    const struct text two = list_of(2, 100), one = list_of(1, 100);
    begin(&s, &two);
    say_missing(&s);
    say_list(&s, &one);
    open_at(&s, &r);
    assert_int_equal(hl_archive_look(r.archive, id_of(2), &gone), HL_ENOENT);
    assert_true(gone);
    assert_asked(&s, 2, "HEAD", ".safetensors ");
    assert_asked(&s, 3, "GET", "/bucket?list-type=2&max-keys=1&prefix=a%2Fb%2F ");
    assert_int_equal(info(&r).count, 1);
    assert_int_equal(info(&r).used_bytes, 100);
    end(&s, &r);
}

TEST(objects_of_a_bucket_that_is_gone_are_not)
{
    struct server s;
    struct rig r;
    bool gone;
    const struct text two = list_of(2, 100);
    begin(&s, &two);
    say_missing(&s);
    say(&s, (struct answer){.head = "404 Not Found", .body = NO_BUCKET});
    say(&s, (struct answer){.head = "403 Forbidden"});
    open_at(&s, &r);
    assert_int_equal(hl_archive_look(r.archive, id_of(2), &gone), HL_EUNAVAIL);
    assert_false(gone);
    assert_error_has("NoSuchBucket");
    assert_int_equal(hl_archive_look(r.archive, id_of(2), &gone), HL_EPERM);
    assert_false(gone);
    assert_int_equal(info(&r).count, 2);
    end(&s, &r);
}

static void note_missed(void *arg, struct hl_id id, bool gone)
{
    *(uint64_t *)arg = *(uint64_t *)arg * 10 + id.lo * 2 + gone;
}

/* A check asks for the list, and only for the objects that are not in it. */
TEST(a_check_looks_at_what_the_list_does_not_have)
{
    struct server s;
    struct rig r;
    uint64_t missed = 0;
    const struct text all = list_of(4, 100), some = list_of(1, 100);
    begin(&s, &all);
    say_list(&s, &some);
    say_missing(&s);
    say_list(&s, &some);
    say_size(&s, 100); /* younger than the list */
    say_size(&s, 99);
    open_at(&s, &r);
    assert_int_equal(hl_archive_check(r.archive, note_missed, &missed), HL_OK);
    assert_int_equal(missed, 58); /* shard 2 is gone, 4 is damaged */
    assert_int_equal(info(&r).count, 3);
    end(&s, &r);
}

TEST(a_check_of_a_bucket_that_is_gone_misses_nothing)
{
    struct server s;
    struct rig r;
    uint64_t missed = 0;
    const struct text all = list_of(4, 100);
    begin(&s, &all);
    say(&s, (struct answer){.head = "404 Not Found", .body = NO_BUCKET});
    open_at(&s, &r);
    assert_int_not_equal(hl_archive_check(r.archive, note_missed, &missed), HL_OK);
    assert_int_equal(missed, 0);
    assert_int_equal(info(&r).count, 4);
    end(&s, &r);
}

#define TRASHED(id)                                                                                \
    "<Contents><Key>a/b/trash/000000000000" id "-0000000000000000000000000000000" id               \
    ".safetensors</Key><Size>100</Size></Contents>"

TEST(what_others_took_out_of_the_trash_is_forgotten)
{
    static const struct text both = {"<ListBucketResult>" TRASHED("1")
                                         TRASHED("2") "</ListBucketResult>"},
                             one = {"<ListBucketResult>" TRASHED("1") "</ListBucketResult>"};
    struct server s;
    struct rig r;
    uint64_t missed = 0;
    begin(&s, &both);
    say_list(&s, &one);
    say(&s, (struct answer){.head = "403 Forbidden"});
    say_list(&s, &one);
    say_missing(&s);
    say_list(&s, &one);
    open_at(&s, &r);
    assert_int_equal(hl_archive_check(r.archive, note_missed, &missed), HL_OK);
    assert_int_equal(info(&r).trashed, 2); /* not known */
    assert_int_equal(hl_archive_check(r.archive, note_missed, &missed), HL_OK);
    assert_asked(&s, 5, "HEAD", "/a/b/trash/0000000000002-");
    assert_int_equal(info(&r).trashed, 1);
    assert_int_equal(missed, 0);
    end(&s, &r);
}

/* ---- puts that fail late --------------------------------------------------------------------- */

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

/* Request `muted` of the put, counted from 0, is not answered, and the put is stopped there. */
static void stop_put(struct server *s, unsigned muted, uint64_t part)
{
    struct rig r = {.timeout_ms = 30000, .part = part};
    struct stopping stopping = {.server = s, .served = muted + 3};
    pthread_t thread;
    struct shard sh = shard_make(id_of(1), 10000, 1, 1);
    server_run(s);
    r.endpoint = s->endpoint;
    snprintf(r.url, sizeof(r.url), "s3://bucket/a/b");
    assert_int_equal(rig_try_open(&r), HL_OK);
    assert_int_equal(pthread_create(&thread, NULL, stop_main, &stopping), 0);
    hl_archive_stop_with(&stopping.stop);
    assert_int_equal(put(&r, &sh), HL_ECANCELED);
    hl_archive_stop_with(NULL);
    pthread_join(thread, NULL);
    assert_int_equal(info(&r).used_bytes, 0);
    end(s, &r);
    free(sh.bytes);
}

static void say_parts(struct server *s)
{
    say(s, (struct answer){.head = "200 OK",
                           .body = "<InitiateMultipartUploadResult><UploadId>u1"
                                   "</UploadId></InitiateMultipartUploadResult>"});
    say(s, (struct answer){.head = "200 OK", .extra = "ETag: \"p1\"\r\n"});
    say(s, (struct answer){.head = "200 OK", .extra = "ETag: \"p2\"\r\n"});
}

TEST(an_upload_that_is_stopped_before_it_is_checked_leaves_no_object)
{
    struct server s;
    const struct text none = list_of(0, 0);
    begin(&s, &none);
    say_parts(&s);
    say(&s, (struct answer){.head = "200 OK", .body = "<CompleteMultipartUploadResult/>"});
    say(&s, (struct answer){.mute = true});
    say(&s, (struct answer){.head = "204 No Content"});
    stop_put(&s, 4, 8192);
    assert_asked(&s, 6, "HEAD", ".safetensors ");
    assert_asked(&s, 7, "DELETE", ".safetensors ");
}

/* The store may have completed it nevertheless. */
TEST(an_upload_that_is_stopped_while_it_is_completed_leaves_no_object)
{
    struct server s;
    const struct text none = list_of(0, 0);
    begin(&s, &none);
    say_parts(&s);
    say(&s, (struct answer){.mute = true});
    say(&s, (struct answer){.head = "404 Not Found", .body = "<Code>NoSuchUpload</Code>"});
    say(&s, (struct answer){.head = "204 No Content"});
    stop_put(&s, 3, 8192);
    assert_asked(&s, 6, "DELETE", "?uploadId=u1");
    assert_asked(&s, 7, "DELETE", ".safetensors ");
}

/* The store has completed it, but its answer was lost: it does not know the upload any more. */
TEST(an_upload_whose_completion_is_not_answered_is_looked_at)
{
    struct server s;
    struct rig r;
    char crc[64];
    const struct text none = list_of(0, 0);
    struct shard sh = shard_make(id_of(1), 10000, 1, 1);
    snprintf(crc, sizeof(crc), "x-amz-meta-helios-crc32: %08x\r\n", sh.crc);
    begin(&s, &none);
    say_parts(&s);
    say(&s, (struct answer){.head = NULL});
    say(&s, (struct answer){.head = "404 Not Found",
                            .body = "<Error><Code>NoSuchUpload</Code></Error>"});
    say(&s, (struct answer){.head = "200 OK", .extra = crc, .body = "", .body_len = sh.size});
    open_parts_at(&s, &r, 8192);
    if (put(&r, &sh) != HL_OK)
        fail_msg("%s", hl_error_text());
    assert_int_equal(info(&r).count, 1);
    end(&s, &r);
    free(sh.bytes);
}

TEST(a_put_in_one_request_that_is_stopped_leaves_no_object)
{
    struct server s;
    const struct text none = list_of(0, 0);
    begin(&s, &none);
    say(&s, (struct answer){.mute = true});
    say(&s, (struct answer){.head = "204 No Content"});
    stop_put(&s, 0, 0);
    assert_asked(&s, 2, "PUT", ".safetensors ");
    assert_asked(&s, 3, "DELETE", ".safetensors ");
}

int main(int argc, char **argv)
{
    setenv("AWS_ACCESS_KEY_ID", "key", 1);
    setenv("AWS_SECRET_ACCESS_KEY", "secret", 1);
    return tests_run(argc, argv);
}
