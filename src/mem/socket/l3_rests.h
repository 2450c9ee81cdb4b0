/* mem/socket/l3_rests.h - the words of one connection's pins that may rest (mem/pool/rest.h): made
 * by the server, mapped by both sides.
 *
 * Owns:    the mapping.
 * Threads: one at a time; the words themselves any.
 * Errors:  HL_ENOMEM, HL_EPERM (what came from the server is no sealed memfd).
 * Units:   words; their numbers begin with 1, 0 is none.
 * Limits:  HL_L3_RESTS words; further pins don't rest.
 */
#ifndef HL_MEM_L3_RESTS_H
#define HL_MEM_L3_RESTS_H

#include "base/status.h"
#include "mem/pool/pool.h"

#define HL_L3_RESTS 512

struct l3_rests {
    hl_rest_word *words; /* NULL = none are shared */
    uint64_t taken[HL_L3_RESTS / 64];
};

/* The server's side: *fd is to be sent, and closed by the caller. */
hl_status l3_rests_create(struct l3_rests *rests, int *fd) HL_CHECK;
/* The client's side, of a descriptor that stays the caller's. */
hl_status l3_rests_map(struct l3_rests *rests, int fd) HL_CHECK;
/* A zeroed one is fine. */
void l3_rests_unmap(struct l3_rests *rests);
/* A word that is free; 0 = there is none. */
uint32_t l3_rests_take(struct l3_rests *rests);
void l3_rests_give(struct l3_rests *rests, uint32_t word);

static inline hl_rest_word *l3_rests_word(const struct l3_rests *rests, uint32_t word)
{
    return &rests->words[word - 1];
}

#endif
