#include "mem/transpose.h"

#include <string.h>

#define TILE 32

/* The memory may be unaligned, so it uses memcpy; with a constant size that is one move. */
#define TURN(name, type)                                                                           \
    static void name(uint8_t *to, uint64_t to_stride, const uint8_t *from, uint64_t from_stride,   \
                     uint64_t rows, uint64_t cols)                                                 \
    {                                                                                              \
        for (uint64_t j0 = 0; j0 < cols; j0 += TILE) {                                             \
            uint64_t j1 = j0 + TILE < cols ? j0 + TILE : cols;                                     \
            for (uint64_t i = 0; i < rows; i++)                                                    \
                for (uint64_t j = j0; j < j1; j++)                                                 \
                    memcpy(to + i * to_stride + j * sizeof(type),                                  \
                           from + j * from_stride + i * sizeof(type), sizeof(type));               \
        }                                                                                          \
    }

TURN(turn_1, uint8_t)
TURN(turn_2, uint16_t)
TURN(turn_4, uint32_t)
TURN(turn_8, uint64_t)

/* Works on one band of rows at a time, so that adjacent source bytes are used while in the
 * cache. */
void hl_transpose(uint8_t *to, uint64_t to_stride, const uint8_t *from, uint64_t from_stride,
                  uint64_t rows, uint64_t cols, uint32_t elem)
{
    for (uint64_t i = 0; i < rows; i += TILE) {
        uint64_t n = TILE < rows - i ? TILE : rows - i;
        uint8_t *band = to + i * to_stride;
        const uint8_t *columns = from + i * elem;
        switch (elem) {
        case 1:
            turn_1(band, to_stride, columns, from_stride, n, cols);
            break;
        case 2:
            turn_2(band, to_stride, columns, from_stride, n, cols);
            break;
        case 4:
            turn_4(band, to_stride, columns, from_stride, n, cols);
            break;
        default:
            turn_8(band, to_stride, columns, from_stride, n, cols);
        }
    }
}
