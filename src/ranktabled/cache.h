/* ranktabled/cache.h - what the API server has: jobs, their pods, ConfigMaps; and whom a change
 * concerns.
 *
 * Owns:    references to the objects.
 * Threads: the loop's.
 * Errors:  HL_ENOMEM: the object is as it was before.
 * Units:   none.
 * Limits:  none.
 */
#ifndef HL_RANKTABLED_CACHE_H
#define HL_RANKTABLED_CACHE_H

#include <uthash.h>

#include "ranktable/pods.h"

#define CACHE_KEY_MAX 1024

/* A job, and how far its table is. */
struct cached_job {
    char *key; /* "KIND namespace/name" */
    enum hl_ranktable_kind kind;
    json_t *object;
    int dirty;              /* must be judged again */
    int writing;            /* a request is under way; what comes meanwhile waits for its end */
    int gone;               /* deleted while one was */
    uint64_t not_before_ns; /* of the next request, after a failure */
    unsigned tries;
    enum hl_ranktable_state state;
    size_t counted, wanted;
    char told[HL_RANKTABLE_REASON_MAX]; /* the last event on it; "" = none since it was well */
    int listed;
    UT_hash_handle hh;
};

struct cached_pod;
struct cached_group;
struct cached_map;

/* Zero-initialise. */
struct cache {
    struct cached_job *jobs;
    struct cached_pod *pods;     /* by uid */
    struct cached_group *groups; /* of pods, by "namespace/job" */
    struct cached_map *maps;     /* ConfigMaps, by "namespace/name" */
};

/* A text of an object's metadata, "" when it has none; borrowed. */
const char *cache_meta(const json_t *object, const char *key);

hl_status cache_put_job(struct cache *c, enum hl_ranktable_kind kind, json_t *job) HL_CHECK;
hl_status cache_put_pod(struct cache *c, json_t *pod) HL_CHECK;
hl_status cache_put_map(struct cache *c, json_t *map) HL_CHECK;
void cache_drop_job(struct cache *c, enum hl_ranktable_kind kind, const json_t *job);
void cache_drop_pod(struct cache *c, const json_t *pod);
void cache_drop_map(struct cache *c, const json_t *map);
/* All that there is: what is not among them is dropped. */
hl_status cache_list_jobs(struct cache *c, enum hl_ranktable_kind kind,
                          const json_t *jobs) HL_CHECK;
hl_status cache_list_pods(struct cache *c, const json_t *pods) HL_CHECK;
hl_status cache_list_maps(struct cache *c, const json_t *maps) HL_CHECK;

/* NULL when it is gone. */
struct cached_job *cache_job(struct cache *c, const char *key);
/* The pods that name this job; new reference. */
json_t *cache_pods_of(struct cache *c, const json_t *job);
/* Its ConfigMap, NULL when there is none; borrowed. */
json_t *cache_map_of(struct cache *c, const json_t *job);
/* Another job that has the same ConfigMap and came before it; NULL = none. */
const struct cached_job *cache_rival(struct cache *c, const struct cached_job *job);
/* A job that was dropped while it was being written. */
void cache_forget(struct cache *c, struct cached_job *job);
void cache_fini(struct cache *c);

#endif
