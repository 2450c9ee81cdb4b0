/* The archive in a directory when a disk does not confirm a directory: what the index says must be
 * what the next start finds. */
#include "support/test.h"

#include <errno.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "unit/mem/archive/archive_rig.h"

static unsigned until_failure; /* fsync calls; 0: none fails */
static ino_t bad_directory;    /* its fsync calls fail */
static const char *blocked;    /* a directory with this name is made when a call fails */

int fsync(int fd)
{
    struct stat sb;
    bool bad = bad_directory != 0 && fstat(fd, &sb) == 0 && sb.st_ino == bad_directory;
    if (!bad && (until_failure == 0 || --until_failure > 0))
        return (int)syscall(SYS_fsync, fd);
    if (blocked != NULL)
        (void)!mkdir(blocked, 0700);
    errno = EIO;
    return -1;
}

static int setup(void **state)
{
    until_failure = 0;
    bad_directory = 0;
    blocked = NULL;
    return rig_setup(state);
}

static ino_t inode_of(const char *path)
{
    struct stat sb;
    assert_int_equal(stat(path, &sb), 0);
    return sb.st_ino;
}

static void assert_index_is_right(struct rig *r)
{
    const struct hl_archive_info before = info(r);
    struct hl_archive_claim claim, again;
    hl_archive_claimed(r->archive, &claim);
    rig_reopen(r, 0);
    hl_archive_claimed(r->archive, &again);
    assert_int_equal(info(r).count, before.count);
    assert_int_equal(info(r).used_bytes, before.used_bytes);
    assert_int_equal(info(r).trashed, before.trashed);
    assert_true(hl_id_equal(claim.cluster, again.cluster));
    assert_int_equal(claim.revision, again.revision);
}

static hl_status trash_it(struct rig *r, const struct shard *s)
{
    return hl_archive_trash(r->archive, s->id, 1, NULL);
}

static hl_status untrash_it(struct rig *r, const struct shard *s)
{
    return hl_archive_untrash(r->archive, s->id);
}

static hl_status claim_it(struct rig *r, const struct shard *s)
{
    return hl_archive_claim(r->archive,
                            &(struct hl_archive_claim){.cluster = s->id, .revision = 7});
}

/* Lets the first fsync call of the operation fail, then the second, and so on. */
static void fail_each_sync(struct rig *r, const struct shard *s,
                           hl_status (*act)(struct rig *r, const struct shard *s))
{
    for (unsigned n = 1;; n++) {
        until_failure = n;
        hl_status st = act(r, s);
        bool failed = until_failure == 0;
        until_failure = 0;
        assert_true(failed || st == HL_OK);
        assert_index_is_right(r);
        if (st == HL_OK)
            return;
        assert_int_equal(st, HL_EIO);
    }
}

TEST_IN(setup, rig_teardown, the_index_is_right_after_any_sync_that_failed)
{
    struct rig *r = *state;
    struct shard s = shard_make(id_of(1), 1000, 1, 1);
    fail_each_sync(r, &s, put);
    assert_int_equal(info(r).count, 1);
    fail_each_sync(r, &s, trash_it);
    assert_int_equal(info(r).trashed, 1);
    fail_each_sync(r, &s, untrash_it);
    assert_int_equal(info(r).count, 1);
    assert_readable(r, &s);
    fail_each_sync(r, &s, claim_it);
    free(s.bytes);
}

TEST_IN(setup, rig_teardown, a_shard_that_can_not_be_moved_back_stays_where_it_is)
{
    struct rig *r = *state;
    struct shard s = shard_make(id_of(1), 1000, 1, 1);
    char name[120], sub[64];
    struct hl_id_text id = hl_id_format(s.id);
    snprintf(sub, sizeof(sub), "%s/%.2s", r->dir, id.s);
    snprintf(name, sizeof(name), "%s/%s.safetensors", sub, id.s);
    assert_int_equal(put(r, &s), HL_OK);
    blocked = name;
    bad_directory = inode_of(sub);
    assert_int_equal(trash_it(r, &s), HL_OK);
    assert_int_equal(info(r).trashed, 1);
    assert_int_equal(info(r).count, 0);
    bad_directory = 0;
    assert_index_is_right(r);
    free(s.bytes);
}

TEST_IN(setup, rig_teardown, a_directory_that_was_not_confirmed_is_synced_by_the_next_caller)
{
    struct rig *r = *state;
    struct shard s = shard_make(id_of(1), 1000, 1, 1);
    bad_directory = inode_of(r->dir);
    assert_int_equal(put(r, &s), HL_EIO);
    assert_int_equal(put(r, &s), HL_EIO); /* its directory is there now, and may be lost */
    bad_directory = 0;
    assert_int_equal(put(r, &s), HL_OK);
    bad_directory = inode_of(r->dir);
    assert_int_equal(trash_it(r, &s), HL_EIO);
    assert_int_equal(trash_it(r, &s), HL_EIO);
    bad_directory = 0;
    assert_int_equal(trash_it(r, &s), HL_OK);
    free(s.bytes);
}

TEST_IN(setup, rig_teardown, no_shard_is_stored_before_the_owner_is_confirmed)
{
    struct rig *r = *state;
    struct shard s = shard_make(id_of(1), 1000, 1, 1), other = shard_make(s.id, 1000, 2, 1);
    assert_int_equal(put(r, &s), HL_OK); /* its directory is there */
    assert_int_equal(hl_archive_remove(r->archive, s.id), HL_OK);
    bad_directory = inode_of(r->dir);
    assert_int_equal(claim_it(r, &s), HL_OK);
    assert_int_equal(put(r, &other), HL_EIO);
    bad_directory = 0;
    assert_int_equal(put(r, &other), HL_OK);
    assert_index_is_right(r);
    free(s.bytes);
    free(other.bytes);
}
