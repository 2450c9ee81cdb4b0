/* program/daemon.h - the framework of a daemon: everything around its service.
 *
 *     options -> log -> networks -> secret -> loop, log file, signals, RPC
 *       -> service->start -> metrics -> ready file -> the loop runs until a signal
 *       -> metrics end -> service->stop -> RPC, log, loop, options end
 *
 * Owns:    options, log, loop, RPC and metrics, from before service->start until after
 *          service->stop.
 * Threads: the caller's, which becomes the loop's.
 * Errors:  printed on stderr, prefixed with the program's name; the exit status says which kind.
 * Units:   exit status: 0 = ended by a signal, or answered --help; 2 = wrong options; 1 = anything
 *          else.
 * Limits:  one daemon per process.
 */
#ifndef HL_PROGRAM_DAEMON_H
#define HL_PROGRAM_DAEMON_H

#include <stdbool.h>

#include "program/conf.h"

struct hl_logfile;
struct hl_loop;
struct hl_metrics;
struct hl_rpc;

struct program_daemon {
    struct program_conf conf;
    struct hl_logfile *log;
    struct hl_loop *loop;
    struct hl_rpc *rpc;
    struct hl_metrics *metrics;
};

struct program_service {
    enum hl_program program;
    const char *name;     /* "helios-l3d" */
    const char *log_name; /* "l3d" */
    /* Starts serving. Fills in `ready` for the ready file, except for pid and metrics; its strings
     * still belong to the service. */
    hl_status (*start)(void *arg, struct program_daemon *d, struct hl_api_daemon_ready *ready);
    /* As in hl_metrics_opts. */
    hl_status (*gauges)(void *arg, struct hl_buf *out);
    hl_status (*health)(void *arg, struct hl_buf *out); /* NULL: none */
    /* Called even if start failed or was not reached. told: a signal ended the daemon. False: one
     * of its threads is busy, so the process ends without freeing anything. */
    bool (*stop)(void *arg, struct program_daemon *d, bool told);
};

/* Runs until a signal ends it; returns the exit status. */
int program_daemon_run(const struct program_service *service, void *arg, int argc, char **argv);

/* What a daemon does before anything else: opens as many files as it may, and survives a file at
 * the limit of `ulimit -f`, which is like one on a full disk (process.c). */
void program_begin(void);

/* Prints the error of a program that ended with `st`, and returns its exit status; what was printed
 * to stdout must have reached it (process.c). */
int program_exit(const char *name, hl_status st);

#endif
