/* tests/support/stranger_seeds.h - messages that an unknown peer may send, and mutations of them.
 *
 * A file of seeds is made by tests/support/strangers.py. A seed is a list of pieces, some of which
 * can be mutated; a message is a seed with those mutated. On a stream the pieces follow each other;
 * on a packet socket each is a packet.
 *
 * Owns:    the bytes of the file; a message owns its bytes and reuses them for the next one.
 * Threads: one.
 * Errors:  NULL, with a sentence on stderr.
 * Units:   bytes.
 * Limits:  SEEDS_PIECES pieces of a seed, SEEDS_SUMS checksums of a piece.
 */
#ifndef TESTS_STRANGER_SEEDS_H
#define TESTS_STRANGER_SEEDS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define SEEDS_PIECES 16
#define SEEDS_SUMS   4

struct message_piece {
    size_t start;
    size_t len;
    bool carries; /* a descriptor */
};

struct message {
    uint8_t *bytes;
    size_t len;
    size_t capacity;
    size_t count;
    struct message_piece pieces[SEEDS_PIECES];
};

struct seeds;

/* `seed` determines every message that is made from them. */
struct seeds *seeds_open(const char *path, uint64_t seed);
void seeds_close(struct seeds *s);
/* A number below n. */
uint64_t seeds_below(struct seeds *s, uint64_t n);
/* The next message; false if out of memory. */
bool seeds_next(struct seeds *s, struct message *out);
void message_fini(struct message *m);

#endif
