/* os/command.h - runs a short program to its end, with a deadline: returns its output and exit
 * code.
 *
 * Owns:    the child, which is gone on return; the result's buffers belong to the caller.
 * Threads: any; the child dies with the calling thread.
 * Errors:  HL_ETIMEDOUT or HL_ECANCELED if the child was killed for that reason; those of
 *          hl_process_spawn. A program that fails is not an error here: exit_code says so.
 * Units:   milliseconds.
 * Limits:  the first HL_COMMAND_OUTPUT_MAX bytes of each output are kept and the rest dropped; with
 *          `newest`, the last ones are kept.
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
    bool join; /* both outputs go to result->out, interleaved as they come */
    /* give the child a terminal without a size as output: some programs then print more */
    bool terminal;
    size_t newest; /* keep the last bytes of each output, this many; 0 = keep the first ones */
    /* Called at every output and ten times a second, with the output so far. False: kill the child.
     * May be NULL. */
    bool (*go_on)(void *arg, const struct hl_buf *out, const struct hl_buf *err);
    void *arg;
};

struct hl_command_result {
    struct hl_buf out, err; /* NUL-terminated texts, NULL when empty */
    int exit_code;          /* 128 + signal if it was killed */
    int signal;             /* signal that killed it; 0 = it exited */
};

/* *result must be zeroed before; free it with hl_command_fini in any case. */
hl_status hl_command_run(const struct hl_command *command,
                         struct hl_command_result *result) HL_CHECK;
void hl_command_fini(struct hl_command_result *result);
/* Never NULL. */
const char *hl_command_text(const struct hl_buf *b);

#endif
