/* support/torch_command.h - runs a script that uses torch: in a fork of the process with torch that
 * the Python tests of this CTest run share, or in a process of its own if there is none.
 *
 * Owns:    nothing.
 * Threads: the caller's.
 * Errors:  77 = there is no Python; else the script's exit status, -1 after a signal.
 * Units:   none.
 * Limits:  a command of 4095 bytes.
 */
#ifndef TESTS_SUPPORT_TORCH_COMMAND_H
#define TESTS_SUPPORT_TORCH_COMMAND_H

#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

/* `arguments` of python3, for a shell: "-c 'CODE' ARGS" or a script's path beneath the sources. */
static inline int torch_command(const char *arguments)
{
    const char *root = getenv("HELIOS_SOURCE");
    char command[4096];
    if (access("/usr/bin/python3", X_OK) != 0)
        return 77;
    /* The name is that of with_torch.py: the parent is CTest. Without the LD_PRELOAD of a
     * sanitizer. */
    int len = snprintf(command, sizeof(command),
                       "cd %s && LD_PRELOAD= PYTHONWARNINGS=ignore TESTS_TORCH=helios-torch-%u-%d "
                       "/usr/bin/python3 tests/support/with_torch.py %s",
                       root != NULL ? root : ".", (unsigned)getuid(), (int)getppid(), arguments);
    if (len < 0 || (size_t)len >= sizeof(command))
        return -1;
    int rc = system(command);
    return rc != -1 && WIFEXITED(rc) ? WEXITSTATUS(rc) : -1;
}

#endif
