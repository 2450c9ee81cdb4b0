/* ranktabled/cache.h - what the API server has: jobs, their pods, ConfigMaps; and whom a change
 * concerns. Of pods and ConfigMaps it keeps only what a table needs: there may be ten thousand.
 *
 * A watch brings of a ConfigMap its version only, as most of its versions are our own writes, whose
 * text is known: 50 kB for a job of 100 pods, which came back encrypted and as JSON. One of another
 * version is `unread`, and read by who needs it. Versions are opaque: equal or not.
 *
 * Owns:    references to jobs, its own copies of the rest.
 * Threads: the loop's.
 * Errors:  HL_ENOMEM, HL_EPROTO (a version that can't be one): the object is as it was before.
 * Units:   none.
 * Limits:  none.
 */
#ifndef HL_RANKTABLED_CACHE_H
#define HL_RANKTABLED_CACHE_H

#include <stdbool.h>
#include <uthash.h>

#include "ranktable/pods.h"

#define CACHE_KEY_MAX     1024
#define CACHE_VERSION_MAX 64

/* Kinds of jobs are those of enum hl_ranktable_kind. */
enum cache_kind {
    CACHE_VCJOBS,
    CACHE_JOBS,
    CACHE_DEPLOYMENTS,
    CACHE_PODS,
    CACHE_MAPS,
    CACHE_KINDS,
};

/* What all have. */
struct cache_entry {
    enum cache_kind kind;
    char *key; /* "KIND namespace/name"; of a pod, its uid */
    bool listed;
    UT_hash_handle hh;
};

/* A job, and how far its table is. */
struct cached_job {
    struct cache_entry entry;
    struct cached_job *prev, *next;
    json_t *object;
    const char *ns, *name;  /* of the object */
    unsigned hash;          /* of both */
    char map[256];          /* its ConfigMap */
    bool dirty;             /* must be judged again */
    bool writing;           /* a request is under way; what comes meanwhile waits for its end */
    bool gone;              /* deleted while one was */
    uint64_t not_before_ns; /* of the next request, after a failure */
    unsigned tries;
    enum hl_ranktable_state state;
    size_t counted, wanted;             /* pods in the table, and those that there are to be */
    uint64_t look_ns;                   /* when an incomplete one is judged again, with or without
                                           all its pods; 0 = at any time */
    char told[HL_RANKTABLE_REASON_MAX]; /* the last event on it; "" = none since it was well */
};

struct cached_map {
    struct cache_entry entry;
    char *ns, *name;
    char version[CACHE_VERSION_MAX]; /* of `text`; "" = it was never read */
    char seen[CACHE_VERSION_MAX];    /* the last that the server told of */
    char *text;                      /* HL_RANKTABLE_KEY; NULL = it has none */
    bool unread;                     /* there is a version that is neither ours nor read */
    bool reading;                    /* a request is under way */
    bool fresh;                      /* it was read in this round: a write of it may be tried,
                                        though a newer version was told of meanwhile */
    uint64_t not_before_ns;          /* of the next one, after a failure */
    unsigned tries;
    uint64_t awaited_until_ns; /* when `version` is ours, and was not seen by then */
};

struct cached_pod;
struct cached_group;

/* Zero-initialise. */
struct cache {
    struct cache_entry *all[CACHE_KINDS];
    struct cached_job *jobs;     /* of all kinds */
    struct cached_group *groups; /* of pods, by "namespace/job" */
};

/* A text of an object's metadata, "" when it has none; borrowed. */
const char *cache_meta(const json_t *object, const char *key);

hl_status cache_put(struct cache *c, enum cache_kind kind, json_t *object) HL_CHECK;
void cache_drop(struct cache *c, enum cache_kind kind, const json_t *object);
/* A pod that was read already; taken, also on failure. */
hl_status cache_put_pod(struct cache *c, struct hl_ranktable_pod *pod) HL_CHECK;
void cache_drop_pod(struct cache *c, const char *uid);
/* All that there is of a kind is put in between; the rest is dropped at the end. */
void cache_list_begin(struct cache *c, enum cache_kind kind);
void cache_list_end(struct cache *c, enum cache_kind kind);

/* NULL when they are gone. */
struct cached_job *cache_job(struct cache *c, enum cache_kind kind, const char *key);
struct cached_map *cache_map(struct cache *c, const char *key);
/* The pods that name this job, the oldest first; borrowed until one of them changes. */
const struct hl_ranktable_pod *const *cache_pods_of(struct cache *c, const struct cached_job *job,
                                                    size_t *count);
/* How many of them may stand in a table: the others lack something, fail or are going. */
size_t cache_ready_of(struct cache *c, const struct cached_job *job);
/* Its ConfigMap, NULL when there is none; borrowed. */
struct cached_map *cache_map_of(struct cache *c, const struct cached_job *job);
/* The ConfigMap of version `before` was written: it is `after` now and says *text, which is taken
 * then. True: nothing else has come in between. */
bool cache_wrote(struct cached_map *map, const char *before, const char *after, char **text);
/* A ConfigMap was read, when its version `seen` had been told of. It stays unread when there may be
 * a newer one. */
void cache_was_read(struct cached_map *map, const json_t *object, const char *seen);
/* Another job that has the same ConfigMap and came before it; NULL = none. */
const struct cached_job *cache_rival(struct cache *c, const struct cached_job *job);
/* A job that was dropped while it was being written. */
void cache_forget(struct cache *c, struct cached_job *job);
void cache_fini(struct cache *c);

#endif
