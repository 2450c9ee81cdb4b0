#include "base/copy.h"

#include <stdatomic.h>
#include <string.h>

#include "base/copy_kernels.h"

/* Each entry is valid by itself, so relaxed loads are enough: a reader that sees half of a new
 * choice uses kernels of both choices. */
static _Atomic(const struct hl_copy_kernel *) chosen[2][2]; /* [large][sums], NULL = not chosen */

size_t hl_copy_kernels(const struct hl_copy_kernel *all[HL_COPY_KERNELS_MAX])
{
    size_t n = hl_copy_plain_kernels(all);
    return n + hl_copy_crc_kernels(all + n);
}

/* Without a measurement: the second kernel of each half. It doesn't make a cold destination wait
 * for its lines, leaves the bytes in the cache, and folds as wide as the processor can. */
static const struct hl_copy_kernel *kernel_default(bool sums)
{
    const struct hl_copy_kernel *list[HL_COPY_KERNELS_MAX];
    size_t n = sums ? hl_copy_crc_kernels(list) : hl_copy_plain_kernels(list);
    return list[n > 1];
}

static const struct hl_copy_kernel *kernel_for(bool large, bool sums)
{
    const struct hl_copy_kernel *k =
        atomic_load_explicit(&chosen[large][sums], memory_order_relaxed);
    if (k != NULL)
        return k;
    k = kernel_default(sums);
    atomic_store_explicit(&chosen[large][sums], k, memory_order_relaxed);
    return k;
}

struct hl_copy_choice hl_copy_chosen(void)
{
    return (struct hl_copy_choice){
        .small = {kernel_for(false, false), kernel_for(false, true)},
        .large = {kernel_for(true, false), kernel_for(true, true)},
    };
}

void hl_copy_choose(const struct hl_copy_choice *choice)
{
    for (int sums = 0; sums < 2; sums++) {
        atomic_store_explicit(&chosen[false][sums], choice->small[sums], memory_order_relaxed);
        atomic_store_explicit(&chosen[true][sums], choice->large[sums], memory_order_relaxed);
    }
}

void hl_copy(void *dst, const void *src, size_t len, size_t total)
{
    (void)kernel_for(total >= HL_COPY_LARGE, false)->copy(0, dst, src, len);
}

uint32_t hl_copy_crc32(uint32_t crc, void *dst, const void *src, size_t len, size_t total)
{
    return kernel_for(total >= HL_COPY_LARGE, true)->copy(crc, dst, src, len);
}
