/* A whole cluster of real daemons for the tests of the tiers: helios-l3d, helios-controller and two
 * helios-agents that each believe to be a machine of their own, or not. */
#ifndef TESTS_INTEGRATION_STORE_WORLD_H
#define TESTS_INTEGRATION_STORE_WORLD_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/crc32.h"
#include "core/json.h"
#include "hybridps/manager/table.h"
#include "mem/socket/socket.h"
#include "os/file.h"
#include "rpc/rpc.h"
#include "support/bytes.h"
#include "support/hf_fixture.h"
#include "support/rpc_json.h"

#define MIB     ((size_t)1 << 20)
#define MS      20000
#define WAIT_MS 30000
#define NODES   2

enum { L3D, CONTROLLER, NODE0, NODE1, DAEMONS };

static const char *const daemon_names[] = {"l3d", "controller", "node-0", "node-1"};
static const char *const daemon_programs[] = {"helios-l3d", "helios-controller", "helios-agent",
                                              "helios-agent"};

struct world {
    char dir[64];
    char args[DAEMONS][40][160];
    pid_t pid[DAEMONS];
    json_t *ready[DAEMONS];
    struct hl_rpc *rpc;
    struct hl_rpc_peer *peer[DAEMONS];
    struct hl_l3_client *pool;
    int64_t version;
    int parts;
};

/* ---- processes ------------------------------------------------------------------------------- */

static void world_arg(struct world *w, int d, const char *flag, const char *fmt, ...)
{
    size_t n = 0;
    while (w->args[d][n][0] != '\0' && strcmp(w->args[d][n], flag) != 0)
        n += 2;
    va_list ap;
    snprintf(w->args[d][n], sizeof(w->args[d][n]), "%s", flag);
    va_start(ap, fmt);
    vsnprintf(w->args[d][n + 1], sizeof(w->args[d][n + 1]), fmt, ap);
    va_end(ap);
}

static void world_launch(struct world *w, int d)
{
    char program[PATH_MAX], log[128];
    const char *build = getenv("HELIOS_BUILD");
    char *argv[64] = {program};
    size_t n = 1;
    snprintf(program, sizeof(program), "%s/bin/%s", build != NULL ? build : "build",
             daemon_programs[d]);
    snprintf(log, sizeof(log), "%s/%s.log", w->dir, daemon_names[d]);
    for (size_t i = 0; w->args[d][i][0] != '\0'; i += 2) {
        argv[n++] = w->args[d][i];
        argv[n++] = w->args[d][i + 1];
    }
    w->pid[d] = fork();
    assert_true(w->pid[d] >= 0);
    if (w->pid[d] == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL); /* a test that crashes leaves no daemon */
        int fd = open(log, O_CREAT | O_APPEND | O_WRONLY, 0644);
        dup2(fd, 2);
        execv(program, argv);
        _exit(127);
    }
}

static void show_log(const struct world *w, int d)
{
    char command[160];
    snprintf(command, sizeof(command), "tail -n 20 %s/%s.log >&2", w->dir, daemon_names[d]);
    (void)!system(command);
}

/* Until it serves; its address is kept for the next start. */
static void world_start(struct world *w, int d)
{
    static const char *const interfaces[] = {"L3", "Controller", "Agent", "Agent"};
    char path[128];
    uint64_t end = hl_now_ns() + WAIT_MS * HL_NS_PER_MS;
    snprintf(path, sizeof(path), "%s/%s.json", w->dir, daemon_names[d]);
    unlink(path);
    world_arg(w, d, "--ready-file", "%s", path);
    world_launch(w, d);
    json_decref(w->ready[d]);
    w->ready[d] = NULL;
    while (w->ready[d] == NULL) {
        if (waitpid(w->pid[d], NULL, WNOHANG) != 0 || hl_now_ns() > end) {
            show_log(w, d);
            fail_msg("%s does not serve", daemon_names[d]);
        }
        w->ready[d] = json_load_file(path, 0, NULL);
        poll(NULL, 0, 5);
    }
    world_arg(w, d, "--listen", "%s", hl_json_str(w->ready[d], "address", ""));
    hl_rpc_peer_close(w->peer[d]);
    assert_int_equal(
        hl_rpc_open(w->rpc, hl_json_str(w->ready[d], "address", ""), interfaces[d], &w->peer[d]),
        HL_OK);
}

static void world_end_daemon(struct world *w, int d, int signum)
{
    if (w->pid[d] > 0) {
        kill(w->pid[d], signum);
        waitpid(w->pid[d], NULL, 0);
    }
    w->pid[d] = 0;
}

/* ---- calls ----------------------------------------------------------------------------------- */

/* Takes params. */
static hl_status call(struct world *w, int d, const char *method, json_t *params, json_t **result)
{
    hl_status st = rpc_json_call(w->peer[d], method, params, MS, result);
    json_decref(params);
    return st;
}

static json_t *must(struct world *w, int d, const char *method, json_t *params)
{
    json_t *result = NULL;
    if (call(w, d, method, params, &result) != HL_OK) {
        for (int i = 0; i < DAEMONS; i++)
            show_log(w, i);
        fail_msg("%s: %s", method, hl_error_text());
    }
    return result;
}

static json_t *place(struct hl_id id, const char *node, const char *tier)
{
    return json_pack("{s:s s:s s:s}", "id", hl_id_format(id).s, "node", node, "tier", tier);
}

/* copyShard; new reference to the copy. */
static inline json_t *copy_to(struct world *w, struct hl_id id, const char *node, const char *tier,
                              const char *operation)
{
    json_t *p = place(id, node, tier);
    json_object_set_new(p, "operation", json_string(operation));
    json_t *r = must(w, CONTROLLER, "copyShard", p);
    json_t *copy = json_incref(json_object_get(r, "copy"));
    json_decref(r);
    return copy;
}

static inline hl_status try_copy(struct world *w, struct hl_id id, const char *node,
                                 const char *tier)
{
    json_t *r = NULL;
    hl_status st = call(w, CONTROLLER, "copyShard", place(id, node, tier), &r);
    json_decref(r);
    return st;
}

static inline hl_status try_drop(struct world *w, struct hl_id id, const char *node,
                                 const char *tier)
{
    json_t *r = NULL;
    hl_status st = call(w, CONTROLLER, "dropCopy", place(id, node, tier), &r);
    json_decref(r);
    return st;
}

/* How many copies of that kind the Controller knows; tier "" = all. */
static int copies_known(struct world *w, struct hl_id id, const char *node, const char *tier)
{
    int n = 0;
    size_t i;
    json_t *x;
    json_t *r = must(w, CONTROLLER, "getShard", json_pack("{s:s}", "id", hl_id_format(id).s));
    json_array_foreach (hl_json_list(json_object_get(r, "shard"), "copies"), i, x) {
        n += strcmp(hl_json_str(x, "node", ""), node) == 0 &&
             (tier[0] == '\0' || strcmp(hl_json_str(x, "tier", ""), tier) == 0);
    }
    json_decref(r);
    return n;
}

static inline void wait_copies(struct world *w, struct hl_id id, const char *node, const char *tier,
                               int n)
{
    uint64_t end = hl_now_ns() + WAIT_MS * HL_NS_PER_MS;
    while (copies_known(w, id, node, tier) != n) {
        if (hl_now_ns() > end)
            fail_msg("%s of %s: %d copies, %d wanted", tier, node, copies_known(w, id, node, tier),
                     n);
        poll(NULL, 0, 20);
    }
}

/* What the store of a node says itself. */
static json_t *tier_of(struct world *w, int d, const char *tier)
{
    json_t *r = must(w, d, "storeInfo", NULL), *x, *found = NULL;
    size_t i;
    json_array_foreach (hl_json_list(r, "tiers"), i, x) {
        if (found == NULL && strcmp(hl_json_str(x, "tier", ""), tier) == 0)
            found = json_incref(x);
    }
    json_decref(r);
    assert_non_null(found);
    return found;
}

static int64_t tier_number(struct world *w, int d, const char *tier, const char *field)
{
    json_t *x = tier_of(w, d, tier);
    int64_t n = hl_json_int(x, field, -1);
    json_decref(x);
    return n;
}

/* ---- shards ---------------------------------------------------------------------------------- */

static void import_model(struct world *w, const char *name)
{
    static const struct hf_fixture toy = {.arch = "llama",
                                          .hidden = 64,
                                          .layers = 2,
                                          .heads = 4,
                                          .kv_heads = 2,
                                          .ffn = 96,
                                          .vocab = 61};
    char dir[96], import[64];
    snprintf(dir, sizeof(dir), "%s/checkpoint", w->dir);
    hf_checkpoint(&toy, dir);
    json_t *r = must(w, CONTROLLER, "importModel",
                     json_pack("{s:{s:s s:s}}", "request", "dir", dir, "name", name));
    snprintf(import, sizeof(import), "%s", hl_json_str(r, "importId", ""));
    json_decref(r);
    uint64_t end = hl_now_ns() + WAIT_MS * HL_NS_PER_MS;
    for (int done = 0; !done; poll(NULL, 0, 10)) {
        r = must(w, CONTROLLER, "importProgress", json_pack("{s:s}", "importId", import));
        const json_t *p = json_object_get(r, "progress");
        done = strcmp(hl_json_str(p, "state", ""), "done") == 0;
        if (strcmp(hl_json_str(p, "state", ""), "failed") == 0 || hl_now_ns() > end)
            fail_msg("import: %s", hl_json_str(p, "error", "it takes too long"));
        json_decref(r);
    }
}

/* A shard of that many bytes of noise in the pool, in a version of the model that becomes visible;
 * begun before the bytes are there, as writers do, or the Controller's sweep may free them. */
static inline struct hl_id make_shard(struct world *w, size_t size, uint64_t seed)
{
    struct hl_l3_staging s;
    struct hl_pool_ref ref;
    uint8_t *bytes = noise(size, seed);
    char part[32];
    json_t *r =
        must(w, CONTROLLER, "beginVersion",
             json_pack("{s:s s:s s:s s:s s:i s:i s:i}", "token", "1", "check", "unchecked", "model",
                       "toy", "job", "", "attempt", 1, "step", ++w->parts, "world", 1));
    w->version = hl_json_int(r, "version", -1);
    json_decref(r);
    assert_int_equal(hl_l3_staging_open(size, &s), HL_OK);
    memcpy(s.ptr, bytes, size);
    free(bytes);
    assert_int_equal(hl_l3_put(w->pool, &s, size, MS, &ref), HL_OK);
    hl_l3_staging_close(&s);
    snprintf(part, sizeof(part), "layer-%04d", w->parts);
    json_t *shard = json_pack("{s:s s:i s:i s:s s:I s:I s:i}", "id", hl_id_format(ref.id).s, "pp",
                              0, "tp", 0, "part", part, "sizeBytes", (json_int_t)size, "crc32",
                              (json_int_t)ref.crc32, "tensors", 1);
    json_decref(must(w, CONTROLLER, "commitPart",
                     json_pack("{s:s s:I s:i s:[o] s:s}", "model", "toy", "version",
                               (json_int_t)w->version, "rank", 0, "shards", shard, "meta", "{}")));
    return ref.id;
}

/* The bytes in a node's L2, as a rank of that node maps them. */
static inline void check_l2(struct world *w, int d, struct hl_id id, size_t size, uint64_t seed)
{
    struct hl_l3_client *c;
    struct hl_pool_ref ref;
    uint8_t *expected = noise(size, seed), *got = malloc(size);
    assert_int_equal(hl_l3_connect(hl_json_str(w->ready[d], "storeSocket", ""), MS, &c), HL_OK);
    assert_int_equal(hl_l3_pin(c, id, 0, MS, &ref), HL_OK);
    assert_int_equal(ref.size, size);
    assert_int_equal(ref.crc32, plain_crc(expected, size));
    assert_int_equal(hl_pool_view_read(hl_l3_view(c), &ref, 0, got, size), HL_OK);
    assert_memory_equal(got, expected, size);
    hl_l3_close(c);
    free(expected);
    free(got);
}

/* Change a byte of the shard's first MiB where it lies in a pool's file. */
static inline void corrupt(const char *pool, const struct hl_pool_ref *ref)
{
    unsigned char byte = 0;
    int fd = open(pool, O_RDWR);
    assert_true(fd >= 0 && pread(fd, &byte, 1, (off_t)ref->offset + 100) == 1);
    byte ^= 0x40;
    assert_int_equal(pwrite(fd, &byte, 1, (off_t)ref->offset + 100), 1);
    close(fd);
}

/* ---- the world ------------------------------------------------------------------------------- */

struct world_opts {
    const char *l3_size, *l2_size, *devices;
    int apart;   /* every daemon believes to be on a host of its own */
    int archive; /* helios-l3d has one */
    int l3_port; /* of its data, the same after a restart; 0 = any */
};

static void world_args(struct world *w, const struct world_opts *o)
{
    const char *base = strrchr(w->dir, '/') + 1;
    world_arg(w, L3D, "--pool", "/dev/shm/%s.pool", base);
    world_arg(w, L3D, "--size", "%s", o->l3_size != NULL ? o->l3_size : "256MiB");
    world_arg(w, L3D, "--quarantine", "100ms");
    world_arg(w, L3D, "--listen", "127.0.0.1:0");
    if (o->l3_port != 0)
        world_arg(w, L3D, "--data-listen", "127.0.0.1:%d", o->l3_port);
    if (o->archive)
        world_arg(w, L3D, "--archive", "dir:%s/archive", w->dir);
    world_arg(w, CONTROLLER, "--state", "%s/controller", w->dir);
    world_arg(w, CONTROLLER, "--listen", "127.0.0.1:0");
    world_arg(w, CONTROLLER, "--gc-interval", "300ms");
    world_arg(w, CONTROLLER, "--versions-keep", "0");
    world_arg(w, CONTROLLER, "--heartbeat", "100ms");
    world_arg(w, CONTROLLER, "--node-lost", "1500ms");
    for (int i = 0; i < NODES; i++) {
        world_arg(w, NODE0 + i, "--name", "node-%d", i);
        world_arg(w, NODE0 + i, "--state", "%s/node-%d", w->dir, i);
        world_arg(w, NODE0 + i, "--share", "%d/%dx1", i, NODES);
        world_arg(w, NODE0 + i, "--rank-address", "127.0.0.1");
        world_arg(w, NODE0 + i, "--listen", "127.0.0.1:0");
        world_arg(w, NODE0 + i, "--l2-size", "%s", o->l2_size != NULL ? o->l2_size : "128MiB");
        world_arg(w, NODE0 + i, "--l2-pool", "/dev/shm/%s-%d.l2", base, i);
        world_arg(w, NODE0 + i, "--devices", "%s", o->devices != NULL ? o->devices : "");
        world_arg(w, NODE0 + i, "--quarantine", "100ms");
        world_arg(w, NODE0 + i, "--data-stall", "10s"); /* a busy machine is no fault */
        if (o->apart)
            world_arg(w, NODE0 + i, "--host-id", "machine-%d", i);
    }
}

/* Before its first test has ended it is given no copies. */
static bool node_takes(const json_t *x)
{
    const json_t *health = json_object_get(json_object_get(x, "node"), "health");
    return strcmp(hl_json_str(x, "state", ""), "ready") == 0 &&
           strcmp(hl_json_str(health, "state", ""), "testing") != 0;
}

static void wait_nodes(struct world *w, int n)
{
    uint64_t end = hl_now_ns() + WAIT_MS * HL_NS_PER_MS;
    for (int ready = -1; ready != n; poll(NULL, 0, 10)) {
        size_t i;
        json_t *x, *r = must(w, CONTROLLER, "listNodes", NULL);
        ready = 0;
        json_array_foreach (hl_json_list(r, "nodes"), i, x) {
            ready += node_takes(x);
        }
        json_decref(r);
        assert_true(hl_now_ns() < end);
    }
}

static void wait_l3_is(struct world *w, bool wanted)
{
    uint64_t end = hl_now_ns() + WAIT_MS * HL_NS_PER_MS;
    for (bool ready = !wanted; ready != wanted; poll(NULL, 0, 10)) {
        json_t *r = must(w, CONTROLLER, "clusterInfo", NULL);
        ready = strcmp(hl_json_str(json_object_get(r, "info"), "l3State", ""), "ready") == 0;
        json_decref(r);
        assert_true(hl_now_ns() < end);
    }
}

static void wait_l3(struct world *w)
{
    wait_l3_is(w, true);
}

static void world_begin(struct world *w, const struct world_opts *o)
{
    *w = (struct world){.version = -1};
    snprintf(w->dir, sizeof(w->dir), "/tmp/helios-test-store-%d-XXXXXX", (int)getpid());
    assert_non_null(mkdtemp(w->dir));
    assert_int_equal(hl_rpc_create(&w->rpc), HL_OK);
    world_args(w, o);
    world_start(w, L3D);
    world_arg(w, CONTROLLER, "--l3", "%s", hl_json_str(w->ready[L3D], "address", ""));
    world_start(w, CONTROLLER);
    for (int i = 0; i < NODES; i++) {
        world_arg(w, NODE0 + i, "--controller", "%s",
                  hl_json_str(w->ready[CONTROLLER], "address", ""));
        world_start(w, NODE0 + i);
    }
    assert_int_equal(hl_l3_connect(hl_json_str(w->ready[L3D], "socket", ""), MS, &w->pool), HL_OK);
    wait_nodes(w, NODES);
    wait_l3(w);
    import_model(w, "toy");
}

/* What the Agents had in shared memory for their ranks' chunks, once they have been killed. */
static void sweep_chunks(const struct world *w)
{
    for (int i = 0; i < NODES; i++) {
        char state[96], path[PATH_MAX], begin[48], end[32];
        snprintf(state, sizeof(state), "%s/node-%d", w->dir, i);
        if (realpath(state, path) == NULL)
            continue;
        snprintf(begin, sizeof(begin), "helios-%u-node-%d-", (unsigned)getuid(), i);
        snprintf(end, sizeof(end), "-%08x.chunks", hl_crc32(0, path, strlen(path)));
        hl_manager_sweep(begin, end, 0);
    }
}

static void world_end(struct world *w)
{
    const char *base = strrchr(w->dir, '/') + 1;
    char path[160];
    hl_l3_close(w->pool);
    for (int d = 0; d < DAEMONS; d++) {
        hl_rpc_peer_close(w->peer[d]);
        world_end_daemon(w, d, SIGKILL);
        json_decref(w->ready[d]);
    }
    hl_rpc_destroy(w->rpc);
    static const char *const files[] = {".pool",      ".pool.sock", "-0.l2",
                                        "-0.l2.sock", "-1.l2",      "-1.l2.sock"};
    for (size_t i = 0; i < HL_ARRAY_LEN(files); i++) {
        snprintf(path, sizeof(path), "/dev/shm/%s%s", base, files[i]);
        unlink(path);
    }
    sweep_chunks(w);
    assert_int_equal(hl_dir_remove(w->dir), HL_OK);
}

#endif
