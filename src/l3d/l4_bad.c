/* Archived copies whose bytes are not the shard's, as a load or a check has found. They count as
 * absent: the sweep archives the shard again if the pool has it, and reports the shard as lost if
 * no other tier has it. The file stays until then. This is kept in memory only: after a restart the
 * next read finds the damage again.
 *
 *     not marked --a load or check finds damage: l4_bad_mark--> marked --stored again, removed,
 *     moved to the trash: l4_bad_clear--> not marked
 *
 * Workers mark and clear, and the loop queries; hence bad_lock, which is held only for a look-up.
 */
#include <pthread.h>
#include <stdlib.h>
#include <uthash.h>

#include "base/log.h"
#include "l3d/l4_private.h"

struct l4_bad {
    struct hl_id id;
    UT_hash_handle hh;
};

void l4_bad_mark(struct hl_l3d *d, struct hl_id id)
{
    struct l4_bad *b = NULL;
    pthread_mutex_lock(&d->l4->bad_lock);
    HASH_FIND(hh, d->l4->bad, &id, sizeof(id), b);
    if (b == NULL && (b = calloc(1, sizeof(*b))) != NULL) {
        b->id = id;
        HASH_ADD(hh, d->l4->bad, id, sizeof(b->id), b);
        hl_error("the archived copy is damaged and counts as absent id=%s error=\"%s\"",
                 hl_id_format(id).s, hl_error_text());
    }
    pthread_mutex_unlock(&d->l4->bad_lock);
}

void l4_bad_clear(struct hl_l3d *d, struct hl_id id)
{
    struct l4_bad *b = NULL;
    pthread_mutex_lock(&d->l4->bad_lock);
    HASH_FIND(hh, d->l4->bad, &id, sizeof(id), b);
    if (b != NULL)
        HASH_DEL(d->l4->bad, b);
    pthread_mutex_unlock(&d->l4->bad_lock);
    free(b);
}

bool l4_bad_has(struct hl_l3d *d, struct hl_id id)
{
    struct l4_bad *b = NULL;
    pthread_mutex_lock(&d->l4->bad_lock);
    HASH_FIND(hh, d->l4->bad, &id, sizeof(id), b);
    pthread_mutex_unlock(&d->l4->bad_lock);
    return b != NULL;
}

void l4_bad_fini(struct hl_l3d *d)
{
    struct l4_bad *b, *next;
    HASH_ITER (hh, d->l4->bad, b, next) {
        HASH_DEL(d->l4->bad, b);
        free(b);
    }
    pthread_mutex_destroy(&d->l4->bad_lock);
}
