/* The frame of a daemon, around a service that only looks at its process. */
#include "support/test.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "program/daemon.h"

/* Writes up to the limit of a file's size and once more. */
static hl_status write_beyond_limit(void *arg, struct program_daemon *d,
                                    struct hl_api_daemon_ready *ready)
{
    static const char block[4096];
    const struct rlimit limit = {sizeof(block), sizeof(block)};
    char path[] = "/tmp/helios-test-daemon-XXXXXX";
    (void)arg, (void)d, (void)ready;
    int fd = mkstemp(path);
    unlink(path);
    if (fd < 0 || setrlimit(RLIMIT_FSIZE, &limit) != 0 ||
        write(fd, block, sizeof(block)) != (ssize_t)sizeof(block))
        return hl_fail(HL_EIO, "no file of %zu bytes: %m", sizeof(block));
    ssize_t more = write(fd, block, sizeof(block));
    int err = errno;
    close(fd);
    return more < 0 && err == EFBIG ? HL_ECANCELED
                                    : hl_fail(HL_EIO, "write: %zd %s", more, strerror(err));
}

static bool stop_service(void *arg, struct program_daemon *d, bool told)
{
    (void)arg, (void)d, (void)told;
    return true;
}

/* As in a process that was started with the signal's default. */
static int run_daemon(void)
{
    char name[] = "helios-test";
    char *argv[] = {name, NULL};
    const struct program_service service = {.program = HL_CONTROLLER,
                                            .name = "helios-test",
                                            .log_name = "test",
                                            .start = write_beyond_limit,
                                            .stop = stop_service};
    signal(SIGXFSZ, SIG_DFL);
    return program_daemon_run(&service, NULL, 1, argv);
}

TEST(a_file_at_its_size_limit_is_an_error_and_no_end)
{
    int status;
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0)
        _exit(run_daemon());
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
}
