/* The real helios-l3d, and what is left in its pool after it was killed. */
#include "support/test.h"

#include <fcntl.h>
#include <jansson.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/crc32.h"
#include "base/log.h"
#include "core/json.h"
#include "mem/socket/socket.h"
#include "net/net.h"
#include "os/file.h"
#include "rpc/rpc.h"
#include "support/hf_fixture.h"
#include "support/rpc_json.h"

#define MIB ((uint64_t)1 << 20)
#define MS  20000

struct daemon {
    struct hl_rpc *rpc;
    struct hl_rpc_peer *peer;
    pid_t pid;
    json_t *ready;
    const char *size; /* flag */
    const char *more; /* a further flag, or NULL */
    char dir[64], pool[96], ready_file[96], socket[96];
};

/* ---- the process ----------------------------------------------------------------------------- */

static void spawn(struct daemon *d)
{
    const char *build = getenv("HELIOS_BUILD");
    char program[512];
    snprintf(program, sizeof(program), "%s/bin/helios-l3d", build != NULL ? build : "build");
    unlink(d->ready_file);
    d->pid = fork();
    assert_true(d->pid >= 0);
    if (d->pid == 0) {
        execl(program, "helios-l3d", "--pool", d->pool, "--size", d->size, "--listen",
              "127.0.0.1:0", "--data-listen", "127.0.0.1:0", "--socket", d->socket, "--ready-file",
              d->ready_file, "--quarantine", "100ms", "--log-level", "error", d->more, NULL);
        _exit(127);
    }
}

static void up(struct daemon *d)
{
    uint64_t deadline = hl_now_ns() + (uint64_t)MS * HL_NS_PER_MS;
    spawn(d);
    json_decref(d->ready);
    while ((d->ready = json_load_file(d->ready_file, 0, NULL)) == NULL && hl_now_ns() < deadline) {
        assert_int_equal(waitpid(d->pid, NULL, WNOHANG), 0);
        poll(NULL, 0, 2);
    }
    assert_non_null(d->ready);
    assert_int_equal(hl_json_int(d->ready, "pid", 0), d->pid);
    assert_int_equal(hl_rpc_open(d->rpc, hl_json_str(d->ready, "address", ""), "L3", &d->peer),
                     HL_OK);
}

/* Returns the exit status as waitpid gives it. */
static int down(struct daemon *d, int signum)
{
    int status = -1;
    hl_rpc_peer_close(d->peer);
    d->peer = NULL;
    kill(d->pid, signum);
    assert_int_equal(waitpid(d->pid, &status, 0), d->pid);
    d->pid = 0;
    return status;
}

static void begin(struct daemon *d, const char *size)
{
    *d = (struct daemon){.size = size};
    snprintf(d->dir, sizeof(d->dir), "/tmp/helios-test-l3d-%d", (int)getpid());
    snprintf(d->pool, sizeof(d->pool), "/dev/shm/helios-test-l3d-%d", (int)getpid());
    snprintf(d->ready_file, sizeof(d->ready_file), "%s/ready.json", d->dir);
    snprintf(d->socket, sizeof(d->socket), "%s/l3.sock", d->dir);
    unlink(d->pool);
    assert_int_equal(hl_dir_make(d->dir, 0700), HL_OK);
    assert_int_equal(hl_rpc_create(&d->rpc), HL_OK);
    up(d);
}

static void end(struct daemon *d)
{
    uint64_t start = hl_now_ns();
    assert_int_equal(down(d, SIGTERM), 0);
    assert_true(hl_now_ns() - start < (uint64_t)MS * HL_NS_PER_MS);
    json_decref(d->ready);
    hl_rpc_destroy(d->rpc);
    unlink(d->pool);
    assert_int_equal(hl_dir_remove(d->dir), HL_OK);
}

/* ---- calls ----------------------------------------------------------------------------------- */

static hl_status call(struct daemon *d, const char *method, json_t *params, json_t **result)
{
    hl_status st = rpc_json_call(d->peer, method, params, MS, result);
    json_decref(params);
    return st;
}

static json_t *must(struct daemon *d, const char *method, json_t *params)
{
    json_t *result = NULL;
    if (call(d, method, params, &result) != HL_OK)
        fail_msg("%s", hl_error_text());
    return result;
}

static uint64_t pool_number(struct daemon *d, const char *name)
{
    json_t *r = must(d, "poolInfo", NULL);
    uint64_t n = (uint64_t)hl_json_int(json_object_get(r, "pool"), name, -1);
    json_decref(r);
    return n;
}

static void wait_until_rested(struct daemon *d)
{
    uint64_t deadline = hl_now_ns() + (uint64_t)MS * HL_NS_PER_MS;
    while (pool_number(d, "quarantinedBytes") != 0 && hl_now_ns() < deadline)
        poll(NULL, 0, 10);
    assert_int_equal(pool_number(d, "quarantinedBytes"), 0);
}

/* The sum of a number over the regions of the L3 tier; the tier's other numbers are the pool's. */
static uint64_t region_sum(struct daemon *d, const char *field, size_t *count)
{
    json_t *r = must(d, "poolInfo", NULL), *pool = json_object_get(r, "pool"), *region;
    const json_t *tier = json_array_get(hl_json_list(pool, "tiers"), 0);
    uint64_t sum = 0;
    size_t i;
    assert_string_equal(hl_json_str(tier, "tier", ""), "L3");
    assert_int_equal(hl_json_int(tier, "quotaBytes", 0), hl_json_int(pool, "capacityBytes", 1));
    assert_int_equal(hl_json_int(tier, "usedBytes", 0), hl_json_int(pool, "usedBytes", 1));
    assert_int_equal(hl_json_int(tier, "shards", 0), hl_json_int(pool, "shards", 1));
    assert_int_equal(hl_json_int(tier, "highBytes", 0), 26843545); /* 80 % of 32 MiB = 26843545.6 */
    assert_int_equal(hl_json_int(tier, "lowBytes", 0), 13421772);  /* 40 % = 13421772.8 */
    assert_true(strlen(hl_json_str(tier, "backing", "")) > 0);
    *count = json_array_size(hl_json_list(tier, "regions"));
    json_array_foreach (hl_json_list(tier, "regions"), i, region)
        sum += (uint64_t)hl_json_int(region, field, 0);
    json_decref(r);
    return sum;
}

/* All extents, three at a time. */
static json_t *inventory(struct daemon *d)
{
    json_t *all = json_array();
    json_int_t cursor = 0;
    do {
        json_t *r = must(d, "inventory", json_pack("{s:I s:i}", "cursor", cursor, "limit", 3));
        json_array_extend(all, hl_json_list(r, "extents"));
        cursor = hl_json_int(r, "next", 0);
        json_decref(r);
    } while (cursor != 0);
    return all;
}

/* Every listed shard is good, and the pool's used space is exactly theirs. Returns their number. */
static size_t check_pool(struct daemon *d)
{
    uint64_t units = 0;
    size_t i, n;
    json_t *all = inventory(d), *extent;
    json_array_foreach (all, i, extent) {
        json_t *r = must(d, "verify", json_pack("{s:s}", "id", hl_json_str(extent, "id", "")));
        assert_int_equal(hl_json_bool(r, "ok", 0), 1);
        json_decref(r);
        units += hl_pool_units((uint64_t)hl_json_int(extent, "sizeBytes", 0));
    }
    n = json_array_size(all);
    json_decref(all);
    assert_int_equal(pool_number(d, "shards"), n);
    wait_until_rested(d);
    assert_int_equal(pool_number(d, "usedBytes"), units * HL_POOL_UNIT);
    return n;
}

static void free_all(struct daemon *d)
{
    json_t *all = inventory(d), *ids = json_array(), *extent;
    size_t i, n = json_array_size(all);
    json_array_foreach (all, i, extent) {
        json_array_append(ids, json_object_get(extent, "id"));
    }
    json_array_append_new(ids, json_string("00000000000000000000000000000001"));
    json_t *r = must(d, "free", json_pack("{s:o}", "ids", ids));
    assert_int_equal(hl_json_int(r, "freed", 0), n);
    json_decref(r);
    json_decref(all);
    wait_until_rested(d);
    assert_int_equal(pool_number(d, "usedBytes"), 0);
    /* The free space is one piece again. */
    assert_int_equal(pool_number(d, "freeBytes"), pool_number(d, "capacityBytes"));
}

/* ---- imports --------------------------------------------------------------------------------- */

static void make_checkpoint(struct daemon *d, char *dir, size_t size)
{
    static const struct hf_fixture big = {.arch = "llama",
                                          .layers = 10,
                                          .hidden = 384,
                                          .heads = 8,
                                          .kv_heads = 4,
                                          .ffn = 1024,
                                          .vocab = 4096,
                                          .positions = 128,
                                          .dtype = HL_DTYPE_BF16,
                                          .files = 3};
    snprintf(dir, size, "%s/model", d->dir);
    assert_int_equal(hl_dir_make(dir, 0700), HL_OK);
    hf_checkpoint(&big, dir);
}

static json_t *import_request(const char *dir, struct hl_id id)
{
    return json_pack("{s:{s:s s:s s:s s:i s:i s:i}}", "request", "importId", hl_id_format(id).s,
                     "dir", dir, "name", "big", "version", 1, "tp", 2, "pp", 2);
}

/* Waits until the import has ended or, with `moving`, has moved at least one byte. New
 * reference. */
static json_t *wait_import(struct daemon *d, struct hl_id id, int moving)
{
    uint64_t deadline = hl_now_ns() + (uint64_t)MS * HL_NS_PER_MS;
    for (;;) {
        json_t *r = must(d, "importProgress", json_pack("{s:s}", "importId", hl_id_format(id).s));
        json_t *p = json_incref(json_object_get(r, "progress"));
        json_decref(r);
        if (strcmp(hl_json_str(p, "state", ""), "running") != 0 ||
            (moving && hl_json_int(p, "doneBytes", 0) > 0))
            return p;
        json_decref(p);
        assert_true(hl_now_ns() < deadline);
        if (!moving)
            poll(NULL, 0, 2);
    }
}

TEST(a_daemon_killed_while_it_imports_leaves_only_whole_shards)
{
    struct daemon d;
    char dir[128];
    begin(&d, "128MiB");
    make_checkpoint(&d, dir, sizeof(dir));
    for (int round = 0; round < 5; round++) {
        struct hl_id id = hl_id_random();
        json_decref(must(&d, "importModel", import_request(dir, id)));
        json_decref(wait_import(&d, id, 1));
        poll(NULL, 0, round);
        down(&d, SIGKILL);
        up(&d);
        check_pool(&d);
        free_all(&d);
        json_t *p = NULL;
        assert_int_equal(
            call(&d, "importProgress", json_pack("{s:s}", "importId", hl_id_format(id).s), &p),
            HL_ENOENT);
    }
    struct hl_id id = hl_id_random();
    json_decref(must(&d, "importModel", import_request(dir, id)));
    json_decref(must(&d, "importModel", import_request(dir, id))); /* repeated: the same import */
    json_t *p = wait_import(&d, id, 0);
    assert_string_equal(hl_json_str(p, "state", ""), "done");
    assert_int_equal(hl_json_int(p, "doneBytes", 0), hl_json_int(p, "totalBytes", 1));
    /* 2 tp ranks x (embedding, 10 layers, head) */
    assert_int_equal(json_array_size(hl_json_list(p, "shards")), 24);
    assert_int_equal(check_pool(&d), 24);
    json_decref(p);
    down(&d, SIGKILL);
    up(&d);
    assert_int_equal(check_pool(&d), 24);
    end(&d);
}

TEST(a_cancelled_and_a_too_large_import_leave_nothing)
{
    struct daemon d;
    char dir[128];
    begin(&d, "64MiB");
    make_checkpoint(&d, dir, sizeof(dir));
    struct hl_id id = hl_id_random();
    json_decref(must(&d, "importModel", import_request(dir, id)));
    json_decref(must(&d, "cancelImport", json_pack("{s:s}", "importId", hl_id_format(id).s)));
    json_t *p = wait_import(&d, id, 0);
    if (strcmp(hl_json_str(p, "state", ""), "failed") == 0) {
        assert_string_equal(hl_json_str(p, "errorStatus", ""), "ECANCELED");
        assert_int_equal(check_pool(&d), 0);
    } else {
        free_all(&d); /* the import was faster */
    }
    json_decref(p);
    json_decref(must(&d, "cancelImport", json_pack("{s:s}", "importId", "unknown")));
    end(&d);
    begin(&d, "8MiB");
    make_checkpoint(&d, dir, sizeof(dir));
    json_decref(must(&d, "importModel", import_request(dir, id)));
    p = wait_import(&d, id, 0);
    assert_string_equal(hl_json_str(p, "state", ""), "failed");
    assert_string_equal(hl_json_str(p, "errorStatus", ""), "ENOSPC");
    assert_non_null(strstr(hl_json_str(p, "error", ""), "l3.size"));
    assert_int_equal(check_pool(&d), 0);
    json_decref(p);
    end(&d);
}

/* ---- puts ------------------------------------------------------------------------------------ */

#define PUTS_MAX 1000

struct putter {
    char socket[96];
    struct hl_pool_ref done[PUTS_MAX];
    atomic_size_t count;
};

/* Puts until the daemon has died. */
static void *putter_main(void *arg)
{
    struct putter *p = arg;
    struct hl_l3_client *c = NULL;
    struct hl_l3_staging s = {0};
    if (hl_l3_connect(p->socket, MS, &c) != HL_OK || hl_l3_staging_open(2 * MIB, &s) != HL_OK)
        return NULL;
    memset(s.ptr, 0x33, 2 * MIB);
    for (size_t i = 0; i < PUTS_MAX; i++) {
        hl_status st = hl_l3_put(c, &s, 1000 + i % 3 * MIB / 2, MS, &p->done[i]);
        if (st != HL_OK)
            break;
        atomic_store(&p->count, i + 1);
    }
    hl_l3_staging_close(&s);
    hl_l3_close(c);
    return NULL;
}

TEST(a_daemon_killed_while_it_takes_puts_keeps_all_it_has_acknowledged)
{
    static struct putter p;
    struct daemon d;
    begin(&d, "256MiB");
    for (int round = 0; round < 5; round++) {
        pthread_t thread;
        struct hl_pool_ref ref;
        struct hl_l3_client *c = NULL;
        uint64_t deadline = hl_now_ns() + (uint64_t)MS * HL_NS_PER_MS;
        atomic_store(&p.count, 0);
        memcpy(p.socket, d.socket, sizeof(p.socket));
        assert_int_equal(pthread_create(&thread, NULL, putter_main, &p), 0);
        while (atomic_load(&p.count) < 5 && hl_now_ns() < deadline)
            poll(NULL, 0, 1);
        poll(NULL, 0, round * 3);
        down(&d, SIGKILL);
        pthread_join(thread, NULL);
        up(&d);
        size_t count = atomic_load(&p.count);
        assert_true(count >= 5);
        assert_int_equal(hl_l3_connect(d.socket, MS, &c), HL_OK);
        for (size_t i = 0; i < count; i++) {
            assert_int_equal(hl_pool_view_find(hl_l3_view(c), p.done[i].id, &ref), HL_OK);
            assert_int_equal(hl_pool_view_verify(hl_l3_view(c), &ref, NULL), HL_OK);
            assert_int_equal(ref.crc32, p.done[i].crc32);
        }
        hl_l3_close(c);
        size_t kept = check_pool(&d);
        assert_true(kept == count || kept == count + 1); /* sealed, but its answer was not sent */
        free_all(&d);
    }
    end(&d);
}

/* ---- methods --------------------------------------------------------------------------------- */

TEST(a_changed_byte_in_the_pool_is_named_by_its_chunk)
{
    struct daemon d;
    struct hl_l3_client *c = NULL;
    struct hl_l3_staging s = {0};
    struct hl_pool_ref ref;
    begin(&d, "16MiB");
    assert_int_equal(hl_l3_connect(d.socket, MS, &c), HL_OK);
    assert_int_equal(hl_l3_staging_open(3 * MIB + 1, &s), HL_OK);
    assert_int_equal(hl_l3_put(c, &s, s.size, MS, &ref), HL_OK);
    struct hl_id_text id = hl_id_format(ref.id);
    char *text = id.s;
    json_t *r = must(&d, "locate", json_pack("{s:[s]}", "ids", text));
    const json_t *extent = json_array_get(json_object_get(r, "extents"), 0);
    assert_int_equal(hl_json_int(extent, "offset", 0), ref.offset);
    assert_int_equal(hl_json_int(extent, "generation", 0), ref.gen);
    assert_int_equal(json_array_size(json_object_get(extent, "chunkCrcs")), 4);
    json_decref(r);
    int fd = open(d.pool, O_WRONLY);
    assert_int_equal(pwrite(fd, "!", 1, (off_t)(ref.offset + 2 * MIB)), 1);
    close(fd);
    r = must(&d, "verify", json_pack("{s:s}", "id", text));
    assert_int_equal(hl_json_bool(r, "ok", 1), 0);
    assert_int_equal(json_integer_value(json_array_get(json_object_get(r, "badChunks"), 0)), 2);
    assert_int_equal(json_array_size(json_object_get(r, "badChunks")), 1);
    json_decref(r);
    r = NULL;
    text[0] = text[0] == '0' ? '1' : '0';
    assert_int_equal(call(&d, "locate", json_pack("{s:[s]}", "ids", text), &r), HL_ENOENT);
    assert_non_null(strstr(hl_error_text(), text));
    assert_int_equal(call(&d, "verify", json_pack("{s:s}", "id", text), &r), HL_ENOENT);
    assert_int_equal(call(&d, "verify", json_pack("{s:s}", "id", "nonsense"), &r), HL_EINVAL);
    hl_l3_staging_close(&s);
    hl_l3_close(c);
    end(&d);
}

TEST(what_another_host_puts_is_read_on_this_one_and_back)
{
    struct daemon d;
    struct hl_l3_client *c = NULL;
    struct hl_net_client *net = NULL;
    struct hl_pool_ref ref;
    struct hl_id id;
    size_t len = 2 * MIB + 5;
    uint8_t *data = malloc(len), *back = malloc(len);
    for (size_t i = 0; i < len; i++)
        data[i] = (uint8_t)(i * 13 + (i >> 9));
    begin(&d, "16MiB");
    hl_status st = hl_net_connect(hl_json_str(d.ready, "dataAddress", ""), MS, &net);
    if (st != HL_OK)
        fail_msg("%s", hl_error_text());
    assert_int_equal(hl_net_put(net, data, len, hl_crc32(0, data, len), MS, &id), HL_OK);
    assert_int_equal(hl_l3_connect(d.socket, MS, &c), HL_OK);
    assert_int_equal(hl_pool_view_find(hl_l3_view(c), id, &ref), HL_OK);
    assert_int_equal(hl_pool_view_read(hl_l3_view(c), &ref, 0, back, len), HL_OK);
    assert_memory_equal(back, data, len);
    memset(back, 0, len);
    assert_int_equal(hl_net_fetch_verified(net, ref.offset, back, len,
                                           hl_pool_view_chunk_crcs(hl_l3_view(c), &ref), MS, NULL),
                     HL_OK);
    assert_memory_equal(back, data, len);
    hl_net_close(net);
    hl_l3_close(c);
    assert_int_equal(check_pool(&d), 1);
    end(&d);
    free(data);
    free(back);
}

TEST(the_pool_shows_its_regions_and_keeps_them)
{
    struct daemon d;
    size_t count;
    setenv("HELIOS_TIER_HIGH", "80", 1);
    setenv("HELIOS_TIER_LOW", "40%", 1);
    begin(&d, "32MiB"); /* auto: this machine has at least one node, or the kernel reports none */
    assert_int_equal(region_sum(&d, "bytes", &count), 32 * MIB);
    assert_true(count >= 1);
    assert_int_equal(region_sum(&d, "usedBytes", &count), 0);
    assert_int_equal(down(&d, SIGKILL), SIGKILL);
    setenv("HELIOS_L3_NUMA", "off", 1);
    size_t again;
    up(&d);
    assert_int_equal(region_sum(&d, "bytes", &again), 32 * MIB);
    assert_int_equal(again, count);
    unsetenv("HELIOS_L3_NUMA");
    unsetenv("HELIOS_TIER_HIGH");
    unsetenv("HELIOS_TIER_LOW");
    end(&d);
}

TEST(the_pool_goes_with_the_daemon_only_when_told)
{
    struct daemon d;
    int status;
    begin(&d, "16MiB");
    assert_int_equal(down(&d, SIGTERM), 0);
    assert_int_equal(access(d.pool, F_OK), 0);
    assert_int_not_equal(access(d.socket, F_OK), 0);
    d.size = "32MiB"; /* not what the pool has: refused, pool unchanged */
    spawn(&d);
    assert_int_equal(waitpid(d.pid, &status, 0), d.pid);
    assert_int_equal(WEXITSTATUS(status), 2);
    assert_int_equal(access(d.pool, F_OK), 0);
    d.size = "16MiB";
    d.more = "--remove-pool-on-exit";
    up(&d);
    end(&d);
    assert_int_not_equal(access(d.pool, F_OK), 0);
}

int main(int argc, char **argv)
{
    hl_log_init("test", HL_LOG_ERROR);
    return tests_run(argc, argv);
}
