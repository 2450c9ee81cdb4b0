/* What libhelios takes from its environment, and how helios_options overrides it. */
#include "support/test.h"

#include "client_world.h"

#include "base/clock.h"
#include "base/status.h"

static struct world world;

static int setup(void **state)
{
    (void)state;
    world_start(&world, "32MiB");
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    world_end(&world);
    return 0;
}

/* How often a bad piece was fetched again. */
static uint64_t tries_of(helios_client *c, uint64_t seed)
{
    static const int64_t shape[] = {4096};
    unsigned char *data = noise(4096, seed), *copy = malloc(8192);
    const helios_tensor t = {.name = "w", .dtype = "U8", .shape = shape, .rank = 1, .data = data};
    helios_shard s;
    helios_stats stats = {HELIOS_STATS_INIT};
    assert_int_equal(helios_version_put(c, "toy", 3, 0, 0, "head", &t, 1, &s), HELIOS_OK);
    off_t at = world_flip(&world, data, 64);
    assert_int_equal(helios_get(c, s.id, copy, s.size), HELIOS_ECORRUPT);
    world_flip_at(&world, at);
    assert_int_equal(helios_get_stats(c, &stats), HELIOS_OK);
    free(data);
    free(copy);
    return stats.retries;
}

TEST(retries_are_those_of_the_options_or_else_of_the_environment)
{

    static const struct {
        const char *environment;
        int option;
        uint64_t tried;
    } cases[] = {{"", 0, 3}, {"1", 0, 1}, {"0", 0, 0}, {"5", 2, 2}, {"5", -1, 0}};

    for (size_t i = 0; i < HL_ARRAY_LEN(cases); i++) {
        setenv("HELIOS_READ_RETRIES", cases[i].environment, 1);
        helios_client *c = world_client(&world, "net", 0, cases[i].option);
        unsetenv("HELIOS_READ_RETRIES");
        assert_int_equal(tries_of(c, 50 + i), cases[i].tried);
        helios_close(c);
    }
}

TEST(the_rest_before_a_retry_is_that_of_the_environment)
{
    setenv("HELIOS_READ_RETRY_PAUSE", "300ms", 1);
    helios_client *c = world_client(&world, "net", 0, 1);
    unsetenv("HELIOS_READ_RETRY_PAUSE");
    uint64_t start = hl_now_ns();
    assert_int_equal(tries_of(c, 60), 1);
    assert_true(hl_now_ns() - start >= 300 * HL_NS_PER_MS);
    helios_close(c);
}

TEST(the_deadline_is_that_of_the_options_or_else_of_the_environment)
{
    kill(world.pid, SIGSTOP);
    for (int i = 0; i < 2; i++) {
        helios_client *c = NULL;
        helios_options o = {HELIOS_OPTIONS_INIT, .controller = "", .l3 = world.address,
                            .timeout_ms = i == 0 ? 0 : 300};
        setenv("HELIOS_READ_TIMEOUT", i == 0 ? "300ms" : "1h", 1);
        uint64_t start = hl_now_ns();
        assert_int_not_equal(helios_open(&o, &c), HELIOS_OK);
        assert_true(hl_now_ns() - start < 10 * HL_NS_PER_S); /* the default is 30 s */
    }
    kill(world.pid, SIGCONT);
    unsetenv("HELIOS_READ_TIMEOUT");
}

/* A pause that would end after the deadline is not begun: the call does not wait for the daemon to
 * come back. */
TEST(the_pause_before_a_daemon_is_asked_again_is_that_of_the_environment)
{
    static const char *const pauses[] = {"60s", "10ms"};
    struct world own;
    helios_client *clients[2];
    char bytes[64];
    world_start(&own, "32MiB");
    for (int i = 0; i < 2; i++) {
        setenv("HELIOS_READ_DAEMON_PAUSE", pauses[i], 1);
        clients[i] = world_client(&own, "net", 5000, 0);
    }
    unsetenv("HELIOS_READ_DAEMON_PAUSE");
    world_end(&own);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(helios_get(clients[i], (helios_id){1, 2}, bytes, sizeof(bytes)),
                         HELIOS_EUNAVAIL);
        assert_int_equal(strstr(helios_last_error(), "was not reachable again") != NULL, i);
        helios_close(clients[i]);
    }
}

TEST(structs_are_as_long_as_their_caller_says)
{
    helios_client *c = NULL;

    struct {
        helios_options now;
        const char *future;
    } newer = {{.controller = "", .l3 = world.address, .retries = -2}, "on"};

    helios_stats stats = {0};
    helios_version_spec spec = {.model = "m", .job = "j", .world = 1};
    helios_device_view view = {0};
    int64_t version;
    assert_int_equal(helios_open(&newer.now, &c), HELIOS_EINVAL);
    assert_non_null(strstr(helios_last_error(), "sizeof(helios_options)"));
    newer.now.size = sizeof(newer);
    assert_int_equal(helios_open(&newer.now, &c), HELIOS_EINVAL);
    assert_non_null(strstr(helios_last_error(), "helios_options.size"));
    newer.now.size = offsetof(helios_options, retries); /* they are not read */
    assert_int_equal(helios_open(&newer.now, &c), HELIOS_OK);
    assert_int_equal(helios_get_stats(c, &stats), HELIOS_EINVAL);
    assert_non_null(strstr(helios_last_error(), "sizeof(helios_stats)"));
    assert_int_equal(helios_version_open(c, &spec, &version), HELIOS_EINVAL);
    assert_non_null(strstr(helios_last_error(), "sizeof(helios_version_spec)"));
    assert_int_equal(helios_map_device(c, (helios_id){1, 2}, &view), HELIOS_EINVAL);
    assert_non_null(strstr(helios_last_error(), "sizeof(helios_device_view)"));
    helios_close(c);
}

TEST(what_the_environment_says_wrongly_is_named)
{
    static const char *const bad[][2] = {
        {"HELIOS_READ_RETRIES", "101"},        {"HELIOS_READ_RETRIES", "many"},
        {"HELIOS_READ_RETRY_PAUSE", "1001ms"}, {"HELIOS_READ_TIMEOUT", "9ms"},
        {"HELIOS_READ_DAEMON_PAUSE", "61s"},   {"HELIOS_READ_TIMEOUT", "61m"}};
    for (size_t i = 0; i < HL_ARRAY_LEN(bad); i++) {
        helios_client *c = NULL;
        helios_options o = {HELIOS_OPTIONS_INIT, .controller = "", .l3 = world.address};
        setenv(bad[i][0], bad[i][1], 1);
        assert_int_equal(helios_open(&o, &c), HELIOS_EINVAL);
        unsetenv(bad[i][0]);
        assert_non_null(strstr(helios_last_error(), bad[i][0]));
        assert_non_null(strstr(helios_last_error(), bad[i][1]));
    }
}

TESTS_IN(setup, teardown)

int main(int argc, char **argv)
{
    char program[512];
    world_program(program, sizeof(program));
    if (access(program, X_OK) != 0) {
        printf("skipped: %s is not built\n", program);
        return SKIP_CODE;
    }
    return tests_run(argc, argv);
}
