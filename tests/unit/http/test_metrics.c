#include "support/test.h"

#include <arpa/inet.h>
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include "base/plane.h"
#include "http/metrics.h"
#include "os/loop.h"
#include "support/prom_text.h"

#define PATIENCE_S 20

/* A daemon: a loop on its own thread that can be blocked. */
struct world {
    struct hl_loop *loop;
    struct hl_metrics *metrics;
    pthread_t thread;
    pthread_mutex_t held; /* while a test holds it, the loop is blocked */
    hl_status gauges;     /* what they answer */
    int deadline_ms;
    atomic_int state; /* 1 = serving, 2 = could not serve */
    char address[64];
};

static hl_status gauges(void *arg, struct hl_buf *out)
{
    struct world *w = arg;
    HL_ON_LOOP(w->loop);
    hl_metric_family(out, "helios_shards", "gauge", "Sealed shards.");
    (void)hl_buf_printf(out, "helios_shards{tier=\"L3\"} 7\n");
    return w->gauges;
}

static void begin(void *arg)
{
    struct world *w = arg;
    struct hl_metrics_opts o = {.listen = "127.0.0.1:0",
                                .loop = w->loop,
                                .deadline_ms = w->deadline_ms,
                                .gauges = gauges,
                                .arg = w};
    hl_status st = hl_metrics_start(&o, &w->metrics);
    if (st == HL_OK)
        snprintf(w->address, sizeof(w->address), "%s", hl_metrics_address(w->metrics));
    atomic_store(&w->state, st == HL_OK ? 1 : 2);
}

static void hold(void *arg)
{
    struct world *w = arg;
    pthread_mutex_lock(&w->held);
    pthread_mutex_unlock(&w->held);
}

static void *loop_thread(void *arg)
{
    struct world *w = arg;
    hl_loop_post(w->loop, begin, w);
    hl_status st = hl_loop_run(w->loop);
    hl_metrics_stop(w->metrics);
    return st == HL_OK ? NULL : w;
}

static void world_start(struct world *w, int deadline_ms)
{
    *w = (struct world){.deadline_ms = deadline_ms, .held = PTHREAD_MUTEX_INITIALIZER};
    assert_int_equal(hl_loop_create(&w->loop), HL_OK);
    assert_int_equal(pthread_create(&w->thread, NULL, loop_thread, w), 0);
    for (int i = 0; i < PATIENCE_S * 1000 && atomic_load(&w->state) == 0; i++)
        usleep(1000);
    assert_int_equal(atomic_load(&w->state), 1);
}

static void world_stop(struct world *w)
{
    hl_loop_stop(w->loop);
    pthread_join(w->thread, NULL);
    hl_loop_destroy(w->loop);
}

static int dial(const char *address)
{
    struct sockaddr_in sa = {.sin_family = AF_INET};
    struct timeval limit = {PATIENCE_S, 0};
    sa.sin_port = htons((uint16_t)atoi(strrchr(address, ':') + 1));
    sa.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    assert_true(fd >= 0);
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
    assert_int_equal(connect(fd, (struct sockaddr *)&sa, sizeof(sa)), 0);
    return fd;
}

/* Reads until the other side closes; returns the status code, the body begins at *body. */
static int finish(int fd, char *out, size_t cap, char **body)
{
    size_t at = 0;
    ssize_t n;
    /* libuv 1.50 ends the io_uring of a loop in the thread that created it, which interrupts that
     * thread's recv with a time limit. */
    while (at + 1 < cap &&
           ((n = recv(fd, out + at, cap - 1 - at, 0)) > 0 || (n < 0 && errno == EINTR)))
        at += n > 0 ? (size_t)n : 0;
    out[at] = '\0';
    close(fd);
    int code = 0;
    if (sscanf(out, "HTTP/1.1 %d", &code) != 1)
        return -1;
    *body = strstr(out, "\r\n\r\n");
    assert_non_null(*body);
    *body += 4;
    return code;
}

static int ask(const struct world *w, const char *method, const char *path, char *out, size_t cap,
               char **body)
{
    char request[256];
    int n = snprintf(request, sizeof(request),
                     "%s %s HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", method, path);
    int fd = dial(w->address);
    assert_int_equal(send(fd, request, (size_t)n, MSG_NOSIGNAL), n);
    return finish(fd, out, cap, body);
}

static char page[1 << 20];

TEST(metrics_are_the_planes_and_the_daemons_own)
{
    struct world w;
    char *body;
    struct prom *p = malloc(sizeof(*p));
    world_start(&w, 0);
    hl_plane_count(&(struct hl_transfer){.plane = HL_PLANE_BACKBONE,
                                         .op = "read",
                                         .path = "tcp",
                                         .reason = "no-rdma",
                                         .bytes = 42,
                                         .ns = 5});
    assert_int_equal(ask(&w, "GET", "/metrics", page, sizeof(page), &body), 200);
    assert_non_null(strstr(page, "Content-Type: text/plain; version=0.0.4"));
    prom_parse(body, p);
    assert_true(prom_value(p, "helios_plane_bytes_total",
                           "plane=\"backbone\",direction=\"received\"") == 42);
    assert_true(prom_value(p, "helios_shards", "tier=\"L3\"") == 7);
    assert_true(prom_value(p, "helios_up", "") == 1);
    assert_int_equal(ask(&w, "GET", "/healthz", page, sizeof(page), &body), 200);
    assert_string_equal(body, "ok\n");
    world_stop(&w);
    free(p);
}

TEST(a_loop_that_stands_still_is_told_and_not_waited_for)
{
    struct world w;
    char *body;
    struct prom *p = malloc(sizeof(*p));
    world_start(&w, 50);
    pthread_mutex_lock(&w.held);
    hl_loop_post(w.loop, hold, &w);
    assert_int_equal(ask(&w, "GET", "/healthz", page, sizeof(page), &body), 503);
    assert_int_equal(ask(&w, "GET", "/metrics", page, sizeof(page), &body), 200);
    prom_parse(body, p);
    assert_true(prom_value(p, "helios_up", "") == 0);
    assert_true(prom_value(p, "helios_shards", "tier=\"L3\"") == -1);
    assert_true(prom_value(p, "helios_plane_failed_total", "plane=\"backbone\"") >= 0);
    pthread_mutex_unlock(&w.held);
    world_stop(&w); /* abandoned requests are still on the loop */
    free(p);
}

TEST(gauges_that_fail_leave_the_rest_whole)
{
    struct world w;
    char *body;
    struct prom *p = malloc(sizeof(*p));
    world_start(&w, 0);
    w.gauges = HL_ENOMEM;
    assert_int_equal(ask(&w, "GET", "/metrics", page, sizeof(page), &body), 200);
    prom_parse(body, p);
    assert_true(prom_value(p, "helios_shards", "tier=\"L3\"") == -1);
    world_stop(&w);
    free(p);
}

TEST(other_paths_methods_and_garbage_are_refused)
{
    struct world w;
    char *body;
    world_start(&w, 0);
    assert_int_equal(ask(&w, "GET", "/", page, sizeof(page), &body), 404);
    assert_int_equal(ask(&w, "GET", "/metrics/../etc/passwd", page, sizeof(page), &body), 404);
    assert_int_equal(ask(&w, "DELETE", "/metrics", page, sizeof(page), &body), 405);
    static const char *const bad[] = {
        "POST /metrics HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nConnection: close\r\n\r\nhello",
        "\r\n\r\n\r\n", "GET\r\n\r\n", "\x16\x03\x01\x02\x00", "GET /metrics HTTP/9.9\r\n\r\n"};
    for (size_t i = 0; i < HL_ARRAY_LEN(bad); i++) {
        int fd = dial(w.address);
        assert_int_equal(send(fd, bad[i], strlen(bad[i]), MSG_NOSIGNAL), strlen(bad[i]));
        shutdown(fd, SHUT_WR);
        assert_int_not_equal(finish(fd, page, sizeof(page), &body), 200);
    }
    /* endless headers are cut off by their size */
    static char line[1000];
    memset(line, 'a', sizeof(line));
    memcpy(line, "X: ", 3);
    memcpy(line + sizeof(line) - 2, "\r\n", 2);
    int fd = dial(w.address);
    assert_true(send(fd, "GET /metrics HTTP/1.1\r\n", 23, MSG_NOSIGNAL) == 23);
    for (int i = 0; i < 100 && send(fd, line, sizeof(line), MSG_NOSIGNAL) > 0; i++)
        continue;
    assert_int_not_equal(finish(fd, page, sizeof(page), &body), 200);
    assert_int_equal(ask(&w, "GET", "/healthz", page, sizeof(page), &body), 200);
    world_stop(&w);
}

TEST(the_oldest_silent_connections_make_room_for_others)
{
    struct world w;
    char *body, byte;
    int silent[HL_METRICS_CONNECTIONS];
    world_start(&w, 0);
    for (int i = 0; i < HL_METRICS_CONNECTIONS; i++)
        silent[i] = dial(w.address);
    int code = -1; /* at the limit until the threads of closed connections have ended */
    for (int i = 0; i < 400 * PATIENCE_S && code != 200; i++) {
        code = ask(&w, "GET", "/healthz", page, sizeof(page), &body);
        usleep(code == 200 ? 0 : 2500);
    }
    assert_int_equal(code, 200);
    assert_int_equal(recv(silent[0], &byte, 1, 0), 0);
    assert_int_equal(recv(silent[HL_METRICS_CONNECTIONS - 1], &byte, 1, MSG_DONTWAIT), -1);
    for (int i = 0; i < HL_METRICS_CONNECTIONS; i++)
        close(silent[i]);
    world_stop(&w);
}

TEST(without_an_address_nothing_is_served)
{
    struct hl_metrics *m = (void *)state;
    assert_int_equal(hl_metrics_start(&(struct hl_metrics_opts){.listen = ""}, &m), HL_OK);
    assert_null(m);
    assert_string_equal(hl_metrics_address(m), "");
}

TEST(a_bad_address_is_told)
{
    struct hl_loop *loop;
    struct hl_metrics *m = NULL, *second = NULL;
    static const char *const bad[] = {"9464", ":9464", "127.0.0.1:", "127.0.0.1:x",
                                      "127.0.0.1:70000"};
    assert_int_equal(hl_loop_create(&loop), HL_OK);
    for (size_t i = 0; i < HL_ARRAY_LEN(bad); i++)
        assert_int_equal(
            hl_metrics_start(&(struct hl_metrics_opts){.listen = bad[i], .loop = loop}, &m),
            HL_EINVAL);
    assert_null(m);
    assert_int_equal(
        hl_metrics_start(&(struct hl_metrics_opts){.listen = "[::1]:0", .loop = loop}, &m) != HL_OK
            ? hl_metrics_start(&(struct hl_metrics_opts){.listen = "localhost:0", .loop = loop}, &m)
            : HL_OK,
        HL_OK);
    assert_int_equal(
        hl_metrics_start(&(struct hl_metrics_opts){.listen = hl_metrics_address(m), .loop = loop},
                         &second),
        HL_EBUSY);
    assert_null(second);
    hl_metrics_stop(m);
    hl_metrics_stop(NULL);
    hl_loop_destroy(loop);
}
