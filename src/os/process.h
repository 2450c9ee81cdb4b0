/* os/process.h - starts and identifies processes, and handles the sets of CPUs that they may use.
 *
 * Owns:    nothing; descriptors handed out belong to the caller and are close-on-exec.
 * Threads: any. With `die_with_parent` the child dies with the *thread* that called
 *          hl_process_spawn.
 * Errors:  HL_ENOENT (no such process or program), HL_EPERM, HL_EINVAL, HL_EIO; a failed exec is
 *          reported by hl_process_spawn itself ("exec /no/such: No such file or directory").
 * Units:   start times are clock ticks since boot, as in /proc/PID/stat.
 * Limits:  CPUs and memory nodes 0..HL_CPUSET_MAX-1.
 */
#ifndef HL_OS_PROCESS_H
#define HL_OS_PROCESS_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/status.h"

#define HL_CPUSET_MAX      4096
#define HL_CPUSET_TEXT_MAX 1024

/* A set of CPUs or of memory nodes. */
struct hl_cpuset {
    uint64_t bits[HL_CPUSET_MAX / 64];
};

/* "0-3,8"; spaces and a trailing newline are allowed, "" is the empty set. */
hl_status hl_cpuset_parse(const char *text, struct hl_cpuset *out) HL_CHECK;
/* Shortest list of ranges; truncated with ",..." if it does not fit. */
void hl_cpuset_format(const struct hl_cpuset *set, char *text, size_t size);
unsigned hl_cpuset_count(const struct hl_cpuset *set);
bool hl_cpuset_equal(const struct hl_cpuset *a, const struct hl_cpuset *b);
bool hl_cpuset_has(const struct hl_cpuset *set, unsigned cpu);
void hl_cpuset_add(struct hl_cpuset *set, unsigned cpu);
void hl_cpuset_and(const struct hl_cpuset *a, const struct hl_cpuset *b, struct hl_cpuset *out);
/* Memory nodes that have one of `cpus`; all allowed nodes when the system does not say. */
void hl_cpuset_mems(const struct hl_cpuset *cpus, struct hl_cpuset *mems);
/* What /proc/PID/status says a process may use; either may be NULL. */
hl_status hl_process_allowed(pid_t pid, struct hl_cpuset *cpus, struct hl_cpuset *mems) HL_CHECK;

/* Identifies a process for ever: a pid is reused, but a pid with its start time is not. */
struct hl_process {
    pid_t pid;
    uint64_t start;
};

hl_status hl_process_identify(pid_t pid, struct hl_process *out) HL_CHECK;
/* Descriptor of exactly that process: HL_ENOENT when it has ended. Readable when it ends. */
hl_status hl_process_open(struct hl_process p, int *pidfd) HL_CHECK;
/* True if it has certainly ended; a zombie counts as ended. */
bool hl_process_ended(struct hl_process p);
/* A signal has stopped it (SIGSTOP, Ctrl-Z): until SIGCONT it does not respond, and only SIGKILL
 * ends it. A process held by a debugger does not count. */
bool hl_process_stopped(struct hl_process p);
/* Processes with the same value can see each other's deaths. */
uint64_t hl_pid_namespace(void);
/* HL_ENOENT when it has ended. */
hl_status hl_process_signal(int pidfd, int signum) HL_CHECK;
/* True when it ended within timeout_ms, else false. */
bool hl_process_wait(int pidfd, int timeout_ms);
/* Children of a process (all its threads); returns how many, at most max are stored. */
size_t hl_process_children(pid_t pid, pid_t *out, size_t max);

/* Same value = same running machine (its boot id), so its shared memory can be reached. */
void hl_host_id(char *out, size_t size);

struct hl_spawn {
    const char *program; /* path, "/" inside; not searched in PATH */
    char *const *argv;
    char *const *env;    /* exactly this */
    const char *workdir; /* NULL = the caller's */
    const char *name;    /* for messages; NULL = program */
    int std[3];          /* descriptors of stdin, stdout, stderr; -1 = /dev/null */
    const int *pass;     /* become 3, 4, ... in the child */
    size_t pass_count;
    const int *join; /* open cgroup.procs files the child enters */
    size_t join_count;
    const struct hl_cpuset *cpus; /* NULL = as the caller */
    const struct hl_cpuset *mems; /* memory policy bind; NULL = as the caller */
    int oom_score_adj;            /* 0 = as the caller */
    bool die_with_parent;         /* SIGKILL when the calling thread ends */
};

/* Raises the soft limit of open files to the hard limit. Processes started by hl_process_spawn get
 * the old limit, because programs that use select() break above 1024. Call it once, before there
 * are threads. */
void hl_process_raise_files(void);

/* Starts a process in its own session and process group, with default signals and no other
 * descriptors. Returns when exec has succeeded or failed. The caller must reap it; it outlives the
 * caller unless die_with_parent is set. SIGCHLD is no longer ignored afterwards. */
hl_status hl_process_spawn(const struct hl_spawn *spec, pid_t *out) HL_CHECK;
/* Search `path` (a PATH; NULL = the system's default) for `name`; with a "/" inside it is taken as
 * is. */
hl_status hl_process_find(const char *name, const char *path, char *out, size_t size) HL_CHECK;

#endif
