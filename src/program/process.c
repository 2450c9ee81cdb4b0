/* How a program begins and ends. */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "os/process.h"
#include "program/daemon.h"

void program_begin(void)
{
    hl_process_raise_files();
    signal(SIGXFSZ, SIG_IGN);
}

/* A reader that has closed the pipe has seen enough. */
static hl_status flush_stdout(void)
{
    if ((fflush(stdout) == 0 && !ferror(stdout)) || errno == EPIPE)
        return HL_OK;
    return hl_fail(HL_EIO, "writing to stdout: %s", strerror(errno));
}

int program_exit(const char *name, hl_status st)
{
    if (st == HL_OK || st == HL_ECANCELED)
        st = flush_stdout();
    if (st == HL_OK)
        return 0;
    fprintf(stderr, "%s: %s\n", name, hl_error_text());
    return st == HL_EINVAL ? 2 : 1;
}
