/* What happens in a run, all of it from the seed. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sim/world.h"

/* splitmix64 */
uint64_t random_next(uint64_t *state)
{
    uint64_t z = (*state += UINT64_C(0x9e3779b97f4a7c15));
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}

uint32_t world_random(struct world *w, uint32_t below)
{
    return (uint32_t)(random_next(&w->random) % below);
}

/* Of a hundred events so many are of the kind. */
static const struct {
    const char *text;
    unsigned percent;
} kinds[EVENT_KINDS] = {
    [EVENT_ORDER] = {"order a move", 38},
    [EVENT_CANCEL] = {"cancel a move", 7},
    [EVENT_READ] = {"read", 20},
    [EVENT_CRASH] = {"crash of a holder", 11},
    [EVENT_LOSE] = {"loss of a host", 2},
    [EVENT_CUT] = {"holder cut off", 6},
    [EVENT_STOP] = {"Controller dies", 6},
    [EVENT_TAKEOVER] = {"Controller is replaced", 3},
    [EVENT_STORE] = {"commits fail", 4},
    [EVENT_DELETE] = {"shard is deleted", 1},
    [EVENT_NEED] = {"all copies are needed", 2},
};

const char *event_text(enum event_kind kind)
{
    return kinds[kind].text;
}

static enum event_kind event_kind_of(uint32_t percent)
{
    unsigned sum = 0;
    for (int kind = 0; kind < EVENT_KINDS; kind++) {
        sum += kinds[kind].percent;
        if (percent < sum)
            return (enum event_kind)kind;
    }
    return EVENT_ORDER;
}

static int event_compare(const void *a, const void *b)
{
    const struct event *x = a, *y = b;
    return x->step < y->step ? -1 : x->step > y->step;
}

/* A third of the runs has good weather: what fails there needs no network to blame. */
void script_make(struct script *s, uint64_t seed)
{
    uint64_t r = seed * UINT64_C(0x2545f4914f6cdd1d) + 1;
    memset(s, 0, sizeof(*s));
    s->seed = seed;
    bool bad = random_next(&r) % 3 != 0;
    s->weather.loss = bad ? (uint32_t)(random_next(&r) % 150) : 0;
    s->weather.doubled = bad ? (uint32_t)(random_next(&r) % 150) : 0;
    s->weather.damaged = (uint32_t)(random_next(&r) % 200);
    s->weather.delay_ms = 2 + (uint32_t)(random_next(&r) % (bad ? 120 : 20));
    s->weather.domains = 1 + (uint32_t)(random_next(&r) % 2);
    for (int i = 0; i < EVENTS; i++)
        s->events[i] = (struct event){.step = (uint32_t)(random_next(&r) % SCRIPT_END),
                                      .kind = event_kind_of((uint32_t)(random_next(&r) % 100)),
                                      .arg = (uint32_t)random_next(&r)};
    qsort(s->events, EVENTS, sizeof(s->events[0]), event_compare);
}

void script_print(const struct script *s)
{
    printf("# weather: %u lost, %u doubled, %u damaged per mille, delay to %u ms; %u domains\n",
           s->weather.loss, s->weather.doubled, s->weather.damaged, s->weather.delay_ms,
           s->weather.domains);
    for (int i = 0; i < EVENTS; i++)
        if (!s->events[i].off)
            printf("# step %4u: %s (%08x)\n", s->events[i].step, event_text(s->events[i].kind),
                   s->events[i].arg);
}
