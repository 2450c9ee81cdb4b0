/* core/torch/plain.h - plain values of a pickle as JSON.
 *
 * None, bools, numbers, texts, and lists, tuples and dictionaries of those. What is none (a tensor,
 * an object, bytes) is null in a list and left out of a dictionary; so are numbers that JSON has
 * not. Keys that are numbers become texts.
 *
 * Owns:    nothing; the result is the caller's (json_decref).
 * Threads: any; pure.
 * Errors:  NULL when it is no plain value, or out of memory.
 * Units:   none.
 * Limits:  depth 16, 2^16 values; what lies beyond is left out.
 */
#ifndef HL_CORE_TORCH_PLAIN_H
#define HL_CORE_TORCH_PLAIN_H

#include <jansson.h>

#include "core/torch/value.h"

json_t *hl_pickle_json(const struct hl_pickle_value *v);

#endif
