/* A server that sends the answers that the test has prepared, one per request. */
#ifndef TESTS_UNIT_MEM_S3_SERVER_H
#define TESTS_UNIT_MEM_S3_SERVER_H

#include <arpa/inet.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <sys/socket.h>
#include <unistd.h>

#include "unit/mem/archive/archive_rig.h"

#define ANSWERS_MAX 16
#define REQUEST_MAX 65536

struct answer {
    const char *head;  /* "200 OK"; NULL = close without an answer */
    const char *extra; /* further headers */
    const char *body;
    size_t body_len;
    size_t cut; /* send so many bytes of the body, then close; 0 = all */
    bool mute;  /* send nothing and keep the connection open */
};

struct server {
    int fd;
    char endpoint[64];
    struct answer answers[ANSWERS_MAX];
    unsigned count;
    atomic_uint served;
    char requests[ANSWERS_MAX][2048]; /* the first bytes of each */
    pthread_t thread;
    int held[ANSWERS_MAX];
    unsigned held_count;
};

static inline size_t content_length(const char *head)
{
    const char *at = strcasestr(head, "\r\ncontent-length:");
    return at != NULL ? strtoul(at + 17, NULL, 10) : 0;
}

/* Reads head and body of one request. False: the client has gone. */
static inline bool read_request(int fd, char *buf)
{
    size_t len = 0, body = 0;
    char *end = NULL;
    for (;;) {
        if (end != NULL && len >= (size_t)(end + 4 - buf) + body)
            return true;
        if (len >= REQUEST_MAX - 1)
            return false;
        ssize_t n = recv(fd, buf + len, REQUEST_MAX - 1 - len, 0);
        if (n <= 0)
            return false;
        len += (size_t)n;
        buf[len] = '\0';
        if (end == NULL && (end = strstr(buf, "\r\n\r\n")) != NULL)
            body = content_length(buf);
    }
}

static inline void send_answer(int fd, const struct answer *a, bool to_head)
{
    char head[1024];
    size_t len = a->body != NULL ? (a->body_len > 0 ? a->body_len : strlen(a->body)) : 0;
    int n = snprintf(head, sizeof(head), "HTTP/1.1 %s\r\n%sContent-Length: %zu\r\n\r\n", a->head,
                     a->extra != NULL ? a->extra : "", len);
    (void)!send(fd, head, (size_t)n, MSG_NOSIGNAL);
    if (len > 0 && !to_head)
        (void)!send(fd, a->body, a->cut > 0 ? a->cut : len, MSG_NOSIGNAL);
}

static inline void *server_main(void *arg)
{
    struct server *s = arg;
    char *buf = malloc(REQUEST_MAX);
    int fd;
    while ((fd = accept(s->fd, NULL, NULL)) >= 0) {
        while (read_request(fd, buf)) {
            unsigned i = atomic_load(&s->served);
            if (i >= s->count) { /* the test has prepared no answer for this one */
                send_answer(fd,
                            &(struct answer){.head = "400 Bad", .body = "<Code>Unplanned</Code>"},
                            false);
                continue;
            }
            snprintf(s->requests[i], sizeof(s->requests[i]), "%.2000s", buf);
            const struct answer *a = &s->answers[i];
            atomic_store(&s->served, i + 1);
            if (a->mute) {
                s->held[s->held_count++] = fd;
                fd = -1;
                break;
            }
            if (a->head == NULL)
                break;
            send_answer(fd, a, strncmp(buf, "HEAD", 4) == 0);
            if (a->cut > 0)
                break;
        }
        if (fd >= 0)
            close(fd);
    }
    free(buf);
    return NULL;
}

static inline void server_start(struct server *s)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    socklen_t len = sizeof(at);
    *s = (struct server){.fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)};
    assert_true(s->fd >= 0);
    assert_int_equal(bind(s->fd, (struct sockaddr *)&at, sizeof(at)), 0);
    assert_int_equal(listen(s->fd, 16), 0);
    assert_int_equal(getsockname(s->fd, (struct sockaddr *)&at, &len), 0);
    snprintf(s->endpoint, sizeof(s->endpoint), "http://127.0.0.1:%d", ntohs(at.sin_port));
}

static inline void say(struct server *s, struct answer a)
{
    assert_true(s->count < ANSWERS_MAX);
    s->answers[s->count++] = a;
}

static inline void server_run(struct server *s)
{
    assert_int_equal(pthread_create(&s->thread, NULL, server_main, s), 0);
}

/* Checks that every prepared answer was requested. */
static inline void server_stop(struct server *s)
{
    shutdown(s->fd, SHUT_RDWR);
    pthread_join(s->thread, NULL);
    close(s->fd);
    while (s->held_count > 0)
        close(s->held[--s->held_count]);
    assert_int_equal(atomic_load(&s->served), s->count);
}

#endif
