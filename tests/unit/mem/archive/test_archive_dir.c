/* The archive in a directory: what is on the disk, what does not belong there, a full disk, and the
 * death of the writer at every piece of a put and at random moments. */
#include "support/test.h"

#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "mem/archive/ops.h"
#include "support/fault.h"
#include "unit/mem/archive/archive_rig.h"

#define CRC_ATTR "user.helios.crc32"

struct text {
    char s[200];
};

/* DIR/xx/ID<suffix> */
static struct text path_of(const struct rig *r, struct hl_id id, const char *suffix)
{
    struct text t;
    struct hl_id_text name = hl_id_format(id);
    snprintf(t.s, sizeof(t.s), "%s/%.2s/%s%s", r->dir, name.s, name.s, suffix);
    return t;
}

static struct text in_dir(const struct rig *r, const char *name)
{
    struct text t;
    snprintf(t.s, sizeof(t.s), "%s/%s", r->dir, name);
    return t;
}

static bool is_there(struct text path)
{
    struct stat sb;
    return lstat(path.s, &sb) == 0;
}

static void write_file(struct text path, const char *content)
{
    FILE *f = fopen(path.s, "w");
    assert_non_null(f);
    fputs(content, f);
    assert_int_equal(fclose(f), 0);
}

TEST_IN(rig_setup, rig_teardown, a_shard_is_a_plain_file_named_by_its_id)
{
    struct rig *r = *state;
    struct shard s = shard_make(id_of(1), 1000, 1, 1);
    assert_int_equal(put(r, &s), HL_OK);
    struct hl_buf file = HL_BUF(1 << 20);
    assert_int_equal(hl_file_read(path_of(r, s.id, ".safetensors").s, &file), HL_OK);
    assert_int_equal(file.len, s.size);
    assert_memory_equal(file.data, s.bytes, s.size);
    assert_false(is_there(path_of(r, s.id, ".tmp")));
    hl_buf_fini(&file);
    free(s.bytes);
}

TEST_IN(rig_setup, rig_teardown, a_thread_that_was_told_to_stop_brings_nothing_in_or_out)
{
    struct rig *r = *state;
    struct shard in = shard_make(id_of(1), 1000, 1, 1), fresh = shard_make(id_of(2), 1000, 1, 2);
    atomic_bool stop = false;
    hl_archive_stop_with(&stop);
    assert_int_equal(put(r, &in), HL_OK);
    atomic_store(&stop, true);
    assert_int_equal(get_status(r, &in), HL_ECANCELED);
    assert_int_equal(put(r, &fresh), HL_ECANCELED);
    hl_archive_stop_with(NULL);
    assert_false(is_there(path_of(r, fresh.id, ".tmp")));
    assert_int_equal(get_status(r, &fresh), HL_ENOENT);
    assert_readable(r, &in);
    free(in.bytes);
    free(fresh.bytes);
}

TEST_IN(rig_setup, rig_teardown, two_owners_are_refused)
{
    struct rig *r = *state;
    struct rig other = *r;
    other.archive = NULL;
    assert_int_equal(rig_try_open(&other), HL_EBUSY);
    assert_error_has(r->dir);
    assert_null(other.archive);
    rig_close(r);
    assert_int_equal(rig_try_open(&other), HL_OK);
    rig_close(&other);
    rig_open(r);
}

TEST_IN(rig_setup, rig_teardown, a_directory_that_cannot_be_one_is_refused)
{
    struct rig *r = *state, other = *r;
    write_file(in_dir(r, "file"), "x");
    snprintf(other.url, sizeof(other.url), "dir:%s/file", r->dir);
    assert_int_not_equal(rig_try_open(&other), HL_OK);
    assert_error_has("/file");
    snprintf(other.url, sizeof(other.url), "dir:");
    assert_int_equal(rig_try_open(&other), HL_EINVAL);
}

TEST_IN(rig_setup, rig_teardown, only_the_last_directory_is_made_since_a_disk_may_not_be_mounted)
{
    struct rig *r = *state, other = *r;
    snprintf(other.url, sizeof(other.url), "dir:%s/disk/below", r->dir);
    assert_int_equal(rig_try_open(&other), HL_ENOENT);
    assert_error_has("/disk/below");
    struct text disk = in_dir(r, "disk");
    assert_int_not_equal(access(disk.s, F_OK), 0);
    assert_int_equal(mkdir(disk.s, 0755), 0);
    assert_int_equal(rig_try_open(&other), HL_OK);
    rig_close(&other);
}

TEST_IN(rig_setup, rig_teardown, foreign_things_are_counted_and_left_alone)
{
    struct rig *r = *state;
    struct shard s = shard_make(id_of(1), 1000, 1, 1);
    assert_int_equal(put(r, &s), HL_OK);
    rig_close(r);
    struct text other = path_of(r, id_of(2), ""), upper;
    other.s[strlen(r->dir) + 3] = '\0';
    struct text names[] = {
        in_dir(r, "README"),
        in_dir(r, "abc"),
        in_dir(r, "ff"), /* a file with a directory's name */
        path_of(r, s.id, ".tmp.tmp"),
        path_of(r, s.id, ".safetensors2"),
        path_of(r, s.id, ""),
    };
    for (size_t i = 0; i < HL_ARRAY_LEN(names); i++)
        write_file(names[i], "x");
    /* A valid name in a wrong directory, one in capitals, a link, a directory, a FIFO. */
    upper = path_of(r, s.id, ".safetensors");
    char *last = strrchr(upper.s, '/') + 3;
    memcpy(last, "ABCDEF", strlen("ABCDEF"));
    write_file(upper, "x");
    struct text wrong = in_dir(r, "00");
    assert_int_equal(mkdir(wrong.s, 0755), 0);
    snprintf(wrong.s, sizeof(wrong.s), "%s/00/%s.safetensors", r->dir, hl_id_format(s.id).s);
    write_file(wrong, "x");
    struct text zero = in_dir(r, "00/00000000000000000000000000000000.safetensors");
    write_file(zero, "x");
    assert_int_equal(mkdir(other.s, 0755), 0);
    assert_int_equal(symlink("/etc/passwd", path_of(r, id_of(2), ".safetensors").s), 0);
    assert_int_equal(symlink("/etc/passwd", path_of(r, id_of(2), ".tmp").s), 0);
    assert_int_equal(symlink("/", in_dir(r, "ee").s), 0);
    rig_open(r);
    assert_int_equal(info(r).count, 1);
    assert_int_equal(info(r).used_bytes, s.size);
    assert_int_equal(info(r).discarded, 0);
    assert_int_equal(info(r).foreign, HL_ARRAY_LEN(names) + 6);
    assert_readable(r, &s);
    for (size_t i = 0; i < HL_ARRAY_LEN(names); i++)
        assert_true(is_there(names[i]));
    assert_true(is_there(path_of(r, id_of(2), ".tmp")));
    free(s.bytes);
    fault_shown("archive-dir", "foreign", "counted-left-alone");
}

/* A put whose name is taken by a foreign file fails with an error and leaves that file
 * unchanged. */
TEST_IN(rig_setup, rig_teardown, a_put_does_not_replace_what_is_not_its_own)
{
    struct rig *r = *state;
    static const char *const suffixes[] = {".safetensors", ".tmp"};
    for (unsigned i = 0; i < 4; i++) {
        struct shard s = shard_make(id_of(i + 1), 1000, 1, 1);
        struct text path = path_of(r, s.id, suffixes[i % 2]), sub = path;
        sub.s[strlen(r->dir) + 3] = '\0';
        assert_int_equal(mkdir(sub.s, 0755), 0);
        assert_int_equal(i < 2 ? symlink("/etc/passwd", path.s) : mkdir(path.s, 0755), 0);
        assert_int_equal(put(r, &s), HL_EIO);
        assert_error_has("of another program has this path");
        assert_int_equal(info(r).used_bytes, 0);
        assert_true(is_there(path));
        assert_int_equal(get_status(r, &s), HL_ENOENT);
        free(s.bytes);
    }
    struct shard s = shard_make(id_of(9), 1000, 1, 1);
    struct text sub = path_of(r, s.id, "");
    sub.s[strlen(r->dir) + 3] = '\0';
    assert_int_equal(symlink("/tmp", sub.s), 0); /* the directory is a link elsewhere */
    assert_int_equal(put(r, &s), HL_EIO);
    assert_error_has("of another program has this path");
    free(s.bytes);
}

TEST_IN(rig_setup, rig_teardown, damage_on_the_disk_is_noticed)
{
    struct rig *r = *state;
    struct shard s = shard_make(id_of(1), 100000, 1, 1);
    uint32_t crc = 0;
    assert_int_equal(put(r, &s), HL_OK);
    struct text path = path_of(r, s.id, ".safetensors");
    int fd = open(path.s, O_RDWR);
    assert_int_equal(pwrite(fd, "\x5a\xa5", 2, (off_t)s.size / 2), 2);
    assert_int_equal(get_status(r, &s), HL_ECORRUPT);
    assert_error_has("CRC");
    assert_int_equal(hl_archive_verify(r->archive, s.id), HL_ECORRUPT);
    assert_error_has("CRC");
    assert_int_equal(ftruncate(fd, (off_t)s.size - 1), 0);
    assert_int_equal(get_status(r, &s), HL_ECORRUPT);
    assert_error_has(path.s);
    assert_int_equal(hl_archive_crc(r->archive, s.id, &crc), HL_OK); /* as it was put */
    assert_int_equal(crc, s.crc);
    (void)!fremovexattr(fd, CRC_ATTR);        /* a file of an earlier release */
    for (off_t len = 0; len < 20; len += 4) { /* short from the beginning */
        assert_int_equal(ftruncate(fd, len), 0);
        rig_reopen(r, 0);
        assert_int_equal(info(r).used_bytes, len);
        assert_int_equal(get_status(r, &s), HL_ECORRUPT);
        assert_int_equal(hl_archive_crc(r->archive, s.id, &crc), HL_ECORRUPT);
    }
    close(fd);
    assert_int_equal(unlink(path.s), 0);
    assert_int_equal(get_status(r, &s), HL_ECORRUPT); /* the size is already different */
    assert_int_equal(mkfifo(path.s, 0644), 0);
    assert_int_equal(hl_archive_crc(r->archive, s.id, &crc), HL_ECORRUPT);
    assert_int_equal(hl_archive_remove(r->archive, s.id), HL_OK);
    assert_int_equal(put(r, &s), HL_OK); /* and the good copy comes back */
    assert_readable(r, &s);
    free(s.bytes);
    fault_shown("archive-dir", "corrupt", "noticed-refused");
    fault_shown("archive-dir", "wrong-size", "noticed-refused");
}

/* What a load does after a restart, when only the archive knows the checksum. */
static hl_status load_again(struct rig *r, const struct shard *s)
{
    char back[4096];
    uint32_t crc = 0;
    assert_true(s->size <= sizeof(back));
    rig_reopen(r, 0);
    hl_status st = hl_archive_crc(r->archive, s->id, &crc);
    return st != HL_OK ? st : hl_archive_get(r->archive, s->id, back, s->size, crc);
}

TEST_IN(rig_setup, rig_teardown, every_bit_of_a_stored_shard_is_checked_after_a_restart)
{
    struct rig *r = *state;
    struct shard s = shard_make(id_of(1), 100, 1, 1);
    char crc[8];
    if (!r->keeps_crc)
        TEST_SKIP("the file system keeps no attributes of users");
    assert_int_equal(put(r, &s), HL_OK);
    struct text path = path_of(r, s.id, ".safetensors");
    int fd = open(path.s, O_RDWR);
    for (uint64_t bit = 0; bit < 8 * s.size; bit++) {
        char byte = (char)(s.bytes[bit / 8] ^ 1 << bit % 8);
        assert_int_equal(pwrite(fd, &byte, 1, (off_t)bit / 8), 1);
        if (load_again(r, &s) != HL_ECORRUPT)
            fail_msg("bit %u of byte %u is not checked", (unsigned)bit % 8, (unsigned)bit / 8);
        assert_int_equal(pwrite(fd, &s.bytes[bit / 8], 1, (off_t)bit / 8), 1);
    }
    assert_int_equal(fgetxattr(fd, CRC_ATTR, crc, sizeof(crc)), sizeof(crc));
    for (unsigned bit = 0; bit < 8 * sizeof(crc); bit++) {
        crc[bit / 8] ^= (char)(1 << bit % 8);
        assert_int_equal(fsetxattr(fd, CRC_ATTR, crc, sizeof(crc), 0), 0);
        if (load_again(r, &s) != HL_ECORRUPT)
            fail_msg("bit %u of the checksum is not checked", bit);
        crc[bit / 8] ^= (char)(1 << bit % 8);
    }
    assert_int_equal(fsetxattr(fd, CRC_ATTR, crc, 7, 0), 0);
    assert_int_equal(load_again(r, &s), HL_ECORRUPT);
    assert_int_equal(fsetxattr(fd, CRC_ATTR, crc, sizeof(crc), 0), 0);
    assert_int_equal(load_again(r, &s), HL_OK);
    assert_int_equal(fremovexattr(fd, CRC_ATTR), 0);
    assert_int_equal(load_again(r, &s), HL_OK); /* as an earlier release has stored it */
    close(fd);
    free(s.bytes);
}

TEST_IN(rig_setup, rig_teardown, the_checksum_goes_to_the_trash_and_back)
{
    struct rig *r = *state;
    struct shard s = shard_make(id_of(1), 100, 1, 0);
    if (!r->keeps_crc)
        TEST_SKIP("the file system keeps no attributes of users");
    assert_int_equal(put(r, &s), HL_OK);
    assert_int_equal(hl_archive_trash(r->archive, s.id, 1, NULL), HL_OK);
    assert_int_equal(hl_archive_untrash(r->archive, s.id), HL_OK);
    assert_int_equal(load_again(r, &s), HL_OK);
    free(s.bytes);
}

TEST_IN(rig_setup, rig_teardown, a_file_that_went_away_is_not_found)
{
    struct rig *r = *state;
    struct shard s = shard_make(id_of(1), 1000, 1, 1);
    assert_int_equal(put(r, &s), HL_OK);
    assert_int_equal(unlink(path_of(r, s.id, ".safetensors").s), 0);
    assert_int_equal(get_status(r, &s), HL_ENOENT);
    assert_error_has(r->dir);
    assert_int_equal(hl_archive_remove(r->archive, s.id), HL_OK);
    assert_int_equal(info(r).used_bytes, 0);
    free(s.bytes);
}

/* ---- full disk ------------------------------------------------------------------------------ */

#define SKIPPED 77

static int full_disk(struct rig *r)
{
    if (unshare(CLONE_NEWNS) != 0 || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0 ||
        mount("none", r->dir, "tmpfs", 0, "size=1m") != 0)
        return SKIPPED;
    struct shard small = shard_make(id_of(1), 300000, 1, 1);
    struct shard big = shard_make(id_of(2), 2 << 20, 2, 1);
    rig_open(r);
    hl_status st = put(r, &small);
    if (st != HL_OK)
        return 1;
    if (put(r, &big) != HL_ENOSPC || strstr(hl_error_text(), "are free") == NULL)
        return 2;
    if (info(r).used_bytes != small.size || info(r).count != 1)
        return 3;
    if (is_there(path_of(r, big.id, ".tmp")) || is_there(path_of(r, big.id, ".safetensors")))
        return 4;
    if (get_status(r, &small) != HL_OK || get_status(r, &big) != HL_ENOENT)
        return 5;
    struct shard again = shard_make(id_of(3), 300000, 3, 1);
    if (put(r, &again) != HL_OK || get_status(r, &again) != HL_OK)
        return 6;
    rig_reopen(r, 0);
    return info(r).discarded == 0 && info(r).count == 2 ? 0 : 7;
}

/* A put was interrupted there before. */
static int read_only_disk(struct rig *r)
{
    if (unshare(CLONE_NEWNS) != 0 || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0 ||
        mount("none", r->dir, "tmpfs", 0, "size=1m") != 0)
        return SKIPPED;
    struct shard s = shard_make(id_of(1), 1000, 1, 1), t = shard_make(id_of(2), 1000, 2, 1);
    rig_open(r);
    if (put(r, &s) != HL_OK)
        return 1;
    write_file(path_of(r, s.id, ".tmp"), "half");
    rig_close(r);
    if (mount(NULL, r->dir, NULL, MS_REMOUNT | MS_RDONLY, NULL) != 0)
        return SKIPPED;
    if (rig_try_open(r) != HL_OK)
        return 2;
    if (info(r).count != 1 || get_status(r, &s) != HL_OK)
        return 3;
    return put(r, &t) != HL_OK && info(r).count == 1 ? 0 : 4;
}

static int wait_for(pid_t child)
{
    int status = 0;
    assert_int_equal(waitpid(child, &status, 0), child);
    return status;
}

static int run_mounted(struct rig *r, int (*run)(struct rig *r))
{
    rig_close(r);
    pid_t child = fork();
    if (child == 0)
        _exit(run(r));
    int status = wait_for(child);
    rig_open(r);
    assert_true(WIFEXITED(status));
    return WEXITSTATUS(status);
}

TEST_IN(rig_setup, rig_teardown, a_full_disk_leaves_nothing_behind)
{
    int result = run_mounted(*state, full_disk);
    if (result == SKIPPED)
        TEST_SKIP("no mount of a small tmpfs is permitted here");
    assert_int_equal(result, 0);
    fault_shown("archive-dir", "full", "refused-exact");
}

TEST_IN(rig_setup, rig_teardown, a_disk_that_is_read_only_now_can_be_read)
{
    int result = run_mounted(*state, read_only_disk);
    if (result == SKIPPED)
        TEST_SKIP("no mount of a small tmpfs is permitted here");
    assert_int_equal(result, 0);
}

/* ---- death of the writer -------------------------------------------------------------------- */

static void die_at_once(int sig)
{
    (void)sig;
    kill(getpid(), SIGKILL);
}

/* The put finds a page that can't be read and is killed there, between two writes. */
static pid_t put_until(struct rig *r, const struct shard *s, char *copy, uint64_t at)
{
    pid_t child = fork();
    if (child != 0)
        return child;
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    signal(SIGSEGV, die_at_once);
    rig_open(r);
    uint64_t from = at / page * page;
    if (mprotect(copy + from, page, PROT_NONE) != 0)
        _exit(1);
    hl_status st = hl_archive_put(r->archive, s->id, copy, s->size, s->crc);
    _exit(st == HL_OK ? 2 : 3);
}

TEST_IN(rig_setup, rig_teardown, a_killed_put_leaves_no_readable_half)
{
    struct rig *r = *state;
    /* Without checksums in the header: checking them would read everything before the first
     * write. */
    struct shard s = shard_make(id_of(1), 5 << 20, 1, 0), kept = shard_make(id_of(2), 9999, 2, 1);
    char *copy = mmap(NULL, s.size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(copy != MAP_FAILED);
    memcpy(copy, s.bytes, s.size);
    assert_int_equal(put(r, &kept), HL_OK);
    rig_close(r);
    uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
    for (uint64_t at = page; at < s.size; at += 700000) {
        int status = wait_for(put_until(r, &s, copy, at));
        assert_true(WIFSIGNALED(status));
        assert_int_equal(WTERMSIG(status), SIGKILL);
        assert_true(is_there(path_of(r, s.id, ".tmp")));
        rig_open(r);
        assert_int_equal(info(r).discarded, 1);
        assert_false(is_there(path_of(r, s.id, ".tmp")));
        assert_false(is_there(path_of(r, s.id, ".safetensors")));
        assert_int_equal(get_status(r, &s), HL_ENOENT);
        assert_int_equal(info(r).used_bytes, kept.size);
        assert_readable(r, &kept);
        rig_close(r);
    }
    rig_open(r);
    assert_int_equal(put(r, &s), HL_OK);
    assert_readable(r, &s);
    munmap(copy, s.size);
    free(s.bytes);
    free(kept.bytes);
    fault_shown("archive-dir", "kill", "no-half-exact");
}

static hl_status check_one(void *arg, struct hl_id id, uint64_t size)
{
    struct shard s = shard_make(id, 1 << 18, (unsigned)id.lo, 1);
    uint32_t crc = 0;
    assert_int_equal(size, s.size);
    assert_readable(arg, &s);
    assert_int_equal(hl_archive_crc(((struct rig *)arg)->archive, id, &crc), HL_OK);
    assert_int_equal(crc, s.crc);
    free(s.bytes);
    return HL_OK;
}

/* Puts one shard after the other and reports which are done. */
static void put_on(struct rig *r, uint64_t from, int tell)
{
    rig_open(r);
    for (uint64_t n = from;; n++) {
        struct shard s = shard_make(id_of(n), 1 << 18, (unsigned)n, 1);
        if (put(r, &s) != HL_OK || write(tell, &n, sizeof(n)) != sizeof(n))
            _exit(1);
        free(s.bytes);
    }
}

TEST_IN(rig_setup, rig_teardown, all_that_was_acknowledged_is_there_after_a_kill)
{
    struct rig *r = *state;
    uint64_t next = 1, done = 0;
    rig_close(r);
    for (unsigned round = 0; round < 8; round++) {
        int pipe_fd[2];
        assert_int_equal(pipe2(pipe_fd, O_CLOEXEC), 0);
        pid_t child = fork();
        if (child == 0)
            put_on(r, next, pipe_fd[1]);
        close(pipe_fd[1]);
        uint64_t n;
        for (unsigned i = 0; i <= round % 3; i++) {
            assert_int_equal(read(pipe_fd[0], &n, sizeof(n)), sizeof(n));
            done = n;
        }
        /* In the middle of the next put: half of it, or already all of it, is there. */
        uint64_t end = hl_now_ns() + TEST_PATIENCE_NS;
        while (round % 2 == 1 && !is_there(path_of(r, id_of(done + 1), ".tmp")) &&
               !is_there(path_of(r, id_of(done + 1), ".safetensors")))
            assert_true(hl_now_ns() < end);
        kill(child, SIGKILL);
        assert_int_equal(WTERMSIG(wait_for(child)), SIGKILL);
        while (read(pipe_fd[0], &n, sizeof(n)) == sizeof(n))
            done = n;
        close(pipe_fd[0]);
        rig_open(r);
        /* One more can be whole without an acknowledgement. */
        assert_in_range(info(r).count, done, done + 1);
        assert_int_equal(hl_archive_list(r->archive, check_one, r), HL_OK);
        next = done = info(r).count;
        next++;
        rig_close(r);
    }
    rig_open(r);
    fault_shown("archive-dir", "kill", "no-half-exact");
}

/* ---- its owner, and the trash
 * ----------------------------------------------------------------- */

static struct hl_archive_claim claim_of(struct rig *r)
{
    struct hl_archive_claim c;
    hl_archive_claimed(r->archive, &c);
    return c;
}

TEST_IN(rig_setup, rig_teardown, the_owner_is_a_small_text)
{
    struct rig *r = *state;
    struct hl_buf file = HL_BUF(1 << 12);
    struct hl_id cluster = {UINT64_C(0x0123456789abcdef), 0xff};
    assert_int_equal(hl_archive_claim(r->archive, &(struct hl_archive_claim){cluster, 12, 0, 0}),
                     HL_OK);
    assert_int_equal(hl_file_read(in_dir(r, "helios-cluster.json").s, &file), HL_OK);
    assert_string_equal(file.data,
                        "{\"cluster\": \"0123456789abcdef00000000000000ff\", \"revision\": 12}\n");
    hl_buf_fini(&file);
}

TEST_IN(rig_setup, rig_teardown, an_owner_that_cannot_be_read_is_damage_and_not_absence)
{
    static const char *const texts[] = {
        "",
        "{",
        "[]",
        "{\"cluster\": \"0123456789abcdef00000000000000ff\"}",
        "{\"cluster\": \"0123456789abcdef00000000000000ff\", \"revision\": -1}",
        "{\"cluster\": \"00000000000000000000000000000000\", \"revision\": 1}",
        "{\"cluster\": \"0123\", \"revision\": 1}",
        "{\"cluster\": 7, \"revision\": 1}"};
    struct rig *r = *state;
    for (size_t i = 0; i < HL_ARRAY_LEN(texts); i++) {
        write_file(in_dir(r, "helios-cluster.json"), texts[i]);
        rig_reopen(r, 0);
        assert_true(claim_of(r).damaged);
        assert_true(hl_id_is_none(claim_of(r).cluster));
        assert_int_equal(info(r).foreign, 0);
    }
    struct hl_archive_claim mine = {.cluster = id_of(5), .revision = 1};
    assert_int_equal(hl_archive_claim(r->archive, &mine), HL_OK);
    rig_reopen(r, 0);
    assert_false(claim_of(r).damaged);
    assert_true(hl_id_equal(claim_of(r).cluster, mine.cluster));
}

TEST(why_an_owner_cannot_be_read_names_the_field)
{
#define ID "0123456789abcdef00000000000000ff"

    static const struct {
        const char *text, *word; /* NULL: it can be read */
    } rows[] = {{"{\"cluster\": \"" ID "\"}", "revision"},
                {"{\"cluster\": \"" ID "\", \"revision\": \"1\"}", "revision"},
                {"{\"cluster\": 7, \"revision\": 1}", "cluster"},
                {"{\"cluster\": \"" ID "\", \"cluster\": \"" ID "\"}", "line 1"},
                {"{\"cluster\": \"" ID "\", \"revision\": 1, \"later\": true}", NULL}};

#undef ID
    for (size_t i = 0; i < HL_ARRAY_LEN(rows); i++) {
        struct hl_archive_claim claim = {.revision = 9};
        hl_status st = archive_claim_parse(rows[i].text, strlen(rows[i].text), &claim);
        assert_int_equal(st == HL_OK, rows[i].word == NULL);
        assert_int_equal(claim.revision, st == HL_OK ? 1 : 9);
        if (st != HL_OK)
            assert_non_null(strstr(hl_error_text(), rows[i].word));
    }
}

/* As left by a writer that died before its rename. */
TEST_IN(rig_setup, rig_teardown, half_an_owner_does_not_count)
{
    struct rig *r = *state;
    struct hl_archive_claim mine = {.cluster = id_of(5), .revision = 1};
    assert_int_equal(hl_archive_claim(r->archive, &mine), HL_OK);
    write_file(in_dir(r, "helios-cluster.json.tmp"), "{\"clus");
    rig_reopen(r, 0);
    assert_true(hl_id_equal(claim_of(r).cluster, mine.cluster));
    assert_int_equal(info(r).foreign, 0);
    mine.revision = 2;
    assert_int_equal(hl_archive_claim(r->archive, &mine), HL_OK);
    rig_reopen(r, 0);
    assert_int_equal(claim_of(r).revision, 2);
}

TEST_IN(rig_setup, rig_teardown, the_trash_is_a_directory_of_whole_files_named_by_their_time)
{
    struct rig *r = *state;
    struct shard s = shard_make(id_of(1), 1000, 1, 1);
    struct hl_archive_trashed t;
    char name[120];
    assert_int_equal(put(r, &s), HL_OK);
    assert_int_equal(hl_archive_trash(r->archive, s.id, 1700000000123, &t), HL_OK);
    snprintf(name, sizeof(name), "trash/1700000000123-%s.safetensors", hl_id_format(s.id).s);
    assert_string_equal(t.place, name);
    struct hl_buf file = HL_BUF(1 << 20);
    assert_int_equal(hl_file_read(in_dir(r, name).s, &file), HL_OK);
    assert_int_equal(file.len, s.size);
    assert_memory_equal(file.data, s.bytes, s.size);
    assert_false(is_there(path_of(r, s.id, ".safetensors")));
    hl_buf_fini(&file);
    free(s.bytes);
}

TEST_IN(rig_setup, rig_teardown, foreign_things_in_the_trash_are_left_alone)
{
    static const char *const names[] = {
        "trash/notes.txt", "trash/12-0123.safetensors",
        "trash/12-0123456789abcdef00000000000000ff.safetensors",
        "trash/0000000000012-0123456789ABCDEF00000000000000ff.safetensors",
        "trash/0000000000012-0123456789abcdef00000000000000ff.safetensors.bak"};
    struct rig *r = *state;
    struct hl_archive_trashed gone;
    assert_int_equal(mkdir(in_dir(r, "trash").s, 0755), 0);
    for (size_t i = 0; i < HL_ARRAY_LEN(names); i++)
        write_file(in_dir(r, names[i]), "mine");
    rig_reopen(r, 0);
    assert_int_equal(info(r).foreign, HL_ARRAY_LEN(names));
    assert_int_equal(info(r).trashed, 0);
    assert_int_equal(hl_archive_trash_empty(r->archive, INT64_MAX, &gone), HL_ENOENT);
    for (size_t i = 0; i < HL_ARRAY_LEN(names); i++)
        assert_true(is_there(in_dir(r, names[i])));
}

TEST_IN(rig_setup, rig_teardown, a_shard_stays_where_the_trash_cannot_be)
{
    struct rig *r = *state;
    struct shard s = shard_make(id_of(1), 1000, 1, 1);
    assert_int_equal(put(r, &s), HL_OK);
    write_file(in_dir(r, "trash"), "a file");
    assert_int_equal(hl_archive_trash(r->archive, s.id, 1, NULL), HL_EIO);
    assert_error_has("trash/");
    assert_readable(r, &s);
    assert_int_equal(info(r).count, 1);
    assert_int_equal(info(r).trashed, 0);
    free(s.bytes);
}
