/* hybridps/client/client_private.h - what the parts of the client share.
 *
 * Threads: any; every call holds the client's `lock`.
 */
#ifndef HL_HYBRIDPS_CLIENT_CLIENT_PRIVATE_H
#define HL_HYBRIDPS_CLIENT_CLIENT_PRIVATE_H

#include <pthread.h>
#include <stdbool.h>
#include <sys/types.h>

#include "helios/hybridps.h"
#include "hybridps/chunks/pool.h"
#include "hybridps/client/record.h"
#include "hybridps/client/tensors.h"

/* Callbacks through which a forked child reports what it can't read; see hybridps_on_unreadable. */
struct client_told {
    int (*later)(int (*tell)(void *), void *arg); /* NULL = a warning */
    int (*tell)(void *arg);
    void *arg;
    char *text;
    size_t size;
};

struct hybridps {
    pthread_mutex_t lock; /* all below */
    pid_t pid;
    bool copy;
    int prefetch;
    uint64_t chunk_bytes; /* 0 = the layout chooses */
    uint64_t host_limit;  /* 0 = none */
    struct hl_chunk_pool *pool;
    hybridps_manager *manager; /* NULL = none */
    int device;                /* the device's number in the manager */
    struct hl_tensors tensors;
    struct hl_record record;
    struct hl_next_use *order; /* of the recorded iteration; NULL = none */

    char stage[64], op[192];
    uint64_t other, moments, iterations;
    bool ending;   /* hybridps_keep was called */
    bool forking;  /* a fork is in progress */
    bool begun;    /* a moment has begun in this iteration */
    bool released; /* a release came after the last access */
    hybridps_traffic at_start, last;
    struct hl_trace_use *uses; /* of a call */
    size_t uses_cap;

    struct hl_pagefault *faults; /* NULL = not served */
    uint32_t lost;               /* 1 + a tensor that was accessed without content; 0 = none */

    struct client_told told;
};

/* Begins every call: fails with HL_EINVAL, or HL_EPERM after a fork; otherwise takes the lock until
 * client_leave, which returns st. */
hl_status client_enter(hybridps *h) HL_CHECK;
/* The same, but allowed after hybridps_keep. */
hl_status client_enter_ending(hybridps *h) HL_CHECK;
int client_leave(hybridps *h, hl_status st);

/* Adds device and moment to the text of a failed call. If room was short or a chunk in use, also
 * adds which tensors pin what, and what would fit. */
hl_status client_explain(const struct hybridps *h, hl_status st, const hybridps_use *uses,
                         size_t n);

#endif
