/* One device per test, of 64 MiB, by the spec of its group. */
#ifndef HL_TESTS_DEVICE_RIG_H
#define HL_TESTS_DEVICE_RIG_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "mem/device/device.h"

#define MIB      ((uint64_t)1 << 20)
#define CAPACITY (64 * MIB)
#define WAIT_MS  20000

struct rig {
    const char *spec;
    struct hl_device_options options;
    struct hl_device *device;
    uint64_t granule;
};

static inline struct hl_device_info info(struct rig *r)
{
    struct hl_device_info i;
    hl_device_info(r->device, &i);
    return i;
}

static inline void assert_error_has(const char *text)
{
    if (strstr(hl_error_text(), text) == NULL)
        fail_msg("\"%s\" is not in \"%s\"", text, hl_error_text());
}

/* Bytes that differ at every position and by `seed`. */
static inline void fill(void *buf, size_t len, unsigned seed)
{
    uint64_t x = seed * UINT64_C(0x9e3779b97f4a7c15) + 1;
    unsigned char *at = buf;
    for (size_t i = 0; i < len; i += sizeof(x)) {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        memcpy(at + i, &x, len - i < sizeof(x) ? len - i : sizeof(x));
    }
}

static inline unsigned char *filled(size_t len, unsigned seed)
{
    unsigned char *buf = malloc(len);
    assert_non_null(buf);
    fill(buf, len, seed);
    return buf;
}

#endif
