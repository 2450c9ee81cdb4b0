/* One SIGSEGV handler, and the list of servers that it calls.
 *
 *     fault --> on_fault --ours--> fault_serve: each server, under `lock`
 *                  |                  |--one has served it--> return: the access is tried again
 *                  |                  '--none, or SAME_MAX in a row--.
 *                  '--not ours--------------------------------------> fault_pass_on: `before`
 *
 * A fault is ours if the kernel caused it and this thread has not suspended the servers. A forked
 * child keeps the servers that want to know of forks; `lock` is held during the fork. Every
 * function that takes `lock` suspends the servers first, and so does the handler: no thread can
 * fault, enter the handler again and wait for a lock that it holds. A fault in a server is passed
 * on and ends the process at the place of the fault.
 *
 * Handlers of other signals may not lock, but this one may: it runs at an access of this very
 * thread, not at any moment. Its state of a thread is thread-local:
 *
 *     suspended   suspends that are not resumed yet; 0 = faults are served
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

#define SAME_MAX 100000 /* faults in a row at one address: serving them does not help */

struct hl_pagefault {
    hl_pagefault_serve serve;
    hl_pagefault_forked forked; /* NULL = no service in a forked child */
    void *arg;
    struct hl_pagefault *next;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* guards everything below */
static struct hl_pagefault *servers;
static struct sigaction before;
static bool follows; /* fork handlers are installed */

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

/* Bit 1 of x86's error code marks a write. Other architectures don't say. */
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

/* A server may report success while the access keeps failing, which would loop silently for ever.
 * After SAME_MAX faults in a row the fault is passed on, as if no server had taken it. */
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

/* Acts as if this handler did not exist. Handlers that were installed later may call this one. */
static void fault_pass_on(int number, siginfo_t *info, void *context)
{
    bool asked = (before.sa_flags & SA_SIGINFO) != 0;
    bool none = !asked && (before.sa_handler == SIG_DFL || before.sa_handler == SIG_IGN);
    if (none || passing > 0) {
        signal(number, SIG_DFL); /* the access is repeated, and ends the process */
        if (info->si_code <= 0)
            raise(number); /* the signal was sent, not caused by an access */
        return;
    }
    passing++;
    if (asked)
        before.sa_sigaction(number, info, context);
    else
        before.sa_handler(number);
    passing--;
}

/* Saves errno, which the interrupted code may be about to read. */
static void on_fault(int number, siginfo_t *info, void *context)
{
    int err = errno;
    const struct hl_pagefault_access a = access_of(info, context);
    bool ours = info->si_code > 0 && suspended == 0;
    if (!ours || !fault_serve(&a))
        fault_pass_on(number, info, context);
    errno = err;
}

/* libucs has its own sigaction, which ignores SIGSEGV handlers and may be found before the C
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

static void tell_servers(enum hl_pagefault_fork when)
{
    for (struct hl_pagefault *f = servers; f != NULL; f = f->next)
        if (f->forked != NULL)
            f->forked(f->arg, when);
}

static void before_fork(void)
{
    hl_pagefault_suspend();
    pthread_mutex_lock(&lock);
    tell_servers(HL_FORK_BEFORE);
}

static void after_fork(void)
{
    tell_servers(HL_FORK_PARENT);
    pthread_mutex_unlock(&lock);
    hl_pagefault_resume();
}

/* Removes the servers that don't know of forks from the child. */
static void in_child(void)
{
    for (struct hl_pagefault **at = &servers; *at != NULL;) {
        if ((*at)->forked != NULL)
            at = &(*at)->next;
        else
            *at = (*at)->next;
    }
    tell_servers(HL_FORK_CHILD);
    pthread_mutex_unlock(&lock);
    hl_pagefault_resume();
}

/* Compares with the kernel's current handler: another library may have installed its own since. */
static bool is_ours(const struct sigaction *act)
{
    return (act->sa_flags & SA_SIGINFO) != 0 && act->sa_sigaction == on_fault;
}

/* Installs the handler once, and again if another one has replaced it. With the lock held. */
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
    if (!follows)
        follows = pthread_atfork(before_fork, after_fork, in_child) == 0;
    return HL_OK;
}

hl_status hl_pagefault_add(hl_pagefault_serve serve, hl_pagefault_forked forked, void *arg,
                           struct hl_pagefault **out)
{
    struct hl_pagefault *f = calloc(1, sizeof(*f));
    if (f == NULL)
        return hl_fail(HL_ENOMEM, "out of memory for a fault server");
    *f = (struct hl_pagefault){.serve = serve, .forked = forked, .arg = arg};
    hl_pagefault_suspend();
    pthread_mutex_lock(&lock);
    hl_status st = handler_install();
    if (st == HL_OK) {
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
