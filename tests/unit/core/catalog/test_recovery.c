/* Which versions come back after the metadata was lost, judged by what pool and archive hold. */
#include "support/test.h"

#include <stdlib.h>
#include <string.h>

#include "core/catalog/derived_id.h"
#include "core/catalog/recovery.h"
#include "unit/controller/catalog_rig.h"

struct world {
    struct hl_catalog before; /* what was lost */
    struct hl_catalog now;    /* empty at first */
    struct hl_recovery r;
    struct hl_version_rec *first;  /* shards 1 and 2 */
    struct hl_version_rec *second; /* shards 11 and 12 */
};

static struct hl_id shard_id(int n)
{
    return (struct hl_id){0, (uint64_t)n};
}

static struct hl_recovery_object *lies_in_pool(struct world *w, int n)
{
    struct hl_recovery_object *o = hl_recovery_object(&w->r, shard_id(n));
    assert_non_null(o);
    o->pooled = true;
    o->size = size_of_shard(n);
    o->crc = crc_of_shard(n);
    return o;
}

static void add_manifest(struct world *w, const struct hl_version_rec *v)
{
    char *text = NULL;
    assert_int_equal(hl_manifest_encode(v, shard_id(9), &text), HL_OK);
    assert_int_equal(hl_recovery_add_manifest(&w->r, hl_manifest_id(v), text), HL_OK);
    free(text);
}

static void world_init(struct world *w)
{
    memset(w, 0, sizeof(*w));
    w->first = import_model(&w->before, "tiny", 1, "{}");
    w->second = save_version(&w->before, "tiny", 11, 77, 2000);
    add_manifest(w, w->second); /* in any order */
    add_manifest(w, w->first);
    for (int n = 1; n <= 2; n++) {
        lies_in_pool(w, n);
        lies_in_pool(w, n + 10);
    }
}

static void world_fini(struct world *w)
{
    hl_recovery_fini(&w->r);
    hl_catalog_fini(&w->before);
    hl_catalog_fini(&w->now);
}

static const struct hl_recovery_candidate *judged(struct world *w, int64_t number)
{
    hl_recovery_judge(&w->r, &w->now);
    for (size_t i = 0; i < w->r.count; i++)
        if (w->r.list[i].manifest.number == number)
            return &w->r.list[i];
    return NULL;
}

static void skipped(struct world *w, int64_t number, const char *why)
{
    const struct hl_recovery_candidate *x = judged(w, number);
    assert_non_null(x);
    assert_true(x->skipped);
    if (strstr(x->reason, why) == NULL)
        fail_msg("'%s' should hold '%s'", x->reason, why);
}

TEST(versions_whose_shards_are_all_there_come_back_oldest_first)
{
    struct world w;
    size_t count;
    world_init(&w);
    hl_recovery_judge(&w.r, &w.now);
    const struct hl_manifest **list = hl_recovery_list(&w.r, &count);
    assert_int_equal(count, 2);
    assert_true(list[0]->number == 1 && list[1]->number == 2);
    assert_int_equal(hl_recovery_decide(&w.r, false).left, 0);
    free(list);
    world_fini(&w);
}

TEST(a_version_that_lacks_a_shard_stays_away_and_leaves_the_others)
{
    struct world w;
    world_init(&w);
    hl_recovery_object(&w.r, shard_id(12))->pooled = false;
    skipped(&w, 2, "1 of 2 shards");
    assert_false(judged(&w, 1)->skipped);
    assert_int_equal(hl_recovery_decide(&w.r, false).left, 1); /* 11, which no version holds */
    world_fini(&w);
}

TEST(the_archive_and_its_trash_count_as_the_pool_does)
{
    struct world w;
    world_init(&w);
    struct hl_recovery_object *o = hl_recovery_object(&w.r, shard_id(12));
    o->pooled = false;
    o->trashed = true;
    assert_false(judged(&w, 2)->skipped);
    o->trashed = false;
    o->archived = true;
    o->crc = 0; /* not read yet: the size must suffice */
    assert_false(judged(&w, 2)->skipped);
    o->read = true;
    skipped(&w, 2, "CRC");
    world_fini(&w);
}

TEST(a_shard_of_another_size_or_checksum_or_that_is_unreadable_is_none)
{
    struct world w;
    world_init(&w);
    struct hl_recovery_object *o = hl_recovery_object(&w.r, shard_id(11));
    o->size--;
    skipped(&w, 2, "bytes, not");
    o->size++;
    o->crc ^= 1;
    skipped(&w, 2, "CRC");
    o->crc ^= 1;
    snprintf(o->unreadable, sizeof(o->unreadable), "its header is cut off");
    skipped(&w, 2, "its header is cut off");
    world_fini(&w);
}

TEST(what_the_catalogue_has_needs_no_recovery)
{
    struct world w;
    world_init(&w);
    import_model(&w.now, "tiny", 1, "{}");
    hl_recovery_judge(&w.r, &w.now);
    assert_int_equal(w.r.known, 1);
    assert_int_equal(w.r.count, 1);
    assert_false(judged(&w, 2)->skipped); /* joins the existing model */
    world_fini(&w);
}

TEST(a_model_of_the_same_name_and_another_configuration_is_not_mixed_with)
{
    struct world w;
    world_init(&w);
    import_model(&w.now, "tiny", 101, "{\"layers\":9}");
    skipped(&w, 2, "another configuration");
    world_fini(&w);
}

TEST(a_version_of_the_catalogue_with_other_shards_wins)
{
    struct world w;
    world_init(&w);
    import_model(&w.now, "tiny", 101, "{}");
    skipped(&w, 1, "with other shards");
    world_fini(&w);
}

TEST(of_two_manifests_of_a_version_the_newer_one_counts)
{
    struct world w;
    struct hl_catalog later = {0};
    world_init(&w);
    import_model(&later, "tiny", 1, "{}");
    add_manifest(&w, save_version(&later, "tiny", 21, 77, 9000));
    lies_in_pool(&w, 21);
    lies_in_pool(&w, 22);
    hl_recovery_judge(&w.r, &w.now);
    size_t restored = 0;
    for (size_t i = 0; i < w.r.count; i++)
        if (w.r.list[i].manifest.number == 2 && !w.r.list[i].skipped) {
            restored++;
            assert_int_equal(w.r.list[i].manifest.visible_ms, 9000);
        }
    assert_int_equal(restored, 1);
    assert_int_equal(hl_recovery_decide(&w.r, false).left, 2); /* 11 and 12 */
    hl_catalog_fini(&later);
    world_fini(&w);
}

TEST(a_shard_goes_to_one_version)
{
    struct world w;
    struct hl_catalog other = {0};
    world_init(&w);
    import_model(&other, "thief", 11, "{}"); /* the same shards under another name */
    add_manifest(&w, import_model(&other, "uncle", 31, "{}"));
    struct hl_model_rec *m;
    struct hl_version_rec *v;
    assert_int_equal(hl_catalog_model(&other, "thief", &m), HL_OK);
    assert_int_equal(hl_catalog_version(m, 1, &v), HL_OK);
    add_manifest(&w, v);
    hl_recovery_judge(&w.r, &w.now);
    size_t holders = 0;
    for (size_t i = 0; i < w.r.count; i++) {
        const struct hl_recovery_candidate *x = &w.r.list[i];
        bool wants = strcmp(x->manifest.model, "thief") == 0 || x->manifest.number == 2;
        holders += wants && !x->skipped;
    }
    assert_int_equal(holders, 1);
    hl_catalog_fini(&other);
    world_fini(&w);
}

TEST(discard_gives_up_what_is_not_known_already)
{
    struct world w;
    world_init(&w);
    w.r.discard = true;
    skipped(&w, 1, "--discard");
    skipped(&w, 2, "--discard");
    assert_int_equal(hl_recovery_decide(&w.r, false).left, 4);
    world_fini(&w);
}

TEST(a_manifest_under_the_name_of_another_is_damaged)
{
    struct world w;
    char *text = NULL;
    world_init(&w);
    assert_int_equal(hl_manifest_encode(w.first, shard_id(9), &text), HL_OK);
    assert_int_equal(hl_recovery_add_manifest(&w.r, hl_manifest_id(w.second), text), HL_ECORRUPT);
    assert_int_not_equal(hl_recovery_add_manifest(&w.r, hl_manifest_id(w.second), "{}"), HL_OK);
    assert_int_equal(w.r.damaged, 2);
    assert_int_equal(w.r.count, 2);
    free(text);
    world_fini(&w);
}

static void noted(struct world *w, enum hl_recovery_place place, int n, uint64_t size)
{
    assert_int_equal(hl_recovery_note(&w->r, place, shard_id(n), size, (uint32_t)size), HL_OK);
}

TEST(the_size_of_an_object_is_that_of_pool_archive_and_trash_in_this_order)
{
    struct world w = {0};
    struct hl_recovery_object *o;
    noted(&w, HL_RECOVERY_TRASHED, 5, 30);
    o = hl_recovery_object(&w.r, shard_id(5));
    assert_int_equal(o->size, 30);
    noted(&w, HL_RECOVERY_ARCHIVED, 5, 20);
    assert_int_equal(o->size, 20);
    noted(&w, HL_RECOVERY_TRASHED, 5, 30); /* its page was listed again */
    assert_int_equal(o->size, 20);
    assert_int_equal(o->crc, 0); /* only the pool's list has it */
    noted(&w, HL_RECOVERY_POOLED, 5, 10);
    noted(&w, HL_RECOVERY_ARCHIVED, 5, 20);
    assert_int_equal(o->size, 10);
    assert_int_equal(o->crc, 10);
    assert_true(o->pooled && o->archived && o->trashed);
    assert_int_equal(HASH_COUNT(w.r.objects), 1);
    world_fini(&w);
}

TEST(derived_shards_are_not_recovered)
{
    struct world w = {0};
    assert_int_equal(hl_recovery_note(&w.r, HL_RECOVERY_POOLED, hl_id_derived(7, 1), 10, 1), HL_OK);
    assert_int_equal(HASH_COUNT(w.r.objects), 0);
    world_fini(&w);
}

TEST(l3_reads_manifests_unclaimed_headers_and_checksums_of_the_archive)
{
    struct world w;
    world_init(&w);
    hl_recovery_judge(&w.r, &w.now);
    struct hl_recovery_object *o = hl_recovery_object(&w.r, shard_id(1));
    assert_true(o->claimed);
    assert_false(hl_recovery_reads(o, &w.now)); /* the list has its CRC */
    o->pooled = false;
    o->archived = true;
    assert_true(hl_recovery_reads(o, &w.now));
    o->read = true;
    assert_false(hl_recovery_reads(o, &w.now));
    o = lies_in_pool(&w, 99); /* belongs to no version: its header says whose it is */
    assert_true(hl_recovery_reads(o, &w.now));
    o->pooled = false;
    o->trashed = true; /* L3 does not read from the trash */
    assert_false(hl_recovery_reads(o, &w.now));
    o = hl_recovery_object(&w.r, hl_manifest_id(w.first));
    o->pooled = true;
    assert_true(hl_recovery_reads(o, &w.now));
    world_fini(&w);
}

TEST(what_l3_no_longer_has_is_in_no_tier)
{
    struct world w;
    struct hl_recovery_object *o;
    char id[HL_ID_TEXT_LEN + 1];
    world_init(&w);
    memcpy(id, hl_id_format(shard_id(12)).s, sizeof(id));
    const struct hl_api_found gone = {
        .id = id, .tier = HL_API_TIER_UNSAID, .error = "", .model = ""};
    assert_int_equal(hl_recovery_found(&w.r, &gone, &o), HL_OK);
    assert_false(o->pooled);
    skipped(&w, 2, "1 of 2 shards");
    world_fini(&w);
}

TEST(only_shards_of_versions_that_come_back_leave_the_trash)
{
    struct world w;
    world_init(&w);
    struct hl_recovery_object *o = hl_recovery_object(&w.r, shard_id(2));
    struct hl_recovery_object *stranger = hl_recovery_object(&w.r, shard_id(50));
    o->pooled = false;
    o->trashed = stranger->trashed = true;
    hl_recovery_judge(&w.r, &w.now);
    assert_true(hl_recovery_untrashes(o, &w.now));
    assert_false(hl_recovery_untrashes(stranger, &w.now));
    hl_recovery_untrashed(&w.r);
    assert_true(o->archived);
    assert_false(stranger->archived);
    assert_false(hl_recovery_untrashes(o, &w.now));
    world_fini(&w);
}

TEST(nothing_is_claimed_while_shards_are_left_over_unless_they_are_given_up)
{
    struct world w;
    world_init(&w);
    hl_recovery_judge(&w.r, &w.now);
    struct hl_recovery_decision d = hl_recovery_decide(&w.r, false);
    assert_true(d.takes && d.changes);
    assert_false(hl_recovery_decide(&w.r, true).changes);
    lies_in_pool(&w, 99);
    d = hl_recovery_decide(&w.r, false);
    assert_int_equal(d.left, 1);
    assert_false(d.takes);
    assert_true(d.changes); /* the versions come back nevertheless */
    for (int n = 1; n <= 2; n++)
        hl_recovery_object(&w.r, shard_id(n))->pooled =
            hl_recovery_object(&w.r, shard_id(n + 10))->pooled = false;
    hl_recovery_judge(&w.r, &w.now);
    assert_false(hl_recovery_decide(&w.r, false).changes); /* and none does */
    w.r.discard = true;
    hl_recovery_judge(&w.r, &w.now);
    d = hl_recovery_decide(&w.r, false);
    assert_true(d.takes && d.changes);
    world_fini(&w);
}

TEST(shards_that_are_left_over_are_told_by_version_and_tier)
{
    struct world w;
    struct hl_arena arena = {0};
    world_init(&w);
    hl_recovery_object(&w.r, shard_id(12))->pooled = false;
    for (int n = 60; n < 63; n++)
        lies_in_pool(&w, n)->size = 100;
    struct hl_recovery_object *o = hl_recovery_object(&w.r, shard_id(11));
    o->model = strdup("tiny");
    o->version = 2;
    hl_recovery_judge(&w.r, &w.now);
    struct hl_api_left_shards_list left = hl_recovery_left(&w.r, &arena);
    assert_int_equal(left.count, 2);
    bool named = left.items[0].model[0] != '\0';
    const struct hl_api_left_shards *of = &left.items[named ? 0 : 1], *none = &left.items[named];
    assert_string_equal(of->model, "tiny");
    assert_int_equal(of->version, 2);
    assert_int_equal(of->shards, 1);
    assert_non_null(strstr(of->reason, "skipped"));
    assert_int_equal(none->shards, 3);
    assert_int_equal(none->bytes, 300);
    assert_int_equal(none->tier, HL_API_TIER_L3);
    hl_arena_fini(&arena);
    world_fini(&w);
}
