#include "support/test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "hw/load/telemetry.h"
#include "hw/process/log_disk.h"
#include "os/file.h"

static char root[] = "/tmp/helios-proc-XXXXXX";
static const struct hl_api_container_status_list none;
static const char *backbone = "";
static uint64_t backbone_bits;

static void put(const char *name, const char *content)
{
    char path[300];
    snprintf(path, sizeof(path), "%s/%s", root, name);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fputs(content, f);
    fclose(f);
}

static void make_dir(const char *name)
{
    char path[300];
    snprintf(path, sizeof(path), "%s/%s", root, name);
    assert_int_equal(hl_dir_make(path, 0700), HL_OK);
}

static void put_basics(void)
{
    put("loadavg", "1.25 0.50 0.10 1/200 4242\n");
    put("meminfo", "MemTotal:       1024 kB\nMemFree: 1 kB\nMemAvailable:    512 kB\n");
    put("net/dev", "Inter-|   Receive\n face |bytes\n    lo: 900 1 0 0 0 0 0 0 900 1 0 0 0 0 0 0\n"
                   "  eth0: 100 1 0 0 0 0 0 0 200 1 0 0 0 0 0 0\n"
                   "ib0:1000 1 0 0 0 0 0 0 2000 1 0 0 0 0 0 0\n");
    /* user 10 nice 0 system 10 idle 70 iowait 10: 20 of 100 ticks are busy */
    put("stat", "cpu  10 0 10 70 10 0 0 0 5 0\ncpu0 10 0 10 70 10 0 0 0 0 0\n");
}

/* A node that offers these slots; each reading is a new one. */
static struct hl_telemetry *open_node(struct hl_api_slot *slots, size_t count, bool own)
{
    char sys[64];
    const struct hl_api_slot_list list = {slots, count};
    struct hl_telemetry *t;
    snprintf(sys, sizeof(sys), "%s/sys", root);
    const struct hl_telemetry_opts opts = {.proc = root,
                                           .sys = sys,
                                           .nvml = "",
                                           .slots = &list,
                                           .own_numa = own,
                                           .log_dir = "",
                                           .backbone = backbone,
                                           .backbone_bits = backbone_bits};
    assert_int_equal(hl_telemetry_open(&opts, &t), HL_OK);
    return t;
}

static struct hl_api_telemetry read_node(struct hl_telemetry *t, struct hl_arena *arena)
{
    struct hl_api_telemetry now;
    assert_int_equal(hl_telemetry_read(t, &none, arena, &now), HL_OK);
    return now;
}

static int make_root(void **state)
{
    (void)state;
    if (mkdtemp(root) == NULL)
        return -1;
    make_dir("net");
    make_dir("sys");
    return 0;
}

static int remove_root(void **state)
{
    (void)state;
    return hl_dir_remove(root) == HL_OK ? 0 : -1;
}

TEST(readings_are_what_the_files_say)
{
    HL_AUTO(hl_arena_fini) struct hl_arena arena = {0};
    put_basics();
    struct hl_telemetry *node = open_node(NULL, 0, false);
    struct hl_api_telemetry t = read_node(node, &arena);
    assert_true(t.load1 == 1.25);
    assert_true(t.cpu_busy_percent == 20.0);
    assert_int_equal(t.memory_total_bytes, 1048576);
    assert_int_equal(t.memory_available_bytes, 524288);
    assert_int_equal(t.rx_bytes, 1100);
    assert_int_equal(t.tx_bytes, 2200);
    put("stat", "cpu  85 0 10 95 10 0 0 0 5 0\n"); /* 75 more busy of 100 more */
    assert_true(read_node(node, &arena).cpu_busy_percent == 75.0);
    assert_true(read_node(node, &arena).cpu_busy_percent == 75.0); /* no tick passed: as before */
    hl_telemetry_close(node);
}

TEST(a_slot_has_the_load_of_its_processors_and_the_memory_of_its_node)
{
    struct hl_api_slot slots[] = {{.numa_id = 0, .cpus = "0-1"}, {.numa_id = 8, .cpus = "2"}};
    HL_AUTO(hl_arena_fini) struct hl_arena arena = {0};
    put_basics();
    make_dir("sys/devices/system/node/node8");
    put("sys/devices/system/node/node8/meminfo",
        "Node 8 MemTotal:       2048 kB\nNode 8 MemFree:        512 kB\n");
    put("stat", "cpu  0 0 0 0 0 0 0 0\ncpu0 0 0 0 0 0 0 0 0\ncpu1 0 0 0 0 0 0 0 0\n"
                "cpu2 0 0 0 0 0 0 0 0\n");
    struct hl_telemetry *node = open_node(slots, 2, true);
    read_node(node, &arena);
    put("stat", "cpu  1 0 0 1 0 0 0 0\ncpu0 50 0 0 50 0 0 0 0\ncpu1 0 0 0 100 0 0 0 0\n"
                "cpu2 90 0 0 10 0 0 0 0\n");
    struct hl_api_telemetry t = read_node(node, &arena);
    assert_int_equal(t.slots.count, 2);
    assert_int_equal(t.slots.items[1].numa_id, 8);
    assert_true(t.slots.items[0].cpu_busy_percent == 25.0);
    assert_true(t.slots.items[1].cpu_busy_percent == 90.0);
    assert_int_equal(t.slots.items[0].memory_total_bytes, 0); /* there is no node0 */
    assert_int_equal(t.slots.items[1].memory_total_bytes, 2097152);
    assert_int_equal(t.slots.items[1].memory_free_bytes, 524288);
    assert_int_equal(t.troubles.count, 0);
    hl_telemetry_close(node);
}

TEST(processors_and_a_numa_node_that_went_offline_are_troubles_of_their_slot)
{
    struct hl_api_slot slots[] = {{.numa_id = 0, .cpus = "0"}, {.numa_id = 8, .cpus = "1-2"}};
    HL_AUTO(hl_arena_fini) struct hl_arena arena = {0};
    put_basics();
    make_dir("sys/devices/system/node/node8");
    put("sys/devices/system/node/node8/meminfo", "Node 8 MemTotal: 2048 kB\n");
    put("stat", "cpu  0 0 0 0\ncpu0 0 0 0 0\ncpu1 0 0 0 0\ncpu2 0 0 0 0\n");
    struct hl_telemetry *node = open_node(slots, 2, true);
    assert_int_equal(read_node(node, &arena).troubles.count, 0);
    put("stat", "cpu  0 0 0 0\ncpu0 0 0 0 0\n");
    char path[300];
    snprintf(path, sizeof(path), "%s/sys/devices/system/node", root);
    assert_int_equal(hl_dir_remove(path), HL_OK);
    struct hl_api_telemetry t = read_node(node, &arena);
    assert_int_equal(t.troubles.count, 2);
    assert_non_null(strstr(t.troubles.items[0], "slot 8: processors 1-2 went offline"));
    assert_non_null(strstr(t.troubles.items[1], "slot 8: its NUMA node went offline"));
    hl_telemetry_close(node);
}

TEST(a_log_disk_with_too_little_room_is_told_and_a_small_one_may_have_less)
{
    const uint64_t mib = 1 << 20;
    char why[200];
    hl_log_disk_judge("/logs", 100000 * mib, 63 * mib, 64 * mib, why, sizeof(why));
    assert_string_equal(
        why,
        "the disk of /logs has 63.0 MiB free, 64.0 MiB are required (agent.log_free): make room");
    hl_log_disk_judge("/logs", 100000 * mib, 64 * mib, 64 * mib, why, sizeof(why));
    assert_string_equal(why, "");
    hl_log_disk_judge("/logs", 320 * mib, 10 * mib, 64 * mib, why, sizeof(why));
    assert_string_equal(why, "");
    hl_log_disk_judge("/logs", 320 * mib, 10 * mib - 1, 64 * mib, why, sizeof(why));
    assert_non_null(strstr(why, "10.0 MiB are required"));
    hl_log_disk_judge("/logs", 320 * mib, 0, 0, why, sizeof(why)); /* nothing is required */
    assert_string_equal(why, "");
}

TEST(a_node_says_how_busy_its_line_to_the_backbone_is)
{
    HL_AUTO(hl_arena_fini) struct hl_arena arena = {0};
    struct hl_telemetry *node = open_node(NULL, 0, false);
    put_basics();
    struct hl_api_telemetry t = read_node(node, &arena);
    assert_string_equal(t.backbone.interface, "lo");
    assert_int_equal(t.backbone.bits_per_second, 0); /* its capacity is not known */
    hl_telemetry_close(node);
    backbone = "eth0";
    backbone_bits = 1; /* per second: any traffic is too much */
    make_dir("sys/class/net/eth0/statistics");
    put("sys/class/net/eth0/statistics/rx_bytes", "1000\n");
    put("sys/class/net/eth0/statistics/tx_bytes", "1000\n");
    node = open_node(NULL, 0, false);
    uint64_t end_ns = hl_now_ns() + 20 * HL_NS_PER_S;
    t = read_node(node, &arena);
    assert_float_equal(t.backbone.busy_percent, -1, 0);
    put("sys/class/net/eth0/statistics/rx_bytes", "900000000\n");
    while (t.backbone.busy_percent < 0 && hl_now_ns() < end_ns)
        t = read_node(node, &arena);
    assert_string_equal(t.backbone.interface, "eth0");
    assert_float_equal(t.backbone.busy_percent, 100, 1e-9);
    hl_telemetry_close(node);
}

TEST(within_the_period_a_reading_is_shared)
{
    HL_AUTO(hl_arena_fini) struct hl_arena arena = {0};
    const struct hl_api_slot_list no_slots = {0};
    struct hl_telemetry *t;
    struct hl_api_telemetry now;
    put_basics();
    const struct hl_telemetry_opts opts = {.proc = root,
                                           .sys = root,
                                           .nvml = "",
                                           .slots = &no_slots,
                                           .log_dir = "",
                                           .backbone = "",
                                           .period_ms = 3600000};
    assert_int_equal(hl_telemetry_open(&opts, &t), HL_OK);
    assert_int_equal(hl_telemetry_read(t, &none, &arena, &now), HL_OK);
    put("loadavg", "9.00 0 0 1/1 1\n");
    int64_t asked = hl_wall_ms();
    assert_int_equal(hl_telemetry_read(t, &none, &arena, &now), HL_OK);
    assert_true(now.load1 == 1.25);
    assert_true(now.time_ms >= asked); /* the clock is read for each answer */
    hl_telemetry_close(t);
}

TEST(a_missing_file_is_named)
{
    HL_AUTO(hl_arena_fini) struct hl_arena arena = {0};
    const struct hl_api_slot_list no_slots = {0};
    struct hl_telemetry *t;
    struct hl_api_telemetry now;
    const struct hl_telemetry_opts opts = {.proc = "/nowhere",
                                           .sys = "/sys",
                                           .nvml = "",
                                           .slots = &no_slots,
                                           .log_dir = "",
                                           .backbone = ""};
    assert_int_equal(hl_telemetry_open(&opts, &t), HL_OK);
    assert_int_equal(hl_telemetry_read(t, &none, &arena, &now), HL_EIO);
    assert_non_null(strstr(hl_error_text(), "/nowhere/loadavg can't be read"));
    hl_telemetry_close(t);
}

TEST(this_machine_can_be_read)
{
    HL_AUTO(hl_arena_fini) struct hl_arena arena = {0};
    const struct hl_api_slot_list no_slots = {0};
    struct hl_telemetry *t;
    struct hl_api_telemetry now;
    const struct hl_telemetry_opts opts = {.proc = "/proc",
                                           .sys = "/sys",
                                           .nvml = "",
                                           .slots = &no_slots,
                                           .log_dir = "",
                                           .backbone = ""};
    assert_int_equal(hl_telemetry_open(&opts, &t), HL_OK);
    assert_int_equal(hl_telemetry_read(t, &none, &arena, &now), HL_OK);
    assert_true(now.memory_total_bytes >= now.memory_available_bytes);
    assert_true(now.cpu_busy_percent >= 0 && now.cpu_busy_percent <= 100);
    hl_telemetry_close(t);
}

TEST(metrics_have_the_slots_and_no_name_of_a_job)
{
    struct hl_api_slot_load slots[] = {{.numa_id = 8, .cpu_busy_percent = 50}};
    struct hl_api_container_load loads[] = {
        {.id = "job-1.1.0", .cpu_percent = 150, .memory_bytes = 7}};
    struct hl_api_nic_load nics[] = {{.name = "eth0", .kind = "ethernet", .rx_bytes = 5}};
    struct hl_api_gpu_load gpus[] = {{.id = "0000:3b:00.0", .uuid = "u", .busy_percent = 25}};
    const struct hl_api_telemetry t = {
        .slots = {slots, 1}, .containers = {loads, 1}, .nics = {nics, 1}, .gpus = {gpus, 1}};
    HL_AUTO(hl_buf_fini) struct hl_buf out = HL_BUF(65536);
    assert_int_equal(hl_telemetry_gauges(&t, &out), HL_OK);
    assert_non_null(strstr(out.data, "helios_slot_cpu_busy_ratio{slot=\"8\"} 0.5000\n"));
    assert_non_null(strstr(out.data, "helios_gpu_busy_ratio{gpu=\"0000:3b:00.0\"} 0.2500\n"));
    assert_non_null(
        strstr(out.data, "helios_port_received_bytes_total{port=\"eth0\",kind=\"ethernet\"} 5\n"));
    assert_non_null(strstr(out.data, "helios_containers_memory_bytes 7\n"));
    assert_non_null(strstr(out.data, "helios_containers_cpus 1.500\n"));
    assert_null(strstr(out.data, "job-1"));
}

TESTS_IN(make_root, remove_root)
