/* os/pagefault.h - memory whose page faults the process handles itself.
 *
 * A module that removes memory from its addresses can restore it when it is touched: its server is
 * called on the thread that faulted, and then the access is retried. All other faults go to the
 * previous SIGSEGV handler, or end the process as usual.
 *
 * Owns:    the process's SIGSEGV handler, from the first hl_pagefault_add on.
 * Threads: any. One fault is served at a time. A server may lock and allocate: the thread was at an
 *          access to such memory, not inside of malloc. It must not wait for a thread that waits
 *          for a fault to be served.
 * Errors:  HL_EUNSUPPORTED if the handler can't be installed.
 * Units:   none.
 * Limits:  after fork() the child's faults are served by those that follow forks. A system call
 *          that is given such memory fails with EFAULT instead. A thread that has SIGSEGV blocked
 *          is ended by the kernel.
 */
#ifndef HL_OS_PAGEFAULT_H
#define HL_OS_PAGEFAULT_H

#include <stdbool.h>

#include "base/status.h"

struct hl_pagefault_access {
    void *address;
    bool write;       /* certain only if */
    bool write_known; /* the processor says so; else the second fault at a place is a write */
};

/* True: served, so the access is retried. False: the address is not this server's. */
typedef bool (*hl_pagefault_serve)(void *arg, const struct hl_pagefault_access *access);

/* Called around each fork() of the process, on the forking thread; faults and other servers
 * wait. */
enum hl_pagefault_fork { HL_FORK_BEFORE, HL_FORK_PARENT, HL_FORK_CHILD };

typedef void (*hl_pagefault_forked)(void *arg, enum hl_pagefault_fork when);

struct hl_pagefault;

/* forked: NULL = the server does not exist in a forked child. */
hl_status hl_pagefault_add(hl_pagefault_serve serve, hl_pagefault_forked forked, void *arg,
                           struct hl_pagefault **out) HL_CHECK;
/* Waits for a fault that is being served. NULL is fine. */
void hl_pagefault_remove(struct hl_pagefault *fault);

/* Between these, faults of the calling thread are not served: it holds a lock that a server takes.
 * They nest. */
void hl_pagefault_suspend(void);
void hl_pagefault_resume(void);

#endif
