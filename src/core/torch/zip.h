/* core/torch/zip.h - the entries of a file that torch.save wrote, and where their bytes are.
 *
 * Such a file is a zip whose entries are stored, not compressed: STEM/data.pkl, STEM/data/KEY, ...
 * The reader trusts nothing: every entry must be inside the file, before the directory, and no two
 * may overlap. Checksums are not compared, just as in torch's own reader, because torch can be told
 * not to write them.
 *
 * Owns:    hl_torch_zip owns names and table (hl_torch_zip_fini). The source is read only during
 *          the call.
 * Threads: any; an open directory is immutable.
 * Errors:  HL_EINVAL says what is wrong and where; HL_EUNSUPPORTED: compressed or encrypted
 *          entries; what the source's read returns. Prefix them with the file's name.
 * Units:   bytes, counted from the start of the source.
 * Limits:  directories of 256 MiB, names of 4095 bytes.
 */
#ifndef HL_CORE_TORCH_ZIP_H
#define HL_CORE_TORCH_ZIP_H

#include <stdint.h>

#include "base/arena.h"
#include "base/status.h"

/* Bytes [0, size) of a file, or of a part of one. */
struct hl_torch_source {
    uint64_t size;
    hl_status (*read)(void *arg, uint64_t at, void *to, size_t len); /* all of them or an error */
    void *arg;
};

struct hl_torch_zip_entry {
    const char *name; /* without the stem: "data.pkl", "data/0" */
    uint64_t offset;  /* of its data */
    uint64_t size;
};

struct hl_torch_zip {
    struct hl_torch_zip_entry *entries; /* by name */
    size_t count;
    struct hl_arena arena;
};

hl_status hl_torch_zip_open(const struct hl_torch_source *source,
                            struct hl_torch_zip *out) HL_CHECK;
void hl_torch_zip_fini(struct hl_torch_zip *zip);
/* Borrowed; NULL when there is none. */
const struct hl_torch_zip_entry *hl_torch_zip_find(const struct hl_torch_zip *zip,
                                                   const char *name);

#endif
