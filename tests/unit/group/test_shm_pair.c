/* Mail of one rank to two others in turn. Who looks for whom a piece is loses the processor before
 * it now and then, and who says so after it: what is read before and after need not belong to one
 * message. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <string.h>
#include <time.h>

#define ADDRESSEE "&row->to"

static void sleep_us(unsigned us)
{
    nanosleep(&(struct timespec){.tv_nsec = us * 1000}, NULL);
}

/* In one look of three, until the sender is a message further, or two. */
static void before_look(const char *word)
{
    static unsigned n;
    if (strcmp(word, ADDRESSEE) == 0 && n++ % 3 == 0)
        sleep_us(n % 5 * 60);
}

static void after_store(const char *word)
{
    if (strcmp(word, ADDRESSEE) == 0)
        sleep_us(100);
}

#define __atomic_load_n(word, order)     (before_look(#word), __atomic_load_n(word, order))
#define __atomic_store_n(word, v, order) (__atomic_store_n(word, v, order), after_store(#word))
#include "group/shm_pair.c"
#undef __atomic_load_n
#undef __atomic_store_n

#include "unit/group/group_world.h"

#define TURNS 500

static int turns(int rank, int world)
{
    hybridps_group *g = join(rank, world, 20000);
    WANT(g != NULL);
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
    hybridps_group_close(g);
    return 0;
}

static void a_message_for_another_rank_is_never_taken_for_ones_own(void **state)
{
    (void)state;
    snprintf(name, sizeof(name), "helios-test-mail-%d", (int)getpid());
    together(3, turns);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_message_for_another_rank_is_never_taken_for_ones_own),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
