/* core/torch/pickle.h - a pickle machine that executes nothing.
 *
 * It reads protocols 2 to 5 and builds values (core/torch/value.h). GLOBAL yields the name of a
 * class; REDUCE, NEWOBJ and BUILD create and fill an object node. No name is looked up and no
 * function is called, so a hostile pickle can be wrong or large, but can't run anything.
 *
 * Owns:    hl_pickle owns its values (hl_pickle_fini). Texts borrow from the bytes given, which
 *          must outlive it.
 * Threads: any; a parsed pickle is immutable.
 * Errors:  HL_EINVAL with the byte's offset; HL_EUNSUPPORTED: another protocol, extension codes,
 *          buffers outside the pickle; HL_ENOMEM.
 * Units:   bytes.
 * Limits:  256 MiB of bytes, 2^25 values; memory is at most about 64 times the bytes, and 4 GiB.
 *          Depth is not limited here: the machine does not recurse.
 */
#ifndef HL_CORE_TORCH_PICKLE_H
#define HL_CORE_TORCH_PICKLE_H

#include "base/arena.h"
#include "core/torch/value.h"

#define HL_PICKLE_BYTES_MAX ((size_t)256 << 20)

struct hl_pickle {
    const struct hl_pickle_value *root;
    size_t used; /* bytes up to and including STOP */
    struct hl_arena arena;
};

hl_status hl_pickle_parse(const void *bytes, size_t len, struct hl_pickle *out) HL_CHECK;
void hl_pickle_fini(struct hl_pickle *p);

#endif
