/* base/cpu.h - the vector instructions that loops with several builds may use.
 *
 * The environment variable HELIOS_CPU=plain, avx2 or avx512 is an upper limit; instructions that
 * the CPU lacks are never used. It is meant for tests, and for bit-identical results on machines of
 * different generations.
 *
 * Owns:    nothing.
 * Threads: any; call hl_cpu_limit only while nothing computes.
 * Errors:  none; another word in the environment is a warning, once.
 * Units:   none.
 * Limits:  x86-64; elsewhere HL_CPU_PLAIN, which is what the compiler was told to build for.
 */
#ifndef HL_BASE_CPU_H
#define HL_BASE_CPU_H

enum hl_cpu {
    HL_CPU_PLAIN = 1,
    HL_CPU_AVX2 = 2,   /* with FMA */
    HL_CPU_AVX512 = 3, /* F and BW */
};

/* Function attributes for each build. Only GCC must be told to use the full registers. */
#define HL_FOR_AVX2 __attribute__((target("avx2,fma")))
#ifdef __clang__
#define HL_FOR_AVX512 __attribute__((target("avx512f,avx512bw,fma")))
#else
#define HL_FOR_AVX512 __attribute__((target("avx512f,avx512bw,fma,prefer-vector-width=512")))
#endif

enum hl_cpu hl_cpu(void);
/* Sets the upper limit; 0 = that of the environment. Returns the resulting hl_cpu. */
enum hl_cpu hl_cpu_limit(enum hl_cpu most);

#endif
