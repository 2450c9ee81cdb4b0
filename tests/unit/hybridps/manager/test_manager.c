/* The manager with real processes: they are killed, they race, and the sums must stay right. */
#include "support/test.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/status.h"
#include "helios/helios.h"
#include "helios/hybridps.h"
#include "hybridps/manager/table.h"

#define HOST     HYBRIDPS_MANAGER_HOST
#define CHILDREN 8
#define ROUNDS   10000
#define CHILD_MS 300000 /* for what hangs, not for what is slow */
#define KILLED   24

static char name[64];

static hybridps_manager *open_with(uint64_t host, const uint64_t *devices, uint32_t count)
{
    hybridps_manager_options o = {
        HYBRIDPS_MANAGER_OPTIONS_INIT, .name = name,     .host_bytes = host,
        .device_bytes = devices,       .devices = count, .lock_ms = 20000};
    hybridps_manager *m = NULL;
    if (hybridps_manager_open(&o, &m) != 0) {
        fprintf(stderr, "%s\n", hl_error_text());
        return NULL;
    }
    return m;
}

static hybridps_manager *join(void)
{
    return open_with(0, NULL, 0);
}

static hybridps_manager_info_t info(hybridps_manager *m, int device)
{
    hybridps_manager_info_t i = {HYBRIDPS_MANAGER_INFO_INIT};
    assert_int_equal(hybridps_manager_info(m, device, &i), 0);
    return i;
}

static uint64_t used(hybridps_manager *m, int device)
{
    return info(m, device).used;
}

static int exists(void)
{
    char path[96];
    snprintf(path, sizeof(path), "/dev/shm/%s", name);
    return access(path, F_OK) == 0;
}

/* A child that runs `fn` and exits with its result; it owns the ends of two pipes. */
struct child {
    pid_t pid;
    int say, hear; /* of the parent */
};

struct child_ends {
    int say, hear;
    int index;
};

static struct child start(int (*fn)(struct child_ends *e), int index)
{
    int up[2], down[2];
    assert_int_equal(pipe2(up, O_CLOEXEC), 0);
    assert_int_equal(pipe2(down, O_CLOEXEC), 0);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        struct child_ends e = {.say = up[1], .hear = down[0], .index = index};
        close(up[0]);
        close(down[1]);
        alarm(CHILD_MS / 1000);
        _exit(fn(&e));
    }
    close(up[1]);
    close(down[0]);
    return (struct child){.pid = pid, .say = down[1], .hear = up[0]};
}

static int hear(int fd)
{
    struct pollfd p = {.fd = fd, .events = POLLIN};
    char c = 0;
    return poll(&p, 1, CHILD_MS) == 1 && read(fd, &c, 1) == 1 ? c : -1;
}

static void say(int fd, char c)
{
    assert_int_equal(write(fd, &c, 1), 1);
}

static int end(struct child *c)
{
    int status = -1;
    assert_int_equal(waitpid(c->pid, &status, 0), c->pid);
    close(c->say);
    close(c->hear);
    return status;
}

/* Killed but not reaped: a zombie. */
static void shoot(struct child *c)
{
    siginfo_t si;
    assert_int_equal(kill(c->pid, SIGKILL), 0);
    assert_int_equal(waitid(P_PID, (id_t)c->pid, &si, WEXITED | WNOWAIT), 0);
}

/* ---- the cases of HybridPS's own tests ---- */

static void take_room(hybridps_manager *m, uint64_t size, int refer, int expect)
{
    int device = -2;
    uint64_t ticket = 0;
    assert_int_equal(hybridps_manager_schedule(m, size, refer, &device, &ticket), 0);
    assert_int_equal(device, expect);
    assert_int_equal(hybridps_manager_add(m, device, size, ticket), 0);
}

TEST(test_chunks_of_20_go_to_the_host_then_to_the_device_then_nowhere)
{
    hybridps_manager *m = open_with(64, (uint64_t[]){32}, 1);
    int device = -2;
    uint64_t ticket = 0;
    take_room(m, 40, 0, HOST); /* a tensor of 40: a chunk of its own */
    take_room(m, 20, 0, HOST); /* 15: a chunk of 20 */
    assert_int_equal(used(m, HOST), 60);
    take_room(m, 20, 0, 0);
    assert_int_equal(hybridps_manager_schedule(m, 20, 0, &device, &ticket), HELIOS_ENOSPC);
    assert_non_null(strstr(hl_error_text(), "host has 4 B of 64 B"));
    assert_non_null(strstr(hl_error_text(), "device 0 has 12 B of 32 B"));
    assert_int_equal(used(m, HOST), 60);
    assert_int_equal(used(m, 0), 20);
    assert_int_equal(info(m, 0).reserved, 0);
    hybridps_manager_close(m);
}

TEST(test_chunks_of_40_move_from_host_to_device_one_after_the_other)
{
    hybridps_manager *m = open_with(200, (uint64_t[]){80}, 1);
    take_room(m, 40, 0, HOST); /* two tensors of 20 */
    take_room(m, 40, 0, HOST); /* the third one's chunk */
    for (uint64_t i = 1; i <= 2; i++) {
        assert_int_equal(hybridps_manager_add(m, 0, 40, 0), 0);
        assert_int_equal(hybridps_manager_remove(m, HOST, 40), 0);
        assert_int_equal(used(m, 0), 40 * i);
        assert_int_equal(used(m, HOST), 80 - 40 * i);
    }
    assert_int_equal(hybridps_manager_add(m, 0, 1, 0), HELIOS_ENOSPC);
    assert_int_equal(hybridps_manager_remove(m, 0, 80), 0);
    hybridps_manager_close(m);
}

static int add_as_rank(struct child_ends *e)
{
    hybridps_manager *m = join();
    uint64_t r = (uint64_t)e->index;
    if (m == NULL || hybridps_manager_add(m, e->index, (r + 1) * 10, 0) != 0 ||
        hybridps_manager_add(m, e->index, (r + 1) * 22, 0) != 0)
        return 1;
    say(e->say, 'a');
    if (hear(e->hear) != 'd' || hybridps_manager_remove(m, e->index, (r + 1) * 10) != 0)
        return 2;
    say(e->say, 'd');
    hear(e->hear);
    hybridps_manager_close(m);
    return 0;
}

TEST(test_two_ranks_see_one_table)
{
    hybridps_manager *m = open_with(1000, (uint64_t[]){100, 100}, 2);
    struct child c[2] = {start(add_as_rank, 0), start(add_as_rank, 1)};
    assert_int_equal(hear(c[0].hear), 'a');
    assert_int_equal(hear(c[1].hear), 'a');
    assert_int_equal(used(m, 0), 32);
    assert_int_equal(used(m, 1), 64);
    assert_int_equal(info(m, 0).mine, 0);
    assert_int_equal(info(m, 0).processes, 3);
    say(c[0].say, 'd');
    assert_int_equal(hear(c[0].hear), 'd');
    assert_int_equal(used(m, 0), 22);
    say(c[1].say, 'd');
    assert_int_equal(hear(c[1].hear), 'd');
    assert_int_equal(used(m, 1), 44);
    for (int i = 0; i < 2; i++) {
        say(c[i].say, 'e');
        assert_int_equal(end(&c[i]), 0);
        assert_int_equal(used(m, i), 0); /* closing released the rest */
    }
    hybridps_manager_close(m);
}

/* ---- rules ---- */

TEST(test_the_own_device_comes_before_the_others)
{
    hybridps_manager *m = open_with(10, (uint64_t[]){10, 10, 10}, 3);
    take_room(m, 10, 2, HOST);
    take_room(m, 10, 2, 2);
    take_room(m, 10, 2, 0);
    take_room(m, 10, HOST, 1);
    hybridps_manager_close(m);
}

TEST(test_each_rank_is_asked_for_its_part_of_what_is_too_much)
{
    uint64_t capacity[] = {1000, 1000};
    struct hl_manager_options o = {
        .name = name, .capacity = capacity, .devices = 2, .lock_ms = 20000};
    struct hl_manager_table a = {0}, b = {0};
    assert_int_equal(hl_manager_table_open(&o, &a), HL_OK);
    assert_int_equal(hl_manager_table_open(&o, &b), HL_OK);
    a.s->device[1].rows[a.row] = 600;
    b.s->device[1].rows[b.row] = 200;
    a.s->device[1].used = 800;
    assert_int_equal(hl_manager_excess(&a, 1), 0); /* nothing is asked */
    assert_true(hl_manager_part(&a, 1) == UINT64_MAX);
    hl_manager_ask(&a, 1, 400);
    assert_int_equal(hl_manager_excess(&a, 1), 300);
    assert_int_equal(hl_manager_excess(&b, 1), 100);
    assert_int_equal(hl_manager_part(&a, 1), 300);
    assert_int_equal(hl_manager_part(&b, 1), 100);
    assert_int_equal(hl_manager_excess(&a, 0), 0);
    hl_manager_ask(&a, 1, 900); /* of which 100 are free */
    assert_int_equal(hl_manager_excess(&a, 1), 0);
    assert_int_equal(hl_manager_part(&a, 1), 700);
    hl_manager_ask(&a, 1, UINT64_MAX);
    assert_int_equal(hl_manager_part(&a, 1), UINT64_MAX - 200);
    hl_manager_ask(&a, 1, 0);
    assert_int_equal(hl_manager_excess(&a, 1), 0);
    hl_manager_table_close(&b);
    hl_manager_table_close(&a);
}

TEST(test_a_ticket_keeps_its_room_until_it_is_used_or_cancelled)
{
    hybridps_manager *m = open_with(100, NULL, 0);
    int device;
    uint64_t a, b;
    assert_int_equal(hybridps_manager_schedule(m, 60, HOST, &device, &a), 0);
    assert_int_equal(info(m, HOST).reserved, 60);
    assert_int_equal(used(m, HOST), 0);
    assert_int_equal(hybridps_manager_schedule(m, 60, HOST, &device, &b), HELIOS_ENOSPC);
    assert_int_equal(hybridps_manager_add(m, HOST, 41, 0), HELIOS_ENOSPC);
    assert_int_equal(hybridps_manager_add(m, HOST, 59, a), HELIOS_EINVAL);
    assert_int_equal(info(m, HOST).reserved, 60);
    assert_int_equal(hybridps_manager_add(m, HOST, 60, a), 0);
    assert_int_equal(hybridps_manager_add(m, HOST, 60, a), HELIOS_ENOENT);
    assert_int_equal(hybridps_manager_cancel(m, a), HELIOS_ENOENT);
    assert_int_equal(used(m, HOST), 60);
    assert_int_equal(hybridps_manager_schedule(m, 40, HOST, &device, &b), 0);
    assert_int_equal(hybridps_manager_cancel(m, b), 0);
    assert_int_equal(hybridps_manager_cancel(m, b), HELIOS_ENOENT);
    assert_int_equal(hybridps_manager_cancel(m, 0), HELIOS_ENOENT);
    assert_int_equal(hybridps_manager_cancel(m, UINT64_MAX), HELIOS_ENOENT);
    assert_int_equal(info(m, HOST).reserved, 0);
    hybridps_manager_close(m);
}

TEST(test_tickets_without_end_are_refused)
{
    hybridps_manager *m = open_with(100000, NULL, 0);
    uint64_t ids[HL_MANAGER_TICKETS + 1];
    int device;
    for (int i = 0; i < HL_MANAGER_TICKETS; i++)
        assert_int_equal(hybridps_manager_schedule(m, 3, HOST, &device, &ids[i]), 0);
    assert_int_equal(hybridps_manager_schedule(m, 3, HOST, &device, &ids[HL_MANAGER_TICKETS]),
                     HELIOS_EBUSY);
    for (int i = 0; i < HL_MANAGER_TICKETS; i++)
        assert_int_equal(hybridps_manager_add(m, HOST, 3, ids[i]), 0);
    assert_int_equal(used(m, HOST), 3 * HL_MANAGER_TICKETS);
    hybridps_manager_close(m);
}

TEST(test_what_can_not_be_is_refused_and_changes_nothing)
{
    hybridps_manager *m = open_with(100, (uint64_t[]){50}, 1), *other = NULL;
    int device;
    uint64_t ticket;
    assert_int_equal(hybridps_manager_add(m, HOST, 30, 0), 0);
    assert_int_equal(hybridps_manager_remove(m, HOST, 31), HELIOS_EINVAL);
    assert_int_equal(hybridps_manager_remove(m, 0, 1), HELIOS_EINVAL);
    assert_int_equal(hybridps_manager_add(m, HOST, UINT64_MAX, 0), HELIOS_ENOSPC);
    assert_int_equal(hybridps_manager_add(m, 1, 1, 0), HELIOS_EINVAL);
    assert_int_equal(hybridps_manager_add(m, -2, 1, 0), HELIOS_EINVAL);
    assert_int_equal(hybridps_manager_schedule(m, 0, 0, &device, &ticket), HELIOS_EINVAL);
    assert_int_equal(hybridps_manager_schedule(m, 1, 1, &device, &ticket), HELIOS_EINVAL);
    assert_int_equal(used(m, HOST), 30);
    hybridps_manager_options o = {HYBRIDPS_MANAGER_OPTIONS_INIT, .name = name, .host_bytes = 101,
                                  .devices = 1};
    o.device_bytes = (uint64_t[]){50};
    assert_int_equal(hybridps_manager_open(&o, &other), HELIOS_ECONFLICT);
    o = (hybridps_manager_options){HYBRIDPS_MANAGER_OPTIONS_INIT, .name = "no/slash",
                                   .host_bytes = 1};
    assert_int_equal(hybridps_manager_open(&o, &other), HELIOS_EINVAL);
    o = (hybridps_manager_options){HYBRIDPS_MANAGER_OPTIONS_INIT,
                                   .name = "helios-test-nobody-made-it"};
    assert_int_equal(hybridps_manager_open(&o, &other), HELIOS_ENOENT);
    hybridps_manager_close(m);
}

TEST(test_a_size_that_was_not_set_is_refused)
{
    hybridps_manager *m = open_with(100, NULL, 0), *other = NULL;
    hybridps_manager_options o = {.name = name};
    hybridps_manager_info_t i = {0};
    assert_int_equal(hybridps_manager_open(&o, &other), HELIOS_EINVAL);
    assert_non_null(strstr(hl_error_text(), "sizeof(hybridps_manager_options)"));
    assert_int_equal(hybridps_manager_info(m, HOST, &i), HELIOS_EINVAL);
    assert_non_null(strstr(hl_error_text(), "sizeof(hybridps_manager_info_t)"));
    i.size = offsetof(hybridps_manager_info_t, used);
    i.used = 7;
    assert_int_equal(hybridps_manager_info(m, HOST, &i), HELIOS_OK);
    assert_int_equal(i.capacity, 100);
    assert_int_equal(i.used, 7);
    hybridps_manager_close(m);
}

TEST(test_the_last_one_takes_the_table_away)
{
    hybridps_manager *a = open_with(100, NULL, 0);
    hybridps_manager *b = join();
    assert_int_equal(hybridps_manager_add(a, HOST, 30, 0), 0);
    hybridps_manager_close(a);
    assert_true(exists());
    assert_int_equal(used(b, HOST), 0);
    hybridps_manager_close(b);
    assert_false(exists());
}

TEST(test_foreign_shared_memory_is_not_touched)
{
    hybridps_manager *m = NULL;
    hybridps_manager_options o = {HYBRIDPS_MANAGER_OPTIONS_INIT, .name = name, .host_bytes = 100};
    char path[96];
    snprintf(path, sizeof(path), "/%s", name);
    for (int whole = 0; whole < 2; whole++) {
        off_t size = whole ? (off_t)sizeof(struct hl_manager_shared) : 5;
        int fd = shm_open(path, O_RDWR | O_CREAT | O_EXCL, 0600);
        assert_true(fd >= 0);
        assert_int_equal(write(fd, "other", 5), 5);
        assert_int_equal(ftruncate(fd, size), 0);
        assert_int_equal(hybridps_manager_open(&o, &m), HELIOS_EPROTO);
        char text[5];
        assert_int_equal(pread(fd, text, 5, 0), 5);
        assert_memory_equal(text, "other", 5);
        assert_int_equal(lseek(fd, 0, SEEK_END), size);
        close(fd);
        assert_int_equal(shm_unlink(path), 0);
    }
}

TEST(test_a_number_of_devices_that_another_rank_wrote_leads_nowhere)
{
    hybridps_manager *m = open_with(100, NULL, 0);
    const uint32_t many = 1u << 30;
    int device;
    uint64_t ticket;
    char path[96];
    snprintf(path, sizeof(path), "/%s", name);
    int fd = shm_open(path, O_RDWR, 0);
    assert_int_equal(pwrite(fd, &many, sizeof(many), offsetof(struct hl_manager_shared, devices)),
                     sizeof(many));
    close(fd);
    assert_int_equal(hybridps_manager_remove(m, 1 << 20, 1), HELIOS_EINVAL);
    assert_int_equal(hybridps_manager_remove(m, INT32_MAX, 1), HELIOS_EINVAL);
    assert_int_equal(hybridps_manager_cancel(m, 200), HELIOS_ENOENT);
    assert_int_equal(hybridps_manager_schedule(m, 1000, HOST, &device, &ticket), HELIOS_ENOSPC);
    hybridps_manager_close(m);
}

static hybridps_manager *parents;

static int use_parents(struct child_ends *e)
{
    (void)e;
    int device;
    uint64_t ticket;
    hybridps_manager_info_t i = {HYBRIDPS_MANAGER_INFO_INIT};
    if (hybridps_manager_add(parents, HOST, 1, 0) != HELIOS_EPERM ||
        hybridps_manager_remove(parents, HOST, 1) != HELIOS_EPERM ||
        hybridps_manager_schedule(parents, 1, HOST, &device, &ticket) != HELIOS_EPERM ||
        hybridps_manager_info(parents, HOST, &i) != HELIOS_EPERM)
        return 1;
    hybridps_manager_close(parents);
    hybridps_manager *m = join();
    return m == NULL || hybridps_manager_add(m, HOST, 5, 0) != 0 ? 2 : 0;
}

TEST(test_a_child_of_fork_must_open_its_own)
{
    parents = open_with(100, NULL, 0);
    assert_int_equal(hybridps_manager_add(parents, HOST, 30, 0), 0);
    struct child c = start(use_parents, 0);
    assert_int_equal(end(&c), 0);
    assert_int_equal(info(parents, HOST).mine, 30);
    assert_int_equal(hybridps_manager_add(parents, HOST, 70, 0), 0); /* the child has ended */
    hybridps_manager_close(parents);
}

/* ---- death ---- */

static int hold_lock(struct child_ends *e)
{
    struct hl_manager_table t;
    struct hl_manager_options o = {.name = name};
    if (hl_manager_table_open(&o, &t) != HL_OK || hl_manager_lock(&t, (uint32_t)e->index) != HL_OK)
        return 1;
    struct hl_manager_device *d = &t.s->device[e->index];
    d->rows[t.row] = 40; /* half done: the sum is not changed yet, */
    d->reserved += 13;   /* and this one has no ticket */
    say(e->say, 'h');
    hear(e->hear);
    return 2;
}

TEST(test_who_is_killed_holding_a_lock_leaves_right_sums)
{
    hybridps_manager *m = open_with(100, (uint64_t[]){100}, 1);
    assert_int_equal(hybridps_manager_add(m, HOST, 10, 0), 0);
    assert_int_equal(hybridps_manager_add(m, 0, 20, 0), 0);
    for (int device = 0; device < 2; device++) {
        struct child c = start(hold_lock, device);
        assert_int_equal(hear(c.hear), 'h');
        shoot(&c);
        /* The dead process's share still counts, once; then room is short, and the process is
         * reaped. */
        assert_int_equal(hybridps_manager_remove(m, device - 1, 1), 0);
        assert_int_equal(hybridps_manager_add(m, device - 1, 1, 0), 0);
        assert_int_equal(hybridps_manager_add(m, device - 1, 80, 0), 0);
        assert_int_equal(info(m, device - 1).reserved, 0);
        assert_int_equal(used(m, device - 1), device == 0 ? 90 : 100);
        assert_int_equal(WTERMSIG(end(&c)), SIGKILL);
    }
    assert_int_equal(info(m, 0).processes, 1);
    hybridps_manager_close(m);
}

static int hold_and_wait(struct child_ends *e)
{
    hybridps_manager *m = join();
    int device;
    uint64_t ticket;
    if (m == NULL || hybridps_manager_add(m, HOST, 60, 0) != 0 ||
        hybridps_manager_schedule(m, 40, HOST, &device, &ticket) != 0)
        return 1;
    say(e->say, 'h');
    hear(e->hear);
    return 2;
}

TEST(test_room_of_a_killed_process_is_found_by_the_next_schedule)
{
    hybridps_manager *m = open_with(100, NULL, 0);
    int device;
    uint64_t ticket;
    struct child c = start(hold_and_wait, 0);
    assert_int_equal(hear(c.hear), 'h');
    assert_int_equal(hybridps_manager_schedule(m, 1, HOST, &device, &ticket), HELIOS_ENOSPC);
    shoot(&c);
    assert_int_equal(hybridps_manager_schedule(m, 100, HOST, &device, &ticket), 0);
    assert_int_equal(hybridps_manager_cancel(m, ticket), 0);
    end(&c);
    hybridps_manager_close(m);
}

TEST(test_the_dead_are_found_by_age_without_a_failure)
{
    hybridps_manager *m = open_with(100, NULL, 0), *quick = NULL;
    hybridps_manager_options o = {HYBRIDPS_MANAGER_OPTIONS_INIT, .name = name, .reap_ms = 1};
    assert_int_equal(hybridps_manager_open(&o, &quick), 0);
    struct child c = start(hold_and_wait, 0);
    assert_int_equal(hear(c.hear), 'h');
    shoot(&c);
    uint64_t until = hl_now_ns() + CHILD_MS * HL_NS_PER_MS;
    while (used(quick, HOST) > 0 && hl_now_ns() < until)
        poll(NULL, 0, 1);
    assert_int_equal(used(quick, HOST), 0);
    assert_int_equal(info(quick, HOST).reserved, 0);
    end(&c);
    hybridps_manager_close(quick);
    hybridps_manager_close(m);
}

TEST(test_a_pid_that_was_given_again_does_not_keep_the_dead_alive)
{
    struct hl_manager_table t;
    struct hl_manager_options o = {.name = name, .capacity = (uint64_t[]){100}, .devices = 1};
    uint64_t freed = 0;
    assert_int_equal(hl_manager_table_open(&o, &t), HL_OK);
    t.s->processes[7].pid = getpid(); /* this pid, but of a process with another start time */
    t.s->processes[7].start = 1;
    t.s->device[0].rows[7] = 33;
    t.s->device[0].used = 33;
    assert_int_equal(hl_manager_reap(&t, &freed), HL_OK);
    assert_int_equal(freed, 33);
    assert_int_equal(t.s->processes[7].pid, 0);
    assert_int_equal(t.s->processes[t.row].pid, getpid());
    hl_manager_table_close(&t);
}

TEST(test_a_table_of_dead_processes_only_is_made_anew)
{
    hybridps_manager *m = open_with(100, NULL, 0);
    struct child c = start(hold_and_wait, 0);
    assert_int_equal(hear(c.hear), 'h');
    shoot(&c);
    assert_int_equal(kill(c.pid, 0), 0); /* a zombie */
    hybridps_manager_close(m);           /* the dead process's row keeps the table */
    assert_true(exists());
    m = open_with(500, NULL, 0);
    assert_non_null(m);
    assert_int_equal(info(m, HOST).capacity, 500);
    assert_int_equal(used(m, HOST), 0);
    end(&c);
    hybridps_manager_close(m);
    assert_false(exists());
}

TEST(test_a_stopped_process_is_named_when_the_deadline_passes)
{
    hybridps_manager *m = open_with(100, NULL, 0), *hasty = NULL;
    hybridps_manager_options o = {HYBRIDPS_MANAGER_OPTIONS_INIT, .name = name, .lock_ms = 20};
    assert_int_equal(hybridps_manager_open(&o, &hasty), 0);
    struct child c = start(hold_lock, 0);
    char who[32];
    assert_int_equal(hear(c.hear), 'h');
    snprintf(who, sizeof(who), "process %d ", (int)c.pid);
    assert_int_equal(hybridps_manager_add(hasty, HOST, 1, 0), HELIOS_ETIMEDOUT);
    assert_non_null(strstr(hl_error_text(), who));
    shoot(&c);
    assert_int_equal(hybridps_manager_add(hasty, HOST, 100, 0), 0);
    end(&c);
    hybridps_manager_close(hasty);
    hybridps_manager_close(m);
}

/* ---- races ---- */

/* Two devices with little room and a host: most paths through schedule and add. */
static int churn_once(hybridps_manager *m, uint64_t *seed, uint64_t held[3])
{
    int device = (int)((*seed >> 33) % 3) - 1, how = (int)(*seed >> 50) % 4, rc;
    uint64_t size = 1 + (*seed >> 40) % 7, ticket;
    *seed = *seed * 6364136223846793005u + 1442695040888963407u;
    if (held[device + 1] > 0) {
        rc = hybridps_manager_remove(m, device, held[device + 1]);
        held[device + 1] = 0;
        return rc;
    }
    if (how == 0) {
        rc = hybridps_manager_add(m, device, size, 0);
    } else {
        rc = hybridps_manager_schedule(m, size, device, &device, &ticket);
        if (rc == 0 && how == 1)
            return hybridps_manager_cancel(m, ticket);
        if (rc == 0)
            rc = hybridps_manager_add(m, device, size, ticket);
    }
    held[device + 1] += rc == 0 ? size : 0;
    return rc == HELIOS_ENOSPC ? 0 : rc;
}

static int churn(struct child_ends *e)
{
    hybridps_manager *m = join();
    uint64_t seed = (uint64_t)e->index * 977 + 1, held[3] = {0};
    if (m == NULL)
        return 1;
    for (int i = 0; i < ROUNDS; i++)
        if (churn_once(m, &seed, held) != 0)
            return 2;
    for (int d = 0; d < 3; d++)
        if (held[d] > 0 && hybridps_manager_remove(m, d - 1, held[d]) != 0)
            return 3;
    say(e->say, 'e'); /* without closing: the sum is zero because it removed its own, not because a
                         reaper did */
    hear(e->hear);
    hybridps_manager_close(m);
    return 0;
}

/* Until it is killed: in schedule, add, remove or while reaping earlier victims. */
static int churn_for_ever(struct child_ends *e)
{
    uint64_t seed = (uint64_t)e->index * 977 + 1, held[3] = {0};
    hybridps_manager *m = join();
    if (m == NULL)
        return 1;
    say(e->say, 's');
    while (churn_once(m, &seed, held) == 0)
        ;
    fprintf(stderr, "%s\n", hl_error_text());
    return 2;
}

static void check_devices(hybridps_manager *m)
{
    for (int d = -1; d < 2; d++) {
        hybridps_manager_info_t i = info(m, d);
        assert_true(i.used + i.reserved <= i.capacity);
    }
}

TEST(test_eight_processes_end_at_zero_and_never_exceed)
{
    hybridps_manager *m = open_with(16, (uint64_t[]){9, 5}, 2);
    struct child c[CHILDREN];
    for (int i = 0; i < CHILDREN; i++)
        c[i] = start(churn, i);
    for (int i = 0; i < CHILDREN; i++) {
        struct pollfd p = {.fd = c[i].hear, .events = POLLIN};
        uint64_t until = hl_now_ns() + CHILD_MS * HL_NS_PER_MS;
        while (poll(&p, 1, 1) == 0 && hl_now_ns() < until)
            check_devices(m);
        assert_int_equal(hear(c[i].hear), 'e');
    }
    for (int d = -1; d < 2; d++) {
        assert_int_equal(used(m, d), 0);
        assert_int_equal(info(m, d).reserved, 0);
    }
    assert_int_equal(info(m, HOST).processes, CHILDREN + 1);
    for (int i = 0; i < CHILDREN; i++) {
        say(c[i].say, 'e');
        assert_int_equal(end(&c[i]), 0);
    }
    hybridps_manager_close(m);
}

TEST(test_processes_killed_anywhere_leave_nothing_behind)
{
    hybridps_manager *m = open_with(16, (uint64_t[]){9, 5}, 2);
    struct child c[3];
    for (int i = 0; i < 3; i++)
        c[i] = start(churn_for_ever, i);
    for (int k = 0; k < KILLED; k++) {
        struct child *victim = &c[k % 3];
        assert_int_equal(hear(victim->hear), 's');
        for (int i = 0; i < 20 + k * 7; i++) /* for a while, of a different length each time */
            check_devices(m);
        shoot(victim);
        assert_int_equal(WTERMSIG(end(victim)), SIGKILL);
        *victim = start(churn_for_ever, k);
    }
    for (int i = 0; i < 3; i++) {
        shoot(&c[i]);
        end(&c[i]);
    }
    int device;
    uint64_t ticket;
    assert_int_equal(hybridps_manager_schedule(m, 17, 0, &device, &ticket), HELIOS_ENOSPC);
    for (int d = -1; d < 2; d++) {
        assert_int_equal(used(m, d), 0);
        assert_int_equal(info(m, d).reserved, 0);
    }
    assert_int_equal(info(m, HOST).processes, 1);
    hybridps_manager_close(m);
}

int main(int argc, char **argv)
{
    snprintf(name, sizeof(name), "helios-test-manager-%d", (int)getpid());
    signal(SIGPIPE, SIG_IGN);
    return tests_run(argc, argv);
}
