/* base/abi.h - structs of the public ABI that may grow.
 *
 * Such a struct begins with `size_t size`, which the caller sets to its sizeof; that identifies the
 * version of the header it was compiled with. New members are added at the end, and 0 means the
 * behaviour from before they existed.
 *
 *     caller's    | size | members it knows |
 *     library's   | size | members it knows | newer ones: 0 |        an older caller
 *     library's   | size | members |                                 a newer caller: the rest must
 *                                                                    be 0, or it is refused
 *
 * Owns:    nothing.
 * Threads: any.
 * Errors:  HL_EINVAL for a size that no version of the struct has, and for non-zero members that
 *          this library doesn't know.
 * Units:   bytes.
 * Limits:  such a struct has at most HL_ABI_MAX bytes; a larger size means that it was never set.
 */
#ifndef HL_BASE_ABI_H
#define HL_BASE_ABI_H

#include <stddef.h>

#include "base/status.h"

#define HL_ABI_MAX 4096

/* Copies the caller's struct to a complete struct of this library's version. `given` is not
 * NULL. */
#define HL_ABI_READ(type, given, known) hl_abi_read(#type, (given), sizeof(type), (known))
hl_status hl_abi_read(const char *type, const void *given, size_t size, void *known) HL_CHECK;

/* Checks that HL_ABI_WRITE will succeed; use it before an operation that can't be undone. */
#define HL_ABI_CHECK(type, out) hl_abi_check(#type, (out))
hl_status hl_abi_check(const char *type, const void *out) HL_CHECK;

/* Fills the caller's struct as far as its size says. Members that this library doesn't know become
 * 0; `size` stays. */
#define HL_ABI_WRITE(type, known, out) hl_abi_write(#type, (known), sizeof(type), (out))
hl_status hl_abi_write(const char *type, const void *known, size_t size, void *out) HL_CHECK;

#endif
