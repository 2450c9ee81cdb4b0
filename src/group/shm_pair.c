/* Messages from one rank to another, through the sender's two slots. The description of a message
 * and its receiver change only when all pieces of the last message are taken, so the receiver can
 * read them in place.
 *
 *     sender's row    message, to --> slot 0 | slot 1 --> sent + 1 ... --> taken = sent: done
 *                                     ^ at most two pieces are not taken      ^ the receiver counts
 *
 * Both sides derive the slot from the counts, which never decrease: piece n is in slot n & 1. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "group/shm.h"

static uint8_t *message_slot(const struct hl_collective_shm *g, int sender, uint32_t piece)
{
    uint64_t before = UINT64_C(2) * (g->world + 1) * HL_COLLECTIVE_PIECE;
    uint64_t index = (uint64_t)sender * 2 + (piece & 1);
    return (uint8_t *)(g->s + 1) + before + index * HL_COLLECTIVE_MESSAGE;
}

/* Whether at most `goal` of this rank's pieces are not yet taken by the receiver. */
static int pieces_taken(const struct hl_collective_shm *g, const struct hl_collective_wait *w)
{
    uint32_t left = g->s->rows[g->rank].sent - __atomic_load_n(w->word, __ATOMIC_SEQ_CST);
    return left <= w->goal ? 2 : 0;
}

/* Whether there is a piece for this rank. `to` does not change while a piece waits, and a piece
 * waits as long as `taken` is unchanged; without that check, another rank's piece and the next
 * message's `to` could look like ours. */
static int piece_arrived(const struct hl_collective_shm *g, const struct hl_collective_wait *w)
{
    const struct hl_collective_row *row = &g->s->rows[w->rank];
    uint32_t taken = __atomic_load_n(&row->taken, __ATOMIC_SEQ_CST);
    return __atomic_load_n(w->word, __ATOMIC_SEQ_CST) != taken &&
           __atomic_load_n(&row->to, __ATOMIC_SEQ_CST) == (uint32_t)g->rank &&
           __atomic_load_n(&row->taken, __ATOMIC_SEQ_CST) == taken;
}

static uint64_t piece_at(uint64_t at, uint64_t bytes)
{
    return bytes - at < HL_COLLECTIVE_MESSAGE ? bytes - at : HL_COLLECTIVE_MESSAGE;
}

int hl_collective_send(void *arg, const char *what, const void *data, uint64_t bytes, int dst,
                       int tag)
{
    struct hl_collective_shm *g = arg;
    struct hl_collective_row *row = &g->s->rows[g->rank];
    struct hl_collective_wait w = {dst, &row->taken, 1, pieces_taken, what};
    row->message = (struct hl_collective_call){.arg = tag, .bytes = bytes};
    snprintf(row->message.what, sizeof(row->message.what), "%s", what);
    __atomic_store_n(&row->to, (uint32_t)dst, __ATOMIC_SEQ_CST);
    for (uint64_t at = 0; at < bytes; at += HL_COLLECTIVE_MESSAGE) {
        HL_TRY(hl_collective_await(g, &w));
        memcpy(message_slot(g, g->rank, row->sent), (const uint8_t *)data + at,
               piece_at(at, bytes));
        __atomic_add_fetch(&row->sent, 1, __ATOMIC_SEQ_CST);
        hl_collective_wake(g, &row->sent);
    }
    w.goal = 0; /* all pieces: after that the row may describe another message */
    return hl_collective_await(g, &w);
}

/* Called when the first piece has arrived. */
static hl_status check_message(struct hl_collective_shm *g, const char *what, uint64_t bytes,
                               int src, int tag)
{
    const struct hl_collective_call *message = &g->s->rows[src].message;
    if (message->bytes == bytes && message->arg == tag)
        return HL_OK;
    return hl_collective_give_up(
        g, src,
        hl_fail(HL_ECONFLICT,
                "%s: rank %d sends \"%.*s\", %" PRIu64 " bytes with tag %d; %s receives \"%s\", "
                "%" PRIu64 " bytes with tag %d",
                g->path, src, (int)sizeof(message->what) - 1, message->what, message->bytes,
                message->arg, g->who, what, bytes, tag));
}

int hl_collective_recv(void *arg, const char *what, void *data, uint64_t bytes, int src, int tag)
{
    struct hl_collective_shm *g = arg;
    struct hl_collective_row *row = &g->s->rows[src];
    struct hl_collective_wait w = {src, &row->sent, 0, piece_arrived, what};
    for (uint64_t at = 0; at < bytes; at += HL_COLLECTIVE_MESSAGE) {
        HL_TRY(hl_collective_await(g, &w));
        if (at == 0)
            HL_TRY(check_message(g, what, bytes, src, tag));
        memcpy((uint8_t *)data + at, message_slot(g, src, row->taken), piece_at(at, bytes));
        __atomic_add_fetch(&row->taken, 1, __ATOMIC_SEQ_CST);
        hl_collective_wake(g, &row->taken);
    }
    return HL_OK;
}
