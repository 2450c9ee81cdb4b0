#include "support/test.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include "os/file.h"
#include "os/process.h"

static char *const no_env[] = {NULL};

TEST(a_list_of_cpus_is_read_and_written_back_shortest)
{
    struct hl_cpuset set;
    char text[64];
    assert_int_equal(hl_cpuset_parse(" 8,0-2, 3\n", &set), HL_OK);
    assert_int_equal(hl_cpuset_count(&set), 5);
    hl_cpuset_format(&set, text, sizeof(text));
    assert_string_equal(text, "0-3,8");
    assert_int_equal(hl_cpuset_parse("", &set), HL_OK);
    assert_int_equal(hl_cpuset_count(&set), 0);
    hl_cpuset_format(&set, text, sizeof(text));
    assert_string_equal(text, "");
    assert_int_equal(hl_cpuset_parse("0,2,4,6,8", &set), HL_OK);
    hl_cpuset_format(&set, text, 10);
    assert_string_equal(text, "0,2,4,...");
}

TEST(a_list_of_cpus_that_is_none_is_refused)
{
    static const char *const bad[] = {"a",  "1-",   "3-1", "1,,2", "1,",
                                      "-1", "4096", "1 2", "0x1",  "99999999999999999999"};
    struct hl_cpuset set;
    for (size_t i = 0; i < HL_ARRAY_LEN(bad); i++)
        assert_int_equal(hl_cpuset_parse(bad[i], &set), HL_EINVAL);
    assert_int_equal(hl_cpuset_parse("4095", &set), HL_OK);
}

TEST(a_process_gets_exactly_the_descriptors_it_was_given)
{
    int ends[2];
    pid_t pid;
    int how;
    char text[256] = "";
    assert_int_equal(pipe2(ends, O_CLOEXEC), 0);
    const char *const argv[] = {"sh", "-c", "echo hi >&4; ls /proc/self/fd | tr '\\n' ' '", NULL};
    int stray = open("/dev/null", O_RDONLY); /* not close-on-exec */
    int pass[] = {stray, ends[1]};
    struct hl_spawn spawn = {.program = "/bin/sh",
                             .argv = (char *const *)argv,
                             .env = no_env,
                             .std = {-1, ends[1], -1},
                             .pass = pass,
                             .pass_count = 2};
    assert_int_equal(hl_process_spawn(&spawn, &pid), HL_OK);
    close(ends[1]);
    close(stray);
    assert_int_equal(waitpid(pid, &how, 0), pid);
    assert_int_equal(how, 0);
    ssize_t n, len = 0;
    while ((n = read(ends[0], text + len, sizeof(text) - 1 - (size_t)len)) > 0)
        len += n;
    close(ends[0]);
    /* 5 is ls reading the directory */
    assert_string_equal(text, "hi\n0 1 2 3 4 5 ");
}

TEST(a_child_gets_the_file_limit_from_before_it_was_raised)
{
    struct rlimit first, now;
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &first), 0);
    if (first.rlim_max <= 200)
        TEST_SKIP("at most 200 descriptors are allowed here");
    struct rlimit low = {200, first.rlim_max};
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &low), 0);
    hl_process_raise_files();
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &now), 0);
    assert_int_equal(now.rlim_cur, first.rlim_max);
    int ends[2];
    char text[32] = "";
    const char *const argv[] = {"sh", "-c", "ulimit -n", NULL};
    assert_int_equal(pipe2(ends, O_CLOEXEC), 0);
    pid_t pid;
    assert_int_equal(hl_process_spawn(&(struct hl_spawn){.program = "/bin/sh",
                                                         .argv = (char *const *)argv,
                                                         .env = no_env,
                                                         .std = {-1, ends[1], -1}},
                                      &pid),
                     HL_OK);
    close(ends[1]);
    assert_true(read(ends[0], text, sizeof(text) - 1) > 0);
    close(ends[0]);
    assert_int_equal(waitpid(pid, NULL, 0), pid);
    assert_string_equal(text, "200\n");
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &first), 0);
}

TEST(a_failed_exec_says_why)
{
    pid_t pid = 0;
    const char *const argv[] = {"x", NULL};
    struct hl_spawn spawn = {
        .program = "/no/such", .argv = (char *const *)argv, .env = no_env, .std = {-1, -1, -1}};
    assert_int_equal(hl_process_spawn(&spawn, &pid), HL_ENOENT);
    assert_string_equal(hl_error_text(), "exec /no/such: No such file or directory");
    spawn.program = "/etc/passwd";
    assert_int_equal(hl_process_spawn(&spawn, &pid), HL_EPERM);
    assert_string_equal(hl_error_text(), "exec /etc/passwd: Permission denied");
    spawn.program = "/bin/true";
    spawn.workdir = "/no/dir";
    assert_int_equal(hl_process_spawn(&spawn, &pid), HL_ENOENT);
    assert_string_equal(hl_error_text(),
                        "exec /bin/true: working directory /no/dir: No such file or directory");
    assert_int_equal(pid, 0);
    assert_int_equal(waitpid(-1, NULL, WNOHANG), -1); /* nothing left to reap */
}

TEST(a_process_is_known_by_its_start_time)
{
    pid_t pid;
    int fd = -1, how;
    struct hl_process p, other;
    const char *const argv[] = {"sleep", "1000", NULL};
    struct hl_spawn spawn = {.program = "/bin/sleep",
                             .argv = (char *const *)argv,
                             .env = no_env,
                             .std = {-1, -1, -1},
                             .oom_score_adj = 500,
                             .die_with_parent = true};
    assert_int_equal(hl_process_spawn(&spawn, &pid), HL_OK);
    assert_int_equal(hl_process_identify(pid, &p), HL_OK);
    other = p;
    other.start++;
    assert_int_equal(hl_process_open(other, &fd), HL_ENOENT);
    assert_int_equal(hl_process_open(p, &fd), HL_OK);
    assert_int_equal(hl_process_wait(fd, 0), 0);

    pid_t children[4];
    assert_int_equal(hl_process_children(getpid(), children, 4), 1);
    assert_int_equal(children[0], pid);
    char path[64];
    struct hl_buf text = HL_BUF(64);
    snprintf(path, sizeof(path), "/proc/%d/oom_score_adj", (int)pid);
    assert_int_equal(hl_file_read(path, &text), HL_OK);
    assert_string_equal(text.data, "500\n");
    hl_buf_fini(&text);
    assert_int_equal(getsid(pid), pid);

    assert_int_equal(hl_process_signal(fd, SIGKILL), HL_OK);
    assert_int_equal(hl_process_wait(fd, 5000), 1);
    int zombie = -1;
    assert_int_equal(hl_process_open(p, &zombie), HL_ENOENT); /* ended, though not reaped */
    assert_int_equal(waitpid(pid, &how, 0), pid);
    assert_int_equal(WTERMSIG(how), SIGKILL);
    assert_int_equal(hl_process_signal(fd, SIGKILL), HL_ENOENT);
    close(fd);
    assert_int_equal(hl_process_open(p, &fd), HL_ENOENT);
}

TEST(a_process_that_a_signal_has_stopped_is_told_from_one_that_runs)
{
    int how;
    struct hl_process p, other;
    pid_t pid = fork();
    if (pid == 0)
        for (;;)
            pause();
    assert_int_equal(hl_process_identify(pid, &p), HL_OK);
    other = p;
    other.start++;
    assert_false(hl_process_stopped(p));
    kill(pid, SIGSTOP);
    assert_int_equal(waitpid(pid, &how, WUNTRACED), pid); /* until it has stopped */
    assert_true(hl_process_stopped(p));
    assert_false(hl_process_stopped(other));
    kill(pid, SIGKILL);
    assert_int_equal(waitpid(pid, &how, 0), pid);
    assert_false(hl_process_stopped(p));
}

static int enough[2]; /* a pipe */

static void on_alarm(int signum)
{
    static int alarms;
    (void)signum;
    if (++alarms == 5)
        (void)!write(enough[1], "", 1);
}

TEST(waiting_is_not_cut_short_by_signals)
{
    int fd = -1;
    struct hl_process p;
    struct sigaction act = {.sa_handler = on_alarm}, old;
    struct itimerval often = {{0, 5000}, {0, 5000}}, never = {{0, 0}, {0, 0}};
    char byte;
    assert_int_equal(pipe(enough), 0);
    pid_t pid = fork();
    if (pid == 0) /* it ends when the wait was interrupted five times */
        _exit(read(enough[0], &byte, 1) != 1);
    assert_int_equal(hl_process_identify(pid, &p), HL_OK);
    assert_int_equal(hl_process_open(p, &fd), HL_OK);
    sigaction(SIGALRM, &act, &old);
    setitimer(ITIMER_REAL, &often, NULL);
    bool ended = hl_process_wait(fd, 20000);
    setitimer(ITIMER_REAL, &never, NULL);
    sigaction(SIGALRM, &old, NULL);
    assert_int_equal(ended, 1);
    assert_int_equal(waitpid(pid, NULL, 0), pid);
    close(fd);
    close(enough[0]);
    close(enough[1]);
}

TEST(affinity_is_what_the_kernel_then_reports)
{
    struct hl_cpuset allowed, one = {{0}}, mems, got;
    assert_int_equal(hl_process_allowed(getpid(), &allowed, NULL), HL_OK);
    unsigned cpu = 0;
    while (!hl_cpuset_has(&allowed, cpu))
        cpu++;
    hl_cpuset_add(&one, cpu);
    hl_cpuset_mems(&one, &mems);
    assert_true(hl_cpuset_count(&mems) >= 1);
    pid_t pid;
    const char *const argv[] = {"sleep", "1000", NULL};
    struct hl_spawn spawn = {.program = "/bin/sleep",
                             .argv = (char *const *)argv,
                             .env = no_env,
                             .std = {-1, -1, -1},
                             .cpus = &one,
                             .mems = &mems,
                             .die_with_parent = true};
    assert_int_equal(hl_process_spawn(&spawn, &pid), HL_OK);
    hl_status st = hl_process_allowed(pid, &got, NULL);
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
    assert_int_equal(st, HL_OK);
    assert_true(hl_cpuset_equal(&got, &one));
}

TEST(a_program_is_found_along_a_path)
{
    char out[256];
    assert_int_equal(hl_process_find("sh", "/nowhere:/bin", out, sizeof(out)), HL_OK);
    assert_string_equal(out, "/bin/sh");
    assert_int_equal(hl_process_find("./x", "/bin", out, sizeof(out)), HL_OK);
    assert_string_equal(out, "./x");
    assert_int_equal(hl_process_find("sh", "/nowhere", out, sizeof(out)), HL_ENOENT);
    assert_int_equal(hl_process_find("", "/bin", out, sizeof(out)), HL_ENOENT);
}
