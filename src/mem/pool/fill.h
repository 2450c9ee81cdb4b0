/* mem/pool/fill.h - while the memory of a pool is being allocated: logs progress, and makes sure
 * that a signal which ends the process leaves no half-made file.
 *
 * Owns:    a thread and the handlers of SIGTERM and SIGINT from begin to end; the old handlers are
 *          put back.
 * Threads: only one fill of a process at a time installs the handlers; others only log.
 * Errors:  none; without a thread for them, a fill continues without log lines.
 * Units:   bytes.
 * Limits:  paths below PATH_MAX.
 */
#ifndef HL_MEM_POOL_FILL_H
#define HL_MEM_POOL_FILL_H

#include <limits.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

struct hl_pool_fill {
    const char *path; /* borrowed until end */
    int fd;           /* of the file */
    uint64_t size;    /* its final size */
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t wake;
    bool running, stop, handling;
};

/* `fresh`: the file is new, and SIGTERM or SIGINT removes it before they end the process. */
void hl_pool_fill_begin(struct hl_pool_fill *f, const char *path, int fd, uint64_t size,
                        bool fresh);
void hl_pool_fill_end(struct hl_pool_fill *f);

#endif
