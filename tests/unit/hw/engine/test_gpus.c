/* GPUs as reported by the driver's library, and what has become of them since. */
#include "support/test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "hw/load/gpu_watch.h"
#include "hw/load/nvml.h"

static char path[] = "/tmp/helios-nvml-XXXXXX";
static char stub[4096];

static int setup(void **state)
{
    (void)state;
    int fd = mkstemp(path);
    ssize_t n = readlink("/proc/self/exe", stub, sizeof(stub) - 32);
    if (fd < 0 || n <= 0)
        return -1;
    close(fd);
    stub[n] = '\0';
    char *slash = strrchr(stub, '/');
    snprintf(slash, sizeof(stub) - (size_t)(slash - stub), "/libnvml_stub.so");
    return setenv("NVML_STUB", path, 1);
}

static int teardown(void **state)
{
    (void)state;
    return unlink(path);
}

TESTS_IN(setup, teardown)

static void machine_has(const char *gpus)
{
    FILE *f = fopen(path, "we");
    assert_non_null(f);
    fputs(gpus, f);
    fclose(f);
}

/* The troubles of a reading, one per line. */
static const char *troubles_of(struct hl_gpu_watch *w, struct hl_nvml *n, struct hl_arena *arena)
{
    struct hl_api_gpu_load_list gpus = {0};
    struct hl_api_text_list troubles = {0};
    const char *all = "";
    assert_int_equal(hl_nvml_read(n, arena, &gpus), HL_OK);
    assert_int_equal(hl_gpu_watch_check(w, &gpus, arena, &troubles), HL_OK);
    for (size_t i = 0; i < troubles.count; i++)
        all = hl_arena_printf(arena, "%s%s\n", all, troubles.items[i]);
    return all;
}

TEST(a_reading_has_what_the_driver_says)
{
    struct hl_nvml *n;
    HL_AUTO(hl_arena_fini) struct hl_arena arena = {0};
    struct hl_api_gpu_load_list gpus;
    machine_has("00000000:3B:00.0 GPU-a 75 2048\n00000004:04:00.0 GPU-b 0 1\n");
    assert_int_equal(hl_nvml_open(stub, &n), HL_OK);
    assert_int_equal(hl_nvml_read(n, &arena, &gpus), HL_OK);
    assert_int_equal(gpus.count, 2);
    assert_string_equal(gpus.items[0].id, "0000:3b:00.0");
    assert_string_equal(gpus.items[1].id, "0004:04:00.0");
    assert_string_equal(gpus.items[0].uuid, "GPU-a");
    assert_string_equal(gpus.items[0].name, "Stand-in V100");
    assert_true(gpus.items[0].busy_percent == 75);
    assert_int_equal(gpus.items[0].memory_used_bytes, 2147483648);
    assert_int_equal(gpus.items[0].memory_total_bytes, 17179869184);
    assert_int_equal(gpus.items[0].temperature_celsius, 61);
    assert_true(gpus.items[0].power_watts == 250.5);
    assert_int_equal(gpus.items[0].ecc_errors, 0); /* the board does not report it */
    hl_nvml_close(n);
}

TEST(a_machine_without_a_driver_is_told_from_a_broken_library)
{
    struct hl_nvml *n;
    assert_int_equal(hl_nvml_open("libno-such-thing.so.1", &n), HL_ENOENT);
    unsetenv("NVML_STUB");
    assert_int_equal(hl_nvml_open(stub, &n), HL_ENOENT);
    assert_non_null(strstr(hl_error_text(), "Driver Not Loaded"));
    setenv("NVML_STUB", path, 1);
    assert_int_equal(hl_nvml_open("libm.so.6", &n), HL_EIO);
    assert_non_null(strstr(hl_error_text(), "libm.so.6 has no nvmlInit_v2"));
}

TEST(a_gpu_that_vanished_or_changed_its_uuid_is_named)
{
    struct hl_nvml *n;
    struct hl_gpu_watch w = {0};
    HL_AUTO(hl_arena_fini) struct hl_arena arena = {0};
    machine_has("00000000:3B:00.0 GPU-a 0 0\n00000000:3C:00.0 GPU-b 0 0\n");
    assert_int_equal(hl_nvml_open(stub, &n), HL_OK);
    assert_string_equal(troubles_of(&w, n, &arena), "");
    machine_has("00000000:3B:00.0 GPU-a 0 0\n00000000:3C:00.0 lost\n");
    const char *gone = troubles_of(&w, n, &arena);
    assert_non_null(strstr(gone, "GPU 0000:3c:00.0 (GPU-b) vanished"));
    assert_null(strstr(gone, "3b:00.0"));
    machine_has("00000000:3B:00.0 GPU-x 0 0\n00000000:3C:00.0 GPU-b 0 0\n");
    assert_non_null(
        strstr(troubles_of(&w, n, &arena), "GPU 0000:3b:00.0 was GPU-a and is GPU-x now"));
    machine_has("00000000:3B:00.0 GPU-a 0 0\n00000000:3C:00.0 GPU-b 0 0\n");
    assert_string_equal(troubles_of(&w, n, &arena), ""); /* it is back */
    hl_gpu_watch_fini(&w);
    hl_nvml_close(n);
}

TEST(two_gpus_with_one_uuid_are_named)
{
    struct hl_nvml *n;
    struct hl_gpu_watch w = {0};
    HL_AUTO(hl_arena_fini) struct hl_arena arena = {0};
    machine_has("00000000:3B:00.0 GPU-a 0 0\n00000000:3C:00.0 GPU-a 0 0\n");
    assert_int_equal(hl_nvml_open(stub, &n), HL_OK);
    assert_non_null(strstr(troubles_of(&w, n, &arena),
                           "GPUs 0000:3b:00.0 and 0000:3c:00.0 have one UUID, GPU-a"));
    hl_gpu_watch_fini(&w);
    hl_nvml_close(n);
}
