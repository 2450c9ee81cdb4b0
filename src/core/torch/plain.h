/* core/torch/plain.h - converts plain values of a pickle to JSON.
 *
 * Plain values are None, bools, numbers, strings, and lists, tuples and dictionaries of those. Any
 * other value (a tensor, an object, bytes) becomes null in a list and is left out of a dictionary,
 * and so are numbers that JSON can't represent. Keys that are numbers become strings.
 *
 * Owns:    nothing; the result belongs to the caller (json_decref).
 * Threads: any; pure.
 * Errors:  NULL if it is not a plain value, or out of memory.
 * Units:   none.
 * Limits:  depth 16, 2^16 values; everything beyond is left out.
 */
#ifndef HL_CORE_TORCH_PLAIN_H
#define HL_CORE_TORCH_PLAIN_H

#include <jansson.h>

#include "core/torch/value.h"

json_t *hl_pickle_json(const struct hl_pickle_value *v);

#endif
