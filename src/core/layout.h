/* core/layout.h - which tensors a part of a model holds: names, dtypes and shapes, as one text.
 *
 * One line per tensor, sorted by name in byte order: NAME TAB DTYPE TAB EXTENTS LF, with the
 * extents separated by commas ("64,32", empty for a scalar). Equal layouts are equal texts.
 *
 * Owns:    nothing; hl_layout_text() returns memory that the caller frees.
 * Threads: any. Pure.
 * Errors:  HL_EINVAL names the tensor, what is expected and what came.
 * Units:   none.
 * Limits:  names without control characters; HL_TENSOR_NAME_MAX and HL_TENSOR_RANK_MAX.
 */
#ifndef HL_CORE_LAYOUT_H
#define HL_CORE_LAYOUT_H

#include <stdbool.h>
#include <stddef.h>

#include "base/status.h"
#include "core/safetensors.h"

/* How much of a model's layout a new version has to keep. */
enum hl_layout_check {
    HL_LAYOUT_UNCHECKED, /* anything goes */
    HL_LAYOUT_ANY_DTYPE, /* names and shapes */
    HL_LAYOUT_EXACT,     /* names, shapes and dtypes */
    HL_LAYOUT_CHECK_COUNT
};

/* "unchecked", "any-dtype", "exact"; "" is read as exact. */
const char *hl_layout_check_name(enum hl_layout_check check);
hl_status hl_layout_check_parse(const char *name, enum hl_layout_check *out) HL_CHECK;

hl_status hl_layout_text(const struct hl_tensor *tensors, size_t count, char **out) HL_CHECK;
/* A text from outside has the form above. */
hl_status hl_layout_verify(const char *layout) HL_CHECK;
/* The layout has a tensor with the `len` bytes at `name`. */
bool hl_layout_has(const char *layout, const char *name, size_t len);
/* `got` may stand where `want` did. */
hl_status hl_layout_compare(const char *want, const char *got, enum hl_layout_check check) HL_CHECK;
/* Every tensor of `state` ends with the name of a tensor of `parameters`, alone or after a dot. */
hl_status hl_layout_names_parameters(const char *parameters, const char *state) HL_CHECK;

#endif
