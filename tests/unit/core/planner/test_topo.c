#include "support/test.h"

#include <stdlib.h>
#include <string.h>

#include "core/planner/topo.h"

TEST(lists_of_cpus_are_read_and_written)
{
    static const char *const good[][2] = {
        {"0-3,8", "0-3,8"}, {"", ""},         {"5", "5"},           {"3,2,1", "1-3"},
        {"0,0-1", "0-1"},   {"4095", "4095"}, {"88-175", "88-175"}, {"0-63,64", "0-64"}};
    static const char *const bad[] = {"x",   "1-",   "-1",           "3-1",   "1,,2", "1,",
                                      "1 2", "4096", "0-9999999999", "1-2-3", ",1",   "0x1"};
    for (size_t i = 0; i < HL_ARRAY_LEN(good); i++) {
        struct hl_cpus set;
        assert_int_equal(hl_cpus_parse(good[i][0], &set), HL_OK);
        char *text = hl_cpus_format(&set);
        assert_string_equal(text, good[i][1]);
        free(text);
    }
    for (size_t i = 0; i < HL_ARRAY_LEN(bad); i++) {
        struct hl_cpus set;
        if (hl_cpus_parse(bad[i], &set) != HL_EINVAL)
            fail_msg("'%s' was taken", bad[i]);
    }
    struct hl_cpus a, b;
    assert_int_equal(hl_cpus_parse("0-3", &a), HL_OK);
    assert_int_equal(hl_cpus_parse("3-5", &b), HL_OK);
    assert_int_equal(hl_cpus_count(&b), 3);
    assert_true(hl_cpus_overlap(&a, &b));
    assert_int_equal(hl_cpus_parse("4,5", &b), HL_OK);
    assert_false(hl_cpus_overlap(&a, &b));
}

TEST(nics_are_told_by_their_device_id)
{
    int vf = 0;
    assert_int_equal(hl_nic_classify(0x15b3, 0x1013, &vf), HL_NIC_CX4);
    assert_false(vf);
    assert_int_equal(hl_nic_classify(0x15b3, 0x1019, &vf), HL_NIC_CX5); /* the AC922's */
    assert_int_equal(hl_nic_classify(0x15b3, 0x101b, &vf), HL_NIC_CX6);
    assert_int_equal(hl_nic_classify(0x15b3, 0x1018, &vf), HL_NIC_CX5);
    assert_true(vf);
    assert_int_equal(hl_nic_classify(0x15b3, 0x9999, &vf), HL_NIC_OTHER);
    assert_int_equal(hl_nic_classify(0x8086, 0x1013, &vf), HL_NIC_OTHER);
    assert_true(hl_nic_plank_forced(HL_NIC_CX4));
    assert_true(hl_nic_plank_forced(HL_NIC_CX3));
    assert_false(hl_nic_plank_forced(HL_NIC_CX5));
    assert_false(hl_nic_plank_forced(HL_NIC_OTHER));
    assert_string_equal(hl_nic_class_name(HL_NIC_CX5), "ConnectX-5");
    assert_string_equal(hl_nic_class_name(HL_NIC_BLUEFIELD), "BlueField");
    assert_int_equal(hl_nic_class_named("BlueField"), HL_NIC_BLUEFIELD);
    assert_int_equal(hl_nic_class_named("ConnectX-4"), HL_NIC_CX4);
    assert_int_equal(hl_nic_class_named(""), HL_NIC_OTHER);
}

/* An Agent uses the slots that it reports: a plank that depends on a ConnectX-4 must not be
 * lost. */
TEST(the_class_of_a_nic_survives_the_way_through_the_api)
{
    HL_AUTO(hl_arena_fini) struct hl_arena arena = {0};
    struct hl_topo m = {0}, t;
    struct hl_topo_slot *slot;
    struct hl_api_slot_list told;
    assert_int_equal(hl_topo_add_slot(&m, 0, &slot), HL_OK);
    assert_int_equal(hl_topo_add_device(
                         slot, HL_PCI_NIC,
                         &(struct hl_topo_device){.pci = "0000:04:00.0", .nic_class = HL_NIC_CX4}),
                     HL_OK);
    assert_int_equal(hl_topo_to_api(&m, &arena, &told), HL_OK);
    assert_int_equal(hl_topo_from_api(&told, &t), HL_OK);
    assert_int_equal(hl_topo_nic_beside(&t, -1), HL_NIC_CX4);
    hl_topo_fini(&t);
    hl_topo_fini(&m);
}

TEST(only_compute_devices_and_real_nics_count)
{
    assert_int_equal(hl_pci_classify(0x0302, 0x10de, 0x1db1, 0), HL_PCI_GPU);
    assert_int_equal(hl_pci_classify(0x0380, 0x1002, 0x66a1, 0), HL_PCI_GPU);
    assert_int_equal(hl_pci_classify(0x0300, 0x1002, 0x6798, 0), HL_PCI_NONE); /* display card */
    assert_int_equal(hl_pci_classify(0x0300, 0x1a03, 0x2000, 0), HL_PCI_NONE); /* BMC */
    assert_int_equal(hl_pci_classify(0x0300, 0x102b, 0x0532, 1), HL_PCI_NONE); /* BMC */
    assert_int_equal(hl_pci_classify(0x0680, 0x10de, 0x1ac2, 0), HL_PCI_NONE); /* NVSwitch */
    assert_int_equal(hl_pci_classify(0x0207, 0x15b3, 0x1019, 0), HL_PCI_NIC);
    assert_int_equal(hl_pci_classify(0x0207, 0x15b3, 0x101a, 0), HL_PCI_NONE); /* virtual */
    assert_int_equal(hl_pci_classify(0x0200, 0x8086, 0x1572, 0), HL_PCI_NONE);
}

static struct hl_topo machine(int slots, int cpus_each, int gpus_each)
{
    struct hl_topo t = {0};
    for (int s = slots - 1; s >= 0; s--) {
        struct hl_topo_slot *slot = NULL;
        assert_int_equal(hl_topo_add_slot(&t, s * 8, &slot), HL_OK);
        slot->memory_bytes = 64;
        for (int c = 0; c < cpus_each; c++)
            hl_cpus_add(&slot->cpus, s * cpus_each + c);
        for (int g = 0; g < gpus_each; g++) {
            struct hl_topo_device d = {.pci = "0000:00:00.0"};
            d.pci[6] = (char)('0' + s * gpus_each + g);
            assert_int_equal(hl_topo_add_device(slot, HL_PCI_GPU, &d), HL_OK);
        }
    }
    assert_int_equal(t.slots[0].numa_id, 0);
    return t;
}

static void cpus_are(const struct hl_topo *t, size_t slot, const char *want, int shared)
{
    char *text = hl_cpus_format(&t->slots[slot].cpus);
    assert_string_equal(text, want);
    free(text);
    assert_int_equal(t->slots[slot].cpus_shared, shared);
}

TEST(a_machine_is_cut_into_equal_shares)
{
    struct hl_topo m = machine(2, 4, 1), t;
    assert_int_equal(hl_topo_share(&m, 2, 1, 2, &t), HL_OK);
    assert_int_equal(t.slot_count, 2);
    cpus_are(&t, 0, "4-5", 0);
    cpus_are(&t, 1, "6-7", 0);
    assert_int_equal(t.slots[0].numa_id, 0);
    assert_int_equal(t.slots[1].numa_id, 1);
    assert_int_equal(t.slots[1].memory_bytes, 32);
    assert_int_equal(t.slots[0].gpu_count + t.slots[1].gpu_count, 0);
    hl_topo_fini(&t);
    assert_int_equal(hl_topo_share(&m, 2, 1, 0, &t),
                     HL_OK); /* one slot each, as the machine has two */
    assert_int_equal(t.slot_count, 1);
    cpus_are(&t, 0, "4-7", 0);
    assert_int_equal(t.slots[0].gpu_count, 1);
    assert_string_equal(t.slots[0].gpus[0].pci, "0000:01:00.0");
    hl_topo_fini(&t);
    assert_int_equal(hl_topo_share(&m, 8, 8, 1, &t), HL_EINVAL);
    assert_int_equal(hl_topo_share(&m, 0, 0, 1, &t), HL_EINVAL);
    hl_topo_fini(&m);
}

/* Device memory belongs to a node of the machine, not to a share's slots. */
TEST(the_nic_beside_a_device_is_that_of_the_machines_node)
{
    struct hl_topo m = {0}, t;
    struct hl_topo_slot *slot;

    static const enum hl_nic_class classes[] = {HL_NIC_CX6, HL_NIC_CX4, HL_NIC_CX5};

    static const int nodes[] = {0, 8, 8};
    for (int node = 0; node <= 8; node += 8) {
        assert_int_equal(hl_topo_add_slot(&m, node, &slot), HL_OK);
        hl_cpus_add(&slot->cpus, node);
        for (size_t i = 0; i < 3; i++)
            if (nodes[i] == node)
                assert_int_equal(
                    hl_topo_add_device(slot, HL_PCI_NIC,
                                       &(struct hl_topo_device){.nic_class = classes[i]}),
                    HL_OK);
    }
    assert_int_equal(hl_topo_nic_beside(&m, 0), HL_NIC_CX6);
    assert_int_equal(hl_topo_nic_beside(&m, 8), HL_NIC_CX4);
    assert_int_equal(hl_topo_nic_beside(&m, 1), HL_NIC_CX4); /* none there: the oldest of all */
    assert_int_equal(hl_topo_nic_beside(&m, -1), HL_NIC_CX4);
    assert_int_equal(hl_topo_share(&m, 2, 1, 1, &t), HL_OK);
    assert_int_equal(t.slots[0].numa_id, 0); /* but its NICs are those of node 8 */
    assert_int_equal(hl_topo_nic_beside(&t, 0), HL_NIC_CX5);
    hl_topo_fini(&t);
    hl_topo_fini(&m);
    m = (struct hl_topo){0};
    assert_int_equal(hl_topo_nic_beside(&m, 0), HL_NIC_OTHER);
}

/* A share's slots are numbered from 0; its memory is still that of the machine's nodes 0 and 8. */
TEST(the_memory_beside_a_share_is_that_of_its_cpus)
{
    struct hl_topo m = machine(2, 4, 1), t;
    int nodes[4];
    assert_int_equal(hl_topo_numa_of(&m, &m, nodes, 4), 2);
    assert_int_equal(nodes[0], 0);
    assert_int_equal(nodes[1], 8);
    assert_int_equal(hl_topo_numa_of(&m, &m, nodes, 1), 1);
    for (int index = 0; index < 2; index++) { /* two slots in one node each */
        assert_int_equal(hl_topo_share(&m, 2, index, 2, &t), HL_OK);
        assert_int_equal(hl_topo_numa_of(&m, &t, nodes, 4), 1);
        assert_int_equal(nodes[0], index * 8);
        hl_topo_fini(&t);
    }
    assert_int_equal(hl_topo_share(&m, 1, 0, 1, &t), HL_OK); /* one slot spanning both */
    assert_int_equal(hl_topo_numa_of(&m, &t, nodes, 4), 2);
    hl_topo_fini(&t);
    assert_int_equal(hl_topo_share(&m, 3, 1, 1, &t), HL_OK); /* one across the boundary */
    assert_int_equal(hl_topo_numa_of(&m, &t, nodes, 4), 2);
    hl_topo_fini(&t);
    hl_topo_fini(&m);
}

TEST(too_few_cpus_are_shared_and_the_slots_say_so)
{
    struct hl_topo m = machine(1, 2, 0), t;
    static const char *const want[2][2] = {{"0", "1"}, {"0", "1"}};
    for (int n = 0; n < 2; n++) {
        assert_int_equal(hl_topo_share(&m, 2, n, 2, &t), HL_OK);
        cpus_are(&t, 0, want[n][0], 1);
        cpus_are(&t, 1, want[n][1], 1);
        hl_topo_fini(&t);
    }
    hl_topo_fini(&m);
}

TEST(every_cpu_and_gpu_goes_to_exactly_one_share_when_there_are_enough)
{
    for (int nodes = 1; nodes <= 5; nodes++)
        for (int slots = 1; slots <= 3; slots++) {
            struct hl_topo m = machine(2, 8, 4);
            int cpus = 0, gpus = 0;
            struct hl_cpus seen = {0};
            for (int n = 0; n < nodes; n++) {
                struct hl_topo t;
                assert_int_equal(hl_topo_share(&m, nodes, n, slots, &t), HL_OK);
                for (size_t s = 0; s < t.slot_count; s++) {
                    assert_false(hl_cpus_overlap(&seen, &t.slots[s].cpus));
                    for (int c = 0; c < 16; c++)
                        if (hl_cpus_has(&t.slots[s].cpus, c))
                            hl_cpus_add(&seen, c);
                    assert_true(hl_cpus_count(&t.slots[s].cpus) >= 1);
                    cpus += hl_cpus_count(&t.slots[s].cpus);
                    gpus += (int)t.slots[s].gpu_count;
                }
                hl_topo_fini(&t);
            }
            assert_int_equal(cpus, 16);
            assert_int_equal(gpus, 8);
            hl_topo_fini(&m);
        }
}

TEST(a_share_is_written_i_of_n)
{
    int i, n, m;
    assert_int_equal(hl_topo_share_parse("1/3", &i, &n, &m), HL_OK);
    assert_int_equal(i * 100 + n * 10 + m, 130);
    assert_int_equal(hl_topo_share_parse("0/2x4", &i, &n, &m), HL_OK);
    assert_int_equal(i * 100 + n * 10 + m, 24);
    static const char *const bad[] = {"",      "1",    "3/3", "-1/2", "1/2x",
                                      "1/2x0", "1/2 ", "a/b", " 0/1"};
    for (size_t k = 0; k < HL_ARRAY_LEN(bad); k++)
        assert_int_equal(hl_topo_share_parse(bad[k], &i, &n, &m), HL_EINVAL);
}

TEST(slots_written_out_read_back_the_same)
{
    struct hl_topo m = machine(2, 4, 2), t;
    struct hl_topo_device nic = {.pci = "0003:01:00.0", .name = "mlx5_0"};
    struct hl_arena arena = {0};
    struct hl_api_node_info one = {0}, two = {0};
    assert_int_equal(hl_topo_add_device(&m.slots[1], HL_PCI_NIC, &nic), HL_OK);
    assert_int_equal(hl_topo_to_api(&m, &arena, &one.slots), HL_OK);
    assert_int_equal(hl_topo_from_api(&one.slots, &t), HL_OK);
    assert_int_equal(hl_topo_to_api(&t, &arena, &two.slots), HL_OK);
    json_t *first = hl_api_to_json(&hl_api_node_info_type, &one);
    json_t *again = hl_api_to_json(&hl_api_node_info_type, &two);
    assert_true(json_equal(first, again));
    assert_string_equal(one.slots.items[1].cpus, "4-7");
    one.slots.items[1].cpus = "zwei";
    struct hl_topo bad = {0};
    assert_int_equal(hl_topo_from_api(&one.slots, &bad), HL_EINVAL);
    assert_null(bad.slots);
    json_decref(first);
    json_decref(again);
    hl_arena_fini(&arena);
    hl_topo_fini(&m);
    hl_topo_fini(&t);
}
