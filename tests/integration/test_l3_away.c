/* helios-l3d whose S3 archive is unreachable when it starts: it serves without the archive, reports
 * that, and uses it as soon as it is there. A wrong configuration ends the start. The store is
 * Debian's Swift. */
#include "support/test.h"

#include "integration/client_world.h"

#include "base/clock.h"
#include "core/catalog/derived_id.h"
#include "core/json.h"
#include "curl/library.h"
#include "mem/socket/socket.h"
#include "rpc/rpc.h"
#include "support/rpc_json.h"
#include "support/swift_s3.h"
#include "unit/mem/archive/archive_rig.h"

#define MS 20000

static struct swift swift;
static struct hl_rpc *rpc;

static void set_archive(const char *bucket)
{
    char url[128];
    snprintf(url, sizeof(url), "s3://%s/away", bucket);
    setenv("HELIOS_ARCHIVE_URL", url, 1);
    setenv("HELIOS_ARCHIVE_S3_ENDPOINT", swift.endpoint, 1);
    setenv("HELIOS_ARCHIVE_RETRY", "500ms", 1);
    setenv("HELIOS_METRICS_LISTEN", "127.0.0.1:0", 1);
}

static size_t collect(char *from, size_t size, size_t n, void *arg)
{
    return hl_buf_append(arg, from, size * n) == HL_OK ? size * n : 0;
}

/* The daemon's metrics page; the caller frees it. */
static char *page(const struct world *w, const char *path)
{
    char url[400];
    struct hl_buf text = HL_BUF(1 << 20);
    json_t *ready = json_load_file(w->ready, 0, NULL);
    snprintf(url, sizeof(url), "http://%s%s", hl_json_str(ready, "metrics", ""), path);
    json_decref(ready);
    assert_int_equal(hl_curl_load(), HL_OK);
    CURL *c = curl_easy_init();
    curl_easy_setopt(c, CURLOPT_URL, url);
    curl_easy_setopt(c, CURLOPT_NOPROXY, "*");
    curl_easy_setopt(c, CURLOPT_TIMEOUT, 20L);
    curl_easy_setopt(c, CURLOPT_FAILONERROR, 1L);
    curl_easy_setopt(c, CURLOPT_WRITEFUNCTION, collect);
    curl_easy_setopt(c, CURLOPT_WRITEDATA, &text);
    assert_int_equal(curl_easy_perform(c), CURLE_OK);
    curl_easy_cleanup(c);
    assert_int_equal(hl_buf_append(&text, "", 1), HL_OK);
    return hl_buf_take(&text);
}

static int page_has(const struct world *w, const char *path, const char *words)
{
    char *text = page(w, path);
    int has = strstr(text, words) != NULL;
    free(text);
    return has;
}

static void put_shard(const struct world *w, struct shard *s)
{
    struct hl_l3_client *c = NULL;
    struct hl_l3_staging staging = {0};
    struct hl_pool_ref ref;
    assert_int_equal(hl_l3_connect(w->socket, MS, &c), HL_OK);
    assert_int_equal(hl_l3_staging_open(s->size, &staging), HL_OK);
    memcpy(staging.ptr, s->bytes, s->size);
    assert_int_equal(hl_l3_put(c, &staging, s->size, MS, &ref), HL_OK);
    s->id = ref.id;
    hl_l3_staging_close(&staging);
    hl_l3_close(c);
}

static hl_status call(struct hl_rpc_peer *l3, const char *method, struct hl_id id)
{
    json_t *result = NULL, *params;
    if (strcmp(method, "listArchived") == 0)
        params = json_object();
    else if (strcmp(method, "heal") == 0)
        params = json_pack("{s:s s:[]}", "id", hl_id_format(id).s, "sources");
    else
        params = json_pack("{s:[s]}", "ids", hl_id_format(id).s);
    hl_status st = rpc_json_call(l3, method, params, MS, &result);
    json_decref(params);
    json_decref(result);
    return st;
}

/* The error names the place and the cause. */
static void assert_away(hl_status st)
{
    assert_int_equal(st, HL_EUNAVAIL);
    assert_non_null(strstr(hl_error_text(), swift.endpoint));
    assert_non_null(strstr(hl_error_text(), "away"));
}

TEST(a_pool_whose_archive_is_away_is_served_until_it_is_there)
{
    struct world w;
    struct hl_rpc_peer *l3;
    struct shard s = shard_make((struct hl_id){1, 1}, 50000, 1, 1);
    char *back = malloc(s.size);
    set_archive(swift.bucket);
    swift_kill(&swift);
    world_start(&w, "32MiB");
    assert_int_equal(hl_rpc_open(rpc, w.address, "L3", &l3), HL_OK);
    put_shard(&w, &s);
    helios_client *c = world_client(&w, "shm", 0, 0);
    assert_int_equal(helios_get(c, (helios_id){s.id.hi, s.id.lo}, back, s.size), HELIOS_OK);
    assert_memory_equal(back, s.bytes, s.size);

    /* A derived shard is never archived, so its state is known: a reader that listed it has it
     * derived again, without waiting for the archive. */
    const struct hl_id derived = hl_id_derived(7, 1);
    assert_int_equal(call(l3, "heal", derived), HL_OK);
    assert_int_equal(call(l3, "locate", derived), HL_ENOENT);
    assert_away(call(l3, "heal", (struct hl_id){7, 1}));

    assert_away(call(l3, "archive", s.id));
    assert_away(call(l3, "dropArchived", s.id));
    assert_away(
        call(l3, "listArchived", s.id)); /* an empty list would mean that the shards are lost */
    assert_away(call(l3, "locate", (struct hl_id){3, 4}));
    assert_away(call(l3, "heal", (struct hl_id){3, 4})); /* whether it is lost is not known */
    assert_int_equal(call(l3, "heal", s.id), HL_OK);     /* the shard is good */
    assert_true(page_has(&w, "/healthz", "ok\narchive s3://"));
    assert_true(page_has(&w, "/healthz", swift.endpoint));
    assert_true(page_has(&w, "/metrics", "\nhelios_archive_up 0\n"));

    swift_launch(&swift);
    assert_int_equal(swift_wait(&swift), 0);
    uint64_t end = hl_now_ns() + TEST_PATIENCE_NS;
    while (!page_has(&w, "/metrics", "\nhelios_archive_up 1\n")) {
        assert_true(hl_now_ns() < end);
        nap_ms(50);
    }
    char *health = page(&w, "/healthz");
    assert_string_equal(health, "ok\n");
    free(health);
    assert_int_equal(call(l3, "archive", s.id), HL_OK);
    assert_int_equal(call(l3, "evict", s.id), HL_OK);
    assert_int_equal(helios_get(c, (helios_id){s.id.hi, s.id.lo}, back, s.size), HELIOS_OK);
    assert_memory_equal(back, s.bytes, s.size); /* from the archive */
    assert_int_equal(call(l3, "locate", (struct hl_id){3, 4}), HL_ENOENT);
    helios_close(c);
    hl_rpc_peer_close(l3);
    world_end(&w);
    free(back);
    free(s.bytes);
}

TEST(a_daemon_whose_archive_never_comes_ends_when_it_is_told)
{
    struct world w;
    int status = -1;
    set_archive(swift.bucket);
    setenv("HELIOS_ARCHIVE_S3_ENDPOINT", "http://127.0.0.1:1", 1);
    world_start(&w, "32MiB");
    uint64_t begun = hl_now_ns();
    kill(w.pid, SIGTERM);
    assert_int_equal(waitpid(w.pid, &status, 0), w.pid);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    assert_true(hl_now_ns() - begun <
                20 * HL_NS_PER_S); /* without waiting through its 30 s of retries */
    w.pid = 0;
    world_end(&w);
}

/* What helios-l3d prints when it refuses to start. */
static void assert_refused(const char *words)
{
    char program[512], command[800], text[4096];
    world_program(program, sizeof(program));
    snprintf(command, sizeof(command),
             "timeout 60 %s --pool /dev/shm/helios-test-away-%d.pool --size 1MiB "
             "--listen 127.0.0.1:0 --log-level error 2>&1",
             program, (int)getpid());
    FILE *said = popen(command, "r");
    assert_non_null(said);
    text[fread(text, 1, sizeof(text) - 1, said)] = '\0';
    int status = pclose(said);
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 1 || strstr(text, words) == NULL)
        fail_msg("status %x: %s", (unsigned)status, text);
    assert_non_null(strstr(text, swift.endpoint));
}

TEST(wrong_credentials_and_a_missing_bucket_end_the_start_with_a_sentence)
{
    set_archive(swift.bucket);
    setenv("AWS_SECRET_ACCESS_KEY", "wrong", 1);
    assert_refused("check AWS_ACCESS_KEY_ID");
    setenv("AWS_SECRET_ACCESS_KEY", swift.secret_key, 1);
    set_archive("no-such-bucket");
    assert_refused("make the bucket first");
}

int main(int argc, char **argv)
{
    char program[512];
    world_program(program, sizeof(program));
    if (access(program, X_OK) != 0) {
        printf("skipped: %s is not built\n", program);
        return SKIP_CODE;
    }
    int rc = swift_start(&swift);
    if (rc == 0 && hl_rpc_create(&rpc) != HL_OK)
        rc = 1;
    if (rc != 0)
        return rc;
    rc = tests_run(argc, argv);
    hl_rpc_destroy(rpc);
    swift_stop(&swift);
    return rc;
}
