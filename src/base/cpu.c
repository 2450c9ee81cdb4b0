#include "base/cpu.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"

static _Atomic int used; /* 0 = not determined yet */

static enum hl_cpu cpu_has(void)
{
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma"))
        return HL_CPU_PLAIN;
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") ? HL_CPU_AVX512
                                                                                   : HL_CPU_AVX2;
#else
    return HL_CPU_PLAIN;
#endif
}

static enum hl_cpu cpu_limit(void)
{
    static const char *const names[] = {"plain", "avx2", "avx512"};
    const char *text = getenv("HELIOS_CPU");
    if (text == NULL || text[0] == '\0')
        return HL_CPU_AVX512;
    for (int i = 0; i < 3; i++)
        if (strcmp(text, names[i]) == 0)
            return (enum hl_cpu)(HL_CPU_PLAIN + i);
    hl_warn("HELIOS_CPU is \"%s\" and is ignored; it can be plain, avx2 or avx512", text);
    return HL_CPU_AVX512;
}

enum hl_cpu hl_cpu_limit(enum hl_cpu most)
{
    enum hl_cpu own = cpu_has(), limit = most != 0 ? most : cpu_limit();
    enum hl_cpu now = own < limit ? own : limit;
    atomic_store_explicit(&used, now, memory_order_relaxed);
    return now;
}

enum hl_cpu hl_cpu(void)
{
    int now = atomic_load_explicit(&used, memory_order_relaxed);
    return now != 0 ? (enum hl_cpu)now : hl_cpu_limit(0);
}
