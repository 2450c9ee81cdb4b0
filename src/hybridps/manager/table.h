/* hybridps/manager/table.h - the node's table of devices and processes, in POSIX shared memory.
 *
 * A process writes only its own row of a device, and its tickets; `used` and `reserved` are their
 * sums, kept beside them. So a process that dies in the middle leaves nothing that can't be summed
 * again, and what it had is given back with its row.
 *
 * Locks: flock of the file (coming and going), then `registry` (rows), then a device's. One device
 * at a time.
 *
 * Owns:    a table its mapping, its descriptor and its row.
 * Threads: any.
 * Errors:  HL_ETIMEDOUT names the process that holds the lock; HL_EPROTO another layout;
 *          HL_ECONFLICT other capacities than the ones the others gave; HL_EPERM after fork();
 *          HL_EUNAVAIL where the file was cut short: close the table and open another. Only
 *          processes with os/map_guard live to see it.
 * Units:   bytes; times are CLOCK_MONOTONIC, which all processes of a host share.
 * Limits:  below; the processes share one PID namespace (else their deaths can't be seen).
 */
#ifndef HL_HYBRIDPS_MANAGER_TABLE_H
#define HL_HYBRIDPS_MANAGER_TABLE_H

#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/status.h"
#include "os/process.h"

#define HL_MANAGER_UNLIMITED (UINT64_C(1) << 60) /* a capacity of so much is none */
#define HL_MANAGER_DEVICES   33                  /* the host and 32 others */
#define HL_MANAGER_PROCESSES 256
#define HL_MANAGER_TICKETS   256 /* of a device */

struct hl_manager_ticket {
    uint64_t id; /* 0 = free */
    uint64_t size;
    uint32_t row;
};

struct hl_manager_device {
    pthread_mutex_t lock;
    uint32_t holder; /* row of who took the lock last, for messages */
    uint64_t capacity;
    uint64_t used, reserved;
    uint64_t made; /* tickets */
    uint64_t rows[HL_MANAGER_PROCESSES];
    struct hl_manager_ticket tickets[HL_MANAGER_TICKETS];
};

struct hl_manager_shared {
    uint64_t magic; /* written last */
    uint32_t version;
    uint32_t devices;
    uint64_t size;
    uint64_t pid_namespace;
    uint64_t reaped_ns; /* when somebody looked for the dead */
    pthread_mutex_t registry;
    uint32_t holder;
    struct hl_process processes[HL_MANAGER_PROCESSES];   /* pid 0 = free */
    struct hl_manager_device device[HL_MANAGER_DEVICES]; /* 0 is the host */
};

struct hl_manager_options {
    const char *name;
    const uint64_t *capacity; /* of `devices` devices; NULL: only join an existing table */
    uint32_t devices;
    int lock_ms, reap_ms;
};

struct hl_manager_table {
    struct hl_manager_shared *s;
    int fd, guard; /* of the mapping */
    pid_t pid;     /* who opened it */
    uint32_t row;
    int lock_ms, reap_ms;
    char path[256]; /* of shm_open */
};

/* What the table says, within its bounds: any rank of the same user can write there. */
static inline uint32_t hl_manager_devices(const struct hl_manager_table *t)
{
    uint32_t n = t->s->devices;
    return n < HL_MANAGER_DEVICES ? n : HL_MANAGER_DEVICES;
}

/* Joins the table, or makes it where there is none, or where all who used it have died. */
hl_status hl_manager_table_open(const struct hl_manager_options *o,
                                struct hl_manager_table *out) HL_CHECK;
/* Gives back what this process had; the last one takes the table away, and so does
 * who finds it cut short. After fork() it only unmaps. */
void hl_manager_table_close(struct hl_manager_table *t);

/* The sums are right when this returns HL_OK, also after somebody died holding the lock. */
hl_status hl_manager_lock(struct hl_manager_table *t, uint32_t device) HL_CHECK;
void hl_manager_unlock(struct hl_manager_table *t, uint32_t device);

/* Of a mapped table: HL_EPROTO, HL_EUNSUPPORTED. */
hl_status hl_manager_check_layout(const struct hl_manager_table *t) HL_CHECK;
/* Its file has all of it: HL_EUNAVAIL. */
hl_status hl_manager_check_whole(const struct hl_manager_table *t) HL_CHECK;

/* Gives back what dead processes had; *freed bytes, in use and reserved. */
hl_status hl_manager_reap(struct hl_manager_table *t, uint64_t *freed) HL_CHECK;
/* The same, where nobody has looked for reap_ms. */
hl_status hl_manager_reap_by_age(struct hl_manager_table *t) HL_CHECK;

/* ---- from outside: no lock is taken and nothing is written to a table of the living ---- */

struct hl_manager_use {
    pid_t pid;
    uint64_t bytes;
};

/* Every process but this one, and what it has in use on a device (0 is the host), at most `max` of
 * them; how many. Each number is right by itself, not at one moment with the others. */
size_t hl_manager_usage(const struct hl_manager_table *t, uint32_t device,
                        struct hl_manager_use *out, size_t max);
/* Takes away the tables whose names begin and end so, whose processes have all ended, and in which
 * no process has looked for dead ones for idle_ms; how many they were. What can't be looked into
 * stays where it is. Only tables of this user, this layout and this PID namespace. */
size_t hl_manager_sweep(const char *begin, const char *end, int idle_ms);

#endif
