/* core/catalog/catalog_private.h - shared by the catalogue's files.
 *
 * Threads: one at a time per catalogue.
 */
#ifndef HL_CORE_CATALOG_CATALOG_PRIVATE_H
#define HL_CORE_CATALOG_CATALOG_PRIVATE_H

#include "core/catalog/catalog.h"

hl_status hl_model_rec_from(const struct hl_api_model_record *r,
                            struct hl_model_rec **out) HL_CHECK;
/* catalog_create.c */
/* Creates the model for a begin; it is not in the catalogue yet. */
hl_status hl_model_create(const struct hl_version_begin *b, struct hl_model_rec **out) HL_CHECK;
/* Checks that a begin that would create the model is compatible with the existing one. */
hl_status hl_model_check_create(const struct hl_model_rec *m,
                                const struct hl_version_begin *b) HL_CHECK;

/* Call it after the config was set. If the config does not say how the model was split, it has no
 * shape. */
hl_status hl_model_rec_read_shape(struct hl_model_rec *m) HL_CHECK;
hl_status hl_version_rec_from(const struct hl_api_version_record *r,
                              struct hl_version_rec **out) HL_CHECK;
/* NULL if a member is invalid; hl_error_text() says which. */
struct hl_shard_rec *hl_shard_rec_from(const struct hl_api_manifest_shard *r);
struct hl_shard_rec *hl_shard_rec_new(const struct hl_api_shard *shard);
/* Borrows the texts, as the version's function does. */
struct hl_api_model_record hl_model_rec_store(const struct hl_model_rec *m);

/* What a version's record states about its shards. */
struct hl_shards_stated {
    size_t count;
    int64_t sum; /* hl_shards_sum(); -1 = it is not visible */
};

struct hl_api_version_record hl_version_rec_store(const struct hl_version_rec *v,
                                                  struct hl_shards_stated stated,
                                                  struct hl_arena *arena);
void hl_model_rec_free(struct hl_model_rec *m);
void hl_version_rec_free(struct hl_version_rec *v);
struct hl_version_rec *hl_version_rec_new(int64_t number, int world);
void hl_shard_rec_free(struct hl_shard_rec *s);
void hl_cut_rec_free(struct hl_cut_rec *cut);
char *hl_text_copy(const char *s);

/* catalog_cut_rec.c */
void hl_cut_record_key(const struct hl_cut_rec *cut, char key[HL_CATALOG_KEY_MAX]);
hl_status hl_cut_describe_removal(struct hl_records *r, const struct hl_cut_rec *cut) HL_CHECK;
/* Appends the deletions of the version's cuts; ids of their shards are written from ids[*n] on. */
hl_status hl_cuts_describe_removal(struct hl_records *r, const struct hl_version_rec *v,
                                   struct hl_id *ids, size_t *n, uint64_t *bytes) HL_CHECK;
size_t hl_cuts_shards(const struct hl_version_rec *v);
/* Adds the cut and its shards to the catalogue; every id must be new to it. */
void hl_cut_link(struct hl_catalog *c, struct hl_cut_rec *cut);
/* Removes the cut from the catalogue and frees it. */
void hl_cut_unlink(struct hl_catalog *c, struct hl_cut_rec *cut);
void hl_cuts_unlink(struct hl_catalog *c, struct hl_version_rec *v);

/* catalog_cut_planned.c */
/* The version's shard at that position; NULL = not stored. */
struct hl_shard_rec *const *hl_version_shard_at(const struct hl_version_rec *v,
                                                const struct hl_partition_shard *at);
/* HL_EUNSUPPORTED names parameters, or undistributed state, that are missing from the plan of a
 * cut. */
hl_status hl_version_check_planned(const struct hl_version_rec *v,
                                   const struct hl_partition_plan *plan, bool shares) HL_CHECK;

/* catalog.c */
/* Parses the whole list or nothing, without linking it; every id must be new to the catalogue. */
hl_status hl_shards_parse(const struct hl_catalog *c, struct hl_version_rec *v,
                          const struct hl_api_shard_list *shards, int rank,
                          struct hl_shard_rec ***out) HL_CHECK;
/* Checks that every part has a valid name, and that every id is new to the catalogue and unique in
 * the list. */
hl_status hl_shards_check(const struct hl_catalog *c, struct hl_shard_rec *const *list,
                          size_t n) HL_CHECK;
void hl_shard_recs_free(struct hl_shard_rec **list, size_t n);
/* Reserves room for n more shards of a version, without linking them yet. */
hl_status hl_version_reserve(struct hl_version_rec *v, size_t n) HL_CHECK;
void hl_version_link(struct hl_catalog *c, struct hl_version_rec *v, struct hl_shard_rec **list,
                     size_t n);
/* Sends the `came` event for shards of a visible version. */
void hl_shards_came(const struct hl_catalog *c, struct hl_shard_rec *const *list, size_t n);
/* Removes the shards from the catalogue without freeing them. */
void hl_shards_unlink(struct hl_catalog *c, struct hl_shard_rec *const *list, size_t n);
/* Removes every shard of the version from the catalogue and frees it. */
void hl_version_unlink_shards(struct hl_catalog *c, struct hl_version_rec *v);
/* Removes the version from its model and frees it. */
void hl_version_remove(struct hl_catalog *c, struct hl_model_rec *m, struct hl_version_rec *v);
/* Appends the records of a version, its model and the given shards, which are its own or about to
 * be. */
hl_status hl_version_describe(struct hl_records *r, const struct hl_version_rec *v,
                              struct hl_shard_rec **list, size_t n) HL_CHECK;
/* Appends the deletion of a shard's record. */
hl_status hl_shard_describe_removal(struct hl_records *r, const struct hl_shard_rec *s) HL_CHECK;

/* catalog_whole.c: an order-independent sum over ids, positions, sizes and checksums. */
uint32_t hl_shards_sum(struct hl_shard_rec *const *list, size_t n);
struct hl_shards_stated hl_version_stated(const struct hl_version_rec *v);

/* catalog_layout.c */
/* Checks that the shards of that commit may become part of its version. */
hl_status hl_version_check(const struct hl_version_commit *p, struct hl_shard_rec *const *list,
                           bool last) HL_CHECK;

/* Number of records of the version and its shards that are unreadable or gone. */
size_t hl_version_damaged_records(const struct hl_version_rec *v);

#endif
