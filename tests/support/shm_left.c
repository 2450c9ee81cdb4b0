/* Linked into every test in C. It removes the test's files from /dev/shm at its end, also after a
 * failure, and at its start those of tests that were killed. Such a file is named
 * helios-test-WORDS-PID with any suffix and belongs to that process. A process of another PID
 * namespace can share /dev/shm and looks dead from here, so only files older than any test runs
 * count as abandoned. */
#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <time.h>
#include <unistd.h>

#define PREFIX          "helios-test-"
#define ABANDONED_AFTER 7200 /* s */

static pid_t self;

/* 0 = the name has no pid. */
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

static int is_abandoned(pid_t owner, const char *path)
{
    struct stat sb;
    return kill(owner, 0) != 0 && errno == ESRCH && stat(path, &sb) == 0 &&
           time(NULL) - sb.st_ctime > ABANDONED_AFTER;
}

static void remove_files(int own)
{
    const struct dirent *e;
    char path[320];
    DIR *dir = opendir("/dev/shm");
    while (dir != NULL && (e = readdir(dir)) != NULL) {
        pid_t owner = owner_of(e->d_name);
        snprintf(path, sizeof(path), "/dev/shm/%s", e->d_name);
        if (owner > 0 && (own ? owner == self : is_abandoned(owner, path)))
            unlink(path);
    }
    if (dir != NULL)
        closedir(dir);
}

static void leave(void)
{
    if (getpid() == self) /* not in its children */
        remove_files(1);
}

__attribute__((constructor)) static void arrive(void)
{
    self = getpid();
    remove_files(0);
    atexit(leave);
}
