/* maco/cuda/device/body_copy.cuh - MEMCPY and MEMSET: 16 bytes per access, eight accesses in flight
 * per thread; single bytes where addresses don't allow that.
 */
#ifndef HL_MACO_CUDA_DEVICE_BODY_COPY_CUH
#define HL_MACO_CUDA_DEVICE_BODY_COPY_CUH

#include "helios/maco.h"
#include "maco/cuda/device/element.cuh"

namespace gpu
{

HL_DEV void copy_bytes(const unsigned char *from, unsigned char *to, uint64_t n)
{
    const uint64_t step = (uint64_t)thread_count() * 16;
    uint64_t at = (uint64_t)thread_id() * 16, done = 0;
    if (((uint64_t)from | (uint64_t)to) % 16 == 0) {
        hl_quad q[8];
        for (; at + 7 * step + 16 <= n; at += 8 * step) {
            for (int k = 0; k < 8; k++)
                q[k] = *(const hl_quad *)(from + at + k * step);
            for (int k = 0; k < 8; k++)
                *(hl_quad *)(to + at + k * step) = q[k];
        }
        for (; at + 16 <= n; at += step)
            *(hl_quad *)(to + at) = *(const hl_quad *)(from + at);
        done = n / 16 * 16;
    }
    for (uint64_t i = done + thread_id(); i < n; i += thread_count())
        to[i] = from[i];
}

HL_DEV void fill_bytes(unsigned char *to, uint32_t value, uint64_t n)
{
    uint64_t done = 0;
    if ((uint64_t)to % 16 == 0) {
        hl_quad q;
        for (int i = 0; i < 4; i++)
            q.word[i] = (value & 0xffu) * 0x01010101u;
        for (uint64_t at = (uint64_t)thread_id() * 16; at + 16 <= n;
             at += (uint64_t)thread_count() * 16)
            *(hl_quad *)(to + at) = q;
        done = n / 16 * 16;
    }
    for (uint64_t i = done + thread_id(); i < n; i += thread_count())
        to[i] = (unsigned char)value;
}

HL_BODY int body_memcpy(const maco_task *t)
{
    const unsigned char *from = (const unsigned char *)t->inputs[0];
    unsigned char *to = (unsigned char *)t->outputs[0];
    uint64_t rows = (uint32_t)t->dims[0], bytes = (uint32_t)t->dims[1];
    uint64_t ldx = (uint32_t)t->dims[2], ldy = (uint32_t)t->dims[3];
    if (ldx == bytes && ldy == bytes) {
        bytes *= rows;
        rows = 1;
    }
    for (uint64_t i = 0; i < rows; i++)
        copy_bytes(from + i * ldx, to + i * ldy, bytes);
    return 1;
}

HL_BODY int body_memset(const maco_task *t)
{
    unsigned char *to = (unsigned char *)t->outputs[0];
    uint64_t rows = (uint32_t)t->dims[0], bytes = (uint32_t)t->dims[1];
    uint64_t ldy = (uint32_t)t->dims[3];
    if (ldy == bytes) {
        bytes *= rows;
        rows = 1;
    }
    for (uint64_t i = 0; i < rows; i++)
        fill_bytes(to + i * ldy, (uint32_t)t->dims[4], bytes);
    return 1;
}

} // namespace gpu

#endif
