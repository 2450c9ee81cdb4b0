/* Accesses to tensors where their chunk is not present: hybridps_serve_faults. */
#include "support/test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/status.h"
#include "helios/hybridps.h"

#define OK(call) assert_int_equal(call, 0)
#define COUNT    40 /* tensors, two to a chunk */

static const char *const modes[] = {"copy", "move"};

struct world {
    hybridps *h;
    uint32_t t[COUNT];
    size_t bytes; /* of a tensor */
};

static void access_one(const struct world *w, size_t i, int where, int write)
{
    hybridps_use use = {.tensor = w->t[i], .where = where, .write = write};
    OK(hybridps_access(w->h, &use, 1));
}

static void release_one(const struct world *w, size_t i, int state)
{
    OK(hybridps_release(w->h, &w->t[i], 1, state));
}

static volatile uint8_t *at(const struct world *w, size_t i, int where)
{
    void *p;
    OK(hybridps_address(w->h, w->t[i], where, &p));
    return p;
}

/* Tensor i holds i + 1 everywhere, on the host. The device has room for six chunks. */
static struct world world_make(const char *mode, const char *policy)
{
    size_t chunk = 64 * (size_t)sysconf(_SC_PAGESIZE);
    char device[64];
    struct world w = {.bytes = chunk / 2};
    snprintf(device, sizeof(device), "emu:%zu", 6 * chunk);
    const hybridps_options o = {HYBRIDPS_OPTIONS_INIT, .device = device,     .mode = mode,
                                .policy = policy,      .chunk_bytes = chunk, .prefetch = -1,
                                .manager = "none"};
    OK(hybridps_open(&o, &w.h));
    for (size_t i = 0; i < COUNT; i++)
        OK(hybridps_add(w.h, "tensor", HYBRIDPS_PARAM, w.bytes, &w.t[i]));
    OK(hybridps_layout(w.h));
    OK(hybridps_serve_faults(w.h));
    for (size_t i = 0; i < COUNT; i++) {
        access_one(&w, i, HYBRIDPS_HOST, 1);
        memset((void *)at(&w, i, HYBRIDPS_HOST), (int)i + 1, w.bytes);
        release_one(&w, i, HYBRIDPS_HOLD);
    }
    return w;
}

static hybridps_stats_t stats_of(const struct world *w)
{
    hybridps_stats_t s = {HYBRIDPS_STATS_INIT};
    OK(hybridps_stats(w->h, &s));
    return s;
}

TEST(what_is_elsewhere_can_be_read_in_both_places_and_nothing_moves)
{
    for (size_t m = 0; m < 2; m++) {
        struct world w = world_make(modes[m], "lru");
        hybridps_stats_t before = stats_of(&w);
        for (size_t i = 0; i < COUNT; i++)
            assert_int_equal(at(&w, i, HYBRIDPS_DEVICE)[w.bytes - 1], i + 1);
        hybridps_stats_t after = stats_of(&w);
        assert_int_equal(after.faults, COUNT / 2);
        assert_int_equal(after.total.h2d, before.total.h2d);
        assert_int_equal(after.device, before.device);
        /* Only on the device, and read on the host. */
        access_one(&w, 0, HYBRIDPS_DEVICE, 1);
        memset((void *)at(&w, 0, HYBRIDPS_DEVICE), 77, w.bytes);
        assert_int_equal(at(&w, 0, HYBRIDPS_HOST)[5], 77);
        assert_int_equal(at(&w, 1, HYBRIDPS_HOST)[5], 2);
        release_one(&w, 0, HYBRIDPS_HOLD);
        access_one(&w, 0, HYBRIDPS_HOST, 0);
        assert_int_equal(at(&w, 0, HYBRIDPS_HOST)[5], 77);
        release_one(&w, 0, HYBRIDPS_HOLD);
        OK(hybridps_settle(w.h));
        hybridps_close(w.h);
    }
}

TEST(the_place_on_the_device_shows_what_is_written_on_the_host)
{
    struct world w = world_make("copy", "lru");
    access_one(&w, 0, HYBRIDPS_DEVICE, 0);
    release_one(&w, 0, HYBRIDPS_HOLD); /* it is in both places */
    volatile uint8_t *device = at(&w, 0, HYBRIDPS_DEVICE), *host = at(&w, 0, HYBRIDPS_HOST);
    assert_int_equal(device[5], 1);
    for (uint8_t value = 50; value < 54; value++) {
        host[5] = value;
        assert_int_equal(device[5], value);
        at(&w, 1, HYBRIDPS_HOST)[3] = value;
        assert_int_equal(at(&w, 1, HYBRIDPS_DEVICE)[3], value);
    }
    device[6] = 60;
    host[7] = 70;
    access_one(&w, 0, HYBRIDPS_DEVICE, 0);
    assert_int_equal(device[5], 53);
    assert_int_equal(device[6], 60);
    assert_int_equal(device[7], 70);
    release_one(&w, 0, HYBRIDPS_HOLD);
    hybridps_close(w.h);
}

TEST(what_is_written_elsewhere_becomes_the_content)
{
    for (size_t m = 0; m < 2; m++) {
        struct world w = world_make(modes[m], "lru");
        /* found by settle */
        memset((void *)at(&w, 4, HYBRIDPS_DEVICE), 91, w.bytes);
        OK(hybridps_settle(w.h));
        access_one(&w, 4, HYBRIDPS_HOST, 0);
        assert_int_equal(at(&w, 4, HYBRIDPS_HOST)[w.bytes - 1], 91);
        assert_int_equal(at(&w, 5, HYBRIDPS_HOST)[0], 6);
        release_one(&w, 4, HYBRIDPS_HOLD);
        /* found by the next access, in the other place and in this one */
        memset((void *)at(&w, 4, HYBRIDPS_DEVICE), 92, w.bytes);
        access_one(&w, 4, HYBRIDPS_DEVICE, 0);
        assert_int_equal(at(&w, 4, HYBRIDPS_DEVICE)[1], 92);
        release_one(&w, 4, HYBRIDPS_HOLD);
        for (size_t i = 10; i < COUNT; i++) { /* evicts it, copied or dropped */
            access_one(&w, i, HYBRIDPS_DEVICE, 0);
            release_one(&w, i, HYBRIDPS_HOLD);
        }
        assert_int_equal(at(&w, 4, HYBRIDPS_DEVICE)[1], 92);
        hybridps_close(w.h);
    }
}

/* The view is a snapshot of the chunk: writing it back whole would undo other writes. */
TEST(a_write_elsewhere_keeps_what_others_wrote_in_the_chunk_meanwhile)
{
    struct world w = world_make("copy", "lru");
    access_one(&w, 7, HYBRIDPS_HOST, 1);
    at(&w, 6, HYBRIDPS_DEVICE)[3] = 50;
    memset((void *)at(&w, 7, HYBRIDPS_HOST), 60, w.bytes);
    release_one(&w, 7, HYBRIDPS_HOLD);
    OK(hybridps_settle(w.h));
    access_one(&w, 6, HYBRIDPS_HOST, 0);
    assert_int_equal(at(&w, 6, HYBRIDPS_HOST)[3], 50);
    assert_int_equal(at(&w, 6, HYBRIDPS_HOST)[4], 7);
    assert_int_equal(at(&w, 7, HYBRIDPS_HOST)[4], 60);
    release_one(&w, 6, HYBRIDPS_HOLD);
    hybridps_close(w.h);
}

TEST(what_has_no_content_is_no_number_and_is_named)
{
    struct world w = world_make("copy", "lru");
    OK(hybridps_drop(w.h, w.t + 2, 2)); /* both tensors of a chunk */
    assert_int_equal(at(&w, 2, HYBRIDPS_HOST)[8], 0xff);
    assert_int_equal(hybridps_settle(w.h), HL_ESTALE);
    assert_non_null(strstr(hl_error_text(), "\"tensor\""));
    OK(hybridps_settle(w.h)); /* once */
    hybridps_close(w.h);
}

TEST(what_is_copied_to_the_device_ahead_is_never_seen_half)
{
    struct world w = world_make("copy", "opt");
    for (int k = 0; k < 30; k++) {
        OK(hybridps_iteration(w.h, "train"));
        for (size_t i = 0; i < COUNT; i++) { /* so that old device memory is wrong */
            access_one(&w, i, HYBRIDPS_HOST, 1);
            memset((void *)at(&w, i, HYBRIDPS_HOST), (int)i + k, w.bytes);
            release_one(&w, i, HYBRIDPS_HOLD);
        }
        for (size_t i = 0; i < COUNT; i++) {
            OK(hybridps_moment(w.h, "FWD", "x", 0));
            access_one(&w, i, HYBRIDPS_DEVICE, 0);
            for (size_t j = 0; j < COUNT; j++) /* some of them are in flight */
                assert_int_equal(at(&w, j, HYBRIDPS_DEVICE)[w.bytes - 1], (int)j + k);
            release_one(&w, i, HYBRIDPS_HOLD);
        }
    }
    hybridps_close(w.h);
}

TEST(a_write_to_what_leaves_the_device_ahead_counts)
{
    struct world w = world_make("copy", "opt");
    uint8_t wanted[COUNT] = {0};
    for (int k = 0; k < 30; k++) {
        OK(hybridps_iteration(w.h, "train"));
        for (size_t s = 0; s < 2 * (size_t)COUNT; s++) {
            size_t i = s < COUNT ? s : 2 * COUNT - 1 - s; /* there, and back */
            OK(hybridps_moment(w.h, s < COUNT ? "FWD" : "BWD", "x", 0));
            access_one(&w, i, HYBRIDPS_DEVICE, 1);
            memset((void *)at(&w, i, HYBRIDPS_DEVICE), wanted[i], w.bytes);
            /* Only one: a fault elsewhere would wait for everything in flight. */
            size_t j = (7 * s + (size_t)k) % COUNT;
            wanted[j]++;
            at(&w, j, HYBRIDPS_DEVICE)[0] = wanted[j];
            release_one(&w, i, HYBRIDPS_HOLD);
        }
        OK(hybridps_settle(w.h));
        for (size_t j = 0; j < COUNT; j++)
            assert_int_equal(at(&w, j, HYBRIDPS_DEVICE)[0], wanted[j]);
    }
    hybridps_close(w.h);
}

/* The same through an address on the device that was kept from before the chunk came there. */
TEST(a_write_on_the_device_that_nobody_tells_counts_although_the_host_has_it_too)
{
    struct world w = world_make("copy", "lru");
    volatile uint8_t *kept = at(&w, 0, HYBRIDPS_DEVICE), *home = at(&w, 0, HYBRIDPS_HOST);
    for (int pinned = 0; pinned < 3; pinned++) { /* nowhere; on the device; on the host */
        access_one(&w, 0, HYBRIDPS_DEVICE, 0);
        if (pinned != 1)
            release_one(&w, 0, HYBRIDPS_HOLD);
        if (pinned == 2)
            access_one(&w, 0, HYBRIDPS_HOST, 0);
        kept[9] = (uint8_t)(60 + pinned);
        assert_int_equal(kept[9], 60 + pinned);
        assert_int_equal(kept[8], 1);
        if (pinned > 0)
            release_one(&w, 0, HYBRIDPS_HOLD);
        OK(hybridps_settle(w.h));
        access_one(&w, 0, HYBRIDPS_HOST, 0);
        assert_int_equal(home[9], 60 + pinned);
        release_one(&w, 0, HYBRIDPS_HOLD);
        access_one(&w, 0, HYBRIDPS_DEVICE, 0);
        assert_int_equal(kept[9], 60 + pinned);
        release_one(&w, 0, HYBRIDPS_HOLD);
    }
    /* And after an unreported write on the host: both are kept. */
    access_one(&w, 0, HYBRIDPS_DEVICE, 0);
    release_one(&w, 0, HYBRIDPS_HOLD);
    home[3] = 70;
    kept[4] = 71;
    access_one(&w, 0, HYBRIDPS_HOST, 0);
    assert_int_equal(home[3], 70);
    assert_int_equal(home[4], 71);
    release_one(&w, 0, HYBRIDPS_HOLD);
    hybridps_close(w.h);
}

/* Both places have the content, and a kept address is written: no access reports that. */
TEST(a_write_on_the_host_that_nobody_tells_is_what_the_device_has)
{
    struct world w = world_make("copy", "lru");
    for (int pinned = 0; pinned < 2; pinned++) {
        access_one(&w, 0, HYBRIDPS_DEVICE, 0);
        if (!pinned)
            release_one(&w, 0, HYBRIDPS_HOLD);
        at(&w, 0, HYBRIDPS_HOST)[7] = (uint8_t)(80 + pinned);
        assert_int_equal(at(&w, 1, HYBRIDPS_HOST)[7], 2);
        access_one(&w, 0, HYBRIDPS_DEVICE, 0);
        assert_int_equal(at(&w, 0, HYBRIDPS_DEVICE)[7], 80 + pinned);
        assert_int_equal(at(&w, 0, HYBRIDPS_DEVICE)[8], 1);
        release_one(&w, 0, HYBRIDPS_HOLD);
        if (pinned)
            release_one(&w, 0, HYBRIDPS_HOLD);
        for (size_t i = 10; i < COUNT; i++) { /* evicts it: the host's copy is the content */
            access_one(&w, i, HYBRIDPS_DEVICE, 0);
            release_one(&w, i, HYBRIDPS_HOLD);
        }
        access_one(&w, 0, HYBRIDPS_HOST, 0);
        assert_int_equal(at(&w, 0, HYBRIDPS_HOST)[7], 80 + pinned);
        release_one(&w, 0, HYBRIDPS_HOLD);
    }
    /* While it is in flight to the device, too, and when it is about to leave. */
    access_one(&w, 2, HYBRIDPS_DEVICE, 0);
    release_one(&w, 2, HYBRIDPS_HOLD);
    at(&w, 2, HYBRIDPS_HOST)[1] = 99;
    for (size_t i = 10; i < COUNT; i++) {
        access_one(&w, i, HYBRIDPS_DEVICE, 0);
        release_one(&w, i, HYBRIDPS_HOLD);
    }
    access_one(&w, 2, HYBRIDPS_DEVICE, 1);
    assert_int_equal(at(&w, 2, HYBRIDPS_DEVICE)[1], 99);
    release_one(&w, 2, HYBRIDPS_HOLD);
    hybridps_close(w.h);
}

/* In the child: returns 0, or the first place that does not show the contents at the fork. */
static int look_in_child(const struct world *w, volatile uint8_t *host[],
                         volatile uint8_t *device[])
{
    if (hybridps_settle(w->h) != HL_EPERM)
        return 1;
    for (int i = 0; i < 4; i++) {
        uint8_t want = (uint8_t)(i == 0 ? 77 : i + 1);
        if (device[i][w->bytes - 1] != want)
            return 10 + i;
        if (host[i][0] != want || host[i][w->bytes - 1] != want)
            return 20 + i;
        host[i][1] = device[i][1] = 5; /* its own memory */
        if (host[i][1] != 5 || device[i][1] != 5)
            return 30 + i;
    }
    return 0;
}

/* A backward through a graph of gradients reads pinned tensors, without another access. */
TEST(a_reader_of_what_is_pinned_on_the_device_sees_each_write_on_the_host)
{
    for (size_t m = 0; m < 2; m++) {
        struct world w = world_make(modes[m], "lru");
        volatile uint8_t *home = at(&w, 0, HYBRIDPS_HOST), *device = at(&w, 0, HYBRIDPS_DEVICE);
        access_one(&w, 0, HYBRIDPS_DEVICE, 0);
        for (int i = 0; i < 3; i++) {
            home[9] = (uint8_t)(50 + i);
            assert_int_equal(device[9], 50 + i);
            assert_int_equal(device[8], 1);
            assert_int_equal(home[9], 50 + i);
        }
        home[10] = 70;
        pid_t child = fork();
        assert_true(child >= 0);
        if (child == 0)
            _exit(device[10] == 70 && home[10] == 70 && device[9] == 52 ? 0 : 1);
        int status;
        assert_int_equal(waitpid(child, &status, 0), child);
        assert_int_equal(status, 0);
        home[11] = 80;
        device[12] = 90; /* the reader can write, too */
        assert_int_equal(device[11], 80);
        assert_int_equal(home[12], 90);
        release_one(&w, 0, HYBRIDPS_HOLD);
        access_one(&w, 0, HYBRIDPS_HOST, 0);
        assert_int_equal(home[9], 52);
        assert_int_equal(home[10], 70);
        assert_int_equal(home[11], 80);
        assert_int_equal(home[12], 90);
        release_one(&w, 0, HYBRIDPS_HOLD);
        hybridps_close(w.h);
    }
}

/* Tensor 0 is only on the device, 2 on both (mode copy), 4 and 6 not on the device. */
TEST(a_forked_child_reads_what_was_there_at_the_fork)
{
    for (size_t m = 0; m < 2; m++) {
        struct world w = world_make(modes[m], "lru");
        volatile uint8_t *host[4], *device[4];
        int go[2], status;
        for (size_t i = 0; i < 4; i++) {
            host[i] = at(&w, i, HYBRIDPS_HOST);
            device[i] = at(&w, i, HYBRIDPS_DEVICE);
        }
        access_one(&w, 0, HYBRIDPS_DEVICE, 1);
        memset((void *)device[0], 77, w.bytes);
        access_one(&w, 2, HYBRIDPS_DEVICE, 0);
        assert_int_equal(pipe(go), 0);
        pid_t pid = fork();
        if (pid == 0) {
            uint8_t byte;
            close(go[1]);
            _exit(read(go[0], &byte, 1) == 1 ? look_in_child(&w, host, device) : 2);
        }
        close(go[0]);
        memset((void *)device[0], 99, w.bytes); /* the parent goes on */
        release_one(&w, 0, HYBRIDPS_HOLD);
        release_one(&w, 2, HYBRIDPS_HOLD);
        assert_int_equal(write(go[1], "", 1), 1);
        close(go[1]);
        assert_int_equal(waitpid(pid, &status, 0), pid);
        assert_true(WIFEXITED(status));
        assert_int_equal(WEXITSTATUS(status), 0);
        assert_int_equal(device[0][1], 99);
        assert_int_equal(host[3][1], 4);
        hybridps_close(w.h);
    }
}

TEST(what_is_kept_outlives_the_client_with_its_content)
{
    for (size_t m = 0; m < 2; m++) {
        struct world w = world_make(modes[m], "lru");
        hybridps_kept host = {HYBRIDPS_KEPT_INIT}, device = {HYBRIDPS_KEPT_INIT},
                      ended = {HYBRIDPS_KEPT_INIT};
        access_one(&w, 0, HYBRIDPS_DEVICE, 1); /* stays pinned */
        memset((void *)at(&w, 0, HYBRIDPS_DEVICE), 77, w.bytes);
        volatile uint8_t *h = at(&w, 0, HYBRIDPS_HOST), *d = at(&w, 0, HYBRIDPS_DEVICE),
                         *e = at(&w, 2, HYBRIDPS_HOST);
        OK(hybridps_drop(w.h, w.t + 2, 2));
        OK(hybridps_keep(w.h, w.t[0], HYBRIDPS_HOST, &host));
        OK(hybridps_keep(w.h, w.t[1], HYBRIDPS_DEVICE, &device));
        OK(hybridps_keep(w.h, w.t[2], HYBRIDPS_HOST, &ended));
        assert_int_equal(hybridps_keep(w.h, COUNT, HYBRIDPS_HOST, &ended), HL_ENOENT);
        assert_int_equal(hybridps_keep(w.h, 0, 7, &ended), HL_EINVAL);
        assert_int_equal(hybridps_settle(w.h), HL_EINVAL);
        hybridps_close(w.h);
        assert_int_equal(h[w.bytes - 1], 77);
        assert_int_equal(d[w.bytes - 1], 77);
        assert_int_equal(d[w.bytes], 2); /* the other tensor of the chunk */
        assert_int_equal(e[0], 0xff);
        h[0] = d[0] = e[0] = 1;
        assert_ptr_equal(host.address, h);
        hybridps_kept_free(host.address, host.bytes);
        hybridps_kept_free(device.address, device.bytes);
        hybridps_kept_free(ended.address, ended.bytes);
    }
}
