/* mem/socket/l3_rests.h - the words of one connection's pins that may rest (mem/pool/rest.h). The
 * server creates them, both sides map them.
 *
 * Owns:    the mapping.
 * Threads: one at a time; the words themselves may be used from any thread.
 * Errors:  HL_ENOMEM, HL_EPERM (the server's descriptor is not a sealed memfd).
 * Units:   words, numbered from 1; 0 = none.
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

/* The server's side: the caller sends *fd and closes it. */
hl_status l3_rests_create(struct l3_rests *rests, int *fd) HL_CHECK;
/* The client's side: maps a descriptor that stays the caller's. */
hl_status l3_rests_map(struct l3_rests *rests, int fd) HL_CHECK;
/* A zeroed one is fine. */
void l3_rests_unmap(struct l3_rests *rests);
/* Takes a free word; 0 = none is free. */
uint32_t l3_rests_take(struct l3_rests *rests);
void l3_rests_give(struct l3_rests *rests, uint32_t word);

static inline hl_rest_word *l3_rests_word(const struct l3_rests *rests, uint32_t word)
{
    return &rests->words[word - 1];
}

#endif
