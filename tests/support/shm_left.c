/* Linked into every test in C: what it leaves in /dev/shm is removed when it ends, also when it has
 * failed; what tests have left that were killed, when the next one starts. Such a file is named
 * helios-test-WORDS-PID, and whatever follows; it belongs to that process. */
#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>

#define PREFIX "helios-test-"

static pid_t self;

/* 0 = it names nobody. */
static pid_t owner_of(const char *name)
{
    if (strncmp(name, PREFIX, sizeof(PREFIX) - 1) != 0)
        return 0;
    for (const char *p = name; (p = strchr(p, '-')) != NULL;) {
        char *end;
        p++;
        long pid = isdigit((unsigned char)*p) ? strtol(p, &end, 10) : 0;
        if (pid > 0 && (*end == '\0' || *end == '-' || *end == '.'))
            return (pid_t)pid;
    }
    return 0;
}

static void remove_files(int own)
{
    const struct dirent *e;
    char path[320];
    DIR *dir = opendir("/dev/shm");
    while (dir != NULL && (e = readdir(dir)) != NULL) {
        pid_t owner = owner_of(e->d_name);
        if (owner <= 0 || (own ? owner != self : kill(owner, 0) == 0 || errno != ESRCH))
            continue;
        snprintf(path, sizeof(path), "/dev/shm/%s", e->d_name);
        unlink(path);
    }
    if (dir != NULL)
        closedir(dir);
}

static void leave(void)
{
    if (getpid() == self) /* not its children */
        remove_files(1);
}

__attribute__((constructor)) static void arrive(void)
{
    self = getpid();
    remove_files(0);
    atexit(leave);
}
