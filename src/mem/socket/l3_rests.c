#include "mem/socket/l3_rests.h"

#include "os/file.h"
#include "os/shm.h"

#define BYTES (HL_L3_RESTS * sizeof(hl_rest_word))

static hl_status map_words(struct l3_rests *rests, int fd)
{
    void *words;
    HL_TRY(hl_shm_map(fd, BYTES, true, &words));
    *rests = (struct l3_rests){.words = words};
    return HL_OK;
}

hl_status l3_rests_create(struct l3_rests *rests, int *fd)
{
    HL_AUTO(hl_closep) int made = -1;
    HL_TRY(hl_memfd_create("helios-rests", BYTES, &made));
    HL_TRY(map_words(rests, made));
    *fd = made;
    made = -1;
    return HL_OK;
}

hl_status l3_rests_map(struct l3_rests *rests, int fd)
{
    HL_TRY(hl_memfd_check(fd, BYTES));
    return map_words(rests, fd);
}

void l3_rests_unmap(struct l3_rests *rests)
{
    if (rests->words != NULL)
        hl_shm_unmap(rests->words, BYTES);
    *rests = (struct l3_rests){0};
}

uint32_t l3_rests_take(struct l3_rests *rests)
{
    for (uint32_t i = 0; rests->words != NULL && i < HL_L3_RESTS / 64; i++) {
        if (rests->taken[i] == UINT64_MAX)
            continue;
        uint32_t bit = (uint32_t)__builtin_ctzll(~rests->taken[i]);
        rests->taken[i] |= UINT64_C(1) << bit;
        return i * 64 + bit + 1;
    }
    return 0;
}

void l3_rests_give(struct l3_rests *rests, uint32_t word)
{
    rests->taken[(word - 1) / 64] &= ~(UINT64_C(1) << (word - 1) % 64);
}
