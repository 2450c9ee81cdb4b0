/* The archive side of the daemon, shared by l4*.c. */
#ifndef HL_L3D_L4_PRIVATE_H
#define HL_L3D_L4_PRIVATE_H

#include <pthread.h>

#include "l3d/l3d_private.h"
#include "l3d/l4.h"
#include "l3d/workers.h"

struct l4_opener;
struct task;
struct trash;
struct hl_timer;

struct l4 {
    _Atomic(struct hl_archive *) archive; /* NULL: none, or away */
    struct l4_opener *opener;             /* NULL: none is configured */
    struct l4_opts opts;
    char *url;
    struct workers *loads, *stores;
    struct task *tasks; /* by kind and id */
    struct hl_timer *clock;
    atomic_uint filling;       /* loads that have room: soon they can be given up again */
    struct trash *trash;       /* NULL: nothing leaves it by time */
    pthread_mutex_t sign_lock; /* one at a time writes the archive's owner */
    pthread_mutex_t room_lock; /* one eviction at a time, so that each sees what rests already */
};

/* claim.c */
/* Before a shard is stored: the archive says that it is the pool's cluster's, and the newest
 * revision that the pool has heard of. Waits. HL_EPERM: it is another's. */
hl_status claim_sign(struct hl_l3d *d, struct hl_archive *a) HL_CHECK;

/* trash.c; the first two wait */
hl_status trash_now(struct hl_l3d *d, struct hl_archive *a, struct hl_id id) HL_CHECK;
hl_status untrash_now(struct hl_archive *a, struct hl_id id) HL_CHECK;
hl_status trash_start(struct hl_l3d *d) HL_CHECK;
void trash_stop(struct hl_l3d *d);
void trash_fini(struct hl_l3d *d);

/* l4_open.c */
/* Once it is there it stays; NULL: none, or away. Any thread. */
struct hl_archive *l4_archive(const struct hl_l3d *d);
/* Configured, and not reached yet. */
int l4_away(const struct hl_l3d *d);
/* HL_EUNSUPPORTED without an archive; HL_EUNAVAIL while it is away, saying why. */
hl_status l4_need(const struct hl_l3d *d, struct hl_archive **out) HL_CHECK;
/* What is set up wrongly is a failure; what can't be reached is tried again in a thread. */
hl_status l4_open(struct hl_l3d *d, const struct hl_archive_options *options) HL_CHECK;
void l4_open_stop(struct hl_l3d *d);
/* Closes the archive. */
void l4_open_fini(struct hl_l3d *d);

#endif
