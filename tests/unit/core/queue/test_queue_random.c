/* The queue in a cluster where gangs arrive, end, fail and are cancelled, and servers leave and
 * return. HELIOS_QUEUE_SEED repeats a run whose seed was printed. */
#include "support/test.h"

#include <float.h>
#include <stdio.h>
#include <stdlib.h>

#include "unit/core/queue/queue_rig.h"

#define SEEDS       4
#define EVENTS      250000 /* per seed: a million in all */
#define STATES      10000
#define ALIVE_MAX   24
#define AGE_MS      20000
#define RECOVERY_MS 60000
#define EVENT_MS    1000
#define WAIT_MAX    5000 /* maximum wait, in events, of a gang that fits on the present servers */

static struct rig r;
static uint64_t seed;
static bool alive[RIG_GANGS];
static int waited[RIG_GANGS], longest;
static long starts, stops, passed;

static unsigned dice(unsigned sides)
{
    seed ^= seed << 13;
    seed ^= seed >> 7;
    seed ^= seed << 17;
    return (unsigned)(seed >> 11) % sides;
}

static void seed_set(unsigned nth)
{
    const char *given = getenv("HELIOS_QUEUE_SEED");
    seed = given != NULL ? strtoull(given, NULL, 0) : UINT64_C(0x9e3779b97f4a7c15) * (nth + 1);
    print_message("HELIOS_QUEUE_SEED=0x%llx\n", (unsigned long long)seed);
}

static int end_of_rig(void **state)
{
    (void)state;
    hl_queue_pass_fini(&r.pass);
    return 0;
}

/* ---- what happens ---------------------------------------------------------------------------- */

/* An unused gang: it holds nothing and wants nothing. */
static void gang_bury(int g)
{
    alive[g] = false;
    r.gangs[g] = (struct hl_queue_gang){.phase = HL_QUEUE_RUNS, .stays = true, .preemptor = -1};
    for (int i = 0; i < r.count; i++)
        if (r.gangs[i].preemptor == g)
            r.gangs[i].preemptor = -1;
}

static void gang_release(int g)
{
    for (int i = 0; i < RIG_SLOTS; i++)
        r.old[g][i] = r.owner[i] == g;
    for (int i = 0; i < RIG_SLOTS; i++)
        if (r.owner[i] == g)
            r.owner[i] = RIG_NOBODY;
}

static void gang_requeue(int g, bool damaged)
{
    gang_release(g);
    r.gangs[g].phase = HL_QUEUE_PENDING;
    r.gangs[g].damaged = damaged;
    r.gangs[g].since_ms = r.in.now_ms;
    waited[g] = 0;
}

static void gang_submit(int64_t seq)
{
    int g = 0, count = 0;
    for (int i = 0; i < r.count; i++)
        count += alive[i];
    while (g < r.count && alive[g])
        g++;
    if (count >= ALIVE_MAX)
        return;
    int all = r.servers * r.per;
    int unit = dice(3) == 0 ? r.per : 1 + (int)dice(2);
    unsigned most = dice(4) == 0 ? (unsigned)(all / 2 / unit) : 3;
    int slots = unit * (1 + (int)dice(most));
    r.units[g] = unit;
    r.gangs[g] = (struct hl_queue_gang){
        .slots = slots, .seq = seq, .shape = g, .since_ms = r.in.now_ms, .preemptor = -1};
    r.gangs[g].queue = (int)dice((unsigned)r.queues.count);
    r.gangs[g].priority = (int)dice(4);
    r.gangs[g].limit_ms = dice(2) ? 1000 * (1 + (int)dice(60)) : 0;
    alive[g] = true;
    waited[g] = 0;
    memset(r.old[g], 0, sizeof(r.old[g]));
}

static void server_lose(int server)
{
    r.away[server] = true;
    for (int k = 0; k < r.per; k++) {
        int g = r.owner[server * RIG_PER + k];
        if (g >= 0)
            gang_requeue(g, r.gangs[g].phase == HL_QUEUE_RUNS);
    }
}

static void gang_end(int g)
{
    gang_release(g);
    gang_bury(g);
}

static void event(int64_t n)
{
    int g = (int)dice((unsigned)r.count);
    enum hl_queue_phase phase = r.gangs[g].phase;
    switch (dice(12)) {
    case 0:
    case 1:
    case 2:
    case 3:
        gang_submit(n);
        break;
    case 4: /* cancelled */
        if (alive[g] && dice(4) == 0)
            gang_end(g);
        break;
    case 5: /* a rank failed */
        if (alive[g] && phase == HL_QUEUE_RUNS)
            gang_requeue(g, true);
        break;
    case 6:
        if (dice(4) == 0)
            server_lose((int)dice((unsigned)r.servers));
        break;
    case 7:
    case 8: /* repaired */
        r.away[dice((unsigned)r.servers)] = false;
        break;
    default: /* it has ended, or has stopped */
        if (alive[g] && phase == HL_QUEUE_RUNS)
            gang_end(g);
        if (alive[g] && phase == HL_QUEUE_STOPS)
            gang_requeue(g, false);
    }
}

static void time_pass(void)
{
    r.in.now_ms += EVENT_MS;
    for (int g = 0; g < r.count; g++) {
        const struct hl_queue_gang *k = &r.gangs[g];
        if (alive[g] && k->phase == HL_QUEUE_RUNS && k->limit_ms > 0 &&
            r.in.now_ms > k->placed_ms + k->limit_ms)
            gang_end(g);
        if (r.gangs[g].damaged && r.in.now_ms - r.gangs[g].since_ms > RECOVERY_MS)
            r.gangs[g].damaged = false;
    }
}

/* ---- what has to hold ------------------------------------------------------------------------ */

/* With the slots of all gangs that stop, the gang for which they stop has a place. */
static void check_stops(void)
{
    for (int g = 0; g < r.count; g++) {
        const struct hl_queue_verdict *v = &r.pass.verdicts[g];
        if (!v->stops)
            continue;
        bool fits = false;
        assert_true(r.gangs[g].phase == HL_QUEUE_RUNS && alive[g]);
        assert_true(r.gangs[g].priority < r.gangs[v->other].priority);
        for (int i = 0; i < RIG_SLOTS; i++)
            r.lent[i] = r.owner[i] >= 0 && (r.pass.verdicts[r.owner[i]].stops ||
                                            r.gangs[r.owner[i]].phase == HL_QUEUE_STOPS);
        assert_int_equal(rig_fit(&r, v->other, &fits), HL_OK);
        assert_true(fits);
        memset(r.lent, 0, sizeof(r.lent));
    }
}

static bool could_run(int g)
{
    const struct hl_queue *q = &r.queues.list[r.gangs[g].queue];
    bool fits = false;
    if (q->quota > 0 && r.gangs[g].slots > q->quota)
        return false;
    memset(r.lent, true, sizeof(r.lent));
    assert_int_equal(rig_fit(&r, g, &fits), HL_OK);
    memset(r.lent, 0, sizeof(r.lent));
    return fits;
}

/* Carries out what the pass has decided. */
static void pass_carry_out(void)
{
    for (int g = 0; g < r.count; g++) {
        const struct hl_queue_verdict *v = &r.pass.verdicts[g];
        if (v->stops) {
            r.gangs[g].phase = HL_QUEUE_STOPS;
            r.gangs[g].preemptor = v->other;
            stops++;
        }
        if (!v->starts)
            continue;
        passed += v->place > 1;
        starts++;
        waited[g] = 0;
        r.gangs[g].phase = HL_QUEUE_RUNS;
        r.gangs[g].damaged = false;
        r.gangs[g].placed_ms = r.in.now_ms;
        r.gangs[g].preemptor = -1;
        for (int i = 0; i < r.count; i++)
            if (r.gangs[i].preemptor == g)
                r.gangs[i].preemptor = -1;
    }
}

/* Each slot has at most one holder; a gang has all of its slots or none. */
static void check_slots(void)
{
    int held[RIG_GANGS] = {0}, used[HL_QUEUES_MAX] = {0};
    for (int i = 0; i < RIG_SLOTS; i++)
        if (r.owner[i] >= 0)
            held[r.owner[i]]++;
    for (int g = 0; g < r.count; g++) {
        bool holds = r.gangs[g].phase != HL_QUEUE_PENDING;
        if (held[g] != (holds ? r.gangs[g].slots : 0))
            fail_msg("gang %d holds %d of %d slots", g, held[g], r.gangs[g].slots);
        used[r.gangs[g].queue] += held[g];
    }
    for (int q = 0; q < r.queues.count; q++)
        if (r.queues.list[q].quota > 0 && used[q] > r.queues.list[q].quota)
            fail_msg("queue %d holds %d slots", q, used[q]);
}

static void check_waits(int64_t n)
{
    for (int g = 0; g < r.count; g++) {
        if (!alive[g] || r.gangs[g].phase != HL_QUEUE_PENDING)
            continue;
        waited[g]++;
        if (waited[g] % 64 == 0 && !could_run(g))
            waited[g] = 0;
        longest = waited[g] > longest ? waited[g] : longest;
        if (waited[g] > WAIT_MAX)
            fail_msg("event %lld: gang %d of priority %d waits for %d events, %s at place %d",
                     (long long)n, g, r.gangs[g].priority, waited[g],
                     hl_api_wait_reason_name(r.pass.verdicts[g].reason), r.pass.verdicts[g].place);
    }
}

TEST_IN(NULL, end_of_rig, a_million_events_leave_no_slot_held_twice_none_leaked_and_nobody_starving)
{
    for (unsigned s = 0; s < SEEDS; s++) {
        seed_set(s);
        int servers = 3 + (int)dice(6);
        rig_init(&r, servers, 2 + (int)dice(3), "a weight=3, b quota=9, c preempt=off");
        r.in.age_ms = AGE_MS;
        r.count = ALIVE_MAX;
        for (int g = 0; g < r.count; g++)
            gang_bury(g);
        for (int64_t n = 0; n < EVENTS; n++) {
            event(n);
            time_pass();
            rig_pass(&r);
            rig_settle(&r);
            check_stops();
            pass_carry_out();
            check_slots();
            check_waits(n);
        }
    }
    print_message("%ld starts, %ld of them past others, %ld stops; the longest wait: %d events\n",
                  starts, passed, stops, longest);
    assert_true(starts > 10000 && passed > 1000 &&
                stops > 1000); /* shows that the test exercises something */
}

/* ---- against brute force --------------------------------------------------------------------- */

struct best {
    int count;
    double lost;
};

/* Tries every set of gangs that may be stopped: the smallest that suffices, then the cheapest. */
static struct best brute_force(int urgent)
{
    int list[RIG_GANGS], n = 0;
    struct best best = {RIG_GANGS, DBL_MAX};
    for (int g = 0; g < urgent; g++)
        if (r.gangs[g].phase == HL_QUEUE_RUNS && r.gangs[g].priority < r.gangs[urgent].priority)
            list[n++] = g;
    for (unsigned set = 1; set < 1u << n; set++) {
        struct best b = {0, 0};
        bool fits = false;
        for (int i = 0; i < n; i++)
            if (set >> i & 1) {
                b.count++;
                b.lost += (double)r.gangs[list[i]].slots *
                          (double)(r.in.now_ms - r.gangs[list[i]].placed_ms);
                rig_lend(&r, list[i], true);
            }
        if (b.count < best.count || (b.count == best.count && b.lost < best.lost)) {
            assert_int_equal(rig_fit(&r, urgent, &fits), HL_OK);
            if (fits)
                best = b;
        }
        for (int i = 0; i < n; i++)
            if (set >> i & 1)
                rig_lend(&r, list[i], false);
    }
    return best;
}

static void random_state(void)
{
    int servers = 2 + (int)dice(7);
    rig_init(&r, servers, 1 + (int)dice(3), "a");
    int left = r.servers * r.per, n = 1 + (int)dice(9);
    for (int i = 0; i < n && left > 0; i++) {
        int slots = 1 + (int)dice(3);
        int from = (int)dice((unsigned)r.servers);
        int room = 0;
        for (int k = from * RIG_PER; k < RIG_SLOTS; k++)
            room += rig_is_free(&r, k);
        if (room < slots)
            continue;
        int g = rig_add_running(&r, 0, 0, slots, from);
        r.gangs[g].priority = (int)dice(3);
        r.gangs[g].placed_ms -= 1 + (int)dice(1000);
        r.gangs[g].limit_ms = dice(2) ? 1000 + (int)dice(5000) : 0;
        left -= slots;
    }
}

TEST_IN(NULL, end_of_rig,
        gangs_are_stopped_only_for_a_start_and_as_few_and_cheap_as_brute_force_finds)
{
    int helped = 0, in_vain = 0;
    seed_set(SEEDS);
    for (int n = 0; n < STATES; n++) {
        random_state();
        int unit = 1 + (int)dice((unsigned)r.per);
        int urgent = rig_add(&r, 0, 2, unit * (1 + (int)dice((unsigned)r.servers)), unit);
        struct best stopped = {0, 0};
        rig_pass(&r);
        rig_settle(&r);
        for (int g = 0; g < urgent; g++)
            if (r.pass.verdicts[g].stops) {
                stopped.count++;
                stopped.lost +=
                    (double)r.gangs[g].slots * (double)(r.in.now_ms - r.gangs[g].placed_ms);
            }
        if (r.pass.verdicts[urgent].starts) {
            assert_int_equal(stopped.count, 0);
            continue;
        }
        struct best best = brute_force(urgent);
        assert_int_equal(stopped.count, best.count == RIG_GANGS ? 0 : best.count);
        if (best.count < RIG_GANGS)
            assert_float_equal(stopped.lost, best.lost, 1e-6);
        helped += best.count < RIG_GANGS;
        in_vain += best.count == RIG_GANGS;
    }
    print_message("%d times others were stopped, %d times that would not have helped\n", helped,
                  in_vain);
    assert_true(helped > 1000 && in_vain > 100);
}

TEST_IN(NULL, end_of_rig, gangs_that_pass_the_first_one_never_delay_it)
{
    int checked = 0, later = 0;
    seed_set(SEEDS + 1);
    for (int n = 0; n < STATES; n++) {
        random_state();
        r.in.preempt = false;
        int first = rig_add(&r, 0, 1, 1 + (int)dice((unsigned)(r.servers * r.per)), 1);
        for (int i = 0; i < 4; i++) {
            int g = rig_add(&r, 0, 0, 1 + (int)dice(3), 1);
            r.gangs[g].limit_ms = dice(3) ? 500 + (int)dice(5000) : 0;
        }
        rig_pass(&r);
        rig_settle(&r);
        int64_t promised = r.pass.verdicts[first].start_ms;
        if (r.pass.verdicts[first].starts || promised == 0)
            continue;
        for (int g = first + 1; g < r.count; g++)
            later += r.pass.verdicts[g].starts;
        pass_carry_out();
        rig_pass(&r);
        rig_settle(&r);
        assert_in_range(r.pass.verdicts[first].start_ms, 1, promised);
        checked++;
    }
    print_message("%d gangs with a promised start, %d passed them\n", checked, later);
    assert_true(checked > 1000 && later > 1000);
}
