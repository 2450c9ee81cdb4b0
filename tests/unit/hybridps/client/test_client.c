#include "support/test.h"

#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "helios/hybridps.h"
#include "hybridps/client/replay.h"
#include "hybridps/plan/plan.h"
#include "unit/hybridps/client/training.h"

/* Planned as in training. */
static struct hl_replay_result replay_of(hybridps *h, int copy, uint64_t iterations)
{
    char *json = NULL;
    struct hl_trace t = {0};
    struct hl_replay_result r = {0};
    struct hl_replay_options o = {.policy = "opt", .copy = copy, .ahead = HL_CHUNK_PLAN_AHEAD};
    OK(hybridps_trace(h, "train", &json));
    assert_int_equal(hl_trace_parse(json, strlen(json), &t), HL_OK);
    t.iterations = iterations;
    assert_int_equal(hl_replay(&t, &o, &r), HL_OK);
    hybridps_free_text(json);
    hl_trace_fini(&t);
    return r;
}

TEST(test_training_moves_what_opt_does_on_its_record_from_the_second_iteration_on)
{
    for (int i = 0; i < 4; i++) {
        struct model m;
        int copy = i % 2, where = i < 2 ? HYBRIDPS_HOST : HYBRIDPS_DEVICE;
        build(&m, i < 2 ? 10 : 14, NULL, copy ? "copy" : "move");
        train(&m, where);
        (void)last_of(m.h);
        struct hl_replay_result r = replay_of(m.h, copy, 12);
        for (int k = 1; k < 12; k++) {
            hybridps_stats_t s = {HYBRIDPS_STATS_INIT};
            train(&m, where);
            OK(hybridps_stats(m.h, &s));
            assert_true(s.planned);
            assert_int_equal(s.deviations, 0);
            hybridps_traffic t = last_of(m.h);
            assert_true(t.h2d > 0 && t.d2h > 0);
            assert_int_equal(t.h2d, r.iterations[k].h2d);
            assert_int_equal(t.d2h, r.iterations[k].d2h);
        }
        hl_replay_fini(&r);
        hybridps_close(m.h);
    }
}

/* The device's access comes first, although the host's would have made room for it. */
TEST(test_accesses_one_after_another_cost_what_one_does)
{
    uint64_t moved[2];
    for (int apart = 0; apart < 2; apart++) {
        struct model m;
        hybridps_traffic t;
        build(&m, 2, "lru", "move");
        for (int k = 0; k < 4; k++) {
            hybridps_use u[] = {{.tensor = m.param[2], .where = HYBRIDPS_DEVICE},
                                {.tensor = m.param[0], .where = HYBRIDPS_HOST, .write = 1}};
            OK(hybridps_iteration(m.h, "train"));
            forward(&m, 1, 0);
            forward(&m, 0, 0);
            OK(hybridps_moment(m.h, "X", "", 0));
            OK(hybridps_access(m.h, u, apart ? 1 : 2));
            if (apart)
                OK(hybridps_access(m.h, u + 1, 1));
            done(m.h, m.param[2], HYBRIDPS_HOLD);
            done(m.h, m.param[0], HYBRIDPS_HOLD);
            forward(&m, 1, 0);
            t = last_of(m.h);
        }
        moved[apart] = t.h2d + t.d2h;
        hybridps_close(m.h);
    }
    assert_int_equal(moved[1], moved[0]);
}

TEST(test_tuning_is_checked_and_used)
{
    hybridps *h = NULL;
    hybridps_stats_t s = {HYBRIDPS_STATS_INIT};
    hybridps_options o = {HYBRIDPS_OPTIONS_INIT, .device = "emu:64KiB", .plan_ahead = 2};
    assert_int_equal(hybridps_open(&o, &h), HL_EINVAL);
    assert_non_null(strstr(hl_error_text(), "3 to 1000"));
    o = (hybridps_options){HYBRIDPS_OPTIONS_INIT, .device = "emu:64KiB", .spill_pause_ms = 60001};
    assert_int_equal(hybridps_open(&o, &h), HL_EINVAL);
    assert_non_null(strstr(hl_error_text(), "spill_pause_ms is 60001"));
    o = (hybridps_options){HYBRIDPS_OPTIONS_INIT, .device = "emu:64KiB", .policy = "heat",
                           .heat_tau = -1};
    assert_int_equal(hybridps_open(&o, &h), HL_EINVAL);
    assert_non_null(strstr(hl_error_text(), "tau -1"));
    o = (hybridps_options){HYBRIDPS_OPTIONS_INIT, .device = "emu:64KiB", .policy = "heat",
                           .heat_alpha = 1};
    assert_int_equal(hybridps_open(&o, &h), HL_EINVAL);
    assert_non_null(strstr(hl_error_text(), "window and tau must be above 0"));
    o = (hybridps_options){HYBRIDPS_OPTIONS_INIT, .device = "emu:64KiB", .policy = "heat",
                           .heat_beta = 1,        .heat_window = 9,      .heat_tau = 9};
    OK(hybridps_open(&o, &h));
    hybridps_close(h);
    o = (hybridps_options){HYBRIDPS_OPTIONS_INIT, .device = "emu:64KiB", .plan_ahead = 4,
                           .host_bytes = 1 << 20};
    OK(hybridps_open(&o, &h));
    OK(hybridps_stats(h, &s));
    assert_int_equal(s.host_limit, 1 << 20);
    hybridps_close(h);
}

TEST(test_training_on_the_device_moves_less_by_plan_than_by_use)
{
    uint64_t bytes[2] = {0};
    static const char *const policies[] = {"opt", "lru"};
    for (int i = 0; i < 2; i++) {
        struct model m;
        build(&m, 14, policies[i], "copy");
        for (int k = 0; k < 5; k++) {
            train(&m, HYBRIDPS_DEVICE);
            hybridps_traffic t = last_of(m.h);
            bytes[i] += k > 0 ? t.h2d + t.d2h : 0;
        }
        hybridps_close(m.h);
    }
    print_message("opt %llu, lru %llu bytes\n", (unsigned long long)bytes[0],
                  (unsigned long long)bytes[1]);
    assert_true(bytes[0] < bytes[1]);
}

/* Iterations of the same training, with and without fetching ahead: contents are checked on the
 * way. */
static void bytes_of_training(int copy, int adam_on, int ahead, hybridps_traffic *out, int count)
{
    struct model m;
    fetch_ahead = ahead;
    build(&m, 14, NULL, copy ? "copy" : "move");
    fetch_ahead = 0;
    for (int k = 0; k < count; k++) {
        train(&m, adam_on);
        out[k] = last_of(m.h);
    }
    hybridps_close(m.h);
}

TEST(test_fetching_ahead_moves_the_same_bytes)
{
    for (int i = 0; i < 4; i++) {
        hybridps_traffic without[5], with[5];
        bytes_of_training(i % 2, i / 2, 0, without, 5);
        for (int ahead = -1; ahead < 4; ahead += 2) {
            bytes_of_training(i % 2, i / 2, ahead, with, 5);
            for (int k = 0; k < 5; k++) {
                assert_int_equal(with[k].h2d, without[k].h2d);
                assert_int_equal(with[k].d2h, without[k].d2h);
            }
        }
    }
}

TEST(test_another_course_falls_back_and_is_recorded)
{
    struct model m;
    hybridps_stats_t s = {HYBRIDPS_STATS_INIT};
    build(&m, 10, NULL, "copy");
    for (int k = 0; k < 2; k++)
        train(&m, HYBRIDPS_HOST);
    OK(hybridps_iteration(m.h, "train")); /* half as many layers, in reverse order */
    for (unsigned i = LAYERS; i-- > LAYERS / 2;)
        forward(&m, i, 0);
    OK(hybridps_stats(m.h, &s));
    assert_int_equal(s.deviations, 1);
    assert_false(s.planned);
    for (int k = 0; k < 2; k++) {
        OK(hybridps_iteration(m.h, "train"));
        for (unsigned i = LAYERS; i-- > LAYERS / 2;)
            forward(&m, i, 0);
    }
    OK(hybridps_stats(m.h, &s));
    assert_int_equal(s.deviations, 1); /* this is now the record */
    assert_true(s.planned);
    OK(hybridps_iteration(m.h, "eval")); /* another phase has a record of its own */
    forward(&m, 0, 0);
    train(&m, HYBRIDPS_HOST);
    train(&m, HYBRIDPS_HOST);
    train(&m, HYBRIDPS_HOST);
    OK(hybridps_stats(m.h, &s));
    assert_int_equal(s.deviations, 2);
    assert_true(s.planned);
    hybridps_close(m.h);
}

TEST(test_another_tide_is_planned_for_and_no_deviation)
{
    struct model m;
    hybridps_stats_t s = {HYBRIDPS_STATS_INIT};
    build(&m, 14, NULL, "copy");
    for (unsigned k = 0; k < 6; k++) { /* the device fills up, at an even number of moments */
        OK(hybridps_iteration(m.h, "train"));
        for (unsigned i = 0; i < LAYERS; i++)
            forward(&m, i, i / 2 + k / 2);
        OK(hybridps_stats(m.h, &s));
        assert_int_equal(s.deviations, 0);
        assert_int_equal(s.planned, k > 0);
        assert_int_equal(s.peak_over_avail, 0);
    }
    hybridps_close(m.h);
}

static void expect_failure(int code, int want, const char *const *says)
{
    char text[2048];
    snprintf(text, sizeof(text), "%s", hl_error_text());
    assert_int_equal(code, want);
    for (; *says != NULL; says++)
        if (strstr(text, *says) == NULL)
            fail_msg("\"%s\" does not say \"%s\"", text, *says);
}

#define SAYS(...)                                                                                  \
    (const char *const[])                                                                          \
    {                                                                                              \
        __VA_ARGS__, NULL                                                                          \
    }

TEST(test_what_does_not_fit_says_all_there_is_to_know)
{
    hybridps *h = open_with(3, NULL, NULL);
    uint32_t t[4];
    char need[32], fit[64], kinds[128];
    for (int i = 0; i < 4; i++)
        OK(hybridps_add(h, (char[]){(char)('a' + i), 0}, i % 2, page(), &t[i]));
    OK(hybridps_layout(h));
    OK(hybridps_iteration(h, "train"));
    OK(hybridps_moment(h, "FWD", "first", 0));
    use(h, t[0], HYBRIDPS_DEVICE, 1);
    use(h, t[1], HYBRIDPS_DEVICE, 1);
    hybridps_use both[] = {{.tensor = t[2], .where = HYBRIDPS_DEVICE},
                           {.tensor = t[3], .where = HYBRIDPS_DEVICE}};
    hybridps_stats_t before = {HYBRIDPS_STATS_INIT}, after = {HYBRIDPS_STATS_INIT};
    OK(hybridps_stats(h, &before));
    snprintf(need, sizeof(need), "needs %llu bytes", (unsigned long long)(2 * page()));
    snprintf(kinds, sizeof(kinds),
             "on the device: param %llu (COMPUTE %llu), grad %llu (COMPUTE %llu)",
             (unsigned long long)page(), (unsigned long long)page(), (unsigned long long)page(),
             (unsigned long long)page());
    snprintf(fit, sizeof(fit), "Use at least emu:%lluKiB.",
             (unsigned long long)(4 * page() / 1024));
    expect_failure(hybridps_access(h, both, 2), -5,
                   SAYS("module first needs ", "moment 1 (FWD first)", "\"c\" and 1 more", need,
                        "pinned by \"a\"", "\"b\"", kinds, fit));
    OK(hybridps_stats(h, &after));
    assert_memory_equal(&before, &after, sizeof(before));
    /* Reserved bytes grow: the pinned chunks do not fit beside them. */
    expect_failure(hybridps_moment(h, "FWD", "second", 2 * page()), -5,
                   SAYS("FWD second", "pinned by"));
    OK(hybridps_stats(h, &after));
    assert_int_equal(after.avail, before.avail);
    done(h, t[0], HYBRIDPS_AFTER_FWD);
    expect_failure(hybridps_moment(h, "FWD", "third", 3 * page()), -5,
                   SAYS("AFTER_FWD", "COMPUTE"));
    OK(hybridps_access(h, both, 2));
    hybridps_close(h);
}

/* Many long names in use: the end of the list is cut, and the remedy comes first. */
TEST(test_what_to_do_is_said_before_any_list)
{
    hybridps *h = open_with(6, NULL, NULL);
    char name[160];
    uint32_t t;
    memset(name, 'x', sizeof(name) - 1);
    name[sizeof(name) - 1] = '\0';
    for (int k = 0; k < 2 * HYBRIDPS_KINDS; k++)
        OK(hybridps_add(h, name, k % HYBRIDPS_KINDS, page(), &t));
    OK(hybridps_layout(h));
    OK(hybridps_moment(h, "a stage with a name as long as it may be", name, 0));
    for (uint32_t i = 0; i < 6; i++)
        use(h, i, HYBRIDPS_DEVICE, 1);
    hybridps_use more = {.tensor = 6, .where = HYBRIDPS_DEVICE};
    char fit[64];
    snprintf(fit, sizeof(fit), "Use at least emu:%lluKiB.",
             (unsigned long long)(7 * page() / 1024));
    expect_failure(hybridps_access(h, &more, 1), -5, SAYS("a stage with", "pinned by", fit));
    hybridps_close(h);
}

TEST(test_wrong_use_is_refused_and_changes_nothing)
{
    hybridps *h = open_with(4, NULL, "move");
    uint32_t a, b, late;
    void *address;
    OK(hybridps_add(h, "a", HYBRIDPS_PARAM, page() / 2, &a));
    OK(hybridps_add(h, "b", HYBRIDPS_PARAM, page() / 2, &b));
    hybridps_use u = {.tensor = a, .where = HYBRIDPS_DEVICE};
    expect_failure(hybridps_access(h, &u, 1), -1, SAYS("\"a\"", "layout"));
    OK(hybridps_layout(h));
    u.tensor = 17;
    expect_failure(hybridps_access(h, &u, 1), -2,
                   SAYS("emu:", "moment 0", "no tensor 17", "2 were registered"));
    expect_failure(hybridps_release(h, &a, 1, HYBRIDPS_HOLD), -1,
                   SAYS("emu:", "moment 0", "\"a\"", "without", "FREE"));
    u = (hybridps_use){.tensor = a, .where = 5};
    expect_failure(hybridps_access(h, &u, 1), -1, SAYS("neither host nor device"));
    use(h, a, HYBRIDPS_DEVICE, 1);
    expect_failure(hybridps_release(h, &a, 1, HYBRIDPS_COMPUTE), -1, SAYS("COMPUTE"));
    expect_failure(hybridps_release(h, (uint32_t[]){a, a}, 2, HYBRIDPS_HOLD), -1,
                   SAYS("more often"));
    u.where = HYBRIDPS_HOST;
    expect_failure(hybridps_access(h, &u, 1), -10, SAYS("COMPUTE on the device", "on the host"));
    u.tensor = b; /* in the same chunk */
    expect_failure(hybridps_access(h, &u, 1), -10,
                   SAYS("chunk 0 is pinned on the device", "\"b\""));
    hybridps_use two[] = {{.tensor = b, .where = HYBRIDPS_DEVICE},
                          {.tensor = b, .where = HYBRIDPS_HOST}};
    expect_failure(hybridps_access(h, two, 2), -1, SAYS("\"b\"", "host and device at once"));
    OK(hybridps_add(h, "late", HYBRIDPS_GRAD, 1, &late));
    expect_failure(hybridps_address(h, late, HYBRIDPS_HOST, &address), -1, SAYS("\"late\""));
    done(h, a, HYBRIDPS_HOLD);
    expect_failure(hybridps_add(h, "x", 99, 1, &late), -1, SAYS("99"));
    expect_failure(hybridps_add(h, "x", 0, 0, &late), -1, SAYS("0 bytes"));
    hybridps_options o = {HYBRIDPS_OPTIONS_INIT, .device = "emu:1MiB", .mode = "both"};
    hybridps *none = NULL;
    expect_failure(hybridps_open(&o, &none), -1, SAYS("\"both\""));
    o = (hybridps_options){HYBRIDPS_OPTIONS_INIT, .device = "emu:1MiB", .policy = "clever"};
    expect_failure(hybridps_open(&o, &none), -1, SAYS("\"clever\""));
    o = (hybridps_options){HYBRIDPS_OPTIONS_INIT, .device = "abacus"};
    expect_failure(hybridps_open(&o, &none), -1, SAYS("abacus"));
    assert_null(none);
    hybridps_close(h);
}

/* Runs fn in a child; returns its wait status. */
static int in_child(int (*fn)(hybridps *, const volatile uint8_t *), hybridps *h, const void *at)
{
    int status = 0;
    pid_t pid = fork();
    if (pid == 0) {
        for (int s = 1; s < 32; s++)
            signal(s, SIG_DFL);
        _exit(fn(h, at));
    }
    assert_true(pid > 0);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    return status;
}

static int touch(hybridps *h, const volatile uint8_t *at)
{
    (void)h;
    return at[0] == 1 ? 1 : 2;
}

static int child_uses(hybridps *h, const volatile uint8_t *at)
{
    hybridps_stats_t s = {HYBRIDPS_STATS_INIT};
    (void)at;
    int refused = hybridps_stats(h, &s) == -13 && strstr(hl_error_text(), "fork") != NULL;
    hybridps_close(h);
    return refused ? 7 : 8;
}

TEST(test_a_fork_is_refused_in_the_child)
{
    hybridps *h = open_with(2, NULL, NULL);
    int status = in_child(child_uses, h, NULL);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 7);
    hybridps_close(h);
}

static int faulted(int status)
{
    /* A sanitizer turns the signal into an exit code of its own. */
    return (WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV) ||
           (WIFEXITED(status) && WEXITSTATUS(status) != 1 && WEXITSTATUS(status) != 2);
}

TEST(test_use_where_a_chunk_is_not_faults_and_works_again_when_it_is_back)
{
    for (int copy = 0; copy < 2; copy++) {
        hybridps *h = open_with(1, NULL, copy ? "copy" : "move");
        uint32_t a, b;
        OK(hybridps_add(h, "a", HYBRIDPS_PARAM, page(), &a));
        OK(hybridps_add(h, "b", HYBRIDPS_PARAM, page(), &b));
        OK(hybridps_layout(h));
        uint8_t *host = use(h, a, HYBRIDPS_HOST, 1);
        memset(host, 1, page());
        done(h, a, HYBRIDPS_HOLD);
        uint8_t *device = use(h, a, HYBRIDPS_DEVICE, 1);
        assert_int_equal(WEXITSTATUS(in_child(touch, h, device)), 1);
        device[0] = 2;
        assert_true(faulted(in_child(touch, h, host))); /* stale there */
        done(h, a, HYBRIDPS_HOLD);
        use(h, b, HYBRIDPS_DEVICE, 1); /* a has to leave */
        assert_true(faulted(in_child(touch, h, device)));
        assert_int_equal(WEXITSTATUS(in_child(touch, h, host)), 2);
        done(h, b, HYBRIDPS_FREE);
        assert_ptr_equal(use(h, a, HYBRIDPS_DEVICE, 0), device);
        assert_int_equal(device[0], 2);
        assert_int_equal(device[page() - 1], 1);
        hybridps_close(h);
    }
}

TEST(test_content_that_is_freed_costs_nothing_and_is_gone)
{
    hybridps *h = open_with(2, NULL, NULL);
    uint32_t a, b;
    hybridps_stats_t s = {HYBRIDPS_STATS_INIT};
    OK(hybridps_add(h, "a", HYBRIDPS_GRAD, page() / 2, &a));
    OK(hybridps_add(h, "b", HYBRIDPS_GRAD, page() / 2, &b));
    OK(hybridps_layout(h));
    use(h, a, HYBRIDPS_DEVICE, 1);
    use(h, b, HYBRIDPS_DEVICE, 1);
    done(h, a, HYBRIDPS_FREE);
    OK(hybridps_stats(h, &s));
    assert_int_equal(s.device, page()); /* b lives in it */
    assert_int_equal(s.device_by_kind[HYBRIDPS_GRAD], page());
    done(h, b, HYBRIDPS_FREE);
    OK(hybridps_stats(h, &s));
    assert_int_equal(s.device, 0);
    assert_int_equal(s.total.h2d + s.total.d2h, 0);
    hybridps_close(h);
}

TEST(test_content_that_is_dropped_costs_nothing_wherever_it_is)
{
    struct model m;
    hybridps_stats_t before = {HYBRIDPS_STATS_INIT}, after = {HYBRIDPS_STATS_INIT};
    hybridps_tensor_info info = {HYBRIDPS_TENSOR_INFO_INIT};
    build(&m, 4, "lru", "copy");
    use(m.h, m.grad[0], HYBRIDPS_DEVICE, 1);
    done(m.h, m.grad[0], HYBRIDPS_HOLD);
    OK(hybridps_stats(m.h, &before));
    uint32_t both[] = {m.grad[0], m.p32[0]};
    use(m.h, m.p32[0], HYBRIDPS_HOST, 0);
    assert_int_equal(hybridps_drop(m.h, both, 2), HL_EBUSY);
    OK(hybridps_tensor(m.h, m.grad[0], &info));
    assert_int_equal(info.state, HYBRIDPS_HOLD); /* all or nothing */
    done(m.h, m.p32[0], HYBRIDPS_HOLD);
    OK(hybridps_drop(m.h, both, 2));
    OK(hybridps_drop(m.h, both, 2));
    OK(hybridps_stats(m.h, &after));
    assert_int_equal(after.device, before.device - m.page);
    assert_int_equal(after.host, before.host - m.page);
    assert_int_equal(after.total.h2d + after.total.d2h, before.total.h2d + before.total.d2h);
    OK(hybridps_tensor(m.h, m.grad[0], &info));
    assert_true(info.state == HYBRIDPS_FREE && !info.on_host && !info.on_device);
    uint32_t none = 1000;
    assert_int_equal(hybridps_drop(m.h, &none, 1), HL_ENOENT);
    hybridps_close(m.h);
}

TEST(test_tensors_lie_in_their_order_and_keep_their_place)
{
    hybridps *h = open_with(16, NULL, NULL);
    uint32_t t[5];
    hybridps_tensor_info i[5];
    OK(hybridps_add(h, "a", HYBRIDPS_PARAM, 100, &t[0]));
    OK(hybridps_add(h, "g", HYBRIDPS_GRAD, 100, &t[1]));
    OK(hybridps_add(h, "b", HYBRIDPS_PARAM, page() - 128, &t[2]));
    OK(hybridps_add(h, "c", HYBRIDPS_PARAM, 3 * page(), &t[3])); /* longer than a chunk */
    OK(hybridps_layout(h));
    OK(hybridps_add(h, "d", HYBRIDPS_GRAD, 1, &t[4]));
    OK(hybridps_layout(h));
    for (int k = 0; k < 5; k++) {
        i[k].size = sizeof(i[k]);
        OK(hybridps_tensor(h, t[k], &i[k]));
    }
    assert_int_equal(i[0].chunk, i[2].chunk);
    assert_int_equal(i[0].offset, 0);
    assert_int_equal(i[2].offset, 128);
    assert_int_equal(i[1].chunk, i[4].chunk);
    assert_int_equal(i[4].offset, 128);
    assert_int_not_equal(i[3].chunk, i[0].chunk);
    hybridps_close(h);
}

static uint64_t in_table(hybridps_manager *m, int device)
{
    hybridps_manager_info_t i = {HYBRIDPS_MANAGER_INFO_INIT};
    OK(hybridps_manager_info(m, device, &i));
    return i.used;
}

TEST(test_the_nodes_table_knows_what_chunks_have)
{
    char name[64], spec[32];
    uint64_t room[1] = {2 * page()};
    hybridps_manager *m = NULL;
    hybridps *h = NULL;
    uint32_t t[3];
    snprintf(name, sizeof(name), "helios-test-client-%d", (int)getpid());
    hybridps_manager_options mo = {HYBRIDPS_MANAGER_OPTIONS_INIT, .name = name,
                                   .host_bytes = 4 * page(), .device_bytes = room, .devices = 1};
    OK(hybridps_manager_open(&mo, &m));
    snprintf(spec, sizeof(spec), "emu:%llu", (unsigned long long)(8 * page()));
    hybridps_options o = {HYBRIDPS_OPTIONS_INIT, .device = spec, .mode = "move",
                          .chunk_bytes = page(), .manager = name};
    OK(hybridps_open(&o, &h));
    for (int i = 0; i < 3; i++)
        OK(hybridps_add(h, "t", HYBRIDPS_PARAM, page(), &t[i]));
    OK(hybridps_layout(h));
    use(h, t[0], HYBRIDPS_HOST, 1);
    assert_int_equal(in_table(m, HYBRIDPS_MANAGER_HOST), page());
    done(h, t[0], HYBRIDPS_HOLD);
    use(h, t[0], HYBRIDPS_DEVICE, 1);
    use(h, t[1], HYBRIDPS_DEVICE, 1);
    assert_int_equal(in_table(m, HYBRIDPS_MANAGER_HOST), 0);
    assert_int_equal(in_table(m, 0), 2 * page());
    hybridps_use u = {.tensor = t[2], .where = HYBRIDPS_DEVICE};
    assert_int_equal(hybridps_access(h, &u, 1), -5); /* the table's device is full */
    assert_int_equal(in_table(m, 0), 2 * page());
    done(h, t[0], HYBRIDPS_FREE);
    OK(hybridps_access(h, &u, 1));
    hybridps_close(h);
    assert_int_equal(in_table(m, 0) + in_table(m, HYBRIDPS_MANAGER_HOST), 0);
    hybridps_manager_close(m);
    o.manager = "helios-test-nobody-made-this";
    assert_int_equal(hybridps_open(&o, &h), -2);
}

/* ---- threads ---- */

struct worker {
    hybridps *h;
    const uint32_t *tensors;
    unsigned seed;
    uint64_t *value; /* its own tensors' */
    int failures;
};

static void *work(void *arg)
{
    struct worker *w = arg;
    for (int k = 0; k < 400; k++) {
        w->seed = w->seed * 1103515245u + 12345u;
        unsigned i = (w->seed >> 16) % 4;
        int where = (w->seed >> 20) % 3 != 0;
        hybridps_use u = {.tensor = w->tensors[i], .where = where, .write = 1};
        int rc = hybridps_access(w->h, &u, 1);
        if (rc != 0) {
            w->failures += rc != -5; /* room can be short while other threads hold theirs */
            continue;
        }
        volatile uint64_t *p = u.address;
        w->failures += w->value[i] != 0 && p[0] != w->value[i];
        p[0] = w->value[i] = (uint64_t)k + 1;
        w->failures += hybridps_release(w->h, &u.tensor, 1, HYBRIDPS_HOLD) != 0;
    }
    return NULL;
}

TEST(test_threads_share_a_client)
{
    hybridps *h = open_with(6, "lru", "copy");
    uint32_t t[16];
    uint64_t value[16] = {0};
    pthread_t threads[4];
    struct worker w[4];
    for (unsigned i = 0; i < 16; i++)
        OK(hybridps_add(h, "t", HYBRIDPS_PARAM, page(), &t[i]));
    OK(hybridps_layout(h));
    for (unsigned i = 0; i < 4; i++) {
        w[i] = (struct worker){h, &t[4 * i], 77 * i, &value[4 * i], 0};
        assert_int_equal(pthread_create(&threads[i], NULL, work, &w[i]), 0);
    }
    for (unsigned i = 0; i < 4; i++) {
        pthread_join(threads[i], NULL);
        assert_int_equal(w[i].failures, 0);
    }
    hybridps_close(h);
}

TEST(test_options_and_results_are_as_long_as_their_caller_says)
{
    hybridps *h = NULL;

    struct {
        hybridps_options now;
        int future;
    } newer = {{.device = "emu:64KiB", .chunk_bytes = page(), .heat_window = -1}, 1};

    struct {
        hybridps_stats_t now;
        uint64_t future;
    } told = {.future = 7};

    hybridps_tensor_info info = {0};
    uint32_t tensor;
    expect_failure(hybridps_open(&newer.now, &h), HL_EINVAL,
                   SAYS("hybridps_options.size is 0", "sizeof(hybridps_options)"));
    newer.now.size = sizeof(newer);
    expect_failure(hybridps_open(&newer.now, &h), HL_EINVAL,
                   SAYS("hybridps_options.size", "not 0"));
    assert_null(h);
    newer.now.size = offsetof(hybridps_options, heat_alpha); /* `window` is not read */
    OK(hybridps_open(&newer.now, &h));
    expect_failure(hybridps_stats(h, &told.now), HL_EINVAL, SAYS("hybridps_stats_t.size is 0"));
    told.now.size = sizeof(told);
    OK(hybridps_stats(h, &told.now));
    assert_int_equal(told.now.capacity, 64 << 10);
    assert_int_equal(told.future, 0);
    told.now.size = offsetof(hybridps_stats_t, granule);
    told.now.granule = told.now.capacity = 7;
    OK(hybridps_stats(h, &told.now));
    assert_int_equal(told.now.capacity, 64 << 10);
    assert_int_equal(told.now.granule, 7);
    OK(hybridps_add(h, "a", HYBRIDPS_PARAM, 100, &tensor));
    expect_failure(hybridps_tensor(h, tensor, &info), HL_EINVAL,
                   SAYS("hybridps_tensor_info.size is 0"));
    hybridps_close(h);
}
