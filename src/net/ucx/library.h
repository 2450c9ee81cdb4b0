/* net/ucx/library.h - UCX, loaded when first needed; its functions keep their own names.
 *
 * Owns:    nothing; the library stays loaded until the process ends.
 * Threads: any, after hl_ucx_load.
 * Errors:  HL_EUNAVAIL (os/late.h).
 * Units:   none.
 * Limits:  only the functions below; any other one does not link, including ucp_init, which is
 *          inline.
 */
#ifndef HL_NET_UCX_LIBRARY_H
#define HL_NET_UCX_LIBRARY_H

#include <ucp/api/ucp.h>
#include <ucs/config/global_opts.h>
#include <ucs/debug/log_def.h>

#include "base/status.h"

/* clang-format off */
#define UCX_CALLS(X)                                                                               \
    X(ucp_am_recv_data_nbx) X(ucp_am_send_nbx) X(ucp_cleanup) X(ucp_config_modify)                 \
    X(ucp_config_read) X(ucp_config_release) X(ucp_conn_request_query) X(ucp_dt_create_generic)    \
    X(ucp_dt_destroy) X(ucp_ep_close_nbx) X(ucp_ep_create) X(ucp_ep_print_info)                    \
    X(ucp_ep_rkey_unpack) X(ucp_get_nbx) X(ucp_get_version) X(ucp_init_version)                    \
    X(ucp_listener_create) X(ucp_listener_destroy) X(ucp_listener_query) X(ucp_listener_reject)    \
    X(ucp_mem_map) X(ucp_mem_unmap) X(ucp_request_cancel) X(ucp_request_check_status)              \
    X(ucp_request_free) X(ucp_rkey_buffer_release) X(ucp_rkey_destroy) X(ucp_rkey_pack)            \
    X(ucp_tag_msg_recv_nbx) X(ucp_tag_probe_nb) X(ucp_tag_recv_nbx) X(ucp_tag_send_nbx)            \
    X(ucp_worker_arm) X(ucp_worker_create) X(ucp_worker_destroy) X(ucp_worker_get_efd)             \
    X(ucp_worker_progress) X(ucp_worker_set_am_recv_handler) X(ucs_global_opts_set_value)          \
    X(ucs_log_push_handler) X(ucs_status_string)

/* clang-format on */

struct ucx_calls {
#define X(name) __typeof__(name) *name;
    UCX_CALLS(X)
#undef X
};

extern struct ucx_calls ucx_calls;

/* Call before any function of the library. */
hl_status hl_ucx_load(void) HL_CHECK;

#define ucp_am_recv_data_nbx           ucx_calls.ucp_am_recv_data_nbx
#define ucp_am_send_nbx                ucx_calls.ucp_am_send_nbx
#define ucp_cleanup                    ucx_calls.ucp_cleanup
#define ucp_config_modify              ucx_calls.ucp_config_modify
#define ucp_config_read                ucx_calls.ucp_config_read
#define ucp_config_release             ucx_calls.ucp_config_release
#define ucp_conn_request_query         ucx_calls.ucp_conn_request_query
#define ucp_dt_create_generic          ucx_calls.ucp_dt_create_generic
#define ucp_dt_destroy                 ucx_calls.ucp_dt_destroy
#define ucp_ep_close_nbx               ucx_calls.ucp_ep_close_nbx
#define ucp_ep_create                  ucx_calls.ucp_ep_create
#define ucp_ep_print_info              ucx_calls.ucp_ep_print_info
#define ucp_ep_rkey_unpack             ucx_calls.ucp_ep_rkey_unpack
#define ucp_get_nbx                    ucx_calls.ucp_get_nbx
#define ucp_get_version                ucx_calls.ucp_get_version
#define ucp_init_version               ucx_calls.ucp_init_version
#define ucp_listener_create            ucx_calls.ucp_listener_create
#define ucp_listener_destroy           ucx_calls.ucp_listener_destroy
#define ucp_listener_query             ucx_calls.ucp_listener_query
#define ucp_listener_reject            ucx_calls.ucp_listener_reject
#define ucp_mem_map                    ucx_calls.ucp_mem_map
#define ucp_mem_unmap                  ucx_calls.ucp_mem_unmap
#define ucp_request_cancel             ucx_calls.ucp_request_cancel
#define ucp_request_check_status       ucx_calls.ucp_request_check_status
#define ucp_request_free               ucx_calls.ucp_request_free
#define ucp_rkey_buffer_release        ucx_calls.ucp_rkey_buffer_release
#define ucp_rkey_destroy               ucx_calls.ucp_rkey_destroy
#define ucp_rkey_pack                  ucx_calls.ucp_rkey_pack
#define ucp_tag_msg_recv_nbx           ucx_calls.ucp_tag_msg_recv_nbx
#define ucp_tag_probe_nb               ucx_calls.ucp_tag_probe_nb
#define ucp_tag_recv_nbx               ucx_calls.ucp_tag_recv_nbx
#define ucp_tag_send_nbx               ucx_calls.ucp_tag_send_nbx
#define ucp_worker_arm                 ucx_calls.ucp_worker_arm
#define ucp_worker_create              ucx_calls.ucp_worker_create
#define ucp_worker_destroy             ucx_calls.ucp_worker_destroy
#define ucp_worker_get_efd             ucx_calls.ucp_worker_get_efd
#define ucp_worker_progress            ucx_calls.ucp_worker_progress
#define ucp_worker_set_am_recv_handler ucx_calls.ucp_worker_set_am_recv_handler
#define ucs_global_opts_set_value      ucx_calls.ucs_global_opts_set_value
#define ucs_log_push_handler           ucx_calls.ucs_log_push_handler
#define ucs_status_string              ucx_calls.ucs_status_string

#endif
