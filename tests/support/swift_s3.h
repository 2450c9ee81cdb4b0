/* support/swift_s3.h - the S3 server of swift_s3.py, started by a test and ending with it.
 *
 * Owns:    the process and its directory, until swift_stop.
 * Threads: one.
 * Errors:  swift_start returns 77 if Swift is not installed (it has printed why), other than 0 if
 *          it does not come up.
 * Units:   seconds.
 * Limits:  one at a time.
 */
#ifndef TESTS_SUPPORT_SWIFT_S3_H
#define TESTS_SUPPORT_SWIFT_S3_H

#include <arpa/inet.h>
#include <jansson.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "os/file.h"

struct swift {
    pid_t pid;
    int port_holder; /* socket that keeps the port of a killed server from others; -1 = none */
    char dir[64], port[16], endpoint[64], bucket[64], access_key[64], secret_key[64];
};

/* port "" = any */
static inline void swift_launch(struct swift *s)
{
    const char *source = getenv("HELIOS_SOURCE");
    char script[512];
    snprintf(script, sizeof(script), "%s/tests/support/swift_s3.py", source != NULL ? source : ".");
    s->pid = fork();
    if (s->pid == 0) {
        execl("/usr/bin/python3", "/usr/bin/python3", script, s->dir,
              s->port[0] != '\0' ? s->port : NULL, NULL);
        _exit(77);
    }
}

static inline int swift_wait(struct swift *s)
{
    char ready[96];
    int status;
    json_t *doc = NULL;
    snprintf(ready, sizeof(ready), "%s/ready.json", s->dir);
    for (int i = 0; i < 3000 && doc == NULL; i++) {
        if (waitpid(s->pid, &status, WNOHANG) == s->pid)
            return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
        poll(NULL, 0, 10);
        doc = json_load_file(ready, 0, NULL);
    }
    if (doc == NULL)
        return 1;
    const char *names[] = {"endpoint", "bucket", "access_key", "secret_key"};
    char *to[] = {s->endpoint, s->bucket, s->access_key, s->secret_key};
    for (int i = 0; i < 4; i++)
        snprintf(to[i], 64, "%s", json_string_value(json_object_get(doc, names[i])));
    json_decref(doc);
    unlink(ready);
    snprintf(s->port, sizeof(s->port), "%s", strrchr(s->endpoint, ':') + 1);
    setenv("AWS_ACCESS_KEY_ID", s->access_key, 1);
    setenv("AWS_SECRET_ACCESS_KEY", s->secret_key, 1);
    unsetenv("AWS_SESSION_TOKEN");
    return 0;
}

/* Binds the port without listening: connections are refused, and only a server with SO_REUSEADDR
 * can listen there. Returns -1 if another process was faster. */
static inline int swift_hold_port(const char *port)
{
    const struct sockaddr_in at = {.sin_family = AF_INET,
                                   .sin_port = htons((uint16_t)strtoul(port, NULL, 10)),
                                   .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int one = 1, fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd >= 0 && (setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one)) != 0 ||
                    bind(fd, (const struct sockaddr *)&at, sizeof(at)) != 0)) {
        close(fd);
        return -1;
    }
    return fd;
}

static inline void swift_kill(struct swift *s)
{
    if (s->pid <= 0)
        return;
    kill(s->pid, SIGKILL);
    waitpid(s->pid, NULL, 0);
    s->pid = 0;
    if (s->port_holder < 0 && s->port[0] != '\0')
        s->port_holder = swift_hold_port(s->port);
}

static inline void swift_stop(struct swift *s)
{
    swift_kill(s);
    if (s->port_holder >= 0)
        close(s->port_holder);
    s->port_holder = -1;
    if (s->dir[0] != '\0' && hl_dir_remove(s->dir) != HL_OK)
        fprintf(stderr, "%s stays: %s\n", s->dir, hl_error_text());
}

static inline int swift_start(struct swift *s)
{
    *s = (struct swift){.port_holder = -1};
    /* /var/tmp: not every /tmp has extended attributes */
    snprintf(s->dir, sizeof(s->dir), "/var/tmp/helios-test-swift-XXXXXX");
    if (mkdtemp(s->dir) == NULL)
        return 1;
    swift_launch(s);
    int rc = swift_wait(s);
    if (rc != 0)
        swift_stop(s);
    return rc;
}

#endif
