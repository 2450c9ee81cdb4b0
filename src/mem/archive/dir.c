/* An archive in a directory: DIR/xx/ID.safetensors, where xx are the first two digits of ID. A put
 * writes ID.tmp there, syncs it, renames it without replacing and syncs the directory, so a name
 * without .tmp is always a whole shard. The shard's CRC-32 is an attribute of the file where the
 * file system keeps attributes: the header alone can't tell that one of its own bits has changed.
 * The trash is DIR/trash; its shards have other names, and moves are renames. Links below DIR are
 * never followed: everything is opened relative to descriptors. The lock is on the directory itself
 * and leaves no file behind. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/xattr.h>
#include <unistd.h>

#include "base/crc32.h"
#include "base/log.h"
#include "base/text.h"
#include "mem/archive/ops.h"
#include "os/file.h"

/* A piece is small enough that what was summed is still in the cache when the kernel copies it, or
 * the reverse. */
#define PIECE    ((uint64_t)512 << 10)
#define AHEAD    ((uint64_t)8 << 20) /* written back while the rest is summed */
#define SUFFIX   ".safetensors"
#define TEMP     ".tmp"
#define CRC_ATTR "user.helios.crc32" /* 8 digits */

/* If a name below DIR itself could not be synced, the next thread that needs one syncs it:
 * `changed` counts the names made, `synced` those of them that are on disk. */
struct dir {
    struct hl_archive base;
    int fd;
    atomic_uint changed, synced;
    char path[PATH_MAX];
};

struct name {
    char s[HL_ID_TEXT_LEN + sizeof(SUFFIX)];
};

static struct name name_of(struct hl_id id, const char *suffix)
{
    struct name n;
    snprintf(n.s, sizeof(n.s), "%s%s", hl_id_format(id).s, suffix);
    return n;
}

/* Derives the failure from errno. */
static hl_status fail_dir(const struct dir *d, struct hl_id id, const char *what)
{
    int err = errno;
    struct name n = name_of(id, SUFFIX);
    struct statvfs fs;
    if (hl_status_of_errno(err) == HL_ENOSPC && fstatvfs(d->fd, &fs) == 0)
        return hl_fail(HL_ENOSPC,
                       "archive: %s %s/%.2s/%s: %s, %" PRIu64 " bytes are free; remove shards",
                       what, d->path, n.s, n.s, strerror(err), (uint64_t)fs.f_bavail * fs.f_frsize);
    if (err == ELOOP || err == ENOTDIR || err == EISDIR || err == EEXIST)
        return hl_fail(err == EEXIST ? HL_EEXIST : HL_EIO,
                       "archive: %s %s/%.2s/%s: a file or directory of another program has this "
                       "path; move it elsewhere",
                       what, d->path, n.s, n.s);
    return hl_fail(hl_status_of_errno(err), "archive: %s %s/%.2s/%s: %s", what, d->path, n.s, n.s,
                   strerror(err));
}

static hl_status fail_cancelled(struct hl_id id)
{
    return hl_fail(HL_ECANCELED,
                   "archive: shard %s: it was stopped, or the daemon is shutting down",
                   hl_id_format(id).s);
}

/* Creates only the last directory of the path. If its parent is missing, a disk is probably not
 * mounted, and the archive must not fill the file system that the path leads to now. */
static hl_status dir_make(const char *path)
{
    struct stat sb;
    if (path[0] == '\0')
        return hl_fail(HL_EINVAL, "archive: 'dir:' needs a directory, as in dir:/srv/helios");
    if (mkdir(path, 0700) == 0 || errno == EEXIST) {
        if (stat(path, &sb) == 0 && S_ISDIR(sb.st_mode))
            return HL_OK;
        return hl_fail(HL_EIO, "archive: %s is not a directory", path);
    }
    if (errno == ENOENT)
        return hl_fail(
            HL_ENOENT,
            "archive: the parent directory of %s does not exist; mount its disk, or make "
            "the directory",
            path);
    return hl_fail(hl_status_of_errno(errno), "archive: make directory %s: %m", path);
}

static hl_status dir_open(const char *rest, const struct hl_archive_options *options,
                          struct hl_archive **out)
{
    (void)options;
    HL_TRY(dir_make(rest));
    struct dir *d = calloc(1, sizeof(*d));
    if (d == NULL)
        return hl_fail(HL_ENOMEM, "archive %s: out of memory", rest);
    snprintf(d->path, sizeof(d->path), "%s", rest);
    d->fd = open(rest, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    hl_status st = HL_OK;
    if (d->fd < 0)
        st = hl_fail(hl_status_of_errno(errno), "archive: open %s: %m", rest);
    else if (flock(d->fd, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK)
        st = hl_fail(HL_EBUSY, "archive %s is open in another process; end that one first", rest);
    if (st != HL_OK) {
        hl_closep(&d->fd);
        free(d);
        return st;
    }
    *out = &d->base;
    return HL_OK;
}

static void dir_close(struct hl_archive *a)
{
    struct dir *d = (struct dir *)a;
    hl_closep(&d->fd);
    free(d);
}

/* ---- scan ----------------------------------------------------------------------------------- */

static bool is_id_with(const char *name, const char *prefix, const char *suffix, struct hl_id *out)
{
    char text[HL_ID_TEXT_LEN + 1];
    struct hl_id id;
    if (strlen(name) != HL_ID_TEXT_LEN + strlen(suffix) ||
        strcmp(name + HL_ID_TEXT_LEN, suffix) != 0 || strncmp(name, prefix, 2) != 0)
        return false;
    memcpy(text, name, HL_ID_TEXT_LEN);
    text[HL_ID_TEXT_LEN] = '\0';
    if (hl_id_parse(text, &id) != HL_OK || hl_id_is_none(id) ||
        strcmp(hl_id_format(id).s, text) != 0)
        return false;
    *out = id;
    return true;
}

static hl_status scan_name(struct dir *d, int sub, const char *prefix, const char *name)
{
    struct stat sb;
    struct hl_id id;
    bool regular = fstatat(sub, name, &sb, AT_SYMLINK_NOFOLLOW) == 0 && S_ISREG(sb.st_mode);
    if (strcmp(prefix, HL_ARCHIVE_TRASH) == 0) {
        bool ours = regular && hl_archive_found_trash(&d->base, name, (uint64_t)sb.st_size);
        d->base.info.foreign += !ours;
        return HL_OK;
    }
    if (regular && is_id_with(name, prefix, SUFFIX, &id))
        return hl_archive_found(&d->base, id, (uint64_t)sb.st_size);
    if (regular && is_id_with(name, prefix, TEMP, &id)) {
        if (unlinkat(sub, name, 0) == 0)
            d->base.info.discarded++;
        else if (errno != EROFS) /* what is read-only can still be read */
            return hl_fail(hl_status_of_errno(errno), "archive: remove %s/%s/%s: %m", d->path,
                           prefix, name);
        return HL_OK;
    }
    d->base.info.foreign++;
    return HL_OK;
}

static hl_status scan_sub(struct dir *d, const char *prefix)
{
    int fd = openat(d->fd, prefix, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0 && (errno == ENOTDIR || errno == ELOOP)) {
        d->base.info.foreign++;
        return HL_OK;
    }
    DIR *sub = fd < 0 ? NULL : fdopendir(fd);
    if (sub == NULL) {
        hl_status st =
            hl_fail(hl_status_of_errno(errno), "archive: read %s/%s: %m", d->path, prefix);
        hl_closep(&fd);
        return st;
    }
    hl_status st = HL_OK;
    const struct dirent *e;
    while (st == HL_OK && (errno = 0, e = readdir(sub)) != NULL)
        if (strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0)
            st = scan_name(d, fd, prefix, e->d_name);
    if (st == HL_OK && errno != 0)
        st = hl_fail(HL_EIO, "archive: read %s/%s: %m", d->path, prefix);
    closedir(sub);
    return st;
}

/* An unfinished file of the claim is overwritten by the next write. */
static bool is_claim(struct dir *d, const char *name)
{
    bool is = strcmp(name, HL_ARCHIVE_CLAIM) == 0;
    d->base.claim_found |= is;
    return is || strcmp(name, HL_ARCHIVE_CLAIM TEMP) == 0;
}

static hl_status dir_scan(struct hl_archive *a)
{
    struct dir *d = (struct dir *)a;
    int fd = openat(d->fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *top = fd < 0 ? NULL : fdopendir(fd);
    if (top == NULL) {
        hl_status st = hl_fail(hl_status_of_errno(errno), "archive: read %s: %m", d->path);
        hl_closep(&fd);
        return st;
    }
    hl_status st = HL_OK;
    const struct dirent *e;
    while (st == HL_OK && (errno = 0, e = readdir(top)) != NULL) {
        if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0)
            continue;
        if ((strlen(e->d_name) == 2 && strspn(e->d_name, "0123456789abcdef") == 2) ||
            strcmp(e->d_name, HL_ARCHIVE_TRASH) == 0)
            st = scan_sub(d, e->d_name);
        else if (!is_claim(d, e->d_name))
            d->base.info.foreign++;
    }
    if (st == HL_OK && errno != 0)
        st = hl_fail(HL_EIO, "archive: read %s: %m", d->path);
    closedir(top);
    return st;
}

/* ---- shards --------------------------------------------------------------------------------- */

/* False after the directory was removed or unmounted, or something was mounted over it: `fd` may
 * still work, but what it shows is not what the next start will find. */
static bool is_here(const struct dir *d)
{
    struct stat ours, now;
    return fstat(d->fd, &ours) == 0 && ours.st_nlink > 0 && stat(d->path, &now) == 0 &&
           ours.st_dev == now.st_dev && ours.st_ino == now.st_ino;
}

static hl_status fail_away(const struct dir *d)
{
    return hl_fail(HL_EUNAVAIL,
                   "archive: %s is not the directory that was opened; mount its disk again, or "
                   "restart helios-l3d to open the one that is there now",
                   d->path);
}

/* Makes the directory below DIR unless it is there. It is counted before and after: another thread
 * that finds it already there then syncs it, too. -1 and errno: it could not be made. */
static int make_sub(struct dir *d, const char *name)
{
    atomic_fetch_add(&d->changed, 1);
    int rc = mkdirat(d->fd, name, 0700);
    atomic_fetch_add(&d->changed, 1);
    return rc;
}

/* Returns -1 and errno while a name below DIR can't be brought to disk. */
static int sync_top(struct dir *d)
{
    unsigned changed = atomic_load(&d->changed);
    if (atomic_load(&d->synced) == changed)
        return 0;
    if (fsync(d->fd) != 0)
        return -1;
    atomic_store(&d->synced, changed);
    return 0;
}

static int open_below(const struct dir *d, const char *name)
{
    return openat(d->fd, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
}

struct prefix {
    char s[3];
};

static struct prefix prefix_of(struct hl_id id)
{
    struct prefix p = {{0}};
    memcpy(p.s, hl_id_format(id).s, 2);
    return p;
}

static hl_status open_sub(const struct dir *d, struct hl_id id, int *out)
{
    int fd = open_below(d, prefix_of(id).s);
    if (fd < 0)
        return fail_dir(d, id, "read");
    *out = fd;
    return HL_OK;
}

/* Opens a directory below DIR for a writer: it is made if it is missing, and is on disk then. -1
 * and errno: it can't be. */
static int need_below(struct dir *d, const char *name)
{
    int fd = open_below(d, name);
    if (fd < 0 && errno == ENOENT && (make_sub(d, name) == 0 || errno == EEXIST))
        fd = open_below(d, name);
    if (fd >= 0 && sync_top(d) != 0) {
        int err = errno;
        hl_closep(&fd);
        errno = err;
    }
    return fd;
}

static hl_status need_sub(struct dir *d, struct hl_id id, int *out)
{
    *out = need_below(d, prefix_of(id).s);
    return *out >= 0 ? HL_OK : fail_dir(d, id, "open or make the directory of");
}

struct crc_text {
    char s[9];
};

static struct crc_text crc_text(uint32_t crc)
{
    struct crc_text t;
    snprintf(t.s, sizeof(t.s), "%08" PRIx32, crc);
    return t;
}

static hl_status write_crc(const struct dir *d, struct hl_id id, int fd, uint32_t crc)
{
    if (fsetxattr(fd, CRC_ATTR, crc_text(crc).s, 8, 0) != 0 && errno != EOPNOTSUPP)
        return fail_dir(d, id, "write the checksum of");
    return HL_OK;
}

static hl_status write_pieces(const struct dir *d, struct hl_id id, int fd, const void *bytes,
                              uint64_t size, uint32_t crc)
{
    uint32_t got = 0;
    /* Reserving the space finds a full disk before the first byte; some file systems can't
     * reserve. */
    if (size > 0 && fallocate(fd, 0, 0, (off_t)size) != 0 && errno != EOPNOTSUPP && errno != EINTR)
        return fail_dir(d, id, "write");
    for (uint64_t at = 0; at < size; at += PIECE) {
        if (archive_is_stopped(d->base.cancel))
            return fail_cancelled(id);
        const char *piece = (const char *)bytes + at;
        uint64_t len = size - at < PIECE ? size - at : PIECE;
        got = hl_crc32(got, piece, len);
        for (uint64_t done = 0; done < len;) {
            ssize_t n = pwrite(fd, piece + done, len - done, (off_t)(at + done));
            if (n < 0 && errno == EINTR)
                continue;
            if (n <= 0)
                return fail_dir(d, id, "write");
            done += (uint64_t)n;
        }
        if ((at + len) % AHEAD == 0)
            (void)sync_file_range(fd, (off_t)(at + len - AHEAD), (off_t)AHEAD,
                                  SYNC_FILE_RANGE_WRITE);
    }
    if (got != crc)
        return hl_fail(HL_ECORRUPT,
                       "archive: shard %s: the bytes have CRC %08" PRIx32 ", expected %08" PRIx32
                       "; it is not stored",
                       hl_id_format(id).s, got, crc);
    HL_TRY(write_crc(d, id, fd, crc));
    if (fsync(fd) != 0)
        return fail_dir(d, id, "sync");
    return HL_OK;
}

/* The name must be free: a foreign file with that name is kept. -1 and errno: nothing was done. */
static int rename_file(int from, const char *name, int to, const char *as)
{
    struct stat sb;
    int rc = renameat2(from, name, to, as, RENAME_NOREPLACE);
    if (rc == 0 || (errno != EINVAL && errno != ENOSYS))
        return rc;
    /* The file system can't rename without replacing. The directory is locked, so no other process
     * writes here. */
    return fstatat(to, as, &sb, AT_SYMLINK_NOFOLLOW) == 0 ? (errno = EEXIST, -1)
                                                          : renameat(from, name, to, as);
}

static hl_status publish_shard(const struct dir *d, struct hl_id id, int sub)
{
    struct name temp = name_of(id, TEMP), final = name_of(id, SUFFIX);
    int rc = rename_file(sub, temp.s, sub, final.s);
    if (rc != 0)
        return fail_dir(d, id, "rename");
    if (fsync(sub) != 0) {
        hl_status st = fail_dir(d, id, "sync the directory of");
        unlinkat(sub, final.s, 0);
        return st;
    }
    return HL_OK;
}

/* Replaces what an earlier failure left under the name; keeps anything foreign. */
static int open_temp(int sub, const char *name)
{
    int flags = O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC;
    struct stat sb;
    int fd = openat(sub, name, flags, 0600);
    if (fd >= 0 || errno != EEXIST)
        return fd;
    bool regular = fstatat(sub, name, &sb, AT_SYMLINK_NOFOLLOW) == 0 && S_ISREG(sb.st_mode);
    if (regular && unlinkat(sub, name, 0) == 0)
        return openat(sub, name, flags, 0600);
    errno = EEXIST;
    return -1;
}

static hl_status dir_put(struct hl_archive *a, struct hl_id id, const void *bytes, uint64_t size,
                         uint32_t crc)
{
    struct dir *d = (struct dir *)a;
    struct name temp = name_of(id, TEMP);
    HL_AUTO(hl_closep) int sub = -1;
    if (!is_here(d))
        return fail_away(d);
    HL_TRY(need_sub(d, id, &sub));
    HL_AUTO(hl_closep) int fd = open_temp(sub, temp.s);
    if (fd < 0 && errno == EEXIST)
        errno = ENOTDIR;
    if (fd < 0)
        return fail_dir(d, id, "write");
    hl_status st = write_pieces(d, id, fd, bytes, size, crc);
    if (st == HL_OK)
        st = publish_shard(d, id, sub);
    if (st != HL_OK)
        unlinkat(sub, temp.s, 0);
    return st;
}

/* The caller closes *out, also after a failure. O_NONBLOCK: a FIFO with that name must not block
 * us. */
static hl_status open_shard(const struct dir *d, struct hl_id id, int *out, struct stat *sb)
{
    HL_AUTO(hl_closep) int sub = -1;
    HL_TRY(open_sub(d, id, &sub));
    *out = openat(sub, name_of(id, SUFFIX).s, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    return *out >= 0 && fstat(*out, sb) == 0 ? HL_OK : fail_dir(d, id, "read");
}

/* HL_ENOENT: an earlier release has stored the shard, or the file system keeps no attributes. */
static hl_status dir_crc(struct hl_archive *a, struct hl_id id, uint32_t *out)
{
    const struct dir *d = (const struct dir *)a;
    struct name name = name_of(id, SUFFIX);
    struct stat sb;
    char text[9] = "";
    uint64_t crc = 0;
    HL_AUTO(hl_closep) int fd = -1;
    HL_TRY(open_shard(d, id, &fd, &sb));
    ssize_t n = S_ISREG(sb.st_mode) ? fgetxattr(fd, CRC_ATTR, text, 8) : 0;
    if (n < 0 && (errno == ENODATA || errno == EOPNOTSUPP))
        return HL_ENOENT;
    if (n < 0 && errno != ERANGE)
        return fail_dir(d, id, "read the checksum of");
    if (n != 8 || !hl_parse_hex(text, 8, &crc) || strcmp(crc_text((uint32_t)crc).s, text) != 0)
        return hl_fail(HL_ECORRUPT,
                       "archive: %s/%.2s/%s has no valid checksum in its attribute " CRC_ATTR,
                       d->path, name.s, name.s);
    *out = (uint32_t)crc;
    return HL_OK;
}

static hl_status check_file(const struct dir *d, struct hl_id id, const struct stat *sb,
                            uint64_t size)
{
    struct name name = name_of(id, SUFFIX);
    if (S_ISREG(sb->st_mode) && (uint64_t)sb->st_size == size)
        return HL_OK;
    return hl_fail(HL_ECORRUPT,
                   "archive: %s/%.2s/%s is not the file of %" PRIu64
                   " bytes that was stored; take another copy and remove this one",
                   d->path, name.s, name.s, size);
}

static hl_status dir_read(struct hl_archive *a, struct hl_id id, uint64_t size, uint64_t offset,
                          void *dst, uint64_t len, uint32_t *crc)
{
    const struct dir *d = (const struct dir *)a;
    struct name name = name_of(id, SUFFIX);
    struct stat sb;
    uint32_t sum = 0;
    HL_AUTO(hl_closep) int fd = -1;
    HL_TRY(open_shard(d, id, &fd, &sb));
    HL_TRY(check_file(d, id, &sb, size));
    for (uint64_t done = 0; done < len;) {
        char *to = (char *)dst + done;
        uint64_t want = len - done < PIECE ? len - done : PIECE;
        if (archive_is_stopped(a->cancel))
            return fail_cancelled(id);
        ssize_t n = pread(fd, to, want, (off_t)(offset + done));
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return fail_dir(d, id, "read");
        if (n == 0)
            return hl_fail(HL_ECORRUPT, "archive: %s/%.2s/%s ends early, at byte %" PRIu64, d->path,
                           name.s, name.s, offset + done);
        sum = hl_crc32(sum, to, (size_t)n);
        done += (uint64_t)n;
    }
    *crc = sum;
    return HL_OK;
}

/* HL_ENOENT only while the archive is there. A file or link in the place of the directory has none
 * of our shards, as for the scan. */
static hl_status look_below(const struct dir *d, const char *sub, const char *name, struct stat *sb)
{
    HL_AUTO(hl_closep) int fd = open_below(d, sub);
    hl_status st = HL_OK;
    if (fd < 0 || fstatat(fd, name, sb, AT_SYMLINK_NOFOLLOW) != 0) {
        bool foreign = fd < 0 && (errno == ENOTDIR || errno == ELOOP);
        st = hl_fail(foreign ? HL_ENOENT : hl_status_of_errno(errno),
                     "archive: look at %s/%s/%s: %m", d->path, sub, name);
    }
    /* asked last: what was seen before is then from this directory */
    return is_here(d) ? st : fail_away(d);
}

static hl_status dir_look(struct hl_archive *a, struct hl_id id, uint64_t size)
{
    const struct dir *d = (const struct dir *)a;
    struct stat sb;
    HL_TRY(look_below(d, prefix_of(id).s, name_of(id, SUFFIX).s, &sb));
    return check_file(d, id, &sb, size);
}

static hl_status dir_remove(struct hl_archive *a, struct hl_id id)
{
    const struct dir *d = (const struct dir *)a;
    HL_AUTO(hl_closep) int sub = open_below(d, prefix_of(id).s);
    if ((sub < 0 || unlinkat(sub, name_of(id, SUFFIX).s, 0) != 0) && errno != ENOENT)
        return fail_dir(d, id, "remove");
    /* No reader finds the shard any more. If the system crashes before this is on disk, the shard
     * exists again and the next scan finds it, so a failed sync is no reason to fail the
     * removal. */
    (void)fsync(sub);
    return HL_OK;
}

/* ---- trash ---------------------------------------------------------------------------------- */

static hl_status fail_trash(const struct dir *d, const char *name, const char *what)
{
    if (errno == ELOOP || errno == ENOTDIR || errno == EEXIST)
        return hl_fail(
            HL_EIO,
            "archive: %s %s/" HL_ARCHIVE_TRASH
            "/%s: a file or directory of another program has this path; move it elsewhere",
            what, d->path, name);
    return hl_fail(hl_status_of_errno(errno), "archive: %s %s/" HL_ARCHIVE_TRASH "/%s: %m", what,
                   d->path, name);
}

static hl_status open_trash(struct dir *d, const char *name, int *out)
{
    *out = need_below(d, HL_ARCHIVE_TRASH);
    return *out >= 0 ? HL_OK : fail_trash(d, name, "open or make the directory of");
}

/* -1 and errno: the file is where it was. If a moved file is not confirmed, it is moved back; where
 * that is impossible, the move stands, so that the index and the directory agree. */
static int move_file(int from, const char *name, int to, const char *as)
{
    if (rename_file(from, name, to, as) != 0)
        return -1;
    /* Syncs the new name first: after a crash the file has both names or the new one. */
    if (fsync(to) == 0 && fsync(from) == 0)
        return 0;
    int err = errno;
    if (rename_file(to, as, from, name) == 0) {
        errno = err;
        return -1;
    }
    hl_warn("archive: the move of %s to %s may be undone by a crash: %s", name, as, strerror(err));
    return 0;
}

static hl_status dir_trash(struct hl_archive *a, struct hl_id id, uint64_t size, const char *name)
{
    struct dir *d = (struct dir *)a;
    (void)size;
    HL_AUTO(hl_closep) int sub = -1;
    HL_AUTO(hl_closep) int trash = -1;
    HL_TRY(open_sub(d, id, &sub));
    HL_TRY(open_trash(d, name, &trash));
    if (move_file(sub, name_of(id, SUFFIX).s, trash, name) != 0)
        return fail_trash(d, name, "move a shard to");
    return HL_OK;
}

static hl_status dir_untrash(struct hl_archive *a, struct hl_id id, uint64_t size, const char *name)
{
    struct dir *d = (struct dir *)a;
    (void)size;
    HL_AUTO(hl_closep) int sub = -1;
    HL_AUTO(hl_closep) int trash = -1;
    HL_TRY(need_sub(d, id, &sub));
    HL_TRY(open_trash(d, name, &trash));
    if (move_file(trash, name, sub, name_of(id, SUFFIX).s) != 0)
        return fail_trash(d, name, "move back");
    return HL_OK;
}

static hl_status dir_trash_look(struct hl_archive *a, uint64_t size, const char *name)
{
    struct stat sb;
    (void)size;
    return look_below((const struct dir *)a, HL_ARCHIVE_TRASH, name, &sb);
}

static hl_status dir_trash_remove(struct hl_archive *a, const char *name)
{
    struct dir *d = (struct dir *)a;
    HL_AUTO(hl_closep) int trash = -1;
    HL_TRY(open_trash(d, name, &trash));
    if (unlinkat(trash, name, 0) != 0 && errno != ENOENT)
        return fail_trash(d, name, "remove");
    return HL_OK;
}

/* ---- whose it is ---------------------------------------------------------------------------- */

static hl_status fail_claim(const struct dir *d, const char *what)
{
    return hl_fail(hl_status_of_errno(errno), "archive: %s %s/" HL_ARCHIVE_CLAIM ": %m", what,
                   d->path);
}

static hl_status dir_claim_read(struct hl_archive *a, char *out, size_t cap, size_t *len)
{
    const struct dir *d = (const struct dir *)a;
    HL_AUTO(hl_closep)
    int fd = openat(d->fd, HL_ARCHIVE_CLAIM, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0 && errno == ELOOP) { /* a link is not ours */
        *len = 0;
        return HL_OK;
    }
    ssize_t n = fd < 0 ? -1 : pread(fd, out, cap, 0);
    if (n < 0 && errno == EISDIR)
        n = 0;
    if (n < 0)
        return fail_claim(d, "read");
    *len = (size_t)n;
    return HL_OK;
}

/* Once renamed, the claim is in force: if it is not confirmed, the next put syncs it before its own
 * shard. */
static hl_status dir_claim_write(struct hl_archive *a, const char *text, size_t len)
{
    static const char temp[] = HL_ARCHIVE_CLAIM TEMP;
    struct dir *d = (struct dir *)a;
    HL_AUTO(hl_closep) int fd = open_temp(d->fd, temp);
    ssize_t n = fd < 0 ? -1 : pwrite(fd, text, len, 0);
    if (n >= 0 && (size_t)n != len) {
        errno = ENOSPC;
        n = -1;
    }
    if (n < 0 || fsync(fd) != 0 || renameat(d->fd, temp, d->fd, HL_ARCHIVE_CLAIM) != 0)
        return fail_claim(d, "write");
    atomic_fetch_add(&d->changed, 1);
    if (sync_top(d) != 0)
        hl_warn("archive: %s/" HL_ARCHIVE_CLAIM " may be undone by a crash: %m", d->path);
    return HL_OK;
}

const struct hl_archive_ops hl_archive_dir = {
    .scheme = "dir",
    .reads_are_cheap = true,
    .open = dir_open,
    .close = dir_close,
    .scan = dir_scan,
    .put = dir_put,
    .read = dir_read,
    .remove = dir_remove,
    .crc = dir_crc,
    .look = dir_look,
    .trash = dir_trash,
    .untrash = dir_untrash,
    .trash_look = dir_trash_look,
    .trash_remove = dir_trash_remove,
    .claim_read = dir_claim_read,
    .claim_write = dir_claim_write,
};
