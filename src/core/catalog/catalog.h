/* core/catalog/catalog.h - which models exist, in which versions, made of which shards.
 *
 * A version is `open` while ranks write it, `visible` once every rank of its gang has committed,
 * and `failed` when a rank gave it up; only visible versions are served. A failed version has no
 * shards and stays until every rank has heard of it. Every change is first described as a list of
 * records (key, JSON) that the caller commits to the store in one batch, and applied here only
 * after that: memory never runs ahead of the disk.
 *
 * A version's parameters have to match the model's layout (core/model/layout.h): that of the oldest
 * visible version, as the version's own split sees it (core/model/view.h). A shard stored by an
 * earlier release has no layout; its number of tensors is compared.
 *
 * Owns:    every struct reachable from the catalogue; pointers handed out are borrowed until the
 *          next change.
 * Threads: one owner thread. Pure: no I/O, no clock.
 * Errors:  HL_ENOENT, HL_EEXIST, HL_ECONFLICT, HL_EINVAL with a sentence; HL_ECANCELED for a
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
    struct hl_cut_rec *cut; /* it was cut from the version's own shards; NULL = it is one of them */
    int pp;
    int tp;   /* of experts: the rank within etp */
    int ep;   /* of experts, 0 otherwise */
    int rank; /* that committed it; -1 = by an import */
    char part[HL_PART_MAX];
    uint64_t size_bytes;
    uint32_t crc32;
    uint32_t tensors;
    char *layout;        /* core/model/layout.h; NULL = stored by an earlier release */
    char *tensor_crcs;   /* as in core/reshard/proof.h; NULL = not known */
    bool lost;           /* missing from two inventories of the pool in a row, or unusable */
    bool unusable;       /* of a cut: bad, or missing, when a read wanted it. Its cut is dropped */
    bool damaged;        /* its record can't be read: only id and version are known */
    unsigned seen_round; /* last inventory that had it */
    unsigned missed;     /* inventories in a row that had not */
    bool dropping;       /* is being taken out of the pool on order */
    bool archived;       /* the archive has it, by its last inventory */
    bool unarchiving;    /* is being taken out of the archive on order */
    unsigned archive_round;
    uint64_t accesses;
    int64_t last_access_ms;
    struct hl_version_rec *version;
    UT_hash_handle hh; /* in catalog->shards, by id */
};

/* Shards of a version under another tensor parallel size (core/catalog/catalog_cut.h). */
struct hl_cut_rec {
    struct hl_api_split split; /* one stage */
    char *left_out;            /* of the version, and why; "" = nothing */
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
    uint32_t generation; /* of the gang within the attempt; 0 = it comes together once */
    int world;
    enum hl_api_layout_check check;
    struct hl_api_split split; /* nothing said: as the model was imported; hl_version_split() */
    int64_t created_ms;
    int64_t touched_ms; /* last begin or commit; not stored */
    int64_t visible_ms;
    double import_seconds;
    char *meta;               /* JSON text */
    char *error;              /* why it failed, else NULL */
    bool proved;              /* visible: by core/reshard/proof.h */
    char *unproved;           /* else what is not; NULL = nothing was tried */
    unsigned char *committed; /* one byte per rank of `world`; failed: or that has heard of it */
    int committed_count;
    bool damaged;           /* its record can't be read: only number and shards are known */
    int64_t stated_shards;  /* by its record; -1 = stored by an earlier release */
    size_t records_missing; /* of those, when the store was loaded */
    int64_t stated_sum;  /* hl_version_sum() by its record; -1 = open, or by an earlier release */
    bool records_differ; /* that was another one when the store was loaded */
    uint64_t *begun; /* open: per rank the token of its begin, 0 = none; not stored; may be NULL */
    struct hl_shard_rec **shards;
    size_t shard_count;
    int shares_state; /* hl_version_shares_state(): 1 = it does, -1 = not, 0 = not asked; not
                         stored */
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
    struct hl_model_shape shape; /* by the config; 0 layers: it does not say */
    char *source;
    int64_t created_ms;
    int64_t next_version;
    bool damaged;                    /* its record can't be read: only the name is known */
    struct hl_version_rec *versions; /* newest first */
    UT_hash_handle hh;
};

/* What others keep of the shards here. Called within the change, which goes on afterwards: they
 * look at the shard, and change nothing of the catalogue. */
struct hl_catalog_events {
    /* It is in a visible version, with which it came or which has become visible. Not of those that
     * are loaded. */
    void (*came)(void *arg, const struct hl_shard_rec *s);
    /* It is about to leave, of whatever version, and be freed. */
    void (*leaves)(void *arg, const struct hl_shard_rec *s);
};

struct hl_catalog {
    struct hl_model_rec *models;
    struct hl_shard_rec *shards;
    uint64_t shards_left;                   /* how many have ever left `shards`; not stored */
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
/* Takes the reference to value (NULL = delete the key). */
hl_status hl_records_add(struct hl_records *r, json_t *value, const char *key_fmt, ...)
    HL_PRINTF(3, 4) HL_CHECK;

/* Frees all; no event says so. */
void hl_catalog_fini(struct hl_catalog *c);
/* `events` is borrowed; NULL: none. */
void hl_catalog_watch(struct hl_catalog *c, const struct hl_catalog_events *events, void *arg);
/* Feed one stored record back ("model/…", "version/…", "shard/…"), in key order. HL_ECORRUPT names
 * the key. */
hl_status hl_catalog_load(struct hl_catalog *c, const char *key, const json_t *value) HL_CHECK;
/* In place of a record that can't be read, in the same order: what its key names is kept, and
 * makes no version that needs it whole. HL_ENOENT: the key names nothing of the catalogue. */
hl_status hl_catalog_damaged(struct hl_catalog *c, const char *key) HL_CHECK;
/* After the last record: versions whose shards are not those that were stored with them are known
 * from here on. */
void hl_catalog_loaded(struct hl_catalog *c);

hl_status hl_model_name_check(const char *name) HL_CHECK;
/* Borrowed; HL_ENOENT lists what exists. */
hl_status hl_catalog_model(const struct hl_catalog *c, const char *name,
                           struct hl_model_rec **out) HL_CHECK;
/* number -1: the newest visible one that is whole; HL_ENOENT says what the others lack. Open
 * versions are found by number only. */
hl_status hl_catalog_version(const struct hl_model_rec *m, int64_t number,
                             struct hl_version_rec **out) HL_CHECK;
/* The newest visible version that is whole; NULL: there is none. */
struct hl_version_rec *hl_catalog_newest(const struct hl_model_rec *m);
/* The visible versions newer than that, and what each lacks, into buf; "" = none. */
const char *hl_catalog_skipped(const struct hl_model_rec *m, char *buf, size_t cap);
/* Every record of it can be read. */
bool hl_version_has_all_records(const struct hl_version_rec *v);
/* The same, and no shard of it is lost. */
bool hl_version_whole(const struct hl_version_rec *v);
/* Shards of it that are lost or unknown. */
size_t hl_version_lost(const struct hl_version_rec *v);
/* How the model was imported; without a usable config only its numbers of ranks and stages. */
struct hl_api_split hl_model_split(const struct hl_model_rec *m);
/* How the version is split. */
struct hl_api_split hl_version_split(const struct hl_version_rec *v);
/* What keeps it from being whole, as a clause in buf; "" = nothing. */
const char *hl_version_trouble(const struct hl_version_rec *v, char *buf, size_t cap);

/* A shard of a position. */
struct hl_position_part {
    const struct hl_shard_rec *shard;
    bool renamed; /* only the tensors in `names` belong to the position, under those names */
    const struct hl_view_name *names;
    size_t count;
};

/* Everything but the shards is the arena's. */
struct hl_position {
    struct hl_api_split split;
    const struct hl_cut_rec *cut; /* its shards are of that; NULL = they are the version's own */
    struct hl_position_part *parts;
    size_t count;
};

/* The version can be seen under that split, as far as sizes tell: HL_EINVAL and HL_EUNSUPPORTED say
 * why not. Where it has to be cut (hl_version_needs_cut), hl_version_check_cut() says the rest; it
 * plans the model, which takes a second for one with thousands of experts. */
hl_status hl_version_check_sizes(const struct hl_version_rec *v,
                                 const struct hl_api_split *want) HL_CHECK;
/* What the position (pp, tp, ep) of the split `want` has of a version; nothing said: of the
 * version's own. Of experts these are the shards of ep and of its rank within etp, tp % etp.
 * HL_ENOENT names a lost shard, or says that there is no such position, or that the version has to
 * be cut for it first (hl_version_needs_cut); HL_ECORRUPT damaged
 * records, whose position is unknown; HL_EINVAL and HL_EUNSUPPORTED why
 * the version can't be seen under that split. */
hl_status hl_version_position(const struct hl_version_rec *v, const struct hl_api_split *want,
                              int pp, int tp, int ep, struct hl_arena *arena,
                              struct hl_position *out) HL_CHECK;
struct hl_shard_rec *hl_catalog_shard(const struct hl_catalog *c, struct hl_id id);
/* A version says that this job has written it. */
bool hl_catalog_names_job(const struct hl_catalog *c, const char *job);
/* "model@3/pp0/tp1/layer-0002", of experts "model@3/pp0/tp1/ep2/experts-0003", into buf. */
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
    const struct hl_proof *proof; /* of them; NULL = nothing was tried */
};

/* Change = records to commit, then the same call applies them. */
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
    uint64_t token; /* of this save of this rank, the same when the message is repeated; 0 = none */
    enum hl_api_layout_check check;
    struct hl_api_split split; /* of the ranks that save; nothing said: the model's */
    /* A missing model is made with this split; nothing said: it has to exist. */
    struct hl_api_split create;
    const char *config; /* its config.json; NULL or "" = none. One that exists has to have it. */
    int64_t now_ms;
};

/* A model that was made has no version but the one that began: it goes with it.
 *
 * The version that this save of the rank belongs to: the one its token has begun, else the oldest
 * open one of (model, job, attempt, generation, step) that the rank has not begun, else a new one.
 * So ranks that are one save apart do not mix, and a rank's second save at a step is another
 * version; a gang that has come together again neither joins nor hears of what it left unfinished.
 * HL_ECANCELED, once per rank, when that version was given up. */
hl_status hl_catalog_begin(struct hl_catalog *c, const struct hl_version_begin *b,
                           hl_catalog_commit_fn commit, void *arg,
                           struct hl_version_rec **out) HL_CHECK;

/* The base whose plan a commit to the version needs (core/catalog/expected.h); NULL: none does, for
 * the version is split as its base is, or is not checked, or nothing is visible yet. */
const struct hl_version_rec *hl_version_expects_of(const struct hl_version_rec *v);

struct hl_version_commit {
    struct hl_version_rec *version;
    int rank;
    struct hl_api_shard_list shards;
    const char *meta; /* JSON text; rank 0's is kept */
    int64_t now_ms;
    const struct hl_proof *proof; /* of the last commit; NULL = nothing was tried */
    const char *config; /* of the model, by hl_version_settle(); NULL = nothing to settle */
    const struct hl_expected *expected; /* planned; NULL, or of another base: it is planned here */
};

/* A rank's part is in. A repeated commit changes nothing: it is fine when it names only shards that
 * the rank committed, else HL_ECONFLICT. HL_EINVAL when tensors do not match the model's layout. */
hl_status hl_catalog_commit_part(struct hl_catalog *c, const struct hl_version_commit *p,
                                 hl_catalog_commit_fn commit, void *arg) HL_CHECK;

/* The rank's commit is the last one: with it the version becomes visible. */
bool hl_catalog_completes(const struct hl_version_rec *v, int rank);

struct hl_version_proof {
    struct hl_proof_input input;
    struct hl_settle settle; /* config NULL = the model's config says all */
};

/* What is to be proved of a finished import; all is the arena's. */
hl_status hl_import_proof_input(const char *config, const struct hl_api_shard_list *shards,
                                struct hl_arena *arena, struct hl_version_proof *out) HL_CHECK;
/* What is to be proved of a version with this commit of its last rank, whose shards match its
 * layout as in hl_catalog_commit_part. All is the arena's, so that the catalogue may change before
 * it is read. */
hl_status hl_version_proof_input(const struct hl_catalog *c, const struct hl_version_commit *p,
                                 struct hl_arena *arena, struct hl_version_proof *out) HL_CHECK;
/* Any thread. *config is that of hl_version_commit, free(); the input borrows it for
 * hl_proof_check(). */
hl_status hl_version_settle(struct hl_version_proof *p, char **config) HL_CHECK;

/* The wall clock was set: how long ago open versions were touched does not change. */
void hl_catalog_shift(struct hl_catalog *c, int64_t stepped_ms);

struct hl_version_abandon {
    struct hl_version_rec *version;
    int rank;
    const char *reason;
    bool refuted; /* by its proof: ranks that have committed have to hear of it too */
};

/* A rank can't complete an open version: it fails, its shards leave the catalogue (ids appended to
 * `ids`, caller frees). With the last rank that had to hear of it the version is forgotten.
 * HL_ECONFLICT when it is visible. */
hl_status hl_catalog_abandon(struct hl_catalog *c, const struct hl_version_abandon *a,
                             hl_catalog_commit_fn commit, void *arg, struct hl_id **ids,
                             size_t *id_count) HL_CHECK;

/* Forget a version (its shard ids are appended to `ids`, caller frees) or the whole model with
 * number -1. A model whose last version goes is forgotten too. */
hl_status hl_catalog_remove(struct hl_catalog *c, struct hl_model_rec *m, int64_t number,
                            hl_catalog_commit_fn commit, void *arg, struct hl_id **ids,
                            size_t *id_count, uint64_t *bytes) HL_CHECK;

json_t *hl_shard_rec_to_json(const struct hl_shard_rec *s);
/* What people see of a record; the struct borrows the record's texts. */
struct hl_api_shard hl_shard_rec_info(const struct hl_shard_rec *s, struct hl_arena *arena);
struct hl_api_model hl_model_rec_info(const struct hl_model_rec *m, struct hl_arena *arena);
struct hl_api_model_version hl_version_rec_info(const struct hl_version_rec *v,
                                                struct hl_arena *arena);

#endif
