/* os/socket.h - Unix sockets that preserve message boundaries and carry descriptors
 * (SOCK_SEQPACKET).
 *
 * Owns:    nothing; descriptors are close-on-exec and belong to the caller.
 * Threads: any.
 * Errors:  HL_EPERM (another user), HL_EUNAVAIL (no listener, the peer is gone), HL_ETIMEDOUT,
 *          HL_EBUSY (the path has a listener), HL_EINVAL (path too long), HL_EPROTO (wrong length).
 * Units:   milliseconds; ages in seconds.
 * Limits:  paths of 107 bytes; one descriptor per message.
 */
#ifndef HL_OS_SOCKET_H
#define HL_OS_SOCKET_H

#include <stdbool.h>
#include <stddef.h>

#include "base/status.h"

/* Listens; replaces a stale socket file of an earlier process. Non-blocking. */
hl_status hl_socket_listen(const char *path, int *out) HL_CHECK;
/* Removes this user's sockets in a directory, named HEAD...TAIL, on which no process listens any
 * more; returns how many. Skips those younger than min_age_s, because no process listens yet on a
 * socket that is just being made. */
size_t hl_socket_sweep(const char *dir, const char *head, const char *tail, int min_age_s);
/* Non-blocking descriptor of the next client; HL_EBUSY if none waits. */
hl_status hl_socket_accept(int listener, int *out) HL_CHECK;
/* For a Unix socket of any type: checks that the peer runs as this process's user or as root.
 * HL_EPERM names the peer's user. */
hl_status hl_socket_check_peer(int fd) HL_CHECK;
/* The same of a client's connection: checks who listens. Root uses the sockets of any user, because
 * daemons may have a user of their own. */
hl_status hl_socket_check_listener(int fd) HL_CHECK;
/* Pid of the process that connected; 0 if it can't be seen from here. */
int hl_socket_peer_pid(int fd);
hl_status hl_socket_connect(const char *path, int timeout_ms, int *out) HL_CHECK;

/* One message; pass -1 for no descriptor. timeout_ms 0: HL_EBUSY instead of waiting. */
hl_status hl_socket_send(int fd, const void *msg, size_t len, int pass, int timeout_ms) HL_CHECK;
/* One message of exactly `len` bytes; *passed is -1 or a descriptor that came with it. With
 * timeout_ms 0 nothing there is HL_EBUSY. */
hl_status hl_socket_recv(int fd, void *msg, size_t len, int *passed, int timeout_ms) HL_CHECK;
/* True when the peer has closed its end. */
bool hl_socket_hung_up(int fd);

#endif
