#include "base/id.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

uint64_t hl_random_u64(void)
{
    uint64_t v = 0;
    /* Once the kernel's pool is initialised, 8 bytes are returned whole or not at all; before that
     * getrandom blocks. */
    while (getrandom(&v, sizeof(v), 0) != (ssize_t)sizeof(v))
        ;
    return v;
}

struct hl_id hl_id_random(void)
{
    struct hl_id id = {hl_random_u64(), hl_random_u64()};
    return id;
}

struct hl_id_text hl_id_format(struct hl_id id)
{
    struct hl_id_text t;
    snprintf(t.s, sizeof(t.s), "%016" PRIx64 "%016" PRIx64, id.hi, id.lo);
    return t;
}

const char *hl_id_print(struct hl_id id, struct hl_arena *arena)
{
    return hl_id_is_none(id) ? "" : hl_arena_strdup(arena, hl_id_format(id).s);
}

static int hex_digit(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    if (c >= 'a' && c <= 'f')
        return c - 'a' + 10;
    return -1;
}

hl_status hl_id_parse(const char *text, struct hl_id *out)
{
    uint64_t half[2] = {0, 0};
    if (strlen(text) != HL_ID_TEXT_LEN)
        return hl_fail(HL_EINVAL, "'%.40s' is not an id of 32 hex digits", text);
    for (size_t i = 0; i < HL_ID_TEXT_LEN; i++) {
        int d = hex_digit(text[i]);
        if (d < 0)
            return hl_fail(HL_EINVAL, "'%s' is not an id of 32 hex digits", text);
        half[i / 16] = half[i / 16] << 4 | (uint64_t)d;
    }
    *out = (struct hl_id){half[0], half[1]};
    return HL_OK;
}
