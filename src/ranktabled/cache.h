/* ranktabled/cache.h - the objects of the API server: jobs, their pods, ConfigMaps; and which jobs
 * a change affects. Of pods and ConfigMaps it keeps only what a table needs: there can be ten
 * thousand.
 *
 * For a ConfigMap, a watch delivers only the version. Most versions are our own writes, whose text
 * is known: 50 kB for a job of 100 pods, which would come back encrypted and as JSON. A ConfigMap
 * with another version is `unread`, and is read when a job needs it. Versions are opaque: they are
 * equal or not.
 *
 * Owns:    references to jobs, its own copies of the rest.
 * Threads: the loop's.
 * Errors:  HL_ENOMEM, HL_EPROTO (an invalid version): the object is unchanged.
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

/* The part that all kinds share. */
struct cache_entry {
    enum cache_kind kind;
    char *key; /* "KIND namespace/name"; of a pod, its uid */
    bool listed;
    UT_hash_handle hh;
};

/* A job, and the state of its table. */
struct cached_job {
    struct cache_entry entry;
    struct cached_job *prev, *next;
    json_t *object;
    const char *ns, *name;  /* of the object */
    unsigned hash;          /* of both names */
    char map[256];          /* its ConfigMap */
    bool dirty;             /* must be judged again */
    bool writing;           /* a request is in flight; changes wait for its end */
    bool gone;              /* deleted while a request was in flight */
    uint64_t not_before_ns; /* earliest time of the next request, after a failure */
    unsigned tries;
    enum hl_ranktable_state state;
    size_t counted, wanted;             /* pods in the table, and pods that it should have */
    uint64_t look_ns;                   /* next judgement of a table that lacks pods; 0 = any
                                         * time */
    char told[HL_RANKTABLE_REASON_MAX]; /* reason of the last event; "" = none since it was well */
};

struct cached_map {
    struct cache_entry entry;
    char *ns, *name;
    char version[CACHE_VERSION_MAX]; /* of `text`; "" = never read */
    char seen[CACHE_VERSION_MAX];    /* the last one that the server reported */
    char *text;                      /* value of HL_RANKTABLE_KEY; NULL = none */
    bool unread;                     /* a version exists that is neither ours nor read */
    bool reading;                    /* a request is in flight */
    bool fresh;                      /* read in this round: try a write, even if `seen` differs */
    uint64_t not_before_ns;          /* earliest time of the next read, after a failure */
    unsigned tries;
    uint64_t awaited_until_ns; /* until then, our own `version` is awaited from the watch */
};

struct cached_pod;
struct cached_group;

/* Zero-initialise. */
struct cache {
    struct cache_entry *all[CACHE_KINDS];
    struct cached_job *jobs;     /* of all kinds */
    struct cached_group *groups; /* of pods, by "namespace/job" */
};

/* A text of an object's metadata; "" if it is absent. Borrowed. */
const char *cache_meta(const json_t *object, const char *key);

hl_status cache_put(struct cache *c, enum cache_kind kind, json_t *object) HL_CHECK;
void cache_drop(struct cache *c, enum cache_kind kind, const json_t *object);
/* Adds a pod that was already parsed, and takes it, also on failure. */
hl_status cache_put_pod(struct cache *c, struct hl_ranktable_pod *pod) HL_CHECK;
void cache_drop_pod(struct cache *c, const char *uid);
/* Between the two calls, all objects of the kind are put; the end drops the others. */
void cache_list_begin(struct cache *c, enum cache_kind kind);
void cache_list_end(struct cache *c, enum cache_kind kind);

/* NULL: it is gone. */
struct cached_job *cache_job(struct cache *c, enum cache_kind kind, const char *key);
struct cached_map *cache_map(struct cache *c, const char *key);
/* The pods that name this job, the oldest first; borrowed until one of them changes. */
const struct hl_ranktable_pod *const *cache_pods_of(struct cache *c, const struct cached_job *job,
                                                    size_t *count);
/* How many of these pods can be in a table. The others lack something, have failed or are being
 * deleted. */
size_t cache_ready_of(struct cache *c, const struct cached_job *job);
/* The job's ConfigMap; NULL: there is none. Borrowed. */
struct cached_map *cache_map_of(struct cache *c, const struct cached_job *job);
/* The ConfigMap of version `before` was written: it now has version `after` and the text *text,
 * which is then taken. True: no other writer has changed it in between. */
bool cache_wrote(struct cached_map *map, const char *before, const char *after, char **text);
/* A ConfigMap was read after the watch had reported version `seen`. It stays unread if there can be
 * a newer one. */
void cache_was_read(struct cached_map *map, const json_t *object, const char *seen);
/* An older job with the same ConfigMap; NULL = none. */
const struct cached_job *cache_rival(struct cache *c, const struct cached_job *job);
/* Removes a job that was dropped while its table was being written. */
void cache_forget(struct cache *c, struct cached_job *job);
void cache_fini(struct cache *c);

#endif
