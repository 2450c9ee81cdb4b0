/* net/tcp/io.h - what the client and the server do with a socket.
 *
 * Owns:    nothing; a descriptor belongs to the caller.
 * Threads: any.
 * Errors:  as of recv and send.
 * Units:   bytes.
 * Limits:  none.
 */
#ifndef HL_NET_TCP_IO_H
#define HL_NET_TCP_IO_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

/* Bytes received at a time, and checked while they are in the cache. */
#define HL_TCP_STEP ((size_t)256 << 10)
/* A peer whose host is gone is noticed after this many seconds, even on an idle connection. */
#define HL_TCP_GONE_S 30

/* Sets the options of every connection: no delay of small messages, keepalive. */
void hl_tcp_tune(int fd);
/* recv without waiting: the bytes, 0 when there are none yet, -1 when the connection has ended;
 * errno is 0 when the peer has closed it. */
ssize_t hl_tcp_receive(int fd, void *buf, size_t len);
/* Whether accept or socket failed for a shortage that is temporary. */
bool hl_tcp_is_shortage(int error);

#endif
