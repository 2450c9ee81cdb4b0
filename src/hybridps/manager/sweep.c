/* Tables whose processes have all died keep their name in /dev/shm: the last process takes a table
 * away only when it closes it. A sweep, of the Agent, takes away the unused ones.
 *
 *     name fits --file locked--> mapped to read --no process, old enough--> its name is removed
 *
 * It takes no lock of the table and writes nothing there: one that is in use goes on unharmed. The
 * lock of the file is tried, not waited for: its holder is coming or going. */
#include <dirent.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "hybridps/manager/table.h"
#include "os/file.h"
#include "os/map_guard.h"
#include "os/shm.h"

#define SHM_DIR "/dev/shm"

/* Whether any row is of a process that lives. */
static bool has_process(const struct hl_manager_shared *s)
{
    for (size_t i = 0; i < HL_MANAGER_PROCESSES; i++) {
        struct hl_process p = s->processes[i];
        if (p.pid != 0 && !hl_process_ended(p))
            return true;
    }
    return false;
}

/* With the file locked no process joins or leaves; one about to join sees that it lost its name,
 * and makes another. A file that is cut short meanwhile reads as zeros by the guard, where that is
 * installed, and not as SIGBUS: these are no layout of ours. */
static bool table_is_abandoned(int fd, struct hl_manager_table *t, int idle_ms)
{
    struct stat sb;
    void *p;
    if (fstat(fd, &sb) != 0 || sb.st_nlink == 0 || sb.st_uid != getuid() ||
        (uint64_t)sb.st_size != sizeof(*t->s) || hl_shm_map(fd, sizeof(*t->s), 0, &p) != HL_OK)
        return false;
    t->s = p;
    t->guard = hl_map_guard_add(p, sizeof(*t->s), fd, false);
    uint64_t looked = __atomic_load_n(&t->s->reaped_ns, __ATOMIC_RELAXED);
    int dead = hl_manager_check_layout(t) == HL_OK &&
               hl_now_ns() >= looked + (uint64_t)idle_ms * HL_NS_PER_MS && !has_process(t->s);
    hl_map_guard_remove(t->guard);
    hl_shm_unmap(p, sizeof(*t->s));
    return dead;
}

/* Closing the descriptor gives the lock back. */
static bool sweep_one(const char *name, int idle_ms)
{
    struct hl_manager_table t = {.fd = -1};
    if ((size_t)snprintf(t.path, sizeof(t.path), "/%s", name) >= sizeof(t.path))
        return false;
    HL_AUTO(hl_closep) int fd = shm_open(t.path, O_RDONLY, 0);
    return fd >= 0 && flock(fd, LOCK_EX | LOCK_NB) == 0 && table_is_abandoned(fd, &t, idle_ms) &&
           shm_unlink(t.path) == 0;
}

static bool has_name(const char *name, const char *begin, const char *end)
{
    size_t len = strlen(name), first = strlen(begin), last = strlen(end);
    return len >= first + last && memcmp(name, begin, first) == 0 &&
           memcmp(name + len - last, end, last) == 0;
}

size_t hl_manager_sweep(const char *begin, const char *end, int idle_ms)
{
    size_t n = 0;
    const struct dirent *e;
    DIR *dir = opendir(SHM_DIR);
    if (dir == NULL)
        return 0;
    while ((e = readdir(dir)) != NULL)
        if (has_name(e->d_name, begin, end))
            n += (size_t)sweep_one(e->d_name, idle_ms);
    closedir(dir);
    return n;
}
