#include "support/test.h"

#include <string.h>

#include "program/conf.h"

#define LOAD(program, conf, ...)                                                                   \
    do {                                                                                           \
        const char *argv_[] = {"daemon", __VA_ARGS__};                                             \
        int argc_ = (int)HL_ARRAY_LEN(argv_);                                                      \
        assert_int_equal(program_conf_load((program), argc_, (char **)argv_, (conf), NULL),        \
                         HL_OK);                                                                   \
    } while (0)

TEST(without_networks_daemons_listen_on_the_loopback)
{
    struct program_conf c = {0};
    LOAD(HL_L3D, &c, "--log-level=error");
    assert_int_equal(hl_planes_apply(&c.conf, &c.planes), HL_OK);
    assert_string_equal(c.l3d.listen, "127.0.0.1:7402");
    assert_string_equal(c.l3d.data_listen, "127.0.0.1:0");
    assert_string_equal(c.daemon.metrics_listen, "");
    assert_string_equal(c.agent.listen, ":0"); /* another program's */
    program_conf_fini(&c);
}

TEST(an_address_without_a_host_is_on_the_network_of_its_option)
{
    struct program_conf c = {0};
    struct hl_plane_stats stats;
    LOAD(HL_AGENT, &c, "--plane-backbone=127.0.0.2", "--plane-migration=127.0.0.3",
         "--plane-management=127.0.0.4", "--plane-migration-rate=200Gbit", "--metrics-listen=:0",
         "--log-level=error", "--data-listen=:7403");
    assert_int_equal(hl_planes_apply(&c.conf, &c.planes), HL_OK);
    assert_string_equal(c.agent.listen, "127.0.0.4:0");
    assert_string_equal(c.agent.store.data_listen, "127.0.0.2:7403");
    assert_string_equal(c.agent.store.migrate_listen, "127.0.0.3:0");
    assert_string_equal(c.daemon.metrics_listen, "127.0.0.4:0");
    hl_plane_stats(HL_PLANE_MIGRATION, &stats);
    assert_true(stats.rate == 200000000000ull);
    struct hl_plane_place p;
    assert_int_equal(hl_plane_find(&c.planes, HL_PLANE_BACKBONE, &p), HL_OK);
    assert_string_equal(p.at.name, "lo");
    program_conf_fini(&c);
}

TEST(an_address_with_a_host_stays)
{
    struct program_conf c = {0};
    LOAD(HL_L3D, &c, "--plane-management=127.0.0.4", "--listen=localhost:0", "--data-listen=");
    assert_int_equal(hl_planes_apply(&c.conf, &c.planes), HL_OK);
    assert_string_equal(c.l3d.listen, "localhost:0");
    assert_string_equal(c.l3d.data_listen, "");
    program_conf_fini(&c);
}

TEST(a_network_that_is_not_here_is_refused_by_its_option)
{
    struct program_conf c = {0};
    LOAD(HL_L3D, &c, "--plane-backbone=203.0.113.0/24");
    assert_int_equal(hl_planes_apply(&c.conf, &c.planes), HL_ENOENT);
    assert_non_null(strstr(hl_error_text(), "plane.backbone: no interface that is up"));
    assert_non_null(strstr(hl_error_text(), "lo 127.0.0.1/8"));
    program_conf_fini(&c);
}

TEST(rates_are_written_as_people_say_them)
{

    static const struct {
        const char *text;
        uint64_t bits;
    } good[] = {{"100Gbit", 100000000000ull},
                {"2.5 Gbit/s", 2500000000ull},
                {"0", 0},
                {"800mbps", 800000000},
                {"1T", 1000000000000ull}};

    static const char *const bad[] = {"", "fast", "10GiB", "-1", "10GB", "99999999999999999999"};
    uint64_t bits = 7;
    for (size_t i = 0; i < HL_ARRAY_LEN(good); i++) {
        assert_int_equal(hl_parse_rate(good[i].text, &bits), HL_OK);
        assert_true(bits == good[i].bits);
    }
    for (size_t i = 0; i < HL_ARRAY_LEN(bad); i++)
        assert_int_equal(hl_parse_rate(bad[i], &bits), HL_EINVAL);
}
