#include "mem/import/file_mark.h"

struct hl_file_mark hl_file_mark_of(const struct stat *sb)
{
    return (struct hl_file_mark){sb->st_dev, sb->st_ino, sb->st_size, sb->st_mtim};
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
