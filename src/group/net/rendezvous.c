/* How ranks on several hosts find each other: every rank sends a hello to rank 0, whose address it
 * was given, and rank 0 sends all addresses to all ranks.
 *
 *     inbox opened --> hello sent --> rank 0 heard: addresses, group --> outboxes opened --> joined
 *                      ^   | HL_EUNAVAIL: rank 0 is not there yet
 *                      '---'
 *
 * Rank 0 chooses the group's number at random. Until a rank knows it, the rank accepts messages of
 * any group (admit_message), because other ranks may have heard it earlier and have begun. After
 * that, a hello or a left-over message of another group is refused.
 *
 * One deadline, the group's timeout, covers all of it. */
#include <arpa/inet.h>
#include <errno.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/id.h"
#include "group/net/steps.h"

#define MAGIC    0x48504752u
#define VERSION  1
#define AGAIN_MS 100 /* between tries of rank 0's port */
#define PROBE_MS 200
#define STALL_MS 30000 /* a transfer that moves no byte for so long has failed */

/* What a rank says of itself; on the card of rank 0 the table of addresses follows. */
struct card {
    struct hl_net_call call;
    uint64_t group;
    char address[HL_ADDR_TEXT_MAX];
};

/* Finds this host's address as rank 0 sees it. Connecting a UDP socket sends nothing: the kernel
 * chooses the route to rank 0, and with it the local address. */
static hl_status own_address(const char *rank0, int timeout_ms, char *out, size_t cap)
{
    struct hl_addr to;
    struct sockaddr_storage own;
    socklen_t len = sizeof(own);
    char host[INET6_ADDRSTRLEN];
    HL_TRY(hl_addr_resolve(rank0, timeout_ms, &to));
    int fd = socket(to.sa.ss_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    bool ok = fd >= 0 && connect(fd, (struct sockaddr *)&to.sa, to.len) == 0 &&
              getsockname(fd, (struct sockaddr *)&own, &len) == 0;
    hl_status st = ok ? HL_OK : hl_fail(HL_EUNAVAIL, "no route from here to rank 0, %s: %m", rank0);
    if (fd >= 0)
        close(fd);
    HL_TRY(st);
    bool v6 = own.ss_family == AF_INET6;
    const void *bytes = v6 ? (const void *)&((struct sockaddr_in6 *)&own)->sin6_addr
                           : (const void *)&((struct sockaddr_in *)&own)->sin_addr;
    inet_ntop(own.ss_family, bytes, host, sizeof(host));
    snprintf(out, cap, v6 ? "[%s]:0" : "%s:0", host);
    return HL_OK;
}

static hl_status check_net_options(const hybridps_net_options *o)
{
    if (o->address == NULL || o->address[0] == '\0')
        return hl_fail(HL_EINVAL, "a group needs the address of rank 0: \"host:port\"");
    if (o->world < 1 || o->world > HL_COLLECTIVE_RANKS || o->rank < 0 || o->rank >= o->world)
        return hl_fail(
            HL_EINVAL,
            "group at %s: rank %d of %d: ranks are 0 to world - 1, and at most %d are allowed",
            o->address, o->rank, o->world, HL_COLLECTIVE_RANKS);
    if (o->timeout_ms < 0)
        return hl_fail(HL_EINVAL, "group at %s: invalid timeout of %d ms", o->address,
                       o->timeout_ms);
    return HL_OK;
}

/* Opens the inbox first: the card contains its port. */
static hl_status open_box(const hybridps_net_options *o, struct hl_collective_net *g)
{
    char own[HL_ADDR_TEXT_MAX];
    snprintf(own, sizeof(own), "%s", o->listen != NULL ? o->listen : o->address);
    if (o->listen == NULL && o->rank > 0)
        HL_TRY(own_address(o->address, g->timeout_ms, own, sizeof(own)));
    HL_TRY(hl_inbox_open(own, g->world, &g->inbox));
    snprintf(g->ranks[g->rank].address, HL_ADDR_TEXT_MAX, "%s", hl_inbox_address(g->inbox));
    return HL_OK;
}

static struct card card_of(const struct hl_collective_net *g)
{
    struct card c = {.call = {.magic = MAGIC, .version = VERSION, .arg = g->world},
                     .group = g->group};
    snprintf(c.address, sizeof(c.address), "%s", g->ranks[g->rank].address);
    return c;
}

static hl_status read_card(const struct hl_collective_net *g, const struct hl_inbox_message *m,
                           struct card *out)
{
    if (m->size < sizeof(*out))
        return hl_fail(HL_EPROTO, "the hello of rank %d has a wrong size of %zu bytes", m->from,
                       m->size);
    memcpy(out, m->data, sizeof(*out));
    out->address[sizeof(out->address) - 1] = '\0';
    if (out->call.magic != MAGIC || out->call.version != VERSION)
        return hl_fail(HL_EPROTO,
                       "rank %d uses another version of groups: use the same library on all ranks",
                       m->from);
    if (out->call.arg != g->world)
        return hl_fail(HL_ECONFLICT, "rank %d expects %d ranks, rank %d expects %d", m->from,
                       out->call.arg, g->rank, g->world);
    return HL_OK;
}

/* Waits for the outbox's only send, which has a deadline. */
static hl_status await_send(struct hl_collective_net *g, struct hl_outbox *l)
{
    hl_status st;
    const char *words;
    while (hl_outbox_sending(l, &st, &words))
        hl_inbox_wait(g->inbox, hl_now_ns() + AGAIN_MS * HL_NS_PER_MS);
    return st == HL_OK ? HL_OK : hl_fail(st, "%s", words);
}

static int left_ms(uint64_t deadline_ns)
{
    uint64_t now = hl_now_ns();
    return deadline_ns > now ? (int)((deadline_ns - now) / HL_NS_PER_MS) + 1 : 1;
}

/* A name that can't be resolved or a host that doesn't answer proves nothing. Only a host that is
 * up and refuses a connection to a port that accepted one before shows that the rank's process has
 * ended. */
bool hl_collective_gone(struct hl_net_rank *p)
{
    struct hl_addr a;
    if (hl_addr_resolve(p->address, PROBE_MS, &a) != HL_OK) {
        hl_error_clear();
        return false;
    }
    int err = hl_addr_probe(&a, PROBE_MS);
    p->answers |= err == 0;
    return err == ECONNREFUSED && p->answers;
}

/*     rank r                      rank 0
 *      say_hello -- card r -->     hear_all: waits for all cards, keeps the addresses
 *      wait_for_rank0              tell_all: opens an outbox to each
 *      hear_rank0 <-- card 0, all addresses, the group's number --
 *
 * Each rank does all of this in one thread; the inbox's threads only receive messages and wake it.
 *
 * Rank 0 may not be there yet. A refusal by rank 0 is final. */
static hl_status say_hello(struct hl_collective_net *g, uint64_t deadline_ns)
{
    struct card mine = card_of(g);
    struct hl_outbox *l = g->ranks[0].outbox;
    for (;;) {
        HL_TRY(hl_outbox_send(l, HL_INBOX_HELLO, g->rank, 0, &mine, sizeof(mine),
                              left_ms(deadline_ns)));
        hl_status st = await_send(g, l);
        g->ranks[0].answers |= st == HL_OK && hl_outbox_is_tcp(l);
        if (st != HL_EUNAVAIL || hl_now_ns() >= deadline_ns)
            return st;
        hl_inbox_wait(g->inbox, hl_now_ns() + AGAIN_MS * HL_NS_PER_MS);
    }
}

static hl_status wait_for_rank0(struct hl_collective_net *g, uint64_t deadline_ns,
                                struct hl_inbox_message **out)
{
    for (;;) {
        int gone = hl_collective_gone(&g->ranks[0]); /* checked first: it may have sent all */
        uint64_t now = hl_now_ns(), look_ns = now + HL_COLLECTIVE_LOOK_MS * HL_NS_PER_MS;
        if ((*out = hl_inbox_take(g->inbox, HL_INBOX_HELLO, 0, 0)) != NULL)
            return HL_OK;
        if (gone)
            return hl_fail(HL_EUNAVAIL,
                           "rank 0 has heard of rank %d and left before all %d had joined: its own "
                           "error says why",
                           g->rank, g->world);
        if (now >= deadline_ns)
            return hl_fail(HL_ETIMEDOUT,
                           "rank 0 has heard of rank %d, and not of all %d within %d ms", g->rank,
                           g->world, g->timeout_ms);
        hl_inbox_wait(g->inbox, look_ns < deadline_ns ? look_ns : deadline_ns);
    }
}

static hl_status hear_rank0(struct hl_collective_net *g, uint64_t deadline_ns)
{
    struct hl_inbox_message *m = NULL;
    struct card c;
    HL_TRY(say_hello(g, deadline_ns));
    HL_TRY(wait_for_rank0(g, deadline_ns, &m));
    hl_status st = read_card(g, m, &c);
    size_t table = (size_t)g->world * HL_ADDR_TEXT_MAX;
    if (st == HL_OK && m->size != sizeof(c) + table)
        st = hl_fail(HL_EPROTO, "the list of addresses from rank 0 has a wrong size of %zu bytes",
                     m->size);
    for (int r = 0; r < g->world && st == HL_OK; r++) {
        const char *at = (const char *)m->data + sizeof(c) + (size_t)r * HL_ADDR_TEXT_MAX;
        if (r != g->rank && r != 0)
            snprintf(g->ranks[r].address, HL_ADDR_TEXT_MAX, "%.*s", HL_ADDR_TEXT_MAX - 1, at);
    }
    if (st == HL_OK)
        g->group = c.group;
    free(m);
    return st;
}

/* On rank 0: receives every rank's card. */
static hl_status hear_all(struct hl_collective_net *g, uint64_t deadline_ns)
{
    int heard = 1;
    while (heard < g->world) {
        for (int r = 1; r < g->world; r++) {
            struct hl_inbox_message *m = hl_inbox_take(g->inbox, HL_INBOX_HELLO, r, 0);
            struct card c;
            if (m == NULL)
                continue;
            hl_status st = read_card(g, m, &c);
            free(m);
            HL_TRY(st);
            if (g->ranks[r].address[0] != '\0')
                return hl_fail(HL_ECONFLICT, "two processes are rank %d: at %s and at %s", r,
                               g->ranks[r].address, c.address);
            snprintf(g->ranks[r].address, HL_ADDR_TEXT_MAX, "%s", c.address);
            heard++;
        }
        if (heard < g->world && hl_now_ns() >= deadline_ns)
            return hl_fail(HL_ETIMEDOUT, "%d of %d ranks joined within %d ms", heard, g->world,
                           g->timeout_ms);
        if (heard < g->world)
            hl_inbox_wait(g->inbox, deadline_ns);
    }
    return HL_OK;
}

static hl_status open_line(struct hl_collective_net *g, int r)
{
    struct hl_net_rank *p = &g->ranks[r];
    return p->outbox != NULL
               ? HL_OK
               : hl_outbox_open(g->inbox, p->address,
                                g->timeout_ms < STALL_MS ? g->timeout_ms : STALL_MS, &p->outbox);
}

/* All sends begin before the first is waited for. After a failure those that have begun are waited
 * for too, because they use `table`. */
static hl_status tell_all(struct hl_collective_net *g, uint64_t deadline_ns)
{
    size_t size = sizeof(struct card) + (size_t)g->world * HL_ADDR_TEXT_MAX;
    HL_AUTO(hl_freep) uint8_t *table = calloc(1, size);
    struct card mine = card_of(g);
    hl_status st = HL_OK;
    if (table == NULL)
        return hl_fail(HL_ENOMEM, "out of memory allocating a group");
    memcpy(table, &mine, sizeof(mine));
    for (int r = 0; r < g->world; r++)
        memcpy(table + sizeof(mine) + (size_t)r * HL_ADDR_TEXT_MAX, g->ranks[r].address,
               HL_ADDR_TEXT_MAX);
    for (int r = 1; r < g->world && st == HL_OK; r++) {
        st = open_line(g, r);
        if (st == HL_OK)
            st = hl_outbox_send(g->ranks[r].outbox, HL_INBOX_HELLO, 0, 0, table, size,
                                left_ms(deadline_ns));
    }
    for (int r = 1; r < g->world; r++)
        if (g->ranks[r].outbox != NULL) {
            hl_status mine_st = await_send(g, g->ranks[r].outbox);
            st = st == HL_OK ? mine_st : st;
        }
    return st;
}

/* After a failure, what was made stays in `g` for net_close. */
static hl_status join_net(const hybridps_net_options *o, struct hl_collective_net *g)
{
    HL_TRY(check_net_options(o));
    g->rank = o->rank;
    g->world = o->world;
    g->timeout_ms = o->timeout_ms > 0 ? o->timeout_ms : HL_COLLECTIVE_TIMEOUT_MS;
    g->pid = getpid();
    g->number = 1;
    uint64_t deadline_ns = hl_now_ns() + (uint64_t)g->timeout_ms * HL_NS_PER_MS;
    g->ranks = calloc((size_t)g->world, sizeof(*g->ranks));
    if (g->ranks == NULL)
        return hl_fail(HL_ENOMEM, "out of memory allocating a group");
    HL_TRY(open_box(o, g));
    if (g->rank == 0) {
        g->group = hl_random_u64() | 1;
        hl_inbox_join(g->inbox, g->group, 1);
        HL_TRY(hear_all(g, deadline_ns));
        hl_inbox_join(g->inbox, g->group, 0);
        return tell_all(g, deadline_ns);
    }
    snprintf(g->ranks[0].address, HL_ADDR_TEXT_MAX, "%s", o->address);
    HL_TRY(open_line(g, 0));
    HL_TRY(hear_rank0(g, deadline_ns));
    hl_inbox_join(g->inbox, g->group, 0);
    for (int r = 1; r < g->world; r++)
        if (r != g->rank)
            HL_TRY(open_line(g, r));
    return HL_OK;
}

/* With RDMA alone a port accepts no TCP connection; then a refusal proves nothing later. */
static void probe_all(struct hl_collective_net *g)
{
    for (int r = 0; r < g->world; r++)
        if (r != g->rank)
            (void)hl_collective_gone(&g->ranks[r]);
}

hl_status hl_collective_meet(const hybridps_net_options *o, struct hl_collective_net *g)
{
    HL_TRY(join_net(o, g));
    probe_all(g);
    return HL_OK;
}
