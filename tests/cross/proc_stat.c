/* Loaded before the C library in emulated tests. QEMU answers for /proc/PID/stat of the process
 * itself and says 0 for its start, by which others take it for one that has ended; another spelling
 * of the path gets the kernel's answer. */
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/types.h>

int open(const char *path, int flags, ...)
{
    char other[64];
    va_list more;
    va_start(more, flags);
    mode_t mode = (flags & O_CREAT) != 0 ? va_arg(more, mode_t) : 0;
    va_end(more);
    int n = 0, pid;
    if (sscanf(path, "/proc/%d/stat%n", &pid, &n) == 1 && n > 0 && path[n] == '\0') {
        snprintf(other, sizeof(other), "/proc/./%d/stat", pid);
        path = other;
    }
    return openat(AT_FDCWD, path, flags, mode);
}
