/* hybridps/manager/table.h - the node's table of devices and processes, in POSIX shared memory.
 *
 * A process writes only its own row of a device and its tickets; `used` and `reserved` are the sums
 * of these, stored next to them. So if a process dies in the middle of a change the sums can be
 * recomputed, and its memory is given back with its row.
 *
 * Locks: flock of the file (joining and leaving), then `registry` (rows), then a device's lock. One
 * device at a time.
 *
 * Owns:    a table owns its mapping, its descriptor and its row.
 * Threads: any.
 * Errors:  HL_ETIMEDOUT names the process that holds the lock; HL_EPROTO another layout;
 *          HL_ECONFLICT capacities that differ from those of the others; HL_EPERM after fork();
 *          HL_EUNAVAIL the file was truncated: close the table and open another. Only processes
 *          with os/map_guard survive to see this.
 * Units:   bytes; times are CLOCK_MONOTONIC, which all processes of a host share.
 * Limits:  see below; the processes must share one PID namespace, otherwise their deaths can't be
 *          detected.
 */
#ifndef HL_HYBRIDPS_MANAGER_TABLE_H
#define HL_HYBRIDPS_MANAGER_TABLE_H

#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/status.h"
#include "os/process.h"

#define HL_MANAGER_UNLIMITED (UINT64_C(1) << 60) /* this capacity means no limit */
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
    uint32_t holder; /* row of the process that took the lock last, for messages */
    uint64_t capacity;
    uint64_t used, reserved;
    uint64_t asked; /* hl_manager_ask; 0 = nothing is asked. Without the lock */
    uint64_t made;  /* tickets */
    uint64_t rows[HL_MANAGER_PROCESSES];
    struct hl_manager_ticket tickets[HL_MANAGER_TICKETS];
};

struct hl_manager_shared {
    uint64_t magic; /* written last */
    uint32_t version;
    uint32_t devices;
    uint64_t size;
    uint64_t pid_namespace;
    uint64_t reaped_ns; /* time of the last search for dead processes */
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
    pid_t pid;     /* the process that opened it */
    uint32_t row;
    int lock_ms, reap_ms;
    char path[256]; /* of shm_open */
};

/* The table's number of devices, clamped, because any rank of the same user can write to the
 * table. */
static inline uint32_t hl_manager_devices(const struct hl_manager_table *t)
{
    uint32_t n = t->s->devices;
    return n < HL_MANAGER_DEVICES ? n : HL_MANAGER_DEVICES;
}

/* Joins the table, or creates it if there is none or all its users have died. */
hl_status hl_manager_table_open(const struct hl_manager_options *o,
                                struct hl_manager_table *out) HL_CHECK;
/* Releases what this process had. The last process removes the table, and so does one that finds it
 * truncated. After fork() it only unmaps. */
void hl_manager_table_close(struct hl_manager_table *t);

/* Takes the lock of a device. On HL_OK the sums are correct, even if a process died holding the
 * lock. */
hl_status hl_manager_lock(struct hl_manager_table *t, uint32_t device) HL_CHECK;
void hl_manager_unlock(struct hl_manager_table *t, uint32_t device);

/* Checks the layout of a mapped table: HL_EPROTO, HL_EUNSUPPORTED. */
hl_status hl_manager_check_layout(const struct hl_manager_table *t) HL_CHECK;
/* Checks that the file is not truncated: HL_EUNAVAIL. */
hl_status hl_manager_check_whole(const struct hl_manager_table *t) HL_CHECK;

/* Releases what dead processes had; *freed = bytes, in use and reserved. */
hl_status hl_manager_reap(struct hl_manager_table *t, uint64_t *freed) HL_CHECK;
/* The same, unless it was done within reap_ms. */
hl_status hl_manager_reap_by_age(struct hl_manager_table *t) HL_CHECK;

/* ---- from outside: takes no lock and writes nothing to a table with living users ---- */

struct hybridps_manager;

struct hl_manager_use {
    pid_t pid;
    uint64_t bytes;
};

/* Asks the processes to use at most `bytes` of a device together; 0: they are no longer asked. A
 * request, not a limit: what is in use stays. The last request counts, until its table is gone. */
void hl_manager_ask(struct hl_manager_table *t, uint32_t device, uint64_t bytes);
/* What this process is asked to give back now: its part of what all use beyond the request. */
uint64_t hl_manager_excess(const struct hl_manager_table *t, uint32_t device);
/* What this process is asked to use at most now: its part of the request, or what it has and what
 * all leave free of the request. UINT64_MAX: nothing is asked. */
uint64_t hl_manager_part(const struct hl_manager_table *t, uint32_t device);
/* manager.c: the table that a manager has joined. */
const struct hl_manager_table *hl_manager_joined(const struct hybridps_manager *m);
/* Lists at most `max` processes other than this one, with what each uses on a device (0 is the
 * host); returns how many. Each number is correct by itself, but the numbers are not a consistent
 * snapshot. */
size_t hl_manager_usage(const struct hl_manager_table *t, uint32_t device,
                        struct hl_manager_use *out, size_t max);
/* Removes tables whose names begin and end as given, whose processes have all ended, and in which
 * no process has searched for dead ones for idle_ms; returns how many. Tables that can't be read
 * are left alone. Only tables of this user, this layout and this PID namespace. */
size_t hl_manager_sweep(const char *begin, const char *end, int idle_ms);

#endif
