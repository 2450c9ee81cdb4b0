/* cli/local/local_private.h - what the files of `helios up` and `down` share: the state directory,
 * its daemons and settings.
 *
 * Threads: the main thread.
 */
#ifndef HELIOS_LOCAL_PRIVATE_H
#define HELIOS_LOCAL_PRIVATE_H

#include <limits.h>
#include <signal.h>
#include <sys/types.h>

#include "base/buf.h"
#include "cli/local/local.h"
#include "program/conf.h"

#define LOCAL_RUN       "run" /* directory of the sockets, in the state directory */
#define LOCAL_CALL_MS   5000
#define LOCAL_END_MS    10000
#define LOCAL_KILL_MS   60000 /* after SIGKILL: a loaded machine needs time to free a pool */
#define LOCAL_LOCK_MS   2000
#define LOCAL_LOOK_MS   50 /* between two calls of a daemon */
#define LOCAL_HOW_MAX   96
#define LOCAL_NODES_MAX 256
#define LOCAL_ARGS_MAX  64
#define LOCAL_FLAGS_MAX 16

/* ---- state.c: the state directory ---- */

void local_unlock(int *fd);
/* HL_EBUSY: another up or down still has the lock after wait_ms. */
hl_status local_lock(const char *state, int wait_ms, int *fd) HL_CHECK;
/* Writes cluster.json of the directory. */
hl_status local_save(const char *state, const struct hl_api_local_cluster *doc) HL_CHECK;
/* The daemon with that name, added if there is none; NULL: out of memory. */
struct hl_api_local_daemon *local_daemon_add(struct local_cluster *c, const char *key);
/* Where it serves or has served; "" = nowhere, or no daemon. */
const char *local_daemon_address(const struct hl_api_local_daemon *daemon);
/* The pidfd of a daemon; -1: it has ended. */
int local_daemon_open(const struct hl_api_local_daemon *daemon);
/* The last line after the log's first `from` bytes; false and "no message" if there is nothing. */
bool local_last_line_from(const char *path, off_t from, char *out, size_t cap);
/* Turns the cluster's "/dev/shm/x.pool" into "/dev/shm/x-node-1.l2". */
void local_name_l2(const char *pool, const char *node, char *out, size_t cap);
/* Removes what `up` makes: state and, with `pools`, the pool and the L2 of every node. A directory
 * that contains anything else stays. Tries everything, and returns the last failure. */
hl_status local_remove(const char *state, const struct hl_api_local_cluster *doc,
                       bool pools) HL_CHECK;
/* Whether a signal has stopped it, so that it answers nothing. NULL counts as not running. */
bool local_daemon_stopped(const struct hl_api_local_daemon *daemon);
bool local_supervisor_stopped(const struct hl_api_local_cluster *doc);
/* Sends SIGTERM and waits; then SIGKILL, which is reported. A process that a signal has stopped
 * gets SIGKILL at once. True: it was running and has ended. */
bool local_end_daemon(const struct hl_api_local_cluster *doc, const char *name);
bool local_end_supervisor(const struct hl_api_local_cluster *doc);
/* The most nodes that the cluster has had. */
int local_nodes_ever(const struct hl_api_local_cluster *doc);

/* ---- settings.c: what is asked for, now and earlier ---- */

/* The settings of `up`, by flags, environment and file, now and before. */
struct local_settings {
    struct hl_arena arena;
    struct hl_api_key_value_list flags;       /* merged: "nodes": "2" */
    struct hl_api_key_value_list environment; /* merged: "HELIOS_L3_SIZE": "96MiB" */
    int nodes, slots;
    const char *address; /* of this machine, where daemons serve */
    bool address_given;
    bool kubernetes;
    bool supervise; /* daemons that end are restarted */
    /* Options of each program, except those of `up` itself. */
    struct program_conf l3, controller, agent;
};

/* Merges the given flags with those in cluster.json (NULL = none); sets the environment of this
 * process, which its daemons inherit. Writes nothing. */
hl_status local_settings_load(const struct hl_api_key_value_list *given,
                              const struct hl_api_local_cluster *before,
                              struct local_settings *out) HL_CHECK;
void local_settings_fini(struct local_settings *s);
/* HL_EINVAL: the running daemons have other settings; it names the first one. */
hl_status local_settings_compare(const struct local_settings *s,
                                 const struct hl_api_local_cluster *before) HL_CHECK;
/* Whether daemons are to serve at other addresses than before: none of the old ones is kept. */
bool local_settings_moved(const struct local_settings *s,
                          const struct hl_api_local_cluster *before);
/* The size of a kept pool is used if none is requested. HL_EINVAL: a different one is. */
hl_status local_settings_fit_pool(struct local_settings *s,
                                  const struct hl_api_local_cluster *before,
                                  const char *pool) HL_CHECK;

struct local_flag {
    const char *name, *value; /* "--size", "67108864" */
};

/* Flags that `up` passes on to a program, at most LOCAL_FLAGS_MAX. */
size_t local_settings_flags(const struct local_settings *s, enum hl_program program,
                            struct local_flag *out);
/* Stores them in cluster.json. */
hl_status local_settings_store(const struct local_settings *s, struct local_cluster *c) HL_CHECK;

/* ---- daemons.c: how each daemon is started ---- */

struct local {
    const struct local_opts *opts;
    struct local_settings settings;
    struct local_cluster cluster;
    struct hl_arena arena; /* of the two lists */
    struct hl_api_text_list started;
    struct hl_api_text_list made; /* pool files that did not exist before */
    bool warm;                    /* a daemon of the cluster ran before */
    bool fresh;                   /* there was no cluster.json */
    char bin[PATH_MAX];
    char pool[PATH_MAX];
};

struct local_daemon {
    char name[32]; /* its key in cluster.json */
    const char *program;
    char fills[PATH_MAX]; /* pool file that it creates at its start; "" = none */
    char *argv[LOCAL_ARGS_MAX];
    size_t argc;
    bool failed; /* out of memory, or too many arguments */
};

/* The name of daemon 0, 1, ... of a cluster: "l3d", "controllerd", "node-0". */
void local_daemon_name(int index, char *out, size_t cap);
/* Whether it opens ports, but no option names a secret for them. */
bool local_wants_secret(const struct local *l);
/* The only place that knows each daemon's command line: L3 is 0, the Controller 1, the nodes
 * follow. Addresses of daemons are those in cluster.json. End with local_daemon_fini. */
hl_status local_daemon_describe(const struct local *l, int index,
                                struct local_daemon *out) HL_CHECK;
void local_daemon_fini(struct local_daemon *d);

/* ---- start.c: one daemon until it serves ---- */

/* Describes a status of waitpid: "killed by signal 9 (Killed)", "ended with status 3". */
void local_how(int status, char *out, size_t cap);
/* How a daemon has ended; false and "ended" if it is not a child of this process. */
bool local_reap(pid_t pid, char *out, size_t cap);
/* Starts a daemon that has ended, and records it; its ready file shows when it serves. */
hl_status local_daemon_launch(struct local *l, int index) HL_CHECK;
/* Copies a daemon's ready file to cluster.json; false: it does not serve yet. */
bool local_daemon_settle(struct local *l, const char *name);

/* Starts it unless it runs, and waits until it serves. */
hl_status local_daemon_start(struct local *l, int index) HL_CHECK;

/* ---- up.c ---- */

/* Finds the programs, which are next to this one. */
hl_status local_find_programs(struct local *l) HL_CHECK;

/* ---- whole.c ---- */

/* Waits until the Controller sees everything that should run. HL_ETIMEDOUT names what is
 * missing. */
hl_status local_await_whole(struct local *l) HL_CHECK;
/* Extends the failure `st` of a wait by the daemons that a signal has stopped, if any. */
hl_status local_name_stopped(const struct local *l, hl_status st) HL_CHECK;

/* ---- progress.c: the wait as people see it ---- */

/* Between begin and end, signals that end `up` are recorded. */
void local_signals_begin(void);
void local_signals_end(void);
bool local_interrupted(void);

struct local_progress {
    uint64_t started_ns, next_ns;
    bool terminal, shown;
};

void local_progress_start(struct local_progress *p);
/* On a terminal one line that is redrawn, otherwise a line every few seconds. */
void local_progress_show(struct local_progress *p, const char *fmt, ...) HL_PRINTF(2, 3);
void local_progress_end(struct local_progress *p);

/* A daemon that is starting: the pool file that it fills, and its memory. */
struct local_watch {
    const char *path; /* "" = none */
    pid_t pid;
    uint64_t filled, size; /* allocated bytes of the file; its size */
    uint64_t resident;
};

/* True: it has made progress since the last call. */
bool local_watch_look(struct local_watch *w);

/* ---- gangs.c ---- */

/* Cancels what the cluster runs on Kubernetes and waits for its end. HL_ETIMEDOUT: it has not
 * ended. */
hl_status local_end_gangs(struct hl_rpc *rpc, const struct hl_api_local_cluster *doc) HL_CHECK;

#endif
