/* core/model/layout.h - which tensors a part of a model holds: names, dtypes and shapes, as one
 * text.
 *
 * One line per tensor, sorted by name in byte order: NAME TAB DTYPE TAB EXTENTS LF, with the
 * extents separated by commas ("64,32", empty for a scalar). Equal layouts are equal texts.
 *
 * Owns:    nothing; hl_layout_text() and hl_layout_crcs() return memory that the caller
 *          frees.
 * Threads: any. Pure.
 * Errors:  HL_EINVAL names the tensor, what was expected and what was found.
 * Units:   none.
 * Limits:  names without control characters; HL_TENSOR_NAME_MAX and HL_TENSOR_RANK_MAX.
 */
#ifndef HL_CORE_MODEL_LAYOUT_H
#define HL_CORE_MODEL_LAYOUT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "api/types.h"
#include "base/arena.h"
#include "base/status.h"
#include "core/safetensors/safetensors.h"

hl_status hl_layout_text(const struct hl_tensor *tensors, size_t count, char **out) HL_CHECK;
/* The tensors' CRC-32s in the order of the layout text, 8 hexadecimal digits each; free(). */
hl_status hl_layout_crcs(const struct hl_tensor *tensors, const uint32_t *crcs, size_t count,
                         char **out) HL_CHECK;
/* The CRC of tensor i, from such a text. */
uint32_t hl_layout_crc(const char *crcs, size_t i);
/* Checks that a text from outside has the form above. */
hl_status hl_layout_verify(const char *layout) HL_CHECK;
/* Checks that a text from outside has the form of hl_layout_crcs() for a verified layout. */
hl_status hl_layout_verify_crcs(const char *layout, const char *crcs) HL_CHECK;
/* Number of tensors in a verified layout. */
size_t hl_layout_count(const char *layout);
/* The tensors of a verified layout, in order, with their sizes and offset 0; all in the arena. */
hl_status hl_layout_read(const char *layout, struct hl_arena *arena, struct hl_tensor **out,
                         size_t *count) HL_CHECK;
/* Checks that a part with layout `got` may replace one with layout `want`. */
hl_status hl_layout_compare(const char *want, const char *got,
                            enum hl_api_layout_check check) HL_CHECK;
/* Checks that the name of every tensor of `state`, or of the tensor it is a piece of, equals the
 * name of a tensor of `parameters` or ends with it after a dot. */
hl_status hl_layout_names_parameters(const char *parameters, const char *state) HL_CHECK;

#endif
