/* A real helios-l3d with a pool of its own, for the tests of libhelios: started, killed and started
 * again on the same pool and port. */
#ifndef TESTS_INTEGRATION_CLIENT_WORLD_H
#define TESTS_INTEGRATION_CLIENT_WORLD_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <jansson.h>

#include "helios/helios.h"
#include "support/bytes.h"

#define MIB       ((size_t)1 << 20)
#define SKIP_CODE 77

struct world {
    pid_t pid;
    char dir[64], pool[96], socket[96], ready[96], listen[64], address[64];
    const char *size;
};

static void world_program(char *path, size_t cap)
{
    const char *build = getenv("HELIOS_BUILD");
    snprintf(path, cap, "%s/bin/helios-l3d", build != NULL ? build : "build");
}

static void nap_ms(long ms)
{
    nanosleep(&(struct timespec){.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000}, NULL);
}

static double now_s(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (double)ts.tv_sec + (double)ts.tv_nsec / 1e9;
}

/* Starts the daemon and returns at once. */
static void world_launch(struct world *w)
{
    char program[512];
    world_program(program, sizeof(program));
    unlink(w->ready);
    w->pid = fork();
    assert_true(w->pid >= 0);
    if (w->pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL); /* a test that crashes leaves no daemon */
        execl(program, program, "--pool", w->pool, "--size", w->size, "--socket", w->socket,
              "--listen", w->listen, "--data-listen", "127.0.0.1:0", "--quarantine", "100ms",
              "--ready-file", w->ready, "--log-level", "error", (char *)NULL);
        _exit(127);
    }
}

static void world_wait(struct world *w)
{
    double end = now_s() + 30;
    json_t *doc = NULL;
    while (doc == NULL) {
        assert_int_equal(waitpid(w->pid, NULL, WNOHANG), 0);
        assert_true(now_s() < end);
        doc = json_load_file(w->ready, 0, NULL);
        if (doc == NULL)
            nap_ms(5);
    }
    snprintf(w->address, sizeof(w->address), "%s",
             json_string_value(json_object_get(doc, "address")));
    /* The next start takes the same port: clients remember it. */
    snprintf(w->listen, sizeof(w->listen), "%s", w->address);
    json_decref(doc);
}

static void world_start(struct world *w, const char *size)
{
    *w = (struct world){.size = size};
    snprintf(w->dir, sizeof(w->dir), "/tmp/helios-test-client-%d-XXXXXX", (int)getpid());
    assert_non_null(mkdtemp(w->dir));
    snprintf(w->pool, sizeof(w->pool), "/dev/shm/%s.pool", strrchr(w->dir, '/') + 1);
    snprintf(w->socket, sizeof(w->socket), "%s/l3.sock", w->dir);
    snprintf(w->ready, sizeof(w->ready), "%s/ready.json", w->dir);
    snprintf(w->listen, sizeof(w->listen), "127.0.0.1:0");
    world_launch(w);
    world_wait(w);
}

static void world_kill(struct world *w)
{
    if (w->pid > 0) {
        kill(w->pid, SIGKILL);
        waitpid(w->pid, NULL, 0);
    }
    w->pid = 0;
}

static void world_end(struct world *w)
{
    world_kill(w);
    unlink(w->pool);
    unlink(w->socket);
    unlink(w->ready);
    rmdir(w->dir);
}

static inline helios_client *world_client(const struct world *w, const char *path, int timeout_ms,
                                          int retries)
{
    helios_client *c = NULL;
    helios_options o = {HELIOS_OPTIONS_INIT, .controller = "",         .l3 = w->address,
                        .path = path,        .timeout_ms = timeout_ms, .retries = retries};
    if (helios_open(&o, &c) != HELIOS_OK)
        fail_msg("helios_open: %s", helios_last_error());
    return c;
}

/* Change one byte of the first place in the pool's file where `mark` stands; returns its offset in
 * the file. */
static inline off_t world_flip(const struct world *w, const void *mark, size_t len)
{
    struct stat sb;
    int fd = open(w->pool, O_RDWR);
    assert_true(fd >= 0 && fstat(fd, &sb) == 0);
    unsigned char *p = mmap(NULL, (size_t)sb.st_size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    assert_true(p != MAP_FAILED);
    unsigned char *at = memmem(p, (size_t)sb.st_size, mark, len);
    assert_non_null(at);
    off_t offset = at - p;
    *at ^= 0x40;
    munmap(p, (size_t)sb.st_size);
    close(fd);
    return offset;
}

static inline void world_flip_at(const struct world *w, off_t offset)
{
    unsigned char byte;
    int fd = open(w->pool, O_RDWR);
    assert_true(fd >= 0 && pread(fd, &byte, 1, offset) == 1);
    byte ^= 0x40;
    assert_int_equal(pwrite(fd, &byte, 1, offset), 1);
    close(fd);
}

#endif
