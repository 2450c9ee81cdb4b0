/* net/zmq/common.c - sockets and messages, for both ends of the migration channel. */
#include <arpa/inet.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "auth/secret.h"
#include "net/addr.h"
#include "net/zmq/library.h"
#include "net/zmq/zmq_private.h"

#define RECONNECT_MS      50
#define RECONNECT_MAX_MS  400
#define CONNECT_MS        1000
#define HANDSHAKE_MS      10000
#define UNACKED_MS        3000 /* a connection with older unacknowledged TCP data is dead */
#define KEEPALIVE_IDLE_S  5
#define KEEPALIVE_EVERY_S 2
#define KEEPALIVE_COUNT   3

hl_status hl_mig_endpoint(const char *address, int timeout_ms, char out[HL_MIG_ENDPOINT_MAX],
                          int *v6)
{
    struct hl_addr a;
    char host[INET6_ADDRSTRLEN];
    const char *scheme = strstr(address, "://");
    HL_TRY(hl_addr_resolve(scheme != NULL ? scheme + 3 : address, timeout_ms, &a));
    *v6 = a.sa.ss_family == AF_INET6;
    const void *bytes = *v6 ? (const void *)&((const struct sockaddr_in6 *)&a.sa)->sin6_addr
                            : (const void *)&((const struct sockaddr_in *)&a.sa)->sin_addr;
    inet_ntop(a.sa.ss_family, bytes, host, sizeof(host));
    snprintf(out, HL_MIG_ENDPOINT_MAX, *v6 ? "tcp://[%s]:%u" : "tcp://%s:%u", host,
             hl_addr_port(&a));
    return HL_OK;
}

hl_status hl_mig_context(int io_threads, void **out)
{
    HL_TRY(hl_zmq_load());
    void *ctx = zmq_ctx_new();
    if (ctx == NULL)
        return hl_fail(HL_ENOMEM, "migration channel: %s", zmq_strerror(errno));
    if (io_threads > 0 && zmq_ctx_set(ctx, ZMQ_IO_THREADS, io_threads) != 0) {
        zmq_ctx_term(ctx);
        return hl_fail(HL_EINVAL, "migration channel: %d io threads are not possible", io_threads);
    }
    *out = ctx;
    return HL_OK;
}

/* Derives a key pair for CURVE, 40 characters each. */
static int curve_pair(const char *purpose, char public_key[41], char secret_key[41])
{
    uint8_t bytes[HL_AUTH_LEN];
    hl_auth_derive(purpose, bytes);
    return zmq_z85_encode(secret_key, bytes, sizeof(bytes)) == NULL
               ? -1
               : zmq_curve_public(public_key, secret_key);
}

/* A server's public key is never sent, so only a peer with the cluster's secret can connect. CURVE
 * also encrypts all messages. */
static int set_curve(void *sock, bool is_server)
{
    static const int on = 1;
    char server_public[41], server_secret[41], own_public[41], own_secret[41];
    int rc = curve_pair("helios migration server", server_public, server_secret);
    if (rc == 0 && is_server) {
        rc = zmq_setsockopt(sock, ZMQ_CURVE_SERVER, &on, sizeof(on));
        return rc == 0 ? zmq_setsockopt(sock, ZMQ_CURVE_SECRETKEY, server_secret, 41) : rc;
    }
    if (rc == 0)
        rc = curve_pair("helios migration client", own_public, own_secret);
    if (rc == 0)
        rc = zmq_setsockopt(sock, ZMQ_CURVE_SERVERKEY, server_public, 41);
    if (rc == 0)
        rc = zmq_setsockopt(sock, ZMQ_CURVE_PUBLICKEY, own_public, 41);
    return rc == 0 ? zmq_setsockopt(sock, ZMQ_CURVE_SECRETKEY, own_secret, 41) : rc;
}

hl_status hl_mig_socket(void *ctx, int type, int v6, void **out)
{
    const struct {
        int name;
        int value;
    } options[] = {
        {ZMQ_LINGER, 0},
        {ZMQ_IPV6, v6},
        {ZMQ_RECONNECT_IVL, RECONNECT_MS},
        {ZMQ_RECONNECT_IVL_MAX, RECONNECT_MAX_MS},
        {ZMQ_CONNECT_TIMEOUT, CONNECT_MS},
        {ZMQ_HANDSHAKE_IVL, HANDSHAKE_MS},
        {ZMQ_TCP_MAXRT, UNACKED_MS},
        {ZMQ_TCP_KEEPALIVE, 1},
        {ZMQ_TCP_KEEPALIVE_IDLE, KEEPALIVE_IDLE_S},
        {ZMQ_TCP_KEEPALIVE_INTVL, KEEPALIVE_EVERY_S},
        {ZMQ_TCP_KEEPALIVE_CNT, KEEPALIVE_COUNT},
    };

    int64_t largest = HL_MIG_CHUNK_MAX;
    void *sock = zmq_socket(ctx, type);
    if (sock == NULL)
        return hl_fail(HL_ENOMEM, "migration channel: making a socket: %s", zmq_strerror(errno));
    int rc = zmq_setsockopt(sock, ZMQ_MAXMSGSIZE, &largest, sizeof(largest));
    for (size_t i = 0; rc == 0 && i < HL_ARRAY_LEN(options); i++)
        rc = zmq_setsockopt(sock, options[i].name, &options[i].value, sizeof(int));
    if (rc == 0 && hl_auth_is_set())
        rc = set_curve(sock, type == ZMQ_ROUTER);
    if (rc != 0) {
        hl_status st =
            hl_fail(HL_EINTERNAL, "migration channel: socket options: %s", zmq_strerror(errno));
        zmq_close(sock);
        return st;
    }
    *out = sock;
    return HL_OK;
}

/* Called by a libzmq thread when it no longer needs a payload. Release: an owner that loads 0 with
 * acquire may write to the buffer again, after all of libzmq's reads. */
static void on_returned(void *data, void *hint)
{
    (void)data;
    atomic_fetch_sub_explicit((atomic_uint *)hint, 1, memory_order_release);
}

/* If `busy` is NULL, the payload is copied. Otherwise it is lent, and counted before it is sent,
 * because it may be returned during the send. */
static hl_status make_payload(const struct hl_mig_frame *f, const void *payload, atomic_uint *busy,
                              zmq_msg_t *msg)
{
    int rc;
    if (busy != NULL) {
        /* libzmq only reads the payload; its prototype lacks the const. */
        rc = zmq_msg_init_data(msg, (void *)(uintptr_t)payload, f->length, on_returned, busy);
        if (rc == 0)
            atomic_fetch_add_explicit(busy, 1, memory_order_relaxed);
    } else {
        rc = zmq_msg_init_size(msg, f->length);
        if (rc == 0)
            memcpy(zmq_msg_data(msg), payload, f->length);
    }
    if (rc != 0)
        return hl_fail(HL_ENOMEM, "migration channel: out of memory allocating a message");
    return HL_OK;
}

hl_status hl_mig_post(void *sock, const struct hl_mig_frame *frame, const void *payload,
                      atomic_uint *busy)
{
    uint8_t header[HL_MIG_HEADER];
    zmq_msg_t msg;
    bool more = frame->length > 0;
    if (more)
        HL_TRY(make_payload(frame, payload, busy, &msg));
    hl_mig_encode(frame, header);
    int rc = zmq_send(sock, header, sizeof(header), ZMQ_DONTWAIT | (more ? ZMQ_SNDMORE : 0));
    if (rc >= 0 && more)
        rc = zmq_msg_send(&msg, sock, ZMQ_DONTWAIT);
    if (rc >= 0)
        return HL_OK;
    hl_status st = errno == EAGAIN ? HL_EBUSY : HL_EIO;
    st = hl_fail(st, "migration channel: sending: %s", zmq_strerror(errno));
    if (more)
        zmq_msg_close(&msg);
    return st;
}

void hl_mig_context_term(void *ctx)
{
    if (ctx == NULL)
        return;
    while (zmq_ctx_term(ctx) != 0 && errno == EINTR)
        ;
}
