/* net/ucx/tickets.c - what a client gets over TCP and presents over RDMA.
 *
 *     tickets[]   ring of HL_UCX_TICKETS: the oldest is overwritten; each is valid HL_UCX_TICKET_NS
 *
 * The data port's threads issue tickets and the progress thread looks them up, both under `door`. A
 * look-up does not use a ticket up: a client can reconnect with it while it is valid. `door` is
 * only held for one pass over the ring, because the progress thread takes it between two messages.
 */
#include "base/clock.h"
#include "net/ucx/server.h"

void hl_ucx_server_meet(struct hl_net_server *s, unsigned *port, struct hl_id *ticket)
{
    struct hl_ucx_ticket made = {hl_id_random(), hl_now_ns()};
    pthread_mutex_lock(&s->door);
    s->tickets[s->next_ticket++ % HL_UCX_TICKETS] = made;
    pthread_mutex_unlock(&s->door);
    *port = s->port;
    *ticket = made.id;
}

bool hl_ucx_server_knows(struct hl_net_server *s, struct hl_id ticket)
{
    bool known = !s->asks_ticket;
    uint64_t now = hl_now_ns();
    pthread_mutex_lock(&s->door);
    for (size_t i = 0; i < HL_UCX_TICKETS; i++) {
        const struct hl_ucx_ticket *t = &s->tickets[i];
        known |= !hl_id_is_none(t->id) && hl_id_equal(t->id, ticket) &&
                 now - t->since_ns < HL_UCX_TICKET_NS;
    }
    pthread_mutex_unlock(&s->door);
    return known;
}
