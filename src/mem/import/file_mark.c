#include "mem/import/file_mark.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static bool is_link(const char *path)
{
    struct stat sb;
    return lstat(path, &sb) == 0 && S_ISLNK(sb.st_mode);
}

hl_status hl_marked_open(const char *path, int *fd, struct hl_file_mark *mark)
{
    struct stat sb;
    int f = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    int e = errno;
    if (f < 0 && e == ENOENT && is_link(path))
        return hl_fail(HL_EIO, "%s is a link to a missing file: copy the file that it points to",
                       path);
    if (f < 0)
        return hl_fail(e == ENOENT ? HL_ENOENT : HL_EIO, "open %s: %s", path, strerror(e));
    if (fstat(f, &sb) != 0 || !S_ISREG(sb.st_mode)) {
        close(f);
        return hl_fail(HL_EINVAL, "%s is not a regular file", path);
    }
    *fd = f;
    *mark = (struct hl_file_mark){sb.st_dev, sb.st_ino, sb.st_size, sb.st_mtim};
    return HL_OK;
}

hl_status hl_marked_read(int fd, const char *path, uint64_t from, uint64_t len, void *out)
{
    for (uint64_t at = 0; at < len;) {
        ssize_t n = pread(fd, (char *)out + at, len - at, (off_t)(from + at));
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return hl_fail(HL_EIO, "read %s at %" PRIu64 ": %s", path, from + at,
                           n < 0 ? strerror(errno) : "the file ends here");
        at += (uint64_t)n;
    }
    return HL_OK;
}

hl_status hl_file_mark_check(const struct hl_file_mark *mark, int fd, const char *path)
{
    struct stat sb;
    if (fstat(fd, &sb) != 0)
        return hl_fail(HL_EIO, "stat %s: %m", path);
    if (sb.st_size < mark->size)
        return hl_fail(HL_EIO, "%s was truncated during the import", path);
    if (sb.st_size != mark->size || sb.st_mtim.tv_sec != mark->modified.tv_sec ||
        sb.st_mtim.tv_nsec != mark->modified.tv_nsec)
        return hl_fail(HL_EIO, "%s was changed during the import: import it again", path);
    if (stat(path, &sb) == 0 && (sb.st_dev != mark->dev || sb.st_ino != mark->ino))
        return hl_fail(HL_EIO, "%s was replaced during the import: import it again", path);
    return HL_OK;
}

HL_CHECK static hl_status read_text(int fd, const char *path, uint64_t size, size_t max, char **out)
{
    if (size > max)
        return hl_fail(HL_EINVAL, "%s: %" PRIu64 " bytes, at most %zu", path, size, max);
    HL_AUTO(hl_freep) char *text = malloc(size + 1);
    if (text == NULL)
        return hl_fail(HL_ENOMEM, "%s: out of memory reading %" PRIu64 " bytes", path, size);
    HL_TRY(hl_marked_read(fd, path, 0, size, text));
    text[size] = '\0';
    *out = hl_steal(&text);
    return HL_OK;
}

hl_status hl_marked_texts_read(struct hl_marked_texts *texts, const char *path, size_t max,
                               char **out, size_t *len)
{
    int fd;
    struct hl_file_mark mark;
    if (texts->count == HL_MARKED_TEXTS)
        return hl_fail(HL_EUNSUPPORTED, "%s: more than %d texts", path, HL_MARKED_TEXTS);
    HL_TRY(hl_marked_open(path, &fd, &mark));
    char *name = strdup(path);
    hl_status st = name != NULL ? read_text(fd, path, (uint64_t)mark.size, max, out)
                                : hl_fail(HL_ENOMEM, "out of memory reading %s", path);
    if (st != HL_OK) {
        free(name);
        close(fd);
        return st;
    }
    *len = (size_t)mark.size;
    texts->list[texts->count].path = name;
    texts->list[texts->count].fd = fd;
    texts->list[texts->count++].mark = mark;
    return HL_OK;
}

hl_status hl_marked_texts_check(const struct hl_marked_texts *texts)
{
    for (size_t i = 0; i < texts->count; i++)
        HL_TRY(hl_file_mark_check(&texts->list[i].mark, texts->list[i].fd, texts->list[i].path));
    return HL_OK;
}

void hl_marked_texts_close(struct hl_marked_texts *texts)
{
    for (size_t i = 0; i < texts->count; i++) {
        close(texts->list[i].fd);
        free(texts->list[i].path);
    }
    texts->count = 0;
}
