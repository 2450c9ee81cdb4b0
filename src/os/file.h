/* os/file.h - small files and directories: whole reads, atomic writes, recursive removal.
 *
 * Owns:    nothing.
 * Threads: any.
 * Errors:  HL_ENOENT, HL_EPERM, HL_ENOSPC, HL_EINVAL (larger than the maximum), HL_EIO; the text
 *          names the path and the system's error.
 * Units:   bytes.
 * Limits:  paths of PATH_MAX - 32 bytes.
 */
#ifndef HL_OS_FILE_H
#define HL_OS_FILE_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/buf.h"
#include "base/status.h"

/* The status that fits an errno. */
hl_status hl_status_of_errno(int err);

/* Appends the whole file to `out`, whose maximum limits the read. Works for /proc and /sys. */
hl_status hl_file_read(const char *path, struct hl_buf *out) HL_CHECK;
/* The same for files that a program may have replaced, such as those of a container: opening a FIFO
 * would wait for its writer. HL_EINVAL for all but regular files. The caller closes *out. */
hl_status hl_file_open_regular(const char *path, int *out) HL_CHECK;
hl_status hl_file_read_regular(const char *path, struct hl_buf *out) HL_CHECK;
/* Reads a file of /sys that contains one decimal number and nothing else. False: it can't be read,
 * or contains something else; *out is untouched. */
bool hl_file_read_number(const char *path, int64_t *out);
/* Readers see either the old file or the new one: writes a temporary file beside it, then
 * renames. */
hl_status hl_file_write_atomic(const char *path, const void *data, size_t len) HL_CHECK;
/* The same, and the file is on the medium on return; it gets exactly `mode`, whatever the umask. */
hl_status hl_file_write_durable(const char *path, const void *data, size_t len,
                                mode_t mode) HL_CHECK;
/* Checks that what was printed to stdout has reached it. HL_EIO: it has not; HL_ECANCELED without a
 * text: the reader has closed the pipe. */
hl_status hl_stdout_flush(void) HL_CHECK;
/* A single write to an existing file, as control files of /proc and /sys require. */
hl_status hl_file_write_control(const char *path, const char *text) HL_CHECK;

/* HL_EPERM unless the open file is private to us: owned by our user, not accessible to others, with
 * at most one name. For files in directories like /dev/shm, where anyone may have created them
 * before us. */
hl_status hl_file_check_private(int fd, const char *path) HL_CHECK;

/* Make the directory and its parents; an existing one is fine. */
hl_status hl_dir_make(const char *path, mode_t mode) HL_CHECK;
/* The same, and no other user may enter it, even if it existed. HL_EPERM if it is another user's,
 * who could let himself in again. */
hl_status hl_dir_make_private(const char *path) HL_CHECK;
/* A string that identifies a directory on its host, whatever its path; "" if it can't be read. Its
 * time of birth is part of it where the file system has one: inode numbers are used again. */
void hl_dir_identity(const char *path, char *out, size_t size);
/* Remove a directory with all it holds; links are removed, not followed. A missing one is fine. */
hl_status hl_dir_remove(const char *path) HL_CHECK;

/* Cleanup for descriptors: HL_AUTO(hl_closep) int fd = -1; */
void hl_closep(int *fd);

#endif
