/* Calls that succeed, fail, are late or never end. */
#include "support/test.h"

#include "unit/rpc/rig.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/log.h"

static const struct rig_answer models[] = {{"getModel", "{\"model\": {\"tp\": 2}}"}, {NULL, NULL}};

TEST(every_interface_can_be_served_and_called)
{
    static const char *pairs[][2] = {
        {"Controller", "listModels"}, {"Agent", "info"}, {"L3", "poolInfo"}};
    for (size_t i = 0; i < HL_ARRAY_LEN(pairs); i++) {
        struct rig r;
        rig_start(&r, "127.0.0.1:0", pairs[i][0], NULL);
        assert_int_equal(rig_call(&r, pairs[i][1], NULL, NULL), HL_OK);
        rig_stop(&r);
    }
    struct hl_rpc *rpc = NULL;
    assert_int_equal(hl_rpc_create(&rpc), HL_OK);
    struct hl_rpc_peer *peer = NULL;
    assert_int_equal(hl_rpc_open(rpc, "127.0.0.1:1", "L4", &peer), HL_EINVAL);
    assert_int_equal(hl_rpc_open(rpc, "127.0.0.1", "L3", &peer), HL_EINVAL);
    assert_int_equal(hl_rpc_open(rpc, "127.0.0.1:70000", "L3", &peer), HL_EINVAL);
    assert_int_equal(hl_rpc_open(rpc, "127.0.0.1:0", "L3", &peer), HL_EINVAL);
    assert_int_equal(hl_rpc_open(rpc, "unix:relative", "L3", &peer), HL_EINVAL);
    assert_null(peer);
    hl_rpc_destroy(rpc);
}

TEST(every_status_reaches_the_caller_with_its_text)
{
    struct rig r;
    rig_start(&r, "127.0.0.1:0", "Controller", models);
#define X(name, value, text) #name,
    static const char *names[] = {HL_STATUS_MAP(X)};
#undef X
    for (size_t i = 1; i < HL_ARRAY_LEN(names); i++) {
        char params[64];
        snprintf(params, sizeof(params), "{\"name\": \"%s\"}", names[i]);
        json_t *result = NULL;
        assert_int_equal(rig_call(&r, "getModel", params, &result), hl_status_by_name(names[i]));
        assert_string_equal(hl_error_text(), "as asked");
        assert_null(result);
    }
    json_t *result = NULL;
    char want[512];
    hl_log_set_level(HL_LOG_DEBUG);
    assert_int_equal(rig_call(&r, "getModel", "{\"name\": \"ENOENT\"}", &result), HL_ENOENT);
    hl_log_set_level(HL_LOG_INFO);
    snprintf(want, sizeof(want), "as asked (Controller.getModel at %s)", r.address);
    assert_string_equal(hl_error_text(), want);
    assert_int_equal(rig_call(&r, "getModel", "{\"name\": \"m\"}", &result), HL_OK);
    assert_int_equal(json_integer_value(json_object_get(json_object_get(result, "model"), "tp")),
                     2);
    json_decref(result);
    rig_stop(&r);
}

struct caller {
    struct rig *rig;
    pthread_t thread;
    int first;
    int wrong;
};

static void *call_200_times(void *arg)
{
    struct caller *c = arg;
    for (int i = 0; i < 200; i++) {
        json_t *params = json_pack("{s: i}", "limit", c->first + i);
        json_t *result = NULL;
        hl_status st = rpc_json_call(c->rig->peer, "listShards", params, RIG_PATIENCE_MS, &result);
        c->wrong += st != HL_OK || result == NULL;
        json_decref(result);
        json_decref(params);
    }
    return NULL;
}

TEST(many_threads_share_one_peer)
{
    struct rig r;
    rig_start(&r, "127.0.0.1:0", "Controller", NULL);
    struct caller callers[8];
    for (int i = 0; i < 8; i++) {
        callers[i] = (struct caller){.rig = &r, .first = i * 1000};
        assert_int_equal(pthread_create(&callers[i].thread, NULL, call_200_times, &callers[i]), 0);
    }
    for (int i = 0; i < 8; i++) {
        pthread_join(callers[i].thread, NULL);
        assert_int_equal(callers[i].wrong, 0);
    }
    assert_int_equal(rig_calls(&r), 1600);
    rig_stop(&r);
}

struct tally {
    struct rig *rig;
    int ok;
    int failed;
    hl_status last;
    char text[512];
};

static void count_answer(void *arg, hl_status st, const char *text, json_t *result)
{
    struct tally *t = arg;
    HL_ON_LOOP(t->rig->loop);
    pthread_mutex_lock(&t->rig->lock);
    if (st == HL_OK && json_is_object(result))
        t->ok++;
    else
        t->failed++;
    t->last = st;
    snprintf(t->text, sizeof(t->text), "%s", text);
    pthread_cond_broadcast(&t->rig->changed);
    pthread_mutex_unlock(&t->rig->lock);
}

static void wait_for_answers(struct tally *t, int count)
{
    pthread_mutex_lock(&t->rig->lock);
    while (t->ok + t->failed < count)
        pthread_cond_wait(&t->rig->changed, &t->rig->lock);
    pthread_mutex_unlock(&t->rig->lock);
}

TEST(asynchronous_calls_complete_once_each_on_their_loop)
{
    struct rig r;
    rig_start(&r, "127.0.0.1:0", "Controller", NULL);
    struct tally t = {.rig = &r};
    for (int i = 0; i < 500; i++)
        rpc_json_call_async(r.peer, "listNodes", NULL, RIG_PATIENCE_MS, r.loop, count_answer, &t);
    wait_for_answers(&t, 500);
    assert_int_equal(t.ok, 500);
    rpc_json_call_async(r.peer, "noSuch", NULL, RIG_PATIENCE_MS, r.loop, count_answer, &t);
    wait_for_answers(&t, 501);
    assert_int_equal(t.last, HL_EINVAL);
    rig_stop(&r);
    assert_int_equal(t.ok + t.failed, 501);
}

/* A busy machine may not get as far as sending it in time, which the error says. */
static void call_in_vain(struct rig *r, const json_t *params)
{
    uint64_t until = hl_now_ns() + RIG_PATIENCE_MS * HL_NS_PER_MS;
    do {
        uint64_t start = hl_now_ns();
        assert_int_equal(rpc_json_call(r->peer, "getModel", params, 100, NULL), HL_ETIMEDOUT);
        assert_in_range((hl_now_ns() - start) / HL_NS_PER_MS, 100, 5000);
        assert_error_has("no answer within 100 ms (Controller.getModel at ");
    } while (strncmp(hl_error_text(), "connect to ", 11) == 0 && hl_now_ns() < until);
}

TEST(a_deadline_ends_the_wait_and_the_late_answer_is_dropped)
{
    struct rig r;
    rig_start(&r, "127.0.0.1:0", "Controller", models);
    json_t *hold = json_pack("{s: s}", "name", "hold");
    call_in_vain(&r, hold);
    struct hl_rpc_call *late = rig_take(&r);
    rpc_json_reply(late, json_pack("{s: {s: i}}", "model", "tp", 7));
    json_t *result = NULL;
    assert_int_equal(rig_call(&r, "getModel", "{\"name\": \"m\"}", &result), HL_OK);
    assert_int_equal(json_integer_value(json_object_get(json_object_get(result, "model"), "tp")),
                     2);
    json_decref(result);
    json_decref(hold);
    rig_stop(&r);
}

TEST(a_handler_may_answer_later_and_out_of_order)
{
    struct rig r;
    rig_start(&r, "127.0.0.1:0", "Controller", models);
    struct tally t = {.rig = &r};
    json_t *hold = json_pack("{s: s}", "name", "hold");
    rpc_json_call_async(r.peer, "getModel", hold, RIG_PATIENCE_MS, r.loop, count_answer, &t);
    struct hl_rpc_call *first = rig_take(&r);
    assert_int_equal(rig_call(&r, "getModel", "{\"name\": \"m\"}", NULL), HL_OK);
    hl_fail(HL_ECONFLICT, "two at once");
    hl_rpc_reject(first, HL_ECONFLICT, NULL);
    wait_for_answers(&t, 1);
    assert_int_equal(t.last, HL_ECONFLICT);
    assert_string_equal(t.text, "two at once");
    json_decref(hold);
    rig_stop(&r);
}

TEST(closing_the_peer_cancels_its_calls)
{
    struct rig r;
    rig_start(&r, "127.0.0.1:0", "Controller", NULL);
    struct tally t = {.rig = &r};
    json_t *hold = json_pack("{s: s}", "name", "hold");
    rpc_json_call_async(r.peer, "getModel", hold, RIG_PATIENCE_MS, r.loop, count_answer, &t);
    struct hl_rpc_call *call = rig_take(&r);
    hl_rpc_peer_close(r.peer);
    r.peer = NULL;
    wait_for_answers(&t, 1);
    assert_int_equal(t.last, HL_ECANCELED);
    rpc_json_reply(call, NULL);
    json_decref(hold);
    rig_stop(&r);
}

TEST(closing_the_server_ends_calls_and_leaves_theirs_answerable)
{
    struct rig r;
    rig_start(&r, "127.0.0.1:0", "Controller", NULL);
    struct tally t = {.rig = &r};
    json_t *hold = json_pack("{s: s}", "name", "hold");
    rpc_json_call_async(r.peer, "getModel", hold, RIG_PATIENCE_MS, r.loop, count_answer, &t);
    rpc_json_call_async(r.peer, "getModel", hold, RIG_PATIENCE_MS, r.loop, count_answer, &t);
    struct hl_rpc_call *calls[2] = {rig_take(&r), rig_take(&r)};
    rig_close_server(&r);
    wait_for_answers(&t, 2);
    assert_int_equal(t.last, HL_EUNAVAIL);
    assert_int_equal(rig_call(&r, "listNodes", NULL, NULL), HL_EUNAVAIL);
    assert_error_has("connection refused; is helios-controller running there?");
    rpc_json_reply(calls[0], NULL);
    rig_serve(&r, r.address, "Controller");
    assert_int_equal(rig_call(&r, "listNodes", NULL, NULL), HL_OK);
    json_decref(hold);
    rig_stop(&r);
    hl_rpc_reject(calls[1], HL_EIO, "the runtime is gone meanwhile");
}

TEST(a_peer_of_another_interface_is_unsupported)
{
    struct rig r;
    rig_start(&r, "127.0.0.1:0", "L3", NULL);
    struct hl_rpc_peer *other = NULL;
    assert_int_equal(hl_rpc_open(r.rpc, r.address, "Controller", &other), HL_OK);
    assert_string_equal(hl_rpc_peer_address(other), r.address);
    assert_int_equal(rpc_json_call(other, "listNodes", NULL, RIG_PATIENCE_MS, NULL),
                     HL_EUNSUPPORTED);
    assert_error_has("doesn't know this method");
    hl_rpc_peer_close(other);
    rig_stop(&r);
}

/* A server in a process of its own. It begins when it is told the address, says the real one, and
 * then writes a byte for every call it holds back. */
struct outsider {
    pid_t pid;
    int to;
    int from;
    char address[128];
};

static void read_line(int fd, char *text, size_t size)
{
    size_t got = 0;
    do {
        assert_true(got < size);
        assert_int_equal(read(fd, text + got, 1), 1);
    } while (text[got++] != '\0');
}

static void outsider_main(int in, int out)
{
    char address[128];
    struct rig *r = malloc(sizeof(*r));
    read_line(in, address, sizeof(address));
    rig_start(r, address, "L3", NULL);
    if (write(out, r->address, strlen(r->address) + 1) < 0)
        _exit(1);
    for (;;) {
        rig_take(r);
        if (write(out, "", 1) < 0)
            _exit(1);
    }
}

/* Forked before there are threads: a child of a process with threads can do little. */
static void outsider_fork(struct outsider *o)
{
    int in[2], out[2];
    assert_int_equal(pipe(in), 0);
    assert_int_equal(pipe(out), 0);
    o->pid = fork();
    assert_true(o->pid >= 0);
    if (o->pid == 0) {
        alarm(60);
        outsider_main(in[0], out[1]);
    }
    close(in[0]);
    close(out[1]);
    o->to = in[1];
    o->from = out[0];
}

static void outsider_start(struct outsider *o, const char *address)
{
    assert_true(write(o->to, address, strlen(address) + 1) > 0);
    read_line(o->from, o->address, sizeof(o->address));
}

static void outsider_kill(struct outsider *o)
{
    kill(o->pid, SIGKILL);
    assert_int_equal(waitpid(o->pid, NULL, 0), o->pid);
    close(o->to);
    close(o->from);
}

struct blocked {
    struct hl_rpc_peer *peer;
    pthread_t thread;
    hl_status st;
    char text[256];
};

static void *call_and_be_cut_off(void *arg)
{
    struct blocked *b = arg;
    json_t *hold = json_pack("{s: s}", "id", "hold");
    b->st = rpc_json_call(b->peer, "verify", hold, RIG_PATIENCE_MS, NULL);
    snprintf(b->text, sizeof(b->text), "%s", hl_error_text());
    json_decref(hold);
    return NULL;
}

TEST(a_killed_server_ends_its_calls_and_its_successor_is_found)
{
    struct outsider first, second;
    outsider_fork(&first);
    outsider_fork(&second);
    outsider_start(&first, "127.0.0.1:0");
    struct hl_rpc *rpc = NULL;
    struct blocked b = {0};
    assert_int_equal(hl_rpc_create(&rpc), HL_OK);
    assert_int_equal(hl_rpc_open(rpc, first.address, "L3", &b.peer), HL_OK);
    assert_int_equal(rpc_json_call(b.peer, "poolInfo", NULL, RIG_PATIENCE_MS, NULL), HL_OK);
    assert_int_equal(pthread_create(&b.thread, NULL, call_and_be_cut_off, &b), 0);
    char held;
    assert_int_equal(read(first.from, &held, 1), 1);
    outsider_kill(&first);
    pthread_join(b.thread, NULL);
    assert_int_equal(b.st, HL_EUNAVAIL);
    assert_non_null(strstr(b.text, "the connection was lost before the answer came (L3.verify"));
    assert_int_equal(rpc_json_call(b.peer, "poolInfo", NULL, RIG_PATIENCE_MS, NULL), HL_EUNAVAIL);
    outsider_start(&second, first.address);
    assert_string_equal(second.address, first.address);
    assert_int_equal(rpc_json_call(b.peer, "poolInfo", NULL, RIG_PATIENCE_MS, NULL), HL_OK);
    hl_rpc_peer_close(b.peer);
    hl_rpc_destroy(rpc);
    outsider_kill(&second);
}

TEST(a_port_in_use_is_busy)
{
    struct rig r;
    rig_start(&r, "127.0.0.1:0", "L3", NULL);
    struct hl_rpc_serve_opts opts = {.address = r.address, .loop = r.loop, .arg = &r};
    struct hl_rpc_server *second = NULL;
    assert_int_equal(rpc_json_serve(r.rpc, "L3", &opts, rig_handle, &second), HL_EBUSY);
    assert_error_has(r.address);
    assert_error_has("in use");
    opts.address = "192.0.2.1:0";
    assert_int_equal(rpc_json_serve(r.rpc, "L3", &opts, rig_handle, &second), HL_EINVAL);
    assert_error_has("not an address of this machine");
    assert_null(second);
    rig_stop(&r);
}

static void leave_stale_socket(const char *path)
{
    int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    struct sockaddr_un name = {.sun_family = AF_UNIX};
    snprintf(name.sun_path, sizeof(name.sun_path), "%s", path);
    assert_int_equal(bind(fd, (struct sockaddr *)&name, sizeof(name)), 0);
    close(fd);
}

TEST(a_unix_socket_of_the_dead_is_replaced_and_of_the_living_is_busy)
{
    char dir[] = "/tmp/hl-rpc-XXXXXX", path[64], address[80];
    assert_non_null(mkdtemp(dir));
    snprintf(path, sizeof(path), "%s/rpc.sock", dir);
    snprintf(address, sizeof(address), "unix:%s", path);
    leave_stale_socket(path);
    struct rig r;
    rig_start(&r, address, "L3", NULL);
    assert_string_equal(r.address, address);
    assert_int_equal(rig_call(&r, "poolInfo", NULL, NULL), HL_OK);
    struct hl_rpc_serve_opts opts = {.address = address, .loop = r.loop, .arg = &r};
    struct hl_rpc_server *second = NULL;
    assert_int_equal(rpc_json_serve(r.rpc, "L3", &opts, rig_handle, &second), HL_EBUSY);
    rig_close_server(&r);
    assert_int_equal(access(path, F_OK), -1);
    assert_int_equal(rig_call(&r, "poolInfo", NULL, NULL), HL_EUNAVAIL);
    assert_error_has("no such file or directory; is helios-l3d running there?");
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fclose(f);
    assert_int_equal(rpc_json_serve(r.rpc, "L3", &opts, rig_handle, &second), HL_EEXIST);
    assert_null(second);
    rig_stop(&r);
    unlink(path);
    rmdir(dir);
}

TEST(an_unknown_host_is_unavailable)
{
    struct hl_rpc *rpc = NULL;
    struct hl_rpc_peer *peer = NULL;
    assert_int_equal(hl_rpc_create(&rpc), HL_OK);
    assert_int_equal(hl_rpc_open(rpc, "no-such-host.invalid:7400", "Agent", &peer), HL_OK);
    assert_int_equal(rpc_json_call(peer, "info", NULL, RIG_PATIENCE_MS, NULL), HL_EUNAVAIL);
    assert_error_has("connect to no-such-host.invalid:7400: the host name can't be resolved; is "
                     "helios-agent running there?");
    hl_rpc_peer_close(peer);
    hl_rpc_destroy(rpc);
}

TEST(runtimes_come_and_go)
{
    for (int i = 0; i < 20; i++) {
        struct hl_rpc *rpc = NULL;
        assert_int_equal(hl_rpc_create(&rpc), HL_OK);
        hl_rpc_destroy(rpc);
    }
    hl_rpc_destroy(NULL);
}
