/* The archive behind a newly opened tier: only the sizes of its shards are known. */
#include "support/test.h"

#include "unit/mem/tier/tier_rig.h"

static struct hl_tier_store *tier_over(struct rig *r)
{
    struct hl_tier_store *t = NULL;
    hl_status st = hl_tier_over_archive(r->archive, "dir", NULL, &t);
    if (st != HL_OK)
        fail_msg("%s", hl_error_text());
    return t;
}

static void damage(struct rig *r, struct hl_id id, uint64_t offset)
{
    char file[120];
    snprintf(file, sizeof(file), "%s/%.2s/%s.safetensors", r->dir, hl_id_format(id).s,
             hl_id_format(id).s);
    FILE *f = fopen(file, "r+b");
    assert_non_null(f);
    assert_int_equal(fseek(f, (long)offset, SEEK_SET), 0);
    assert_int_equal(fwrite("!", 1, 1, f), 1);
    assert_int_equal(fclose(f), 0);
}

TEST_IN(rig_setup, rig_teardown, archived_shards_are_found_with_the_crc_of_their_headers)
{
    struct rig *r = *state;
    struct shard with = shard_make(id_of(1), 2 * MIB, 1, 1);
    struct shard without = shard_make(id_of(2), MIB + 5, 2, 0);
    char *back = malloc(with.size);
    assert_int_equal(put(r, &with), HL_OK);
    assert_int_equal(put(r, &without), HL_OK);
    struct hl_tier_store *t = tier_over(r);
    struct hl_tier_ref a, b, page[4];
    struct hl_tier_usage u;
    hl_tier_usage(t, &u);
    assert_int_equal(u.used, with.size + without.size);
    assert_int_equal(u.shards, 2);
    assert_int_equal(u.quota, 0);
    assert_int_equal(hl_tier_find(t, with.id, &a), HL_OK);
    assert_int_equal(hl_tier_find(t, without.id, &b), HL_OK);
    assert_int_equal(a.crc32, with.crc);
    assert_int_equal(b.crc32, without.crc);
    uint64_t cursor = 0;
    assert_int_equal(hl_tier_list(t, &cursor, page, 4), 2);
    assert_int_equal(cursor, 0);
    uint32_t *crcs = chunk_crcs_of(&with), got[3];
    assert_int_equal(hl_tier_chunk_crcs(t, &a, got), HL_OK);
    assert_memory_equal(got, crcs, sizeof(got));
    assert_int_equal(hl_tier_read(t, &a, MIB - 7, back, 20), HL_OK);
    assert_memory_equal(back, with.bytes + MIB - 7, 20);
    assert_int_equal(hl_tier_read(t, &b, 0, back, without.size), HL_OK);
    assert_memory_equal(back, without.bytes, without.size);
    assert_int_equal(hl_tier_audit(t), HL_OK);
    hl_tier_close(t);
    free(crcs);
    free(back);
    free(with.bytes);
    free(without.bytes);
}

TEST_IN(rig_setup, rig_teardown, damage_that_happened_before_is_found_by_the_first_read)
{
    struct rig *r = *state;
    struct shard s = shard_make(id_of(1), 2 * MIB, 1, 1);
    char back[8];
    assert_int_equal(put(r, &s), HL_OK);
    damage(r, s.id, MIB + 99);
    struct hl_tier_store *t = tier_over(r);
    struct hl_tier_ref ref;
    assert_int_equal(hl_tier_find(t, s.id, &ref), HL_OK);
    assert_int_equal(hl_tier_read(t, &ref, 0, back, 8), HL_ECORRUPT);
    assert_error_has("its header says");
    assert_int_equal(hl_tier_drop(t, s.id), HL_OK);
    assert_int_equal(hl_tier_find(t, s.id, &ref), HL_ENOENT);
    assert_int_equal(info(r).count, 0);
    hl_tier_close(t);
    free(s.bytes);
}

TEST_IN(rig_setup, rig_teardown, what_is_no_shard_is_not_taken_and_leaves_the_slot_to_the_caller)
{
    struct rig *r = *state;
    struct shard s = shard_make(id_of(1), 5000, 1, 1);
    struct hl_tier_store *t = tier_over(r);
    struct hl_tier_slot slot;
    struct hl_tier_ref ref;
    uint32_t crc = hl_crc32(0, s.bytes, s.size) ^ 1;
    assert_int_equal(hl_tier_reserve(t, s.id, s.size, -1, &slot), HL_OK);
    memcpy(slot.host, s.bytes, s.size);
    assert_int_equal(hl_tier_seal(t, &slot, crc, &crc, 1, &ref), HL_ECORRUPT);
    memset(slot.host, 0xff, s.size);
    crc = hl_crc32(0, slot.host, s.size);
    assert_int_equal(hl_tier_seal(t, &slot, crc, &crc, 1, &ref), HL_EINVAL);
    assert_int_equal(info(r).count, 0);
    memcpy(slot.host, s.bytes, s.size);
    assert_int_equal(hl_tier_seal(t, &slot, s.crc, &s.crc, 1, &ref), HL_OK);
    assert_int_equal(info(r).count, 1);
    assert_int_equal(hl_tier_audit(t), HL_OK);
    hl_tier_close(t);
    assert_readable(r, &s);
    free(s.bytes);
}
