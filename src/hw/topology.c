#include "hw/topology.h"

#include <errno.h>
#include <hwloc.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/text.h"

#define XML_BYTES_MAX (64u << 20)

static void copy_text(char *to, size_t cap, const char *from)
{
    snprintf(to, cap, "%s", from != NULL ? from : "");
}

static void copy_cpus(hwloc_const_cpuset_t from, struct hl_cpus *to)
{
    int cpu;
    hwloc_bitmap_foreach_begin(cpu, from)
    {
        if (cpu >= HL_TOPO_CPU_MAX)
            break;
        hl_cpus_add(to, cpu);
    }
    hwloc_bitmap_foreach_end();
}

/* ---- slots ----------------------------------------------------------------------------------- */

static hl_status add_slots(hwloc_topology_t t, struct hl_topo *topo)
{
    hwloc_obj_t node = NULL;
    struct hl_cpus taken = {0};
    while ((node = hwloc_get_next_obj_by_type(t, HWLOC_OBJ_NUMANODE, node)) != NULL) {
        struct hl_cpus cpus = {0};
        struct hl_topo_slot *slot = NULL;
        if (node->cpuset == NULL || hwloc_bitmap_iszero(node->cpuset) ||
            (node->subtype != NULL && strcmp(node->subtype, "GPUMemory") == 0))
            continue;
        copy_cpus(node->cpuset, &cpus);
        if (hl_cpus_overlap(&cpus, &taken)) /* slower or faster memory of an existing slot */
            continue;
        HL_TRY(hl_topo_add_slot(topo, (int)node->os_index, &slot));
        slot->cpus = cpus;
        slot->memory_bytes = node->attr->numanode.local_memory;
        for (size_t i = 0; i < HL_ARRAY_LEN(taken.bits); i++)
            taken.bits[i] |= cpus.bits[i];
    }
    if (topo->slot_count == 0)
        return hl_fail(HL_EINVAL, "no NUMA node with CPUs");
    return HL_OK;
}

static struct hl_topo_slot *nearest_slot(hwloc_topology_t t, hwloc_obj_t dev, struct hl_topo *topo)
{
    hwloc_obj_t near = hwloc_get_non_io_ancestor_obj(t, dev);
    for (size_t i = 0; near != NULL && near->nodeset != NULL && i < topo->slot_count; i++)
        if (hwloc_bitmap_isset(near->nodeset, (unsigned)topo->slots[i].numa_id))
            return &topo->slots[i];
    return &topo->slots[0];
}

/* ---- devices --------------------------------------------------------------------------------- */

/* What the operating system shows about a PCI function. */
struct os_view {
    bool compute;
    int name_rank; /* how informative the name is */
    char name[64];
    char board[64];
    uint64_t memory_bytes;
};

static int name_rank(const hwloc_obj_t os)
{
    if (os->attr->osdev.type == HWLOC_OBJ_OSDEV_OPENFABRICS)
        return 4;
    if (os->attr->osdev.type == HWLOC_OBJ_OSDEV_COPROC)
        return os->subtype != NULL && strcmp(os->subtype, "OpenCL") == 0 ? 1 : 3;
    return os->attr->osdev.type == HWLOC_OBJ_OSDEV_GPU && os->subtype != NULL ? 2 : 0;
}

/* OpenCL also runs on display cards, so it alone doesn't indicate a compute device. */
static bool is_compute(const hwloc_obj_t os)
{
    const char *kind = os->subtype;
    if (kind == NULL)
        return false;
    return strcmp(kind, "CUDA") == 0 || strcmp(kind, "NVML") == 0 || strcmp(kind, "RSMI") == 0 ||
           strcmp(kind, "LevelZero") == 0;
}

static void look_at_os(hwloc_obj_t pci, struct os_view *v)
{
    v->name_rank = -1;
    for (hwloc_obj_t os = pci->io_first_child; os != NULL; os = os->next_sibling) {
        if (os->type != HWLOC_OBJ_OS_DEVICE)
            continue;
        uint64_t size_kib;
        const char *guid = hwloc_obj_get_info_by_name(os, "SysImageGUID");
        const char *kib = hwloc_obj_get_info_by_name(os, "CUDAGlobalMemorySize");
        v->compute |= is_compute(os);
        if (name_rank(os) > v->name_rank) {
            v->name_rank = name_rank(os);
            copy_text(v->name, sizeof(v->name), os->name);
        }
        if (guid != NULL)
            copy_text(v->board, sizeof(v->board), guid);
        if (kib != NULL && hl_parse_number(kib, UINT64_MAX / 1024, &size_kib))
            v->memory_bytes = size_kib * 1024;
    }
}

static hl_status add_device(hwloc_topology_t t, hwloc_obj_t pci, struct hl_topo *topo)
{
    const struct hwloc_pcidev_attr_s *a = &pci->attr->pcidev;
    struct os_view view = {0};
    int virtual_function;
    look_at_os(pci, &view);
    enum hl_pci_kind kind = hl_pci_classify(a->class_id, a->vendor_id, a->device_id, view.compute);
    if (kind == HL_PCI_NONE)
        return HL_OK;
    struct hl_topo_device dev = {
        .vendor = a->vendor_id, .device = a->device_id, .memory_bytes = view.memory_bytes};
    snprintf(dev.pci, sizeof(dev.pci), "%04x:%02x:%02x.%01x", a->domain, a->bus, a->dev, a->func);
    copy_text(dev.name, sizeof(dev.name), view.name);
    if (kind == HL_PCI_NIC) {
        dev.nic_class = hl_nic_classify(a->vendor_id, a->device_id, &virtual_function);
        if (*view.board != '\0')
            copy_text(dev.board, sizeof(dev.board), view.board);
        else /* functions of one PCI address are one board */
            snprintf(dev.board, sizeof(dev.board), "%04x:%02x:%02x", a->domain, a->bus, a->dev);
    }
    return hl_topo_add_device(nearest_slot(t, pci, topo), kind, &dev);
}

static hl_status read_topology(hwloc_topology_t t, struct hl_topo *topo)
{
    hwloc_obj_t root = hwloc_get_root_obj(t), pci = NULL;
    const char *model = hwloc_obj_get_info_by_name(root, "PlatformModel");
    if (model == NULL)
        model = hwloc_obj_get_info_by_name(root, "DMIProductName");
    copy_text(topo->machine, sizeof(topo->machine), model);
    HL_TRY(add_slots(t, topo));
    while ((pci = hwloc_get_next_pcidev(t, pci)) != NULL)
        HL_TRY(add_device(t, pci, topo));
    return HL_OK;
}

/* ---- loading --------------------------------------------------------------------------------- */

static void destroy_hwloc(hwloc_topology_t *t)
{
    if (*t != NULL)
        hwloc_topology_destroy(*t);
}

static hl_status prepare_hwloc(hwloc_topology_t *t)
{
    if (hwloc_topology_init(t) != 0) {
        *t = NULL;
        return hl_fail(HL_ENOMEM, "hwloc can't start: %m");
    }
    hwloc_topology_set_io_types_filter(*t, HWLOC_TYPE_FILTER_KEEP_IMPORTANT);
    /* These two talk to display servers and their own drivers, and add nothing that we use. */
    hwloc_topology_set_components(*t, HWLOC_TOPOLOGY_COMPONENTS_FLAG_BLACKLIST, "opencl");
    hwloc_topology_set_components(*t, HWLOC_TOPOLOGY_COMPONENTS_FLAG_BLACKLIST, "gl");
    return HL_OK;
}

static hl_status finish_topology(hwloc_topology_t t, const char *name, struct hl_topo *out)
{
    struct hl_topo topo = {0};
    hl_status st = read_topology(t, &topo);
    if (st != HL_OK) {
        hl_topo_fini(&topo);
        return hl_fail_prefix(st, "%s: ", name);
    }
    *out = topo;
    return HL_OK;
}

static hl_status read_file(const char *path, struct hl_buf *text)
{
    FILE *f = fopen(path, "re");
    hl_status st = HL_OK;
    if (f == NULL)
        return hl_fail(errno == ENOENT ? HL_ENOENT : HL_EIO, "%s can't be read: %m", path);
    for (size_t n = 1; st == HL_OK && n > 0;) {
        char *room = hl_buf_room(text, 65536);
        if (room == NULL) {
            st = hl_fail(HL_EINVAL, "%s is larger than %u MiB", path, XML_BYTES_MAX >> 20);
            break;
        }
        n = fread(room, 1, 65536, f);
        text->len += n;
        text->data[text->len] = '\0';
    }
    if (st == HL_OK && ferror(f))
        st = hl_fail(HL_EIO, "%s can't be read: %m", path);
    fclose(f);
    return st;
}

/* hwloc 3 writes version="3.0". hwloc 2 refuses that with a message on stderr, so we check
 * first. */
static hl_status check_version(const char *path, const char *text)
{
    const char *top = strstr(text, "<topology");
    const char *end = top != NULL ? strchr(top, '>') : NULL;
    const char *version = top != NULL ? strstr(top, "version=\"") : NULL;
    if (end == NULL)
        return hl_fail(HL_EINVAL, "%s is not an hwloc XML file; make one with lstopo FILE.xml",
                       path);
    if (version != NULL && version < end && version[9] >= '3' && version[9] <= '9')
        return hl_fail(HL_EUNSUPPORTED,
                       "%s is hwloc XML of version %.1s; export it with lstopo of hwloc 2, or "
                       "with lstopo --export-xml-flags v2",
                       path, version + 9);
    return HL_OK;
}

hl_status hl_topology_load_xml(const char *path, struct hl_topo *out)
{
    HL_AUTO(destroy_hwloc) hwloc_topology_t t = NULL;
    HL_AUTO(hl_buf_fini) struct hl_buf text = HL_BUF(XML_BYTES_MAX);
    HL_TRY(read_file(path, &text));
    HL_TRY(check_version(path, text.data));
    HL_TRY(prepare_hwloc(&t));
    if (hwloc_topology_set_xmlbuffer(t, text.data, (int)text.len + 1) != 0 ||
        hwloc_topology_load(t) != 0)
        return hl_fail(HL_EINVAL, "%s can't be parsed as hwloc XML of version 1 or 2", path);
    return finish_topology(t, path, out);
}

/* CPUs outside the caller's affinity belong to others. */
static void keep_allowed(struct hl_topo *topo)
{
    cpu_set_t *mine = CPU_ALLOC(HL_TOPO_CPU_MAX);
    size_t size = CPU_ALLOC_SIZE(HL_TOPO_CPU_MAX);
    if (mine != NULL && sched_getaffinity(0, size, mine) == 0)
        for (size_t s = 0; s < topo->slot_count; s++) {
            struct hl_cpus kept = {0};
            for (int cpu = 0; cpu < HL_TOPO_CPU_MAX; cpu++)
                if (hl_cpus_has(&topo->slots[s].cpus, cpu) && CPU_ISSET_S((size_t)cpu, size, mine))
                    hl_cpus_add(&kept, cpu);
            topo->slots[s].cpus = kept;
        }
    CPU_FREE(mine);
    size_t kept = 0;
    for (size_t s = 0; s < topo->slot_count; s++) {
        if (hl_cpus_count(&topo->slots[s].cpus) > 0) {
            topo->slots[kept++] = topo->slots[s];
            continue;
        }
        free(topo->slots[s].gpus);
        free(topo->slots[s].nics);
    }
    topo->slot_count = kept;
}

hl_status hl_topology_load_machine(struct hl_topo *out)
{
    HL_AUTO(destroy_hwloc) hwloc_topology_t t = NULL;
    struct hl_topo topo = {0};
    HL_TRY(prepare_hwloc(&t));
    if (hwloc_topology_load(t) != 0)
        return hl_fail(HL_EIO, "hwloc can't read this machine: %m");
    HL_TRY(finish_topology(t, "this machine", &topo));
    keep_allowed(&topo);
    if (topo.slot_count == 0) {
        hl_topo_fini(&topo);
        return hl_fail(HL_EINVAL, "this machine has no CPU that this process may use");
    }
    *out = topo;
    return HL_OK;
}
