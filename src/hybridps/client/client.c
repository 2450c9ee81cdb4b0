/* The public API of chunks that move: takes the lock, checks the arguments, and calls the parts in
 * the right order. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/abi.h"
#include "base/log.h"
#include "hybridps/client/client_private.h"
#include "hybridps/manager/table.h"
#include "os/copy_measure.h"

#define CHUNK_BYTES_MAX (64u << 20) /* by default; at least CHUNKS_MIN must fit the device */
#define CHUNKS_MIN      16
#define PREFETCH        2

/* ---- opening ---- */

static hl_status charge_manager(void *arg, bool on_host, int64_t bytes)
{
    struct hybridps *h = arg;
    int device = on_host ? HYBRIDPS_MANAGER_HOST : h->device;
    return (hl_status)(bytes >= 0 ? hybridps_manager_add(h->manager, device, (uint64_t)bytes, 0)
                                  : hybridps_manager_remove(h->manager, device, (uint64_t)-bytes));
}

/* The device may have no number in the table. */
static uint64_t find_part(void *arg, bool on_host)
{
    const struct hybridps *h = arg;
    const struct hl_manager_table *t = hl_manager_joined(h->manager);
    uint32_t device = on_host ? 0 : (uint32_t)h->device + 1;
    return device < hl_manager_devices(t) ? hl_manager_part(t, device) : UINT64_MAX;
}

/* "cuda:3" is device 3; anything without a small number is device 0. */
static int number_of(const char *device)
{
    char *end;
    const char *colon = strchr(device, ':');
    long n = colon != NULL && strncmp(device, "cuda:", 5) == 0 ? strtol(colon + 1, &end, 10) : 0;
    return n > 0 && n < 1024 && (*end == '\0' || *end == ':') ? (int)n : 0;
}

/* The device's number in the node's table. A process that sees only some of the node's devices
 * numbers them from 0; $HYBRIDPS_DEVICES then lists their numbers in the table. */
static int table_number(int device)
{
    const char *at = getenv("HYBRIDPS_DEVICES");
    for (int i = 0; at != NULL && i < device; i++) {
        at = strchr(at, ',');
        at = at != NULL ? at + 1 : NULL;
    }
    char *end = NULL;
    long n = at != NULL ? strtol(at, &end, 10) : -1;
    return end != NULL && end != at && n >= 0 && n < HL_MANAGER_DEVICES - 1 ? (int)n : device;
}

/* The next use of a chunk by the record. The chunk needed last leaves first, as long as the
 * iteration follows the record. */
static int next_use(void *arg, uint32_t chunk, uint64_t *moments)
{
    const struct hybridps *h = arg;
    if (h->order == NULL || !h->record.following)
        return 0;
    *moments = hl_next_use(h->order, chunk, h->record.begun ? h->record.moment : 0);
    return 1;
}

static hl_status open_spill(const hybridps_options *from, struct hl_chunk_pool_options *o)
{
    const char *spill = from->spill;
    static const char *const told[] = {"HELIOS_L3_SOCKET", "HELIOS_STORE_SOCKET"};
    for (size_t i = 0; i < HL_ARRAY_LEN(told) && (spill == NULL || spill[0] == '\0'); i++)
        spill = getenv(told[i]);
    if (spill == NULL || spill[0] == '\0' || strcmp(spill, "none") == 0)
        return HL_OK;
    return hl_spill_l3_open(spill, 0, from->spill_pause_ms, &o->spill, &o->spill_arg);
}

/* If a table that only the environment names can't be joined, that is only a warning: training can
 * do without it. */
static hl_status join_manager(struct hybridps *h, const char *name)
{
    const char *told = name == NULL ? getenv("HYBRIDPS_MANAGER") : NULL;
    hybridps_manager_options join = {HYBRIDPS_MANAGER_OPTIONS_INIT,
                                     .name = told != NULL ? told : name};
    if (join.name == NULL || join.name[0] == '\0' || strcmp(join.name, "none") == 0)
        return HL_OK;
    hl_status st = (hl_status)hybridps_manager_open(&join, &h->manager);
    if (st == HL_OK || told == NULL)
        return st;
    hl_warn("hybridps: chunks of this process are not in the node's table: %s", hl_error_text());
    hl_error_clear();
    return HL_OK;
}

/* The limit of host memory: this client's own, or that of all processes of the table. */
static hl_status find_limit(struct hybridps *h, uint64_t own)
{
    hybridps_manager_info_t info = {HYBRIDPS_MANAGER_INFO_INIT};
    h->host_limit = own;
    if (h->manager == NULL)
        return HL_OK;
    HL_TRY((hl_status)hybridps_manager_info(h->manager, HYBRIDPS_MANAGER_HOST, &info));
    if (info.capacity < HL_MANAGER_UNLIMITED && (own == 0 || info.capacity < own))
        h->host_limit = info.capacity;
    return HL_OK;
}

static hl_status check_tuning(const hybridps_options *o)
{
    if (o->plan_ahead != 0 && (o->plan_ahead < 3 || o->plan_ahead > 1000))
        return hl_fail(HL_EINVAL, "a plan of %d iterations: it must have 3 to 1000", o->plan_ahead);
    if (o->spill_pause_ms < 0 || o->spill_pause_ms > 60000)
        return hl_fail(HL_EINVAL, "spill_pause_ms is %d, it must be 1 to 60000, or 0 for 20",
                       o->spill_pause_ms);
    if (!(o->heat_alpha >= 0 && o->heat_beta >= 0 && o->heat_window >= 0 && o->heat_tau >= 0))
        return hl_fail(HL_EINVAL,
                       "heat's alpha %g, beta %g, window %g, tau %g: none may be negative",
                       o->heat_alpha, o->heat_beta, o->heat_window, o->heat_tau);
    int given = o->heat_alpha > 0 || o->heat_beta > 0 || o->heat_window > 0 || o->heat_tau > 0;
    if (given && !(o->heat_window > 0 && o->heat_tau > 0))
        return hl_fail(HL_EINVAL,
                       "heat's alpha %g, beta %g, window %g, tau %g: window and tau must be above "
                       "0, or all four 0 for the defaults",
                       o->heat_alpha, o->heat_beta, o->heat_window, o->heat_tau);
    return HL_OK;
}

static hl_status open_parts(struct hybridps *h, const hybridps_options *o)
{
    HL_TRY(join_manager(h, o->manager));
    h->device = number_of(o->device);
    if (o->manager == NULL && h->manager != NULL && strncmp(o->device, "cuda:", 5) == 0)
        h->device = table_number(h->device);
    struct hl_chunk_pool_options pool = {.device = o->device,
                                         .copy = h->copy,
                                         .policy = o->policy != NULL ? o->policy : "opt",
                                         .policy_options = {.seed = o->seed,
                                                            .alpha = o->heat_alpha,
                                                            .beta = o->heat_beta,
                                                            .window = o->heat_window,
                                                            .tau = o->heat_tau},
                                         .host_bytes = o->host_bytes,
                                         .charge = h->manager != NULL ? charge_manager : NULL,
                                         .part = h->manager != NULL ? find_part : NULL,
                                         .charge_arg = h,
                                         .next_use = next_use,
                                         .next_use_arg = h};
    HL_TRY(open_spill(o, &pool));
    HL_TRY(hl_chunk_pool_open(&pool, &h->pool));
    h->record = (struct hl_record){.pool = h->pool,
                                   .copy = h->copy,
                                   .opt = strcmp(pool.policy, "opt") == 0,
                                   .ahead = (uint64_t)o->plan_ahead};
    return find_limit(h, o->host_bytes);
}

static void free_client(struct hybridps *h)
{
    hl_pagefault_remove(h->faults);
    hl_record_fini(&h->record);
    hl_next_use_free(h->order);
    hl_chunk_pool_close(h->pool);
    hybridps_manager_close(h->manager); /* releases everything that was added */
    hl_tensors_fini(&h->tensors);
    pthread_mutex_destroy(&h->lock);
    free(h->uses);
    free(h);
}

static hl_status open_client(const hybridps_options *options, hybridps **out)
{
    if (options->device == NULL)
        return hl_fail(HL_EINVAL, "no device is given, such as emu:256MiB or cuda:0");
    const char *mode = options->mode != NULL ? options->mode : "copy";
    if (strcmp(mode, "copy") != 0 && strcmp(mode, "move") != 0)
        return hl_fail(HL_EINVAL, "mode \"%s\" is neither copy nor move", mode);
    if (options->prefetch < -1)
        return hl_fail(HL_EINVAL, "prefetch is %d, it must be -1 or more", options->prefetch);
    HL_TRY(check_tuning(options));
    struct hybridps *h = calloc(1, sizeof(*h));
    if (h == NULL)
        return hl_fail(HL_ENOMEM, "out of memory allocating a client");
    h->pid = getpid();
    h->copy = mode[0] == 'c';
    h->chunk_bytes = options->chunk_bytes;
    h->prefetch = options->prefetch == -1 ? PREFETCH : options->prefetch;
    pthread_mutex_init(&h->lock, NULL);
    hl_status st = open_parts(h, options);
    if (st != HL_OK)
        free_client(h);
    else
        *out = h;
    return st;
}

int hybridps_open(const hybridps_options *options, hybridps **out)
{
    hybridps_options o;
    if (options == NULL || out == NULL)
        return hl_fail(HL_EINVAL, "hybridps_open: options and out must not be NULL");
    HL_TRY(HL_ABI_READ(hybridps_options, options, &o));
    hl_copy_measure(); /* chunks are bulk data, to a device or to the pool */
    return open_client(&o, out);
}

void hybridps_close(hybridps *h)
{
    /* A forked child does not have the client's threads, and must not end what its parent uses. */
    if (h != NULL && h->pid == getpid())
        free_client(h);
}

hl_status client_enter_ending(hybridps *h)
{
    if (h == NULL)
        return hl_fail(HL_EINVAL, "the client is NULL");
    if (h->pid != getpid())
        return hl_fail(HL_EPERM,
                       "process %d is a fork of %d, and only the latter may use its device: open "
                       "another client",
                       (int)getpid(), (int)h->pid);
    hl_pagefault_suspend(); /* serving a fault takes the lock */
    pthread_mutex_lock(&h->lock);
    return HL_OK;
}

hl_status client_enter(hybridps *h)
{
    HL_TRY(client_enter_ending(h));
    if (!h->ending)
        return HL_OK;
    return client_leave(h, hl_fail(HL_EINVAL, "the client is being closed: its memory is kept"));
}

int client_leave(hybridps *h, hl_status st)
{
    pthread_mutex_unlock(&h->lock);
    hl_pagefault_resume();
    return st;
}

/* ---- tensors ---- */

int hybridps_add(hybridps *h, const char *name, int kind, uint64_t bytes, uint32_t *tensor)
{
    HL_TRY(client_enter(h));
    return client_leave(h,
                        hl_tensors_add(&h->tensors, name != NULL ? name : "", kind, bytes, tensor));
}

int hybridps_layout(hybridps *h)
{
    struct hl_chunk_pool_stats s;
    HL_TRY(client_enter(h));
    hl_chunk_pool_stats(h->pool, &s);
    /* Where no chunk size is given, several chunks must fit the device at once. */
    uint64_t most =
        s.capacity / CHUNKS_MIN < CHUNK_BYTES_MAX ? s.capacity / CHUNKS_MIN : CHUNK_BYTES_MAX;
    most = most > s.granule ? most : s.granule;
    return client_leave(h, hl_tensors_layout(&h->tensors, h->pool, h->chunk_bytes, most));
}

static hl_status find_tensor(const struct hybridps *h, uint32_t tensor,
                             const struct hl_tensor **out)
{
    if (tensor >= h->tensors.count)
        return hl_fail(HL_ENOENT, "there is no tensor %" PRIu32 "; %" PRIu32 " were registered",
                       tensor, h->tensors.count);
    *out = &h->tensors.list[tensor];
    return HL_OK;
}

static void *address_of(const struct hybridps *h, const struct hl_tensor *x, int where)
{
    struct hl_chunk_info info;
    hl_chunk_pool_info(h->pool, x->chunk, &info);
    uint8_t *base = where == HYBRIDPS_HOST ? info.host : (uint8_t *)(uintptr_t)info.address;
    return base + x->offset;
}

int hybridps_address(hybridps *h, uint32_t tensor, int where, void **address)
{
    const struct hl_tensor *x = NULL;
    HL_TRY(client_enter(h));
    hl_status st = find_tensor(h, tensor, &x);
    if (st == HL_OK && x->chunk == HL_TENSOR_NONE)
        st = hl_fail(HL_EINVAL, "tensor \"%s\" has no chunk yet: make a layout first", x->name);
    if (st == HL_OK && where != HYBRIDPS_HOST && where != HYBRIDPS_DEVICE)
        st = hl_fail(HL_EINVAL, "tensor \"%s\": %d is neither host nor device", x->name, where);
    if (st == HL_OK)
        *address = address_of(h, x, where);
    return client_leave(h, st);
}

int hybridps_tensor(hybridps *h, uint32_t tensor, hybridps_tensor_info *out)
{
    const struct hl_tensor *x = NULL;
    hybridps_tensor_info told;
    HL_TRY(client_enter(h));
    hl_status st = find_tensor(h, tensor, &x);
    if (st == HL_OK) {
        struct hl_chunk_info info = {0};
        hl_chunk_pool_settle_ahead(h->pool); /* so that the result stays valid */
        if (x->chunk != HL_TENSOR_NONE)
            hl_chunk_pool_info(h->pool, x->chunk, &info);
        bool has = x->state != HYBRIDPS_FREE;
        told = (hybridps_tensor_info){.chunk = x->chunk,
                                      .offset = x->offset,
                                      .bytes = x->bytes,
                                      .kind = x->kind,
                                      .state = x->state,
                                      .on_host = has && info.on_host && !info.below,
                                      .on_device = has && info.on_device,
                                      .chunk_bytes = info.bytes};
        st = HL_ABI_WRITE(hybridps_tensor_info, &told, out);
    }
    return client_leave(h, st);
}

/* ---- moments ---- */

static uint64_t avail_beside(const struct hybridps *h, uint64_t other)
{
    struct hl_chunk_pool_stats s;
    hl_chunk_pool_stats(h->pool, &s);
    return other < s.capacity ? s.capacity - other : 0;
}

static void set_moment(struct hybridps *h, const char *stage, const char *op, uint64_t other)
{
    if (stage != h->stage)
        snprintf(h->stage, sizeof(h->stage), "%s", stage != NULL ? stage : "");
    if (op != h->op)
        snprintf(h->op, sizeof(h->op), "%s", op != NULL ? op : "");
    h->other = other;
}

static hl_status begin_moment(struct hybridps *h, uint64_t other)
{
    uint64_t avail = avail_beside(h, other);
    struct hl_chunk_pool_stats before;
    hl_chunk_pool_stats(h->pool, &before);
    hl_record_expect(&h->record);
    hl_chunk_pool_moment(h->pool, avail);
    hl_status st = hl_chunk_pool_access(h->pool, NULL, 0);
    if (st != HL_OK) {
        hl_chunk_pool_moment(h->pool, before.avail);
        return st;
    }
    h->moments++;
    h->begun = 1;
    h->released = 0;
    return HL_OK;
}

int hybridps_moment(hybridps *h, const char *stage, const char *op, uint64_t other_bytes)
{
    char old_stage[sizeof(h->stage)], old_op[sizeof(h->op)];
    HL_TRY(client_enter(h));
    uint64_t old_other = h->other;
    memcpy(old_stage, h->stage, sizeof(old_stage));
    memcpy(old_op, h->op, sizeof(old_op));
    set_moment(h, stage, op, other_bytes);
    hl_status st = begin_moment(h, other_bytes);
    if (st == HL_OK) {
        hl_record_moment(&h->record, h->stage, h->op, avail_beside(h, other_bytes));
    } else {
        st = client_explain(h, st, NULL, 0);
        set_moment(h, old_stage, old_op, old_other);
    }
    return client_leave(h, st);
}

/* Without an order, the least recently used chunk leaves. */
static void make_order(struct hybridps *h)
{
    hl_next_use_free(h->order);
    h->order = NULL;
    if (h->record.following && hl_next_use_make(&h->record.phase->trace, &h->order) != HL_OK)
        hl_error_clear();
}

static hybridps_traffic traffic_since(hybridps_traffic a, hybridps_traffic b)
{
    return (hybridps_traffic){.h2d = a.h2d - b.h2d,
                              .d2h = a.d2h - b.d2h,
                              .loads = a.loads - b.loads,
                              .evictions = a.evictions - b.evictions,
                              .drops = a.drops - b.drops,
                              .stalls = a.stalls - b.stalls,
                              .stall_ns = a.stall_ns - b.stall_ns};
}

int hybridps_iteration(hybridps *h, const char *phase)
{
    struct hl_chunk_pool_stats s;
    HL_TRY(client_enter(h));
    int running = h->record.phase != NULL;
    hl_chunk_pool_give_back(h->pool);
    hl_status st = hl_record_iteration(&h->record, phase);
    if (st == HL_OK) {
        make_order(h);
        hl_chunk_pool_stats(h->pool, &s);
        if (running)
            h->last = traffic_since(s.total, h->at_start);
        h->at_start = s.total;
        h->iterations += phase != NULL;
        h->moments = 0;
        h->begun = h->released = 0;
    }
    return client_leave(h, st);
}

/* ---- access and release ---- */

static hl_status room_for_uses(struct hybridps *h, size_t n)
{
    if (n <= h->uses_cap)
        return HL_OK;
    struct hl_trace_use *uses = realloc(h->uses, n * sizeof(*uses));
    if (uses == NULL)
        return hl_fail(HL_ENOMEM, "out of memory allocating %zu tensors", n);
    h->uses = uses;
    h->uses_cap = n;
    return HL_OK;
}

/* Begins a moment if the caller has not begun one. Everything that a moment needs is pinned
 * together, so an access after a release belongs to another moment. */
static hl_status own_moment(struct hybridps *h)
{
    if (h->record.phase == NULL || (h->begun && !h->released))
        return HL_OK;
    HL_TRY(begin_moment(h, h->other));
    hl_record_moment(&h->record, h->stage, h->op, avail_beside(h, h->other));
    return HL_OK;
}

static void note_access(struct hybridps *h, hybridps_use *uses, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        struct hl_tensor *x = &h->tensors.list[uses[i].tensor];
        if (x->state == HYBRIDPS_FREE)
            h->tensors.chunks[x->chunk].live++;
        x->state = HYBRIDPS_COMPUTE;
        x->where = uses[i].where;
        x->pins++;
        uses[i].address = address_of(h, x, uses[i].where);
        if (h->record.phase != NULL)
            hl_record_need(&h->record, x->chunk, uses[i].where == HYBRIDPS_HOST,
                           uses[i].write != 0);
    }
}

int hybridps_access(hybridps *h, hybridps_use *uses, size_t n)
{
    HL_TRY(client_enter(h));
    hl_status st = hl_tensors_check_access(&h->tensors, uses, n);
    if (st == HL_OK)
        st = room_for_uses(h, n);
    if (st != HL_OK || n == 0)
        return client_leave(h, st == HL_OK ? st : client_explain(h, st, NULL, 0));
    for (size_t i = 0; i < n; i++)
        h->uses[i] = (struct hl_trace_use){.chunk = h->tensors.list[uses[i].tensor].chunk,
                                           .on_host = uses[i].where == HYBRIDPS_HOST,
                                           .write = uses[i].write != 0};
    st = own_moment(h);
    if (st == HL_OK)
        st = hl_chunk_pool_access(h->pool, h->uses, n);
    if (st == HL_OK) {
        note_access(h, uses, n);
        hl_record_ahead(&h->record, h->prefetch);
    } else {
        st = client_explain(h, st, uses, n);
    }
    return client_leave(h, st);
}

static void become_free(struct hybridps *h, struct hl_tensor *x)
{
    x->state = HYBRIDPS_FREE;
    if (--h->tensors.chunks[x->chunk].live > 0)
        return;
    hl_chunk_pool_end(h->pool, x->chunk);
    if (h->record.phase != NULL)
        hl_record_free(&h->record, x->chunk);
}

int hybridps_release(hybridps *h, const uint32_t *tensors, size_t n, int state)
{
    HL_TRY(client_enter(h));
    hl_status st = hl_tensors_check_release(&h->tensors, tensors, n, state);
    for (size_t i = 0; i < n && st == HL_OK; i++) {
        struct hl_tensor *x = &h->tensors.list[tensors[i]];
        hl_chunk_pool_release(h->pool, x->chunk, x->where == HYBRIDPS_HOST);
        if (--x->pins > 0)
            continue;
        x->state = state;
        if (state == HYBRIDPS_FREE)
            become_free(h, x);
    }
    h->released |= st == HL_OK && n > 0;
    return client_leave(h, st == HL_OK ? st : client_explain(h, st, NULL, 0));
}

int hybridps_drop(hybridps *h, const uint32_t *tensors, size_t n)
{
    HL_TRY(client_enter(h));
    hl_status st = hl_tensors_check_drop(&h->tensors, tensors, n);
    for (size_t i = 0; i < n && st == HL_OK; i++)
        if (h->tensors.list[tensors[i]].state != HYBRIDPS_FREE)
            become_free(h, &h->tensors.list[tensors[i]]);
    return client_leave(h, st);
}

/* ---- statistics ---- */

int hybridps_stats(hybridps *h, hybridps_stats_t *out)
{
    struct hl_chunk_pool_stats s;
    HL_TRY(client_enter(h));
    hl_chunk_pool_stats(h->pool, &s);
    hybridps_stats_t told = {.capacity = s.capacity,
                             .granule = s.granule,
                             .avail = s.avail,
                             .device = s.device,
                             .device_peak = s.device_peak,
                             .host = s.host,
                             .host_peak = s.host_peak,
                             .pinned = s.pinned,
                             .peak_over_avail = s.peak_over_avail,
                             .tensors = h->tensors.count,
                             .chunks = s.chunks,
                             .iterations = h->iterations,
                             .moments = h->moments,
                             .deviations = h->record.deviations,
                             .planned = h->record.following && h->record.phase->plan != NULL,
                             .total = s.total,
                             .iteration = traffic_since(s.total, h->at_start),
                             .last = h->last,
                             .spilled = s.below,
                             .spilled_peak = s.below_peak,
                             .spill_out = s.below_out,
                             .spill_in = s.below_in,
                             .host_limit = h->host_limit,
                             .faults = s.faults,
                             .fault_bytes = s.fault_bytes,
                             .given_back_bytes = s.given_back};
    memcpy(told.device_by_kind, s.device_by_kind, sizeof(told.device_by_kind));
    memcpy(told.host_by_kind, s.host_by_kind, sizeof(told.host_by_kind));
    return client_leave(h, HL_ABI_WRITE(hybridps_stats_t, &told, out));
}

int hybridps_trace(hybridps *h, const char *phase, char **json)
{
    const struct hl_trace *t = NULL;
    HL_TRY(client_enter(h));
    hl_status st = hl_record_find(&h->record, phase, &t);
    if (st == HL_OK)
        st = hl_trace_print(t, json);
    return client_leave(h, st);
}

void hybridps_free_text(char *text)
{
    free(text);
}
