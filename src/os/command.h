/* os/command.h - a short program run to its end: its output, its exit code, a deadline.
 *
 * Owns:    the child, which is gone when this returns; a result's buffers are the caller's.
 * Threads: any; the child dies with the calling thread.
 * Errors:  HL_ETIMEDOUT, HL_ECANCELED when the child was killed for it; those of hl_process_spawn.
 *          A program that fails is not an error here: exit_code says so.
 * Units:   milliseconds.
 * Limits:  HL_COMMAND_OUTPUT_MAX bytes of each output are kept, the rest is read and dropped; or
 *          the last `newest`.
 */
#ifndef HL_OS_COMMAND_H
#define HL_OS_COMMAND_H

#include <stdbool.h>

#include "base/buf.h"
#include "base/status.h"

#define HL_COMMAND_OUTPUT_MAX ((size_t)1 << 20)

struct hl_command {
    const char *program; /* path, not searched in PATH */
    char *const *argv;
    char *const *env; /* exactly this */
    int timeout_ms;
    bool join;     /* both outputs are result->out, as they come */
    bool terminal; /* result->out is written to a terminal without a size: some say more there */
    size_t newest; /* so many bytes of each output are kept, the last ones; 0 = the first ones */
    /* With every output and ten times a second; `out` and `err` so far. False: kill it. May be
     * NULL. */
    bool (*go_on)(void *arg, const struct hl_buf *out, const struct hl_buf *err);
    void *arg;
};

struct hl_command_result {
    struct hl_buf out, err; /* NUL-terminated texts, NULL when empty */
    int exit_code;          /* 128 + signal when it was killed */
    int signal;             /* that killed it; 0 = it exited */
};

/* *result is zero before; free it with hl_command_fini in any case. */
hl_status hl_command_run(const struct hl_command *command,
                         struct hl_command_result *result) HL_CHECK;
void hl_command_fini(struct hl_command_result *result);
/* Never NULL. */
const char *hl_command_text(const struct hl_buf *b);

#endif
