/* core/safetensors/safetensors_rename.h - builds a header from another header's tensors under new
 * names.
 *
 * Call init, add each tensor and metadata pair to keep, then take the resulting header.
 *
 * Owns:    what was added, until it is taken; names and strings are copied.
 * Threads: one at a time.
 * Errors:  HL_ENOMEM; hl_rename_take reports additions that failed for lack of memory.
 * Units:   bytes.
 * Limits:  as many tensors and pairs as init made room for; strings of twice a header's maximum.
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

/* Makes room for everything in `from` plus one more pair. */
hl_status hl_rename_init(struct hl_rename *r, const struct hl_safetensors *from) HL_CHECK;
void hl_rename_fini(struct hl_rename *r);
/* Adds a tensor; its data follows that of the previously added one. */
void hl_rename_add(struct hl_rename *r, const struct hl_tensor *t, const char *name);
/* The full key is `prefix` followed by `key`. */
void hl_rename_add_meta(struct hl_rename *r, const char *prefix, const char *key,
                        const char *value);
/* Returns everything added as a header whose data starts at `data_offset`, and leaves `r` empty. */
hl_status hl_rename_take(struct hl_rename *r, uint64_t data_offset,
                         struct hl_safetensors *out) HL_CHECK;

#endif
