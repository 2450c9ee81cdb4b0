/* How busy a line is, from trees of files like the kernel's. */
#include "support/test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "os/file.h"
#include "os/netline.h"

#define MBIT UINT64_C(1000000)

static char root[64];

static int make_root(void **state)
{
    (void)state;
    snprintf(root, sizeof(root), "/tmp/helios-netline-XXXXXX");
    return mkdtemp(root) != NULL ? 0 : -1;
}

static int remove_root(void **state)
{
    (void)state;
    return hl_dir_remove(root) == HL_OK ? 0 : -1;
}

static void put(const char *name, const char *text)
{
    char path[256], dir[256];
    snprintf(path, sizeof(path), "%s/%s", root, name);
    snprintf(dir, sizeof(dir), "%s", path);
    *strrchr(dir, '/') = '\0';
    assert_int_equal(hl_dir_make(dir, 0700), HL_OK);
    assert_int_equal(hl_file_write_atomic(path, text, strlen(text)), HL_OK);
}

static void put_number(const char *name, uint64_t value)
{
    char text[32];
    snprintf(text, sizeof(text), "%llu\n", (unsigned long long)value);
    put(name, text);
}

static void put_bytes(const char *interface, uint64_t rx, uint64_t tx)
{
    char name[128];
    snprintf(name, sizeof(name), "class/net/%s/statistics/rx_bytes", interface);
    put_number(name, rx);
    snprintf(name, sizeof(name), "class/net/%s/statistics/tx_bytes", interface);
    put_number(name, tx);
}

static double busy_at(struct hl_netline *l, double second)
{
    return hl_netline_busy_pct(l, (uint64_t)(second * (double)HL_NS_PER_S));
}

TEST_IN(make_root, remove_root, it_is_the_busier_direction_of_what_the_line_carries)
{
    struct hl_netline l;
    hl_netline_init(&l, root, "eth0", 8 * MBIT); /* a million bytes a second */
    put_bytes("eth0", 5000, 7000);
    assert_float_equal(busy_at(&l, 10), -1, 0); /* there is nothing to compare with */
    put_bytes("eth0", 5000 + 250000, 7000 + 500000);
    assert_float_equal(busy_at(&l, 11), 50, 1e-9);
    put_bytes("eth0", 5000 + 250000, 7000 + 900000);
    assert_float_equal(busy_at(&l, 11.4), 50, 1e-9); /* too soon for another look */
}

TEST_IN(make_root, remove_root, older_seconds_count_less_and_more_than_all_is_all)
{
    struct hl_netline l;
    hl_netline_init(&l, root, "eth0", 8 * MBIT);
    put_bytes("eth0", 0, 0);
    (void)busy_at(&l, 10);
    put_bytes("eth0", 9000000, 0); /* nine times its rate: the option was wrong */
    assert_float_equal(busy_at(&l, 11), 100, 1e-9);
    assert_float_equal(busy_at(&l, 12), 100 * 5.0 / 6, 1e-9); /* a second of six without traffic */
    assert_float_equal(busy_at(&l, 112), 100 * 5.0 / 6 * 5 / 105, 1e-9);
}

TEST_IN(make_root, remove_root, rdma_counts_beside_an_ethernet_interface)
{
    struct hl_netline l;
    hl_netline_init(&l, root, "eth0", 8 * MBIT);
    put_bytes("eth0", 0, 0);
    put("class/net/eth0/dev_port", "1\n");
    put("class/net/eth0/device/infiniband/mlx5_2/node_type", "1: CA\n");
    put("class/infiniband/mlx5_2/ports/2/link_layer", "Ethernet\n");
    put("class/infiniband/mlx5_2/ports/2/counters/port_rcv_data", "0\n");
    put("class/infiniband/mlx5_2/ports/2/counters/port_xmit_data", "0\n");
    (void)busy_at(&l, 10);
    put_bytes("eth0", 100000, 0);
    put("class/infiniband/mlx5_2/ports/2/counters/port_rcv_data", "50000\n"); /* of four bytes */
    assert_float_equal(busy_at(&l, 11), 30, 1e-9);
}

TEST_IN(make_root, remove_root, an_infiniband_port_has_the_bytes_of_its_interface)
{
    struct hl_netline l;
    hl_netline_init(&l, root, "ib0", 8 * MBIT);
    put_bytes("ib0", 0, 0);
    put("class/net/ib0/device/infiniband/mlx5_0/node_type", "1: CA\n");
    put("class/infiniband/mlx5_0/ports/1/link_layer", "InfiniBand\n");
    put("class/infiniband/mlx5_0/ports/1/counters/port_rcv_data", "0\n");
    put("class/infiniband/mlx5_0/ports/1/counters/port_xmit_data", "0\n");
    (void)busy_at(&l, 10);
    put_bytes("ib0", 100000, 0);
    put("class/infiniband/mlx5_0/ports/1/counters/port_rcv_data", "50000\n");
    assert_float_equal(busy_at(&l, 11), 20, 1e-9);
}

TEST_IN(make_root, remove_root, without_a_rate_or_counters_it_is_not_known)
{
    struct hl_netline l;
    put_bytes("lo", 1, 1);
    hl_netline_init(&l, root, "", 0);
    assert_string_equal(l.interface, "lo");
    (void)busy_at(&l, 10);
    assert_float_equal(busy_at(&l, 11), -1, 0);
    hl_netline_init(&l, root, "eth9", 8 * MBIT);
    (void)busy_at(&l, 10);
    assert_float_equal(busy_at(&l, 11), -1, 0);
    put_bytes("eth9", 1000, 0); /* it appears, and starts from zero */
    assert_float_equal(busy_at(&l, 12), -1, 0);
    put_bytes("eth9", 1000 + 500000, 0);
    assert_float_equal(busy_at(&l, 13), 50, 1e-9);
}

TEST_IN(make_root, remove_root, counters_that_begin_anew_say_nothing_of_that_time)
{
    struct hl_netline l;
    hl_netline_init(&l, root, "eth0", 8 * MBIT);
    put_bytes("eth0", 1000000, 1000000);
    (void)busy_at(&l, 10);
    put_bytes("eth0", 1000000 + 400000, 1000000);
    assert_float_equal(busy_at(&l, 11), 40, 1e-9);
    put_bytes("eth0", 7, 7);
    assert_float_equal(busy_at(&l, 12), 40, 1e-9);
    put_bytes("eth0", 7 + 400000, 7);
    assert_float_equal(busy_at(&l, 13), 40, 1e-9);
}
