/* core/safetensors/safetensors_rename.h - a header put together from another one's tensors under
 * new names.
 *
 * Init, add each tensor and pair that stays, then take the header that they make.
 *
 * Owns:    what was added, until it is taken; names and texts are copied.
 * Threads: one at a time.
 * Errors:  HL_ENOMEM; additions that find no memory are told of by hl_rename_take.
 * Units:   bytes.
 * Limits:  as many tensors and pairs as init was told, texts of twice a header's maximum.
 */
#ifndef HL_CORE_SAFETENSORS_SAFETENSORS_RENAME_H
#define HL_CORE_SAFETENSORS_SAFETENSORS_RENAME_H

#include "base/buf.h"
#include "core/safetensors/safetensors.h"

/* Names, keys and values are offsets into `text` until the header is taken. */
struct hl_rename {
    struct hl_tensor *tensors;
    size_t count;
    uint64_t data_size;
    struct hl_safetensors_meta *meta;
    size_t meta_count;
    struct hl_buf text;
};

/* Room for all of `from` and one pair more. */
hl_status hl_rename_init(struct hl_rename *r, const struct hl_safetensors *from) HL_CHECK;
void hl_rename_fini(struct hl_rename *r);
/* Its data follows that of the tensor added before. */
void hl_rename_add(struct hl_rename *r, const struct hl_tensor *t, const char *name);
/* The key is `prefix` and `key`. */
void hl_rename_add_meta(struct hl_rename *r, const char *prefix, const char *key,
                        const char *value);
/* What was added, as a header whose data starts at `data_offset`; nothing of it stays in `r`. */
hl_status hl_rename_take(struct hl_rename *r, uint64_t data_offset,
                         struct hl_safetensors *out) HL_CHECK;

#endif
