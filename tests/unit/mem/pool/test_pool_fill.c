#include "support/test.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "mem/pool/fill.h"

static char path[] = "/tmp/helios-fill-XXXXXX";

/* Runs a process that gets signal `number` while it fills the file; returns how it ended. */
static int end_while_filling(bool fresh, int number)
{
    snprintf(path, sizeof(path), "/tmp/helios-fill-XXXXXX");
    int fd = mkstemp(path), how = 0;
    assert_true(fd >= 0);
    pid_t pid = fork();
    if (pid == 0) {
        struct hl_pool_fill fill;
        hl_pool_fill_begin(&fill, path, fd, 1 << 20, fresh);
        raise(number);
        _exit(7); /* not reached: the signal ends it */
    }
    close(fd);
    assert_int_equal(waitpid(pid, &how, 0), pid);
    return how;
}

TEST(a_signal_ends_the_process_and_takes_the_half_made_file_along)
{
    static const int numbers[] = {SIGTERM, SIGINT};
    for (size_t i = 0; i < 2; i++) {
        int how = end_while_filling(true, numbers[i]);
        assert_true(WIFSIGNALED(how) && WTERMSIG(how) == numbers[i]);
        assert_int_equal(access(path, F_OK), -1);
    }
}

TEST(a_pool_that_was_there_stays)
{
    int how = end_while_filling(false, SIGTERM);
    assert_true(WIFSIGNALED(how) && WTERMSIG(how) == SIGTERM);
    assert_int_equal(unlink(path), 0);
}

static int heard;

static void hear(int number)
{
    heard = number;
}

TEST(afterwards_signals_go_where_they_went_before)
{
    struct hl_pool_fill fill;
    struct sigaction on = {.sa_handler = hear}, old;
    snprintf(path, sizeof(path), "/tmp/helios-fill-XXXXXX");
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    sigaction(SIGTERM, &on, &old);
    hl_pool_fill_begin(&fill, path, fd, 1 << 20, true);
    hl_pool_fill_end(&fill);
    raise(SIGTERM);
    assert_int_equal(heard, SIGTERM);
    sigaction(SIGTERM, &old, NULL);
    assert_int_equal(unlink(path), 0); /* it was not removed */
    close(fd);
}
