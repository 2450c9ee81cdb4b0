/* mem/pool/rest.h - a resting pin: its borrower is not using it, and the pool's owner may take it
 * back. The two share one word, so neither waits for the other, and reading a shard again and again
 * costs no message.
 *
 *     HELD --borrower: hl_rest_begin--> RESTING
 *      ^-----borrower: hl_rest_end---------'
 *     HELD, RESTING --owner: hl_rest_recall--> RECALLED
 *
 * RECALLED is final. A pin that rested then belongs to the owner; one that was held is given back
 * by the borrower with a message. Each transition is one atomic exchange, so when both sides try at
 * once, exactly one wins.
 *
 * Owns:    nothing.
 * Threads: any, of both processes.
 * Errors:  none. A borrower that stores garbage there harms only its own pin: the owner keeps its
 *          own state in private memory.
 * Units:   none.
 * Limits:  a borrower's death is not detected here; the owner ends its pins when the connection
 *          closes.
 */
#ifndef HL_MEM_REST_H
#define HL_MEM_REST_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

enum hl_rest_state { HL_REST_NONE, HL_REST_HELD, HL_REST_RESTING, HL_REST_RECALLED };

typedef _Atomic uint32_t hl_rest_word;

static inline bool hl_rest_change(hl_rest_word *word, uint32_t from, uint32_t to)
{
    return atomic_compare_exchange_strong(word, &from, to);
}

/* The borrower no longer needs the pin. False: it was recalled. */
static inline bool hl_rest_begin(hl_rest_word *word)
{
    return hl_rest_change(word, HL_REST_HELD, HL_REST_RESTING);
}

/* The borrower needs the pin again. False: it was recalled, and its bytes may belong to another
 * shard. */
static inline bool hl_rest_end(hl_rest_word *word)
{
    return hl_rest_change(word, HL_REST_RESTING, HL_REST_HELD);
}

/* The owner takes the pin back. True: it was resting and is now the owner's. */
static inline bool hl_rest_recall(hl_rest_word *word)
{
    return atomic_exchange(word, HL_REST_RECALLED) == HL_REST_RESTING;
}

/* Whether the owner could take the pin back now. A held pin is recalled, so that its borrower
 * returns it with a message and waiters learn of that. */
static inline bool hl_rest_ask(hl_rest_word *word)
{
    return !hl_rest_change(word, HL_REST_HELD, HL_REST_RECALLED) &&
           atomic_load(word) == HL_REST_RESTING;
}

#endif
