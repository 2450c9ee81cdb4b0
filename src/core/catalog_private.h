/* What catalog.c and catalog_json.c share. */
#ifndef HL_CORE_CATALOG_PRIVATE_H
#define HL_CORE_CATALOG_PRIVATE_H

#include "core/catalog.h"

struct hl_model_rec *hl_model_rec_from_json(const json_t *value);
struct hl_version_rec *hl_version_rec_from_json(const json_t *value);
/* NULL when a member is missing or bad; says which in hl_error_text(). */
struct hl_shard_rec *hl_shard_rec_from_json(const json_t *value);
json_t *hl_model_rec_store(const struct hl_model_rec *m);
json_t *hl_version_rec_store(const struct hl_version_rec *v);
void hl_model_rec_free(struct hl_model_rec *m);
void hl_version_rec_free(struct hl_version_rec *v);
struct hl_version_rec *hl_version_rec_new(int64_t number, int world);
char *hl_text_copy(const char *s);

#endif
