/* The plank between memory and a device, with legs that fail, stall and give wrong results. */
#include "support/test.h"

#include <pthread.h>
#include <stdatomic.h>
#include <time.h>

#include "base/crc32.h"
#include "mem/plank/plank.h"
#include "support/cuda_library.h"
#include "support/fault.h"
#include "unit/mem/device/device_rig.h"

#define SIZE (5 * MIB + 12345)

/* A leg out of or into plain memory, with faults. */
struct memory_leg {
    unsigned char *base;
    bool writes;         /* into base, out of staging */
    uint64_t fail_at;    /* the piece at this offset fails */
    hl_status fail_with; /* HL_OK: none fails */
    uint64_t flip_at;    /* one bit of this byte is wrong */
    int flips;           /* so often */
    atomic_uint *gate;   /* wait here until it is at least `gate_at` calls */
    unsigned gate_at;
    atomic_uint calls, inside;
    pthread_t thread; /* of the last call */
};

static int wait_for_count(atomic_uint *count, unsigned at)
{
    for (int i = 0; i < 20000 && atomic_load(count) < at; i++)
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    return atomic_load(count) >= at;
}

static hl_status move_memory(void *arg, uint64_t offset, void *staging, size_t len, int timeout_ms)
{
    struct memory_leg *m = arg;
    assert_true(timeout_ms > 0);
    atomic_fetch_add(&m->inside, 1);
    m->thread = pthread_self();
    atomic_fetch_add(&m->calls, 1);
    if (m->gate != NULL && !wait_for_count(m->gate, m->gate_at))
        return hl_fail(HL_EINTERNAL, "the other leg did not come");
    if (m->fail_with != HL_OK && offset <= m->fail_at && m->fail_at < offset + len) {
        atomic_fetch_sub(&m->inside, 1);
        return hl_fail(m->fail_with, "broken at %llu", (unsigned long long)m->fail_at);
    }
    if (m->writes)
        memcpy(m->base + offset, staging, len);
    else
        memcpy(staging, m->base + offset, len);
    if (!m->writes && m->flips > 0 && m->flip_at >= offset && m->flip_at < offset + len) {
        ((unsigned char *)staging)[m->flip_at - offset] ^= 0x10;
        m->flips--;
    }
    atomic_fetch_sub(&m->inside, 1);
    return HL_OK;
}

struct world {
    struct hl_device *device;
    struct hl_device_block block;
    struct hl_plank *plank;
    unsigned char *source, *back;
    uint32_t crcs[SIZE / MIB + 1];
    struct memory_leg in, out; /* legs in plain memory */
    struct hl_plank_device in_device;
};

static struct world make(const char *spec, const struct hl_device_options *options, uint64_t piece,
                         unsigned buffers)
{
    struct world w = {0};
    assert_int_equal(hl_device_open(spec, options, &w.device), HL_OK);
    assert_int_equal(hl_device_alloc(w.device, SIZE, 0, &w.block), HL_OK);
    struct hl_plank_options o = {
        .piece = piece, .buffers = buffers, .lanes = 2, .device = w.device};
    assert_int_equal(hl_plank_create(&o, &w.plank), HL_OK);
    w.source = filled(SIZE, 7);
    w.back = calloc(1, SIZE);
    for (size_t i = 0; i * MIB < SIZE; i++)
        w.crcs[i] = hl_crc32(0, w.source + i * MIB, SIZE - i * MIB < MIB ? SIZE - i * MIB : MIB);
    return w;
}

static void end(struct world *w)
{
    assert_int_equal(atomic_load(&w->in.inside) + atomic_load(&w->out.inside), 0);
    struct hl_plank_info i;
    hl_plank_info(w->plank, &i);
    assert_int_equal(i.busy, 0);
    hl_plank_destroy(w->plank);
    assert_int_equal(hl_device_free(w->device, &w->block), HL_OK); /* no copy is in flight */
    hl_device_close(w->device);
    free(w->source);
    free(w->back);
}

/* memory -> staging -> device */
static struct hl_plank_job to_device(struct world *w, uint64_t size)
{
    w->in.base = w->source;
    w->in_device = (struct hl_plank_device){w->device, &w->block, 0};
    return (struct hl_plank_job){
        .size = size,
        .fetch = {.move = move_memory, .arg = &w->in},
        .deliver = {.move = hl_plank_to_device, .arg = &w->in_device, .lingers = true},
        .chunk_crcs = w->crcs,
        .timeout_ms = WAIT_MS};
}

/* device -> staging -> memory */
static struct hl_plank_job from_device(struct world *w, uint64_t size)
{
    w->out.base = w->back;
    w->out.writes = true;
    w->in_device = (struct hl_plank_device){w->device, &w->block, 0};
    return (struct hl_plank_job){
        .size = size,
        .fetch = {.move = hl_plank_from_device, .arg = &w->in_device, .lingers = true},
        .deliver = {.move = move_memory, .arg = &w->out},
        .chunk_crcs = w->crcs,
        .timeout_ms = WAIT_MS};
}

/* memory -> staging -> memory */
static struct hl_plank_job through(struct world *w, uint64_t size)
{
    struct hl_plank_job job = to_device(w, size);
    w->out.base = w->back;
    w->out.writes = true;
    job.deliver = (struct hl_plank_leg){.move = move_memory, .arg = &w->out};
    return job;
}

static const char *specs[] = {"emu:64MiB", "cuda:0:64MiB"};
static struct hl_device_options driver;

TEST(both_directions_keep_every_byte_at_every_piece_size)
{
    static const uint64_t pieces[] = {4096, 65536, MIB, 2 * MIB, 8 * MIB};
    for (size_t s = 0; s < HL_ARRAY_LEN(specs); s++) {
        for (size_t i = s == 0 ? 0 : 1; i < HL_ARRAY_LEN(pieces); i++) {
            struct world w = make(specs[s], &driver, pieces[i], 2 + i % 3);
            struct hl_plank_job job = to_device(&w, SIZE);
            assert_int_equal(hl_plank_copy(w.plank, &job, NULL), HL_OK);
            job = from_device(&w, SIZE);
            assert_int_equal(hl_plank_copy(w.plank, &job, NULL), HL_OK);
            assert_memory_equal(w.source, w.back, SIZE);
            assert_int_equal(atomic_load(&w.in.calls), (SIZE + pieces[i] - 1) / pieces[i]);
            end(&w);
        }
    }
}

TEST(what_fits_in_a_piece_needs_no_other_thread)
{
    static const uint64_t sizes[] = {1, 64, MIB - 1, MIB};
    struct world w = make(specs[0], NULL, MIB, 2);
    for (size_t i = 0; i < HL_ARRAY_LEN(sizes); i++) {
        struct hl_plank_job job = through(&w, sizes[i]);
        uint32_t crc = hl_crc32(0, w.source, sizes[i]);
        job.chunk_crcs = &crc;
        memset(w.back, 0, SIZE);
        assert_int_equal(hl_plank_copy(w.plank, &job, NULL), HL_OK);
        assert_memory_equal(w.source, w.back, sizes[i]);
        assert_int_equal(w.back[sizes[i]], 0);
        assert_true(pthread_equal(w.out.thread, pthread_self()));
    }
    struct hl_plank_job none = through(&w, 0);
    unsigned before = atomic_load(&w.in.calls);
    assert_int_equal(hl_plank_copy(w.plank, &none, NULL), HL_OK);
    assert_int_equal(atomic_load(&w.in.calls), before);
    end(&w);
}

TEST(the_legs_overlap)
{
    struct world w = make(specs[0], NULL, MIB, 2);
    struct hl_plank_job job = through(&w, 4 * MIB);
    /* Piece 0 is delivered only when piece 1 is being fetched: one piece at a time would never
     * end. */
    w.out.gate = &w.in.calls;
    w.out.gate_at = 2;
    assert_int_equal(hl_plank_copy(w.plank, &job, NULL), HL_OK);
    assert_memory_equal(w.source, w.back, 4 * MIB);
    assert_false(pthread_equal(w.out.thread, pthread_self()));
    assert_true(pthread_equal(w.in.thread, pthread_self()));
    end(&w);
}

TEST(a_failing_leg_stops_the_other_and_is_named)
{
    for (int fetching = 0; fetching < 2; fetching++) {
        for (uint64_t piece = 0; piece <= 5; piece++) {
            struct world w = make(specs[0], NULL, MIB, 2);
            struct hl_plank_job job = through(&w, SIZE);
            struct memory_leg *bad = fetching ? &w.in : &w.out;
            bad->fail_at = piece * MIB + 5;
            bad->fail_with = HL_EUNAVAIL;
            assert_int_equal(hl_plank_copy(w.plank, &job, NULL), HL_EUNAVAIL);
            char text[96];
            snprintf(text, sizeof(text), "plank: %s at offset %llu: broken at %llu",
                     fetching ? "fetching" : "delivering", (unsigned long long)(piece * MIB),
                     (unsigned long long)bad->fail_at);
            assert_string_equal(hl_error_text(), text);
            assert_int_equal(atomic_load(&bad->calls), piece + 1);
            assert_true(atomic_load(&w.in.calls) <= piece + 3);
            /* The lane works as before. */
            bad->fail_with = HL_OK;
            assert_int_equal(hl_plank_copy(w.plank, &job, NULL), HL_OK);
            assert_memory_equal(w.source, w.back, SIZE);
            end(&w);
        }
    }
}

TEST(a_wrong_bit_is_found_as_it_lands_and_its_chunk_is_named)
{
    static const uint64_t pieces[] = {65536, MIB, 2 * MIB, 8 * MIB};
    static const uint64_t at[] = {0, 3 * MIB - 1, SIZE - 1};
    for (size_t i = 0; i < HL_ARRAY_LEN(pieces); i++) {
        for (size_t k = 0; k < HL_ARRAY_LEN(at); k++) {
            struct world w = make(specs[0], NULL, pieces[i], 2);
            struct hl_plank_job job = through(&w, SIZE);
            struct hl_plank_bad bad = {0};
            w.in.flip_at = at[k];
            w.in.flips = 1;
            assert_int_equal(hl_plank_copy(w.plank, &job, &bad), HL_ECORRUPT);
            assert_int_equal(bad.count, 1);
            assert_int_equal(bad.chunk[0], at[k] / MIB);
            assert_true(memcmp(w.source, w.back, SIZE) != 0);
            assert_int_equal(hl_plank_copy(w.plank, &job, &bad), HL_OK);
            assert_memory_equal(w.source, w.back, SIZE);
            end(&w);
        }
    }
    fault_shown("plank", "corrupt", "noticed-copied-again");
}

/* A device's block that is shorter than the job: no piece is written beyond its end. */
TEST(a_copy_larger_than_its_block_is_refused_and_the_next_block_untouched)
{
    static const uint64_t pieces[] = {65536, MIB, 8 * MIB};
    for (size_t i = 0; i < HL_ARRAY_LEN(pieces); i++) {
        struct world w = make(specs[0], NULL, pieces[i], 2);
        struct hl_device_block next;
        assert_int_equal(hl_device_alloc(w.device, SIZE, 0, &next), HL_OK);
        unsigned char *before = filled(SIZE, 9), *longer = calloc(1, w.block.size + MIB);
        assert_int_equal(hl_device_copy_in(w.device, &next, 0, before, SIZE), HL_OK);
        for (int into = 0; into < 2; into++) {
            struct hl_plank_job job = into ? to_device(&w, 0) : from_device(&w, 0);
            job.size = w.block.size + 1;
            job.chunk_crcs = NULL;
            (into ? &w.in : &w.out)->base = longer;
            assert_int_not_equal(hl_plank_copy(w.plank, &job, NULL), HL_OK);
            assert_error_has(into ? "delivering at offset" : "fetching at offset");
            assert_int_equal(longer[w.block.size], 0);
        }
        assert_int_equal(hl_device_copy_out(w.device, &next, 0, w.back, SIZE), HL_OK);
        assert_memory_equal(w.back, before, SIZE);
        struct hl_plank_job job = to_device(&w, SIZE); /* the right size is taken */
        assert_int_equal(hl_plank_copy(w.plank, &job, NULL), HL_OK);
        assert_int_equal(hl_device_free(w.device, &next), HL_OK);
        free(before);
        free(longer);
        end(&w);
    }
    fault_shown("plank", "wrong-size", "refused");
}

#define STALL_MS 200

/* Takes all the time that it is given; `arg` gets its last staging buffer. */
static hl_status stall(void *arg, uint64_t offset, void *staging, size_t len, int timeout_ms)
{
    void **kept = arg;
    (void)offset, (void)len;
    assert_true(timeout_ms > 0 && timeout_ms <= STALL_MS);
    nanosleep(&(struct timespec){.tv_nsec = timeout_ms * 1000000L}, NULL);
    *kept = staging;
    return hl_fail(HL_ETIMEDOUT, "nothing came");
}

TEST(a_leg_that_stalls_ends_the_copy_at_its_deadline)
{
    for (int fetching = 0; fetching < 2; fetching++) {
        struct world w = make(specs[0], NULL, 65536, 2);
        unsigned char *kept = NULL;
        struct hl_plank_job job = through(&w, SIZE);
        struct hl_plank_leg *leg = fetching ? &job.fetch : &job.deliver;
        *leg = (struct hl_plank_leg){.move = stall, .arg = &kept, .lingers = true};
        job.timeout_ms = STALL_MS;
        assert_int_equal(hl_plank_copy(w.plank, &job, NULL), HL_ETIMEDOUT);
        assert_error_has(fetching ? "fetching at offset 0" : "delivering at offset 0");
        if (kept == NULL) { /* the helper thread never ran in all that time: no leg has run */
            end(&w);
            continue;
        }
        assert_error_has("nothing came");
        /* The leg may still write, but not into the next copy's staging buffer. */
        memset(kept, 0x77, 65536);
        job = through(&w, SIZE);
        assert_int_equal(hl_plank_copy(w.plank, &job, NULL), HL_OK);
        assert_memory_equal(w.source, w.back, SIZE);
        for (size_t i = 0; i < 65536; i++)
            assert_int_equal(kept[i], 0x77);
        job.timeout_ms = 0;
        assert_int_equal(hl_plank_copy(w.plank, &job, NULL), HL_ETIMEDOUT);
        assert_error_has("the deadline of 0 ms has passed");
        end(&w);
    }
}

struct holder {
    struct world *w;
    struct memory_leg in, out;
    unsigned char to[128];
    struct hl_plank_job job;
    hl_status st;
};

static void *hold(void *arg)
{
    struct holder *h = arg;
    h->st = hl_plank_copy(h->w->plank, &h->job, NULL);
    return NULL;
}

TEST(who_finds_all_lanes_busy_waits_to_the_deadline_and_no_longer)
{
    struct world w = make(specs[0], NULL, MIB, 2);
    struct holder h[3] = {0};
    pthread_t thread[3];
    atomic_uint go = 0;
    for (int i = 0; i < 3; i++) {
        h[i].w = &w;
        h[i].in.base = w.source;
        h[i].out = (struct memory_leg){
            .base = h[i].to, .writes = true, .gate = i < 2 ? &go : NULL, .gate_at = 1};
        h[i].job = (struct hl_plank_job){.size = 100,
                                         .fetch = {.move = move_memory, .arg = &h[i].in},
                                         .deliver = {.move = move_memory, .arg = &h[i].out},
                                         .timeout_ms = WAIT_MS};
    }
    for (int i = 0; i < 2; i++) {
        assert_int_equal(pthread_create(&thread[i], NULL, hold, &h[i]), 0);
        assert_true(wait_for_count(&h[i].out.calls, 1));
    }
    h[2].job.timeout_ms = 30;
    assert_int_equal(hl_plank_copy(w.plank, &h[2].job, NULL), HL_ETIMEDOUT);
    assert_error_has("all 2 lanes were busy");
    h[2].job.timeout_ms = WAIT_MS;
    assert_int_equal(pthread_create(&thread[2], NULL, hold, &h[2]), 0);
    atomic_store(&go, 1);
    for (int i = 0; i < 3; i++) {
        pthread_join(thread[i], NULL);
        assert_int_equal(h[i].st, HL_OK);
        assert_memory_equal(h[i].to, w.source, 100);
    }
    end(&w);
}

struct crowd {
    struct world *w;
    unsigned char *to;
    int bad;
};

static void *copy_often(void *arg)
{
    struct crowd *c = arg;
    struct memory_leg in = {.base = c->w->source}, out = {.base = c->to, .writes = true};
    for (unsigned i = 0; i < 40; i++) {
        uint64_t size = i % 4 == 0 ? 64 : SIZE - i * 1000;
        struct hl_plank_job job = {.size = size,
                                   .fetch = {.move = move_memory, .arg = &in},
                                   .deliver = {.move = move_memory, .arg = &out},
                                   .timeout_ms = WAIT_MS};
        memset(c->to, 0, SIZE);
        c->bad += hl_plank_copy(c->w->plank, &job, NULL) != HL_OK ||
                  memcmp(c->w->source, c->to, size) != 0;
    }
    return NULL;
}

TEST(threads_share_the_lanes)
{
    struct world w = make(specs[0], NULL, 65536, 3);
    struct crowd c[4];
    pthread_t thread[4];
    for (int i = 0; i < 4; i++) {
        c[i] = (struct crowd){.w = &w, .to = malloc(SIZE)};
        assert_int_equal(pthread_create(&thread[i], NULL, copy_often, &c[i]), 0);
    }
    for (int i = 0; i < 4; i++) {
        pthread_join(thread[i], NULL);
        assert_int_equal(c[i].bad, 0);
        free(c[i].to);
    }
    struct hl_plank_info i;
    hl_plank_info(w.plank, &i);
    assert_true(i.made <= 2);
    end(&w);
}

TEST(staging_is_pinned_where_the_driver_lets_it)
{
    for (int refused = 0; refused < 2 - cuda_is_real(); refused++) {
        struct world w = make(specs[1], &driver, MIB, 2);
        struct hl_plank_info i;
        if (refused)
            setenv("CUDA_STUB_FAIL", "cuMemHostRegister:1:800", 1);
        struct hl_plank_job job = to_device(&w, SIZE);
        assert_int_equal(hl_plank_copy(w.plank, &job, NULL), HL_OK);
        unsetenv("CUDA_STUB_FAIL");
        hl_plank_info(w.plank, &i);
        assert_int_equal(i.pinned, !refused);
        assert_int_equal(i.made, 1);
        end(&w);
    }
}

TEST(options_that_cannot_be_are_refused)
{
    static const struct hl_plank_options bad[] = {{.piece = 4095},
                                                  {.piece = 3 * 65536},
                                                  {.piece = MIB + 4096},
                                                  {.buffers = 1},
                                                  {.buffers = HL_PLANK_BUFFERS_MAX + 1},
                                                  {.lanes = HL_PLANK_LANES_MAX + 1}};
    for (size_t i = 0; i < HL_ARRAY_LEN(bad); i++) {
        struct hl_plank *p = NULL;
        assert_int_equal(hl_plank_create(&bad[i], &p), HL_EINVAL);
        assert_null(p);
    }
    struct hl_plank *p;
    struct hl_plank_info info;
    assert_int_equal(hl_plank_create(NULL, &p), HL_OK);
    hl_plank_info(p, &info);
    assert_true(info.piece == MIB && info.buffers == 4 && info.made == 0);
    hl_plank_destroy(p);
}

int main(int argc, char **argv)
{
    static char library[512];
    cuda_library(library, sizeof(library));
    driver.cuda_driver = library;
    setenv("CUDA_STUB_DELAY_US", "100", 0);
    return tests_run(argc, argv);
}
