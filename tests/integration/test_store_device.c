/* L1 of real Agents: device memory is filled on order, mapped by a process of the node, and lost
 * with the Agent. The devices are emulated; with HELIOS_TEST_CUDA each is a share of CUDA device
 * 0. */
#include "support/test.h"

#include "integration/store_world.h"

#include "mem/device/device.h"
#include "support/cuda_library.h"

#define SIZE (3 * MIB + 100)

static const struct world_opts *together(void)
{
    static const struct world_opts emulated = {.devices = "emu:16MiB,emu:16MiB"};
    static const struct world_opts real = {.devices = "cuda:0:16MiB,cuda:0:16MiB"};
    return cuda_is_real() ? &real : &emulated;
}

static const struct world_opts *apart(void)
{
    static const struct world_opts emulated = {.apart = 1, .devices = "emu:16MiB"};
    static const struct world_opts real = {.apart = 1, .devices = "cuda:0:16MiB"};
    return cuda_is_real() ? &real : &emulated;
}

/* The Agent's name of its n-th device. */
static const char *device_name(int n)
{
    static const char *const emulated[] = {"emu:0", "emu:1"}, *const real[] = {"cuda:0", "cuda:1"};
    return cuda_is_real() ? real[n] : emulated[n];
}

static void expect_text(const json_t *x, const char *key, const char *wanted)
{
    assert_string_equal(hl_json_str(x, key, "?"), wanted);
}

/* Checks the bytes in a device as a rank of the node sees them. */
static void check_l1(struct hl_l3_client *c, struct hl_id id, size_t size, uint64_t seed,
                     struct hl_l3_device_copy *copy)
{
    struct hl_device *device;
    struct hl_device_block block;
    uint8_t *expected = noise(size, seed), *got = malloc(size);
    assert_int_equal(hl_l3_map(c, id, MS, copy), HL_OK);
    assert_int_equal(copy->size, size);
    assert_int_equal(copy->crc32, plain_crc(expected, size));
    assert_int_equal(hl_device_open(cuda_is_real() ? "cuda:0" : "emu", NULL, &device), HL_OK);
    assert_int_equal(
        hl_device_import(
            device,
            &(struct hl_device_share){.fd = copy->fd, .offset = copy->offset, .size = copy->length},
            &block),
        HL_OK);
    assert_int_equal(hl_device_copy_out(device, &block, 0, got, size), HL_OK);
    assert_memory_equal(got, expected, size);
    if (!cuda_is_real())
        assert_memory_equal(block.host, expected, size);
    hl_device_close(device);
    close(copy->fd);
    free(expected);
    free(got);
}

TEST(a_rank_maps_what_was_copied_into_a_device_of_its_node)
{
    struct world w;
    struct hl_l3_client *c;
    struct hl_l3_device_copy mapped;
    world_begin(&w, together());
    struct hl_id id = make_shard(&w, SIZE, 40);
    json_t *copy = copy_to(&w, id, "node-0", "L1", "read");
    expect_text(copy, "device", device_name(0));
    expect_text(copy, "path", "local-copy");
    json_decref(copy);
    assert_int_equal(hl_l3_connect(hl_json_str(w.ready[NODE0], "storeSocket", ""), MS, &c), HL_OK);
    check_l1(c, id, SIZE, 40, &mapped);
    assert_string_equal(mapped.device, device_name(0));
    /* mapped memory is not taken away */
    assert_int_equal(try_drop(&w, id, "node-0", "L1"), HL_EBUSY);
    assert_int_equal(hl_l3_unmap(c, mapped.token, MS), HL_OK);
    assert_int_equal(hl_l3_unmap(c, mapped.token, MS), HL_ENOENT);
    check_l1(c, id, SIZE, 40, &mapped);
    hl_l3_close(c); /* a rank that exits releases what it had */
    uint64_t end = hl_now_ns() + WAIT_MS * HL_NS_PER_MS;
    while (try_drop(&w, id, "node-0", "L1") != HL_OK) {
        assert_true(hl_now_ns() < end);
        poll(NULL, 0, 10);
    }
    assert_int_equal(hl_l3_connect(hl_json_str(w.ready[NODE0], "storeSocket", ""), MS, &c), HL_OK);
    assert_int_equal(hl_l3_map(c, id, MS, &mapped), HL_ENOENT);
    hl_l3_close(c);
    assert_int_equal(hl_l3_map(w.pool, id, MS, &mapped), HL_EUNSUPPORTED); /* the pool has none */
    assert_int_equal(tier_number(&w, NODE0, "L1", "usedBytes"), 0);
    world_end(&w);
}

/* Two of the stub's devices; the Agent has only the second one. */
TEST(a_rank_is_told_the_address_of_the_device_that_it_maps)
{
    struct world w;
    struct hl_l3_client *c;
    struct hl_l3_device_copy mapped;
    char stub[512];
    if (cuda_is_real())
        TEST_SKIP("it needs two devices of a stub");
    cuda_library(stub, sizeof(stub));
    setenv("HELIOS_DEVICE_CUDA_DRIVER", stub, 1);
    setenv("CUDA_STUB_DEVICES", "2", 1);
    world_begin(&w, &(struct world_opts){.devices = "cuda:1:16MiB"});
    struct hl_id id = make_shard(&w, SIZE, 47);
    json_decref(copy_to(&w, id, "node-0", "L1", "read"));
    assert_int_equal(hl_l3_connect(hl_json_str(w.ready[NODE0], "storeSocket", ""), MS, &c), HL_OK);
    assert_int_equal(hl_l3_map(c, id, MS, &mapped), HL_OK);
    assert_string_equal(mapped.device, "cuda:0");
    assert_string_equal(mapped.pci, "0000:11:00.0");
    close(mapped.fd);
    hl_l3_close(c);
    world_end(&w);
    unsetenv("HELIOS_DEVICE_CUDA_DRIVER");
    unsetenv("CUDA_STUB_DEVICES");
}

TEST(from_another_host_bytes_reach_a_device_by_the_plank)
{
    struct world w;
    struct hl_l3_client *c;
    struct hl_l3_device_copy mapped;
    world_begin(&w, apart());
    struct hl_id id = make_shard(&w, SIZE, 41);
    json_t *copy = copy_to(&w, id, "node-0", "L1", "read");
    expect_text(copy, "path", "plank");
    expect_text(copy, "reason", "no-rdma");
    json_decref(copy);
    assert_int_equal(hl_l3_connect(hl_json_str(w.ready[NODE0], "storeSocket", ""), MS, &c), HL_OK);
    check_l1(c, id, SIZE, 41, &mapped);
    hl_l3_close(c);
    world_end(&w);
}

/* L1 -> L2 -> (migration network) -> L2 -> L1. */
TEST(device_memory_migrates_through_host_memory)
{
    struct world w;
    struct hl_l3_client *c;
    struct hl_l3_device_copy mapped;
    world_begin(&w, apart());
    struct hl_id id = make_shard(&w, SIZE, 42);
    json_decref(copy_to(&w, id, "node-0", "L1", "read"));
    json_t *copy = copy_to(&w, id, "node-1", "L1", "migrate");
    expect_text(copy, "tier", "L1");
    json_decref(copy);
    assert_int_equal(copies_known(&w, id, "node-0", "L1"), 1);
    assert_int_equal(copies_known(&w, id, "node-0", "L2"), 1);
    assert_int_equal(copies_known(&w, id, "node-1", "L2"), 1);
    assert_int_equal(copies_known(&w, id, "node-1", "L1"), 1);
    json_t *r = must(&w, NODE1, "storeList", NULL), *x;
    size_t i, arrived = 0;
    json_array_foreach (hl_json_list(r, "copies"), i, x) {
        arrived += strcmp(hl_json_str(x, "path", ""), "zmq") == 0;
    }
    assert_int_equal(arrived, 1);
    json_decref(r);
    assert_int_equal(hl_l3_connect(hl_json_str(w.ready[NODE1], "storeSocket", ""), MS, &c), HL_OK);
    check_l1(c, id, SIZE, 42, &mapped);
    hl_l3_close(c);
    world_end(&w);
}

TEST(device_memory_ends_with_its_agent_and_host_memory_does_not)
{
    struct world w;
    world_begin(&w, together());
    struct hl_id id = make_shard(&w, SIZE, 43);
    json_decref(copy_to(&w, id, "node-0", "L1", "read"));
    json_decref(copy_to(&w, id, "node-0", "L2", "read"));
    assert_int_equal(copies_known(&w, id, "node-0", "L1"), 1);
    /* a copy in a device does not count as another one: it may be gone the next moment */
    assert_int_equal(try_drop(&w, id, "", "L3"), HL_OK);
    assert_int_equal(try_drop(&w, id, "node-0", "L2"), HL_ECONFLICT);
    world_end_daemon(&w, NODE0, SIGKILL);
    world_start(&w, NODE0);
    wait_copies(&w, id, "node-0", "L1", 0);
    wait_copies(&w, id, "node-0", "L2", 1);
    world_end(&w);
}

TEST(devices_share_what_does_not_fit_into_one)
{
    struct world w;
    world_begin(&w, together());
    struct hl_id a = make_shard(&w, 10 * MIB, 44), b = make_shard(&w, 10 * MIB, 45),
                 c = make_shard(&w, 10 * MIB, 46);
    json_t *first = copy_to(&w, a, "node-0", "L1", "read");
    json_t *second = copy_to(&w, b, "node-0", "L1", "read");
    expect_text(first, "device", device_name(0));
    expect_text(second, "device", device_name(1));
    json_decref(first);
    json_decref(second);
    assert_int_equal(try_copy(&w, c, "node-0", "L1"), HL_ENOSPC);
    world_end(&w);
}
