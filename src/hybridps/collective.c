/* Groups: arguments are checked, sums are made where a transport has none, and what was lost stays
 * lost. The managed results are made of the public calls. */
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "hybridps/collective.h"

#define PIECE (1u << 20) /* of each rank, where sums are made of an allgather */

struct hybridps_group {
    hybridps_transport t;
    pthread_mutex_t lock;
    pid_t pid;
    char lost[HL_ERROR_TEXT_MAX]; /* why; "" = it is not */
};

static hl_status make_group(const hybridps_transport *t, hybridps_group **out)
{
    struct hybridps_group *g = calloc(1, sizeof(*g));
    if (g == NULL)
        return hl_fail(HL_ENOMEM, "memory is short for a group");
    g->t = *t;
    g->pid = getpid();
    pthread_mutex_init(&g->lock, NULL);
    *out = g;
    return HL_OK;
}

int hybridps_group_over(const hybridps_transport *transport, hybridps_group **out)
{
    if (transport == NULL || out == NULL || transport->allgather == NULL ||
        transport->broadcast == NULL)
        return hl_fail(HL_EINVAL, "a group's transport has at least allgather and broadcast");
    if (transport->world < 1 || transport->world > HL_COLLECTIVE_RANKS || transport->rank < 0 ||
        transport->rank >= transport->world)
        return hl_fail(HL_EINVAL, "rank %d of %d: ranks are 0 to world - 1, at most %d of them",
                       transport->rank, transport->world, HL_COLLECTIVE_RANKS);
    return make_group(transport, out);
}

int hybridps_group_shm(const hybridps_shm_options *options, hybridps_group **out)
{
    hybridps_transport t;
    if (options == NULL || out == NULL)
        return hl_fail(HL_EINVAL, "a group wants options and a place for the result");
    HL_TRY(hl_collective_shm_open(options, &t));
    hl_status st = make_group(&t, out);
    if (st != HL_OK)
        t.close(t.arg);
    return st;
}

void hybridps_group_close(hybridps_group *g)
{
    if (g == NULL)
        return;
    if (g->t.close != NULL)
        g->t.close(g->t.arg);
    pthread_mutex_destroy(&g->lock);
    free(g);
}

int hybridps_group_rank(const hybridps_group *g)
{
    return g != NULL ? g->t.rank : 0;
}

int hybridps_group_world(const hybridps_group *g)
{
    return g != NULL ? g->t.world : 1;
}

/* ---- calls ---- */

static hl_status enter(hybridps_group *g)
{
    if (g == NULL)
        return hl_fail(HL_EINVAL, "there is no group");
    if (g->pid != getpid())
        return hl_fail(HL_EPERM,
                       "process %d is a fork of %d, which alone is rank %d of its group: join "
                       "another group",
                       (int)getpid(), (int)g->pid, g->t.rank);
    pthread_mutex_lock(&g->lock);
    if (g->lost[0] == '\0')
        return HL_OK;
    pthread_mutex_unlock(&g->lock);
    return hl_fail(HL_EUNAVAIL, "the group is lost, join another one: %s", g->lost);
}

/* After its arguments were found right a call fails only by what others did. */
static int leave(hybridps_group *g, int code)
{
    if (code != 0) {
        const char *own = g->t.why != NULL ? g->t.why(g->t.arg) : NULL;
        if (own != NULL && own[0] != '\0')
            (void)hl_fail((hl_status)code, "%s", own);
        snprintf(g->lost, sizeof(g->lost), "%s", hl_error_text());
    }
    pthread_mutex_unlock(&g->lock);
    return code;
}

static int sum_pieces(hybridps_group *g, const char *what, uint8_t *data, uint64_t bytes, int type)
{
    const hybridps_transport *t = &g->t;
    const void *parts[HL_COLLECTIVE_RANKS];
    uint64_t most = bytes < PIECE ? bytes : PIECE;
    HL_AUTO(hl_freep) uint8_t *all = malloc((size_t)t->world * most);
    if (all == NULL)
        return hl_fail(HL_ENOMEM, "memory is short for %d pieces of %" PRIu64 " bytes", t->world,
                       most);
    for (uint64_t at = 0; at < bytes; at += most) {
        uint64_t here = bytes - at < most ? bytes - at : most;
        int code = t->allgather(t->arg, what, data + at, all, here);
        if (code != 0)
            return code;
        for (int r = 0; r < t->world; r++)
            parts[r] = all + (uint64_t)r * here;
        hl_collective_sum(data + at, parts, t->world, type, 0, here / hl_collective_size(type));
    }
    return 0;
}

static const char *name_of(const char *what)
{
    return what != NULL ? what : "";
}

int hybridps_group_allreduce(hybridps_group *g, const char *what, void *data, uint64_t n, int type,
                             int op)
{
    size_t size = hl_collective_size(type);
    if (size == 0 || (op != HYBRIDPS_SUM && op != HYBRIDPS_MEAN))
        return hl_fail(HL_EINVAL, "allreduce of \"%s\": there is no type %d or no operation %d",
                       name_of(what), type, op);
    if (data == NULL && n > 0)
        return hl_fail(HL_EINVAL, "allreduce of \"%s\": no data", name_of(what));
    HL_TRY(enter(g));
    const hybridps_transport *t = &g->t;
    int code = 0;
    if (n > 0 && t->world > 1)
        code = t->allreduce != NULL ? t->allreduce(t->arg, name_of(what), data, n, type)
                                    : sum_pieces(g, name_of(what), data, n * size, type);
    if (code == 0 && op == HYBRIDPS_MEAN && t->world > 1)
        hl_collective_divide(data, n, type, t->world);
    return leave(g, code);
}

int hybridps_group_broadcast(hybridps_group *g, const char *what, void *data, uint64_t bytes,
                             int src)
{
    if (g != NULL && (src < 0 || src >= g->t.world))
        return hl_fail(HL_EINVAL, "broadcast of \"%s\": src is %d, there are ranks 0 to %d",
                       name_of(what), src, g->t.world - 1);
    if (data == NULL && bytes > 0)
        return hl_fail(HL_EINVAL, "broadcast of \"%s\": no data", name_of(what));
    HL_TRY(enter(g));
    int code = 0;
    if (bytes > 0 && g->t.world > 1)
        code = g->t.broadcast(g->t.arg, name_of(what), data, bytes, src);
    return leave(g, code);
}

int hybridps_group_allgather(hybridps_group *g, const char *what, const void *mine, void *all,
                             uint64_t bytes)
{
    if ((mine == NULL || all == NULL) && bytes > 0)
        return hl_fail(HL_EINVAL, "allgather of \"%s\": no data", name_of(what));
    HL_TRY(enter(g));
    int code = 0;
    if (bytes > 0 && g->t.world > 1)
        code = g->t.allgather(g->t.arg, name_of(what), mine, all, bytes);
    else if (bytes > 0)
        memcpy(all, mine, bytes);
    return leave(g, code);
}

/* ---- managed results ---- */

/* Its place on the host, with `local` in it. */
static hl_status begin_result(hybridps *h, const char *name, const void *local, uint64_t bytes,
                              uint32_t *tensor, void **data)
{
    hybridps_tensor_info info;
    if (local == NULL || bytes == 0 || tensor == NULL)
        return hl_fail(HL_EINVAL, "\"%s\": a result has at least one byte and a number",
                       name_of(name));
    if (*tensor == HYBRIDPS_NEW) {
        HL_TRY((hl_status)hybridps_add(h, name, HYBRIDPS_OTHER, bytes, tensor));
        HL_TRY((hl_status)hybridps_layout(h));
    }
    HL_TRY((hl_status)hybridps_tensor(h, *tensor, &info));
    if (info.bytes != bytes || info.state == HYBRIDPS_COMPUTE)
        return hl_fail(HL_EINVAL,
                       "\"%s\" has %" PRIu64 " bytes, its tensor %" PRIu32 " has %" PRIu64 "%s",
                       name_of(name), bytes, *tensor, info.bytes,
                       info.state == HYBRIDPS_COMPUTE ? " and is in use" : "");
    hybridps_use use = {.tensor = *tensor, .where = HYBRIDPS_HOST, .write = 1};
    HL_TRY((hl_status)hybridps_access(h, &use, 1));
    memcpy(use.address, local, bytes);
    *data = use.address;
    return HL_OK;
}

/* What others sent in part is no content. The text is that of `code`. */
static int end_result(hybridps *h, uint32_t tensor, int code)
{
    char text[HL_ERROR_TEXT_MAX];
    snprintf(text, sizeof(text), "%s", hl_error_text());
    int rc = hybridps_release(h, &tensor, 1, code == 0 ? HYBRIDPS_HOLD : HYBRIDPS_FREE);
    return code != 0 ? hl_fail((hl_status)code, "%s", text) : rc;
}

int hybridps_allreduce(hybridps *h, hybridps_group *g, const char *name, const void *local,
                       uint64_t n, int type, int op, uint32_t *tensor)
{
    void *data = NULL;
    size_t size = hl_collective_size(type);
    if (size == 0 || (op != HYBRIDPS_SUM && op != HYBRIDPS_MEAN))
        return hl_fail(HL_EINVAL, "allreduce of \"%s\": there is no type %d or no operation %d",
                       name_of(name), type, op);
    HL_TRY(begin_result(h, name, local, n * size, tensor, &data));
    int code = g != NULL ? hybridps_group_allreduce(g, name, data, n, type, op) : 0;
    return end_result(h, *tensor, code);
}

int hybridps_broadcast(hybridps *h, hybridps_group *g, const char *name, const void *local,
                       uint64_t bytes, int src, uint32_t *tensor)
{
    void *data = NULL;
    int world = hybridps_group_world(g);
    if (src < 0 || src >= world)
        return hl_fail(HL_EINVAL, "broadcast of \"%s\": src is %d, there are ranks 0 to %d",
                       name_of(name), src, world - 1);
    HL_TRY(begin_result(h, name, local, bytes, tensor, &data));
    int code = g != NULL ? hybridps_group_broadcast(g, name, data, bytes, src) : 0;
    return end_result(h, *tensor, code);
}
