/* One side of a read over the wire, for the test machine: `serve` owns a pool of bytes that anybody
 * can compute, `fetch` reads them while something happens to the owner. The guest's script starts
 * both and looks at what they print.
 *
 *   onesided serve HOST:PORT BYTES MODE
 *   onesided fetch HOST:PORT MODE live|stop|kill|renew OWNER_PID TIMEOUT_MS SIZE...
 *
 * MODE is auto, get or ask. `stop`: the owner is stopped after the connection stands and goes on at
 * the end. `kill`: reads until the death of the owner, which is killed meanwhile, is noticed.
 * `renew`: reads until the connection has got another path, then the sizes. */
#include <dirent.h>
#include <inttypes.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "base/clock.h"
#include "net/net.h"
#include "support/process_state.h"

#define KILL_AFTER_NS (300 * HL_NS_PER_MS)
#define HELLO_MS      180000
#define RETRY_MS      500

static uint64_t word_at(uint64_t i)
{
    return (i + 1) * 0x9e3779b97f4a7c15ull;
}

static enum hl_net_mode mode_of(const char *text)
{
    return strcmp(text, "get") == 0   ? HL_NET_GET
           : strcmp(text, "ask") == 0 ? HL_NET_ASK
                                      : HL_NET_AUTO;
}

static int serve(const char *listen, size_t len, const char *mode)
{
    struct hl_net_server *server;
    uint64_t *pool = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (pool == MAP_FAILED) {
        perror("mmap");
        return 1;
    }
    for (size_t i = 0; i < len / 8; i++)
        pool[i] = word_at(i);
    struct hl_net_server_opts opts = {.listen = listen,
                                      .pool = pool,
                                      .pool_len = len,
                                      .connect_ms = HELLO_MS,
                                      .mode = mode_of(mode)};
    if (hl_net_server_start(&opts, &server) != HL_OK) {
        fprintf(stderr, "%s\n", hl_error_text());
        return 1;
    }
    printf("%s\n", hl_net_server_address(server));
    fflush(stdout);
    for (;;)
        pause();
}

static size_t count_wrong(const uint64_t *got, uint64_t offset, size_t len)
{
    size_t wrong = 0;
    for (size_t i = 0; i < len / 8; i++)
        wrong += got[i] != word_at(offset / 8 + i);
    return wrong;
}

/* Another offset for every size, so that bytes of the fetch before do not pass for these. */
static int fetch_one(struct hl_net_client *client, uint64_t *buf, size_t len, int timeout_ms)
{
    uint64_t offset = 4096 + len;
    uint64_t begin = hl_now_ns();
    memset(buf, 0, len);
    hl_status st = hl_net_fetch(client, offset, buf, len, timeout_ms);
    double ms = (double)(hl_now_ns() - begin) / 1e6;
    if (st != HL_OK) {
        printf("failed %zu %s %.1f ms: %s\n", len, hl_status_name(st), ms, hl_error_text());
        return 1;
    }
    size_t wrong = count_wrong(buf, offset, len);
    printf("%s %zu %.1f ms\n", wrong == 0 ? "fetched" : "wrong", len, ms);
    return wrong != 0;
}

static int thread_is_stopped(pid_t pid, const char *tid)
{
    char path[300];
    snprintf(path, sizeof(path), "/proc/%d/task/%s/stat", (int)pid, tid);
    return process_state(path) == 'T';
}

/* A signal takes its time; only when every thread is seen to stand still has none a part in what
 * follows. */
static int stop(pid_t pid)
{
    char path[64];
    uint64_t limit = hl_now_ns() + 10 * HL_NS_PER_S;
    int running = 1;
    kill(pid, SIGSTOP);
    snprintf(path, sizeof(path), "/proc/%d/task", (int)pid);
    while (running && hl_now_ns() < limit) {
        DIR *dir = opendir(path);
        if (dir == NULL)
            break;
        running = 0;
        for (const struct dirent *e = readdir(dir); e != NULL; e = readdir(dir))
            running |= e->d_name[0] != '.' && !thread_is_stopped(pid, e->d_name);
        closedir(dir);
    }
    printf("%s\n", running ? "the owner runs on" : "stopped");
    return running;
}

struct blow {
    pid_t pid;
    uint64_t at_ns;
};

static void *strike(void *arg)
{
    struct blow *b = arg;
    struct timespec t = {0, (long)KILL_AFTER_NS};
    nanosleep(&t, NULL);
    b->at_ns = hl_now_ns();
    kill(b->pid, SIGKILL);
    return NULL;
}

/* Reads on and on; ends with the error that the death of the owner gives. */
static int fetch_until_death(struct hl_net_client *client, uint64_t *buf, size_t len, pid_t owner,
                             int timeout_ms)
{
    pthread_t thread;
    struct blow b = {.pid = owner};
    unsigned good = 0;
    uint64_t limit = hl_now_ns() + 60 * HL_NS_PER_S;
    if (pthread_create(&thread, NULL, strike, &b) != 0)
        return 1;
    hl_status st;
    while ((st = hl_net_fetch(client, 0, buf, len, timeout_ms)) == HL_OK && hl_now_ns() < limit) {
        good++;
        if (count_wrong(buf, 0, len) > 0) {
            printf("wrong %zu\n", len);
            return 1;
        }
    }
    uint64_t now = hl_now_ns();
    pthread_join(thread, NULL);
    printf("noticed %s after %.0f ms, %u good reads before: %s\n", hl_status_name(st),
           (double)(now - b.at_ns) / 1e6, good, st == HL_OK ? "never" : hl_error_text());
    return st == HL_OK;
}

/* Reads on and on, over the first path until the other stands. */
static int fetch_until_renewed(struct hl_net_client **client, uint64_t *buf, size_t len,
                               int timeout_ms)
{
    struct hl_net_client_info first, now;
    unsigned good = 0;
    uint64_t limit = hl_now_ns() + (uint64_t)timeout_ms * HL_NS_PER_MS;
    hl_net_client_info(*client, &first);
    do {
        hl_net_renew(client);
        hl_net_client_info(*client, &now);
        if (fetch_one(*client, buf, len, timeout_ms) != 0)
            return 1;
        good++;
    } while (strcmp(now.path, first.path) == 0 && hl_now_ns() < limit);
    printf("renewed %s after %u good reads over %s\n", now.path, good - 1, first.path);
    return strcmp(now.path, first.path) == 0;
}

static int run_sizes(struct hl_net_client **client, char **sizes, const char *what, pid_t owner,
                     int timeout_ms)
{
    size_t most = 0;
    int bad = 0;
    for (char **s = sizes; *s != NULL; s++)
        most = strtoull(*s, NULL, 10) > most ? strtoull(*s, NULL, 10) : most;
    uint64_t *buf = malloc(most);
    if (buf == NULL)
        return 1;
    if (strcmp(what, "kill") == 0) {
        bad = fetch_until_death(*client, buf, most, owner, timeout_ms);
    } else {
        if (strcmp(what, "stop") == 0)
            bad = stop(owner);
        if (strcmp(what, "renew") == 0)
            bad = fetch_until_renewed(client, buf, 64, timeout_ms);
        for (char **s = sizes; *s != NULL && !bad; s++)
            bad = fetch_one(*client, buf, strtoull(*s, NULL, 10), timeout_ms);
        if (strcmp(what, "stop") == 0)
            kill(owner, SIGCONT);
    }
    free(buf);
    return bad;
}

static int fetch(char **argv)
{
    struct hl_net_client *client;
    struct hl_net_client_info info;
    int timeout_ms = atoi(argv[6]);
    uint64_t begin = hl_now_ns();
    struct hl_net_connect_opts opts = {.address = argv[2],
                                       .timeout_ms = timeout_ms,
                                       .stall_ms = timeout_ms,
                                       .mode = mode_of(argv[3]),
                                       .rdma_retry_ms = RETRY_MS};
    hl_status st = hl_net_connect_with(&opts, &client);
    double ms = (double)(hl_now_ns() - begin) / 1e6;
    if (st != HL_OK) {
        printf("refused %s %.1f ms: %s\n", hl_status_name(st), ms, hl_error_text());
        return 1;
    }
    hl_net_client_info(client, &info);
    printf("path %s %.1f ms\n", info.path, ms);
    fflush(stdout);
    int bad = run_sizes(&client, argv + 7, argv[4], (pid_t)atoi(argv[5]), timeout_ms);
    fflush(stdout);
    hl_net_close(client);
    return bad;
}

int main(int argc, char **argv)
{
    prctl(PR_SET_PDEATHSIG, SIGKILL); /* UCX spins on when the script is gone */
    if (argc == 5 && strcmp(argv[1], "serve") == 0)
        return serve(argv[2], strtoull(argv[3], NULL, 10), argv[4]);
    if (argc > 7 && strcmp(argv[1], "fetch") == 0)
        return fetch(argv);
    fprintf(stderr, "usage: onesided serve|fetch, see the source\n");
    return 2;
}
