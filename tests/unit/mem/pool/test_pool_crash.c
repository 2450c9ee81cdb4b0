/* The owner dies: after every single store of every operation (its file is copied whenever a
 * single-stepped instruction has changed it, and the copy is adopted), and at random moments by
 * SIGKILL. */
#include "support/test.h"

#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/crc32.h"
#include "mem/pool/pool.h"

#define CAPACITY  ((uint64_t)16 * HL_POOL_UNIT)
#define STEPS_MAX 3000000

static char path[64], copy_path[72];

static struct hl_pool *adopt(const char *from, struct hl_pool_found *found)
{
    struct hl_pool *pool = NULL;
    hl_status st = hl_pool_open(
        &(struct hl_pool_options){.path = from, .capacity = CAPACITY, .quarantine_ms = 1}, found,
        &pool);
    if (st != HL_OK)
        print_error("%s\n", hl_error_text());
    assert_int_equal(st, HL_OK);
    return pool;
}

/* Every byte of a shard is the low byte of its size. */
static hl_status put(struct hl_pool *pool, uint64_t size, struct hl_id *id)
{
    struct hl_pool_extent x;
    HL_TRY(hl_pool_alloc(pool, size, &x));
    memset(x.ptr, (int)(size & 0xff), size);
    uint32_t crc = hl_crc32(0, x.ptr, size);
    HL_TRY(hl_pool_seal(pool, &x, crc, &crc, 1, NULL));
    *id = x.id;
    return HL_OK;
}

/* Invariants of every adopted pool, however its owner died. */
static uint64_t check_adopted(struct hl_pool *pool)
{
    struct hl_pool_ref refs[64];
    struct hl_pool_info info;
    struct hl_pool_extent x[16];
    uint64_t cursor = 0, units = 0;
    size_t len, base_len, held = 0;
    const uint8_t *base = hl_pool_base(pool, &base_len);
    len = hl_pool_list(pool, &cursor, refs, 64);
    assert_int_equal(cursor, 0);
    for (size_t i = 0; i < len; i++) {
        uint32_t *bad = NULL;
        size_t bad_count = 0;
        assert_int_equal(hl_pool_verify(pool, refs[i].id, NULL, &bad, &bad_count), HL_OK);
        assert_int_equal(base[refs[i].offset], refs[i].size & 0xff);
        units += hl_pool_units(refs[i].size);
    }
    hl_pool_info(pool, &info);
    assert_int_equal(info.shards, len);
    assert_int_equal(info.used, units * HL_POOL_UNIT);
    assert_int_equal(info.used + info.quarantined + info.free, info.capacity);
    /* The rest of the space can be allocated, unit by unit, and nothing else. */
    uint64_t free_units = info.free / HL_POOL_UNIT;
    while (held < 16 && hl_pool_alloc(pool, 100, &x[held]) == HL_OK)
        held++;
    assert_true(held >= free_units);
    hl_pool_info(pool, &info);
    assert_int_equal(info.free, 0);
    while (held > 0)
        hl_pool_abort(pool, &x[--held]);
    return len;
}

static void copy_file(const void *bytes, size_t len)
{
    FILE *f = fopen(copy_path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(bytes, 1, len, f), len);
    fclose(f);
    assert_int_equal(chmod(copy_path, 0600), 0);
}

struct scene {
    struct hl_pool *pool;
    struct hl_id keep, gone;
};

/* The child's work: every operation that changes the index. */
static void work(struct scene *s)
{
    struct hl_pool_extent x;
    struct hl_id id;
    if (put(s->pool, 300, &id) != HL_OK || hl_pool_alloc(s->pool, 70000, &x) != HL_OK)
        _exit(1);
    hl_pool_abort(s->pool, &x);
    if (hl_pool_free(s->pool, s->gone) != HL_OK)
        _exit(1);
    nanosleep(&(struct timespec){.tv_nsec = 2000000}, NULL);
    hl_pool_beat(s->pool); /* its quarantine is over */
    if (put(s->pool, 200, &id) != HL_OK)
        _exit(1);
    _exit(0);
}

static void check_image(const struct scene *s, const void *image, size_t len, uint64_t *kept_max)
{
    struct hl_pool_found found;
    struct hl_pool_ref ref;
    copy_file(image, len);
    struct hl_pool *pool = adopt(copy_path, &found);
    assert_int_equal(hl_pool_find(pool, s->keep, &ref), HL_OK);
    assert_int_equal(found.corrupt, 0);
    uint64_t kept = check_adopted(pool);
    *kept_max = kept > *kept_max ? kept : *kept_max;
    hl_pool_remove(pool);
}

TEST(a_pool_can_be_adopted_after_every_single_store)
{
    struct scene s;
    size_t len;
    int status = 0, images = 0;
    uint64_t kept_max = 0;
    s.pool = adopt(path, NULL);
    assert_int_equal(put(s.pool, 64, &s.keep), HL_OK);
    assert_int_equal(put(s.pool, 65536 * 2, &s.gone), HL_OK);
    const uint8_t *base = hl_pool_base(s.pool, &len);
    size_t index = 2 * HL_POOL_UNIT; /* superblock and index */
    uint8_t *seen = malloc(index);
    memcpy(seen, base, index);
    pid_t child = fork();
    if (child == 0) {
        if (ptrace(PTRACE_TRACEME, 0, NULL, NULL) != 0)
            _exit(77);
        raise(SIGSTOP);
        work(&s);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    int steps = 0;
    for (; WIFSTOPPED(status) && steps < STEPS_MAX; steps++) {
        if (memcmp(seen, base, index) != 0) {
            memcpy(seen, base, index);
            check_image(&s, base, len, &kept_max);
            images++;
        }
        if (ptrace(PTRACE_SINGLESTEP, child, NULL, NULL) != 0 ||
            waitpid(child, &status, 0) != child)
            break;
    }
    if (!WIFEXITED(status)) {
        kill(child, SIGKILL);
        waitpid(child, &status, 0);
        fail_msg("the child did not end after %d steps", steps);
    }
    free(seen);
    hl_pool_remove(s.pool);
    if (WEXITSTATUS(status) == 77) {
        TEST_SKIP("no ptrace here");
    }
    assert_int_equal(WEXITSTATUS(status), 0);
    /* 2 puts of 14 stores, alloc and abort, free, the end of the quarantine: none may be missed. */
    assert_true(images >= 40);
    assert_int_equal(kept_max, 3);
}

/* What the killed owner was told to be done. */
struct journal {
    _Atomic uint32_t sealed; /* ids[0, sealed) */
    _Atomic uint32_t freed;  /* the first `freed` of these were freed, or are being freed */
    struct hl_id ids[100000];
};

static void churn(struct journal *j)
{
    struct hl_pool *pool = NULL;
    if (hl_pool_open(
            &(struct hl_pool_options){
                .path = path, .capacity = CAPACITY, .quarantine_ms = 1, .beat_ms = 1},
            NULL, &pool) != HL_OK)
        _exit(1);
    for (uint32_t i = 0; i < HL_ARRAY_LEN(j->ids);) {
        struct hl_id id;
        if (put(pool, 100 + i % 50, &id) == HL_OK) {
            j->ids[i++] = id;
            atomic_store(&j->sealed, i);
        }
        if (i > 6 && atomic_load(&j->freed) + 6 < i) {
            uint32_t next = atomic_fetch_add(&j->freed, 1);
            if (hl_pool_free(pool, j->ids[next]) != HL_OK)
                _exit(1);
        }
    }
    _exit(0);
}

TEST(a_killed_owner_loses_nothing_it_had_acknowledged)
{
    struct journal *j =
        mmap(NULL, sizeof(*j), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_ptr_not_equal(j, MAP_FAILED);
    for (int round = 0; round < 60; round++) {
        int status;
        atomic_store(&j->sealed, 0);
        atomic_store(&j->freed, 0);
        unlink(path);
        pid_t child = fork();
        if (child == 0)
            churn(j);
        uint64_t deadline = hl_now_ns() + 10 * HL_NS_PER_S;
        while (atomic_load(&j->sealed) < 8 && hl_now_ns() < deadline)
            sched_yield();
        nanosleep(&(struct timespec){.tv_nsec = 1000 * (rand() % 2000)}, NULL);
        kill(child, SIGKILL);
        assert_int_equal(waitpid(child, &status, 0), child);
        assert_true(WIFSIGNALED(status));
        struct hl_pool_found found;
        struct hl_pool *pool = adopt(path, &found);
        assert_int_equal(found.adopted, 1);
        struct hl_pool_ref ref;
        uint32_t sealed = atomic_load(&j->sealed), freed = atomic_load(&j->freed);
        for (uint32_t i = 0; i < sealed; i++) {
            hl_status st = hl_pool_find(pool, j->ids[i], &ref);
            if (i >= freed)
                assert_int_equal(st, HL_OK);
            else if (i + 1 < freed)
                assert_int_equal(st, HL_ENOENT);
        }
        check_adopted(pool);
        hl_pool_remove(pool);
    }
    munmap(j, sizeof(*j));
}

/* Shards of 100 and of `size` bytes; then the second one's entry claims the extent of the first. */
static void put_on_top(uint64_t size, struct hl_id *under, struct hl_id *over)
{
    struct hl_pool *pool = adopt(path, NULL);
    struct hl_pool_ref a, b;
    size_t len;
    assert_int_equal(put(pool, 100, under), HL_OK);
    assert_int_equal(put(pool, size, over), HL_OK);
    assert_int_equal(hl_pool_find(pool, *under, &a), HL_OK);
    assert_int_equal(hl_pool_find(pool, *over, &b), HL_OK);
    struct hl_pool_super *super = hl_pool_base(pool, &len);
    struct hl_pool_entry *index = (struct hl_pool_entry *)((uint8_t *)super + super->index_offset);
    uint64_t words[5] = {over->hi, over->lo, a.offset, size, (uint64_t)b.crc32 << 32 | b.table_crc};
    atomic_store(&index[b.slot].offset, a.offset);
    atomic_store(&index[b.slot].entry_crc, hl_crc32(0, words, sizeof(words)));
    hl_pool_close(pool);
}

TEST(of_overlapping_entries_the_one_with_good_bytes_stays)
{
    struct hl_id under, over;
    struct hl_pool_found found;
    struct hl_pool_ref ref;
    put_on_top(101, &under, &over);
    struct hl_pool *pool = adopt(path, &found);
    assert_int_equal(found.corrupt, 1);
    assert_int_equal(found.kept, 1);
    assert_int_equal(hl_pool_find(pool, under, &ref), HL_OK);
    assert_int_equal(hl_pool_find(pool, over, &ref), HL_ENOENT);
    assert_int_equal(check_adopted(pool), 1);
    hl_pool_remove(pool);
}

TEST(overlapping_entries_that_both_look_good_both_go)
{
    struct hl_id under, over;
    struct hl_pool_found found;
    put_on_top(100, &under, &over);
    struct hl_pool *pool = adopt(path, &found);
    assert_int_equal(found.corrupt, 2);
    assert_int_equal(check_adopted(pool), 0);
    hl_pool_remove(pool);
}

TEST(a_damaged_entry_or_chunk_table_is_dropped_and_counted)
{
    struct hl_pool *pool = adopt(path, NULL);
    struct hl_pool_found found;
    struct hl_pool_ref refs[3], ref;
    struct hl_id ids[3];
    size_t len;
    for (int i = 0; i < 3; i++) {
        assert_int_equal(put(pool, 100, &ids[i]), HL_OK);
        assert_int_equal(hl_pool_find(pool, ids[i], &refs[i]), HL_OK);
    }
    struct hl_pool_super *super = hl_pool_base(pool, &len);
    struct hl_pool_entry *index = (struct hl_pool_entry *)((uint8_t *)super + super->index_offset);
    atomic_store(&index[refs[0].slot].size, UINT64_MAX);
    ((uint8_t *)super)[refs[1].offset + hl_pool_table_offset(100)] ^= 1;
    hl_pool_close(pool);
    pool = adopt(path, &found);
    assert_int_equal(found.adopted, 1);
    assert_int_equal(found.corrupt, 2);
    assert_int_equal(found.kept, 1);
    assert_int_equal(hl_pool_find(pool, ids[0], &ref), HL_ENOENT);
    assert_int_equal(hl_pool_find(pool, ids[1], &ref), HL_ENOENT);
    assert_int_equal(hl_pool_find(pool, ids[2], &ref), HL_OK);
    check_adopted(pool);
    hl_pool_remove(pool);
}

TEST(adoption_of_a_crowded_index_loses_nobody)
{
    struct hl_pool *pool = NULL;
    struct hl_pool_options o = {
        .path = path, .capacity = 64 * HL_POOL_UNIT, .index_slots = 32, .quarantine_ms = 1};
    struct hl_pool_found found;
    struct hl_pool_extent x;
    struct hl_pool_ref ref;
    struct hl_id ids[12];
    for (int round = 0; round < 20; round++) {
        assert_int_equal(hl_pool_open(&o, NULL, &pool), HL_OK);
        for (int i = 0; i < 12; i++) { /* every other one is unfinished: chains with gaps */
            assert_int_equal(hl_pool_alloc(pool, 100, &x), HL_OK);
            assert_int_equal(put(pool, 100, &ids[i]), HL_OK);
        }
        hl_pool_close(pool);
        assert_int_equal(hl_pool_open(&o, &found, &pool), HL_OK);
        assert_int_equal(found.unfinished, 12);
        assert_int_equal(found.kept, 12);
        for (int i = 0; i < 12; i++)
            assert_int_equal(hl_pool_find(pool, ids[i], &ref), HL_OK);
        hl_pool_remove(pool);
    }
}

/* One bit turns SEALED (2) into EMPTY (0), and the entry's CRC does not cover the state. */
TEST(an_entry_emptied_by_a_flipped_bit_hides_no_other)
{
    struct hl_pool *pool = NULL;
    struct hl_pool_options o = {
        .path = path, .capacity = CAPACITY, .index_slots = 32, .quarantine_ms = 1};
    struct hl_pool_extent x;
    struct hl_pool_ref ref;
    size_t len;
    assert_int_equal(hl_pool_open(&o, NULL, &pool), HL_OK);
    for (uint64_t i = 0; i < 3; i++) { /* all at home in slot 31: they take 31, 0 and 1 */
        assert_int_equal(hl_pool_alloc_at(pool, (struct hl_id){0, 31 + 32 * i}, 100, -1, &x),
                         HL_OK);
        memset(x.ptr, 100, 100);
        uint32_t crc = hl_crc32(0, x.ptr, 100);
        assert_int_equal(hl_pool_seal(pool, &x, crc, &crc, 1, NULL), HL_OK);
    }
    struct hl_pool_super *super = hl_pool_base(pool, &len);
    struct hl_pool_entry *index = (struct hl_pool_entry *)((uint8_t *)super + super->index_offset);
    assert_int_equal(atomic_load(&index[0].state), HL_POOL_SEALED);
    atomic_store(&index[0].state, HL_POOL_EMPTY);
    hl_pool_close(pool);
    assert_int_equal(hl_pool_open(&o, NULL, &pool), HL_OK);
    assert_int_equal(hl_pool_find(pool, (struct hl_id){0, 31}, &ref), HL_OK);
    assert_int_equal(hl_pool_find(pool, (struct hl_id){0, 63}, &ref), HL_ENOENT);
    assert_int_equal(hl_pool_find(pool, (struct hl_id){0, 95}, &ref), HL_OK);
    check_adopted(pool);
    hl_pool_remove(pool);
}

int main(int argc, char **argv)
{
    snprintf(path, sizeof(path), "/dev/shm/helios-test-crash-%d", (int)getpid());
    snprintf(copy_path, sizeof(copy_path), "%s.copy", path);
    int failed = tests_run(argc, argv);
    unlink(path);
    unlink(copy_path);
    return failed;
}
