/* Shared by the files local_*.c. */
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
#define LOCAL_KILL_MS   60000 /* after SIGKILL: a loaded machine takes its time to free a pool */
#define LOCAL_LOCK_MS   2000
#define LOCAL_LOOK_MS   50 /* between two questions to a daemon */
#define LOCAL_HOW_MAX   96
#define LOCAL_NODES_MAX 256
#define LOCAL_ARGS_MAX  64
#define LOCAL_FLAGS_MAX 16

/* ---- state.c: the state directory ---- */

void local_unlock(int *fd);
/* HL_EBUSY when another up or down has it, after wait_ms. */
hl_status local_lock(const char *state, int wait_ms, int *fd) HL_CHECK;
/* cluster.json of the directory. */
hl_status local_save(const char *state, const struct hl_api_local_cluster *doc) HL_CHECK;
/* Of that name, made if there is none; NULL: out of memory. */
struct hl_api_local_daemon *local_daemon_add(struct local_cluster *c, const char *key);
/* Where it serves or has served; "" = nowhere, or no daemon. */
const char *local_daemon_address(const struct hl_api_local_daemon *daemon);
/* pidfd of a daemon, -1 when it has ended. */
int local_daemon_open(const struct hl_api_local_daemon *daemon);
/* Last line of what a log holds after its first `from` bytes; false and "no message" when that is
 * nothing. */
bool local_last_line_from(const char *path, off_t from, char *out, size_t cap);
/* "/dev/shm/x.pool" of the cluster to "/dev/shm/x-node-1.l2". */
void local_name_l2(const char *pool, const char *node, char *out, size_t cap);
/* Remove what `up` makes: state and, with `pools`, the pool and the L2 of every node; a directory
 * that holds something else stays. The last failure, after everything was tried. */
hl_status local_remove(const char *state, const struct hl_api_local_cluster *doc,
                       bool pools) HL_CHECK;
/* A signal has stopped it: it answers nothing. NULL does not run. */
bool local_daemon_stopped(const struct hl_api_local_daemon *daemon);
bool local_supervisor_stopped(const struct hl_api_local_cluster *doc);
/* SIGTERM, then SIGKILL, which is said and comes at once where a signal has stopped it; waits. True
 * when that has ended it. */
bool local_end_daemon(const struct hl_api_local_cluster *doc, const char *name);
bool local_end_supervisor(const struct hl_api_local_cluster *doc);
/* The most nodes that the cluster has had. */
int local_nodes_ever(const struct hl_api_local_cluster *doc);

/* ---- settings.c: what is asked for, now and earlier ---- */

/* What `up` was asked for, by flags, environment and file, now and before. */
struct local_settings {
    struct hl_arena arena;
    struct hl_api_key_value_list flags;       /* merged: "nodes": "2" */
    struct hl_api_key_value_list environment; /* merged: "HELIOS_L3_SIZE": "96MiB" */
    int nodes, slots;
    const char *address; /* of this machine: where daemons serve */
    bool address_given;
    bool kubernetes;
    bool supervise; /* daemons that end are started again */
    /* Options of each program, without those of `up` itself. */
    struct program_conf l3, controller, agent;
};

/* Merge what is given now with what cluster.json (NULL = none) remembers; sets the environment of
 * this process, and so of the daemons. Nothing is written. */
hl_status local_settings_load(const struct hl_api_key_value_list *given,
                              const struct hl_api_local_cluster *before,
                              struct local_settings *out) HL_CHECK;
void local_settings_fini(struct local_settings *s);
/* The daemons that run have other settings: HL_EINVAL names the first one. */
hl_status local_settings_compare(const struct local_settings *s,
                                 const struct hl_api_local_cluster *before) HL_CHECK;
/* A pool that was kept has the size that is taken where none is asked for; HL_EINVAL when another
 * one is. */
hl_status local_settings_fit_pool(struct local_settings *s,
                                  const struct hl_api_local_cluster *before,
                                  const char *pool) HL_CHECK;

struct local_flag {
    const char *name, *value; /* "--size", "67108864" */
};

/* Flags that `up` was given and hands on to a program, at most LOCAL_FLAGS_MAX. */
size_t local_settings_flags(const struct local_settings *s, enum hl_program program,
                            struct local_flag *out);
/* Into cluster.json. */
hl_status local_settings_store(const struct local_settings *s, struct local_cluster *c) HL_CHECK;

/* ---- daemons.c: how each daemon is started ---- */

struct local {
    const struct local_opts *opts;
    struct local_settings settings;
    struct local_cluster cluster;
    struct hl_arena arena; /* of the two lists */
    struct hl_api_text_list started;
    struct hl_api_text_list made; /* pool files that were not there before */
    bool warm;                    /* a daemon of the cluster ran before */
    bool fresh;                   /* there was no cluster.json */
    char bin[PATH_MAX];
    char pool[PATH_MAX];
};

struct local_daemon {
    char name[32]; /* its key in cluster.json */
    const char *program;
    char fills[PATH_MAX]; /* pool file that it makes at its start; "" = none */
    char *argv[LOCAL_ARGS_MAX];
    size_t argc;
    bool failed; /* out of memory, or too many arguments */
};

/* Daemon 0, 1, ... of a cluster: "l3d", "controllerd", "node-0". */
void local_daemon_name(int index, char *out, size_t cap);
/* It opens ports, and no option names a secret for them. */
bool local_wants_secret(const struct local *l);
/* The one place that knows each daemon's command line: L3 is 0, the Controller 1, then come the
 * nodes. Addresses of daemons are those of cluster.json. End with local_daemon_fini. */
hl_status local_daemon_describe(const struct local *l, int index,
                                struct local_daemon *out) HL_CHECK;
void local_daemon_fini(struct local_daemon *d);

/* ---- start.c: one daemon until it serves ---- */

/* "killed by signal 9 (Killed)", "ended with status 3": of what waitpid says. */
void local_how(int status, char *out, size_t cap);
/* How a daemon that has ended did; false and "ended" when it is not this process's child. */
bool local_reap(pid_t pid, char *out, size_t cap);
/* Start a daemon that has ended, and note it; its ready file tells when it serves. */
hl_status local_daemon_launch(struct local *l, int index) HL_CHECK;
/* What the ready file of a daemon says goes to cluster.json; false when it does not serve yet. */
bool local_daemon_settle(struct local *l, const char *name);

/* Start it unless it runs, and wait until it serves. */
hl_status local_daemon_start(struct local *l, int index) HL_CHECK;

/* ---- up.c ---- */

/* Where the programs are, beside this one. */
hl_status local_find_programs(struct local *l) HL_CHECK;

/* ---- whole.c ---- */

/* Until the Controller sees everything that is to run. HL_ETIMEDOUT names what is missing. */
hl_status local_await_whole(struct local *l) HL_CHECK;
/* The failure `st` of a wait, and which daemons a signal has stopped, if any. */
hl_status local_name_stopped(const struct local *l, hl_status st) HL_CHECK;

/* ---- progress.c: the wait as people see it ---- */

/* Signals that end `up` are noted between begin and end. */
void local_signals_begin(void);
void local_signals_end(void);
bool local_interrupted(void);

struct local_progress {
    uint64_t started_ns, next_ns;
    bool terminal, shown;
};

void local_progress_start(struct local_progress *p);
/* On a terminal one line that is drawn anew, else a line every few seconds. */
void local_progress_show(struct local_progress *p, const char *fmt, ...) HL_PRINTF(2, 3);
void local_progress_end(struct local_progress *p);

/* A daemon that starts: the pool file that it fills, and its memory. */
struct local_watch {
    const char *path; /* "" = none */
    pid_t pid;
    uint64_t filled, size; /* bytes of the file that have memory; of the file */
    uint64_t resident;
};

/* True when it has got further since the last look. */
bool local_watch_look(struct local_watch *w);

/* ---- gangs.c ---- */

/* Cancel what the cluster runs on Kubernetes and wait for its end. HL_ETIMEDOUT: it did not come.
 */
hl_status local_end_gangs(struct hl_rpc *rpc, const struct hl_api_local_cluster *doc) HL_CHECK;

#endif
