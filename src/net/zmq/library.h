/* net/zmq/library.h - libzmq, loaded when first needed; its functions keep their own names.
 *
 * Owns:    nothing; the library stays loaded until the process ends.
 * Threads: any, after hl_zmq_load.
 * Errors:  HL_EUNAVAIL (os/late.h).
 * Units:   none.
 * Limits:  only the functions below; any other one does not link.
 */
#ifndef HL_NET_ZMQ_LIBRARY_H
#define HL_NET_ZMQ_LIBRARY_H

#include <zmq.h>

#include "base/status.h"

/* clang-format off */
#define ZMQ_CALLS(X)                                                                               \
    X(zmq_bind) X(zmq_close) X(zmq_connect) X(zmq_ctx_new) X(zmq_ctx_set) X(zmq_ctx_term)          \
    X(zmq_curve_public) X(zmq_getsockopt) X(zmq_msg_close) X(zmq_msg_data) X(zmq_msg_get)          \
    X(zmq_msg_init) X(zmq_msg_init_data) X(zmq_msg_init_size) X(zmq_msg_more) X(zmq_msg_recv)      \
    X(zmq_msg_send) X(zmq_msg_size) X(zmq_poll) X(zmq_send) X(zmq_setsockopt) X(zmq_socket)        \
    X(zmq_socket_monitor) X(zmq_strerror) X(zmq_z85_encode)

/* clang-format on */

struct zmq_calls {
#define X(name) __typeof__(name) *name;
    ZMQ_CALLS(X)
#undef X
};

extern struct zmq_calls zmq_calls;

/* Call before any function of the library. */
hl_status hl_zmq_load(void) HL_CHECK;

#define zmq_bind           zmq_calls.zmq_bind
#define zmq_close          zmq_calls.zmq_close
#define zmq_connect        zmq_calls.zmq_connect
#define zmq_ctx_new        zmq_calls.zmq_ctx_new
#define zmq_ctx_set        zmq_calls.zmq_ctx_set
#define zmq_ctx_term       zmq_calls.zmq_ctx_term
#define zmq_curve_public   zmq_calls.zmq_curve_public
#define zmq_getsockopt     zmq_calls.zmq_getsockopt
#define zmq_msg_close      zmq_calls.zmq_msg_close
#define zmq_msg_data       zmq_calls.zmq_msg_data
#define zmq_msg_get        zmq_calls.zmq_msg_get
#define zmq_msg_init       zmq_calls.zmq_msg_init
#define zmq_msg_init_data  zmq_calls.zmq_msg_init_data
#define zmq_msg_init_size  zmq_calls.zmq_msg_init_size
#define zmq_msg_more       zmq_calls.zmq_msg_more
#define zmq_msg_recv       zmq_calls.zmq_msg_recv
#define zmq_msg_send       zmq_calls.zmq_msg_send
#define zmq_msg_size       zmq_calls.zmq_msg_size
#define zmq_poll           zmq_calls.zmq_poll
#define zmq_send           zmq_calls.zmq_send
#define zmq_setsockopt     zmq_calls.zmq_setsockopt
#define zmq_socket         zmq_calls.zmq_socket
#define zmq_socket_monitor zmq_calls.zmq_socket_monitor
#define zmq_strerror       zmq_calls.zmq_strerror
#define zmq_z85_encode     zmq_calls.zmq_z85_encode

#endif
