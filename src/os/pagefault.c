/* One handler of SIGSEGV, and the list of servers that it asks.
 *
 *     fault --> on_fault --ours--> fault_serve: each server, under `lock`
 *                  |                  |--one has served it--> return: the access is tried again
 *                  |                  '--none, or SAME_MAX in a row--.
 *                  '--not ours--------------------------------------> fault_pass_on: `before`
 *
 * A fault is ours if the kernel caused it, if this process added the servers and is not a fork of
 * it, and if this thread has not suspended them. Every function that takes `lock` suspends first,
 * also the handler itself: so no thread can fault, come back here and wait for a lock that it
 * holds. A fault in a server is passed on, and ends the process where it is seen best.
 *
 * The handler may lock, which handlers of other signals may not: it runs at an access of this very
 * thread, and not at any moment. What it keeps about a thread is thread-local:
 *
 *     suspended   how many suspends are not resumed yet; 0 = faults are served
 *     passing     depth of handlers of `before` that this thread is in
 *     same        faults in a row at last_address */
#include "os/pagefault.h"

#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/types.h>
#include <ucontext.h>
#include <unistd.h>

#include "os/file.h"

#define SAME_MAX 100000 /* faults in a row at one address: serving it does not help */

struct hl_pagefault {
    hl_pagefault_serve serve;
    void *arg;
    struct hl_pagefault *next;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* all below */
static struct hl_pagefault *servers;
static struct sigaction before;
static bool forgets; /* servers in a forked child */
static pid_t owner;

static _Thread_local unsigned suspended, passing;
static _Thread_local void *last_address;
static _Thread_local unsigned same;

void hl_pagefault_suspend(void)
{
    suspended++;
}

void hl_pagefault_resume(void)
{
    suspended--;
}

/* Bit 1 of x86's error code says that the access was a write. Others do not tell. */
static struct hl_pagefault_access access_of(const siginfo_t *info, const void *context)
{
    struct hl_pagefault_access a = {.address = info->si_addr};
#if defined(__x86_64__)
    const ucontext_t *c = context;
    a.write = (c->uc_mcontext.gregs[REG_ERR] & 2) != 0;
    a.write_known = true;
#else
    (void)context;
#endif
    return a;
}

/* A server that says it has served while the access goes on failing would loop for ever, without a
 * word: after SAME_MAX the fault is passed on, as one that no server takes. */
static bool fault_serve(const struct hl_pagefault_access *a)
{
    bool served = false;
    same = a->address == last_address ? same + 1 : 0;
    last_address = a->address;
    if (same >= SAME_MAX)
        return false;
    suspended++;
    pthread_mutex_lock(&lock);
    for (struct hl_pagefault *f = servers; f != NULL && !served; f = f->next)
        served = f->serve(f->arg, a);
    pthread_mutex_unlock(&lock);
    suspended--;
    return served;
}

/* As if this handler were not there. Handlers that were set later may have this one before them. */
static void fault_pass_on(int number, siginfo_t *info, void *context)
{
    bool asked = (before.sa_flags & SA_SIGINFO) != 0;
    bool none = !asked && (before.sa_handler == SIG_DFL || before.sa_handler == SIG_IGN);
    if (none || passing > 0) {
        signal(number, SIG_DFL); /* the access is tried again, and ends the process */
        if (info->si_code <= 0)
            raise(number); /* it was sent, not caused */
        return;
    }
    passing++;
    if (asked)
        before.sa_sigaction(number, info, context);
    else
        before.sa_handler(number);
    passing--;
}

/* The code that was interrupted may be about to read errno. */
static void on_fault(int number, siginfo_t *info, void *context)
{
    int err = errno;
    const struct hl_pagefault_access a = access_of(info, context);
    bool ours = info->si_code > 0 && suspended == 0 && getpid() == owner;
    if (!ours || !fault_serve(&a))
        fault_pass_on(number, info, context);
    errno = err;
}

/* libucs has a sigaction of its own that ignores handlers of SIGSEGV, and may be found before the C
 * library's. */
static int handler_set(const struct sigaction *act, struct sigaction *old)
{
    int (*set)(int, const struct sigaction *, struct sigaction *) = sigaction;
    void *libc = dlopen("libc.so.6", RTLD_LAZY | RTLD_NOLOAD);
    void *symbol = libc != NULL ? dlsym(libc, "sigaction") : NULL;
    if (symbol != NULL)
        *(void **)&set = symbol;
    int rc = set(SIGSEGV, act, old);
    if (libc != NULL)
        dlclose(libc);
    return rc;
}

/* The lock may have been another thread's, and the parent's memory is no business of the child. */
static void forget_servers(void)
{
    pthread_mutex_init(&lock, NULL);
    servers = NULL;
}

/* Asked of what the kernel has now: another library may have set its own handler since. */
static bool is_ours(const struct sigaction *act)
{
    return (act->sa_flags & SA_SIGINFO) != 0 && act->sa_sigaction == on_fault;
}

/* Once, and again where another handler has taken its place. Caller holds the lock. */
static hl_status handler_install(void)
{
    struct sigaction act = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO}, now;
    sigemptyset(&act.sa_mask);
    if (handler_set(NULL, &now) != 0)
        return hl_fail(hl_status_of_errno(errno), "look at the handler of SIGSEGV: %m");
    if (is_ours(&now))
        return HL_OK;
    before = now;
    if (handler_set(&act, NULL) != 0 || handler_set(NULL, &now) != 0)
        return hl_fail(hl_status_of_errno(errno), "handle SIGSEGV: %m");
    if (!is_ours(&now))
        return hl_fail(HL_EUNSUPPORTED, "a library of this process refuses handlers of SIGSEGV");
    if (!forgets)
        forgets = pthread_atfork(NULL, NULL, forget_servers) == 0;
    return HL_OK;
}

hl_status hl_pagefault_add(hl_pagefault_serve serve, void *arg, struct hl_pagefault **out)
{
    struct hl_pagefault *f = calloc(1, sizeof(*f));
    if (f == NULL)
        return hl_fail(HL_ENOMEM, "out of memory for a fault server");
    *f = (struct hl_pagefault){.serve = serve, .arg = arg};
    hl_pagefault_suspend();
    pthread_mutex_lock(&lock);
    hl_status st = handler_install();
    if (st == HL_OK) {
        owner = getpid();
        f->next = servers;
        servers = f;
    }
    pthread_mutex_unlock(&lock);
    hl_pagefault_resume();
    if (st != HL_OK) {
        free(f);
        return st;
    }
    *out = f;
    return HL_OK;
}

void hl_pagefault_remove(struct hl_pagefault *fault)
{
    if (fault == NULL)
        return;
    hl_pagefault_suspend();
    pthread_mutex_lock(&lock);
    for (struct hl_pagefault **at = &servers; *at != NULL; at = &(*at)->next) {
        if (*at == fault) {
            *at = fault->next;
            break;
        }
    }
    pthread_mutex_unlock(&lock);
    hl_pagefault_resume();
    free(fault);
}
