/* The cuda back end with a driver that lacks something, fails, or is slow: on the stub, which keeps
 * the driver's rules and aborts the process if something is left behind. */
#include "support/test.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "unit/mem/device/device_rig.h"

static char library[512];
static struct hl_device_options options = {.cuda_driver = library};

static struct hl_device *open_device(const char *spec)
{
    struct hl_device *d = NULL;
    if (hl_device_open(spec, &options, &d) != HL_OK)
        fail_msg("%s", hl_error_text());
    return d;
}

static struct hl_device_info info_of(struct hl_device *d)
{
    struct hl_device_info i;
    hl_device_info(d, &i);
    return i;
}

static int clean(void **state)
{
    (void)state;
    static const char *const names[] = {"CUDA_STUB_MEMORY", "CUDA_STUB_DEVICES",
                                        "CUDA_STUB_WITHOUT", "CUDA_STUB_DELAY_US",
                                        "CUDA_STUB_FAIL"};
    for (size_t i = 0; i < HL_ARRAY_LEN(names); i++)
        unsetenv(names[i]);
    setenv("CUDA_STUB_DELAY_US", "100", 1);
    return 0;
}

TEST_IN(clean, clean, a_device_is_chosen_by_ordinal_or_by_pci_id)
{
    setenv("CUDA_STUB_DEVICES", "2", 1);
    struct hl_device *d = open_device("cuda:1:4MiB");
    struct hl_device_info i = info_of(d);
    assert_string_equal(i.kind, "cuda");
    assert_string_equal(i.name, "cuda:1 (Stub)");
    assert_string_equal(i.pci, "0000:11:00.0");
    assert_string_equal(i.backing, "cuda vmm");
    assert_true(i.capacity == 4 * MIB && i.granule == 2 * MIB);
    assert_true(i.shareable && i.ranges && i.nic_direct);
    hl_device_close(d);
    d = open_device("cuda:0000:10:00.0:6MiB");
    assert_string_equal(info_of(d).name, "cuda:0 (Stub)");
    assert_int_equal(info_of(d).capacity, 6 * MIB);
    hl_device_close(d);
    d = open_device("cuda:0");
    assert_int_equal(info_of(d).capacity,
                     256 * MIB); /* everything that the driver reports as free */
    hl_device_close(d);
}

TEST_IN(clean, clean, a_device_that_is_not_there_is_refused_with_the_drivers_words)
{
    struct hl_device *d = NULL;
    assert_int_equal(hl_device_open("cuda:1", &options, &d), HL_ENOENT);
    assert_error_has("device \"cuda:1\": cuDeviceGet: CUDA_ERROR_INVALID_DEVICE (101)");
    setenv("CUDA_STUB_DEVICES", "0", 1);
    assert_int_equal(hl_device_open("cuda:0", &options, &d), HL_ENOENT);
    assert_error_has("cuInit: CUDA_ERROR_NO_DEVICE (100)");
    unsetenv("CUDA_STUB_DEVICES");
    assert_int_equal(hl_device_open("cuda:0:1GiB", &options, &d), HL_ENOSPC);
    assert_error_has("1073741824 bytes requested, but the device has 268435456");
    static const char *const bad[] = {
        "cuda", "cuda:", "cuda:x", "cuda:0:", "cuda:0:1", "cuda:0,nic=no", "cuda:0000:10:00.0x"};
    for (size_t i = 0; i < HL_ARRAY_LEN(bad); i++)
        assert_int_equal(hl_device_open(bad[i], &options, &d), HL_EINVAL);
    assert_int_equal(
        hl_device_open("cuda:0", &(struct hl_device_options){.cuda_driver = "libnone.so"}, &d),
        HL_EUNAVAIL);
    assert_null(d);
}

TEST_IN(clean, clean, what_others_take_is_not_free)
{
    struct hl_device *a = open_device("cuda:0:200MiB"), *b = open_device("cuda:0:200MiB");
    struct hl_device_block x, y;
    assert_int_equal(hl_device_alloc(a, 150 * MIB, 0, &x), HL_OK);
    assert_int_equal(info_of(b).used, 0);
    assert_int_equal(info_of(b).free, 106 * MIB);
    assert_int_equal(hl_device_alloc(b, 110 * MIB, 0, &y), HL_ENOSPC);
    assert_error_has("115343360 bytes requested, but the driver has 111149056 of 268435456 free");
    assert_int_equal(info_of(b).used, 0);
    assert_int_equal(hl_device_audit(b), HL_OK);
    assert_int_equal(hl_device_free(a, &x), HL_OK);
    assert_int_equal(hl_device_alloc(b, 110 * MIB, 0, &y), HL_OK);
    hl_device_close(a);
    hl_device_close(b);
}

TEST_IN(clean, clean, without_vmm_blocks_are_plain_and_the_rest_is_refused)
{
    setenv("CUDA_STUB_WITHOUT", "vmm", 1);
    struct hl_device *d = open_device("cuda:0:8MiB");
    struct hl_device_block b, c;
    struct hl_device_share share = {.fd = 0, .size = MIB};
    uint64_t range;
    struct hl_device_info i = info_of(d);
    assert_true(!i.ranges && !i.shareable);
    assert_string_equal(i.backing, "cuda memory: no ranges, no export");
    assert_int_equal(hl_device_alloc(d, MIB, 0, &b), HL_OK);
    unsigned char *src = filled(b.size, 4), *dst = malloc(b.size);
    assert_int_equal(hl_device_copy_in(d, &b, 0, src, b.size), HL_OK);
    assert_int_equal(hl_device_copy_out(d, &b, 0, dst, b.size), HL_OK);
    assert_memory_equal(src, dst, b.size);
    assert_int_equal(hl_device_reserve(d, MIB, &range), HL_EUNSUPPORTED);
    assert_int_equal(hl_device_alloc(d, MIB, HL_DEVICE_UNMAPPED, &c), HL_EUNSUPPORTED);
    assert_int_equal(hl_device_unmap(d, &b), HL_EUNSUPPORTED);
    assert_int_equal(hl_device_export(d, &b, &share), HL_EUNSUPPORTED);
    assert_int_equal(hl_device_import(d, &share, &c), HL_EUNSUPPORTED);
    assert_int_equal(hl_device_alloc(d, 8 * MIB, 0, &c), HL_ENOSPC);
    assert_int_equal(hl_device_free(d, &b), HL_OK);
    assert_int_equal(hl_device_audit(d), HL_OK);
    free(src);
    free(dst);
    hl_device_close(d);
}

TEST_IN(clean, clean, what_the_device_lacks_is_told)
{
    setenv("CUDA_STUB_WITHOUT", "export,direct", 1);
    struct hl_device *d = open_device("cuda:0:8MiB");
    struct hl_device_info i = info_of(d);
    assert_true(i.ranges && !i.shareable && !i.nic_direct);
    struct hl_device_block b;
    struct hl_device_share share;
    assert_int_equal(hl_device_alloc(d, MIB, 0, &b), HL_OK);
    assert_int_equal(hl_device_export(d, &b, &share), HL_EUNSUPPORTED);
    hl_device_close(d);
}

TEST_IN(clean, clean, a_copy_that_is_not_waited_for_is_not_there_yet)
{
    setenv("CUDA_STUB_DELAY_US", "300000", 1);
    struct hl_device *d = open_device("cuda:0:8MiB");
    struct hl_device_block b;
    struct hl_device_copy in;
    char word[8] = "before", got[8];
    assert_int_equal(hl_device_alloc(d, MIB, 0, &b), HL_OK);
    assert_int_equal(hl_device_begin_in(d, &b, 0, word, 8, &in), HL_OK);
    assert_int_equal(hl_device_wait(&in, 0), HL_ETIMEDOUT);
    assert_error_has("not done after 0 ms");
    assert_int_equal(hl_device_free(d, &b), HL_EBUSY);
    memcpy(word, "after!!", 8); /* the device reads it later, so this arrives */
    assert_int_equal(hl_device_wait(&in, WAIT_MS), HL_OK);
    assert_int_equal(hl_device_copy_out(d, &b, 0, got, 8), HL_OK);
    assert_string_equal(got, "after!!");
    hl_device_close(d);
}

TEST_IN(clean, clean, a_device_that_does_not_answer_keeps_its_blocks)
{
    struct hl_device_options hasty = {.cuda_driver = library, .timeout_ms = 20};
    struct hl_device *d;
    struct hl_device_block b;
    static char word[8] = "word";
    assert_int_equal(hl_device_open("cuda:0:8MiB", &hasty, &d), HL_OK);
    assert_int_equal(hl_device_alloc(d, MIB, 0, &b), HL_OK);
    setenv("CUDA_STUB_DELAY_US", "500000", 1);
    assert_int_equal(hl_device_copy_in(d, &b, 0, word, 8), HL_ETIMEDOUT);
    assert_int_equal(hl_device_free(d, &b), HL_EBUSY);
    /* Closing gives it some more time, and does not hang. */
    hl_device_close(d);
}

TEST_IN(clean, clean, the_cpu_cannot_touch_the_devices_memory)
{
    struct hl_device *d = open_device("cuda:0:8MiB");
    struct hl_device_block b;
    int status;
    assert_int_equal(hl_device_alloc(d, MIB, 0, &b), HL_OK);
    assert_null(b.host);
    pid_t child = fork();
    if (child == 0) {
        signal(SIGSEGV, SIG_DFL);
        _exit(*(volatile char *)(uintptr_t)b.address);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV);
    hl_device_close(d);
}

TEST_IN(clean, clean, an_importer_reads_also_where_the_driver_has_no_read_only_memory)
{
    setenv("CUDA_STUB_WITHOUT", "readonly", 1);
    struct hl_device *a = open_device("cuda:0:8MiB"), *b = open_device("cuda:0:8MiB");
    struct hl_device_block mine, theirs;
    struct hl_device_share share;
    char word[8] = "shared", got[8];
    assert_int_equal(hl_device_alloc(a, 2 * MIB, 0, &mine), HL_OK);
    assert_int_equal(hl_device_copy_in(a, &mine, 100, word, 8), HL_OK);
    assert_int_equal(hl_device_export(a, &mine, &share), HL_OK);
    share.offset = 2 * MIB;
    assert_int_equal(hl_device_import(b, &share, &theirs), HL_EINVAL);
    share.offset = 0;
    share.size = 4 * MIB;
    assert_int_equal(hl_device_import(b, &share, &theirs), HL_EIO); /* longer than it is */
    share.size = 2 * MIB;
    assert_int_equal(hl_device_import(b, &share, &theirs), HL_OK);
    assert_int_equal(close(share.fd), 0); /* was not kept */
    assert_int_equal(hl_device_copy_out(b, &theirs, 100, got, 8), HL_OK);
    assert_string_equal(got, "shared");
    assert_int_equal(hl_device_copy_in(b, &theirs, 0, word, 8), HL_EPERM);
    /* The exporter's block is freed; the importer's mapping keeps the memory. */
    hl_device_close(a);
    assert_int_equal(hl_device_copy_out(b, &theirs, 100, got, 8), HL_OK);
    assert_string_equal(got, "shared");
    hl_device_close(b);
}

TEST_IN(clean, clean, pins_fail_with_the_drivers_words)
{
    struct hl_device *d = open_device("cuda:0:8MiB");
    static char memory[8192];
    assert_int_equal(hl_device_pin(d, memory, 8192), HL_OK);
    assert_int_equal(hl_device_pin(d, memory + 100, 10), HL_EEXIST);
    assert_error_has("CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED (712)");
    hl_device_unpin(d, memory);
    setenv("CUDA_STUB_FAIL", "cuMemHostRegister:1:2", 1);
    assert_int_equal(hl_device_pin(d, memory, 8192), HL_ENOSPC);
    hl_device_close(d);
}

/* Everything that a manager does, in order; the first failure ends it. */
static hl_status use(struct hl_device *d)
{
    static char in[4096] = "in", out[4096];
    struct hl_device_block a, b;
    struct hl_device_copy copy;
    struct hl_device_share share;
    uint64_t range;
    HL_TRY(hl_device_alloc(d, MIB, 0, &a));
    HL_TRY(hl_device_reserve(d, 4 * MIB, &range));
    HL_TRY(hl_device_alloc(d, 2 * MIB, range, &b));
    HL_TRY(hl_device_copy_in(d, &a, 0, in, sizeof(in)));
    HL_TRY(hl_device_copy_within(d, &b, 0, &a, 0, sizeof(in)));
    HL_TRY(hl_device_begin_out(d, &b, 0, out, sizeof(out), &copy));
    HL_TRY(hl_device_wait(&copy, WAIT_MS));
    assert_string_equal(out, "in");
    HL_TRY(hl_device_unmap(d, &b));
    HL_TRY(hl_device_map(d, range + 2 * MIB, &b));
    HL_TRY(hl_device_export(d, &b, &share));
    hl_status st = hl_device_import(d, &share, &a);
    close(share.fd);
    HL_TRY(st);
    HL_TRY(hl_device_free(d, &a));
    HL_TRY(hl_device_free(d, &b));
    return hl_device_unreserve(d, range);
}

/* Every call that can fail, each time it is made: the error names the call, the accounting stays
 * right, and the stub finds nothing left behind. */
TEST_IN(clean, clean, every_failing_call_is_told_and_leaves_nothing_behind)
{
    static const char *const calls[] = {"cuInit",
                                        "cuDeviceGet",
                                        "cuDevicePrimaryCtxRetain",
                                        "cuMemGetAllocationGranularity",
                                        "cuMemGetInfo",
                                        "cuStreamCreate",
                                        "cuMemCreate",
                                        "cuMemAddressReserve",
                                        "cuMemMap",
                                        "cuMemSetAccess",
                                        "cuMemcpyHtoDAsync",
                                        "cuMemcpyDtoDAsync",
                                        "cuMemcpyDtoHAsync",
                                        "cuEventCreate",
                                        "cuEventRecord",
                                        "cuMemExportToShareableHandle",
                                        "cuMemImportFromShareableHandle"};
    for (size_t c = 0; c < HL_ARRAY_LEN(calls); c++) {
        unsigned failures = 0;
        for (unsigned n = 1; n < 100; n++) {
            char order[64];
            struct hl_device *d = NULL;
            snprintf(order, sizeof(order), "%s:%u", calls[c], n);
            setenv("CUDA_STUB_FAIL", order, 1);
            hl_error_clear();
            hl_status st = hl_device_open("cuda:0:16MiB", &options, &d);
            if (st == HL_OK) {
                st = use(d);
                assert_int_equal(hl_device_audit(d), HL_OK);
            }
            if (st != HL_OK && strcmp(calls[c], "cuMemSetAccess") != 0)
                assert_error_has(calls[c]);
            hl_device_close(d);
            if (st == HL_OK && n > 4)
                break; /* there is no further call */
            failures += st != HL_OK;
        }
        if (failures == 0)
            fail_msg("%s never failed", calls[c]);
    }
    unsetenv("CUDA_STUB_FAIL");
}

int main(int argc, char **argv)
{
    const char *build = getenv("HELIOS_BUILD");
    snprintf(library, sizeof(library), "%s/tests/libcuda_stub.so", build != NULL ? build : "build");
    return tests_run(argc, argv);
}
