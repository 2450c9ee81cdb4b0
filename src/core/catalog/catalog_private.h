/* What the catalogue's files share. */
#ifndef HL_CORE_CATALOG_CATALOG_PRIVATE_H
#define HL_CORE_CATALOG_CATALOG_PRIVATE_H

#include "core/catalog/catalog.h"

hl_status hl_model_rec_from(const struct hl_api_model_record *r,
                            struct hl_model_rec **out) HL_CHECK;
/* catalog_create.c */
/* The model that a begin makes, in no catalogue yet. */
hl_status hl_model_create(const struct hl_version_begin *b, struct hl_model_rec **out) HL_CHECK;
/* A begin that would have made the model may go on with the one that is there. */
hl_status hl_model_check_create(const struct hl_model_rec *m,
                                const struct hl_version_begin *b) HL_CHECK;

/* After its config was set. One that does not say how the model was split has no shape. */
hl_status hl_model_rec_read_shape(struct hl_model_rec *m) HL_CHECK;
hl_status hl_version_rec_from(const struct hl_api_version_record *r,
                              struct hl_version_rec **out) HL_CHECK;
/* NULL when a member is bad; says which in hl_error_text(). */
struct hl_shard_rec *hl_shard_rec_from(const struct hl_api_manifest_shard *r);
struct hl_shard_rec *hl_shard_rec_new(const struct hl_api_shard *shard);
/* It borrows the texts, as that of a version does. */
struct hl_api_model_record hl_model_rec_store(const struct hl_model_rec *m);

/* What a version's record says of its shards. */
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
/* Deletions of the version's cuts; ids of their shards go to ids[*n] and on. */
hl_status hl_cuts_describe_removal(struct hl_records *r, const struct hl_version_rec *v,
                                   struct hl_id *ids, size_t *n, uint64_t *bytes) HL_CHECK;
size_t hl_cuts_shards(const struct hl_version_rec *v);
/* Takes the shards of the cut into the catalogue; every id is new to it. */
void hl_cut_link(struct hl_catalog *c, struct hl_cut_rec *cut);
/* Out of the catalogue, freed. */
void hl_cut_unlink(struct hl_catalog *c, struct hl_cut_rec *cut);
void hl_cuts_unlink(struct hl_catalog *c, struct hl_version_rec *v);

/* catalog_cut_planned.c */
/* The version's shard at that place; NULL = it is not stored. */
struct hl_shard_rec *const *hl_version_shard_at(const struct hl_version_rec *v,
                                                const struct hl_partition_shard *at);
/* HL_EUNSUPPORTED names parameters, or state that is not shared, which the plan of a cut lacks. */
hl_status hl_version_check_planned(const struct hl_version_rec *v,
                                   const struct hl_partition_plan *plan, bool shares) HL_CHECK;

/* catalog.c */
/* The whole list or nothing, not linked; every id is new to the catalogue. */
hl_status hl_shards_parse(const struct hl_catalog *c, struct hl_version_rec *v,
                          const struct hl_api_shard_list *shards, int rank,
                          struct hl_shard_rec ***out) HL_CHECK;
/* Every part has a good name, and every id is new to the catalogue and the list. */
hl_status hl_shards_check(const struct hl_catalog *c, struct hl_shard_rec *const *list,
                          size_t n) HL_CHECK;
void hl_shard_recs_free(struct hl_shard_rec **list, size_t n);
/* Room for n more shards of a version, without linking them yet. */
hl_status hl_version_reserve(struct hl_version_rec *v, size_t n) HL_CHECK;
void hl_version_link(struct hl_catalog *c, struct hl_version_rec *v, struct hl_shard_rec **list,
                     size_t n);
/* Tells it of shards of a visible version. */
void hl_shards_came(const struct hl_catalog *c, struct hl_shard_rec *const *list, size_t n);
/* Out of the catalogue, not freed. */
void hl_shards_unlink(struct hl_catalog *c, struct hl_shard_rec *const *list, size_t n);
/* Take every shard of the version out of the catalogue and free it. */
void hl_version_unlink_shards(struct hl_catalog *c, struct hl_version_rec *v);
/* Take the version out of its model and free it. */
void hl_version_remove(struct hl_catalog *c, struct hl_model_rec *m, struct hl_version_rec *v);
/* The records of a version, its model and the given shards: its own, or those that come to it. */
hl_status hl_version_describe(struct hl_records *r, const struct hl_version_rec *v,
                              struct hl_shard_rec **list, size_t n) HL_CHECK;
/* The deletion of a shard's record. */
hl_status hl_shard_describe_removal(struct hl_records *r, const struct hl_shard_rec *s) HL_CHECK;

/* catalog_whole.c: a sum over ids, places, sizes and checksums, the same in any order. */
uint32_t hl_shards_sum(struct hl_shard_rec *const *list, size_t n);
struct hl_shards_stated hl_version_stated(const struct hl_version_rec *v);

/* catalog_layout.c */
/* The shards of that commit may become part of its version. */
hl_status hl_version_check(const struct hl_version_commit *p, struct hl_shard_rec *const *list,
                           bool last) HL_CHECK;

/* Records of the version and its shards that can't be read or are gone. */
size_t hl_version_damaged_records(const struct hl_version_rec *v);

#endif
