/* The pool from both sides: readers see what the owner writes, or nothing. */
#include "support/test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/crc32.h"
#include "mem/pool/pool.h"

#define MIB ((uint64_t)1 << 20)

static char path[64];

static struct hl_pool *open_pool(uint64_t capacity, uint64_t slots, uint32_t rest_ms)
{
    struct hl_pool *pool = NULL;
    hl_status st = hl_pool_open(
        &(struct hl_pool_options){
            .path = path, .capacity = capacity, .index_slots = slots, .quarantine_ms = rest_ms},
        NULL, &pool);
    if (st != HL_OK)
        print_error("%s\n", hl_error_text());
    assert_int_equal(st, HL_OK);
    return pool;
}

static struct hl_pool_view *open_view(const struct hl_pool *pool)
{
    struct hl_pool_view *view = NULL;
    int fd = -1;
    assert_int_equal(hl_pool_reopen(pool, &fd), HL_OK);
    assert_int_equal(hl_pool_view_open(fd, &view), HL_OK);
    close(fd);
    return view;
}

/* Byte i of the shard with that seed. */
static uint8_t byte_of(uint64_t seed, uint64_t i)
{
    return (uint8_t)(seed * 31 + i * 7 + (i >> 11));
}

static void fill(const struct hl_pool_extent *x, uint64_t seed)
{
    uint8_t *p = x->ptr;
    for (uint64_t i = 0; i < x->size; i++)
        p[i] = byte_of(seed, i);
}

static struct hl_pool_ref seal(struct hl_pool *pool, const struct hl_pool_extent *x)
{
    struct hl_pool_ref ref;
    uint64_t chunks = hl_chunk_count(x->size);
    uint32_t *crcs = calloc(chunks, sizeof(*crcs));
    for (uint64_t i = 0; i < chunks; i++)
        crcs[i] =
            hl_crc32(0, (uint8_t *)x->ptr + i * MIB, i + 1 < chunks ? MIB : x->size - i * MIB);
    assert_int_equal(hl_pool_seal(pool, x, hl_crc32(0, x->ptr, x->size), crcs, chunks, &ref),
                     HL_OK);
    free(crcs);
    return ref;
}

static struct hl_pool_ref put(struct hl_pool *pool, uint64_t size, uint64_t seed)
{
    struct hl_pool_extent x;
    assert_int_equal(hl_pool_alloc(pool, size, &x), HL_OK);
    fill(&x, seed);
    return seal(pool, &x);
}

/* Every unit is accounted for once. */
static void check_space(struct hl_pool *pool, uint64_t used, uint64_t quarantined)
{
    struct hl_pool_info info;
    hl_pool_info(pool, &info);
    assert_int_equal(info.used, used * HL_POOL_UNIT);
    assert_int_equal(info.quarantined, quarantined * HL_POOL_UNIT);
    assert_int_equal(info.used + info.quarantined + info.free, info.capacity);
}

static void wait_until_rested(struct hl_pool *pool)
{
    struct hl_pool_info info;
    uint64_t deadline = hl_now_ns() + TEST_PATIENCE_NS;
    do {
        hl_pool_beat(pool);
        hl_pool_info(pool, &info);
        nanosleep(&(struct timespec){.tv_nsec = 200000}, NULL);
    } while (info.quarantined > 0 && hl_now_ns() < deadline);
    assert_int_equal(info.quarantined, 0);
}

static void expect_same(const struct hl_pool_ref *a, const struct hl_pool_ref *b)
{
    assert_true(hl_id_equal(a->id, b->id));
    assert_int_equal(a->offset, b->offset);
    assert_int_equal(a->size, b->size);
    assert_int_equal(a->crc32, b->crc32);
    assert_int_equal(a->table_crc, b->table_crc);
    assert_int_equal(a->gen, b->gen);
    assert_int_equal(a->slot, b->slot);
    assert_int_equal(a->kept, b->kept);
}

TEST(any_range_of_any_size_reads_what_was_written)
{
    static const uint64_t sizes[] = {1, 7, 64, 65536, MIB - 1, MIB, MIB + 1, 3 * MIB + 5};
    struct hl_pool *pool = open_pool(16 * MIB, 0, 0);
    struct hl_pool_view *view = open_view(pool);
    uint8_t *buf = malloc(4 * MIB);
    for (size_t s = 0; s < HL_ARRAY_LEN(sizes); s++) {
        struct hl_pool_ref made = put(pool, sizes[s], s), ref;
        assert_int_equal(hl_pool_view_find(view, made.id, &ref), HL_OK);
        expect_same(&ref, &made);
        for (int i = 0; i < 20; i++) {
            uint64_t off = (uint64_t)rand() % sizes[s];
            uint64_t len = i == 0 ? sizes[s] - (off = 0) : (uint64_t)rand() % (sizes[s] - off + 1);
            assert_int_equal(hl_pool_view_read(view, &ref, off, buf, len), HL_OK);
            for (uint64_t b = 0; b < len; b++)
                if (buf[b] != byte_of(s, off + b))
                    fail_msg("size %zu byte %zu", (size_t)sizes[s], (size_t)(off + b));
        }
        assert_int_equal(hl_pool_view_read(view, &ref, 0, buf, sizes[s] + 1), HL_EINVAL);
        assert_int_equal(hl_pool_view_read(view, &ref, UINT64_MAX, buf, 2), HL_EINVAL);
        assert_int_equal(hl_pool_view_verify(view, &ref, NULL), HL_OK);
    }
    free(buf);
    hl_pool_view_put(view);
    hl_pool_remove(pool);
}

TEST(a_shard_is_invisible_until_sealed_and_its_space_returns_on_abort)
{
    struct hl_pool *pool = open_pool(MIB, 0, 0);
    struct hl_pool_view *view = open_view(pool);
    struct hl_pool_extent x;
    struct hl_pool_ref ref;
    uint64_t cursor = 0;
    assert_int_equal(hl_pool_alloc(pool, 65536, &x), HL_OK); /* 65536 + 4 bytes of CRC: 2 units */
    check_space(pool, 2, 0);
    assert_int_equal(hl_pool_view_find(view, x.id, &ref), HL_ENOENT);
    assert_int_equal(hl_pool_find(pool, x.id, &ref), HL_ENOENT);
    assert_int_equal(hl_pool_list(pool, &cursor, &ref, 1), 0);
    assert_int_equal(hl_pool_free(pool, x.id), HL_ENOENT);
    hl_pool_abort(pool, &x);
    check_space(pool, 0, 0);
    hl_pool_abort(pool, &x); /* repeated: no effect */
    check_space(pool, 0, 0);
    uint32_t crc = 0;
    assert_int_equal(hl_pool_seal(pool, &x, 0, &crc, 1, NULL), HL_EINVAL);
    hl_pool_view_put(view);
    hl_pool_remove(pool);
}

TEST(wrong_chunk_checksums_are_not_sealed)
{
    struct hl_pool *pool = open_pool(4 * MIB, 0, 0);
    struct hl_pool_extent x;
    assert_int_equal(hl_pool_alloc(pool, MIB + 10, &x), HL_OK);
    memset(x.ptr, 1, x.size);
    uint32_t crcs[2] = {hl_crc32(0, x.ptr, MIB), hl_crc32(0, (uint8_t *)x.ptr + MIB, 10)};
    uint32_t all = hl_crc32(0, x.ptr, x.size);
    assert_int_equal(hl_pool_seal(pool, &x, all, crcs, 1, NULL), HL_EINVAL);
    crcs[1] ^= 1;
    assert_int_equal(hl_pool_seal(pool, &x, all, crcs, 2, NULL), HL_ECORRUPT);
    crcs[1] ^= 1;
    assert_int_equal(hl_pool_seal(pool, &x, all, crcs, 2, NULL), HL_OK);
    hl_pool_remove(pool);
}

TEST(one_wrong_byte_is_found_and_the_other_chunks_are_still_good)
{
    struct hl_pool *pool = open_pool(8 * MIB, 0, 0);
    struct hl_pool_view *view = open_view(pool);
    struct hl_pool_ref ref = put(pool, 3 * MIB + 9, 5);
    size_t len;
    uint8_t *data = (uint8_t *)hl_pool_base(pool, &len) + ref.offset;
    uint8_t *buf = malloc(4 * MIB);
    uint32_t *bad = NULL, chunk = 99;
    size_t count = 0;
    data[MIB + 17] ^= 0x10;
    assert_int_equal(hl_pool_view_read(view, &ref, 0, buf, MIB), HL_OK);
    assert_int_equal(hl_pool_view_read(view, &ref, MIB + 5, buf, 3), HL_ECORRUPT);
    assert_non_null(strstr(hl_error_text(), "chunk 1 of 4"));
    assert_int_equal(hl_pool_view_read(view, &ref, 2 * MIB, buf, MIB + 9), HL_OK);
    assert_int_equal(hl_pool_view_verify(view, &ref, &chunk), HL_ECORRUPT);
    assert_int_equal(chunk, 1);
    assert_int_equal(hl_pool_verify(pool, ref.id, NULL, &bad, &count), HL_ECORRUPT);
    assert_int_equal(count, 1);
    assert_int_equal(bad[0], 1);
    free(bad);
    data[MIB + 17] ^= 0x10;
    assert_int_equal(hl_pool_verify(pool, ref.id, NULL, &bad, &count), HL_OK);
    data[hl_pool_table_offset(ref.size) + 12] ^= 1; /* the last chunk's CRC itself */
    assert_int_equal(hl_pool_view_read(view, &ref, 3 * MIB, buf, 9), HL_ECORRUPT);
    free(buf);
    hl_pool_view_put(view);
    hl_pool_remove(pool);
}

TEST(freed_bytes_rest_and_old_references_are_stale)
{
    struct hl_pool *pool = open_pool(MIB, 0, 20);
    struct hl_pool_view *view = open_view(pool);
    struct hl_pool_ref a = put(pool, 15 * HL_POOL_UNIT - 64, 1), found;
    struct hl_pool_extent x;
    uint8_t buf[64];
    check_space(pool, 15, 0);
    uint64_t freed = hl_now_ns();
    assert_int_equal(hl_pool_free(pool, a.id), HL_OK);
    assert_int_equal(hl_pool_free(pool, a.id), HL_ENOENT);
    check_space(pool, 0, 15);
    assert_int_equal(hl_pool_view_find(view, a.id, &found), HL_ENOENT);
    assert_int_equal(hl_pool_view_read(view, &a, 0, buf, 64), HL_ESTALE);
    hl_status st = hl_pool_alloc(pool, 15 * HL_POOL_UNIT - 64, &x);
    if (hl_now_ns() - freed < 20 * HL_NS_PER_MS)
        assert_int_equal(st, HL_ENOSPC);
    wait_until_rested(pool);
    assert_true(hl_now_ns() - freed >= 20 * HL_NS_PER_MS);
    check_space(pool, st == HL_OK ? 15 : 0, 0);
    hl_pool_view_put(view);
    hl_pool_remove(pool);
}

TEST(pinned_bytes_stay_after_free_until_the_last_unpin)
{
    struct hl_pool *pool = open_pool(MIB, 0, 1);
    struct hl_pool_view *view = open_view(pool);
    struct hl_pool_ref a = put(pool, 100, 3), p1, p2, p3;
    assert_int_equal(hl_pool_pin(pool, a.id, 0, &p1), HL_OK);
    assert_int_equal(hl_pool_pin(pool, a.id, a.offset, &p2), HL_OK);
    assert_int_equal(hl_pool_free(pool, a.id), HL_OK);
    assert_int_equal(hl_pool_pin(pool, a.id, 0, &p3), HL_ENOENT);
    assert_int_equal(hl_pool_pin(pool, a.id, a.offset + HL_POOL_UNIT, &p3), HL_ENOENT);
    /* A borrower that has it mapped can pin it again. */
    assert_int_equal(hl_pool_pin(pool, a.id, a.offset, &p3), HL_OK);
    hl_pool_unpin(pool, &p1);
    hl_pool_unpin(pool, &p2);
    for (int i = 0; i < 10; i++) {
        nanosleep(&(struct timespec){.tv_nsec = 500000}, NULL);
        hl_pool_beat(pool);
    }
    check_space(pool, 0, 1);
    const uint8_t *bytes = hl_pool_view_data(view, &a);
    for (uint64_t i = 0; i < 100; i++)
        assert_int_equal(bytes[i], byte_of(3, i));
    hl_pool_unpin(pool, &p3);
    wait_until_rested(pool);
    check_space(pool, 0, 0);
    hl_pool_view_put(view);
    hl_pool_remove(pool);
}

TEST(a_full_index_says_so_and_recovers)
{
    struct hl_pool *pool = open_pool(8 * MIB, 32, 1);
    struct hl_pool_ref refs[24], ref;
    struct hl_pool_extent x;
    for (int i = 0; i < 24; i++)
        refs[i] = put(pool, 10, (uint64_t)i);
    assert_int_equal(hl_pool_alloc(pool, 10, &x), HL_ENOSPC);
    assert_non_null(strstr(hl_error_text(), "24 of 32 slots"));
    for (int round = 0; round < 200; round++) { /* deleted slots must not pile up */
        int i = rand() % 24;
        assert_int_equal(hl_pool_free(pool, refs[i].id), HL_OK);
        wait_until_rested(pool);
        refs[i] = put(pool, 10, (uint64_t)i);
        for (int j = 0; j < 24; j++)
            assert_int_equal(hl_pool_find(pool, refs[j].id, &ref), HL_OK);
        assert_int_equal(hl_pool_find(pool, hl_id_random(), &ref), HL_ENOENT);
    }
    check_space(pool, 24, 0);
    hl_pool_remove(pool);
}

TEST(the_list_shows_every_shard_once)
{
    struct hl_pool *pool = open_pool(16 * MIB, 0, 0);
    struct hl_pool_ref refs[100], page[7];
    int seen[100] = {0};
    for (int i = 0; i < 100; i++)
        refs[i] = put(pool, 10, (uint64_t)i);
    uint64_t cursor = 0;
    do {
        size_t n = hl_pool_list(pool, &cursor, page, 7);
        for (size_t k = 0; k < n; k++)
            for (int i = 0; i < 100; i++)
                seen[i] += hl_id_equal(refs[i].id, page[k].id);
    } while (cursor != 0);
    for (int i = 0; i < 100; i++)
        assert_int_equal(seen[i], 1);
    hl_pool_remove(pool);
}

static hl_status try_open(uint64_t capacity)
{
    struct hl_pool *pool = NULL;
    hl_status st =
        hl_pool_open(&(struct hl_pool_options){.path = path, .capacity = capacity}, NULL, &pool);
    hl_pool_close(pool);
    return st;
}

TEST(a_second_owner_is_refused_with_the_first_ones_pid)
{
    struct hl_pool *pool = open_pool(MIB, 0, 0);
    char pid[32];
    snprintf(pid, sizeof(pid), "process %d", (int)getpid());
    assert_int_equal(try_open(MIB), HL_EBUSY);
    assert_non_null(strstr(hl_error_text(), pid));
    hl_pool_remove(pool);
}

TEST(a_pool_larger_than_memory_is_refused_and_leaves_no_file)
{
    struct stat sb;
    assert_int_equal(try_open((uint64_t)1 << 46), HL_ENOSPC);
    assert_non_null(strstr(hl_error_text(), "64.0 TiB"));
    assert_non_null(strstr(hl_error_text(), "free"));
    assert_int_not_equal(stat(path, &sb), 0);
    assert_int_equal(try_open(0), HL_EINVAL);
    assert_int_not_equal(stat(path, &sb), 0);
}

static void write_file(const void *bytes, size_t len)
{
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(bytes, 1, len, f), len);
    fclose(f);
    assert_int_equal(chmod(path, 0600), 0);
}

TEST(foreign_and_damaged_files_are_refused_untouched)
{
    char text[70000];
    struct stat sb;
    memset(text, 'x', sizeof(text));
    write_file(text, sizeof(text));
    assert_int_equal(try_open(MIB), HL_EINVAL);
    assert_non_null(strstr(hl_error_text(), "not a Helios pool"));
    write_file(text, 3);
    assert_int_equal(try_open(MIB), HL_EINVAL);
    assert_int_equal(stat(path, &sb), 0);
    assert_int_equal(sb.st_size, 3);
    unlink(path);

    struct hl_pool *pool = open_pool(MIB, 0, 0);
    hl_pool_close(pool);
    assert_int_equal(try_open(2 * MIB), HL_EINVAL);
    assert_non_null(strstr(hl_error_text(), "1.0 MiB"));
    assert_int_equal(stat(path, &sb), 0);
    assert_int_equal(truncate(path, sb.st_size - 65536), 0);
    assert_int_equal(try_open(MIB), HL_ECORRUPT);
    assert_int_equal(truncate(path, sb.st_size), 0);
    assert_int_equal(try_open(MIB), HL_OK);
    FILE *f = fopen(path, "r+b");
    fseek(f, 40, SEEK_SET); /* in the fixed fields */
    fputc(0x5a, f);
    fclose(f);
    assert_int_equal(try_open(MIB), HL_ECORRUPT);
    unlink(path);
}

TEST(a_file_that_others_reach_is_no_pool)
{
    char other[80];
    snprintf(other, sizeof(other), "%s.link", path);
    struct hl_pool *pool = open_pool(MIB, 0, 0);
    hl_pool_close(pool);
    assert_int_equal(chmod(path, 0666), 0);
    assert_int_equal(try_open(MIB), HL_EPERM);
    assert_non_null(strstr(hl_error_text(), path));
    assert_int_equal(chmod(path, 0600), 0);
    assert_int_equal(link(path, other), 0);
    assert_int_equal(try_open(MIB), HL_EPERM);
    assert_int_equal(unlink(other), 0);
    if (geteuid() == 0) {
        assert_int_equal(chown(path, 12345, (gid_t)-1), 0);
        assert_int_equal(try_open(MIB), HL_EPERM);
        assert_int_equal(chown(path, 0, (gid_t)-1), 0);
    }
    assert_int_equal(try_open(MIB), HL_OK);
    unlink(path);
}

/* Flips every bit of every entry in turn, as failing memory or a stray write of a rank would. */
TEST(a_flipped_bit_in_the_index_leads_the_owner_nowhere)
{

    enum { SHARDS = 3, ENTRY = 64, CHECKED = 52 };
    struct hl_pool *pool = open_pool(8 * MIB, 16, 0);
    struct hl_pool_ref refs[SHARDS], found;
    for (uint64_t i = 0; i < SHARDS; i++)
        refs[i] = put(pool, (i + 1) * MIB + i, i);
    size_t len;
    uint8_t *base = hl_pool_base(pool, &len);
    uint64_t at = ((struct hl_pool_super *)base)->index_offset;
    for (int i = 0; i < SHARDS; i++) {
        uint8_t *entry = base + at + refs[i].slot * ENTRY, good[ENTRY];
        memcpy(good, entry, ENTRY);
        for (int bit = 0; bit < CHECKED * 8; bit++) {
            uint32_t *bad = NULL;
            size_t bad_count = 0;
            entry[bit / 8] ^= (uint8_t)(1 << bit % 8);
            assert_int_equal(hl_pool_find(pool, refs[i].id, &found), HL_OK);
            expect_same(&found, &refs[i]);
            entry[bit / 8] = good[bit / 8] ^ (uint8_t)(1 << bit % 8);
            assert_int_equal(hl_pool_verify(pool, refs[i].id, NULL, &bad, &bad_count), HL_OK);
            assert_memory_equal(entry, good, ENTRY);
            entry[bit / 8] ^= (uint8_t)(1 << bit % 8);
            hl_pool_beat(pool); /* it also checks by itself */
            assert_memory_equal(entry, good, ENTRY);
        }
    }
    assert_int_equal(hl_pool_audit(pool), HL_OK);
    for (int i = 0; i < SHARDS; i++) {
        base[at + refs[i].slot * ENTRY + 16] ^= 0x40; /* offset */
        base[at + refs[i].slot * ENTRY + 26] ^= 0x40; /* size: 4 TiB more */
        assert_int_equal(hl_pool_free(pool, refs[i].id), HL_OK);
    }
    wait_until_rested(pool);
    check_space(pool, 0, 0);
    assert_int_equal(hl_pool_audit(pool), HL_OK);
    hl_pool_remove(pool);
}

/* Chunk CRCs are stored with the bytes, so another shard's bytes would pass as right. */
TEST(an_entry_that_leads_to_another_shard_is_damaged)
{
    struct hl_pool *pool = open_pool(64 * HL_POOL_UNIT, 16, 1);
    struct hl_pool_view *view = open_view(pool);
    struct hl_pool_ref one = put(pool, HL_CHUNK + 5, 1), other = put(pool, HL_CHUNK + 5, 2);
    struct hl_pool_ref found;
    size_t len;
    struct hl_pool_super *super = hl_pool_base(pool, &len);
    struct hl_pool_entry *index = (struct hl_pool_entry *)((uint8_t *)super + super->index_offset);
    assert_int_equal(hl_pool_view_find(view, one.id, &found), HL_OK);
    atomic_store(&index[one.slot].offset, other.offset);
    assert_int_equal(hl_pool_view_find(view, one.id, &found), HL_ECORRUPT);
    assert_non_null(strstr(hl_error_text(), hl_id_format(one.id).s));
    assert_int_equal(hl_pool_view_find(view, other.id, &found), HL_OK);
    hl_pool_view_put(view);
    hl_pool_remove(pool);
}

TEST(a_pool_whose_making_was_cut_short_is_made_again)
{
    write_file("HELIOSP0", 8);
    assert_int_equal(try_open(MIB), HL_OK);
    unlink(path);
    write_file("", 0);
    assert_int_equal(try_open(MIB), HL_OK);
    unlink(path);
}

TEST(readers_notice_a_new_owner_and_a_silent_one)
{
    struct hl_pool *pool = open_pool(MIB, 0, 0);
    struct hl_pool_ref ref = put(pool, 100, 1), again;
    struct hl_pool_view *old = open_view(pool);
    uint8_t buf[100];
    size_t len;
    assert_int_equal(hl_pool_view_alive(old), HL_OK);
    struct hl_pool_super *super = hl_pool_base(pool, &len);
    atomic_store(&super->heartbeat_ns, hl_now_ns() - 2 * HL_NS_PER_S);
    assert_int_equal(hl_pool_view_alive(old), HL_EUNAVAIL);
    hl_pool_beat(pool);
    assert_int_equal(hl_pool_view_alive(old), HL_OK);
    hl_pool_close(pool);
    assert_int_equal(hl_pool_view_alive(old), HL_ESTALE);
    pool = open_pool(MIB, 0, 0);
    assert_int_equal(hl_pool_view_alive(old), HL_ESTALE);
    assert_int_equal(hl_pool_view_read(old, &ref, 0, buf, 100), HL_ESTALE);
    struct hl_pool_view *view = open_view(pool);
    assert_int_equal(hl_pool_view_find(view, ref.id, &again), HL_OK);
    assert_int_equal(hl_pool_view_read(view, &again, 0, buf, 100), HL_OK);
    assert_int_equal(buf[99], byte_of(1, 99));
    hl_pool_view_put(hl_pool_view_get(view));
    hl_pool_view_put(view);
    hl_pool_view_put(old);
    hl_pool_remove(pool);
}

TEST(the_heartbeat_thread_beats_and_ends)
{
    struct hl_pool *pool = NULL;
    assert_int_equal(
        hl_pool_open(
            &(struct hl_pool_options){
                .path = path, .capacity = MIB, .quarantine_ms = 1, .beat_ms = 1, .prefault = 1},
            NULL, &pool),
        HL_OK);
    struct hl_pool_ref ref = put(pool, 100, 1);
    struct hl_pool_info info;
    size_t len;
    struct hl_pool_super *super = hl_pool_base(pool, &len);
    uint64_t first = atomic_load(&super->heartbeat_ns);
    uint64_t deadline = hl_now_ns() + TEST_PATIENCE_NS;
    assert_int_equal(hl_pool_free(pool, ref.id), HL_OK);
    do {
        nanosleep(&(struct timespec){.tv_nsec = 500000}, NULL);
        hl_pool_info(pool, &info);
    } while ((info.quarantined > 0 || atomic_load(&super->heartbeat_ns) == first) &&
             hl_now_ns() < deadline);
    assert_int_equal(info.quarantined, 0);
    assert_true(atomic_load(&super->heartbeat_ns) > first);
    hl_pool_remove(pool);
}

int main(int argc, char **argv)
{
    snprintf(path, sizeof(path), "/dev/shm/helios-test-pool-%d", (int)getpid());
    int failed = tests_run(argc, argv);
    unlink(path);
    return failed;
}
