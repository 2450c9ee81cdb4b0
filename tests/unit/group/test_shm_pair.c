/* Messages from one rank to two others in turn. The reader of a piece's address is preempted now
 * and then before its read, and the writer after its write: values read before and after need not
 * belong to one message. */
#include "support/test.h"

#include <string.h>
#include <sys/mman.h>
#include <time.h>

#include "group/shm.h"

/* Shared by all ranks, and where their memory is in this one. */
static struct {
    int looks, stores; /* that were delayed */
} * delays;

static const struct hl_collective_shm *shared;

static void sleep_us(unsigned us)
{
    nanosleep(&(struct timespec){.tv_nsec = us * 1000}, NULL);
}

static bool is_addressee(const void *word)
{
    for (int i = 0; shared != NULL && i < shared->world; i++)
        if (word == &shared->s->rows[i].to)
            return true;
    return false;
}

/* This program's shm_pair.c calls these two (shm_pair_delays.h). */
void shm_pair_before_look(const void *word);
void shm_pair_after_store(const void *word);

/* Delays one look of three until the sender is one or two messages further. */
void shm_pair_before_look(const void *word)
{
    static unsigned n;
    if (!is_addressee(word) || n++ % 3 != 0)
        return;
    sleep_us(n % 5 * 60);
    __atomic_add_fetch(&delays->looks, 1, __ATOMIC_RELAXED);
}

void shm_pair_after_store(const void *word)
{
    if (!is_addressee(word))
        return;
    sleep_us(100);
    __atomic_add_fetch(&delays->stores, 1, __ATOMIC_RELAXED);
}

#include "unit/group/group_world.h"

#define TURNS 500

static int turns(int rank, int world)
{
    hybridps_shm_options o = {HYBRIDPS_SHM_OPTIONS_INIT, .name = name, .rank = rank, .world = world,
                              .timeout_ms = 20000};
    hybridps_transport transport;
    hybridps_group *g;
    WANT(hl_collective_shm_open(&o, &transport) == 0);
    shared = transport.arg;
    WANT(hybridps_group_over(&transport, &g) == 0);
    for (uint64_t turn = 0; turn < TURNS; turn++) {
        uint64_t message = 0;
        if (rank > 0) {
            WANT(hybridps_group_recv(g, "turn", &message, sizeof(message), 0, 0) == 0);
            WANT(message == turn * 16 + (uint64_t)rank);
            continue;
        }
        for (int to = 1; to < world; to++) {
            message = turn * 16 + (uint64_t)to;
            sleep_us((unsigned)turn % 7 * 30); /* the others look in vain for a while, and sleep */
            WANT(hybridps_group_send(g, "turn", &message, sizeof(message), to, 0) == 0);
        }
    }
    shared = NULL;
    hybridps_group_close(g);
    return 0;
}

TEST(a_message_for_another_rank_is_never_taken_for_ones_own)
{
    snprintf(name, sizeof(name), "helios-test-mail-%d", (int)getpid());
    delays = mmap(NULL, sizeof(*delays), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(delays != MAP_FAILED);
    together(3, turns);
    assert_int_equal(delays->stores, 2 * TURNS); /* otherwise nothing was tested */
    assert_true(delays->looks >= TURNS / 10);
    munmap(delays, sizeof(*delays));
}
