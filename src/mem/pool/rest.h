/* mem/pool/rest.h - a pin at rest: its borrower does not use it, and the pool's owner may take it
 * back. The two share one word, so that neither waits for the other: reading a shard again and
 * again costs no message.
 *
 *     HELD --borrower: hl_rest_begin--> RESTING        HELD, RESTING --owner: hl_rest_recall-->
 * RECALLED
 *      ^-----borrower: hl_rest_end---------'
 *
 * RECALLED is final. Where the pin rested, the owner has it; where it was held, the borrower gives
 * it back by a message. Each step is one atomic exchange: when the two meet, one of them wins.
 *
 * Owns:    nothing.
 * Threads: any, of both processes.
 * Errors:  none. What a borrower stores there besides harms its own pin alone: the owner keeps what
 *          it knows in memory of its own.
 * Units:   none.
 * Limits:  a borrower's death is not seen here; the owner ends the pins with its connection.
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

/* The borrower needs it no longer. False: it is recalled. */
static inline bool hl_rest_begin(hl_rest_word *word)
{
    return hl_rest_change(word, HL_REST_HELD, HL_REST_RESTING);
}

/* The borrower needs it again. False: it is recalled, and its bytes may be another shard's. */
static inline bool hl_rest_end(hl_rest_word *word)
{
    return hl_rest_change(word, HL_REST_RESTING, HL_REST_HELD);
}

/* The owner wants it. True: it rested, and is the owner's. */
static inline bool hl_rest_recall(hl_rest_word *word)
{
    return atomic_exchange(word, HL_REST_RECALLED) == HL_REST_RESTING;
}

/* Whether the owner could have it. One that is held is told to come back by a message, so that
 * whoever waits for it hears of that. */
static inline bool hl_rest_ask(hl_rest_word *word)
{
    return !hl_rest_change(word, HL_REST_HELD, HL_REST_RECALLED) &&
           atomic_load(word) == HL_REST_RESTING;
}

#endif
