/* cmd/cli/bench/peer.h - the other host of a benchmark: a separate process with a migration
 * receiver and a plain TCP sink that write into the same memory.
 *
 * Owns:    the process, the memory that both processes map, one plain connection.
 * Threads: one; start it before this process has threads (it is a fork).
 * Errors:  HL_EIO for the plain connection; errors of the receiver.
 * Units:   bytes, bits per second.
 * Limits:  one object at a time, of at most `room` bytes.
 */
#ifndef HL_CMD_CLI_BENCH_PEER_H
#define HL_CMD_CLI_BENCH_PEER_H

#include <sys/types.h>

#include "base/status.h"

struct bench_peer {
    pid_t pid;
    unsigned char *memory; /* where received objects are, shared with the peer */
    uint64_t room;
    char migrate[64]; /* address of the receiver */
    unsigned raw_port;
    int raw_fd;
};

hl_status bench_peer_start(uint64_t room, uint64_t window, int io_threads,
                           struct bench_peer *out) HL_CHECK;
/* Ends the process. A zeroed struct is allowed. */
void bench_peer_stop(struct bench_peer *p);
/* Sends `size` bytes over plain TCP and waits until the peer has all of them in its memory. */
hl_status bench_peer_raw(struct bench_peer *p, const void *data, uint64_t size) HL_CHECK;

#endif
