/* Network ports and containers, from trees of files like the kernel's. */
#include "support/test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "hw/load/container_load.h"
#include "hw/load/nic_load.h"
#include "hw/load/oom_log.h"
#include "os/file.h"

static char root[] = "/tmp/helios-loads-XXXXXX";

static int make_root(void **state)
{
    (void)state;
    return mkdtemp(root) != NULL ? 0 : -1;
}

static int remove_root(void **state)
{
    (void)state;
    return hl_dir_remove(root) == HL_OK ? 0 : -1;
}

TESTS_IN(make_root, remove_root)

/* A file below the root, with its directories. */
static void put(const char *name, const char *content)
{
    char path[400], dir[400];
    snprintf(path, sizeof(path), "%s/%s", root, name);
    snprintf(dir, sizeof(dir), "%s", path);
    *strrchr(dir, '/') = '\0';
    assert_int_equal(hl_dir_make(dir, 0700), HL_OK);
    FILE *f = fopen(path, "we");
    assert_non_null(f);
    fputs(content, f);
    fclose(f);
}

static const struct hl_api_nic_load *port(const struct hl_api_nic_load_list *list, const char *name)
{
    for (size_t i = 0; i < list->count; i++)
        if (strcmp(list->items[i].name, name) == 0)
            return &list->items[i];
    fail_msg("there is no port %s", name);
    return NULL;
}

static void put_ports(const char *eth_rx, const char *ib_rx)
{
    put("class/net/lo/statistics/rx_bytes", "900\n");
    put("class/net/eth0/device/vendor", "0x15b3\n");
    put("class/net/eth0/operstate", "up\n");
    put("class/net/eth0/statistics/rx_bytes", eth_rx);
    put("class/net/eth0/statistics/tx_bytes", "70\n");
    put("class/net/eth0/statistics/rx_errors", "2\n");
    put("class/net/eth0/statistics/tx_errors", "1\n");
    put("class/net/docker0/operstate", "down\n");
    put("class/net/docker0/statistics/rx_bytes", "1\n");
    put("class/infiniband/mlx5_0/ports/1/state", "4: ACTIVE\n");
    put("class/infiniband/mlx5_0/ports/1/counters/port_rcv_data", ib_rx);
    put("class/infiniband/mlx5_0/ports/1/counters/port_xmit_data", "10\n");
    put("class/infiniband/mlx5_0/ports/1/counters/symbol_error", "5\n");
    put("class/infiniband/mlx5_1/ports/1/state", "1: DOWN\n");
}

TEST(ports_have_bytes_rates_errors_and_kinds)
{
    struct hl_nic_probe p = {0};
    struct hl_api_nic_load_list list;
    HL_AUTO(hl_arena_fini) struct hl_arena arena = {0};
    uint32_t left = 0;
    put_ports("1000\n", "25\n");
    assert_int_equal(hl_nics_read(&p, root, HL_NS_PER_S, &arena, &list, &left), HL_OK);
    assert_int_equal(list.count, 4); /* without lo */
    assert_true(port(&list, "eth0")->rx_bytes_per_second == 0);
    put_ports("3000\n", "125\n");
    assert_int_equal(hl_nics_read(&p, root, 3 * HL_NS_PER_S, &arena, &list, &left), HL_OK);
    const struct hl_api_nic_load *eth = port(&list, "eth0"), *ib = port(&list, "mlx5_0:1");
    assert_int_equal(eth->rx_bytes, 3000);
    assert_true(eth->rx_bytes_per_second == 1000);
    assert_true(eth->tx_bytes_per_second == 0);
    assert_int_equal(eth->errors, 3);
    assert_true(eth->up);
    assert_string_equal(eth->kind, "ethernet");
    assert_string_equal(port(&list, "docker0")->kind, "virtual");
    assert_false(port(&list, "docker0")->up);
    assert_string_equal(ib->kind, "infiniband");
    assert_int_equal(ib->rx_bytes, 500); /* words of four bytes */
    assert_true(ib->rx_bytes_per_second == 200);
    assert_int_equal(ib->errors, 5);
    assert_true(ib->up);
    assert_false(port(&list, "mlx5_1:1")->up);
    put_ports("10\n", "1\n"); /* the driver was reloaded */
    assert_int_equal(hl_nics_read(&p, root, 4 * HL_NS_PER_S, &arena, &list, &left), HL_OK);
    assert_true(port(&list, "eth0")->rx_bytes_per_second == 0);
    assert_int_equal(left, 0);
}

TEST(more_ports_than_a_reading_has_are_counted)
{
    struct hl_nic_probe p = {0};
    struct hl_api_nic_load_list list;
    HL_AUTO(hl_arena_fini) struct hl_arena arena = {0};
    uint32_t left = 0;
    char sys[300];
    for (int i = 0; i < HL_NICS_MAX + 3; i++) {
        char name[64];
        snprintf(name, sizeof(name), "many/class/net/veth%d/operstate", i);
        put(name, "up\n");
    }
    snprintf(sys, sizeof(sys), "%s/many", root);
    assert_int_equal(hl_nics_read(&p, sys, 1, &arena, &list, &left), HL_OK);
    assert_int_equal(list.count, HL_NICS_MAX);
    assert_int_equal(left, 3);
}

/* ---- containers ------------------------------------------------------------------------------ */

/* "PID (NAME) S PPID" with this many ticks and private pages. */
static void put_process(int pid, int parent, unsigned ticks, unsigned pages)
{
    char name[64], text[200];
    snprintf(name, sizeof(name), "proc/%d/stat", pid);
    snprintf(text, sizeof(text), "%d (a) b) S %d 1 1 0 -1 0 0 0 0 0 %u 0 0 0 20 0\n", pid, parent,
             ticks);
    put(name, text);
    snprintf(name, sizeof(name), "proc/%d/statm", pid);
    snprintf(text, sizeof(text), "1000 %u 100 0 0 0 0\n", pages + 100);
    put(name, text);
}

static struct hl_api_container_load read_one(struct hl_container_probe *p, int pid, uint64_t now,
                                             struct hl_arena *arena)
{
    char proc[300];
    struct hl_api_rank_status rank = {.rank = 0, .pid = pid};
    struct hl_api_container_status c = {
        .id = "j.1.0", .state = HL_API_CONTAINER_STATE_RUNNING, .ranks = {&rank, 1}};
    const struct hl_api_container_status_list list = {&c, 1};
    struct hl_api_container_load_list out;
    uint32_t left = 0;
    snprintf(proc, sizeof(proc), "%s/proc", root);
    assert_int_equal(hl_container_loads_read(p, proc, now, &list, arena, &out, &left), HL_OK);
    assert_int_equal(out.count, 1);
    return out.items[0];
}

/* A machine's mounts, with the given hierarchies below root/cg. */
static void put_mounts(const char *lines)
{
    put("proc/self/mountinfo", lines);
}

TEST(a_container_without_a_group_of_its_own_is_the_tree_of_its_ranks)
{
    struct hl_container_probe p = {0};
    HL_AUTO(hl_arena_fini) struct hl_arena arena = {0};
    uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE), tick = 100 / (uint64_t)sysconf(_SC_CLK_TCK);
    put_mounts("1 1 0:1 / / rw - ext4 a rw\n");
    put("proc/self/cgroup", "0::/\n");
    put("proc/50/cgroup", "0::/\n");
    put_process(50, 1, 10, 3); /* the rank */
    put_process(51, 50, 20, 4);
    put_process(52, 51, 30, 5);
    put_process(60, 1, 999, 9); /* another rank's */
    struct hl_api_container_load c = read_one(&p, 50, HL_NS_PER_S, &arena);
    assert_string_equal(c.source, "processes");
    assert_int_equal(c.processes, 3);
    assert_int_equal(c.memory_bytes, 12 * page);
    assert_true(c.cpu_percent == 0);
    put_process(52, 51, 80, 5); /* 50 ticks in two seconds */
    c = read_one(&p, 50, 3 * HL_NS_PER_S, &arena);
    assert_true(c.cpu_percent == 25.0 * (double)tick);
    hl_container_probe_fini(&p);
}

static void put_in(const char *dir, const char *name, const char *text)
{
    char path[300];
    snprintf(path, sizeof(path), "cg/%s/%s", dir, name);
    put(path, text);
}

static const char *mount(struct hl_arena *arena, const char *at, const char *type,
                         const char *super)
{
    return hl_arena_printf(arena, "30 1 0:30 / %s/cg/%s rw - %s x %s\n", root, at, type, super);
}

TEST(a_group_of_version_2_tells_memory_limit_kills_and_time)
{
    struct hl_container_probe p = {0};
    HL_AUTO(hl_arena_fini) struct hl_arena arena = {0};
    put_mounts(mount(&arena, "v2", "cgroup2", "rw"));
    put("proc/self/cgroup", "0::/agent\n");
    put("proc/70/cgroup", "0::/j.1.0\n");
    put_process(70, 1, 0, 1);
    put_in("v2/j.1.0", "memory.current", "5000\n");
    put_in("v2/j.1.0", "memory.max", "9000\n");
    put_in("v2/j.1.0", "memory.events", "low 0\nhigh 0\nmax 7\noom 1\noom_kill 2\n");
    put_in("v2/j.1.0", "cpu.stat", "usage_usec 1000000\nuser_usec 1\n");
    put_in("v2/j.1.0", "cgroup.procs", "70\n71\n");
    struct hl_api_container_load c = read_one(&p, 70, HL_NS_PER_S, &arena);
    assert_string_equal(c.source, "cgroup v2");
    assert_int_equal(c.memory_bytes, 5000);
    assert_int_equal(c.limit_bytes, 9000);
    assert_int_equal(c.oom_kills, 2);
    assert_int_equal(c.processes, 2);
    put_in("v2/j.1.0", "cpu.stat", "usage_usec 4000000\n");
    put_in("v2/j.1.0", "memory.max", "max\n");
    c = read_one(&p, 70, 3 * HL_NS_PER_S, &arena);
    assert_true(c.cpu_percent == 150);
    assert_int_equal(c.limit_bytes, 0);
    hl_container_probe_fini(&p);
}

TEST(groups_of_version_1_tell_the_same)
{
    struct hl_container_probe p = {0};
    HL_AUTO(hl_arena_fini) struct hl_arena arena = {0};
    put_mounts(hl_arena_printf(&arena, "%s%s", mount(&arena, "memory", "cgroup", "rw,memory"),
                               mount(&arena, "cpu", "cgroup", "rw,cpu,cpuacct")));
    put("proc/self/cgroup", "5:memory:/\n4:cpu,cpuacct:/\n");
    put("proc/70/cgroup", "5:memory:/j.1.0\n4:cpu,cpuacct:/j.1.0\n");
    put_in("memory/j.1.0", "memory.usage_in_bytes", "6000\n");
    put_in("memory/j.1.0", "memory.limit_in_bytes", "9223372036854771712\n");
    put_in("memory/j.1.0", "memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 3\n");
    put_in("memory/j.1.0", "cgroup.procs", "70\n");
    put_in("cpu/j.1.0", "cpuacct.usage", "2000000000\n");
    struct hl_api_container_load c = read_one(&p, 70, HL_NS_PER_S, &arena);
    assert_string_equal(c.source, "cgroup v1");
    assert_int_equal(c.memory_bytes, 6000);
    assert_int_equal(c.limit_bytes, 0); /* version 1 writes a huge number instead */
    assert_int_equal(c.oom_kills, 3);
    put_in("cpu/j.1.0", "cpuacct.usage", "3000000000\n");
    c = read_one(&p, 70, 2 * HL_NS_PER_S, &arena);
    assert_true(c.cpu_percent == 100);
    hl_container_probe_fini(&p);
}

TEST(on_a_hybrid_machine_each_number_comes_from_the_hierarchy_that_has_it)
{
    struct hl_container_probe p = {0};
    HL_AUTO(hl_arena_fini) struct hl_arena arena = {0};
    put_mounts(hl_arena_printf(&arena, "%s%s", mount(&arena, "unified", "cgroup2", "rw"),
                               mount(&arena, "hmemory", "cgroup", "rw,memory")));
    put("proc/self/cgroup", "5:memory:/\n0::/agent\n");
    put("proc/70/cgroup", "5:memory:/j.1.0\n0::/j.1.0\n");
    put_in("unified/j.1.0", "cpu.stat", "usage_usec 1000\n"); /* no memory.current there */
    put_in("hmemory/j.1.0", "memory.usage_in_bytes", "6000\n");
    put_in("hmemory/j.1.0", "cgroup.procs", "70\n");
    struct hl_api_container_load c = read_one(&p, 70, HL_NS_PER_S, &arena);
    assert_string_equal(c.source, "cgroup v1");
    assert_int_equal(c.memory_bytes, 6000);
    put_in("unified/j.1.0", "cpu.stat", "usage_usec 501000\n");
    c = read_one(&p, 70, 2 * HL_NS_PER_S, &arena);
    assert_true(c.cpu_percent == 50);
    hl_container_probe_fini(&p);
}

/* ---- the kernel's log ------------------------------------------------------------------------ */

static void assert_evidence(struct hl_oom_query query, const char *want)
{
    char path[300], text[200];
    snprintf(path, sizeof(path), "%s/kmsg", root);
    assert_int_equal(hl_oom_log_find(path, &query, text, sizeof(text)), HL_OK);
    assert_string_equal(text, want);
}

TEST(the_kernels_log_names_the_process_that_it_killed)
{
    char text[200];
    put("kmsg", "6,1,1000,-;Killed process 42 (old), UID 0\n"
                "3,2,5000,-;Memory cgroup out of memory: Killed process 42 (python3) total-vm:1kB\n"
                "3,3,6000,-;Out of memory: Killed process 420 (other)\n"
                " SUBSYSTEM=memory\n");
    assert_evidence((struct hl_oom_query){42, "", 2000},
                    "Memory cgroup out of memory: Killed process 42 (python3) total-vm:1kB");
    assert_evidence((struct hl_oom_query){42, "", 5001},
                    ""); /* an earlier process with the same number */
    assert_evidence((struct hl_oom_query){7, "", 0}, "");
    assert_int_equal(
        hl_oom_log_find("/nowhere/kmsg", &(struct hl_oom_query){7, "", 0}, text, sizeof(text)),
        HL_EIO);
}

#define OOM_KILL "oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=c0ffee,oom_memcg="

/* A child of the rank is a process of its own: only its group is the container's. */
TEST(the_kernels_log_names_what_it_killed_in_a_group)
{
    const char *text = "3,1,5000,-;" OOM_KILL "/docker/c0ffee,task_memcg=/docker/c0ffee,task=dd,"
                       "pid=317,uid=0\n"
                       "3,2,5001,-;Memory cgroup out of memory: Killed process 317 (dd) UID:0\n"
                       "3,3,6000,-;" OOM_KILL "/h.1.0,task_memcg=/h.1.0/x,task=sh,pid=9,uid=0\n"
                       "3,4,6001,-;Memory cgroup out of memory: Killed process 9 (sh) UID:0\n"
                       "3,5,7000,-;" OOM_KILL "/h.1.00,task_memcg=/h.1.00,task=sh,pid=9,uid=0\n"
                       "3,6,7001,-;Memory cgroup out of memory: Killed process 9 (other) UID:0\n";
    put("kmsg", text);
    assert_evidence((struct hl_oom_query){0, "c0ffee", 0},
                    "Memory cgroup out of memory: Killed process 317 (dd) UID:0");
    put("kmsg", "3,1,5000,-;" OOM_KILL "/a,task_memcg=/s.slice/docker-c0ffee.scope,task=dd,pid=8\n"
                "3,2,5001,-;Memory cgroup out of memory: Killed process 8 (dd) UID:0\n");
    assert_evidence((struct hl_oom_query){0, "c0ffee", 0},
                    "Memory cgroup out of memory: Killed process 8 (dd) UID:0");
    put("kmsg", text);
    assert_evidence((struct hl_oom_query){0, "h.1.0", 0},
                    "Memory cgroup out of memory: Killed process 9 (sh) UID:0");
    assert_evidence((struct hl_oom_query){0, "h.1", 0}, "");
    assert_evidence((struct hl_oom_query){0, "h.1.0", 6500}, "");
    assert_evidence((struct hl_oom_query){0, "", 0}, "");
}
