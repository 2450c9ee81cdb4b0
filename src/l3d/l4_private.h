/* The archive side of the daemon, shared by l4*.c. */
#ifndef HL_L3D_L4_PRIVATE_H
#define HL_L3D_L4_PRIVATE_H

#include <pthread.h>

#include "l3d/l3d_private.h"
#include "l3d/l4.h"
#include "l3d/workers.h"

struct task;
struct hl_timer;

struct l4 {
    struct hl_archive *archive; /* NULL = none */
    struct l4_opts opts;
    char *url;
    struct workers *loads, *stores;
    struct task *tasks; /* by kind and id */
    struct hl_timer *clock;
    atomic_uint filling;       /* loads that have room: soon they can be given up again */
    pthread_mutex_t room_lock; /* one eviction at a time, so that each sees what rests already */
};

#endif
