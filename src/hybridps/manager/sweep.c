/* Tables whose processes have all died keep their name in /dev/shm, because a table is only removed
 * when its last process closes it. The Agent sweeps to remove such tables.
 *
 *    name fits --file locked--> mapped to read --no process, old enough--> its name is removed
 *
 * A sweep takes no lock of the table and writes nothing to it, so a table in use is not disturbed.
 * It tries the lock of the file and does not wait for it: the holder is joining or leaving. */
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

/* Whether any row belongs to a live process. */
static bool has_process(const struct hl_manager_shared *s)
{
    for (size_t i = 0; i < HL_MANAGER_PROCESSES; i++) {
        struct hl_process p = s->processes[i];
        if (p.pid != 0 && !hl_process_ended(p))
            return true;
    }
    return false;
}

/* While the file is locked, no process joins or leaves. A process that is about to join sees that
 * the name was removed, and creates another table. If the file is truncated meanwhile, the guard
 * (where installed) makes it read as zeros instead of raising SIGBUS; zeros are not a valid
 * layout. */
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

/* Closing the descriptor releases the lock. */
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
