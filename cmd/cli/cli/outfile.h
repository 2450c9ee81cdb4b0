/* cmd/cli/cli/outfile.h - a result file that is there as a whole or not at all.
 *
 * Owns:    the descriptor and the temporary file; outfile_abort after any failure, also after
 *          outfile_commit (then it does nothing).
 * Threads: one.
 * Errors:  HL_EINVAL for a terminal, HL_ENOSPC, HL_EPERM, HL_EIO with the path.
 * Units:   bytes.
 * Limits:  paths of PATH_MAX.
 */
#ifndef HL_CMD_CLI_CLI_OUTFILE_H
#define HL_CMD_CLI_CLI_OUTFILE_H

#include <limits.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"

struct outfile {
    int fd;
    bool is_stdout;
    uint64_t written;
    char path[PATH_MAX];
    char temp[PATH_MAX];
};

/* "-" is stdout, which must not be a terminal: the result is bytes. */
hl_status outfile_open(const char *path, struct outfile *out) HL_CHECK;
hl_status outfile_write(struct outfile *f, const void *data, uint64_t len) HL_CHECK;
/* On disk and under its name. */
hl_status outfile_commit(struct outfile *f) HL_CHECK;
void outfile_abort(struct outfile *f);
/* The same for a small text. */
hl_status outfile_text(const char *path, const char *text) HL_CHECK;

#endif
