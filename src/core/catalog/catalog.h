/* core/catalog/catalog.h - the catalogue: which models exist, in which versions, made of which
 * shards.
 *
 * A version is `open` while ranks write it, `visible` once every rank of its gang has committed,
 * and `failed` when a rank gave it up; only visible versions are served. A failed version has no
 * shards and stays until every rank has been told. Every change is first described as a list of
 * records (key, JSON), which the caller commits to the store in one batch. Only then is it applied
 * here, so memory never runs ahead of the disk.
 *
 * A version's parameters must match the model's layout (core/model/layout.h): that of its oldest
 * visible version, translated to the new version's split (core/model/view.h). A shard stored by an
 * earlier release has no layout; then only the number of tensors is compared.
 *
 * Owns:    every struct reachable from the catalogue; pointers handed out are borrowed until the
 *          next change.
 * Threads: one owner thread. Pure: no I/O, no clock.
 * Errors:  HL_ENOENT, HL_EEXIST, HL_ECONFLICT and HL_EINVAL with an explanation; HL_ECANCELED for a
 *          version that another rank gave up.
 * Units:   bytes; ms since 1970.
 * Limits:  model names [A-Za-z0-9][A-Za-z0-9._-]{0,127}; part names up to 63 bytes.
 */
#ifndef HL_CORE_CATALOG_CATALOG_H
#define HL_CORE_CATALOG_CATALOG_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>
#include <uthash.h>

#include "api/types.h"
#include "base/id.h"
#include "base/status.h"
#include "core/catalog/settle.h"
#include "core/model/layout.h"
#include "core/model/model_config.h"
#include "core/model/split.h"
#include "core/model/view.h"
#include "core/reshard/proof.h"

#define HL_MODEL_NAME_MAX  128
#define HL_PART_MAX        64
#define HL_CATALOG_KEY_MAX 320

struct hl_shard_rec {
    struct hl_id id;
    /* the cut it belongs to; NULL = it is one of the version's own shards */
    struct hl_cut_rec *cut;
    int pp;
    int tp;   /* of experts: the rank within etp */
    int ep;   /* of experts, 0 otherwise */
    int rank; /* the rank that committed it; -1 = an import */
    char part[HL_PART_MAX];
    uint64_t size_bytes;
    uint32_t crc32;
    uint32_t tensors;
    char *layout;        /* core/model/layout.h; NULL = stored by an earlier release */
    char *tensor_crcs;   /* as in core/reshard/proof.h; NULL = not known */
    bool lost;           /* missing from two consecutive inventories of the pool, or unusable */
    bool unusable;       /* only of a cut: a read found it bad or missing. Its cut is dropped */
    bool damaged;        /* its record is unreadable: only id and version are known */
    unsigned seen_round; /* last inventory that had it */
    unsigned missed;     /* consecutive inventories that did not have it */
    bool dropping;       /* it is being removed from the pool on order */
    bool archived;       /* the archive's last inventory had it */
    bool unarchiving;    /* it is being removed from the archive on order */
    unsigned archive_round;
    uint64_t accesses;
    int64_t last_access_ms;
    struct hl_version_rec *version;
    UT_hash_handle hh; /* in catalog->shards, by id */
};

/* A cut: shards of a version for another tensor parallel size (core/catalog/catalog_cut.h). */
struct hl_cut_rec {
    struct hl_api_split split; /* one stage */
    char *left_out;            /* what of the version it leaves out, and why; "" = nothing */
    struct hl_shard_rec **shards;
    size_t shard_count;
    struct hl_version_rec *version;
    struct hl_cut_rec *next;
};

struct hl_version_rec {
    int64_t number;
    enum hl_api_version_state state;
    int64_t step;
    char job[96];
    int attempt;
    uint32_t generation; /* of the gang within the attempt; 0 = the gang forms only once */
    int world;
    enum hl_api_layout_check check;
    /* if nothing is stated: as the model was imported; use hl_version_split() */
    struct hl_api_split split;
    int64_t created_ms;
    int64_t touched_ms; /* last begin or commit; not stored */
    int64_t visible_ms;
    double import_seconds;
    char *meta;     /* JSON text */
    char *error;    /* why it failed, else NULL */
    bool proved;    /* visible, and proved by core/reshard/proof.h */
    char *unproved; /* if not: what could not be proved; NULL = no proof was tried */
    /* one byte per rank of `world`; of a failed version: also ranks that were told */
    unsigned char *committed;
    int committed_count;
    bool damaged;           /* its record is unreadable: only number and shards are known */
    int64_t stated_shards;  /* count in its record; -1 = stored by an earlier release */
    size_t records_missing; /* how many of these were missing when the store was loaded */
    /* hl_shards_sum() in its record; -1 = open, or stored by an earlier release */
    int64_t stated_sum;
    bool records_differ; /* the sum did not match when the store was loaded */
    uint64_t *begun;     /* open: token of each rank's begin, 0 = none; not stored; may be NULL */
    struct hl_shard_rec **shards;
    size_t shard_count;
    /* cached hl_version_shares_state(): 1 = yes, -1 = no, 0 = not asked yet; not stored */
    int shares_state;
    struct hl_cut_rec *cuts;
    struct hl_model_rec *model;
    struct hl_version_rec *next; /* older version of the model */
};

struct hl_model_rec {
    char name[HL_MODEL_NAME_MAX + 1];
    int tp;
    int pp;
    int virtual_stages;
    char *config;                /* JSON text, ImportProgress.config */
    struct hl_model_shape shape; /* from the config; 0 layers: the config does not say */
    char *source;
    int64_t created_ms;
    int64_t next_version;
    bool damaged;                    /* its record is unreadable: only the name is known */
    struct hl_version_rec *versions; /* newest first */
    UT_hash_handle hh;
};

/* Callbacks for modules that keep data about the catalogue's shards. They are called in the middle
 * of a change: they may look at the shard, but must not change the catalogue. */
struct hl_catalog_events {
    /* The shard now belongs to a visible version: it was added to one, or its version became
     * visible. Not called while the store is loaded. */
    void (*came)(void *arg, const struct hl_shard_rec *s);
    /* The shard, of a version in any state, is about to be removed and freed. */
    void (*leaves)(void *arg, const struct hl_shard_rec *s);
};

struct hl_catalog {
    struct hl_model_rec *models;
    struct hl_shard_rec *shards;
    uint64_t shards_left; /* how many shards were ever removed from `shards`; not stored */
    const struct hl_catalog_events *events; /* NULL: none */
    void *events_arg;
};

/* One record of a change: value NULL = delete. */
struct hl_record {
    char key[HL_CATALOG_KEY_MAX];
    json_t *value;
};

struct hl_records {
    struct hl_record *list;
    size_t count;
    size_t cap;
};

void hl_records_fini(struct hl_records *r);
/* Takes over the reference to value (NULL = delete the key). */
hl_status hl_records_add(struct hl_records *r, json_t *value, const char *key_fmt, ...)
    HL_PRINTF(3, 4) HL_CHECK;

/* Frees everything, without events. */
void hl_catalog_fini(struct hl_catalog *c);
/* `events` is borrowed; NULL: none. */
void hl_catalog_watch(struct hl_catalog *c, const struct hl_catalog_events *events, void *arg);
/* Loads one stored record ("model/…", "version/…", "shard/…"), in key order. HL_ECORRUPT names the
 * key. */
hl_status hl_catalog_load(struct hl_catalog *c, const char *key, const json_t *value) HL_CHECK;
/* Call it instead of hl_catalog_load for an unreadable record, in the same order. The object that
 * its key names is kept, and no version that needs it is whole. HL_ENOENT: the key names nothing in
 * the catalogue. */
hl_status hl_catalog_damaged(struct hl_catalog *c, const char *key) HL_CHECK;
/* Call it after the last record. From then on it is known which versions don't have the shards that
 * were stored with them. */
void hl_catalog_loaded(struct hl_catalog *c);

hl_status hl_model_name_check(const char *name) HL_CHECK;
/* Borrowed; HL_ENOENT lists the models that exist. */
hl_status hl_catalog_model(const struct hl_catalog *c, const char *name,
                           struct hl_model_rec **out) HL_CHECK;
/* number -1: the newest visible version that is whole; HL_ENOENT says what the others lack. Open
 * versions are only found by number. */
hl_status hl_catalog_version(const struct hl_model_rec *m, int64_t number,
                             struct hl_version_rec **out) HL_CHECK;
/* The newest visible version that is whole; NULL: there is none. */
struct hl_version_rec *hl_catalog_newest(const struct hl_model_rec *m);
/* Writes the visible versions that are newer than hl_catalog_newest(), and what each lacks, into
 * buf; "" = none. */
const char *hl_catalog_skipped(const struct hl_model_rec *m, char *buf, size_t cap);
/* All records of the version are readable. */
bool hl_version_has_all_records(const struct hl_version_rec *v);
/* The same, and none of its shards is lost. */
bool hl_version_whole(const struct hl_version_rec *v);
/* Number of its shards that are lost or unknown. */
size_t hl_version_lost(const struct hl_version_rec *v);
/* The split with which the model was imported; without a usable config only its numbers of ranks
 * and stages. */
struct hl_api_split hl_model_split(const struct hl_model_rec *m);
/* How the version is split. */
struct hl_api_split hl_version_split(const struct hl_version_rec *v);
/* Why the version is not whole, as a clause in buf; "" = it is whole. */
const char *hl_version_trouble(const struct hl_version_rec *v, char *buf, size_t cap);

/* A shard that a position reads. */
struct hl_position_part {
    const struct hl_shard_rec *shard;
    bool renamed; /* only the tensors in `names` belong to the position, under those names */
    const struct hl_view_name *names;
    size_t count;
};

/* Everything except the shards is allocated in the arena. */
struct hl_position {
    struct hl_api_split split;
    /* the cut its shards belong to; NULL = they are the version's own */
    const struct hl_cut_rec *cut;
    struct hl_position_part *parts;
    size_t count;
};

/* Checks from the sizes alone whether the version can be read under that split: HL_EINVAL and
 * HL_EUNSUPPORTED say why not. If it must be cut (hl_version_needs_cut), hl_version_check_cut()
 * checks the rest; that plans the model, which takes a second for one with thousands of experts. */
hl_status hl_version_check_sizes(const struct hl_version_rec *v,
                                 const struct hl_api_split *want) HL_CHECK;
/* The shards that the position (pp, tp, ep) of the split `want` reads of a version; if `want`
 * states nothing, of the version's own split. For experts these are the shards of ep and of its
 * rank within etp, tp % etp. HL_ENOENT names a lost shard, or says that there is no such position,
 * or that the version must be cut first (hl_version_needs_cut). HL_ECORRUPT reports damaged
 * records, whose position is unknown. HL_EINVAL and HL_EUNSUPPORTED say why the version can't be
 * read under that split. */
hl_status hl_version_position(const struct hl_version_rec *v, const struct hl_api_split *want,
                              int pp, int tp, int ep, struct hl_arena *arena,
                              struct hl_position *out) HL_CHECK;
struct hl_shard_rec *hl_catalog_shard(const struct hl_catalog *c, struct hl_id id);
/* Some version names this job as its writer. */
bool hl_catalog_names_job(const struct hl_catalog *c, const char *job);
/* Writes "model@3/pp0/tp1/layer-0002", for experts "model@3/pp0/tp1/ep2/experts-0003", into buf. */
const char *hl_shard_key(const struct hl_shard_rec *s, char *buf, size_t cap);

struct hl_import_done {
    const char *name;
    const char *source;
    int tp, pp, virtual_stages;
    const char *config;
    const char *meta; /* of the version, JSON; NULL or "" = none */
    double seconds;
    int64_t now_ms;
    struct hl_api_shard_list shards;
    const struct hl_proof *proof; /* proof of the shards; NULL = none was tried */
};

/* Commits the records of a change to the store; the calling function applies the change
 * afterwards. */
typedef hl_status (*hl_catalog_commit_fn)(void *arg, const struct hl_records *records);

/* A finished import becomes version 1 of a new model. */
hl_status hl_catalog_import(struct hl_catalog *c, const struct hl_import_done *done,
                            hl_catalog_commit_fn commit, void *arg,
                            struct hl_version_rec **out) HL_CHECK;

struct hl_version_begin {
    const char *model;
    const char *job;
    int attempt;
    uint32_t generation;
    int64_t step;
    int rank;
    int world;
    /* identifies this save of this rank; a repeated message has the same; 0 = none */
    uint64_t token;
    enum hl_api_layout_check check;
    struct hl_api_split split; /* of the ranks that save; if nothing is stated: the model's */
    /* A missing model is created with this split; if nothing is stated, the model must exist. */
    struct hl_api_split create;
    /* its config.json; NULL or "" = none. An existing model must have the same */
    const char *config;
    int64_t now_ms;
};

/* A model that is created here has only the version that begins, and disappears with it.
 *
 * Finds the version to which this save of the rank belongs: the one begun with its token, else the
 * oldest open version of (model, job, attempt, generation, step) that the rank has not begun, else
 * a new one. So ranks that are one save apart never mix, and a rank's second save at the same step
 * is another version. A gang that has re-formed neither joins nor is told about what it left
 * unfinished. HL_ECANCELED, once per rank, if that version was given up. */
hl_status hl_catalog_begin(struct hl_catalog *c, const struct hl_version_begin *b,
                           hl_catalog_commit_fn commit, void *arg,
                           struct hl_version_rec **out) HL_CHECK;

/* The base whose plan a commit to the version needs (core/catalog/expected.h). NULL: none is
 * needed, because the version is split like its base, or is not checked, or no version is visible
 * yet. */
const struct hl_version_rec *hl_version_expects_of(const struct hl_version_rec *v);

struct hl_version_commit {
    struct hl_version_rec *version;
    int rank;
    struct hl_api_shard_list shards;
    const char *meta; /* JSON text; rank 0's is kept */
    int64_t now_ms;
    const struct hl_proof *proof; /* for the last commit; NULL = none was tried */
    const char *config; /* the model's, from hl_version_settle(); NULL = nothing to settle */
    /* planned in advance; if NULL, or for another base, it is planned in the call */
    const struct hl_expected *expected;
};

/* Commits a rank's part of a version. A repeated commit changes nothing: it is fine if it only
 * names shards that the rank has committed, else HL_ECONFLICT. HL_EINVAL if tensors do not match
 * the model's layout. */
hl_status hl_catalog_commit_part(struct hl_catalog *c, const struct hl_version_commit *p,
                                 hl_catalog_commit_fn commit, void *arg) HL_CHECK;

/* The rank's commit is the last missing one: it makes the version visible. */
bool hl_catalog_completes(const struct hl_version_rec *v, int rank);

struct hl_version_proof {
    struct hl_proof_input input;
    struct hl_settle settle; /* config NULL = the model's config is already complete */
};

/* The input for the proof of a finished import; everything is in the arena. */
hl_status hl_import_proof_input(const char *config, const struct hl_api_shard_list *shards,
                                struct hl_arena *arena, struct hl_version_proof *out) HL_CHECK;
/* The input for the proof of a version, including this commit of its last rank; checks the layout
 * of its shards as hl_catalog_commit_part does. Everything is in the arena, so the catalogue may
 * change before the input is used. */
hl_status hl_version_proof_input(const struct hl_catalog *c, const struct hl_version_commit *p,
                                 struct hl_arena *arena, struct hl_version_proof *out) HL_CHECK;
/* May be called on any thread. *config is for hl_version_commit; free() it. The input borrows it
 * for hl_proof_check(). */
hl_status hl_version_settle(struct hl_version_proof *p, char **config) HL_CHECK;

/* The wall clock was set: shifts the touch times of open versions, so that their ages stay the
 * same. */
void hl_catalog_shift(struct hl_catalog *c, int64_t stepped_ms);

struct hl_version_abandon {
    struct hl_version_rec *version;
    int rank;
    const char *reason;
    bool refuted; /* by its proof: ranks that have committed must be told too */
};

/* A rank can't complete an open version: the version fails, and its shards are removed from the
 * catalogue (ids are appended to `ids`, caller frees). Once the last rank has been told, the
 * version is forgotten. HL_ECONFLICT if it is visible. */
hl_status hl_catalog_abandon(struct hl_catalog *c, const struct hl_version_abandon *a,
                             hl_catalog_commit_fn commit, void *arg, struct hl_id **ids,
                             size_t *id_count) HL_CHECK;

/* Removes a version, or the whole model with number -1 (shard ids are appended to `ids`, caller
 * frees). A model whose last version is removed goes too. */
hl_status hl_catalog_remove(struct hl_catalog *c, struct hl_model_rec *m, int64_t number,
                            hl_catalog_commit_fn commit, void *arg, struct hl_id **ids,
                            size_t *id_count, uint64_t *bytes) HL_CHECK;

json_t *hl_shard_rec_to_json(const struct hl_shard_rec *s);
/* Records as the API reports them; the structs borrow the records' texts. */
struct hl_api_shard hl_shard_rec_info(const struct hl_shard_rec *s, struct hl_arena *arena);
struct hl_api_model hl_model_rec_info(const struct hl_model_rec *m, struct hl_arena *arena);
struct hl_api_model_version hl_version_rec_info(const struct hl_version_rec *v,
                                                struct hl_arena *arena);

#endif
