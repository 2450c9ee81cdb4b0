/* The other side, a real process, dies or freezes in the middle of a transfer.
 *
 * The peer is this program again, started with --serve, --get or --put (a fork of a process that
 * already uses UCX must not use it). Peers die with their parent and after 60 s in any case. */
#include "support/test.h"

#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/crc32.h"
#include "net/net.h"
#include "support/fault.h"

#define MIB      ((size_t)1 << 20)
#define POOL_LEN (256 * MIB)

static const char *program;

static uint8_t *make_bytes(size_t len)
{
    uint8_t *p = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED)
        abort();
    for (size_t i = 0; i < len / 8; i++)
        ((uint64_t *)p)[i] = (i + 1) * 0x9e3779b97f4a7c15ull;
    return p;
}

/* ---- the peers ---- */

static int run_server(void)
{
    struct hl_net_server *server;
    struct hl_net_server_opts opts = {
        .listen = "127.0.0.1:0", .pool = make_bytes(POOL_LEN), .pool_len = POOL_LEN};
    if (hl_net_server_start(&opts, &server) != HL_OK) {
        fprintf(stderr, "%s\n", hl_error_text());
        return 1;
    }
    printf("%s\n", hl_net_server_address(server));
    fflush(stdout);
    for (;;)
        pause();
}

#define START_MS 120000 /* for what hangs; a busy machine starts programs slowly */
#define NOTICED_NS                                                                                 \
    (HL_NS_PER_S + HL_NS_PER_S / 2) /* a second, and half of one for a busy machine */

/* Takes puts, and sends itself a signal when the 8th MiB of one has arrived. */
struct sink {
    int sig;
    _Atomic(uint8_t *) bytes;
};

static void *strike_oneself(void *arg)
{
    struct sink *s = arg;
    const volatile uint8_t *bytes;
    while ((bytes = atomic_load(&s->bytes)) == NULL)
        continue;
    while (bytes[8 * MIB] == 0)
        continue;
    raise(s->sig);
    return NULL;
}

static hl_status sink_begin(void *arg, struct hl_id id, uint64_t size, void **token, void **ptr)
{
    struct sink *s = arg;
    uint8_t *bytes = calloc(1, size);
    (void)id;
    *token = *ptr = bytes;
    atomic_store(&s->bytes, bytes);
    return HL_OK;
}

static hl_status sink_commit(void *arg, void *token, uint32_t crc, const uint32_t *chunk_crcs,
                             size_t chunk_count, struct hl_id *id)
{
    (void)arg, (void)token, (void)chunk_crcs, (void)chunk_count;
    *id = (struct hl_id){1, crc};
    return HL_OK;
}

static void sink_abort(void *arg, void *token)
{
    (void)arg, (void)token;
}

static int run_sink(const char *sig)
{
    static struct sink sink;
    static uint8_t pool[4096];
    struct hl_net_server *server;
    pthread_t thread;
    sink.sig = strcmp(sig, "kill") == 0 ? SIGKILL : SIGSTOP;
    struct hl_net_server_opts opts = {.listen = "127.0.0.1:0",
                                      .pool = pool,
                                      .pool_len = sizeof(pool),
                                      .put = {sink_begin, sink_commit, sink_abort, &sink}};
    if (hl_net_server_start(&opts, &server) != HL_OK ||
        pthread_create(&thread, NULL, strike_oneself, &sink) != 0)
        return 1;
    printf("%s\n", hl_net_server_address(server));
    fflush(stdout);
    for (;;)
        pause();
}

static int run_putter(const char *address)
{
    struct hl_net_client *client;
    struct hl_id id;
    uint8_t *bytes = make_bytes(POOL_LEN);
    uint32_t crc = hl_crc32(0, bytes, POOL_LEN);
    if (hl_net_connect(address, START_MS, &client) != HL_OK)
        return 1;
    printf("connected\n");
    fflush(stdout);
    return hl_net_put(client, bytes, POOL_LEN, crc, 60000, &id) == HL_OK ? 0 : 1;
}

static int run_getter(const char *address)
{
    struct hl_net_client *client;
    uint8_t *bytes = malloc(POOL_LEN);
    if (hl_net_connect(address, START_MS, &client) != HL_OK)
        return 1;
    printf("connected\n");
    fflush(stdout);
    while (hl_net_fetch(client, 0, bytes, POOL_LEN, 30000) == HL_OK)
        continue;
    return 1;
}

struct peer {
    pid_t pid;
    char line[128]; /* its first line of output */
};

static void peer_start(struct peer *p, const char *mode, const char *arg)
{
    int out[2];
    assert_int_equal(pipe(out), 0);
    p->pid = fork();
    assert_true(p->pid >= 0);
    if (p->pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        dup2(out[1], STDOUT_FILENO);
        close(out[0]);
        close(out[1]);
        execl("/proc/self/exe", program, mode, arg, (char *)NULL);
        _exit(127);
    }
    close(out[1]);
    size_t len = 0;
    struct pollfd pfd = {.fd = out[0], .events = POLLIN};
    while (len + 1 < sizeof(p->line) && (len == 0 || p->line[len - 1] != '\n')) {
        assert_true(poll(&pfd, 1, START_MS) == 1);
        assert_true(read(out[0], p->line + len, 1) == 1);
        len++;
    }
    p->line[len - 1] = '\0';
    close(out[0]);
}

static void peer_end(struct peer *p)
{
    kill(p->pid, SIGKILL);
    kill(p->pid, SIGCONT);
    waitpid(p->pid, NULL, 0);
}

/* ---- hurting a peer at a certain point of the transfer ---- */

struct blow {
    pid_t pid;
    int sig;
    const uint8_t *watched; /* strike when this byte is no longer 0 */
    uint64_t at_ns; /* when the peer was dead: a busy machine takes its time to end a process */
};

/* Polls bytes in flight: a deliberate race. */
__attribute__((no_sanitize("thread"))) static void *strike(void *arg)
{
    struct blow *b = arg;
    siginfo_t info;
    uint64_t limit = hl_now_ns() + START_MS * HL_NS_PER_MS;
    while (__atomic_load_n(b->watched, __ATOMIC_RELAXED) == 0 && hl_now_ns() < limit)
        continue;
    kill(b->pid, b->sig);
    (void)waitid(P_PID, (id_t)b->pid, &info, WEXITED | WSTOPPED | WNOWAIT);
    b->at_ns = hl_now_ns();
    return NULL;
}

/* The fetch may have noticed before the watcher did. */
static uint64_t since(const struct blow *b, uint64_t ended_ns)
{
    return ended_ns > b->at_ns ? ended_ns - b->at_ns : 0;
}

/* Fetches until the signal hits; returns the status of the fetch that was interrupted, and when it
 * ended. */
static hl_status fetch_into_the_blow(struct hl_net_client *client, struct peer *server, int sig,
                                     uint8_t *dst, int timeout_ms, struct blow *b,
                                     uint64_t *ended_ns)
{
    pthread_t thread;
    hl_status st = HL_OK;
    *b = (struct blow){.pid = server->pid, .sig = sig, .watched = dst + 24 * MIB};
    memset(dst, 0, POOL_LEN);
    assert_int_equal(pthread_create(&thread, NULL, strike, b), 0);
    for (int i = 0; i < 100 && st == HL_OK; i++)
        st = hl_net_fetch(client, 0, dst, POOL_LEN, timeout_ms);
    *ended_ns = hl_now_ns();
    pthread_join(thread, NULL);
    return st;
}

static struct hl_net_client *join(const char *address, int stall_ms)
{
    struct hl_net_client *client = NULL;
    struct hl_net_connect_opts opts = {
        .address = address, .timeout_ms = START_MS, .stall_ms = stall_ms};
    if (hl_net_connect_with(&opts, &client) != HL_OK)
        fail_msg("%s", hl_error_text());
    return client;
}

TEST(a_server_killed_in_mid_transfer_is_noticed_within_a_second)
{
    struct peer server;
    struct blow b;
    uint64_t ended;
    uint8_t *dst = malloc(POOL_LEN);
    peer_start(&server, "--serve", NULL);
    struct hl_net_client *client = join(server.line, 20000); /* not noticed by the stall timeout */
    hl_status st = fetch_into_the_blow(client, &server, SIGKILL, dst, 30000, &b, &ended);
    uint64_t took = since(&b, ended);
    assert_int_equal(st, HL_EUNAVAIL);
    assert_true(took < NOTICED_NS);
    assert_non_null(strstr(hl_error_text(), server.line));
    assert_int_equal(hl_net_fetch(client, 0, dst, 64, 1000), HL_EUNAVAIL);
    fault_noticed("tcp-read", "kill", "noticed", took);
    hl_net_close(client);
    free(dst);
    peer_end(&server);
}

TEST(a_frozen_server_costs_the_deadline_and_nothing_is_written_after_it)
{
    struct peer server;
    struct blow b;
    uint64_t ended;
    uint8_t *dst = malloc(POOL_LEN);
    uint8_t word[64];
    peer_start(&server, "--serve", NULL);
    struct hl_net_client *client = join(server.line, 60000);
    hl_status st = fetch_into_the_blow(client, &server, SIGSTOP, dst, 1500, &b, &ended);
    uint64_t took = since(&b, ended);
    assert_int_equal(st, HL_ETIMEDOUT);
    assert_true(took < TEST_PATIENCE_NS);
    memset(dst, 0xee, POOL_LEN);
    kill(server.pid, SIGCONT);
    /* The server has been running again and has answered another client: all that it had left to
     * send is sent. */
    struct hl_net_client *other = join(server.line, 0);
    assert_int_equal(hl_net_fetch(other, 0, word, sizeof(word), 5000), HL_OK);
    for (size_t i = 0; i < POOL_LEN; i++) {
        if (dst[i] != 0xee)
            fail_msg("byte %zu was written after the fetch had failed", i);
    }
    hl_net_close(other);
    hl_net_close(client);
    free(dst);
    peer_end(&server);
}

TEST(a_stalled_transfer_fails_long_before_a_far_deadline)
{
    struct peer server;
    struct blow b;
    uint64_t ended;
    uint8_t *dst = malloc(POOL_LEN);
    peer_start(&server, "--serve", NULL);
    struct hl_net_client *client = join(server.line, 300);
    hl_status st = fetch_into_the_blow(client, &server, SIGSTOP, dst, 600000, &b, &ended);
    uint64_t took = since(&b, ended);
    assert_int_equal(st, HL_ETIMEDOUT);
    assert_true(took < TEST_PATIENCE_NS);
    assert_non_null(strstr(hl_error_text(), "300 ms"));
    hl_net_close(client);
    free(dst);
    peer_end(&server);
}

TEST(connecting_to_a_frozen_server_honours_the_deadline)
{
    struct peer server;
    struct hl_net_client *client = NULL;
    peer_start(&server, "--serve", NULL);
    kill(server.pid, SIGSTOP);
    uint64_t begin = hl_now_ns();
    hl_status st = hl_net_connect(server.line, 500, &client);
    assert_int_equal(st, HL_ETIMEDOUT);
    assert_true(hl_now_ns() - begin < TEST_PATIENCE_NS);
    assert_non_null(strstr(hl_error_text(), server.line));
    peer_end(&server);
}

/* ---- puts whose sender vanishes ---- */

struct vault {
    _Atomic(uint8_t *) bytes;
    atomic_int committed, aborted;
};

static hl_status vault_begin(void *arg, struct hl_id id, uint64_t size, void **token, void **ptr)
{
    struct vault *v = arg;
    (void)id;
    uint8_t *bytes = calloc(1, size);
    if (bytes == NULL)
        return hl_fail(HL_ENOMEM, "vault");
    *token = bytes;
    *ptr = bytes;
    atomic_store(&v->bytes, bytes);
    return HL_OK;
}

static hl_status vault_commit(void *arg, void *token, uint32_t crc, const uint32_t *chunk_crcs,
                              size_t chunk_count, struct hl_id *id)
{
    struct vault *v = arg;
    (void)crc;
    (void)chunk_crcs;
    (void)chunk_count;
    (void)token;
    *id = hl_id_random();
    atomic_fetch_add(&v->committed, 1);
    return HL_OK;
}

/* Frees the buffer: a byte that arrives later is a use after free under AddressSanitizer. */
static void vault_abort(void *arg, void *token)
{
    struct vault *v = arg;
    free(token);
    atomic_fetch_add(&v->aborted, 1);
}

static struct hl_net_server *serve_vault(struct vault *v)
{
    static uint8_t pool[4096];
    struct hl_net_server *server = NULL;
    struct hl_net_server_opts opts = {
        .listen = "127.0.0.1:0",
        .pool = pool,
        .pool_len = sizeof(pool),
        .put = {vault_begin, vault_commit, vault_abort, v},
    };
    if (hl_net_server_start(&opts, &server) != HL_OK)
        fail_msg("%s", hl_error_text());
    return server;
}

static int reaches_one(atomic_int *counter, uint64_t limit_ns)
{
    while (atomic_load(counter) == 0 && hl_now_ns() < limit_ns)
        continue;
    return atomic_load(counter) == 1;
}

/* Starts a putter and signals it when its 8th MiB has arrived. */
static void put_into_the_blow(struct vault *v, struct hl_net_server *server, int sig,
                              struct peer *putter)
{
    uint64_t limit = hl_now_ns() + START_MS * HL_NS_PER_MS;
    peer_start(putter, "--put", hl_net_server_address(server));
    while (atomic_load(&v->bytes) == NULL)
        assert_true(hl_now_ns() < limit);
    struct blow b = {.pid = putter->pid, .sig = sig, .watched = atomic_load(&v->bytes) + 8 * MIB};
    strike(&b);
    assert_int_equal(atomic_load(&v->committed), 0);
}

struct watch {
    pid_t pid;
    uint64_t at_ns;
};

static void *watch_end(void *arg)
{
    struct watch *w = arg;
    siginfo_t info;
    if (waitid(P_PID, (id_t)w->pid, &info, WEXITED | WSTOPPED | WNOWAIT) == 0)
        w->at_ns = hl_now_ns();
    return NULL;
}

/* The server dies or freezes by itself while bytes are arriving. */
static void put_to_a_server_that_ends(const char *how, int stall_ms, hl_status want)
{
    struct peer server;
    struct hl_id id;
    pthread_t thread;
    uint8_t *bytes = make_bytes(POOL_LEN);
    memset(bytes + 8 * MIB, 1, 1);
    uint32_t crc = hl_crc32(0, bytes, POOL_LEN);
    peer_start(&server, "--sink", how);
    struct watch watch = {.pid = server.pid};
    assert_int_equal(pthread_create(&thread, NULL, watch_end, &watch), 0);
    struct hl_net_client *client = join(server.line, stall_ms);
    hl_status st = hl_net_put(client, bytes, POOL_LEN, crc, 30000, &id);
    uint64_t ended = hl_now_ns();
    pthread_join(thread, NULL);
    assert_int_equal(st, want);
    assert_true(ended <
                watch.at_ns + NOTICED_NS); /* perhaps this thread noticed before the watcher did */
    assert_non_null(strstr(hl_error_text(), server.line));
    assert_non_null(strstr(hl_error_text(), "put of 1 objects with 268435456 bytes"));
    fault_noticed("tcp-put", how, "noticed", ended > watch.at_ns ? ended - watch.at_ns : 0);
    hl_net_close(client);
    munmap(bytes, POOL_LEN);
    peer_end(&server);
}

TEST(a_server_killed_in_mid_put_is_noticed_within_a_second)
{
    put_to_a_server_that_ends("kill", 20000, HL_EUNAVAIL); /* not noticed by the stall timeout */
}

TEST(a_server_frozen_in_mid_put_is_noticed_within_a_second)
{
    put_to_a_server_that_ends("stop", 0, HL_ETIMEDOUT);
}

TEST(a_server_killed_while_idle_is_noticed_by_the_next_call_within_a_second)
{
    struct peer server;
    uint8_t word[64];
    peer_start(&server, "--serve", NULL);
    struct hl_net_client *client = join(server.line, 0);
    assert_int_equal(hl_net_fetch(client, 0, word, sizeof(word), 5000), HL_OK);
    struct watch watch = {.pid = server.pid};
    kill(server.pid, SIGKILL);
    watch_end(&watch);
    uint64_t begin = hl_now_ns();
    assert_int_not_equal(hl_net_fetch(client, 0, word, sizeof(word), 30000), HL_OK);
    assert_true(hl_now_ns() - begin < NOTICED_NS);
    assert_non_null(strstr(hl_error_text(), "fetch of 64 bytes at 0"));
    hl_net_close(client);
    peer_end(&server);
}

TEST(a_put_whose_client_is_killed_is_aborted)
{
    struct vault v = {0};
    struct peer putter;
    struct hl_net_server *server = serve_vault(&v);
    put_into_the_blow(&v, server, SIGKILL, &putter);
    assert_true(reaches_one(&v.aborted, hl_now_ns() + TEST_PATIENCE_NS));
    struct hl_net_server_stats stats;
    hl_net_server_stats(server, &stats);
    assert_int_equal(stats.puts, 0);
    hl_net_server_stop(server);
    assert_int_equal(v.aborted, 1);
    assert_int_equal(v.committed, 0);
    peer_end(&putter);
}

TEST(a_put_whose_client_is_frozen_is_given_up_and_the_server_serves_on)
{
    static uint8_t pool[4096];
    struct vault v = {0};
    struct peer putter;
    uint8_t word[64];
    struct hl_net_server *server = NULL;
    struct hl_net_server_opts opts = {.listen = "127.0.0.1:0",
                                      .pool = pool,
                                      .pool_len = sizeof(pool),
                                      .put = {vault_begin, vault_commit, vault_abort, &v},
                                      .put_timeout_ms = 300};
    assert_int_equal(hl_net_server_start(&opts, &server), HL_OK);
    put_into_the_blow(&v, server, SIGSTOP, &putter);
    assert_true(reaches_one(&v.aborted, hl_now_ns() + TEST_PATIENCE_NS));
    struct hl_net_client *client = join(hl_net_server_address(server), 0);
    assert_int_equal(hl_net_fetch(client, 0, word, sizeof(word), 5000), HL_OK);
    hl_net_close(client);
    hl_net_server_stop(server);
    assert_int_equal(v.aborted, 1);
    assert_int_equal(v.committed, 0);
    peer_end(&putter);
}

TEST(a_put_whose_client_is_frozen_is_aborted_when_the_server_stops)
{
    struct vault v = {0};
    struct peer putter;
    struct hl_net_server *server = serve_vault(&v);
    put_into_the_blow(&v, server, SIGSTOP, &putter);
    uint64_t begin = hl_now_ns();
    hl_net_server_stop(server);
    assert_true(hl_now_ns() - begin < 4 * HL_NS_PER_S);
    assert_int_equal(v.aborted, 1);
    assert_int_equal(v.committed, 0);
    peer_end(&putter);
}

/* Regression: UCT's put made the server fail an assertion when the acknowledgement met a closed
 * endpoint. */
TEST(a_server_outlives_clients_that_die_while_they_read)
{
    struct hl_net_server *server = NULL;
    struct hl_net_server_stats stats;
    uint8_t *pool = make_bytes(POOL_LEN), word[64];
    struct hl_net_server_opts opts = {.listen = "127.0.0.1:0", .pool = pool, .pool_len = POOL_LEN};
    if (hl_net_server_start(&opts, &server) != HL_OK)
        fail_msg("%s", hl_error_text());
    for (int i = 0; i < 10; i++) {
        struct peer getter;
        uint64_t limit = hl_now_ns() + 20 * HL_NS_PER_S;
        hl_net_server_stats(server, &stats);
        uint64_t goal = stats.get_bytes + (uint64_t)(8 + i) * MIB;
        peer_start(&getter, "--get", hl_net_server_address(server));
        while (stats.get_bytes < goal) {
            hl_net_server_stats(server, &stats);
            assert_true(hl_now_ns() < limit);
        }
        peer_end(&getter);
        while (stats.peers_now > 0) { /* noticed, with nothing left of it */
            hl_net_server_stats(server, &stats);
            assert_true(hl_now_ns() < limit);
        }
    }
    struct hl_net_client *client = join(hl_net_server_address(server), 0);
    assert_int_equal(hl_net_fetch(client, 128, word, sizeof(word), 5000), HL_OK);
    assert_memory_equal(word, pool + 128, sizeof(word));
    hl_net_close(client);
    hl_net_server_stop(server);
    munmap(pool, POOL_LEN);
}

int main(int argc, char **argv)
{
    program = argv[0];
    if (argc > 1)
        alarm(60);
    if (argc > 1 && strcmp(argv[1], "--serve") == 0)
        return run_server();
    if (argc > 2 && strcmp(argv[1], "--sink") == 0)
        return run_sink(argv[2]);
    if (argc > 2 && strcmp(argv[1], "--put") == 0)
        return run_putter(argv[2]);
    if (argc > 2 && strcmp(argv[1], "--get") == 0)
        return run_getter(argv[2]);
    return tests_run(argc, argv);
}
