/* The archive in a directory when others take directories and files away while it is open. */
#include "support/test.h"

#include <sys/stat.h>
#include <unistd.h>

#include "unit/mem/archive/archive_rig.h"

struct text {
    char s[200];
};

static struct text in_dir(const struct rig *r, const char *name)
{
    struct text t;
    snprintf(t.s, sizeof(t.s), "%s/%s", r->dir, name);
    return t;
}

static void write_file(struct text path, const char *content)
{
    FILE *f = fopen(path.s, "w");
    assert_non_null(f);
    fputs(content, f);
    assert_int_equal(fclose(f), 0);
}

static struct text sub_of(const struct rig *r, struct hl_id id)
{
    struct text t;
    snprintf(t.s, sizeof(t.s), "%s/%.2s", r->dir, hl_id_format(id).s);
    return t;
}

static void count_missed(void *arg, struct hl_id id, bool gone)
{
    (void)id;
    *(unsigned *)arg += gone;
}

/* A file or a link in the place of DIR/xx. */
TEST_IN(rig_setup, rig_teardown, a_directory_that_is_none_any_more_takes_its_own_shards_alone)
{
    struct rig *r = *state;
    struct shard s[3];
    bool gone;
    unsigned missed = 0;
    for (unsigned i = 0; i < 3; i++) {
        s[i] = shard_make(id_of(i + 1), 1000, i, 1);
        assert_int_equal(put(r, &s[i]), HL_OK);
    }
    for (unsigned i = 0; i < 2; i++) {
        assert_int_equal(hl_dir_remove(sub_of(r, s[i].id).s), HL_OK);
    }
    write_file(sub_of(r, s[0].id), "a file");
    assert_int_equal(symlink(sub_of(r, s[2].id).s, sub_of(r, s[1].id).s), 0);
    assert_int_equal(hl_archive_look(r->archive, s[0].id, &gone), HL_ENOENT);
    assert_true(gone);
    assert_int_equal(hl_archive_check(r->archive, count_missed, &missed), HL_OK);
    assert_int_equal(missed, 1);
    assert_int_equal(info(r).count, 1);
    assert_readable(r, &s[2]);
    assert_int_equal(put(r, &s[0]), HL_EIO);
    assert_error_has(sub_of(r, s[0].id).s);
    for (unsigned i = 0; i < 3; i++)
        free(s[i].bytes);
}

/* The index has forgotten it meanwhile. */
TEST_IN(rig_setup, rig_teardown, a_shard_that_was_put_back_is_stored_again)
{
    struct rig *r = *state;
    struct shard s = shard_make(id_of(1), 10 << 20, 1, 1);
    struct text aside = in_dir(r, "aside"), sub = sub_of(r, s.id);
    bool gone;
    assert_int_equal(put(r, &s), HL_OK);
    assert_int_equal(rename(sub.s, aside.s), 0);
    assert_int_equal(hl_archive_look(r->archive, s.id, &gone), HL_ENOENT);
    assert_int_equal(rename(aside.s, sub.s), 0);
    if (put(r, &s) != HL_OK)
        fail_msg("%s", hl_error_text());
    assert_readable(r, &s);
    rig_reopen(r, 0);
    assert_readable(r, &s);
    assert_int_equal(info(r).discarded + info(r).foreign, 0);
    free(s.bytes);
}

TEST_IN(rig_setup, rig_teardown, a_shard_whose_directory_is_gone_can_be_removed)
{
    struct rig *r = *state;
    struct shard s = shard_make(id_of(1), 1000, 1, 1);
    assert_int_equal(put(r, &s), HL_OK);
    assert_int_equal(hl_dir_remove(sub_of(r, s.id).s), HL_OK);
    assert_int_equal(hl_archive_remove(r->archive, s.id), HL_OK);
    assert_int_equal(info(r).used_bytes, 0);
    assert_int_equal(put(r, &s), HL_OK);
    free(s.bytes);
}

TEST_IN(rig_setup, rig_teardown, what_others_took_out_of_the_trash_is_forgotten)
{
    struct rig *r = *state;
    struct shard s[3];
    struct hl_archive_trashed t;
    unsigned missed = 0;
    for (unsigned i = 0; i < 3; i++) {
        s[i] = shard_make(id_of(i + 1), 1000, i, 1);
        assert_int_equal(put(r, &s[i]), HL_OK);
        assert_int_equal(hl_archive_trash(r->archive, s[i].id, i + 1, &t), HL_OK);
    }
    assert_int_equal(unlink(in_dir(r, t.place).s), 0);
    assert_int_equal(hl_archive_untrash(r->archive, s[2].id), HL_ENOENT);
    assert_int_equal(info(r).trashed, 2);
    assert_int_equal(hl_archive_check(r->archive, count_missed, &missed), HL_OK);
    assert_int_equal(info(r).trashed, 2);
    assert_int_equal(hl_archive_untrash(r->archive, s[0].id), HL_OK);
    assert_int_equal(hl_dir_remove(in_dir(r, "trash").s), HL_OK);
    assert_int_equal(hl_archive_check(r->archive, count_missed, &missed), HL_OK);
    assert_int_equal(info(r).trashed, 0);
    assert_int_equal(info(r).trashed_bytes, 0);
    assert_int_equal(info(r).count, 1);
    assert_int_equal(missed, 0);
    for (unsigned i = 0; i < 3; i++)
        free(s[i].bytes);
}

/* Of the same shard, trashed twice, the copy that is left comes back. */
TEST_IN(rig_setup, rig_teardown, the_copy_that_is_left_in_the_trash_comes_back)
{
    struct rig *r = *state;
    struct shard s = shard_make(id_of(1), 1000, 1, 1);
    struct hl_archive_trashed t;
    for (unsigned i = 0; i < 2; i++) {
        assert_int_equal(put(r, &s), HL_OK);
        assert_int_equal(hl_archive_trash(r->archive, s.id, i, &t), HL_OK);
    }
    assert_int_equal(unlink(in_dir(r, t.place).s), 0);
    assert_int_equal(hl_archive_untrash(r->archive, s.id), HL_OK);
    assert_readable(r, &s);
    assert_int_equal(info(r).trashed, 0);
    free(s.bytes);
}

TEST_IN(rig_setup, rig_teardown, the_trash_of_an_archive_that_is_away_is_not_empty)
{
    struct rig *r = *state;
    struct shard s = shard_make(id_of(1), 1000, 1, 1);
    struct text aside;
    unsigned missed = 0;
    snprintf(aside.s, sizeof(aside.s), "%s.aside", r->dir);
    assert_int_equal(put(r, &s), HL_OK);
    assert_int_equal(hl_archive_trash(r->archive, s.id, 1, NULL), HL_OK);
    assert_int_equal(rename(r->dir, aside.s), 0);
    assert_int_equal(hl_dir_remove(aside.s), HL_OK);
    assert_int_equal(hl_archive_check(r->archive, count_missed, &missed), HL_EUNAVAIL);
    assert_int_equal(info(r).trashed, 1);
    free(s.bytes);
}
