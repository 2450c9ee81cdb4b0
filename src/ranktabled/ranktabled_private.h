/* ranktabled/ranktabled_private.h - shared by the files of ranktabled.
 *
 * Threads: the loop; watches and the lease post to it.
 */
#ifndef HL_RANKTABLED_PRIVATE_H
#define HL_RANKTABLED_PRIVATE_H

#include <stdbool.h>

#include "kube/watcher.h"
#include "ranktabled/cache.h"
#include "ranktabled/lease.h"
#include "ranktabled/ranktabled.h"

struct feed {
    struct hl_ranktabled *d;
    enum cache_kind kind;
    bool is_known; /* listed completely; false during a new list */
    struct hl_kube_watcher *watcher;
};

struct hl_ranktabled {
    struct hl_ranktabled_opts opts;
    char *label_value;
    struct hl_kube *kube;
    atomic_bool cancel;
    struct feed feeds[CACHE_KINDS];
    struct hl_timer *timer;
    struct lease *lease;
    char lease_name[96];
    struct cache cache;
    /* Called after a ConfigMap was read: judges the jobs that waited for it. */
    void (*was_read)(struct hl_ranktabled *d, struct cached_map *map);
    unsigned calls; /* requests in flight */
    bool stopping;
    bool goes_on; /* a turn of judging was interrupted; the next one is posted */
    unsigned long rounds, writes, conflicts, failures, reads, events;
};

/* True: this instance writes. */
static inline int ranktabled_leads(const struct hl_ranktabled *d)
{
    return d->lease == NULL ? d->opts.lease_ns[0] == '\0' : lease_is_held(d->lease);
}

/* Sets the state of the job's table. What only the user can fix is reported once, as an event on
 * the job. */
void ranktabled_tell(struct hl_ranktabled *d, struct cached_job *job, enum hl_ranktable_state state,
                     const char *reason);

/* requests.c: these write a job's table (text is taken) to its ConfigMap, read a ConfigMap that
 * another writer has changed, and send a warning on a job. They don't wait for the answer. */
void request_write(struct hl_ranktabled *d, struct cached_job *job, const struct cached_map *map,
                   char *text);
void request_read(struct hl_ranktabled *d, struct cached_map *map);
void request_event(struct hl_ranktabled *d, const struct cached_job *job, const char *reason);

#endif
