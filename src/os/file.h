/* os/file.h - small files and directories: whole reads, atomic writes, recursive removal.
 *
 * Owns:    nothing.
 * Threads: any.
 * Errors:  HL_ENOENT, HL_EPERM, HL_ENOSPC, HL_EINVAL (larger than the maximum), HL_EIO; the text
 *          names the path and says what the system said.
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

/* Append the whole file to `out`; its maximum bounds the read. Works for /proc and /sys. */
hl_status hl_file_read(const char *path, struct hl_buf *out) HL_CHECK;
/* A file of /sys that holds one decimal number and nothing else. False: it can't be read, or holds
 * something else; *out is untouched. */
bool hl_file_read_number(const char *path, int64_t *out);
/* Readers see the old file or the new one, never a part: temporary file beside it, then rename. */
hl_status hl_file_write_atomic(const char *path, const void *data, size_t len) HL_CHECK;
/* The same, and it is on the medium when this returns; mode is the file's, whatever the umask. */
hl_status hl_file_write_durable(const char *path, const void *data, size_t len,
                                mode_t mode) HL_CHECK;
/* One write into an existing file, as the control files of /proc and /sys want it. */
hl_status hl_file_write_control(const char *path, const char *text) HL_CHECK;

/* HL_EPERM unless the open file is ours alone: of our user, closed to others, with one name or
 * none. For files in directories like /dev/shm, where anybody may have made them before us. */
hl_status hl_file_check_private(int fd, const char *path) HL_CHECK;

/* Make the directory and its parents; an existing one is fine. */
hl_status hl_dir_make(const char *path, mode_t mode) HL_CHECK;
/* By which a directory is known on its host, whatever its path; "" where it can't be read. */
void hl_dir_identity(const char *path, char *out, size_t size);
/* Remove a directory with all it holds; links are removed, not followed. A missing one is fine. */
hl_status hl_dir_remove(const char *path) HL_CHECK;

/* Cleanup for descriptors: HL_AUTO(hl_closep) int fd = -1; */
void hl_closep(int *fd);

#endif
