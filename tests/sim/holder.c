/* A process that holds copies: an Agent with L1 and L2, or the L3 daemon with pool and archive. It
 * obeys orders for a shard in the order of their numbers and those of the newest epoch only, reads
 * from others, and says honestly what it has. */
#include <string.h>

#include "base/crc32.h"
#include "core/migration/epoch.h"
#include "sim/world.h"

static struct snapshot holder_snapshot(const struct holder *h)
{
    struct snapshot snap = {.incarnation = h->incarnation, .epoch = h->epoch, .change = h->change};
    memcpy(snap.obeyed, h->obeyed, sizeof(snap.obeyed));
    for (int slot = 0; slot < SLOTS; slot++)
        for (int s = 0; s < SHARDS; s++)
            snap.copies[slot][s] = h->copies[slot][s].entry;
    return snap;
}

/* Each message shows a newer state than the one before. */
static void holder_tell(struct world *w, int holder, int to, struct message *m)
{
    struct holder *h = &w->holders[holder];
    h->change++;
    m->from = holder;
    m->to = to;
    m->snap = holder_snapshot(h);
    world_send(w, m);
}

static uint32_t holder_used(const struct holder *h, int slot)
{
    uint32_t used = 0;
    for (int s = 0; s < SHARDS; s++)
        used += h->copies[slot][s].entry.has ? h->copies[slot][s].entry.size : 0;
    return used;
}

void holder_put(struct world *w, int holder, int slot, int shard, const uint8_t *bytes,
                uint32_t size)
{
    struct copy *c = &w->holders[holder].copies[slot][shard];
    c->entry = (struct entry){true, size, hl_crc32(0, bytes, size)};
    memcpy(c->bytes, bytes, size);
    c->good = size == w->size[shard] && memcmp(bytes, w->truth[shard], size) == 0;
}

static void copy_lose(struct world *w, struct copy *c)
{
    if (c->good)
        c->lost_step = w->step;
    c->entry.has = false;
    c->good = false;
}

void holder_crash(struct world *w, int holder, bool host)
{
    struct holder *h = &w->holders[holder];
    world_say(w, "holder %d %s", holder, host ? "is lost with its host" : "crashes");
    h->up = false;
    h->crash_step = w->step;
    memset(h->transfers, 0, sizeof(h->transfers));
    memset(h->obeyed, 0, sizeof(h->obeyed));
    memset(h->told_order, 0, sizeof(h->told_order));
    memset(h->stopped, 0, sizeof(h->stopped));
    for (int slot = 0; slot < SLOTS; slot++)
        for (int s = 0; s < SHARDS; s++)
            if ((holder != L3 && slot == 0) || (host && !(holder == L3 && slot == 1)))
                copy_lose(w, &h->copies[slot][s]);
    world_timer(w, &(struct message){.kind = TIMER_RESTART, .to = holder},
                w->now_ms + 20 + world_random(w, 900));
}

/* ---- orders ---------------------------------------------------------------------------------- */

static void holder_answer(struct world *w, int holder, const struct message *order,
                          enum message_kind kind, hl_status st, const struct entry *copy)
{
    struct message m = {.kind = kind,
                        .epoch = order->epoch,
                        .order = order->order,
                        .move = order->move,
                        .shard = order->shard,
                        .slot = order->slot,
                        .st = st};
    if (copy != NULL) {
        m.size = copy->size;
        m.crc = copy->crc;
    }
    holder_tell(w, holder, order->from, &m);
}

static bool holder_obeys(struct world *w, int holder, const struct message *m)
{
    struct holder *h = &w->holders[holder];
    struct hl_epoch newest = {.number = h->epoch};
    hl_status st = hl_epoch_hear(&newest, &(struct hl_epoch){.number = m->epoch});
    if (st != HL_OK && w->mutant != MUTANT_EPOCH)
        return false;
    if (m->order < h->obeyed[m->shard] && w->mutant != MUTANT_ORDER)
        return false;
    h->epoch = (uint32_t)newest.number;
    if (m->order > h->obeyed[m->shard])
        h->obeyed[m->shard] = m->order;
    check_obeyed(w, holder, m);
    return true;
}

/* As the order that it answers. */
static struct message transfer_order(const struct transfer *t, int shard)
{
    return (struct message){.from = t->controller,
                            .epoch = t->epoch,
                            .order = t->order,
                            .move = t->move,
                            .shard = shard,
                            .slot = t->slot};
}

/* By another copy of the shard, or its own STOP; questions and drops let it go on. */
static void transfer_break_off(struct world *w, int holder, const struct message *m)
{
    struct transfer *t = &w->holders[holder].transfers[m->shard];
    struct message order = transfer_order(t, m->shard);
    if (!t->on || t->order == m->order || w->mutant == MUTANT_STOP)
        return;
    if (m->kind == MSG_STOP && !hl_id_equal(t->move, m->move))
        return;
    t->on = false;
    w->stopped += m->kind == MSG_STOP;
    holder_answer(w, holder, &order, MSG_COPIED, HL_ECANCELED, NULL);
}

static void holder_copy(struct world *w, int holder, const struct message *m)
{
    struct holder *h = &w->holders[holder];
    const struct copy *c = &h->copies[m->slot][m->shard];
    if (h->transfers[m->shard].on && h->transfers[m->shard].order == m->order)
        return; /* doubled */
    if (c->entry.has) {
        holder_answer(w, holder, m, MSG_COPIED, HL_OK, &c->entry);
        return;
    }
    h->transfers[m->shard] = (struct transfer){.on = true,
                                               .order = m->order,
                                               .epoch = m->epoch,
                                               .slot = m->slot,
                                               .controller = m->from,
                                               .move = m->move};
    world_send(w, &(struct message){.kind = MSG_READ,
                                    .from = holder,
                                    .to = m->source,
                                    .order = m->order,
                                    .shard = m->shard,
                                    .slot = m->source_slot});
}

static void holder_read(struct world *w, int holder, const struct message *m)
{
    const struct copy *c = &w->holders[holder].copies[m->slot][m->shard];
    struct message data = {.kind = MSG_DATA,
                           .from = holder,
                           .to = m->from,
                           .order = m->order,
                           .shard = m->shard,
                           .st = c->entry.has ? HL_OK : HL_ENOENT,
                           .size = c->entry.has ? c->entry.size : 0};
    memcpy(data.bytes, c->bytes, sizeof(data.bytes));
    world_send(w, &data);
}

static void holder_data(struct world *w, int holder, const struct message *m)
{
    struct holder *h = &w->holders[holder];
    struct transfer *t = &h->transfers[m->shard];
    if (!t->on || t->order != m->order)
        return;
    struct message order = transfer_order(t, m->shard);
    bool room = holder_used(h, t->slot) + m->size <= h->quota[t->slot];
    t->on = false;
    if (hl_id_equal(h->stopped[m->shard], t->move))
        world_break(w, "holder %d ends a copy of shard %d that it was told to stop", holder,
                    m->shard);
    if (m->st == HL_OK && (room || w->mutant == MUTANT_QUOTA)) {
        holder_put(w, holder, order.slot, m->shard, m->bytes, m->size);
        holder_answer(w, holder, &order, MSG_COPIED, HL_OK, &h->copies[order.slot][m->shard].entry);
    } else {
        holder_answer(w, holder, &order, MSG_COPIED, m->st == HL_OK ? HL_ENOSPC : m->st, NULL);
    }
}

static void holder_drop(struct world *w, int holder, const struct message *m)
{
    struct copy *c = &w->holders[holder].copies[m->slot][m->shard];
    hl_status st = c->entry.has ? HL_OK : HL_ENOENT;
    check_drop(w, holder, m);
    w->dropped += c->entry.has;
    c->entry.has = false;
    c->good = false;
    w->lost[m->shard] |= !world_has(w, m->shard, true); /* the others' hosts were lost meanwhile */
    holder_answer(w, holder, m, MSG_DROPPED, st, NULL);
}

static void holder_obey(struct world *w, int holder, const struct message *m)
{
    struct holder *h = &w->holders[holder];
    h->told_epoch = m->epoch > h->told_epoch ? m->epoch : h->told_epoch;
    if (m->order > h->told_order[m->shard])
        h->told_order[m->shard] = m->order;
    if (!holder_obeys(w, holder, m))
        return;
    if (m->kind == MSG_STOP)
        h->stopped[m->shard] = m->move;
    if (m->kind == MSG_STOP || m->kind == MSG_COPY)
        transfer_break_off(w, holder, m);
    if (m->kind == MSG_COPY)
        holder_copy(w, holder, m);
    else if (m->kind == MSG_DROP)
        holder_drop(w, holder, m);
    else if (m->kind == MSG_CHECK)
        holder_answer(w, holder, m, MSG_CHECKED, HL_OK, NULL);
}

/* ---- life ------------------------------------------------------------------------------------ */

static void holder_restart(struct world *w, int holder)
{
    struct holder *h = &w->holders[holder];
    if (h->up)
        return;
    h->up = true;
    h->incarnation++;
    world_timer(w,
                &(struct message){.kind = TIMER_BEAT, .to = holder, .incarnation = h->incarnation},
                w->now_ms + 1);
}

static void holder_beat(struct world *w, int holder)
{
    const struct holder *h = &w->holders[holder];
    for (uint32_t i = 0; i < w->controller_count; i++)
        if (w->controllers[i].alive) {
            struct message m = {.kind = MSG_BEAT, .shard = -1};
            holder_tell(w, holder, CTL + (int)i, &m);
        }
    world_timer(w,
                &(struct message){.kind = TIMER_BEAT, .to = holder, .incarnation = h->incarnation},
                w->now_ms + BEAT_MS);
}

void holder_get(struct world *w, const struct message *m)
{
    struct holder *h = &w->holders[m->to];
    if (m->kind == TIMER_RESTART)
        holder_restart(w, m->to);
    else if (m->kind == TIMER_HEAL)
        h->cut = false;
    else if (!h->up || m->incarnation != h->incarnation)
        return;
    else if (m->kind == TIMER_BEAT)
        holder_beat(w, m->to);
    else if (m->kind == MSG_READ)
        holder_read(w, m->to, m);
    else if (m->kind == MSG_DATA)
        holder_data(w, m->to, m);
    else if (m->kind == MSG_HELLO) {
        h->told_epoch = m->epoch > h->told_epoch ? m->epoch : h->told_epoch;
        h->epoch = m->epoch > h->epoch ? m->epoch : h->epoch;
    } else {
        holder_obey(w, m->to, m);
    }
}
