/* mem/transpose.h - transposes a matrix while copying it.
 *
 * Owns:    nothing.
 * Threads: any.
 * Errors:  none.
 * Units:   bytes; rows and columns in elements.
 * Limits:  elements of 1, 2, 4 or 8 bytes, at any alignment; the ranges don't overlap.
 */
#ifndef HL_MEM_TRANSPOSE_H
#define HL_MEM_TRANSPOSE_H

#include <stdint.h>

/* Copies element (i, j) of rows x cols from `from` + j * from_stride + i * elem to `to` + i *
 * to_stride + j * elem. */
void hl_transpose(uint8_t *to, uint64_t to_stride, const uint8_t *from, uint64_t from_stride,
                  uint64_t rows, uint64_t cols, uint32_t elem);

#endif
