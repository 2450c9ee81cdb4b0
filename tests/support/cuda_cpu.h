/* The machine interface of the GPU kernels of src/maco/cuda/device, on a CPU: the kernels are
 * compiled as C++ and run unchanged. A CTA is a system thread; its threads are fibers. A fiber runs
 * until it meets a barrier (block_sync, warp_sync and the collective operations of a warp), and a
 * warp runs alone from one block_sync to the next. This finds
 *   - a barrier that not all threads reach: the run ends with an error;
 *   - a missing barrier: the order of warps and fibers changes with the seed, so data that one
 *     needs from another is not there yet, or is overwritten;
 *   - an asynchronous copy without a wait: only copy_wait carries it out;
 *   - a wrong memory order between CTAs: atomics are C11's, for ThreadSanitizer (a CTA of one
 *     thread has no fibers).
 * It does not find code that depends on a warp's lanes running together, which is not allowed
 * here. */
#ifndef HL_TESTS_CUDA_CPU_H
#define HL_TESTS_CUDA_CPU_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <ucontext.h>

#include <cmath>
#include <thread>
#include <vector>

#define HL_DEV                [[maybe_unused]] static inline
#define HL_BODY               [[maybe_unused]] static
#define HL_GRID_CONSTANT      const
#define HL_KERNEL             static void
#define HL_SHARED(type, name) type &name = *(type *)gpu::cta->shared(sizeof(type))
#define HL_LANES              (gpu::cta->lanes())
#define HL_TENSOR_CORES       1
#define HL_UNROLL

/* A deliberate fault, for a test that must find it. */
#ifdef HL_GPU_MUTATE_RELEASE
#define HL_CPU_RELEASE __ATOMIC_RELAXED
#define HL_CPU_ACQ_REL __ATOMIC_ACQUIRE
#else
#define HL_CPU_RELEASE __ATOMIC_RELEASE
#define HL_CPU_ACQ_REL __ATOMIC_ACQ_REL
#endif

namespace gpu
{

struct pending_copy {
    void *to;
    const void *from;
    uint32_t bytes;
    int group;
};

enum fiber_state { FIBER_RUNS, FIBER_AT_BLOCK, FIBER_AT_WARP, FIBER_ENDED };

struct fiber {
    ucontext_t context;
    std::vector<unsigned char> stack;
    fiber_state state = FIBER_RUNS;
    std::vector<pending_copy> copies;
    int groups = 0;
};

struct cta_of_fibers {
    uint32_t block, threads, current = 0, seed;
    std::vector<fiber> fibers;
    std::vector<uint64_t> slots; /* what lanes exchange: 16 words a thread */
    ucontext_t back;
    void *memory = nullptr;
    size_t memory_size = 0;
    void (*body)(void *) = nullptr;
    void *argument = nullptr;

    uint32_t lanes() const
    {
        return threads < 32 ? threads : 32;
    }

    void *shared(size_t size)
    {
        if (memory == nullptr) {
            memory = aligned_alloc(128, (size + 127) / 128 * 128);
            memory_size = size;
            memset(memory, 0xa5, size); /* a GPU doesn't clear it either */
        }
        return memory;
    }

    void wait(fiber_state what)
    {
        if (threads == 1)
            return;
        fibers[current].state = what;
        swapcontext(&fibers[current].context, &back);
    }

    int all_at_block() const
    {
        for (const fiber &f : fibers)
            if (f.state != FIBER_AT_BLOCK)
                return 0;
        return 1;
    }

    uint32_t end_of(uint32_t warp) const
    {
        return warp * 32 + 32 < threads ? warp * 32 + 32 : threads;
    }

    int warp_is_there(uint32_t warp) const
    {
        for (uint32_t i = warp * 32; i < end_of(warp); i++)
            if (fibers[i].state != FIBER_AT_WARP)
                return 0;
        return 1;
    }

    static void enter(unsigned low, unsigned high)
    {
        cta_of_fibers *c = (cta_of_fibers *)(uintptr_t)((uint64_t)high << 32 | low);
        c->body(c->argument);
        c->fibers[c->current].state = FIBER_ENDED;
        swapcontext(&c->fibers[c->current].context, &c->back);
    }

    __attribute__((noinline)) void prepare(fiber &f)
    {
        f.stack.resize(128 << 10);
        getcontext(&f.context);
        f.context.uc_stack.ss_sp = f.stack.data();
        f.context.uc_stack.ss_size = f.stack.size();
        f.context.uc_link = nullptr;
        uint64_t self = (uint64_t)(uintptr_t)this;
        makecontext(&f.context, (void (*)())enter, 2, (unsigned)self, (unsigned)(self >> 32));
    }

    /* No loop around getcontext in one function: the compiler warns that it can return twice. */
    void start()
    {
        for (fiber &f : fibers)
            prepare(f);
    }

    /* Runs one warp alone, from one block barrier to the next: as far ahead of the others as it can
     * get. Between its own barriers its fibers run one after the other. */
    void run_warp(uint32_t warp, int backwards)
    {
        uint32_t first = warp * 32, n = end_of(warp) - first;
        for (int any = 1; any;) {
            any = 0;
            for (uint32_t i = 0; i < n; i++) {
                uint32_t at = first + (backwards ? n - 1 - i : i);
                if (fibers[at].state != FIBER_RUNS)
                    continue;
                current = at;
                swapcontext(&back, &fibers[at].context);
                any = 1;
            }
            if (!warp_is_there(warp))
                continue;
            for (uint32_t i = first; i < first + n; i++)
                fibers[i].state = FIBER_RUNS;
            any = 1;
        }
    }

    void release_block()
    {
        if (!all_at_block()) {
            fprintf(stderr, "CTA %u: a barrier that not all its threads meet\n", block);
            abort();
        }
        for (fiber &f : fibers)
            f.state = FIBER_RUNS;
    }

    void run_fibers()
    {
        uint64_t random = seed * 2654435761u + 1;
        uint32_t warps = (threads + 31) / 32;
        start();
        for (;;) {
            uint32_t ended = 0;
            random = random * 6364136223846793005ull + 1442695040888963407ull;
            uint32_t first = (uint32_t)(random >> 33) % warps;
            int backwards = (int)(random >> 63);
            for (uint32_t i = 0; i < warps; i++)
                run_warp(backwards ? (first + warps - i) % warps : (first + i) % warps, backwards);
            for (const fiber &f : fibers)
                ended += f.state == FIBER_ENDED;
            if (ended == threads)
                return;
            release_block();
        }
    }
};

extern thread_local cta_of_fibers *cta;

/* Runs a CTA to its end, on this thread. */
static inline void run_cta(uint32_t block, uint32_t threads, uint32_t seed, void (*body)(void *),
                           void *argument)
{
    cta_of_fibers c;
    c.block = block;
    c.threads = threads;
    c.seed = seed + block;
    c.body = body;
    c.argument = argument;
    c.slots.resize((size_t)threads * 16);
    c.fibers.resize(threads);
    cta = &c;
    if (threads == 1)
        body(argument);
    else
        c.run_fibers();
    cta = nullptr;
    free(c.memory);
}

/* Runs all CTAs at once, as a cooperative launch does. */
static inline void run_grid(uint32_t grid, uint32_t threads, uint32_t seed, void (*body)(void *),
                            void *argument)
{
    std::vector<std::thread> ctas;
    for (uint32_t b = 0; b < grid; b++)
        ctas.emplace_back(run_cta, b, threads, seed, body, argument);
    for (std::thread &t : ctas)
        t.join();
}

HL_DEV uint32_t thread_id()
{
    return cta->current;
}

HL_DEV uint32_t thread_count()
{
    return cta->threads;
}

HL_DEV uint32_t block_id()
{
    return cta->block;
}

HL_DEV void block_sync()
{
    cta->wait(FIBER_AT_BLOCK);
}

HL_DEV void warp_sync()
{
    cta->wait(FIBER_AT_WARP);
}

HL_DEV uint64_t load_relaxed(const uint64_t *p)
{
    return __atomic_load_n(p, __ATOMIC_RELAXED);
}

HL_DEV uint64_t load_acquire(const uint64_t *p)
{
    return __atomic_load_n(p, __ATOMIC_ACQUIRE);
}

HL_DEV uint64_t load_acquire_sys(const uint64_t *p)
{
    return load_acquire(p);
}

HL_DEV void store_relaxed(uint64_t *p, uint64_t v)
{
    __atomic_store_n(p, v, __ATOMIC_RELAXED);
}

HL_DEV void store_release(uint64_t *p, uint64_t v)
{
    __atomic_store_n(p, v, HL_CPU_RELEASE);
}

HL_DEV void store_release_sys(uint64_t *p, uint64_t v)
{
    store_release(p, v);
}

HL_DEV uint64_t add_relaxed(uint64_t *p, uint64_t n)
{
    return __atomic_fetch_add(p, n, __ATOMIC_RELAXED);
}

HL_DEV uint64_t add_acq_rel(uint64_t *p, uint64_t n)
{
    return __atomic_fetch_add(p, n, HL_CPU_ACQ_REL);
}

HL_DEV uint64_t add_acq_rel_sys(uint64_t *p, uint64_t n)
{
    return add_acq_rel(p, n);
}

HL_DEV void count_relaxed(uint64_t *p, uint64_t n)
{
    (void)add_relaxed(p, n);
}

HL_DEV uint64_t swap_if(uint64_t *p, uint64_t is, uint64_t v)
{
    __atomic_compare_exchange_n(p, &is, v, 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE);
    return is;
}

HL_DEV void max_relaxed(uint64_t *p, uint64_t v)
{
    uint64_t is = load_relaxed(p);
    while (is < v && !__atomic_compare_exchange_n(p, &is, v, 1, __ATOMIC_RELAXED, __ATOMIC_RELAXED))
        ;
}

HL_DEV uint64_t timer_ns()
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* There are more CTAs than CPUs here. */
HL_DEV void pause_ns(uint32_t)
{
    std::this_thread::yield();
}

HL_DEV uint32_t shared_add(uint32_t *p, uint32_t n)
{
    return __atomic_fetch_add(p, n, 0);
}

/* ---- over a warp ---- */

HL_DEV uint64_t *slot_of(uint32_t lane)
{
    uint32_t first = thread_id() / 32 * 32;
    return &cta->slots[(size_t)(first + lane) * 16];
}

HL_DEV uint32_t lane_id()
{
    return thread_id() % 32;
}

HL_DEV uint32_t from_lane(uint32_t v, uint32_t from)
{
    *slot_of(lane_id()) = v;
    warp_sync();
    v = (uint32_t)*slot_of(from);
    warp_sync();
    return v;
}

HL_DEV uint32_t across(uint32_t v, uint32_t mask)
{
    return from_lane(v, lane_id() ^ mask);
}

HL_DEV float float_of_bits(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, 4);
    return x;
}

HL_DEV uint32_t bits_of_float(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, 4);
    return bits;
}

HL_DEV float across(float v, uint32_t mask)
{
    return float_of_bits(across(bits_of_float(v), mask));
}

/* ---- numbers ---- */

HL_DEV float float_of_half(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000u) << 16, exponent = h >> 10 & 31, part = h & 0x3ffu;
    if (exponent == 31)
        return float_of_bits(sign | 0x7f800000u | part << 13);
    if (exponent == 0)
        return (sign ? -1.0f : 1.0f) * ldexpf((float)part, -24);
    return float_of_bits(sign | (exponent + 112) << 23 | part << 13);
}

HL_DEV uint16_t half_of_float(float x)
{
    uint16_t sign = (uint16_t)(bits_of_float(x) >> 16 & 0x8000u);
    float size = fabsf(x);
    if (std::isnan(x))
        return 0x7fff;
    if (size >= 65520.0f)
        return sign | 0x7c00u;
    int exponent = size < 6.103515625e-05f ? -14 : ilogbf(size);
    float units = nearbyintf(ldexpf(size, 10 - exponent)); /* rounds to even; exact before that */
    uint32_t bits = (uint32_t)units + ((uint32_t)(exponent + 14) << 10);
    return (uint16_t)(sign | bits);
}

HL_DEV uint16_t bfloat_of_float(float x)
{
    uint32_t u = bits_of_float(x);
    if ((u & 0x7fffffffu) > 0x7f800000u)
        return 0x7fff;
    return (uint16_t)((u + 0x7fffu + (u >> 16 & 1u)) >> 16);
}

/* ---- tensor cores ---- */

HL_DEV void load_matrices_as(uint32_t *out, const void *row, int transposed)
{
    uint32_t lane = lane_id();
    if ((uintptr_t)row % 16 != 0) {
        fprintf(stderr, "load_matrices(%p): not 16 bytes\n", row);
        abort();
    }
    *slot_of(lane) = (uint64_t)(uintptr_t)row;
    warp_sync();
    for (uint32_t i = 0; i < 4; i++) {
        uint32_t pair[2];
        for (uint32_t h = 0; h < 2; h++) {
            uint32_t r = transposed ? lane % 4 * 2 + h : lane / 4;
            uint32_t c = transposed ? lane / 4 : lane % 4 * 2 + h;
            pair[h] = ((const uint16_t *)(uintptr_t)*slot_of(8 * i + r))[c];
        }
        out[i] = pair[0] | pair[1] << 16;
    }
    warp_sync();
}

HL_DEV void load_matrices(uint32_t *out, const void *row)
{
    load_matrices_as(out, row, 0);
}

HL_DEV void load_matrices_transposed(uint32_t *out, const void *row)
{
    load_matrices_as(out, row, 1);
}

/* Where the elements of a warp's operands are: PTX, mma.m16n8k16. */
template <typename T> HL_DEV float element_of_a(uint32_t row, uint32_t k)
{
    T x;
    const uint64_t *s = slot_of(row % 8 * 4 + k % 8 / 2);
    x.bits = (uint16_t)(s[row / 8 + k / 8 * 2] >> (k % 2 * 16));
    return to_float(x);
}

template <typename T> HL_DEV float element_of_b(uint32_t k, uint32_t col)
{
    T x;
    const uint64_t *s = slot_of(col * 4 + k % 8 / 2);
    x.bits = (uint16_t)(s[4 + k / 8] >> (k % 2 * 16));
    return to_float(x);
}

template <typename T>
HL_DEV void multiply_add(float *c, const uint32_t *a, const uint32_t *b, const T *)
{
    uint32_t lane = lane_id();
    for (uint32_t i = 0; i < 6; i++)
        slot_of(lane)[i] = i < 4 ? a[i] : b[i - 4];
    warp_sync();
    for (uint32_t e = 0; e < 4; e++)
        for (uint32_t k = 0; k < 16; k++)
            c[e] +=
                element_of_a<T>(lane / 4 + e / 2 * 8, k) * element_of_b<T>(k, lane % 4 * 2 + e % 2);
    warp_sync();
}

/* ---- asynchronous copies ---- */

HL_DEV void copy_async(void *to, const void *from, uint32_t bytes)
{
    if ((uintptr_t)to % 16 != 0 || (uintptr_t)from % 16 != 0 || bytes > 16) {
        fprintf(stderr, "copy_async(%p, %p, %u): not 16 bytes\n", to, from, bytes);
        abort();
    }
    fiber &f = cta->fibers[cta->current];
    f.copies.push_back({to, from, bytes, f.groups});
}

HL_DEV void copy_commit()
{
    cta->fibers[cta->current].groups++;
}

template <int left> HL_DEV void copy_wait()
{
    fiber &f = cta->fibers[cta->current];
    std::vector<pending_copy> later;
    for (const pending_copy &c : f.copies) {
        if (c.group >= f.groups - left) {
            later.push_back(c);
            continue;
        }
        memset(c.to, 0, 16);
        memcpy(c.to, c.from, c.bytes);
    }
    f.copies = later;
}

} // namespace gpu

#endif
