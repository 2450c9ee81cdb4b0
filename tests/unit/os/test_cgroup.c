#include "support/test.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "os/cgroup.h"

TEST(a_systemd_machine_has_v2_only)
{
    struct hl_cgroup_layout l;
    hl_cgroup_layout(
        "22 1 254:1 / / rw - ext4 /dev/vda1 rw\n"
        "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n",
        "0::/user.slice/user-0.slice/session-1.scope\n", &l);
    assert_string_equal(l.v2, "/sys/fs/cgroup/user.slice/user-0.slice/session-1.scope");
    assert_string_equal(l.v2_top, "/sys/fs/cgroup");
    assert_string_equal(l.cpuset, "");
}

TEST(a_hybrid_machine_has_controllers_on_v1)
{
    struct hl_cgroup_layout l;
    hl_cgroup_layout("34 31 0:31 / /sys/fs/cgroup/cpuset rw,relatime - cgroup cgroup rw,cpuset\n"
                     "35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory\n"
                     "36 31 0:33 / /sys/fs/cgroup/freezer rw,relatime - cgroup cgroup rw,freezer\n"
                     "37 31 0:34 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n"
                     "41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw\n",
                     "9:name=systemd:/\n6:freezer:/\n4:memory:/a/b\n3:cpuset:/\n0::/\n", &l);
    assert_string_equal(l.cpuset, "/sys/fs/cgroup/cpuset");
    assert_string_equal(l.memory, "/sys/fs/cgroup/memory/a/b");
    assert_string_equal(l.freezer, "/sys/fs/cgroup/freezer");
    assert_string_equal(l.cpu, "/sys/fs/cgroup/cpu,cpuacct");
    assert_string_equal(l.v2, "/sys/fs/cgroup/unified");
}

TEST(a_machine_may_have_v1_only)
{
    struct hl_cgroup_layout l;
    hl_cgroup_layout("34 31 0:31 / /sys/fs/cgroup/cpuset rw - cgroup cgroup rw,cpuset\n"
                     "35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n",
                     "4:memory:/a\n3:cpuset:/b\n1:name=systemd:/\n", &l);
    assert_string_equal(l.cpuset, "/sys/fs/cgroup/cpuset/b");
    assert_string_equal(l.memory, "/sys/fs/cgroup/memory/a");
    assert_string_equal(l.freezer, "");
    assert_string_equal(l.v2, "");
    assert_string_equal(l.v2_top, "");
}

TEST(a_container_sees_its_own_part_of_the_hierarchy)
{
    struct hl_cgroup_layout l;
    hl_cgroup_layout("9 8 0:33 /docker/c0 /sys/fs/cgroup/cpuset ro - cgroup cgroup rw,cpuset\n",
                     "3:cpuset:/docker/c0/inner\n", &l);
    assert_string_equal(l.cpuset, "/sys/fs/cgroup/cpuset/inner");
    hl_cgroup_layout("9 8 0:33 /docker/c0 /sys/fs/cgroup/cpuset ro - cgroup cgroup rw,cpuset\n",
                     "3:cpuset:/docker/c01\n", &l);
    assert_string_equal(l.cpuset, "/sys/fs/cgroup/cpuset");
}

TEST(a_machine_without_control_groups_and_garbage_give_nothing)
{
    struct hl_cgroup_layout l;
    hl_cgroup_layout("", "", &l);
    assert_string_equal(l.v2, "");
    hl_cgroup_layout("- - -\n1 2 -\n a - cgroup2\n", ":::\n::\n\n3:cpuset\n", &l);
    assert_string_equal(l.v2, "");
    assert_string_equal(l.cpuset, "");
}

TEST(a_record_brings_the_directories_back)
{
    struct hl_cgroup a = {.count = 2}, b;
    snprintf(a.dirs[0].path, sizeof(a.dirs[0].path), "/x/y z");
    a.dirs[0].means = HL_CGROUP_V2 | HL_CGROUP_KILL;
    snprintf(a.dirs[1].path, sizeof(a.dirs[1].path), "/w");
    a.dirs[1].means = HL_CGROUP_CPUSET;
    struct hl_buf text = HL_BUF(4096);
    assert_int_equal(hl_cgroup_record(&a, &text), HL_OK);
    hl_cgroup_recall(text.data, &b);
    hl_buf_fini(&text);
    assert_int_equal(b.count, 2);
    assert_string_equal(b.dirs[0].path, "/x/y z");
    assert_int_equal(b.dirs[0].means, HL_CGROUP_V2 | HL_CGROUP_KILL);
    assert_string_equal(b.dirs[1].path, "/w");
    hl_cgroup_recall("nonsense\n5 relative\n", &b);
    assert_int_equal(b.count, 0);
}

TEST(a_group_holds_what_joins_it_and_is_removed_with_it)
{
    struct hl_cgroup cg;
    char name[64];
    snprintf(name, sizeof(name), "helios-test-%d", (int)getpid());
    hl_cgroup_create(&(struct hl_cgroup_spec){.name = name}, &cg);
    if (cg.count == 0)
        TEST_SKIP("cgroups are not mounted, or not ours to make");
    int join[HL_CGROUP_DIRS];
    size_t n = hl_cgroup_join_open(&cg, join);
    const char *const argv[] = {"sh", "-c", "setsid sleep 1000 & exec sleep 1000", NULL};
    const char *const env[] = {"PATH=/usr/bin:/bin", NULL};
    struct hl_spawn spawn = {.program = "/bin/sh",
                             .argv = (char *const *)argv,
                             .env = (char *const *)env,
                             .std = {-1, -1, -1},
                             .join = join,
                             .join_count = n,
                             .die_with_parent = true};
    pid_t pid;
    hl_status st = hl_process_spawn(&spawn, &pid);
    for (size_t i = 0; i < n; i++)
        close(join[i]);
    int how = 0;
    if (st == HL_OK) {
        hl_cgroup_kill(&cg);
        waitpid(pid, &how, 0);
    }
    struct hl_cgroup again = cg;
    assert_int_equal(hl_cgroup_remove(&cg, 5000), HL_OK);
    assert_int_equal(st, HL_OK);
    assert_int_equal(WTERMSIG(how), SIGKILL);
    for (size_t i = 0; i < again.count; i++)
        assert_int_equal(access(again.dirs[i].path, F_OK), -1);
    assert_int_equal(hl_cgroup_remove(&again, 0), HL_OK);
}
