/* Opens and closes a client, and makes its calls to the daemons.
 *
 * Any thread of the program may use a client, which has one thread of its own:
 *
 *     the program's threads             the maintenance thread (maintenance.c)
 *     lists, views, versions: `lock`    reports accesses, pins again after a restart
 *     reads: no lock of the client      waits for maintenance_wake; the close ends it first
 *
 * `lock` allows one list, view, or opening or commit of a version at a time. Reads and puts do not
 * wait for it: they use tables and connections that have locks of their own, and a put takes it
 * only to note its shard as pending. The counters are atomic and order nothing. A close undoes the
 * opening in reverse: the thread, the mappings, the connections, the tables. No other thread may
 * use the client by then. */
#include "auth/secret.h"
#include "base/abi.h"
#include "base/log.h"
#include "base/text.h"
#include "client/client_private.h"
#include "net/net.h"
#include "os/cond.h"

#include <stdlib.h>
#include <string.h>

static const char *strip_scheme(const char *address)
{
    const char *at = strstr(address, "://");
    return at != NULL ? at + 3 : address;
}

static hl_status copy_address(const char *given, const char *variable, char **out)
{
    const char *value = given != NULL ? given : getenv(variable);
    if (value == NULL || value[0] == '\0')
        return HL_OK;
    *out = strdup(strip_scheme(value));
    return *out != NULL ? HL_OK : hl_fail(HL_ENOMEM, "out of memory allocating an address");
}

/* A rank has the values from its Agent in its environment. */
static hl_status read_environment(helios_client *c)
{
    const struct {
        const struct hl_option_rows *options;
        void *values;
    } all[] = {{&hl_net_connect_rows, &c->data},
               {&hl_net_client_rows, &c->data},
               {&hl_read_retry_rows, &c->read},
               {&hl_read_timeout_rows, &c->read}};

    c->data = *hl_net_conf_default();
    for (size_t i = 0; i < HL_ARRAY_LEN(all); i++) {
        HL_TRY(hl_options_defaults(all[i].options->rows, all[i].options->count, all[i].values));
        HL_TRY(hl_options_environment(all[i].options->rows, all[i].options->count, all[i].values));
    }
    return HL_OK;
}

static hl_status use_options(helios_client *c, const helios_options *o)
{
    static const char *const ways[] = {"auto", "shm", "net"};
    const char *path = o->path != NULL && o->path[0] != '\0' ? o->path : "auto";
    size_t way = 0;
    while (way < HL_ARRAY_LEN(ways) && strcmp(path, ways[way]) != 0)
        way++;
    if (way == HL_ARRAY_LEN(ways))
        return hl_fail(HL_EINVAL, "unknown helios_options.path '%s' (expected auto, shm or net)",
                       path);
    if (o->timeout_ms < 0 || o->retries < -1 || o->retries > CLIENT_RETRIES_MAX)
        return hl_fail(HL_EINVAL,
                       "helios_options: timeout_ms %d must not be negative and retries %d must be "
                       "-1 to %d",
                       o->timeout_ms, o->retries, CLIENT_RETRIES_MAX);
    c->way = (enum client_way)way;
    HL_TRY(read_environment(c));
    if (o->timeout_ms > 0)
        c->read.timeout_ms = o->timeout_ms;
    if (o->retries != 0)
        c->read.retry.count = o->retries > 0 ? o->retries : 0;
    HL_TRY(copy_address(o->controller, "HELIOS_CONTROLLER", &c->controller_address));
    /* the Controller that started this rank existed, so a restart of it is waited for */
    atomic_store_explicit(&c->controller_seen, getenv("HELIOS_JOB") != NULL, memory_order_relaxed);
    HL_TRY(copy_address(o->l3, "CONTROLLER_L3_CACHE_ADDRESS", &c->l3_address));
    if (o->controller != NULL || c->controller_address != NULL || c->l3_address != NULL)
        return HL_OK;
    return find_controller(&c->controller_address, &c->controller_found);
}

/* given NULL: use all defaults. */
static hl_status read_options(helios_client *c, const helios_options *given)
{
    helios_options o = {HELIOS_OPTIONS_INIT};
    if (given != NULL)
        HL_TRY(HL_ABI_READ(helios_options, given, &o));
    return use_options(c, &o);
}

/* If no L3 address is set, the Controller knows it. */
static hl_status ask_l3_address(struct operation *op)
{
    helios_client *c = op->client;
    HL_AUTO(hl_arena_fini) struct hl_arena arena = {0};
    struct hl_api_controller_cluster_info_results r;
    hl_status st;
    if (c->controller == NULL)
        return hl_fail(HL_EINVAL,
                       "helios_options names neither a Controller nor an L3 daemon; NULL "
                       "for both finds the local cluster");
    do
        st =
            hl_call_controller_cluster_info(c->controller, NULL, operation_left_ms(op), &arena, &r);
    while (controller_again(op, st));
    if (st == HL_EUNAVAIL)
        st = find_explain(c->controller_found, st);
    HL_TRY(st);
    if (r.info.l3_address[0] != '\0')
        c->l3_address = strdup(strip_scheme(r.info.l3_address));
    if (c->l3_address == NULL)
        return hl_fail(HL_EUNAVAIL, "the Controller at %s names no L3 daemon; is one running?",
                       c->controller_address);
    return HL_OK;
}

/* A rank's daemons existed when it was started, so it waits for them, unless its node's store may
 * have what it needs. Other programs get the failure at once. */
static hl_status attach_first(struct operation *op)
{
    bool has_store = attach_store(op->client);
    bool rank = getenv("HELIOS_JOB") != NULL;
    hl_status st = attach_renew(op, has_store ? RENEW_QUICK : rank ? RENEW_WAIT : RENEW_ONCE);
    if (st == HL_OK || !has_store || op->client->controller == NULL || !hl_status_retryable(st))
        return st;
    hl_warn("reading from the node's store only: %s", hl_error_text());
    return HL_OK;
}

/* Only the opening thread knows the client, so no lock is taken. The maintenance thread is started
 * last, when everything is in place. */
static hl_status connect_all(helios_client *c)
{
    struct operation op;
    const char *secret = getenv("HELIOS_AUTH_SECRET_FILE");
    operation_begin(&op, c);
    HL_TRY(hl_auth_use_file(secret != NULL ? secret : ""));
    HL_TRY(hl_rpc_create(&c->rpc));
    if (c->controller_address != NULL)
        HL_TRY(hl_rpc_open(c->rpc, c->controller_address, "Controller", &c->controller));
    if (c->l3_address == NULL)
        HL_TRY(ask_l3_address(&op));
    HL_TRY(hl_rpc_open(c->rpc, c->l3_address, "L3", &c->l3));
    net_own(c->attach.net, c->l3);
    hl_status st = attach_first(&op);
    if (st != HL_OK)
        return st;
    return maintenance_start(c);
}

int helios_open(const helios_options *opts, helios_client **out)
{
    hl_error_clear();
    if (out == NULL)
        return hl_fail(HL_EINVAL, "helios_open: out is NULL");
    helios_client *c = calloc(1, sizeof(*c));
    if (c == NULL)
        return hl_fail(HL_ENOMEM, "out of memory allocating a client");
    pthread_mutex_init(&c->lock, NULL);
    pthread_mutex_init(&c->names_lock, NULL);
    pthread_mutex_init(&c->maintenance_lock, NULL);
    hl_cond_init(&c->maintenance_wake);
    atomic_store_explicit(&c->counters.path, "", memory_order_relaxed);
    hl_status st = attach_init(c);
    if (st == HL_OK)
        st = access_create(&c->access);
    if (st == HL_OK)
        st = client_copies_create(&c->copies);
    if (st == HL_OK)
        st = planes_create(&c->told);
    if (st == HL_OK)
        st = read_options(c, opts);
    if (st == HL_OK)
        st = connect_all(c);
    if (st != HL_OK) {
        helios_close(c);
        return st;
    }
    hl_error_clear();
    *out = c;
    return HL_OK;
}

static void pending_fini(helios_client *c)
{
    while (c->pending != NULL) {
        struct pending *p = c->pending;
        c->pending = p->next;
        hl_arena_fini(&p->arena);
        free(p);
    }
}

void helios_close(helios_client *client)
{
    if (client == NULL)
        return;
    maintenance_stop(client);
    map_fini(client);
    device_fini(client);
    attach_fini(client);
    copies_destroy(client->copies);
    hl_rpc_peer_close(client->l3);
    hl_rpc_peer_close(client->controller);
    hl_rpc_destroy(client->rpc);
    pending_fini(client);
    list_fini(client);
    names_fini(client);
    access_destroy(client->access);
    planes_destroy(client->told);
    free(client->controller_address);
    free(client->l3_address);
    pthread_cond_destroy(&client->maintenance_wake);
    pthread_mutex_destroy(&client->maintenance_lock);
    pthread_mutex_destroy(&client->names_lock);
    pthread_mutex_destroy(&client->lock);
    free(client);
}

/* Relaxed: each counter is right by itself, and a concurrent read may be in one but not yet in
 * another. */
static uint64_t counter_sum(const atomic_uint_fast64_t *shm, const atomic_uint_fast64_t *net)
{
    return atomic_load_explicit(shm, memory_order_relaxed) +
           atomic_load_explicit(net, memory_order_relaxed);
}

int helios_get_stats(helios_client *client, helios_stats *out)
{
    if (client == NULL || out == NULL)
        return hl_fail(HL_EINVAL, "helios_get_stats: client and out must not be NULL");
    struct counters *c = &client->counters;
    struct tally(*read)[2] = c->tally[TALLY_READ], (*write)[2] = c->tally[TALLY_WRITE];
    helios_stats s = {
        .reads = counter_sum(&read[0][0].ops, &read[1][0].ops),
        .read_bytes = counter_sum(&read[0][0].bytes, &read[1][0].bytes),
        .read_ns = atomic_load_explicit(&c->read_ns, memory_order_relaxed),
        .writes = counter_sum(&write[0][0].ops, &write[1][0].ops),
        .write_bytes = counter_sum(&write[0][0].bytes, &write[1][0].bytes),
        .write_ns = atomic_load_explicit(&c->write_ns, memory_order_relaxed),
        .crc_failures = atomic_load_explicit(&c->crc_failures, memory_order_relaxed),
        .retries = atomic_load_explicit(&c->retries, memory_order_relaxed),
    };
    snprintf(s.path, sizeof(s.path), "%s", atomic_load_explicit(&c->path, memory_order_relaxed));
    return HL_ABI_WRITE(helios_stats, &s, out);
}
