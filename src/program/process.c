/* How a program begins and ends. */
#include <signal.h>
#include <stdio.h>

#include "os/file.h"
#include "os/process.h"
#include "program/daemon.h"

void program_begin(void)
{
    hl_process_raise_files();
    signal(SIGXFSZ, SIG_IGN);
}

int program_exit(const char *name, hl_status st)
{
    if (st == HL_OK || st == HL_ECANCELED)
        st = hl_stdout_flush();
    if (st == HL_OK || st == HL_ECANCELED)
        return 0;
    fprintf(stderr, "%s: %s\n", name, hl_error_text());
    return st == HL_EINVAL ? 2 : 1;
}
