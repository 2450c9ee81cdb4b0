/* support/python.h - a Python with torch that runs pieces of code, each in a forked process: torch
 * is imported once for all, because the import takes longer than most of them.
 *
 *     test  --length, code-->  python: fork --> exec(code)
 *           <--exit status---          wait <----'
 *
 * Owns:    the process; python_stop ends it.
 * Threads: the caller's.
 * Errors:  77 (skipped) = there is no Python or no torch; else the code's exit status.
 * Units:   none.
 * Limits:  one per program.
 */
#ifndef TESTS_SUPPORT_PYTHON_H
#define TESTS_SUPPORT_PYTHON_H

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#define PYTHON_NONE 77

static const char python_server[] =
    "import os, sys, traceback\n"
    "try:\n"
    "    import torch\n"
    "except ModuleNotFoundError as missing:\n"
    "    sys.exit(77 if missing.name == 'torch' else traceback.print_exc() or 1)\n"
    "answer, code = os.fdopen(os.dup(1), 'w'), 0\n"
    "os.dup2(2, 1)\n"
    "while True:\n"
    "    print(code, file=answer, flush=True)\n"
    "    length = sys.stdin.buffer.readline()\n"
    "    if not length:\n"
    "        break\n"
    "    text = sys.stdin.buffer.read(int(length))\n"
    "    pid = os.fork()\n"
    "    if pid == 0:\n"
    "        code = 1\n"
    "        try:\n"
    "            exec(compile(text, 'test', 'exec'), {'__name__': '__main__'})\n"
    "            code = 0\n"
    "        except SystemExit as end:\n"
    "            code = end.code or 0\n"
    "        except BaseException:\n"
    "            traceback.print_exc()\n"
    "        finally:\n"
    "            sys.stdout.flush()\n"
    "            os._exit(code)\n"
    "    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])\n";

static struct {
    FILE *to, *from;
    pid_t pid;
} python;

static inline void python_main(int in, int out)
{
    prctl(PR_SET_PDEATHSIG, SIGKILL); /* a test that crashes leaves no process behind */
    unsetenv("LD_PRELOAD");           /* set by a sanitizer */
    setenv("OMP_NUM_THREADS", "1", 1);
    dup2(in, STDIN_FILENO);
    dup2(out, STDOUT_FILENO);
    execl("/usr/bin/python3", "/usr/bin/python3", "-W", "ignore", "-c", python_server,
          (char *)NULL);
    _exit(PYTHON_NONE);
}

/* Status of the code, or of the process if that has ended. */
static inline int python_answer(void)
{
    int code, status;
    if (fscanf(python.from, "%d", &code) == 1)
        return code;
    if (waitpid(python.pid, &status, 0) != python.pid || !WIFEXITED(status))
        return 1;
    return WEXITSTATUS(status);
}

/* 0, or PYTHON_NONE. */
static inline int python_start(void)
{
    int to[2], from[2];
    if (pipe(to) != 0 || pipe(from) != 0)
        return 1;
    fflush(NULL);
    python.pid = fork();
    if (python.pid == 0) {
        close(to[1]);
        close(from[0]);
        python_main(to[0], from[1]);
    }
    close(to[0]);
    close(from[1]);
    python.to = fdopen(to[1], "w");
    python.from = fdopen(from[0], "r");
    return python_answer();
}

/* The exit status of the code. */
static inline int python_run(const char *code)
{
    fprintf(python.to, "%zu\n%s", strlen(code), code);
    fflush(python.to);
    return python_answer();
}

static inline void python_stop(void)
{
    fclose(python.to);
    fclose(python.from);
    waitpid(python.pid, NULL, 0);
}

#endif
