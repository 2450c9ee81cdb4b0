/* libmicrohttpd gives every connection a thread, so that a connection that waits for the loop does
 * not block the others. The thread posts a question to the loop and waits for its answer. If it
 * gives up, the answer is discarded; the last of the two frees the question.
 *
 *     connection's thread                          the loop
 *     question, refs = 2 ----hl_loop_post---->     question_answer: text, without the lock
 *     waits for `changed`, deadline_ms at most     answered = true, signal
 *       |  answered: copies the text               drops its reference
 *       '--late: abandoned = true                  sees `abandoned`: does not use `m`
 *     drops its reference
 *
 * Idle connections must not keep others out: if HL_METRICS_SILENT connections have no request under
 * way, the next one closes the oldest of them. */
#include "http/metrics.h"

#include <errno.h>
#include <microhttpd.h>
#include <netdb.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/host_port.h"
#include "base/log.h"
#include "base/plane.h"
#include "base/text.h"
#include "os/cond.h"
#include "os/loop.h"

#define DEADLINE_MS 1000
#define BACKLOG     64
#define MEMORY      ((size_t)16 << 10) /* per connection; limits its headers */

struct hl_metrics {
    struct hl_metrics_opts opts;
    struct MHD_Daemon *http;
    pthread_mutex_t lock;          /* guards silent, silent_count */
    int silent[HL_METRICS_SILENT]; /* descriptors without a request in flight, oldest first */
    size_t silent_count;
    char address[300];
};

/* One question about the daemon's state. */
struct question {
    pthread_mutex_t lock; /* guards answered, abandoned, refs */
    pthread_cond_t changed;
    bool answered;
    int refs;
    bool abandoned;
    bool health;          /* health is asked for, not gauges */
    struct hl_metrics *m; /* may be gone if `abandoned` */
    struct hl_buf text;
};

static void question_put(struct question *q)
{
    pthread_mutex_lock(&q->lock);
    bool last = --q->refs == 0;
    pthread_mutex_unlock(&q->lock);
    if (!last)
        return;
    hl_buf_fini(&q->text);
    pthread_cond_destroy(&q->changed);
    pthread_mutex_destroy(&q->lock);
    free(q);
}

static struct question *question_create(struct hl_metrics *m, bool health)
{
    struct question *q = calloc(1, sizeof(*q));
    if (q == NULL)
        return NULL;
    hl_cond_init(&q->changed);
    pthread_mutex_init(&q->lock, NULL);
    q->refs = 2;
    q->m = m;
    q->health = health;
    q->text = (struct hl_buf)HL_BUF(HL_METRICS_TEXT);
    return q;
}

/* Runs on the loop, like hl_metrics_stop(), so `m` exists while a question that was not abandoned
 * is answered. No lock is held meanwhile, so that the deadline also holds for slow gauges. */
static void question_answer(void *arg)
{
    struct question *q = arg;
    pthread_mutex_lock(&q->lock);
    const struct hl_metrics_opts *o = q->abandoned ? NULL : &q->m->opts;
    pthread_mutex_unlock(&q->lock);
    hl_status (*say)(void *, struct hl_buf *) = o == NULL   ? NULL
                                                : q->health ? o->health
                                                            : o->gauges;
    if (say != NULL && say(o->arg, &q->text) != HL_OK) {
        hl_debug("metrics: %s", hl_error_text());
        hl_buf_clear(&q->text);
    }
    pthread_mutex_lock(&q->lock);
    q->answered = true;
    pthread_cond_signal(&q->changed);
    pthread_mutex_unlock(&q->lock);
    question_put(q);
}

/* True: the loop has answered, and its text is appended to `out`. */
static bool ask_loop(struct hl_metrics *m, bool health, struct hl_buf *out)
{
    struct question *q = question_create(m, health);
    if (q == NULL)
        return false;
    uint64_t until = hl_now_ns() + (uint64_t)m->opts.deadline_ms * HL_NS_PER_MS;
    struct timespec ts = {(time_t)(until / HL_NS_PER_S), (long)(until % HL_NS_PER_S)};
    hl_loop_post(m->opts.loop, question_answer, q);
    pthread_mutex_lock(&q->lock);
    while (!q->answered && pthread_cond_timedwait(&q->changed, &q->lock, &ts) != ETIMEDOUT)
        continue;
    bool answered = q->answered;
    q->abandoned = !answered;
    pthread_mutex_unlock(&q->lock);
    if (answered && q->text.len > 0)
        (void)hl_buf_append(out, q->text.data, q->text.len);
    question_put(q);
    return answered;
}

static enum MHD_Result send_reply(struct MHD_Connection *c, unsigned code, const char *type,
                                  struct hl_buf *text)
{
    size_t len = text->len;
    char *data = hl_buf_take(text);
    struct MHD_Response *r = MHD_create_response_from_buffer(
        len, data, data ? MHD_RESPMEM_MUST_FREE : MHD_RESPMEM_PERSISTENT);
    if (r == NULL) {
        free(data);
        return MHD_NO;
    }
    MHD_add_response_header(r, MHD_HTTP_HEADER_CONTENT_TYPE, type);
    if (code == MHD_HTTP_METHOD_NOT_ALLOWED)
        MHD_add_response_header(r, MHD_HTTP_HEADER_ALLOW, "GET, HEAD");
    enum MHD_Result ok = MHD_queue_response(c, code, r);
    MHD_destroy_response(r);
    return ok;
}

static enum MHD_Result serve_metrics(struct hl_metrics *m, struct MHD_Connection *c)
{
    struct hl_buf text = HL_BUF(HL_METRICS_TEXT);
    hl_status st = hl_plane_metrics(&text);
    bool up = ask_loop(m, false, &text);
    hl_metric_family(&text, "helios_up", "gauge", "1 while the daemon's loop answers in time.");
    (void)hl_buf_printf(&text, "helios_up %d\n", up);
    if (st != HL_OK || text.failed) {
        hl_buf_clear(&text);
        (void)hl_buf_printf(&text, "the text is longer than %zu bytes\n", text.max);
        return send_reply(c, MHD_HTTP_INTERNAL_SERVER_ERROR, "text/plain; charset=utf-8", &text);
    }
    return send_reply(c, MHD_HTTP_OK, "text/plain; version=0.0.4; charset=utf-8", &text);
}

/* ---- silent connections ---------------------------------------------------------------------- */

static int connection_fd(struct MHD_Connection *c)
{
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(c, MHD_CONNECTION_INFO_CONNECTION_FD);
    return info != NULL ? info->connect_fd : -1;
}

/* Call it with the lock held. */
static void silent_remove(struct hl_metrics *m, int fd)
{
    for (size_t i = 0; i < m->silent_count; i++)
        if (m->silent[i] == fd) {
            m->silent_count--;
            memmove(&m->silent[i], &m->silent[i + 1], (m->silent_count - i) * sizeof(fd));
            return;
        }
}

/* A request has begun or the connection ends, so it must not be closed to make room. */
static void client_speaks(struct hl_metrics *m, int fd)
{
    pthread_mutex_lock(&m->lock);
    silent_remove(m, fd);
    pthread_mutex_unlock(&m->lock);
}

/* Closes the oldest silent connection if there are too many: its thread sees the end of the stream.
 * libmicrohttpd reports the end of a connection before it closes the descriptor, so all descriptors
 * in the list are open. */
static void falls_silent(struct hl_metrics *m, int fd)
{
    pthread_mutex_lock(&m->lock);
    silent_remove(m, fd);
    if (m->silent_count == HL_METRICS_SILENT) {
        shutdown(m->silent[0], SHUT_RDWR);
        silent_remove(m, m->silent[0]);
    }
    m->silent[m->silent_count++] = fd;
    pthread_mutex_unlock(&m->lock);
}

static void on_connection(void *arg, struct MHD_Connection *c, void **state,
                          enum MHD_ConnectionNotificationCode what)
{
    (void)state;
    if (what == MHD_CONNECTION_NOTIFY_STARTED)
        falls_silent(arg, connection_fd(c));
    else
        client_speaks(arg, connection_fd(c));
}

static void on_completed(void *arg, struct MHD_Connection *c, void **state,
                         enum MHD_RequestTerminationCode how)
{
    (void)state;
    (void)how;
    falls_silent(arg, connection_fd(c)); /* another request can follow */
}

static enum MHD_Result serve_request(void *arg, struct MHD_Connection *c, const char *url,
                                     const char *method, const char *version, const char *upload,
                                     size_t *upload_len, void **state)
{
    struct hl_metrics *m = arg;
    unsigned code = MHD_HTTP_NOT_FOUND;
    (void)version;
    (void)upload;
    (void)state;
    client_speaks(m, connection_fd(c));
    if (*upload_len > 0) {
        *upload_len = 0; /* discarded; the method is refused in the end */
        return MHD_YES;
    }
    struct hl_buf text = HL_BUF(HL_METRICS_TEXT), health = HL_BUF(HL_METRICS_TEXT);
    bool get =
        strcmp(method, MHD_HTTP_METHOD_GET) == 0 || strcmp(method, MHD_HTTP_METHOD_HEAD) == 0;
    if (get && strcmp(url, "/metrics") == 0)
        return serve_metrics(m, c);
    if (!get)
        code = MHD_HTTP_METHOD_NOT_ALLOWED;
    else if (strcmp(url, "/healthz") == 0)
        code = ask_loop(m, true, &health) ? MHD_HTTP_OK : MHD_HTTP_SERVICE_UNAVAILABLE;
    (void)hl_buf_printf(&text, "%s\n",
                        code == MHD_HTTP_OK                    ? "ok"
                        : code == MHD_HTTP_SERVICE_UNAVAILABLE ? "the daemon's loop does not answer"
                        : code == MHD_HTTP_METHOD_NOT_ALLOWED
                            ? "only GET"
                            : "only /metrics and /healthz are served");
    if (health.len > 0)
        (void)hl_buf_append(&text, health.data, health.len);
    hl_buf_fini(&health);
    return send_reply(c, code, "text/plain; charset=utf-8", &text);
}

/* ---- start and stop -------------------------------------------------------------------------- */

static int open_socket(const struct addrinfo *ai)
{
    int one = 1;
    int fd = socket(ai->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return -1;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
    if (bind(fd, ai->ai_addr, ai->ai_addrlen) == 0 && listen(fd, BACKLOG) == 0)
        return fd;
    int err = errno;
    close(fd);
    errno = err;
    return -1;
}

static unsigned port_of(int fd)
{
    struct sockaddr_storage sa;
    socklen_t len = sizeof(sa);
    char port[8];
    uint64_t number;
    if (getsockname(fd, (struct sockaddr *)&sa, &len) != 0 ||
        getnameinfo((struct sockaddr *)&sa, len, NULL, 0, port, sizeof(port), NI_NUMERICSERV) != 0)
        return 0;
    return hl_parse_number(port, UINT16_MAX, &number) ? (unsigned)number : 0;
}

static hl_status listen_on(struct hl_metrics *m, int *out)
{
    char port[8];
    struct hl_host_port x;
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE}, *list;
    const char *where = m->opts.listen;
    hl_status st = hl_host_port_split(where, &x);
    if (st != HL_OK)
        return hl_fail_prefix(st, "metrics: ");
    snprintf(port, sizeof(port), "%u", x.port);
    int rc = getaddrinfo(x.host, port, &hints, &list);
    if (rc != 0)
        return hl_fail(HL_EINVAL, "metrics on \"%s\": %s", where, gai_strerror(rc));
    int fd = -1;
    for (const struct addrinfo *ai = list; ai != NULL && fd < 0; ai = ai->ai_next)
        fd = open_socket(ai);
    int err = errno;
    freeaddrinfo(list);
    errno = err;
    if (fd < 0)
        return hl_fail(err == EADDRINUSE ? HL_EBUSY : HL_EIO, "metrics on %s: %m", where);
    hl_host_port_format(x.host, port_of(fd), m->address);
    *out = fd;
    return HL_OK;
}

static void metrics_free(struct hl_metrics *m)
{
    pthread_mutex_destroy(&m->lock);
    free(m);
}

hl_status hl_metrics_start(const struct hl_metrics_opts *opts, struct hl_metrics **out)
{
    if (opts->listen[0] == '\0') {
        *out = NULL;
        return HL_OK;
    }
    struct hl_metrics *m = calloc(1, sizeof(*m));
    if (m == NULL)
        return hl_fail(HL_ENOMEM, "out of memory allocating the metrics server on %s",
                       opts->listen);
    m->opts = *opts;
    if (m->opts.deadline_ms <= 0)
        m->opts.deadline_ms = DEADLINE_MS;
    pthread_mutex_init(&m->lock, NULL);
    int fd;
    hl_status st = listen_on(m, &fd);
    if (st != HL_OK) {
        metrics_free(m);
        return st;
    }
    m->http = MHD_start_daemon(MHD_USE_INTERNAL_POLLING_THREAD | MHD_USE_THREAD_PER_CONNECTION |
                                   MHD_USE_POLL | MHD_USE_ITC,
                               0, NULL, NULL, serve_request, m, MHD_OPTION_LISTEN_SOCKET, fd,
                               MHD_OPTION_CONNECTION_LIMIT, (unsigned)HL_METRICS_CONNECTIONS,
                               MHD_OPTION_CONNECTION_TIMEOUT, (unsigned)HL_METRICS_IDLE_S,
                               MHD_OPTION_NOTIFY_CONNECTION, on_connection, m,
                               MHD_OPTION_NOTIFY_COMPLETED, on_completed, m,
                               MHD_OPTION_CONNECTION_MEMORY_LIMIT, MEMORY, MHD_OPTION_END);
    if (m->http == NULL) {
        close(fd);
        metrics_free(m);
        return hl_fail(HL_EIO, "metrics on %s: its threads can't be started: %m", opts->listen);
    }
    *out = m;
    return HL_OK;
}

const char *hl_metrics_address(const struct hl_metrics *m)
{
    return m != NULL ? m->address : "";
}

/* The connections' threads end within the deadline of a question, which is then abandoned. */
void hl_metrics_stop(struct hl_metrics *m)
{
    if (m == NULL)
        return;
    MHD_stop_daemon(m->http);
    metrics_free(m);
}
