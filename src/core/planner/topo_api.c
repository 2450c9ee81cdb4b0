/* Converts a topology to List(Slot) of helios.capnp and back. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/planner/topo.h"

static const char *kind_name(enum hl_pci_kind kind)
{
    return kind == HL_PCI_GPU ? "gpu" : "nic";
}

static struct hl_api_device_list devices_to_api(enum hl_pci_kind kind,
                                                const struct hl_topo_device *from, size_t count,
                                                int numa_id, struct hl_arena *arena)
{
    struct hl_api_device_list list = {.items = hl_arena_array(arena, count, sizeof(*list.items)),
                                      .count = count};
    for (size_t i = 0; list.items != NULL && i < count; i++)
        list.items[i] = (struct hl_api_device){
            .kind = kind_name(kind),
            .nic_class = kind == HL_PCI_NIC ? hl_nic_class_name(from[i].nic_class) : "",
            .id = hl_arena_strdup(arena, from[i].pci),
            .name = hl_arena_strdup(arena, from[i].name),
            .memory_bytes = from[i].memory_bytes,
            .numa_id = numa_id};
    return list;
}

hl_status hl_topo_to_api(const struct hl_topo *topo, struct hl_arena *arena,
                         struct hl_api_slot_list *out)
{
    struct hl_api_slot_list list = {
        .items = hl_arena_array(arena, topo->slot_count, sizeof(*list.items)),
        .count = topo->slot_count};
    for (size_t i = 0; list.items != NULL && i < list.count; i++) {
        const struct hl_topo_slot *s = &topo->slots[i];
        HL_AUTO(hl_freep) char *cpus = hl_cpus_format(&s->cpus);
        if (cpus == NULL)
            return hl_fail(HL_ENOMEM, "out of memory listing the slots");
        list.items[i] = (struct hl_api_slot){
            .numa_id = s->numa_id,
            .cpus = hl_arena_strdup(arena, cpus),
            .memory_bytes = s->memory_bytes,
            .gpus = devices_to_api(HL_PCI_GPU, s->gpus, s->gpu_count, s->numa_id, arena),
            .nics = devices_to_api(HL_PCI_NIC, s->nics, s->nic_count, s->numa_id, arena)};
    }
    if (hl_arena_failed(arena))
        return hl_fail(HL_ENOMEM, "out of memory listing the slots");
    *out = list;
    return HL_OK;
}

static hl_status add_devices(struct hl_api_device_list list, enum hl_pci_kind kind,
                             struct hl_topo_slot *slot)
{
    for (size_t i = 0; i < list.count; i++) {
        struct hl_topo_device dev = {.memory_bytes = list.items[i].memory_bytes,
                                     .nic_class = hl_nic_class_named(list.items[i].nic_class)};
        snprintf(dev.pci, sizeof(dev.pci), "%s", list.items[i].id);
        snprintf(dev.name, sizeof(dev.name), "%s", list.items[i].name);
        HL_TRY(hl_topo_add_device(slot, kind, &dev));
    }
    return HL_OK;
}

static hl_status add_slot(const struct hl_api_slot *from, struct hl_topo *topo)
{
    struct hl_topo_slot *slot = NULL;
    if (from->numa_id < 0 || from->numa_id > 1 << 20)
        return hl_fail(HL_EINVAL, "%d is not the NUMA node of a slot", from->numa_id);
    HL_TRY(hl_topo_add_slot(topo, from->numa_id, &slot));
    HL_TRY(hl_cpus_parse(from->cpus, &slot->cpus));
    slot->memory_bytes = from->memory_bytes;
    HL_TRY(add_devices(from->gpus, HL_PCI_GPU, slot));
    return add_devices(from->nics, HL_PCI_NIC, slot);
}

hl_status hl_topo_from_api(const struct hl_api_slot_list *slots, struct hl_topo *out)
{
    struct hl_topo topo = {0};
    hl_status st = HL_OK;
    for (size_t i = 0; st == HL_OK && i < slots->count; i++)
        st = add_slot(&slots->items[i], &topo);
    if (st != HL_OK) {
        hl_topo_fini(&topo);
        return st;
    }
    for (size_t a = 0; a < topo.slot_count; a++)
        for (size_t b = 0; b < topo.slot_count; b++)
            if (a != b && hl_cpus_overlap(&topo.slots[a].cpus, &topo.slots[b].cpus))
                topo.slots[a].cpus_shared = true;
    *out = topo;
    return HL_OK;
}
