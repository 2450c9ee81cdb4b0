/* controller/copies/copies.h - who has which shard besides the pool: soft state, learned from the
 * Agents' inventories and from the answers to our own orders, and never trusted blindly.
 *
 * Owns:    the table; copies handed out are borrowed until the next call that changes it.
 * Threads: the Controller's loop.
 * Errors:  none: what can't be remembered is learned again from the next inventory.
 * Units:   bytes, seconds, ms.
 * Limits:  none.
 */
#ifndef HL_CONTROLLER_COPIES_H
#define HL_CONTROLLER_COPIES_H

#include <uthash.h>

#include "api/types.h"
#include "base/id.h"
#include "core/route.h"

struct hl_controller;
struct hl_shard_rec;
struct node;

/* A copy in a node's L1 or L2. */
struct copy {
    struct hl_id id;
    struct node *node;
    enum hl_api_tier tier;
    int dropping; /* ordered to go: counts for nobody */
    unsigned round;
    struct copy *next;
    struct hl_api_copy info; /* but for id, tier and node, which are above; texts lie behind it */
    char texts[];
};

struct holding {
    struct hl_id id;
    struct copy *copies;
    int gone;            /* the shard was removed: copies are to be dropped */
    uint64_t unknown_ns; /* since when the catalogue does not know it, 0 = it does */
    UT_hash_handle hh;
};

/* Where a copy lies: the L3 host (node NULL) or a node. */
struct place {
    enum hl_api_tier tier;
    struct node *node;
    char device[96];
};

/* Where a shard can be read from now; the pool and the archive included. Returns how many there
 * are, at most `max` are stored. `at_least` leaves out what is less safe: HL_API_TIER_L2 = no
 * device memory. */
size_t copies_places(struct hl_controller *c, struct hl_id id, enum hl_api_tier at_least,
                     struct place *out, size_t max);
/* The shard with those of its copies that can be read now; it borrows from the catalogue. */
struct hl_api_shard copies_shard(struct hl_controller *c, const struct hl_shard_rec *s,
                                 struct hl_arena *arena);
/* An answer of a node's Agent. */
void copies_learn(struct hl_controller *c, struct node *n, const struct hl_api_copy *copy);
/* The copies of that kind are not there (any more). */
void copies_forget(struct hl_controller *c, struct node *n, struct hl_id id, enum hl_api_tier tier,
                   const char *device);
void copies_dropping(struct hl_controller *c, const struct place *p, struct hl_id id, int on);
/* The node's Agent is a new one: its inventory is asked for again, whatever its epoch. */
void copies_relist(struct node *n);
/* None of the node's copies counts any more. */
void copies_forget_node(struct hl_controller *c, struct node *n);
/* The shard was removed: its copies go wherever they are, now or when their node is back. */
void copies_remove(struct hl_controller *c, struct hl_id id);
/* Ask the nodes that have changed what they hold; drop what nobody knows. */
void copies_tick(struct hl_controller *c);
void copies_fini(struct hl_controller *c);

#endif
