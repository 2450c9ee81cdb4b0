/* core/catalog/version_drop.h - which versions are dropped automatically: old ones of a job that
 * keeps writing, and incomplete ones whose writer is gone; and which versions a job still reads.
 *
 * Each function for dropping returns the next version. The caller orders its removal, from then on
 * is_going reports it, and calls again.
 *
 * Owns:    nothing; versions are borrowed from the catalogue.
 * Threads: the catalogue's. Pure: no I/O, no clock.
 * Errors:  none. NULL: there is no such version.
 * Units:   ms since 1970.
 * Limits:  none.
 */
#ifndef HL_CORE_CATALOG_VERSION_DROP_H
#define HL_CORE_CATALOG_VERSION_DROP_H

#include "core/catalog/catalog.h"

/* What the catalogue does not know about a version. */
struct hl_version_watch {
    bool (*is_going)(void *arg, const struct hl_version_rec *v); /* its removal was ordered */
    /* by a job that has not ended */
    bool (*is_written)(void *arg, const struct hl_version_rec *v);
    void *arg;
};

/* Of the versions that the job of `newest` wrote into that model, the newest `keep` whole ones
 * stay, and everything newer than the oldest of those. Imports and other jobs' versions always
 * stay. keep 0: all stay. */
struct hl_version_rec *hl_version_surplus(const struct hl_version_rec *newest, int keep,
                                          const struct hl_version_watch *watch);
/* An incomplete version of an earlier attempt of the job: no rank will complete it. */
struct hl_version_rec *hl_version_incomplete(const struct hl_catalog *c, const char *job,
                                             int attempt, const struct hl_version_watch *watch);
/* An incomplete version of an earlier generation of the gang than the one that writes `v`:
 * likewise. */
struct hl_version_rec *hl_version_overtaken(const struct hl_version_rec *v,
                                            const struct hl_version_watch *watch);
/* An incomplete version whose writer is not a job, without a begin or commit for longer than the
 * grace period. If it existed before this start of the Controller, it gets a full grace period from
 * then on. */
struct hl_version_rec *hl_version_stale(struct hl_model_rec *m, int64_t now_ms, int64_t grace_ms,
                                        const struct hl_version_watch *watch);

/* A job that loads a model's weights. */
struct hl_version_reader {
    const char *model;
    int64_t named;  /* named in its job file; -1 = the newest */
    int64_t loaded; /* loaded by the ranks of this attempt; -1 = none */
    bool over;
};

/* The job's ranks load the version, or would after a restart: it must not be removed. */
bool hl_version_is_read(const struct hl_version_rec *v, const struct hl_version_reader *reader);

#endif
