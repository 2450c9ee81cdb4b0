/* The result of a collective as a managed tensor: its place, its content, and no content after a
 * failure. */
#include "support/test.h"

#include <stdio.h>
#include <unistd.h>

#include "helios/helios.h"
#include "helios/hybridps.h"
#include "unit/group/group_world.h"

static int state_of(hybridps *h, uint32_t tensor)
{
    hybridps_tensor_info info = {HYBRIDPS_TENSOR_INFO_INIT};
    assert_int_equal(hybridps_tensor(h, tensor, &info), 0);
    return info.state;
}

static int managed(int rank, int world)
{
    hybridps_options o = {HYBRIDPS_OPTIONS_INIT, .device = "emu:1MiB", .chunk_bytes = 4096};
    hybridps *h = NULL;
    hybridps_group *g = join(rank, world, 20000);
    uint32_t t = HYBRIDPS_NEW, first;
    float local[256];
    WANT(g != NULL && hybridps_open(&o, &h) == 0);
    for (int round = 0; round < 3; round++) {
        for (size_t i = 0; i < 256; i++)
            local[i] = value(rank, i);
        WANT(hybridps_allreduce(h, g, "sum", local, 256, HYBRIDPS_F32, HYBRIDPS_SUM, &t) == 0);
        first = round == 0 ? t : first;
        WANT(t == first && t != HYBRIDPS_NEW);
        hybridps_use use = {.tensor = t, .where = HYBRIDPS_DEVICE};
        WANT(hybridps_access(h, &use, 1) == 0);
        for (size_t i = 0; i < 256; i++)
            WANT(((float *)use.address)[i] == value(0, i) + value(1, i));
        WANT(hybridps_allreduce(h, g, "sum", local, 256, HYBRIDPS_F32, 0, &t) == HELIOS_EINVAL);
        WANT(hybridps_release(h, &t, 1, HYBRIDPS_HOLD) == 0);
    }
    WANT(hybridps_broadcast(h, g, "one", local, sizeof(local), 1, &t) == 0);
    hybridps_use use = {.tensor = t, .where = HYBRIDPS_HOST};
    WANT(hybridps_access(h, &use, 1) == 0 && ((float *)use.address)[7] == value(1, 7));
    WANT(hybridps_release(h, &t, 1, HYBRIDPS_HOLD) == 0);
    WANT(hybridps_broadcast(h, g, "one", local, 12, 1, &t) == HELIOS_EINVAL);
    if (rank == 1) { /* the other rank's call has no partner */
        hybridps_group_close(g);
    } else {
        WANT(hybridps_allreduce(h, g, "sum", local, 256, HYBRIDPS_F32, 0, &t) == HELIOS_EUNAVAIL);
        WANT(state_of(h, t) == HYBRIDPS_FREE);
        hybridps_group_close(g);
    }
    hybridps_close(h);
    return 0;
}

TEST(results_are_tensors_of_the_pool)
{
    together(2, managed);
}

int main(int argc, char **argv)
{
    snprintf(name, sizeof(name), "helios-test-managed-%d", (int)getpid());
    return tests_run(argc, argv);
}
