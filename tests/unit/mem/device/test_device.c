/* What every device must do with any back end. */
#include <pthread.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "unit/mem/device/device_rig.h"

static struct hl_device_block block_of(struct rig *r, uint64_t size, uint64_t at)
{
    struct hl_device_block b;
    hl_status st = hl_device_alloc(r->device, size, at, &b);
    if (st != HL_OK)
        fail_msg("alloc %llu: %s", (unsigned long long)size, hl_error_text());
    return b;
}

static void put(struct rig *r, const struct hl_device_block *b, unsigned seed)
{
    unsigned char *bytes = filled(b->size, seed);
    assert_int_equal(hl_device_copy_in(r->device, b, 0, bytes, b->size), HL_OK);
    free(bytes);
}

static void assert_holds(struct rig *r, const struct hl_device_block *b, unsigned seed)
{
    unsigned char *want = filled(b->size, seed), *got = calloc(1, b->size);
    assert_non_null(got);
    assert_int_equal(hl_device_copy_out(r->device, b, 0, got, b->size), HL_OK);
    assert_memory_equal(want, got, b->size);
    free(want);
    free(got);
}

static void drop(struct rig *r, const struct hl_device_block *b)
{
    assert_int_equal(hl_device_free(r->device, b), HL_OK);
    assert_int_equal(hl_device_audit(r->device), HL_OK);
}

static void what_is_copied_in_comes_out_at_any_offset(void **state)
{
    struct rig *r = *state;
    struct hl_device_block b = block_of(r, 3 * MIB + 5, HL_DEVICE_ANYWHERE);
    assert_true(b.size >= 3 * MIB + 5);
    assert_int_equal(b.size % r->granule, 0);
    assert_true(b.address != 0);
    put(r, &b, 1);
    assert_holds(r, &b, 1);
    unsigned char word[16] = "sixteen bytes!!", got[16];
    assert_int_equal(hl_device_copy_in(r->device, &b, 4093, word, 16), HL_OK);
    assert_int_equal(hl_device_copy_out(r->device, &b, 4093, got, 16), HL_OK);
    assert_memory_equal(word, got, 16);
    assert_int_equal(hl_device_copy_in(r->device, &b, b.size, word, 0), HL_OK);
    drop(r, &b);
}

static void a_copy_within_the_device_moves_bytes_between_blocks(void **state)
{
    struct rig *r = *state;
    struct hl_device_block a = block_of(r, 2 * MIB, 0), b = block_of(r, 4 * MIB, 0);
    put(r, &a, 3);
    assert_int_equal(hl_device_copy_within(r->device, &b, MIB, &a, 0, 2 * MIB), HL_OK);
    unsigned char *want = filled(a.size, 3), *got = malloc(2 * MIB);
    assert_int_equal(hl_device_copy_out(r->device, &b, MIB, got, 2 * MIB), HL_OK);
    assert_memory_equal(want, got, 2 * MIB);
    free(want);
    free(got);
    drop(r, &a);
    drop(r, &b);
}

/* Only for the emulated device is the result defined. */
static void a_copy_may_overlap_its_source(void **state)
{
    struct rig *r = *state;
    struct hl_device_block b = block_of(r, 2 * MIB, 0);
    unsigned char *want = filled(2 * MIB, 4), *got = malloc(2 * MIB);
    put(r, &b, 4);
    assert_int_equal(hl_device_copy_within(r->device, &b, 100, &b, 0, MIB), HL_OK);
    memmove(want + 100, want, MIB);
    assert_int_equal(hl_device_copy_within(r->device, &b, 0, &b, 999, MIB), HL_OK);
    memmove(want, want + 999, MIB);
    assert_int_equal(hl_device_copy_out(r->device, &b, 0, got, 2 * MIB), HL_OK);
    assert_memory_equal(want, got, 2 * MIB);
    free(want);
    free(got);
    drop(r, &b);
}

static void capacity_is_hard_and_a_refusal_names_asked_and_free(void **state)
{
    struct rig *r = *state;
    struct hl_device_block big = block_of(r, CAPACITY - r->granule, 0), last, none = {.id = 77};
    assert_int_equal(info(r).used, CAPACITY - r->granule);
    assert_int_equal(info(r).free, r->granule);
    assert_int_equal(hl_device_alloc(r->device, r->granule + 1, 0, &none), HL_ENOSPC);
    char asked[40], left[40];
    snprintf(asked, sizeof(asked), "%llu bytes requested", (unsigned long long)(2 * r->granule));
    snprintf(left, sizeof(left), "%llu of %llu free", (unsigned long long)r->granule,
             (unsigned long long)CAPACITY);
    assert_error_has(asked);
    assert_error_has(left);
    assert_int_equal(none.id, 77);
    assert_int_equal(info(r).used, CAPACITY - r->granule);
    last = block_of(r, 1, 0);
    assert_int_equal(last.size, r->granule);
    assert_int_equal(info(r).free, 0);
    assert_int_equal(hl_device_alloc(r->device, 1, 0, &none), HL_ENOSPC);
    drop(r, &big);
    drop(r, &last);
    assert_int_equal(info(r).used, 0);
    assert_int_equal(info(r).free, CAPACITY);
    assert_int_equal(info(r).blocks, 0);
}

static void sizes_that_cannot_be_are_refused(void **state)
{
    struct rig *r = *state;
    struct hl_device_block b = {0};
    assert_int_equal(hl_device_alloc(r->device, 0, 0, &b), HL_EINVAL);
    assert_int_equal(hl_device_alloc(r->device, UINT64_MAX, 0, &b), HL_EINVAL);
    assert_int_equal(hl_device_alloc(r->device, (uint64_t)INT64_MAX / 2, 0, &b), HL_ENOSPC);
    assert_int_equal(info(r).used, 0);
}

static void copies_outside_the_block_are_refused(void **state)
{
    struct rig *r = *state;
    struct hl_device_block b = block_of(r, r->granule, 0);
    char byte = 0;
    assert_int_equal(hl_device_copy_in(r->device, &b, b.size, &byte, 1), HL_EINVAL);
    assert_int_equal(hl_device_copy_out(r->device, &b, UINT64_MAX, &byte, 1), HL_EINVAL);
    assert_int_equal(hl_device_copy_out(r->device, &b, 1, &byte, b.size), HL_EINVAL);
    drop(r, &b);
}

static void a_freed_block_is_stale_everywhere_also_when_its_room_serves_again(void **state)
{
    struct rig *r = *state;
    struct hl_device_block b = block_of(r, r->granule, 0), old = b;
    struct hl_device_copy copy;
    struct hl_device_share share;
    char byte = 0;
    drop(r, &b);
    struct hl_device_block next = block_of(r, r->granule, 0);
    assert_int_equal(hl_device_free(r->device, &old), HL_ESTALE);
    assert_int_equal(hl_device_copy_in(r->device, &old, 0, &byte, 1), HL_ESTALE);
    assert_int_equal(hl_device_copy_out(r->device, &old, 0, &byte, 1), HL_ESTALE);
    assert_int_equal(hl_device_copy_within(r->device, &next, 0, &old, 0, 1), HL_ESTALE);
    assert_int_equal(hl_device_begin_in(r->device, &old, 0, &byte, 1, &copy), HL_ESTALE);
    assert_int_equal(hl_device_map(r->device, 0, &old), HL_ESTALE);
    assert_int_equal(hl_device_unmap(r->device, &old), HL_ESTALE);
    assert_int_equal(hl_device_export(r->device, &old, &share), HL_ESTALE);
    assert_int_equal(hl_device_free(r->device, &(struct hl_device_block){.id = 0}), HL_ESTALE);
    drop(r, &next); /* the refusals left no trace on the device */
}

static void blocks_come_and_go_at_one_address_of_a_range(void **state)
{
    struct rig *r = *state;
    uint64_t range, size = 8 * MIB;
    assert_int_equal(hl_device_reserve(r->device, 3 * size, &range), HL_OK);
    assert_int_equal(info(r).used, 0);
    for (unsigned round = 0; round < 5; round++) {
        struct hl_device_block a = block_of(r, size, range + size);
        struct hl_device_block b = block_of(r, size, range);
        assert_true(a.address == range + size && b.address == range);
        put(r, &a, round);
        put(r, &b, round + 100);
        assert_holds(r, &a, round);
        assert_holds(r, &b, round + 100);
        drop(r, &a);
        drop(r, &b);
    }
    assert_int_equal(hl_device_unreserve(r->device, range), HL_OK);
}

static void memory_keeps_its_bytes_when_it_is_mapped_elsewhere(void **state)
{
    struct rig *r = *state;
    uint64_t range;
    char byte;
    assert_int_equal(hl_device_reserve(r->device, 8 * MIB, &range), HL_OK);
    struct hl_device_block b = block_of(r, 4 * MIB, HL_DEVICE_UNMAPPED);
    assert_true(b.address == 0 && b.host == NULL);
    assert_int_equal(info(r).used, 4 * MIB);
    assert_int_equal(hl_device_copy_out(r->device, &b, 0, &byte, 1), HL_EINVAL);
    assert_error_has("not mapped");
    assert_int_equal(hl_device_map(r->device, range + 4 * MIB, &b), HL_OK);
    assert_true(b.address == range + 4 * MIB);
    assert_int_equal(hl_device_map(r->device, range, &b), HL_EEXIST);
    struct hl_device_block other = block_of(r, r->granule, HL_DEVICE_UNMAPPED);
    assert_int_equal(hl_device_map(r->device, range + 4 * MIB, &other), HL_EBUSY);
    assert_int_equal(hl_device_map(r->device, range, &other),
                     HL_OK); /* the failure did not block it */
    drop(r, &other);
    put(r, &b, 9);
    assert_int_equal(hl_device_unmap(r->device, &b), HL_OK);
    assert_int_equal(hl_device_unmap(r->device, &b), HL_OK);
    assert_true(b.address == 0);
    assert_int_equal(hl_device_map(r->device, range, &b), HL_OK);
    assert_holds(r, &b, 9);
    assert_int_equal(hl_device_unmap(r->device, &b), HL_OK);
    assert_int_equal(hl_device_map(r->device, HL_DEVICE_ANYWHERE, &b), HL_OK);
    assert_holds(r, &b, 9);
    drop(r, &b);
    assert_int_equal(hl_device_unreserve(r->device, range), HL_OK);
}

static void a_place_is_whole_granules_in_a_range_and_taken_once(void **state)
{
    struct rig *r = *state;
    uint64_t range, g = r->granule;
    struct hl_device_block b = {0}, two;
    assert_int_equal(hl_device_reserve(r->device, 4 * g, &range), HL_OK);
    assert_int_equal(range % g, 0);
    assert_int_equal(hl_device_alloc(r->device, g, range + 1, &b), HL_EINVAL);
    assert_int_equal(hl_device_alloc(r->device, g, range + 4 * g, &b), HL_EINVAL);
    assert_int_equal(hl_device_alloc(r->device, 2 * g, range + 3 * g, &b), HL_EINVAL);
    two = block_of(r, 2 * g, range + g);
    assert_int_equal(hl_device_alloc(r->device, g, range + 2 * g, &b), HL_EBUSY);
    assert_int_equal(hl_device_alloc(r->device, 2 * g, range, &b), HL_EBUSY);
    assert_int_equal(hl_device_unreserve(r->device, range), HL_EBUSY);
    assert_int_equal(info(r).used, 2 * g);
    b = block_of(r, g, range + 3 * g);
    drop(r, &b);
    drop(r, &two);
    assert_int_equal(hl_device_unreserve(r->device, range), HL_OK);
    assert_int_equal(hl_device_unreserve(r->device, range), HL_ENOENT);
    assert_int_equal(hl_device_alloc(r->device, g, range, &b), HL_EINVAL);
}

static void copies_that_were_begun_end_with_their_bytes(void **state)
{
    enum { COUNT = 12 };
    struct rig *r = *state;
    struct hl_device_block b = block_of(r, COUNT * MIB, 0);
    struct hl_device_copy in[COUNT], out[COUNT];
    unsigned char *src = filled(COUNT * MIB, 5), *dst = calloc(COUNT, MIB);
    for (size_t i = 0; i < COUNT; i++)
        assert_int_equal(hl_device_begin_in(r->device, &b, i * MIB, src + i * MIB, MIB, &in[i]),
                         HL_OK);
    for (size_t i = COUNT; i-- > 0;) /* in any order */
        assert_int_equal(hl_device_wait(&in[i], WAIT_MS), HL_OK);
    for (size_t i = 0; i < COUNT; i++)
        assert_int_equal(hl_device_begin_out(r->device, &b, i * MIB, dst + i * MIB, MIB, &out[i]),
                         HL_OK);
    for (size_t i = 0; i < COUNT; i++)
        assert_int_equal(hl_device_wait(&out[i], WAIT_MS), HL_OK);
    assert_memory_equal(src, dst, COUNT * MIB);
    assert_int_equal(hl_device_wait(&out[0], 0), HL_EINVAL); /* it has ended */
    free(src);
    free(dst);
    drop(r, &b);
}

static void copies_of_the_same_memory_keep_their_order(void **state)
{
    enum { COUNT = 8, ROUNDS = 20 };
    struct rig *r = *state;
    struct hl_device_block b = block_of(r, MIB, 0);
    struct hl_device_copy in[COUNT];
    unsigned char *src = calloc(COUNT, MIB), *dst = calloc(1, MIB);
    for (size_t i = 0; i < COUNT; i++)
        memset(src + i * MIB, (int)i + 1, MIB);
    for (size_t round = 0; round < ROUNDS; round++) {
        for (size_t i = 0; i < COUNT; i++)
            assert_int_equal(hl_device_begin_in(r->device, &b, 0, src + i * MIB, MIB, &in[i]),
                             HL_OK);
        for (size_t i = 0; i < COUNT; i++) /* starting at another end each time */
            assert_int_equal(hl_device_wait(&in[(i + round) % COUNT], WAIT_MS), HL_OK);
        assert_int_equal(hl_device_copy_out(r->device, &b, 0, dst, MIB), HL_OK);
        assert_memory_equal(dst, src + (COUNT - 1) * MIB, MIB);
        memset(dst, 0, MIB);
    }
    free(src);
    free(dst);
    drop(r, &b);
}

static void a_block_is_not_freed_under_a_copy(void **state)
{
    struct rig *r = *state;
    struct hl_device_block b = block_of(r, MIB, 0);
    struct hl_device_copy copy;
    unsigned char *src = filled(MIB, 6);
    assert_int_equal(hl_device_begin_in(r->device, &b, 0, src, MIB, &copy), HL_OK);
    assert_int_equal(hl_device_free(r->device, &b), HL_EBUSY);
    assert_int_equal(hl_device_unmap(r->device, &b), HL_EBUSY);
    assert_int_equal(hl_device_wait(&copy, WAIT_MS), HL_OK);
    drop(r, &b);
    free(src);
}

struct churn {
    struct rig *rig;
    unsigned seed;
    uint64_t refused;
    int bad;
};

static void *churn(void *arg)
{
    struct churn *c = arg;
    struct hl_device *d = c->rig->device;
    unsigned char src[4096], dst[4096];
    for (unsigned i = 0; i < 40; i++) {
        struct hl_device_block b;
        fill(src, sizeof(src), c->seed * 1000 + i);
        hl_status st = hl_device_alloc(d, (1 + (i * 7 + c->seed) % 13) * MIB, 0, &b);
        if (st == HL_ENOSPC) {
            c->refused++;
            continue;
        }
        c->bad += st != HL_OK || hl_device_copy_in(d, &b, MIB - 4096, src, sizeof(src)) != HL_OK ||
                  hl_device_copy_out(d, &b, MIB - 4096, dst, sizeof(dst)) != HL_OK ||
                  memcmp(src, dst, sizeof(src)) != 0;
        c->bad += st == HL_OK && hl_device_free(d, &b) != HL_OK;
    }
    return NULL;
}

static void threads_keep_the_books_straight(void **state)
{
    enum { THREADS = 4 };
    struct rig *r = *state;
    struct churn c[THREADS];
    pthread_t thread[THREADS];
    for (unsigned i = 0; i < THREADS; i++) {
        c[i] = (struct churn){.rig = r, .seed = i};
        assert_int_equal(pthread_create(&thread[i], NULL, churn, &c[i]), 0);
    }
    for (unsigned i = 0; i < THREADS; i++) {
        pthread_join(thread[i], NULL);
        assert_int_equal(c[i].bad, 0);
    }
    assert_int_equal(hl_device_audit(r->device), HL_OK);
    assert_int_equal(info(r).used, 0);
}

static void closing_ends_what_was_left(void **state)
{
    struct rig *r = *state;
    uint64_t range;
    assert_int_equal(hl_device_reserve(r->device, 8 * MIB, &range), HL_OK);
    (void)block_of(r, MIB, 0);
    (void)block_of(r, MIB, HL_DEVICE_UNMAPPED);
    (void)block_of(r, MIB,
                   range); /* the teardown closes the device; the sanitizer and the stub check */
}

/* ---- other processes ---- */

static void send_share(int s, const struct hl_device_share *share)
{
    char control[CMSG_SPACE(sizeof(int))] = {0};
    struct iovec v = {.iov_base = (void *)share, .iov_len = sizeof(*share)};
    struct msghdr m = {
        .msg_iov = &v, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof(control)};
    struct cmsghdr *c = CMSG_FIRSTHDR(&m);
    c->cmsg_level = SOL_SOCKET;
    c->cmsg_type = SCM_RIGHTS;
    c->cmsg_len = CMSG_LEN(sizeof(int));
    memcpy(CMSG_DATA(c), &share->fd, sizeof(int));
    assert_int_equal(sendmsg(s, &m, 0), sizeof(*share));
}

static bool receive_share(int s, struct hl_device_share *share)
{
    char control[CMSG_SPACE(sizeof(int))] = {0};
    struct iovec v = {.iov_base = share, .iov_len = sizeof(*share)};
    struct msghdr m = {
        .msg_iov = &v, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof(control)};
    if (recvmsg(s, &m, 0) != sizeof(*share) || CMSG_FIRSTHDR(&m) == NULL)
        return false;
    memcpy(&share->fd, CMSG_DATA(CMSG_FIRSTHDR(&m)), sizeof(int));
    return true;
}

/* In a child that shares only the socket: returns 0 if all is well. */
static int rank(const struct rig *r, int s)
{
    struct hl_device_share share;
    struct hl_device_block b;
    struct hl_device *d;
    char byte = 1;
    const char *spec = strncmp(r->spec, "emu", 3) == 0 ? "emu" : r->spec;
    if (hl_device_open(spec, &r->options, &d) != HL_OK)
        return 10;
    if (!receive_share(s, &share) || hl_device_import(d, &share, &b) != HL_OK)
        return 11;
    close(share.fd);
    unsigned char *want = filled(b.size, 42), *got = malloc(b.size);
    if (hl_device_copy_out(d, &b, 0, got, b.size) != HL_OK || memcmp(want, got, b.size) != 0)
        return 12;
    if (!b.read_only || hl_device_copy_in(d, &b, 0, &byte, 1) != HL_EPERM)
        return 13;
    struct hl_device_info i;
    hl_device_info(d, &i);
    if (i.used != 0 || i.blocks != 1 || hl_device_export(d, &b, &share) != HL_EPERM)
        return 14;
    if (hl_device_free(d, &b) != HL_OK || hl_device_audit(d) != HL_OK)
        return 15;
    free(want);
    free(got);
    hl_device_close(d);
    return 0;
}

static void another_process_reads_a_block_that_was_exported_to_it(void **state)
{
    struct rig *r = *state;
    int pair[2], status;
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, pair), 0);
    pid_t child = fork(); /* before this process has opened a device */
    if (child == 0)
        _exit(rank(r, pair[1]));
    assert_int_equal(hl_device_open(r->spec, &r->options, &r->device), HL_OK);
    struct hl_device_block other = block_of(r, MIB, 0), b = block_of(r, 4 * MIB, 0);
    struct hl_device_share share;
    put(r, &other, 1);
    put(r, &b, 42);
    assert_int_equal(hl_device_export(r->device, &b, &share), HL_OK);
    assert_int_equal(share.size, 4 * MIB);
    send_share(pair[0], &share);
    close(share.fd);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
    close(pair[0]);
    close(pair[1]);
    drop(r, &b);
    drop(r, &other);
    hl_device_close(r->device);
}

static void what_is_no_exported_block_is_refused(void **state)
{
    struct rig *r = *state;
    struct hl_device_block b = {.id = 5};
    struct hl_device_share share = {.fd = -1, .size = r->granule};
    assert_int_not_equal(hl_device_import(r->device, &share, &b), HL_OK);
    int pipe_fd[2];
    assert_int_equal(pipe(pipe_fd), 0);
    share.fd = pipe_fd[0];
    assert_int_not_equal(hl_device_import(r->device, &share, &b), HL_OK);
    share.size = 0;
    assert_int_equal(hl_device_import(r->device, &share, &b), HL_EINVAL);
    share.size = r->granule + 1;
    assert_int_equal(hl_device_import(r->device, &share, &b), HL_EINVAL);
    assert_int_equal(b.id, 5);
    assert_int_equal(info(r).blocks, 0);
    close(pipe_fd[0]);
    close(pipe_fd[1]);
}

static void pinned_memory_copies_as_any_other(void **state)
{
    struct rig *r = *state;
    struct hl_device_block b = block_of(r, MIB, 0);
    void *ptr = NULL;
    assert_int_equal(posix_memalign(&ptr, 65536, MIB), 0);
    assert_int_equal(hl_device_pin(r->device, ptr, MIB), HL_OK);
    fill(ptr, MIB, 8);
    assert_int_equal(hl_device_copy_in(r->device, &b, 0, ptr, MIB), HL_OK);
    memset(ptr, 0, MIB);
    assert_int_equal(hl_device_copy_out(r->device, &b, 0, ptr, MIB), HL_OK);
    unsigned char *want = filled(MIB, 8);
    assert_memory_equal(want, ptr, MIB);
    hl_device_unpin(r->device, ptr);
    free(want);
    free(ptr);
    drop(r, &b);
}

/* ---- groups ---- */

static struct rig emu = {.spec = "emu:64MiB"};
static struct rig stub = {.spec = "cuda:0:64MiB"};
static struct rig cuda = {.spec = "cuda:0:64MiB"};

static int setup(void **state)
{
    struct rig *r = *state;
    if (hl_device_open(r->spec, &r->options, &r->device) != HL_OK) {
        print_error("%s\n", hl_error_text());
        return -1;
    }
    r->granule = info(r).granule;
    return 0;
}

static int teardown(void **state)
{
    struct rig *r = *state;
    hl_device_close(r->device);
    r->device = NULL;
    return 0;
}

#define T(rig, f)                                                                                  \
    {                                                                                              \
#f ": " #rig, f, setup, teardown, &rig                                                     \
    }

#define CONFORMANCE(rig)                                                                           \
    {                                                                                              \
        T(rig, what_is_copied_in_comes_out_at_any_offset),                                         \
            T(rig, a_copy_within_the_device_moves_bytes_between_blocks),                           \
            T(rig, capacity_is_hard_and_a_refusal_names_asked_and_free),                           \
            T(rig, sizes_that_cannot_be_are_refused),                                              \
            T(rig, copies_outside_the_block_are_refused),                                          \
            T(rig, a_freed_block_is_stale_everywhere_also_when_its_room_serves_again),             \
            T(rig, blocks_come_and_go_at_one_address_of_a_range),                                  \
            T(rig, memory_keeps_its_bytes_when_it_is_mapped_elsewhere),                            \
            T(rig, a_place_is_whole_granules_in_a_range_and_taken_once),                           \
            T(rig, copies_that_were_begun_end_with_their_bytes),                                   \
            T(rig, copies_of_the_same_memory_keep_their_order),                                    \
            T(rig, a_block_is_not_freed_under_a_copy), T(rig, threads_keep_the_books_straight),    \
            T(rig, closing_ends_what_was_left), T(rig, what_is_no_exported_block_is_refused),      \
            T(rig, pinned_memory_copies_as_any_other),                                             \
    }

/* A forked child can't use a driver that its parent has used, so this comes first. */
#define SHARING(rig)                                                                               \
    {                                                                                              \
        {"another_process_reads_a_block_that_was_exported_to_it: " #rig,                           \
         another_process_reads_a_block_that_was_exported_to_it, NULL, NULL, &rig},                 \
    }

/* Asked in a child, for the same reason. */
static bool have_cuda(void)
{
    int status;
    pid_t child = fork();
    if (child == 0) {
        struct hl_device *d;
        hl_status st = hl_device_open(cuda.spec, NULL, &d);
        if (st != HL_OK)
            fprintf(stderr, "skipped: the tests on hardware: %s\n", hl_error_text());
        _exit(st == HL_OK);
    }
    return waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 1;
}

int main(void)
{
    char library[512];
    const char *build = getenv("HELIOS_BUILD");
    snprintf(library, sizeof(library), "%s/tests/libcuda_stub.so", build != NULL ? build : "build");
    stub.options.cuda_driver = library;
    setenv("CUDA_STUB_DELAY_US", "200", 0);
    const struct CMUnitTest emu_share[] = SHARING(emu), emu_tests[] = CONFORMANCE(emu);
    const struct CMUnitTest emu_only[] = {T(emu, a_copy_may_overlap_its_source)};
    const struct CMUnitTest stub_share[] = SHARING(stub), stub_tests[] = CONFORMANCE(stub);
    const struct CMUnitTest cuda_share[] = SHARING(cuda), cuda_tests[] = CONFORMANCE(cuda);
    int failed = cmocka_run_group_tests_name("emu: sharing", emu_share, NULL, NULL) +
                 cmocka_run_group_tests_name("cuda on a stub: sharing", stub_share, NULL, NULL);
    bool hardware = have_cuda();
    if (hardware)
        failed += cmocka_run_group_tests_name("cuda: sharing", cuda_share, NULL, NULL);
    failed += cmocka_run_group_tests_name("emu", emu_tests, NULL, NULL) +
              cmocka_run_group_tests_name("emu alone", emu_only, NULL, NULL) +
              cmocka_run_group_tests_name("cuda on a stub", stub_tests, NULL, NULL);
    if (hardware)
        failed += cmocka_run_group_tests_name("cuda", cuda_tests, NULL, NULL);
    return failed;
}
