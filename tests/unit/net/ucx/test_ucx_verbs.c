/* Which adapters' ports belong to a network device, read from a tree like the kernel's. */
#include "support/test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "net/ucx/ucx_private.h"
#include "os/file.h"

static char sys[] = "/tmp/helios-test-verbs-XXXXXX";

/* Creates it with its folders; text NULL: it is a folder. */
static void add(const char *path, const char *text)
{
    char full[512], command[640];
    snprintf(full, sizeof(full), "%s/class/%s", sys, path);
    snprintf(command, sizeof(command), "mkdir -p %.*s",
             text != NULL ? (int)(strrchr(full, '/') - full) : (int)strlen(full), full);
    assert_int_equal(system(command), 0);
    if (text == NULL)
        return;
    FILE *f = fopen(full, "w");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
}

/* Two Ethernet ports of one adapter, the second with a VLAN; an InfiniBand adapter of two ports. */
static int setup(void **state)
{
    (void)state;
    assert_non_null(mkdtemp(sys));
    add("infiniband/mlx5_0/ports/1/gid_attrs/ndevs/0", "eth0\n");
    add("infiniband/mlx5_0/ports/1/gid_attrs/ndevs/1", "eth0\n");
    add("infiniband/mlx5_0/ports/2/gid_attrs/ndevs/0", "eth1\n");
    add("infiniband/mlx5_0/ports/2/gid_attrs/ndevs/1", "eth1.7\n");
    add("infiniband/mlx5_1/ports/1", NULL);
    add("infiniband/mlx5_1/ports/2", NULL);
    add("net/ib0/device/infiniband/mlx5_1", NULL);
    add("net/ib0/dev_port", "0\n");
    add("net/ib1/device/infiniband/mlx5_1", NULL);
    add("net/ib1/dev_port", "1\n");
    add("net/eth2/dev_port", "0\n");
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    return hl_dir_remove(sys) == HL_OK ? 0 : -1;
}

TEST(a_network_takes_only_the_ports_behind_its_own_device)
{
    static const struct {
        const char *device, *devices;
    } cases[] = {
        {"eth0", "eth0,mlx5_0:1"}, {"eth1", "eth1,mlx5_0:2"}, {"eth1.7", "eth1.7,mlx5_0:2"},
        {"ib0", "ib0,mlx5_1:1"},   {"ib1", "ib1,mlx5_1:2"},
    };

    char devices[256];
    for (size_t i = 0; i < HL_ARRAY_LEN(cases); i++) {
        assert_true(hl_ucx_verbs_devices(sys, cases[i].device, devices, sizeof(devices)));
        assert_string_equal(devices, cases[i].devices);
    }
}

TEST(a_device_without_an_adapter_has_none)
{
    char devices[256];
    assert_false(hl_ucx_verbs_devices(sys, "eth2", devices, sizeof(devices)));
    assert_false(hl_ucx_verbs_devices(sys, "eth", devices, sizeof(devices)));
    assert_false(hl_ucx_verbs_devices("/nowhere", "eth0", devices, sizeof(devices)));
}

TEST(an_adapter_that_stands_on_a_network_device_is_soft_roce)
{
    assert_false(hl_ucx_verbs_soft(sys));
    assert_false(hl_ucx_verbs_soft("/nowhere"));
    add("infiniband/rxe0/parent", "eth2\n");
    assert_true(hl_ucx_verbs_soft(sys));
}

TESTS_IN(setup, teardown)
