/* Chunks that several clients share in one copy: hybridps_share_host. */
#include "support/test.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/status.h"
#include "helios/hybridps.h"

#define OK(call) assert_int_equal(call, 0)
#define COUNT    4 /* tensors, two to a chunk */

struct rank {
    hybridps *h;
    uint32_t t[COUNT];
    uint8_t *host[COUNT];
    size_t bytes; /* of a tensor: pages, and a part of one */
};

/* Both ranks in one process, which makes no difference to the file. */
static struct rank rank_make(int file)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    struct rank r = {.bytes = 3 * page + 640};
    char device[64];
    snprintf(device, sizeof(device), "emu:%zu", 64 * page);
    const hybridps_options o = {HYBRIDPS_OPTIONS_INIT,   .device = device,  .policy = "lru",
                                .chunk_bytes = 8 * page, .manager = "none", .spill = "none"};
    OK(hybridps_open(&o, &r.h));
    OK(hybridps_serve_faults(r.h));
    OK(hybridps_share_host(r.h, file, 1u << HYBRIDPS_PARAM));
    for (size_t i = 0; i < COUNT; i++)
        OK(hybridps_add(r.h, "tensor", HYBRIDPS_PARAM, r.bytes, &r.t[i]));
    OK(hybridps_layout(r.h));
    for (size_t i = 0; i < COUNT; i++) {
        hybridps_use use = {.tensor = r.t[i], .where = HYBRIDPS_HOST, .write = 1};
        OK(hybridps_access(r.h, &use, 1));
        r.host[i] = use.address;
    }
    return r;
}

static int file_make(void)
{
    int file = memfd_create("share", MFD_CLOEXEC);
    assert_true(file >= 0);
    OK(ftruncate(file, 1 << 30));
    return file;
}

static void expect(const struct rank *r, size_t i, int value)
{
    assert_int_equal(r->host[i][0], value);
    assert_int_equal(r->host[i][r->bytes - 1], value);
    assert_int_equal(r->host[i][r->bytes / 2], value);
}

TEST(a_write_is_its_rank_s_until_it_is_published_and_renewed)
{
    int file = file_make();
    struct rank a = rank_make(file), b = rank_make(file);
    for (int i = 0; i < COUNT; i++) {
        memset(a.host[i], 10 + i, a.bytes);
        memset(b.host[i], 20 + i, b.bytes);
    }
    OK(hybridps_publish(a.h, a.t, 2));
    OK(hybridps_publish(b.h, b.t + 2, 2));
    for (size_t i = 0; i < COUNT; i++) {
        expect(&a, i, 10 + (int)i);
        expect(&b, i, 20 + (int)i);
    }
    OK(hybridps_renew(b.h, b.t, 1)); /* its neighbour on the same page remains b's */
    expect(&b, 0, 10);
    expect(&b, 1, 21);
    OK(hybridps_renew(b.h, b.t, COUNT));
    OK(hybridps_renew(a.h, a.t, COUNT));
    for (size_t i = 0; i < COUNT; i++) {
        expect(&a, i, i < 2 ? 10 + (int)i : 20 + (int)i);
        expect(&b, i, i < 2 ? 10 + (int)i : 20 + (int)i);
    }
    struct stat s;
    OK(fstat(file, &s));
    assert_true((uint64_t)s.st_blocks * 512 <= COUNT * (a.bytes + 2 * 4096));
    memset(a.host[0], 77, a.bytes);
    expect(&b, 0, 10);
    hybridps_close(a.h);
    expect(&b, 1, 11);
    hybridps_close(b.h);
    close(file);
}

static uint64_t blocks_of(int file)
{
    struct stat s;
    OK(fstat(file, &s));
    return (uint64_t)s.st_blocks * 512;
}

TEST(what_is_withdrawn_is_free_until_it_is_published_again)
{
    int file = file_make();
    struct rank a = rank_make(file), b = rank_make(file);
    hybridps_use there = {.tensor = a.t[0], .where = HYBRIDPS_DEVICE, .write = 1};
    memset(a.host[0], 1, 2 * a.bytes);
    OK(hybridps_publish(a.h, a.t, COUNT));
    uint64_t all = blocks_of(file);
    assert_int_equal(hybridps_withdraw(a.h, a.t[0]), HL_EINVAL); /* it is on the host */
    OK(hybridps_release(a.h, a.t, COUNT, HYBRIDPS_HOLD));
    OK(hybridps_access(a.h, &there, 1));
    memset(there.address, 5, a.bytes);
    OK(hybridps_withdraw(a.h, a.t[0]));
    assert_true(blocks_of(file) <= all / 2);
    expect(&b, 0, 0);
    expect(&b, 2, 0);
    OK(hybridps_release(a.h, a.t, 1, HYBRIDPS_HOLD));
    hybridps_use home = {.tensor = a.t[0], .where = HYBRIDPS_HOST};
    OK(hybridps_access(a.h, &home, 1));
    OK(hybridps_publish(a.h, a.t, 1));
    expect(&b, 0, 5);
    assert_int_equal(hybridps_withdraw(a.h, 999), HL_ENOENT);
    hybridps_close(a.h);
    hybridps_close(b.h);
    close(file);
}

TEST(what_is_not_shared_or_not_in_use_is_refused)
{
    int file = file_make();
    struct rank a = rank_make(file);
    uint32_t own, none = 999;
    OK(hybridps_share_host(a.h, -1, 0));
    OK(hybridps_add(a.h, "own", HYBRIDPS_GRAD, a.bytes, &own));
    OK(hybridps_layout(a.h));
    assert_int_equal(hybridps_publish(a.h, &own, 1), HL_EINVAL);
    assert_int_equal(hybridps_renew(a.h, &none, 1), HL_ENOENT);
    OK(hybridps_release(a.h, a.t, COUNT, HYBRIDPS_HOLD));
    assert_int_equal(hybridps_renew(a.h, a.t, 1), HL_EINVAL);
    hybridps_close(a.h);
    close(file);
}

TEST(a_write_beside_the_device_s_copy_counts_and_a_publication_too)
{
    int file = file_make();
    struct rank a = rank_make(file), b = rank_make(file);
    hybridps_use there = {.tensor = a.t[0], .where = HYBRIDPS_DEVICE};
    memset(a.host[0], 1, a.bytes);
    OK(hybridps_publish(a.h, a.t, 1));
    OK(hybridps_release(a.h, a.t, COUNT, HYBRIDPS_HOLD));
    OK(hybridps_access(a.h, &there, 1)); /* on both now */
    assert_int_equal(*(uint8_t *)there.address, 1);
    OK(hybridps_release(a.h, a.t, 1, HYBRIDPS_HOLD));
    memset(b.host[0], 2, b.bytes);
    OK(hybridps_publish(b.h, b.t, 1));
    hybridps_use here = {.tensor = a.t[0], .where = HYBRIDPS_HOST, .write = 1};
    OK(hybridps_access(a.h, &here, 1));
    OK(hybridps_renew(a.h, a.t, 1));
    OK(hybridps_release(a.h, a.t, 1, HYBRIDPS_HOLD));
    OK(hybridps_access(a.h, &there, 1));
    assert_int_equal(*(uint8_t *)there.address, 2);
    hybridps_close(a.h);
    hybridps_close(b.h);
    close(file);
}

static int told; /* in a child */

static int tell(void *arg)
{
    told += *(int *)arg;
    return 0;
}

static int at_once(int (*call)(void *), void *arg)
{
    return call(arg);
}

TEST(a_forked_child_is_told_that_it_can_t_read_what_is_shared)
{
    int file = file_make(), one = 1, status;
    char text[256] = "";
    struct rank a = rank_make(file);
    OK(hybridps_on_unreadable(a.h, at_once, tell, &one, text, sizeof(text)));
    memset(a.host[0], 5, a.bytes);
    pid_t child = fork();
    if (child == 0) {
        volatile uint8_t *p = a.host[0];
        bool none = p[0] == 0xff && told == 1 && strstr(text, "in one copy") != NULL;
        bool again = hybridps_settle(a.h) == HL_EPERM && p[1] == 0xff && told == 2;
        _exit(none ? again ? 0 : 2 : 1);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
    expect(&a, 0, 5);
    hybridps_close(a.h);
    close(file);
}
