/* What the files of ranktabled share. */
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
    bool is_known; /* it has been listed, and no list is at its middle */
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
    /* A ConfigMap was read: who waited for that is judged. */
    void (*was_read)(struct hl_ranktabled *d, struct cached_map *map);
    unsigned calls; /* requests under way */
    bool stopping;
    bool goes_on; /* a turn of judging was cut short; the next one is posted */
    unsigned long rounds, writes, conflicts, failures, reads, events;
};

/* 1: this instance writes. */
static inline int ranktabled_leads(const struct hl_ranktabled *d)
{
    return d->lease == NULL ? d->opts.lease_ns[0] == '\0' : lease_is_held(d->lease);
}

/* How far its table is. What only the user can mend is said once, on the job. */
void ranktabled_tell(struct hl_ranktabled *d, struct cached_job *job, enum hl_ranktable_state state,
                     const char *reason);

/* requests.c: a job's table, which is taken, into its ConfigMap; one that somebody else has
 * changed; a warning on a job. Not waited for. */
void request_write(struct hl_ranktabled *d, struct cached_job *job, const struct cached_map *map,
                   char *text);
void request_read(struct hl_ranktabled *d, struct cached_map *map);
void request_event(struct hl_ranktabled *d, const struct cached_job *job, const char *reason);

#endif
