/* Which versions come back after the metadata were lost, by what pool and archive hold. */
#include "support/test.h"

#include <stdlib.h>
#include <string.h>

#include "controller/models/recover_private.h"
#include "core/manifest.h"
#include "unit/controller/catalog_rig.h"

struct world {
    struct hl_catalog before; /* what was lost */
    struct hl_controller c;   /* the new one, whose catalogue is empty at first */
    struct recovery r;
    struct hl_version_rec *first;  /* shards 1 and 2 */
    struct hl_version_rec *second; /* shards 11 and 12 */
};

static struct hl_id shard_id(int n)
{
    return (struct hl_id){0, (uint64_t)n};
}

static struct object *lies_in_pool(struct world *w, int n)
{
    struct object *o = recover_object(&w->r, shard_id(n));
    assert_non_null(o);
    o->pooled = true;
    o->size = size_of_shard(n);
    o->crc = crc_of_shard(n);
    return o;
}

static void add_manifest(struct world *w, const struct hl_version_rec *v)
{
    char *text = NULL;
    assert_int_equal(hl_manifest_encode(v, w->r.cluster, &text), HL_OK);
    recover_add_manifest(&w->r, hl_manifest_id(v), text);
    free(text);
}

static void world_init(struct world *w)
{
    memset(w, 0, sizeof(*w));
    w->r.c = &w->c;
    w->first = import_model(&w->before, "tiny", 1, "{}");
    w->second = save_version(&w->before, "tiny", 11, 77, 2000);
    add_manifest(w, w->second); /* in no order */
    add_manifest(w, w->first);
    for (int n = 1; n <= 2; n++) {
        lies_in_pool(w, n);
        lies_in_pool(w, n + 10);
    }
}

static void world_fini(struct world *w)
{
    struct object *o, *next;
    for (size_t i = 0; i < w->r.count; i++)
        candidate_fini(&w->r.list[i]);
    free(w->r.list);
    HASH_ITER (hh, w->r.objects, o, next) {
        HASH_DEL(w->r.objects, o);
        free(o);
    }
    hl_catalog_fini(&w->before);
    hl_catalog_fini(&w->c.catalog);
}

static const struct candidate *judged(struct world *w, int64_t number)
{
    recover_judge(&w->r);
    for (size_t i = 0; i < w->r.count; i++)
        if (w->r.list[i].manifest.number == number)
            return &w->r.list[i];
    return NULL;
}

static void skipped(struct world *w, int64_t number, const char *why)
{
    const struct candidate *x = judged(w, number);
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
    recover_judge(&w.r);
    const struct hl_manifest **list = recover_list(&w.r, &count);
    assert_int_equal(count, 2);
    assert_true(list[0]->number == 1 && list[1]->number == 2);
    assert_int_equal(recover_left(&w.r), 0);
    free(list);
    world_fini(&w);
}

TEST(a_version_that_lacks_a_shard_stays_away_and_leaves_the_others)
{
    struct world w;
    world_init(&w);
    recover_object(&w.r, shard_id(12))->pooled = false;
    skipped(&w, 2, "1 of 2 shards");
    assert_false(judged(&w, 1)->skipped);
    assert_int_equal(recover_left(&w.r), 1); /* 11, which no version holds */
    world_fini(&w);
}

TEST(the_archive_and_its_trash_count_as_the_pool_does)
{
    struct world w;
    world_init(&w);
    struct object *o = recover_object(&w.r, shard_id(12));
    o->pooled = false;
    o->trashed = true;
    assert_false(judged(&w, 2)->skipped);
    o->trashed = false;
    o->archived = true;
    o->crc = 0; /* not read yet: the size has to do */
    assert_false(judged(&w, 2)->skipped);
    o->read = true;
    skipped(&w, 2, "CRC");
    world_fini(&w);
}

TEST(a_shard_of_another_size_or_checksum_or_that_is_unreadable_is_none)
{
    struct world w;
    world_init(&w);
    struct object *o = recover_object(&w.r, shard_id(11));
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
    import_model(&w.c.catalog, "tiny", 1, "{}");
    recover_judge(&w.r);
    assert_int_equal(w.r.known, 1);
    assert_int_equal(w.r.count, 1);
    assert_false(judged(&w, 2)->skipped); /* joins the model that is there */
    world_fini(&w);
}

TEST(a_model_of_the_same_name_and_another_configuration_is_not_mixed_with)
{
    struct world w;
    world_init(&w);
    import_model(&w.c.catalog, "tiny", 101, "{\"layers\":9}");
    skipped(&w, 2, "another configuration");
    world_fini(&w);
}

TEST(a_version_of_the_catalogue_with_other_shards_wins)
{
    struct world w;
    world_init(&w);
    import_model(&w.c.catalog, "tiny", 101, "{}");
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
    recover_judge(&w.r);
    size_t restored = 0;
    for (size_t i = 0; i < w.r.count; i++)
        if (w.r.list[i].manifest.number == 2 && !w.r.list[i].skipped) {
            restored++;
            assert_int_equal(w.r.list[i].manifest.visible_ms, 9000);
        }
    assert_int_equal(restored, 1);
    assert_int_equal(recover_left(&w.r), 2); /* 11 and 12 */
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
    recover_judge(&w.r);
    size_t holders = 0;
    for (size_t i = 0; i < w.r.count; i++) {
        const struct candidate *x = &w.r.list[i];
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
    assert_int_equal(recover_left(&w.r), 4);
    world_fini(&w);
}

TEST(a_manifest_under_the_name_of_another_is_damaged)
{
    struct world w;
    char *text = NULL;
    world_init(&w);
    assert_int_equal(hl_manifest_encode(w.first, w.r.cluster, &text), HL_OK);
    recover_add_manifest(&w.r, hl_manifest_id(w.second), text);
    recover_add_manifest(&w.r, hl_manifest_id(w.second), "{}");
    assert_int_equal(w.r.damaged, 2);
    assert_int_equal(w.r.count, 2);
    free(text);
    world_fini(&w);
}
