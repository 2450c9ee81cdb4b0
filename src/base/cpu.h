/* base/cpu.h - which vectors the loops that have several builds may use.
 *
 * HELIOS_CPU=plain, avx2 or avx512 in the environment is the most that is used; what the CPU lacks
 * is not used whatever it says. For tests, and for the same bits on machines of different age.
 *
 * Owns:    nothing.
 * Threads: any; hl_cpu_limit while nobody computes.
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

/* Attributes of a function's build for each. Only GCC has to be told to use whole registers. */
#define HL_FOR_AVX2 __attribute__((target("avx2,fma")))
#ifdef __clang__
#define HL_FOR_AVX512 __attribute__((target("avx512f,avx512bw,fma")))
#else
#define HL_FOR_AVX512 __attribute__((target("avx512f,avx512bw,fma,prefer-vector-width=512")))
#endif

enum hl_cpu hl_cpu(void);
/* From now on no more than this; 0 = what the environment says. Returns what hl_cpu is then. */
enum hl_cpu hl_cpu_limit(enum hl_cpu most);

#endif
