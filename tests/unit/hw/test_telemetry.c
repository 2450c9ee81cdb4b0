#include "support/test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "hw/telemetry.h"

static char root[] = "/tmp/helios-proc-XXXXXX";
static const char *const files[] = {"loadavg", "stat", "meminfo", "net/dev"};

static void put(const char *name, const char *content)
{
    char path[128];
    snprintf(path, sizeof(path), "%s/%s", root, name);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fputs(content, f);
    fclose(f);
}

static int make_root(void **state)
{
    (void)state;
    char net[64];
    if (mkdtemp(root) == NULL)
        return -1;
    snprintf(net, sizeof(net), "%s/net", root);
    return mkdir(net, 0700);
}

static int remove_root(void **state)
{
    (void)state;
    char path[128];
    for (size_t i = 0; i < sizeof(files) / sizeof(files[0]); i++) {
        snprintf(path, sizeof(path), "%s/%s", root, files[i]);
        unlink(path);
    }
    snprintf(path, sizeof(path), "%s/net", root);
    rmdir(path);
    return rmdir(root);
}

TEST(readings_are_what_the_files_say)
{
    struct hl_telemetry_probe p;
    struct hl_api_telemetry t;
    put("loadavg", "1.25 0.50 0.10 1/200 4242\n");
    put("meminfo", "MemTotal:       1024 kB\nMemFree: 1 kB\nMemAvailable:    512 kB\n");
    put("net/dev", "Inter-|   Receive\n face |bytes\n    lo: 900 1 0 0 0 0 0 0 900 1 0 0 0 0 0 0\n"
                   "  eth0: 100 1 0 0 0 0 0 0 200 1 0 0 0 0 0 0\n"
                   "ib0:1000 1 0 0 0 0 0 0 2000 1 0 0 0 0 0 0\n");
    /* user 10 nice 0 system 10 idle 70 iowait 10: 20 of 100 ticks are busy */
    put("stat", "cpu  10 0 10 70 10 0 0 0 5 0\ncpu0 10 0 10 70 10 0 0 0 0 0\n");
    hl_telemetry_init(&p, root);
    assert_int_equal(hl_telemetry_read(&p, &t), HL_OK);
    assert_true(t.load1 == 1.25);
    assert_true(t.cpu_busy_percent == 20.0);
    assert_int_equal(t.memory_total_bytes, 1048576);
    assert_int_equal(t.memory_available_bytes, 524288);
    assert_int_equal(t.rx_bytes, 1100);
    assert_int_equal(t.tx_bytes, 2200);
    put("stat", "cpu  85 0 10 95 10 0 0 0 5 0\n"); /* 75 more busy of 100 more */
    assert_int_equal(hl_telemetry_read(&p, &t), HL_OK);
    assert_true(t.cpu_busy_percent == 75.0);
    assert_int_equal(hl_telemetry_read(&p, &t), HL_OK); /* no tick passed: as before */
    assert_true(t.cpu_busy_percent == 75.0);
    hl_telemetry_fini(&p);
}

TEST(a_missing_file_is_named)
{
    struct hl_telemetry_probe p;
    struct hl_api_telemetry t;
    hl_telemetry_init(&p, "/nowhere");
    assert_int_equal(hl_telemetry_read(&p, &t), HL_EIO);
    assert_non_null(strstr(hl_error_text(), "/nowhere/loadavg can't be read"));
    hl_telemetry_fini(&p);
}

TEST(this_machine_can_be_read)
{
    struct hl_telemetry_probe p;
    struct hl_api_telemetry t;
    hl_telemetry_init(&p, "/proc");
    assert_int_equal(hl_telemetry_read(&p, &t), HL_OK);
    assert_true(t.memory_total_bytes >= t.memory_available_bytes);
    assert_true(t.cpu_busy_percent >= 0 && t.cpu_busy_percent <= 100);
    hl_telemetry_fini(&p);
}

TESTS_IN(make_root, remove_root)
