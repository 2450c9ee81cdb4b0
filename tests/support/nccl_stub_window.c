/* Windows of the stand-in for NCCL, with the rules of the real ones: registering is collective and
 * waits without a deadline, takes aligned memory from ncclMemAlloc, the same size on each rank; an
 * aborted communicator is not used again; freeing registered memory aborts the process. As with the
 * real ones, a rank sees the others' windows and its own at addresses other than the memory's.
 *
 * Environment: NCCL_WIN_ENABLE=0: no symmetric memory (the real one's own switch);
 * NCCL_STUB_ABSENT: a rank whose registration fails before it has told the others anything;
 * NCCL_STUB_LATE: one whose communicator doesn't block. Without these, NCCL_STUB_FAIL
 * "ncclCommWindowRegister:1" fails on rank 1 after all ranks have joined. */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "support/cuda_stub.h"
#include "support/nccl_stub.h"

#define X(name, result, args) API result name args;
NCCL_WINDOW_CALLS(X)
NCCL_POINTER_CALLS(X)
#undef X

#define SOME          16
#define INVALID       4 /* ncclInvalidArgument */
#define REMOTE        6 /* ncclRemoteError */
#define ALIGNED(p)    ((uintptr_t)(p) % HL_NCCL_WIN_REQUIRED_ALIGNMENT == 0)
#define SETTING(name) (getenv(name) != NULL ? atoi(getenv(name)) : -1)

static struct allocation {
    void *at;
    size_t size;
    int windows;
} allocations[SOME];

static pthread_mutex_t lock =
    PTHREAD_MUTEX_INITIALIZER; /* guards allocations and lists of windows */

static struct allocation *allocation_at(const void *p)
{
    for (int i = 0; i < SOME; i++)
        if (allocations[i].at == p)
            return &allocations[i];
    return NULL;
}

static void never(int wrong, const char *what)
{
    if (!wrong)
        return;
    fprintf(stderr, "nccl stub: %s\n", what);
    abort();
}

nccl_result ncclCommCuDevice(const struct ncclComm *c, int *device)
{
    (void)c;
    *device = 0;
    return HL_ncclSuccess;
}

nccl_result ncclCommUserRank(const struct ncclComm *c, int *rank)
{
    *rank = c->rank;
    return HL_ncclSuccess;
}

struct nccl_team ncclTeamLsa(struct ncclComm *c)
{
    int lsa = c->team != NULL && c->team->lsa != 0 ? c->team->lsa : c->ranks;
    return (struct nccl_team){.ranks = lsa, .rank = c->rank % lsa, .stride = 1};
}

nccl_result ncclMemAlloc(void **out, size_t size)
{
    cu_ptr at;
    nccl_result r = nccl_stub_note("ncclMemAlloc", 0, 0, 0);
    if (r != HL_ncclSuccess)
        return r;
    if (size == 0 || cuMemAlloc_v2(&at, size) != HL_CUDA_SUCCESS)
        return 1;
    pthread_mutex_lock(&lock);
    struct allocation *a = allocation_at(NULL);
    never(a == NULL, "too much is allocated");
    *a = (struct allocation){.at = (void *)(uintptr_t)at, .size = size};
    *out = a->at;
    pthread_mutex_unlock(&lock);
    return HL_ncclSuccess;
}

nccl_result ncclMemFree(void *p)
{
    (void)nccl_stub_note("ncclMemFree", 0, 0, 0);
    pthread_mutex_lock(&lock);
    struct allocation *a = p != NULL ? allocation_at(p) : NULL;
    never(a != NULL && a->windows > 0, "memory of a window is freed");
    if (a != NULL)
        a->at = NULL;
    pthread_mutex_unlock(&lock);
    return a != NULL && cuMemFree_v2((uintptr_t)p) == HL_CUDA_SUCCESS ? HL_ncclSuccess : INVALID;
}

/* Waits until all ranks are here or the communicator was aborted. The team's lock is held. */
static nccl_result join(struct ncclComm *c)
{
    struct nccl_stub_team *t = c->team;
    int round = t->round;
    if (++t->arrived == c->ranks) {
        t->arrived = 0;
        t->round++;
        pthread_cond_broadcast(&t->turn);
    }
    while (t->round == round && !t->aborted)
        pthread_cond_wait(&t->turn, &t->lock);
    return t->round == round ? REMOTE : HL_ncclSuccess;
}

static struct ncclWindow_vidmem *map_all(struct ncclComm *c)
{
    struct ncclWindow_vidmem *w = calloc(1, sizeof(*w));
    struct nccl_team near = ncclTeamLsa(c);
    never(w == NULL, "no memory");
    for (int k = 0; k < c->ranks; k++) {
        cu_ptr at = 0;
        if (k / near.ranks == c->rank / near.ranks &&
            stub_alias((uintptr_t)c->team->memory[k], &at) != HL_CUDA_SUCCESS)
            never(1, "a rank's memory can't be mapped");
        w->at[k] = at;
    }
    w->memory = c->team->memory[c->rank];
    if (SETTING("NCCL_STUB_ASTRAY") == c->rank) {
        uint64_t first = w->at[0];
        w->at[0] = w->at[c->ranks - 1];
        w->at[c->ranks - 1] = first;
    }
    pthread_mutex_lock(&lock);
    allocation_at(w->memory)->windows++;
    w->next = c->windows;
    c->windows = w;
    pthread_mutex_unlock(&lock);
    return w;
}

/* An error on one rank is an error on all. */
static nccl_result together(struct ncclComm *c, void *memory, size_t size,
                            struct ncclWindow_vidmem **out)
{
    struct nccl_stub_team *t = c->team;
    t->memory[c->rank] = memory;
    t->size[c->rank] = size;
    nccl_result r = join(c);
    for (int k = 0; k < c->ranks && r == HL_ncclSuccess; k++)
        r = t->size[k] != size ? INVALID : HL_ncclSuccess;
    if (r != HL_ncclSuccess)
        return r;
    *out = map_all(c);
    return join(c);
}

nccl_result ncclCommWindowRegister(struct ncclComm *c, void *memory, size_t size,
                                   struct ncclWindow_vidmem **out, int flags)
{
    static const char *const names[] = {"ncclCommWindowRegister:0", "ncclCommWindowRegister:1"};
    never(c->aborted, "a communicator that was aborted is used");
    *out = NULL;
    nccl_result ordered = nccl_stub_note(names[c->rank % 2], 0, flags, 0);
    if (memory == NULL || size == 0 || !ALIGNED(memory) || (flags & ~1) != 0)
        return INVALID;
    if (SETTING("NCCL_WIN_ENABLE") == 0 || c->team == NULL)
        return HL_ncclSuccess;
    pthread_mutex_lock(&lock);
    struct allocation *a = allocation_at(memory);
    int fits = a != NULL && size <= (a->size + 4095) / 4096 * 4096;
    pthread_mutex_unlock(&lock);
    if (!fits)
        return INVALID;
    if (SETTING("NCCL_STUB_ABSENT") == c->rank)
        return 1;
    pthread_mutex_lock(&c->team->lock);
    nccl_result r = together(c, memory, size, out);
    pthread_mutex_unlock(&c->team->lock);
    if (ordered != HL_ncclSuccess && *out != NULL) {
        (void)ncclCommWindowDeregister(c, *out);
        *out = NULL;
        r = ordered;
    }
    return r == HL_ncclSuccess && SETTING("NCCL_STUB_LATE") == c->rank ? HL_ncclInProgress : r;
}

nccl_result ncclCommGetAsyncError(struct ncclComm *c, nccl_result *out)
{
    static int asked; /* one rank is late */
    (void)c;
    *out = asked++ < 2 ? HL_ncclInProgress : HL_ncclSuccess;
    return HL_ncclSuccess;
}

static void drop(struct ncclWindow_vidmem *w)
{
    for (int k = 0; k < NCCL_STUB_RANKS; k++)
        if (w->at[k] != 0)
            (void)cuMemFree_v2(w->at[k]);
    allocation_at(w->memory)->windows--;
    free(w);
}

API int nccl_stub_holds_windows;

nccl_result ncclCommWindowDeregister(struct ncclComm *c, struct ncclWindow_vidmem *window)
{
    while (__atomic_load_n(&nccl_stub_holds_windows, __ATOMIC_ACQUIRE))
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    never(c == NULL || c->aborted, "a communicator that was aborted is used");
    if (window == NULL)
        return HL_ncclSuccess;
    (void)nccl_stub_note("ncclCommWindowDeregister", 0, 0, 0);
    pthread_mutex_lock(&lock);
    struct ncclWindow_vidmem **at = &c->windows;
    while (*at != NULL && *at != window)
        at = &(*at)->next;
    int found = *at != NULL;
    if (found) {
        *at = window->next;
        drop(window);
    }
    pthread_mutex_unlock(&lock);
    return found ? HL_ncclSuccess : INVALID;
}

/* An abort ends the waits and removes the windows. */
void nccl_stub_drop_windows(struct ncclComm *c)
{
    if (c->team == NULL)
        return;
    pthread_mutex_lock(&c->team->lock);
    c->team->aborted = 1;
    pthread_cond_broadcast(&c->team->turn);
    pthread_mutex_unlock(&c->team->lock);
    pthread_mutex_lock(&lock);
    while (c->windows != NULL) {
        struct ncclWindow_vidmem *w = c->windows;
        c->windows = w->next;
        drop(w);
    }
    pthread_mutex_unlock(&lock);
}

#if NCCL_STUB_VERSION >= 22902
nccl_result ncclGetPeerDevicePointer(struct ncclWindow_vidmem *w, size_t offset, int peer,
                                     void **out)
{
    if (w == NULL || peer < 0 || peer >= NCCL_STUB_RANKS)
        return INVALID;
    *out = ncclGetPeerPointer(w, offset, peer);
    return HL_ncclSuccess;
}
#endif
