/* core/catalog/version_drop.h - which versions are dropped without anybody asking: old ones of a
 * job that writes on, and incomplete ones whose writer is gone; and which a job still reads.
 *
 * The functions of dropping each name the next one; the caller orders its removal, which is_going
 * then tells, and asks again.
 *
 * Owns:    nothing; versions are borrowed from the catalogue.
 * Threads: the catalogue's. Pure: no I/O, no clock.
 * Errors:  none. NULL: there is none.
 * Units:   ms since 1970.
 * Limits:  none.
 */
#ifndef HL_CORE_CATALOG_VERSION_DROP_H
#define HL_CORE_CATALOG_VERSION_DROP_H

#include "core/catalog/catalog.h"

/* What the catalogue does not know of a version. */
struct hl_version_watch {
    bool (*is_going)(void *arg, const struct hl_version_rec *v);   /* its removal is ordered */
    bool (*is_written)(void *arg, const struct hl_version_rec *v); /* by a job that is not over */
    void *arg;
};

/* The newest `keep` whole versions stay that the job of `newest` has written into that model, and
 * what is newer than the oldest of them; imports and other jobs' versions always. keep 0: all. */
struct hl_version_rec *hl_version_surplus(const struct hl_version_rec *newest, int keep,
                                          const struct hl_version_watch *watch);
/* Of an attempt of the job before this one: no rank completes it any more. */
struct hl_version_rec *hl_version_incomplete(const struct hl_catalog *c, const char *job,
                                             int attempt, const struct hl_version_watch *watch);
/* Of a coming-together of the gang before the one that writes `v`: likewise. */
struct hl_version_rec *hl_version_overtaken(const struct hl_version_rec *v,
                                            const struct hl_version_watch *watch);
/* Of a writer that no job is, without a begin or commit for longer than the grace. One that was
 * there before this start of the Controller gets a whole grace from now on. */
struct hl_version_rec *hl_version_stale(struct hl_model_rec *m, int64_t now_ms, int64_t grace_ms,
                                        const struct hl_version_watch *watch);

/* A job that loads a model's weights. */
struct hl_version_reader {
    const char *model;
    int64_t named;  /* in its file; -1 = the newest */
    int64_t loaded; /* by the ranks of this attempt; -1 = none */
    bool over;
};

/* The job's ranks load the version, or would after a restart: it must not be removed. */
bool hl_version_is_read(const struct hl_version_rec *v, const struct hl_version_reader *reader);

#endif
