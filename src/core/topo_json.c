/* Topology as List(Slot) of helios.capnp and back. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/json.h"
#include "core/topo.h"

static json_t *device_to_json(const char *kind, const struct hl_topo_device *d, int numa_id)
{
    return json_pack("{s:s, s:s, s:s, s:I, s:i}", "kind", kind, "id", d->pci, "name", d->name,
                     "memoryBytes", (json_int_t)d->memory_bytes, "numaId", numa_id);
}

static json_t *devices_to_json(const char *kind, const struct hl_topo_device *list, size_t count,
                               int numa_id)
{
    json_t *out = json_array();
    for (size_t i = 0; i < count; i++)
        json_array_append_new(out, device_to_json(kind, &list[i], numa_id));
    return out;
}

json_t *hl_topo_to_json(const struct hl_topo *topo)
{
    json_t *list = json_array();
    for (size_t i = 0; list != NULL && i < topo->slot_count; i++) {
        const struct hl_topo_slot *s = &topo->slots[i];
        char *cpus = hl_cpus_format(&s->cpus);
        json_t *slot =
            json_pack("{s:i, s:s, s:I, s:o, s:o}", "numaId", s->numa_id, "cpus",
                      cpus != NULL ? cpus : "", "memoryBytes", (json_int_t)s->memory_bytes, "gpus",
                      devices_to_json("gpu", s->gpus, s->gpu_count, s->numa_id), "nics",
                      devices_to_json("nic", s->nics, s->nic_count, s->numa_id));
        free(cpus);
        if (cpus == NULL || json_array_append_new(list, slot) != 0) {
            json_decref(list);
            return NULL;
        }
    }
    return list;
}

static hl_status read_devices(const json_t *list, enum hl_pci_kind kind, struct hl_topo_slot *slot)
{
    size_t i;
    const json_t *d;
    json_array_foreach (list, i, d) {
        struct hl_topo_device dev = {0};
        snprintf(dev.pci, sizeof(dev.pci), "%s", hl_json_str(d, "id", ""));
        snprintf(dev.name, sizeof(dev.name), "%s", hl_json_str(d, "name", ""));
        dev.memory_bytes = (uint64_t)hl_json_int(d, "memoryBytes", 0);
        HL_TRY(hl_topo_add_device(slot, kind, &dev));
    }
    return HL_OK;
}

static hl_status read_slot(const json_t *v, struct hl_topo *topo)
{
    struct hl_topo_slot *slot = NULL;
    int64_t numa_id = hl_json_int(v, "numaId", -1);
    if (numa_id < 0 || numa_id > 1 << 20)
        return hl_fail(HL_EINVAL, "a slot without numaId");
    HL_TRY(hl_topo_add_slot(topo, (int)numa_id, &slot));
    HL_TRY(hl_cpus_parse(hl_json_str(v, "cpus", ""), &slot->cpus));
    slot->memory_bytes = (uint64_t)hl_json_int(v, "memoryBytes", 0);
    HL_TRY(read_devices(hl_json_list(v, "gpus"), HL_PCI_GPU, slot));
    return read_devices(hl_json_list(v, "nics"), HL_PCI_NIC, slot);
}

hl_status hl_topo_from_json(const json_t *slots, struct hl_topo *out)
{
    struct hl_topo topo = {0};
    size_t i;
    const json_t *v;
    hl_status st = HL_OK;
    json_array_foreach (slots, i, v) {
        st = read_slot(v, &topo);
        if (st != HL_OK)
            break;
    }
    if (st != HL_OK) {
        hl_topo_fini(&topo);
        return st;
    }
    for (size_t a = 0; a < topo.slot_count; a++)
        for (size_t b = 0; b < topo.slot_count; b++)
            if (a != b && hl_cpus_overlap(&topo.slots[a].cpus, &topo.slots[b].cpus))
                topo.slots[a].cpus_shared = 1;
    *out = topo;
    return HL_OK;
}
