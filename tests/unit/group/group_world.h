/* Ranks as processes, for tests of groups: `together` runs a function in each. */
#ifndef UNIT_GROUP_GROUP_WORLD_H
#define UNIT_GROUP_GROUP_WORLD_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/status.h"
#include "helios/hybridps.h"

#define CHILD_S 300 /* maximum life of a rank in seconds: for what hangs, not for what is slow */

static char name[64];

static inline hybridps_group *join(int rank, int world, int timeout_ms)
{
    hybridps_shm_options o = {HYBRIDPS_SHM_OPTIONS_INIT, .name = name, .rank = rank, .world = world,
                              .timeout_ms = timeout_ms};
    hybridps_group *g = NULL;
    if (hybridps_group_shm(&o, &g) != 0)
        fprintf(stderr, "%s\n", hl_error_text());
    return g;
}

/* Ranks 1 to world - 1 are children that run fn; this process runs rank 0. All must return 0. */
static void together(int world, int (*fn)(int rank, int world))
{
    pid_t pid[16] = {0};
    for (int r = 1; r < world; r++) {
        pid[r] = fork();
        assert_true(pid[r] >= 0);
        if (pid[r] == 0) {
            alarm(CHILD_S);
            _exit(fn(r, world));
        }
    }
    int mine = fn(0, world);
    for (int r = 1; r < world; r++) {
        int status = -1;
        assert_int_equal(waitpid(pid[r], &status, 0), pid[r]);
        assert_int_equal(status, 0);
    }
    assert_int_equal(mine, 0);
}

#define WANT(cond)                                                                                 \
    do {                                                                                           \
        if (!(cond)) {                                                                             \
            fprintf(stderr, "rank %d, line %d: %s; %s\n", rank, __LINE__, #cond, hl_error_text()); \
            return 1;                                                                              \
        }                                                                                          \
    } while (0)

static inline float value(int rank, size_t i)
{
    uint32_t x = (uint32_t)i * 2654435761u + (uint32_t)rank * 40503u;
    x ^= x >> 15;
    x *= 2246822519u;
    x ^= x >> 13;
    return (float)(int32_t)x * 0x1p-31f * (i % 3 == 0 ? 1000.0f : 1.0f);
}

#endif
