/* What only the emulated device can show: its memory is the process's, so that wrong accesses
 * fault. */
#include "support/test.h"

#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "unit/mem/device/device_rig.h"

static int setup(void **state)
{
    static struct rig r;
    r = (struct rig){.spec = "emu:64MiB"};
    *state = &r;
    return hl_device_open(r.spec, NULL, &r.device) == HL_OK ? 0 : -1;
}

static int teardown(void **state)
{
    hl_device_close(((struct rig *)*state)->device);
    return 0;
}

/* The signal that ends a child that touches the byte; 0 if nothing happens. */
static int touching(volatile unsigned char *at, bool writing)
{
    int status;
    pid_t child = fork();
    if (child == 0) {
        signal(SIGSEGV, SIG_DFL);
        signal(SIGBUS, SIG_DFL);
        if (writing)
            *at = 1;
        else
            (void)*at;
        _exit(0);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    return WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status);
}

TEST_IN(setup, teardown, a_freed_block_faults)
{
    struct rig *r = *state;
    struct hl_device_block b;
    assert_int_equal(hl_device_alloc(r->device, MIB, 0, &b), HL_OK);
    assert_ptr_equal(b.host, (void *)(uintptr_t)b.address);
    unsigned char *at = b.host;
    at[7] = 3;
    assert_int_equal(touching(at + 7, 0), 0);
    assert_int_equal(hl_device_free(r->device, &b), HL_OK);
    assert_int_equal(touching(at + 7, 0), SIGSEGV);
    assert_int_equal(touching(at + 7, 1), SIGSEGV);
}

TEST_IN(setup, teardown, an_evicted_range_faults_and_serves_again)
{
    struct rig *r = *state;
    struct hl_device_block b;
    uint64_t range;
    assert_int_equal(hl_device_reserve(r->device, 4 * MIB, &range), HL_OK);
    volatile unsigned char *at = (void *)(uintptr_t)range;
    assert_int_equal(touching(at, 0), SIGSEGV);
    assert_int_equal(hl_device_alloc(r->device, MIB, range, &b), HL_OK);
    *at = 9;
    assert_int_equal(touching(at + MIB, 0), SIGSEGV);
    assert_int_equal(hl_device_unmap(r->device, &b), HL_OK);
    assert_int_equal(touching(at, 0), SIGSEGV);
    assert_int_equal(hl_device_map(r->device, range, &b), HL_OK);
    assert_int_equal(*at, 9);
    assert_int_equal(hl_device_free(r->device, &b), HL_OK);
    assert_int_equal(touching(at, 0), SIGSEGV);
}

/* Filled, opened and freed; reports whether its mapping is new or was kept. */
static void fill_closed(struct hl_device *d, uint64_t range, unsigned char with)
{
    static unsigned char content[MIB];
    struct hl_device_block b;
    volatile unsigned char *at = (void *)(uintptr_t)range;
    assert_int_equal(hl_device_alloc_closed(d, MIB, range, &b), HL_OK);
    assert_int_equal(touching(at, 0), SIGSEGV);
    memset(content, with, sizeof(content));
    assert_int_equal(hl_device_copy_in(d, &b, 0, content, sizeof(content)), HL_OK);
    assert_int_equal(touching(at, 0), SIGSEGV);
    assert_int_equal(mprotect(b.host, MIB, PROT_READ | PROT_WRITE), 0);
    assert_int_equal(at[0], with);
    assert_int_equal(at[MIB - 1], with);
    assert_int_equal(hl_device_free(d, &b), HL_OK);
    assert_int_equal(touching(at, 0), SIGSEGV);
}

TEST(a_closed_block_is_filled_before_anybody_reads_it)
{
    const struct hl_device_options keeps = {.keeps_memory = true};
    struct hl_device_block b;
    struct hl_device *d;
    uint64_t range;
    assert_int_equal(hl_device_open("emu:4MiB", &keeps, &d), HL_OK);
    assert_int_equal(hl_device_alloc_closed(d, MIB, HL_DEVICE_ANYWHERE, &b), HL_EINVAL);
    assert_int_equal(hl_device_alloc_closed(d, MIB, HL_DEVICE_UNMAPPED, &b), HL_EINVAL);
    assert_int_equal(hl_device_reserve(d, 2 * MIB, &range), HL_OK);
    fill_closed(d, range, 5);
    fill_closed(d, range, 6);
    fill_closed(d, range + MIB, 7);
    hl_device_close(d);
}

TEST_IN(setup, teardown, freed_memory_goes_back_to_the_host_and_comes_zeroed)
{
    struct rig *r = *state;
    struct hl_device_block b;
    struct hl_device_share share;
    struct stat before, after;
    assert_int_equal(hl_device_alloc(r->device, 8 * MIB, 0, &b), HL_OK);
    memset(b.host, 0xff, b.size);
    assert_int_equal(hl_device_export(r->device, &b, &share), HL_OK);
    assert_int_equal(fstat(share.fd, &before), 0);
    assert_int_equal(hl_device_free(r->device, &b), HL_OK);
    assert_int_equal(fstat(share.fd, &after), 0);
    assert_int_equal(before.st_size, CAPACITY);
    assert_int_equal(before.st_blocks * 512, 8 * MIB);
    assert_int_equal(after.st_blocks, 0);
    assert_int_equal(hl_device_alloc(r->device, 8 * MIB, 0, &b), HL_OK);
    assert_int_equal(((unsigned char *)b.host)[12345], 0);
    close(share.fd);
}

TEST(a_device_of_one_user_keeps_its_memory_and_still_faults)
{
    struct hl_device *d;
    struct hl_device_options options = {.keeps_memory = true};
    assert_int_equal(hl_device_open("emu:16MiB", &options, &d), HL_OK);
    struct hl_device_block b, rest;
    struct hl_device_share share;
    struct stat after;
    assert_int_equal(hl_device_alloc(d, 8 * MIB, 0, &b), HL_OK);
    assert_int_equal(hl_device_export(d, &b, &share), HL_OK);
    volatile unsigned char *at = b.host;
    *at = 9;
    assert_int_equal(hl_device_free(d, &b), HL_OK);
    assert_int_equal(touching(at, 0), SIGSEGV);
    assert_int_equal(fstat(share.fd, &after), 0);
    assert_int_equal(after.st_blocks * 512, 8 * MIB);
    /* Kept memory is not in use: the whole device can be allocated. */
    assert_int_equal(hl_device_alloc(d, 16 * MIB, 0, &rest), HL_OK);
    assert_int_equal(fstat(share.fd, &after), 0);
    assert_int_equal(after.st_blocks * 512, 16 * MIB);
    close(share.fd);
    hl_device_close(d);
}

/* Blocks that come and go in a range whose mappings the device keeps: each has its own memory at
 * its address, and there is none where there is no block. */
TEST(blocks_of_a_range_never_share_memory)
{
    enum { PLACES = 6, ROUNDS = 4000 };

    struct hl_device *d;
    struct hl_device_options options = {.keeps_memory = true};
    struct hl_device_block b[PLACES] = {0};
    int there[PLACES] = {0};
    uint64_t range, size = 64 << 10, used = 0, random = 7;
    assert_int_equal(hl_device_open("emu:256KiB", &options, &d), HL_OK); /* 4 of them */
    assert_int_equal(hl_device_reserve(d, PLACES * size, &range), HL_OK);
    for (int i = 0; i < ROUNDS; i++) {
        random = random * 6364136223846793005u + 1442695040888963407u;
        int k = (int)(random >> 33) % PLACES;
        /* Now and then two places form one longer block. */
        uint64_t len = k + 1 < PLACES && !there[k + 1] && random >> 62 == 3 ? 2 * size : size;
        if (there[k]) {
            assert_int_equal(((unsigned char *)b[k].host)[0], k + 1);
            assert_int_equal(((unsigned char *)b[k].host)[b[k].size - 1], k + 1);
            used -= b[k].size;
            assert_int_equal(hl_device_free(d, &b[k]), HL_OK);
            there[k] = 0;
        } else if (used + len <= 256 << 10 && (k == 0 || !there[k - 1] || b[k - 1].size == size) &&
                   hl_device_alloc(d, len, range + (uint64_t)k * size, &b[k]) == HL_OK) {
            memset(b[k].host, k + 1, len);
            used += len;
            there[k] = 1;
        }
        if (i % 200 == 0)
            for (int j = 0; j < PLACES; j++) {
                bool covered = there[j] || (j > 0 && there[j - 1] && b[j - 1].size > size);
                volatile unsigned char *at = (void *)(uintptr_t)(range + (uint64_t)j * size);
                assert_int_equal(touching(at, 0), covered ? 0 : SIGSEGV);
            }
    }
    assert_int_equal(hl_device_audit(d), HL_OK);
    hl_device_close(d);
}

TEST_IN(setup, teardown, an_exported_descriptor_can_neither_grow_nor_write_the_device)
{
    struct rig *r = *state;
    struct hl_device_block b;
    struct hl_device_share share;
    assert_int_equal(hl_device_alloc(r->device, MIB, 0, &b), HL_OK);
    assert_int_equal(hl_device_export(r->device, &b, &share), HL_OK);
    int seals = fcntl(share.fd, F_GET_SEALS);
    assert_int_equal(seals & (F_SEAL_GROW | F_SEAL_SHRINK), F_SEAL_GROW | F_SEAL_SHRINK);
    assert_int_equal(write(share.fd, "x", 1), -1);
    assert_ptr_equal(mmap(NULL, MIB, PROT_READ | PROT_WRITE, MAP_SHARED, share.fd, 0), MAP_FAILED);
    assert_int_equal(errno, EACCES);
    struct hl_device_block in;
    assert_int_equal(hl_device_import(r->device, &share, &in), HL_OK);
    assert_int_equal(touching(in.host, 0), 0);
    assert_int_equal(touching(in.host, 1), SIGSEGV);
    unsigned char *at = in.host;
    assert_int_equal(hl_device_free(r->device, &in), HL_OK);
    assert_int_equal(touching(at, 0), SIGSEGV);
    close(share.fd);
}

TEST_IN(setup, teardown, a_memfd_that_could_shrink_is_not_imported)
{
    struct rig *r = *state;
    struct hl_device_block b;
    int fd = memfd_create("loose", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    assert_int_equal(ftruncate(fd, MIB), 0);
    struct hl_device_share share = {.fd = fd, .size = MIB};
    assert_int_equal(hl_device_import(r->device, &share, &b), HL_EPERM);
    assert_int_equal(fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK), 0);
    share.size = 2 * MIB;
    assert_int_equal(hl_device_import(r->device, &share, &b), HL_EINVAL);
    share.size = MIB;
    assert_int_equal(hl_device_import(r->device, &share, &b), HL_OK);
    close(fd);
}

TEST_IN(setup, teardown, scattered_room_is_told_apart_from_no_room)
{
    struct rig *r = *state;
    struct hl_device_block b[4], c;
    for (int i = 0; i < 4; i++)
        assert_int_equal(hl_device_alloc(r->device, 16 * MIB, 0, &b[i]), HL_OK);
    assert_int_equal(hl_device_free(r->device, &b[0]), HL_OK);
    assert_int_equal(hl_device_free(r->device, &b[2]), HL_OK);
    assert_int_equal(info(r).free, 32 * MIB);
    assert_int_equal(info(r).largest, 16 * MIB);
    assert_int_equal(hl_device_alloc(r->device, 20 * MIB, 0, &c), HL_ENOSPC);
    assert_error_has("33554432 free, but only 16777216 of them in one piece");
    assert_int_equal(info(r).used, 32 * MIB);
    assert_int_equal(hl_device_audit(r->device), HL_OK);
}

TEST(an_importer_has_no_memory_of_its_own)
{
    struct hl_device *d;
    struct hl_device_block b;
    struct hl_device_info i;
    assert_int_equal(hl_device_open("emu", NULL, &d), HL_OK);
    assert_int_equal(hl_device_alloc(d, 1, 0, &b), HL_ENOSPC);
    hl_device_info(d, &i);
    assert_int_equal(i.capacity + i.free + i.largest, 0);
    hl_device_close(d);
}

TEST(the_spec_says_what_is_emulated)
{
    struct hl_device *d;
    struct hl_device_info i;
    assert_int_equal(hl_device_open("emu:1MiB:nic=no:numa=0", NULL, &d), HL_OK);
    hl_device_info(d, &i);
    assert_string_equal(i.kind, "emu");
    assert_string_equal(i.name, "emu:1MiB:nic=no:numa=0");
    assert_true(i.numa == 0 || i.numa == -1); /* if a container must not bind */
    assert_true(i.nic_direct == 0 && i.capacity == MIB && i.shareable && i.ranges);
    struct hl_device_block b;
    assert_int_equal(hl_device_alloc(d, MIB, 0, &b), HL_OK);
    hl_device_close(d);
}

TEST(specs_that_say_nothing_are_refused_by_name)
{
    static const char *const bad[] = {"",
                                      "emux",
                                      "rocm:0",
                                      "emu:",
                                      "emu:0",
                                      "emu:12",
                                      "emu:-1",
                                      "emu:1MiB:nic=yes",
                                      "emu:banana",
                                      "emu:1MiB:numa=",
                                      "emu:1MiB:numa=2000",
                                      "emu:16EiB"};
    for (size_t i = 0; i < HL_ARRAY_LEN(bad); i++) {
        struct hl_device *d = NULL;
        assert_int_equal(hl_device_open(bad[i], NULL, &d), HL_EINVAL);
        assert_error_has(bad[i]);
        assert_null(d);
    }
}
