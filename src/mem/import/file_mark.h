/* mem/import/file_mark.h - opens the files of a checkpoint, and notices that one is changed or
 * replaced while it is read. A checkpoint that is saved again meanwhile, with files of the same
 * sizes, would otherwise become a model of two halves.
 *
 * Owns:    hl_marked_texts owns its descriptors and paths (hl_marked_texts_close).
 * Threads: one while files are opened; then any, as marks are only read.
 * Errors:  HL_EIO: the file is no longer what it was, or can't be read; HL_ENOENT: there is none;
 *          HL_EINVAL: it is not a regular file, or too long.
 * Units:   bytes.
 * Limits:  a change within one tick of the file system's clock after the mark goes unnoticed;
 *          HL_MARKED_TEXTS texts.
 */
#ifndef HELIOS_MEM_IMPORT_FILE_MARK_H
#define HELIOS_MEM_IMPORT_FILE_MARK_H

#include <stdint.h>
#include <sys/stat.h>

#include "base/status.h"

#define HL_MARKED_TEXTS 4

struct hl_file_mark {
    dev_t dev;
    ino_t ino;
    off_t size;
    struct timespec modified;
};

/* Opens a regular file; never waits for a FIFO's writer. */
hl_status hl_marked_open(const char *path, int *fd, struct hl_file_mark *mark) HL_CHECK;
/* Reads `len` bytes at `from`; HL_EIO if the file ends before. `path` is for the message. */
hl_status hl_marked_read(int fd, const char *path, uint64_t from, uint64_t len, void *out) HL_CHECK;
/* `path` may have been removed meanwhile: the open file `fd` still has its bytes. */
hl_status hl_file_mark_check(const struct hl_file_mark *mark, int fd, const char *path) HL_CHECK;

/* The texts that a plan is made from, such as config.json: they are read whole, and stay open for
 * the check. */
struct hl_marked_texts {
    struct {
        char *path;
        int fd;
        struct hl_file_mark mark;
    } list[HL_MARKED_TEXTS];

    size_t count;
};

/* Reads a text of at most `max` bytes; a NUL follows it. The caller frees *out with free(). */
hl_status hl_marked_texts_read(struct hl_marked_texts *texts, const char *path, size_t max,
                               char **out, size_t *len) HL_CHECK;
hl_status hl_marked_texts_check(const struct hl_marked_texts *texts) HL_CHECK;
void hl_marked_texts_close(struct hl_marked_texts *texts);

#endif
