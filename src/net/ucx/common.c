/* net/ucx/common.c - context, worker, sleeping, sending and closing.
 *
 * The transport list, the error mode and the keepalive interval are set here instead of by the
 * environment: UCX 1.13 by default notices a dead peer after 20 s or never, and a rank's
 * environment often has a UCX_TLS that is meant for MPI. HELIOS_UCX_<NAME> overrides them, as a way
 * out for an operator. */
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "net/ucx/ucx_private.h"

/* One fragment with its headers fits; one read of the socket takes four of them. */
#define TCP_TX_SEGMENT "66k"
#define TCP_RX_SEGMENT "264k"

#define ASYNC_MAX_EVENTS "8192"

/* Rounds without progress before a worker is destroyed: a step may report no progress, so one idle
 * round proves nothing. */
#define FINISH_IDLE_ROUNDS 4
#define FINISH_MAX_NS      (HL_NS_PER_S / 2)

/* UCX prints to standard output, which belongs to the program's output. */
static ucs_log_func_rc_t on_ucx_log(const char *file, unsigned line, const char *function,
                                    ucs_log_level_t level, const ucs_log_component_config_t *conf,
                                    const char *message, va_list ap)
{
    char text[1024];
    (void)function;
    (void)conf;
    if (level == UCS_LOG_LEVEL_FATAL || level >= UCS_LOG_LEVEL_PRINT)
        return UCS_LOG_FUNC_RC_CONTINUE;
    vsnprintf(text, sizeof(text), message, ap);
    hl_log_write(level == UCS_LOG_LEVEL_ERROR  ? HL_LOG_WARN
                 : level == UCS_LOG_LEVEL_WARN ? HL_LOG_INFO
                                               : HL_LOG_DEBUG,
                 "ucx: %s source=%s:%u", text, file, line);
    return UCS_LOG_FUNC_RC_STOP;
}

/* Once, before the first worker. A worker of UCX watches 1,024 descriptors by default; the
 * connection after that fails and leaves the worker so broken that destroying it ends the process.
 * A server has up to HL_NET_PEERS_MAX peers and others that come and go. The limit belongs to the
 * process, so one that its environment names stays. */
static void prepare_ucx(void)
{
    ucs_log_push_handler(on_ucx_log);
    if (getenv("UCX_ASYNC_MAX_EVENTS") == NULL &&
        ucs_global_opts_set_value("ASYNC_MAX_EVENTS", ASYNC_MAX_EVENTS) != UCS_OK)
        hl_debug("ucx: this version has no limit of events that can be raised");
}

static hl_status set_as(ucp_config_t *config, const char *env_name, const char *name,
                        const char *value)
{
    char env[64];
    snprintf(env, sizeof(env), "HELIOS_UCX_%s", env_name);
    const char *wanted = getenv(env);
    ucs_status_t status = ucp_config_modify(config, name, wanted != NULL ? wanted : value);
    if (status != UCS_OK)
        return hl_fail(HL_EUNSUPPORTED, "UCX rejects the setting %s=%s: %s", env_name,
                       wanted != NULL ? wanted : value, ucs_status_string(status));
    return HL_OK;
}

static hl_status set_config(ucp_config_t *config, const char *name, const char *value)
{
    return set_as(config, name, name, value);
}

/* The environment names a transport's own option with the transport's prefix. ucp_config_modify
 * expects the prefix since UCX 1.18, and none before. A wrong name is accepted silently until the
 * worker's log says that it was unused. */
static hl_status set_own(ucp_config_t *config, const char *name, const char *value)
{
    unsigned major, minor, release;
    ucp_get_version(&major, &minor, &release);
    bool prefixed = major > 1 || minor >= 18;
    return set_as(config, name, prefixed ? name : strchr(name, '_') + 1, value);
}

/* Returns "eth0,mlx5_0:1" without its first entry, which is the network device. */
static const char *adapters_of(const char *devices)
{
    const char *comma = strchr(devices, ',');
    return comma != NULL ? comma + 1 : "";
}

static hl_status configure_ucx(ucp_config_t *config, const struct hl_ucx_opts *opts)
{
    const char *devices = opts->verbs ? adapters_of(opts->devices) : opts->device;
    HL_TRY(set_config(config, "TLS", opts->verbs ? hl_ucx_verbs_transports() : "tcp"));
    /* Foreign bytes on a TCP port would end UCX's process; this connection manager accepts RDMA
     * only. */
    if (opts->verbs)
        HL_TRY(set_config(config, "SOCKADDR_TLS_PRIORITY", "rdmacm"));
    HL_TRY(set_config(config, "KEEPALIVE_INTERVAL", "500ms"));
    HL_TRY(set_own(config, "TCP_AF_PRIO", "inet"));
    /* UCT's put over TCP writes wherever the sender says, even after the endpoint was closed, and a
     * late acknowledgement makes it assert, which ends the process. */
    HL_TRY(set_own(config, "TCP_PUT_ENABLE", "n"));
    HL_TRY(set_own(config, "TCP_TX_SEG_SIZE", TCP_TX_SEGMENT));
    HL_TRY(set_own(config, "TCP_RX_SEG_SIZE", TCP_RX_SEGMENT));
    /* A message of the transport is received whole or not at all, so a receive can be cancelled. */
    if (!opts->verbs)
        HL_TRY(set_config(config, "RNDV_THRESH", "inf"));
    /* The other protocols, which UCX 1.18 would choose, emulate every get over rc_verbs. */
    if (opts->verbs)
        HL_TRY(set_config(config, "PROTO_ENABLE", "n"));
    /* Soft-RoCE of Linux 6.5 and later reports an idle queue pair more than once; UCX ends the
     * process on the second report. */
    if (opts->verbs && hl_ucx_verbs_soft("/sys"))
        HL_TRY(set_own(config, "IB_ASYNC_EVENTS", "n"));
    return devices[0] != '\0' ? set_config(config, "NET_DEVICES", devices) : HL_OK;
}

static hl_status open_context(struct hl_ucx *u, const struct hl_ucx_opts *opts)
{
    ucp_config_t *config;
    ucs_status_t status = ucp_config_read("HELIOS", NULL, &config);
    if (status != UCS_OK)
        return hl_fail(HL_EUNSUPPORTED, "reading the UCX configuration: %s",
                       ucs_status_string(status));
    hl_status st = configure_ucx(config, opts);
    if (st == HL_OK) {
        ucp_params_t params = {
            .field_mask = UCP_PARAM_FIELD_FEATURES | UCP_PARAM_FIELD_NAME,
            .features = UCP_FEATURE_AM | UCP_FEATURE_TAG | UCP_FEATURE_WAKEUP |
                        (opts->rma ? UCP_FEATURE_RMA : 0),
            .name = "helios",
        };
        status = ucp_init_version(UCP_API_MAJOR, UCP_API_MINOR, &params, config, &u->context);
        if (status != UCS_OK)
            st = hl_fail(HL_EUNSUPPORTED, "starting UCX on device \"%s\": %s", opts->device,
                         ucs_status_string(status));
    }
    ucp_config_release(config);
    return st;
}

static ucs_status_t create_worker(struct hl_ucx *u)
{
    ucp_worker_params_t params = {
        .field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE,
        .thread_mode = UCS_THREAD_MODE_SERIALIZED, /* one thread at a time, not always the same */
    };
    return ucp_worker_create(u->context, &params, &u->worker);
}

hl_status hl_ucx_init(struct hl_ucx *u, const struct hl_ucx_opts *opts)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    memset(u, 0, sizeof(*u));
    u->efd = -1;
    HL_TRY(hl_ucx_load());
    pthread_once(&once, prepare_ucx);
    u->listens = opts->listens;
    u->spin_ns = (uint64_t)(opts->spin_us > 0 ? opts->spin_us : 0) * 1000;
    HL_TRY(open_context(u, opts));
    ucs_status_t status = create_worker(u);
    if (status == UCS_OK)
        status = ucp_worker_get_efd(u->worker, &u->efd);
    if (status != UCS_OK) {
        hl_ucx_fini(u);
        return hl_fail(HL_EUNSUPPORTED, "creating a UCX worker: %s", ucs_status_string(status));
    }
    return HL_OK;
}

/* A forced close leaves steps to the worker's progress, and these leave further ones. UCX 1.18 runs
 * the rest while it destroys the worker, in ucs_callbackq_remove_oneshot, which can't handle a step
 * that adds another one: an unfinished rendezvous does, and memory is freed twice. */
static void finish_steps(ucp_worker_h worker)
{
    uint64_t limit = hl_now_ns() + FINISH_MAX_NS;
    for (int idle = 0; idle < FINISH_IDLE_ROUNDS && hl_now_ns() < limit;)
        idle = ucp_worker_progress(worker) > 0 ? 0 : idle + 1;
}

/* A server makes progress until its listener has gone, and must not afterwards: server.c. */
void hl_ucx_fini(struct hl_ucx *u)
{
    if (u->worker != NULL && !u->listens)
        finish_steps(u->worker);
    if (u->worker != NULL)
        ucp_worker_destroy(u->worker);
    if (u->context != NULL)
        ucp_cleanup(u->context);
    u->worker = NULL;
    u->context = NULL;
    u->efd = -1;
}

hl_status hl_ucx_listen_to(struct hl_ucx *u, ucp_am_recv_callback_t on_message, void *arg)
{
    ucp_am_handler_param_t handler = {
        .field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_CB |
                      UCP_AM_HANDLER_PARAM_FIELD_ARG | UCP_AM_HANDLER_PARAM_FIELD_FLAGS,
        .id = HL_WIRE_AM_ID,
        .cb = on_message,
        .arg = arg,
        .flags = UCP_AM_FLAG_WHOLE_MSG,
    };
    ucs_status_t status = ucp_worker_set_am_recv_handler(u->worker, &handler);
    if (status != UCS_OK)
        return hl_fail(HL_EINTERNAL, "UCX message handler: %s", ucs_status_string(status));
    return HL_OK;
}

void hl_ucx_nap(struct hl_ucx *u, int fd, uint64_t wait_ns)
{
    if (ucp_worker_arm(u->worker) != UCS_OK)
        return; /* something arrived meanwhile */
    struct pollfd p[2] = {{.fd = u->efd, .events = POLLIN}, {.fd = fd, .events = POLLIN}};
    struct timespec limit = {(time_t)(wait_ns / HL_NS_PER_S), (long)(wait_ns % HL_NS_PER_S)};
    ppoll(p, fd >= 0 ? 2 : 1, &limit, NULL);
}

hl_status hl_ucx_status(ucs_status_t status)
{
    switch (status) {
    case UCS_OK:
        return HL_OK;
    case UCS_ERR_NO_MEMORY:
    case UCS_ERR_NO_RESOURCE:
        return HL_ENOMEM;
    case UCS_ERR_INVALID_PARAM:
    case UCS_ERR_INVALID_ADDR:
        return HL_EINVAL;
    case UCS_ERR_TIMED_OUT:
        return HL_ETIMEDOUT;
    case UCS_ERR_CANCELED:
        return HL_ECANCELED;
    case UCS_ERR_BUSY:
        return HL_EBUSY;
    case UCS_ERR_UNSUPPORTED:
    case UCS_ERR_NOT_IMPLEMENTED:
        return HL_EUNSUPPORTED;
    default:
        return HL_EUNAVAIL;
    }
}

size_t hl_ucx_message_max(int lanes)
{
    return (lanes & HL_UCX_LANE_VERBS) != 0 ? HL_UCX_PIECE : HL_UCX_FRAGMENT;
}

hl_status hl_ucx_check_family(const struct hl_addr *addr)
{
    if (addr->sa.ss_family == AF_INET)
        return HL_OK;
    return hl_fail(HL_EUNSUPPORTED,
                   "address \"%s\": UCX 1.13 corrupts its memory over IPv6 and TCP; give an IPv4 "
                   "address",
                   addr->host);
}

static void finish_message(struct hl_ucx_msg *msg, bool failed)
{
    if (msg->done != NULL)
        msg->done(msg->owner, failed);
    free(msg);
}

static void on_sent(void *request, ucs_status_t status, void *user_data)
{
    finish_message(user_data, status != UCS_OK);
    ucp_request_free(request);
}

hl_status hl_ucx_send(ucp_ep_h ep, const struct hl_ucx_send *s)
{
    struct hl_ucx_msg *msg = malloc(sizeof(*msg) + (s->copy ? s->len : 0));
    if (msg == NULL)
        return hl_fail(HL_ENOMEM, "out of memory allocating a message of %zu bytes", s->len);
    msg->wire = s->wire;
    msg->wire.magic = HL_WIRE_MAGIC;
    msg->wire.version = HL_WIRE_VERSION;
    msg->done = s->done;
    msg->owner = s->owner;
    const void *data = s->data;
    if (s->copy && s->len > 0)
        data = memcpy(msg->payload, s->data, s->len);
    ucp_request_param_t param = {
        .op_attr_mask =
            UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_FLAGS,
        .flags = UCP_AM_SEND_FLAG_REPLY |
                 (s->len > HL_UCX_FRAGMENT ? UCP_AM_SEND_FLAG_RNDV : UCP_AM_SEND_FLAG_EAGER),
        .cb.send = on_sent,
        .user_data = msg,
    };
    void *request =
        ucp_am_send_nbx(ep, HL_WIRE_AM_ID, &msg->wire, sizeof(msg->wire), data, s->len, &param);
    if (UCS_PTR_IS_ERR(request)) {
        free(msg);
        return hl_fail(hl_ucx_status(UCS_PTR_STATUS(request)), "sending to the peer: %s",
                       ucs_status_string(UCS_PTR_STATUS(request)));
    }
    if (request == NULL)
        finish_message(msg, false);
    return HL_OK;
}

void *hl_ucx_ep_close(ucp_ep_h ep)
{
    ucp_request_param_t param = {
        .op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS,
        .flags = UCP_EP_CLOSE_FLAG_FORCE,
    };
    void *request = ucp_ep_close_nbx(ep, &param);
    return UCS_PTR_IS_ERR(request) ? NULL : request;
}

bool hl_ucx_request_done(void *request)
{
    if (request == NULL)
        return true;
    if (ucp_request_check_status(request) == UCS_INPROGRESS)
        return false;
    ucp_request_free(request);
    return true;
}

/* UCX has no call that returns the lanes, so its print-out is parsed. A lane line reads "lane[0]:
 * 2:rc_mlx5/mlx5_0:1.0 md[1] -> ... rma_bw#0 rma am am_bw#0". */
int hl_ucx_lanes(ucp_ep_h ep, char *text, size_t cap)
{
    char *all = NULL;
    size_t len = 0;
    int lanes = 0;
    size_t used = 0;
    text[0] = '\0';
    FILE *f = open_memstream(&all, &len);
    if (f == NULL)
        return 0;
    ucp_ep_print_info(ep, f);
    fclose(f);
    char *save = NULL;
    for (char *line = strtok_r(all, "\n", &save); line; line = strtok_r(NULL, "\n", &save)) {
        const char *lane = strstr(line, "lane[");
        if (lane == NULL)
            continue;
        const char *name = strstr(lane, ": ");
        if (name != NULL && strstr(name, ":rc_") != NULL) {
            lanes |= HL_UCX_LANE_VERBS;
            if (strstr(name, " rma#") != NULL || strstr(name, " rma ") != NULL ||
                strstr(name, "rma_bw") != NULL)
                lanes |= HL_UCX_LANE_READ;
        }
        int n = snprintf(text + used, cap - used, "%s%s", used > 0 ? "; " : "", lane);
        used = n > 0 && used + (size_t)n < cap ? used + (size_t)n : used;
    }
    free(all);
    return lanes;
}
