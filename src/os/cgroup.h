/* os/cgroup.h - a control group for one container: CPU binding, memory limit, and killing
 * everything in it.
 *
 * It uses what the system has: cgroup v2, v1, both (hybrid) or none; mounts are read from
 * /proc/self/mountinfo. A v1 group is created below the caller's own, so that limits above it stay
 * in effect. A v2 group is created below the caller's own if that is delegated, as in a systemd
 * scope (hw/process/systemd_scope.h), else at the top. At the top it does not bind CPUs if systemd
 * manages the machine, because systemd would remove the binding.
 *
 * Owns:    up to HL_CGROUP_DIRS directories, one per hierarchy, until hl_cgroup_remove kills what
 *          is inside and removes them. The struct itself needs no end.
 * Threads: one at a time.
 * Errors:  a missing feature is not an error: hl_cgroup_create creates what it can, and `means`
 *          says what that is. HL_ETIMEDOUT if the processes inside do not end.
 * Units:   bytes, milliseconds.
 * Limits:  names of 200 bytes.
 */
#ifndef HL_OS_CGROUP_H
#define HL_OS_CGROUP_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/buf.h"
#include "os/process.h"

#define HL_CGROUP_DIRS 4
#define HL_CGROUP_PATH 512

enum hl_cgroup_means {
    HL_CGROUP_CPUSET = 1 << 0, /* binds CPUs and memory nodes */
    HL_CGROUP_MEMORY = 1 << 1, /* limits memory and counts kills */
    HL_CGROUP_KILL = 1 << 2,   /* one write kills all processes */
    HL_CGROUP_FREEZER = 1 << 3,
    HL_CGROUP_V2 = 1 << 4,
};

struct hl_cgroup {
    struct {
        char path[HL_CGROUP_PATH];
        unsigned means; /* enum hl_cgroup_means of this directory */
    } dirs[HL_CGROUP_DIRS];

    size_t count;
};

/* Where groups can be made; parsed from the texts of /proc/self/mountinfo and /proc/self/cgroup. */
struct hl_cgroup_layout {
    char v2[HL_CGROUP_PATH];      /* directory of the caller's own group; "" = not mounted */
    char v2_top[HL_CGROUP_PATH];  /* the mount itself */
    char cpuset[HL_CGROUP_PATH];  /* v1 */
    char memory[HL_CGROUP_PATH];  /* v1 */
    char freezer[HL_CGROUP_PATH]; /* v1 */
    char cpu[HL_CGROUP_PATH];     /* v1 */
};

void hl_cgroup_layout(const char *mountinfo, const char *cgroup, struct hl_cgroup_layout *out);

struct hl_cgroup_spec {
    const char *name;             /* of the directories */
    const struct hl_cpuset *cpus; /* NULL = no binding wanted */
    const struct hl_cpuset *mems;
    uint64_t memory_bytes; /* 0 = no limit */
    /* only below the caller's own group, because another manager kills everything in that */
    bool inside;
    bool delegated; /* the caller's v2 group is its own; it moves itself into a subgroup */
};

/* Bitwise or of enum hl_cgroup_means over all directories. */
unsigned hl_cgroup_means(const struct hl_cgroup *cg);
void hl_cgroup_create(const struct hl_cgroup_spec *spec, struct hl_cgroup *out);
/* Opens cgroup.procs of every directory for hl_spawn.join; returns how many. */
size_t hl_cgroup_join_open(const struct hl_cgroup *cg, int fds[HL_CGROUP_DIRS]);
/* Sends SIGKILL to everything inside. */
void hl_cgroup_kill(const struct hl_cgroup *cg);
/* Number of processes inside that the kernel's OOM killer has killed; 0 without
 * HL_CGROUP_MEMORY. */
uint64_t hl_cgroup_oom_kills(const struct hl_cgroup *cg);
/* Kills everything, waits until empty, and removes the group. Directories that are already gone are
 * fine. */
hl_status hl_cgroup_remove(struct hl_cgroup *cg, int timeout_ms) HL_CHECK;

/* Finds the directories of that name that process `maker` created, if there is no record of them.
 * Empty if there are none, or the process is gone. */
void hl_cgroup_find(pid_t maker, const char *name, struct hl_cgroup *out);
/* A record of the directories, so that another process can remove them ("MEANS PATH" lines). */
hl_status hl_cgroup_record(const struct hl_cgroup *cg, struct hl_buf *out) HL_CHECK;
void hl_cgroup_recall(const char *text, struct hl_cgroup *out);

#endif
