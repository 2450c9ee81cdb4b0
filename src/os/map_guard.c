/* An access to a mapped file that was truncated causes a fault. The handler maps zeros there, so
 * the access continues, and marks the mapping as damaged; its reader checks that mark afterwards.
 *
 *     guards[]   | base, size, fd, prot, damaged | base = 0: free | ...
 *
 *     free --add: all, then base (release)--> watched --remove: base = 0--> free
 *                                                '--on_bus, check: damaged = true
 *
 * `changes` serializes adds. The handler may run in any thread at any instruction, so it takes no
 * lock: it loads `base` (acquire) and then sees the other fields. A guard is removed before its
 * memory is unmapped, so a later owner's fault at these addresses is not covered. */
#include "os/map_guard.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stddef.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

/* The handler reads it without a lock: `base` is set last and cleared first. */
struct guard {
    _Atomic uintptr_t base; /* 0 = free */
    uintptr_t size;
    int fd, prot;
    atomic_bool damaged;
};

static struct guard guards[HL_MAP_GUARDS];
static pthread_mutex_t changes = PTHREAD_MUTEX_INITIALIZER;
static struct sigaction before;
static atomic_bool installed;
static uintptr_t page;

/* Maps zeros from `at` on: to the mapping's end if the file has ended there, otherwise for one
 * page. */
static bool replace_pages(struct guard *g, uintptr_t base, uintptr_t at)
{
    struct stat sb;
    uintptr_t len = page;
    if (fstat(g->fd, &sb) == 0 && (uintptr_t)sb.st_size <= at - base) {
        at = base + ((uintptr_t)sb.st_size + page - 1) / page * page;
        len = base + g->size - at;
    }
    if (mmap((void *)at, len, g->prot, MAP_FIXED | MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1,
             0) == MAP_FAILED)
        return false;
    atomic_store_explicit(&g->damaged, true, memory_order_release);
    return true;
}

static bool cover_fault(uintptr_t address)
{
    for (int i = 0; i < HL_MAP_GUARDS; i++) {
        struct guard *g = &guards[i];
        uintptr_t base = atomic_load_explicit(&g->base, memory_order_acquire);
        if (base != 0 && address >= base && address - base < g->size)
            return replace_pages(g, base, address / page * page);
    }
    return false;
}

static void on_bus(int number, siginfo_t *info, void *context)
{
    int saved = errno;
    bool covered = info->si_code == BUS_ADRERR && cover_fault((uintptr_t)info->si_addr);
    errno = saved;
    if (covered)
        return;
    if ((before.sa_flags & SA_SIGINFO) != 0)
        before.sa_sigaction(number, info, context);
    else if (before.sa_handler != SIG_DFL && before.sa_handler != SIG_IGN)
        before.sa_handler(number);
    else { /* pending until this handler returns; a retried load would fault again */
        signal(SIGBUS, SIG_DFL);
        raise(SIGBUS);
    }
}

void hl_map_guard_install(void)
{
    struct sigaction on = {.sa_sigaction = on_bus, .sa_flags = SA_SIGINFO | SA_RESTART};
    pthread_mutex_lock(&changes);
    if (!atomic_load(&installed)) {
        page = (uintptr_t)sysconf(_SC_PAGESIZE);
        sigemptyset(&on.sa_mask);
        atomic_store(&installed, sigaction(SIGBUS, &on, &before) == 0);
    }
    pthread_mutex_unlock(&changes);
}

int hl_map_guard_add(void *ptr, uint64_t size, int fd, bool writable)
{
    int found = -1;
    if (!atomic_load(&installed))
        return -1;
    pthread_mutex_lock(&changes);
    for (int i = 0; i < HL_MAP_GUARDS && found < 0; i++)
        if (atomic_load(&guards[i].base) == 0)
            found = i;
    if (found >= 0) {
        struct guard *g = &guards[found];
        g->size = size;
        g->fd = fd;
        g->prot = writable ? PROT_READ | PROT_WRITE : PROT_READ;
        atomic_store(&g->damaged, false);
        atomic_store_explicit(&g->base, (uintptr_t)ptr, memory_order_release);
    }
    pthread_mutex_unlock(&changes);
    return found;
}

void hl_map_guard_remove(int guard)
{
    if (guard >= 0)
        atomic_store_explicit(&guards[guard].base, 0, memory_order_release);
}

bool hl_map_guard_damaged(int guard)
{
    return guard >= 0 && atomic_load_explicit(&guards[guard].damaged, memory_order_acquire);
}

bool hl_map_guard_check(int guard)
{
    struct stat sb;
    if (guard < 0)
        return false;
    struct guard *g = &guards[guard];
    if (fstat(g->fd, &sb) == 0 && (uintptr_t)sb.st_size < g->size)
        atomic_store_explicit(&g->damaged, true, memory_order_release);
    return hl_map_guard_damaged(guard);
}
