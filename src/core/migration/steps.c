/* The phases of one move: how it reacts to each answer, timeout and loss of a holder.
 *
 * The surplus copy is the one not in force: before the switch the goal's, afterwards the one at
 * `from`. A reversal exchanges them. Cleaning and undoing work the same for both:
 *
 *     grace --> CHECK --surplus is not there------------------------------------> ENDING
 *                 | --the survivor and enough domains are confirmed--> DROP ----> ENDING
 *                 | --cleaning, only `from` is confirmed: in force again--> REVERTING
 *                 | --cleaning, the caller needs the surplus: it is left---------> ENDING
 *                 '-- anything else: again after retry_ms; at the deadline it is left: ENDING */
#include "core/migration/migration_private.h"

static int64_t time_after(int64_t now_ms, int64_t by_ms)
{
    return by_ms > MOVE_NEVER - now_ms ? MOVE_NEVER : now_ms + by_ms;
}

static struct hl_move_action *move_ask(struct hl_migration *m, struct hl_move *mv,
                                       enum hl_move_action_kind kind)
{
    struct hl_move_action *a = migration_act(m, mv, kind);
    mv->asked = a->order;
    mv->asked_for = kind;
    return a;
}

static void move_set(struct hl_migration *m, struct hl_move *mv, enum hl_move_phase phase)
{
    migration_set_phase(m, mv, phase);
    mv->asked = 0;
    mv->due_ms = MOVE_NEVER;
    mv->wake_ms = MOVE_NEVER;
}

/* Writes the move's record to the journal; the phase begins with its commit. */
static void move_write(struct hl_migration *m, struct hl_move *mv)
{
    struct hl_move_action *a = move_ask(m, mv, HL_MOVE_WRITE);
    if (mv->rec.phase == HL_MOVE_PHASE_DECIDED)
        a->rec.phase = HL_MOVE_PHASE_COPYING;
    if (mv->rec.phase == HL_MOVE_PHASE_SWITCHING) {
        a->rec.phase = HL_MOVE_PHASE_CLEANING;
        a->rec.switched_ms = m->now_ms;
    }
    if (mv->rec.phase == HL_MOVE_PHASE_REVERTING)
        a->rec.phase = HL_MOVE_PHASE_UNDOING;
}

static void move_retry(struct hl_migration *m, struct hl_move *mv)
{
    mv->asked = 0;
    mv->wake_ms = time_after(m->now_ms, m->opts.retry_ms);
}

/* The surplus copy was offered to readers until now. */
static void move_hidden(struct hl_migration *m, struct hl_move *mv)
{
    mv->grace_ms = time_after(m->now_ms, m->opts.grace_ms);
}

/* ---- from phase to phase --------------------------------------------------------------------- */

void move_end(struct hl_migration *m, struct hl_move *mv, hl_status st)
{
    mv->rec.status = st;
    mv->rec.phase = HL_MOVE_PHASE_ENDED;
    struct hl_move_action *a = migration_act(m, mv, HL_MOVE_ENDED);
    a->status = st;
    a->place = move_surplus(mv);
    a->left = mv->left;
    a->kept = mv->left && mv->kept;
    migration_remove(m, mv);
}

static void move_erase(struct hl_migration *m, struct hl_move *mv, bool left)
{
    if (mv->in_force && !mv->forgotten)
        mv->rec.status = HL_OK; /* a stop ordered meanwhile came too late: the move is done */
    mv->left = left;
    move_set(m, mv, HL_MOVE_PHASE_ENDING);
    move_ask(m, mv, HL_MOVE_ERASE);
}

static void move_switch(struct hl_migration *m, struct hl_move *mv)
{
    move_set(m, mv, HL_MOVE_PHASE_SWITCHING);
    move_write(m, mv);
}

/* The source is in force again. Nothing at the goal is dropped until the journal says so. */
static void move_revert(struct hl_migration *m, struct hl_move *mv, hl_status st)
{
    if (mv->rec.phase == HL_MOVE_PHASE_COPYING && mv->restored && !mv->stopping)
        migration_act(m, mv, HL_MOVE_STOP); /* an earlier Controller's copy may still run */
    if (mv->rec.status == HL_OK)
        mv->rec.status = st;
    mv->in_force = false;
    mv->kept = false;
    mv->dropping = false;
    move_set(m, mv, HL_MOVE_PHASE_REVERTING);
    move_write(m, mv);
}

/* Begins to clean or to undo. */
static void move_clean(struct hl_migration *m, struct hl_move *mv, enum hl_move_phase phase)
{
    int64_t begin_ms = mv->grace_ms > m->now_ms ? mv->grace_ms : m->now_ms;
    move_set(m, mv, phase);
    mv->due_ms = time_after(begin_ms, m->opts.clean_ms);
    mv->wake_ms = begin_ms;
    if (move_keeps_surplus(mv) && !mv->stopping)
        move_erase(m, mv, true);
    else if (migration_is_gone(m, move_surplus(mv)))
        move_erase(m, mv, true);
    else if (mv->stopping || migration_is_gone(m, move_survivor(mv)))
        mv->wake_ms = m->now_ms;
}

static void move_copy(struct hl_migration *m, struct hl_move *mv)
{
    int64_t copy_ms = mv->rec.order.copy_ms > 0 ? mv->rec.order.copy_ms : m->opts.copy_ms;
    move_set(m, mv, HL_MOVE_PHASE_COPYING);
    mv->due_ms = time_after(m->now_ms, copy_ms);
    move_ask(m, mv, HL_MOVE_COPY);
}

void move_begin(struct hl_migration *m, struct hl_move *mv)
{
    move_set(m, mv, HL_MOVE_PHASE_DECIDED);
    mv->rec.began_ms = m->now_ms;
    move_write(m, mv);
}

/* Resumes a move whose orders by an earlier Controller may have been carried out. */
void move_resume(struct hl_migration *m, struct hl_move *mv, enum hl_move_phase phase)
{
    mv->in_force = phase == HL_MOVE_PHASE_CLEANING;
    mv->restored = true;
    move_hidden(m, mv);
    if (phase == HL_MOVE_PHASE_COPYING) {
        move_set(m, mv, phase);
        mv->due_ms = time_after(m->now_ms, m->opts.clean_ms);
        mv->wake_ms = m->now_ms;
        return;
    }
    mv->dropping = true;
    move_clean(m, mv, phase);
}

/* ---- answers --------------------------------------------------------------------------------- */

static void move_switched(struct hl_migration *m, struct hl_move *mv)
{
    mv->in_force = true;
    mv->rec.switched_ms = m->now_ms;
    move_hidden(m, mv);
    migration_act(m, mv, HL_MOVE_SWITCHED);
    move_clean(m, mv, HL_MOVE_PHASE_CLEANING);
}

static void move_reverted(struct hl_migration *m, struct hl_move *mv)
{
    mv->stopping = false;
    if (mv->rec.switched_ms != 0) {
        move_hidden(m, mv);
        migration_act(m, mv, HL_MOVE_REVERTED);
    }
    move_clean(m, mv, HL_MOVE_PHASE_UNDOING);
}

void move_journaled(struct hl_migration *m, struct hl_move *mv, hl_status st)
{
    if (mv->rec.phase == HL_MOVE_PHASE_ENDING) {
        if (st == HL_OK)
            move_end(m, mv, mv->rec.status);
        else
            move_retry(m, mv);
    } else if (mv->forgotten) {
        move_erase(m, mv, true);
    } else if (mv->rec.phase == HL_MOVE_PHASE_DECIDED) {
        if (st != HL_OK)
            mv->rec.status = st;
        if (st != HL_OK || mv->stopping)
            move_erase(m, mv, false);
        else
            move_copy(m, mv);
    } else if (mv->rec.phase == HL_MOVE_PHASE_SWITCHING) {
        if (st == HL_OK)
            move_switched(m, mv);
        else
            move_revert(m, mv, st);
    } else if (mv->rec.phase == HL_MOVE_PHASE_REVERTING) {
        if (st == HL_OK)
            move_reverted(m, mv);
        else
            move_retry(m, mv);
    }
}

void move_copied(struct hl_migration *m, struct hl_move *mv, hl_status st, uint64_t size_bytes,
                 uint32_t crc32)
{
    bool right = size_bytes == mv->rec.order.size_bytes && crc32 == mv->rec.order.crc32;
    if (mv->stopping)
        move_revert(m, mv, mv->rec.status);
    else if (st != HL_OK)
        move_revert(m, mv, st);
    else if (!right)
        move_revert(m, mv, HL_ECORRUPT);
    else
        move_switch(m, mv);
}

struct confirmed {
    bool surplus, survivor;
    uint32_t domains; /* without the surplus and device memory */
};

static struct confirmed confirmed_of(const struct hl_move *mv, const struct hl_move_copy *copies,
                                     size_t count)
{
    struct confirmed c = {0};
    for (size_t i = 0; i < count; i++) {
        bool right = copies[i].size_bytes == mv->rec.order.size_bytes &&
                     copies[i].crc32 == mv->rec.order.crc32;
        bool surplus = place_equal(copies[i].place, move_surplus(mv));
        if (!right)
            continue;
        c.surplus |= surplus;
        c.survivor |= place_equal(copies[i].place, move_survivor(mv));
        bool counts = !surplus && copies[i].place.tier != HL_API_TIER_L1;
        for (size_t k = 0; k < i && counts; k++) /* each domain counts once */
            counts = copies[k].domain != copies[i].domain ||
                     copies[k].size_bytes != copies[i].size_bytes ||
                     copies[k].crc32 != copies[i].crc32 || copies[k].place.tier == HL_API_TIER_L1 ||
                     place_equal(copies[k].place, move_surplus(mv));
        c.domains += counts;
    }
    return c;
}

static void move_drop(struct hl_migration *m, struct hl_move *mv)
{
    struct hl_move_action *a = move_ask(m, mv, HL_MOVE_DROP);
    a->place = move_surplus(mv);
    mv->dropping = true;
    mv->wake_ms = time_after(m->now_ms, m->opts.retry_ms);
}

static void move_cleaning_checked(struct hl_migration *m, struct hl_move *mv, struct confirmed c)
{
    bool cleaning = mv->rec.phase == HL_MOVE_PHASE_CLEANING;
    if (c.surplus)
        mv->dropping = false; /* the holder ignores drops ordered before the question */
    if (mv->needed && c.survivor)
        move_hidden(m, mv);
    mv->needed = c.surplus && !c.survivor;
    if (cleaning && c.surplus && (mv->stopping || !c.survivor))
        move_revert(m, mv, mv->stopping ? mv->rec.status : HL_ENOENT);
    else if (c.survivor && !c.surplus)
        move_erase(m, mv, false);
    else if (!cleaning && !c.survivor) /* lost, e.g. device memory by a restart */
        move_erase(m, mv, c.surplus);
    else if (move_keeps_surplus(mv) || (cleaning && c.surplus && mv->kept))
        move_erase(m, mv, true);
    else if (m->now_ms < mv->grace_ms)
        mv->wake_ms = mv->grace_ms;
    else if (c.survivor && c.domains >= m->opts.domains)
        move_drop(m, mv);
    else
        move_retry(m, mv);
}

void move_checked(struct hl_migration *m, struct hl_move *mv, hl_status st,
                  const struct hl_move_copy *copies, size_t count)
{
    struct confirmed c = confirmed_of(mv, copies, count);
    mv->asked = 0;
    if (st != HL_OK)
        move_retry(m, mv);
    else if (mv->rec.phase != HL_MOVE_PHASE_COPYING)
        move_cleaning_checked(m, mv, c);
    else if (c.surplus && !mv->stopping) /* the copy has arrived at the goal after all */
        move_switch(m, mv);
    else
        move_revert(m, mv, HL_ESTALE);
}

void move_dropped(struct hl_migration *m, struct hl_move *mv, hl_status st)
{
    if (st == HL_OK || st == HL_ENOENT)
        move_erase(m, mv, false);
    else
        move_retry(m, mv);
}

/* ---- interruptions --------------------------------------------------------------------------- */

void move_stop(struct hl_migration *m, struct hl_move *mv, hl_status st)
{
    if (mv->stopping)
        return;
    mv->stopping = true;
    mv->rec.status = st;
    if (mv->rec.phase == HL_MOVE_PHASE_COPYING) {
        migration_act(m, mv, HL_MOVE_STOP);
        mv->due_ms = time_after(m->now_ms, m->opts.stop_ms);
    }
    if (mv->rec.phase == HL_MOVE_PHASE_CLEANING)
        mv->wake_ms = m->now_ms;
}

void move_forget(struct hl_migration *m, struct hl_move *mv)
{
    enum hl_move_phase phase = mv->rec.phase;
    mv->rec.status = HL_ENOENT;
    mv->forgotten = true;
    if (phase == HL_MOVE_PHASE_WAITING)
        move_end(m, mv, HL_ENOENT);
    if (phase == HL_MOVE_PHASE_COPYING && !mv->stopping)
        migration_act(m, mv, HL_MOVE_STOP);
    /* A record that is still being written is erased once the write is answered. */
    if (phase == HL_MOVE_PHASE_COPYING || phase == HL_MOVE_PHASE_CLEANING ||
        phase == HL_MOVE_PHASE_UNDOING)
        move_erase(m, mv, true);
}

void move_place_gone(struct hl_migration *m, struct hl_move *mv)
{
    bool surplus = migration_is_gone(m, move_surplus(mv));
    bool survivor = migration_is_gone(m, move_survivor(mv));
    enum hl_move_phase phase = mv->rec.phase;
    if (phase == HL_MOVE_PHASE_WAITING && (surplus || survivor)) {
        move_end(m, mv, HL_EUNAVAIL);
    } else if (phase == HL_MOVE_PHASE_DECIDED && surplus) {
        move_stop(m, mv, HL_EUNAVAIL);
    } else if (phase == HL_MOVE_PHASE_COPYING && surplus) {
        move_stop(m, mv, HL_EUNAVAIL);
        move_revert(m, mv, HL_EUNAVAIL);
    } else if (phase == HL_MOVE_PHASE_CLEANING || phase == HL_MOVE_PHASE_UNDOING) {
        if (surplus)
            move_erase(m, mv, true);
        else if (survivor)
            mv->wake_ms = m->now_ms;
    }
}

void move_survivor_back(struct hl_migration *m, struct hl_move *mv)
{
    enum hl_move_phase phase = mv->rec.phase;
    if (phase == HL_MOVE_PHASE_CLEANING || phase == HL_MOVE_PHASE_REVERTING ||
        phase == HL_MOVE_PHASE_UNDOING)
        move_hidden(m, mv);
}

static void move_is_late(struct hl_migration *m, struct hl_move *mv)
{
    enum hl_move_phase phase = mv->rec.phase;
    if (phase == HL_MOVE_PHASE_WAITING)
        move_end(m, mv, HL_ETIMEDOUT);
    else if (phase == HL_MOVE_PHASE_COPYING && !mv->stopping && !mv->restored)
        move_stop(m, mv, HL_ETIMEDOUT);
    else if (phase == HL_MOVE_PHASE_COPYING)
        move_revert(m, mv, HL_ETIMEDOUT);
    else
        move_erase(m, mv, true);
}

void move_wake(struct hl_migration *m, struct hl_move *mv)
{
    if (m->now_ms >= mv->due_ms) {
        move_is_late(m, mv);
    } else if (m->now_ms >= mv->wake_ms) {
        mv->wake_ms = MOVE_NEVER;
        switch (mv->rec.phase) {
        case HL_MOVE_PHASE_REVERTING:
            move_write(m, mv);
            break;
        case HL_MOVE_PHASE_ENDING:
            move_ask(m, mv, HL_MOVE_ERASE);
            break;
        default:
            move_ask(m, mv, HL_MOVE_CHECK);
            mv->wake_ms = time_after(m->now_ms, m->opts.retry_ms);
        }
    }
}
