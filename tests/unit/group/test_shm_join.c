/* A rank joins and its process ends while another rank checks whether it is alive: it has not
 * died. */
#include "support/test.h"

#include <poll.h>
#include <string.h>
#include <sys/mman.h>

#include "os/process.h"

static int *looking; /* shared by the ranks */

/* A check that takes until the process has ended, or ten seconds. This program's shm_wait.c calls
 * it instead of hl_process_ended (cmake/helios.cmake). */
bool process_ended_at_last(struct hl_process p);

bool process_ended_at_last(struct hl_process p)
{
    __atomic_store_n(looking, 1, __ATOMIC_SEQ_CST);
    for (int i = 0; i < 5000 && !hl_process_ended(p); i++)
        poll(NULL, 0, 2);
    return hl_process_ended(p);
}

#include "unit/group/group_world.h"

static int last_call(int rank, int world)
{
    char mine = (char)rank, all[2] = {7, 7};
    hybridps_group *g = join(rank, world, 20000);
    WANT(g != NULL);
    for (int i = 0; rank == 1 && i < 5000 && !__atomic_load_n(looking, __ATOMIC_SEQ_CST); i++)
        poll(NULL, 0, 2);
    WANT(hybridps_group_allgather(g, "last", &mine, all, 1) == 0);
    WANT(all[0] == 0 && all[1] == 1);
    hybridps_group_close(g);
    return 0;
}

TEST(a_rank_that_ends_after_its_last_call_has_not_died)
{
    looking =
        mmap(NULL, sizeof(*looking), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(looking != MAP_FAILED);
    snprintf(name, sizeof(name), "helios-test-end-%d", (int)getpid());
    together(2, last_call);
    assert_int_equal(*looking, 1);
    munmap(looking, sizeof(*looking));
}
