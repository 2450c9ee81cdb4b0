#include "maco/graph/span.h"

#include <stdbool.h>

static uint64_t add_capped(uint64_t a, uint64_t b)
{
    uint64_t out;
    return __builtin_add_overflow(a, b, &out) ? UINT64_MAX : out;
}

struct hl_maco_span hl_maco_span_of(const struct hl_maco_operand *o)
{
    struct hl_maco_span s = {.first = o->address,
                             .rows = o->rows,
                             .row_bytes = hl_maco_mul_capped(o->cols, o->elem),
                             .stride = hl_maco_mul_capped(o->ld, o->elem)};
    if (s.rows == 1 || s.stride == s.row_bytes) {
        s.row_bytes = hl_maco_mul_capped(s.rows, s.row_bytes);
        s.stride = s.row_bytes;
        s.rows = 1;
    }
    return s;
}

uint64_t hl_maco_span_end(const struct hl_maco_span *s)
{
    return add_capped(s->first,
                      add_capped(hl_maco_mul_capped(s->rows - 1, s->stride), s->row_bytes));
}

/* Let k = i - j and d = b - a. Row i of a and row j of b overlap if
 *   d - width of a < k * stride < d + width of b.
 * Returns whether any possible k satisfies that. */
static bool rows_meet(const struct hl_maco_span *a, const struct hl_maco_span *b)
{
    __extension__ typedef __int128 wide;
    wide stride = a->rows > 1 ? a->stride : b->stride;
    wide d = (wide)b->first - (wide)a->first;
    wide low = d - (wide)a->row_bytes + 1, high = d + (wide)b->row_bytes - 1;
    wide least = -(wide)(b->rows - 1), most = (wide)(a->rows - 1);
    wide k = low >= 0 ? (low + stride - 1) / stride : -(-low / stride); /* low / stride, up */
    if (k < least)
        k = least;
    return k <= most && k * stride <= high;
}

bool hl_maco_span_overlap(const struct hl_maco_span *a, const struct hl_maco_span *b)
{
    if (a->first >= hl_maco_span_end(b) || b->first >= hl_maco_span_end(a))
        return false;
    if (a->rows > 1 && b->rows > 1 && a->stride != b->stride)
        return true;
    return a->rows == 1 && b->rows == 1 ? 1 : rows_meet(a, b);
}
