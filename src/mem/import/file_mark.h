/* mem/import/file_mark.h - notices that a file of a checkpoint is changed or replaced while it is
 * read. A checkpoint that is saved again meanwhile, with files of the same sizes, would otherwise
 * become a model of two halves.
 *
 * Owns:    nothing.
 * Threads: any; a mark is only read after it was made.
 * Errors:  HL_EIO: the file is no longer what it was.
 * Units:   bytes.
 * Limits:  a change within one tick of the file system's clock after the mark goes unnoticed.
 */
#ifndef HELIOS_MEM_IMPORT_FILE_MARK_H
#define HELIOS_MEM_IMPORT_FILE_MARK_H

#include <sys/stat.h>

#include "base/status.h"

struct hl_file_mark {
    dev_t dev;
    ino_t ino;
    off_t size;
    struct timespec modified;
};

struct hl_file_mark hl_file_mark_of(const struct stat *sb);
/* `path` may have been removed meanwhile: the open file `fd` still has its bytes. */
hl_status hl_file_mark_check(const struct hl_file_mark *mark, int fd, const char *path) HL_CHECK;

#endif
