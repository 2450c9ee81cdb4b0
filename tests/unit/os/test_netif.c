#include "support/test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "os/file.h"
#include "os/netif.h"

/* Every host of the tests has a loopback that is up. */
TEST(an_interface_is_found_by_name_address_and_network)
{
    static const char *const same[] = {"lo", "127.0.0.1", "127.0.0.0/8", "127.0.0.1/32"};
    for (size_t i = 0; i < HL_ARRAY_LEN(same); i++) {
        struct hl_netif n;
        assert_int_equal(hl_netif_find(same[i], &n), HL_OK);
        assert_string_equal(n.name, "lo");
        assert_string_equal(n.address, "127.0.0.1");
        assert_false(n.v6);
    }
}

TEST(the_loopback_has_every_address_of_its_network)
{
    struct hl_netif n;
    assert_int_equal(hl_netif_find("127.0.0.2", &n), HL_OK);
    assert_string_equal(n.name, "lo");
    assert_string_equal(n.address, "127.0.0.2");
    /* but a network means an address that is there */
    assert_int_equal(hl_netif_find("127.0.0.2/32", &n), HL_ENOENT);
}

TEST(what_is_not_here_is_told_with_what_is)
{
    struct hl_netif n = {.name = "untouched"};
    assert_int_equal(hl_netif_find("203.0.113.0/24", &n), HL_ENOENT);
    assert_non_null(strstr(hl_error_text(), "has an address in 203.0.113.0/24; this host has lo "
                                            "127.0.0.1/8"));
    assert_int_equal(hl_netif_find("203.0.113.9", &n), HL_ENOENT);
    assert_non_null(strstr(hl_error_text(), "has the address 203.0.113.9; this host has lo"));
    assert_int_equal(hl_netif_find("nosuch0", &n), HL_ENOENT);
    assert_non_null(strstr(hl_error_text(), "is called nosuch0; this host has lo"));
    static const char *const bad[] = {
        "",         "10.0.0.0/33", "10.0.0.0/",
        "10.0.0/8", "10.0.0.0/x",  "10.0.0.0/-1",
        "::/129",   "eth0/24",     "a name that no interface can have"};
    for (size_t i = 0; i < HL_ARRAY_LEN(bad); i++)
        assert_int_equal(hl_netif_find(bad[i], &n), HL_EINVAL);
    assert_string_equal(n.name, "untouched");
}

TEST(a_line_rate_is_what_the_driver_says_or_unknown)
{

    static const struct {
        const char *says;
        uint64_t rate;
    } rows[] = {{"100000\n", 100000000000ull},
                {"2500\n", 2500000000ull},
                {"-1\n", 0},
                {"0\n", 0},
                {"", 0},
                {"4294967295\n", 0} /* unknown, from old drivers */};

    char dir[] = "/tmp/helios-netif-XXXXXX", path[128];
    assert_non_null(mkdtemp(dir));
    snprintf(path, sizeof(path), "%s/class/net/eth7", dir);
    assert_int_equal(hl_dir_make(path, 0755), HL_OK);
    strncat(path, "/speed", sizeof(path) - strlen(path) - 1);
    for (size_t i = 0; i < HL_ARRAY_LEN(rows); i++) {
        assert_int_equal(hl_file_write_atomic(path, rows[i].says, strlen(rows[i].says)), HL_OK);
        assert_true(hl_netif_rate(dir, "eth7") == rows[i].rate);
    }
    assert_true(hl_netif_rate(dir, "eth8") == 0);
    assert_int_equal(hl_dir_remove(dir), HL_OK);
}
