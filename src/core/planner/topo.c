#include "core/planner/topo.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"

/* ---- sets of CPUs --------------------------------------------------------------------------- */

#define WORDS (HL_TOPO_CPU_MAX / 64)

void hl_cpus_add(struct hl_cpus *set, int cpu)
{
    if (cpu >= 0 && cpu < HL_TOPO_CPU_MAX)
        set->bits[cpu / 64] |= 1ull << (cpu % 64);
}

bool hl_cpus_has(const struct hl_cpus *set, int cpu)
{
    return cpu >= 0 && cpu < HL_TOPO_CPU_MAX && (set->bits[cpu / 64] >> (cpu % 64) & 1) != 0;
}

int hl_cpus_count(const struct hl_cpus *set)
{
    int n = 0;
    for (size_t i = 0; i < WORDS; i++)
        n += __builtin_popcountll(set->bits[i]);
    return n;
}

bool hl_cpus_overlap(const struct hl_cpus *a, const struct hl_cpus *b)
{
    for (size_t i = 0; i < WORDS; i++)
        if (a->bits[i] & b->bits[i])
            return true;
    return false;
}

/* Reads digits at *p, at most HL_TOPO_CPU_MAX - 1; -1 if there are none. */
static int cpu_number(const char **p)
{
    int n = -1;
    for (; **p >= '0' && **p <= '9' && n < HL_TOPO_CPU_MAX; ++*p)
        n = (n < 0 ? 0 : n) * 10 + (**p - '0');
    return n < HL_TOPO_CPU_MAX ? n : -1;
}

hl_status hl_cpus_parse(const char *text, struct hl_cpus *out)
{
    struct hl_cpus set = {0};
    const char *p = text;
    while (*p != '\0') {
        int first = cpu_number(&p), last = first;
        if (*p == '-') {
            p++;
            last = cpu_number(&p);
        }
        if (first < 0 || last < first || (*p != '\0' && *p != ',') || (*p == ',' && p[1] == '\0'))
            return hl_fail(HL_EINVAL, "'%.64s' is not a list of CPUs such as 0-3,8", text);
        for (int cpu = first; cpu <= last; cpu++)
            hl_cpus_add(&set, cpu);
        p += *p == ',';
    }
    *out = set;
    return HL_OK;
}

char *hl_cpus_format(const struct hl_cpus *set)
{
    struct hl_buf text = HL_BUF(HL_TOPO_CPU_MAX * 6);
    (void)hl_buf_append(&text, "", 0);
    for (int cpu = 0; cpu < HL_TOPO_CPU_MAX; cpu++) {
        int last = cpu;
        if (!hl_cpus_has(set, cpu))
            continue;
        while (hl_cpus_has(set, last + 1))
            last++;
        (void)hl_buf_printf(&text, last > cpu ? "%s%d-%d" : "%s%d", text.len > 0 ? "," : "", cpu,
                            last);
        cpu = last;
    }
    if (text.data == NULL)
        return strdup("");
    return hl_buf_take(&text);
}

/* ---- what a PCI function is ----------------------------------------------------------------- */

#define PCI_NVIDIA   0x10de
#define PCI_AMD      0x1002
#define PCI_INTEL    0x8086
#define PCI_MELLANOX 0x15b3

struct nic_row {
    unsigned device;
    enum hl_nic_class nic_class;
    bool virtual_function;
};

/* clang-format off */
static const struct nic_row nic_table[] = {
    {0x1003, HL_NIC_CX3, 0}, {0x1004, HL_NIC_CX3, 1}, {0x1007, HL_NIC_CX3, 0},
    {0x1011, HL_NIC_CX3, 0}, {0x1012, HL_NIC_CX3, 1}, /* Connect-IB is as old */
    {0x1013, HL_NIC_CX4, 0}, {0x1014, HL_NIC_CX4, 1},
    {0x1015, HL_NIC_CX4, 0}, {0x1016, HL_NIC_CX4, 1},
    {0x1017, HL_NIC_CX5, 0}, {0x1018, HL_NIC_CX5, 1},
    {0x1019, HL_NIC_CX5, 0}, {0x101a, HL_NIC_CX5, 1},
    {0x101b, HL_NIC_CX6, 0}, {0x101c, HL_NIC_CX6, 1},
    {0x101d, HL_NIC_CX6, 0}, {0x101e, HL_NIC_CX6, 1},
    {0x101f, HL_NIC_CX6, 0},
    {0x1021, HL_NIC_CX7, 0}, {0x1023, HL_NIC_CX8, 0},
    {0xa2d2, HL_NIC_BLUEFIELD, 0}, {0xa2d6, HL_NIC_BLUEFIELD, 0}, {0xa2dc, HL_NIC_BLUEFIELD, 0},
};

/* clang-format on */

const char *hl_nic_class_name(enum hl_nic_class c)
{
    static const char *const names[] = {"other",      "ConnectX-3", "ConnectX-4", "ConnectX-5",
                                        "ConnectX-6", "ConnectX-7", "ConnectX-8", "BlueField"};
    return names[c];
}

enum hl_nic_class hl_nic_class_named(const char *name)
{
    for (int k = 0; name != NULL && k <= HL_NIC_BLUEFIELD; k++)
        if (strcmp(name, hl_nic_class_name((enum hl_nic_class)k)) == 0)
            return (enum hl_nic_class)k;
    return HL_NIC_OTHER;
}

enum hl_nic_class hl_nic_classify(unsigned vendor, unsigned device, int *virtual_function)
{
    *virtual_function = 0;
    for (size_t i = 0; vendor == PCI_MELLANOX && i < HL_ARRAY_LEN(nic_table); i++)
        if (nic_table[i].device == device) {
            *virtual_function = nic_table[i].virtual_function;
            return nic_table[i].nic_class;
        }
    return HL_NIC_OTHER;
}

bool hl_nic_plank_forced(enum hl_nic_class c)
{
    return c == HL_NIC_CX3 || c == HL_NIC_CX4;
}

/* Display classes include compute GPUs, plain display cards and the BMC's VGA. A data-centre GPU is
 * a "3D controller" (0302) or an NVIDIA card. An AMD or Intel card is only counted if the system
 * reports that it can compute. AMD's Instinct boards report 0380 ("other display"). */
enum hl_pci_kind hl_pci_classify(unsigned pci_class, unsigned vendor, unsigned device,
                                 bool has_compute)
{
    int virtual_function = 0;
    (void)hl_nic_classify(vendor, device, &virtual_function);
    if (vendor == PCI_MELLANOX && (pci_class >> 8) == 0x02)
        return virtual_function ? HL_PCI_NONE : HL_PCI_NIC;
    if ((pci_class >> 8) != 0x03)
        return HL_PCI_NONE;
    if (vendor == PCI_NVIDIA)
        return HL_PCI_GPU;
    if (vendor == PCI_AMD && (pci_class == 0x0302 || pci_class == 0x0380 || has_compute))
        return HL_PCI_GPU;
    if (vendor == PCI_INTEL && (pci_class == 0x0302 || pci_class == 0x0380))
        return HL_PCI_GPU;
    return HL_PCI_NONE;
}

/* ---- the model ------------------------------------------------------------------------------ */

void hl_topo_fini(struct hl_topo *topo)
{
    for (size_t i = 0; i < topo->slot_count; i++) {
        free(topo->slots[i].gpus);
        free(topo->slots[i].nics);
    }
    free(topo->slots);
    *topo = (struct hl_topo){0};
}

hl_status hl_topo_add_slot(struct hl_topo *topo, int numa_id, struct hl_topo_slot **out)
{
    size_t at = 0;
    while (at < topo->slot_count && topo->slots[at].numa_id < numa_id)
        at++;
    if (at < topo->slot_count && topo->slots[at].numa_id == numa_id)
        return hl_fail(HL_EINVAL, "NUMA node %d appears twice", numa_id);
    if (topo->slot_count >= HL_TOPO_SLOTS_MAX)
        return hl_fail(HL_EINVAL, "more than %d slots", HL_TOPO_SLOTS_MAX);
    struct hl_topo_slot *slots =
        realloc(topo->slots, (topo->slot_count + 1) * sizeof(*topo->slots));
    if (slots == NULL)
        return hl_fail(HL_ENOMEM, "out of memory allocating %zu slots", topo->slot_count + 1);
    topo->slots = slots;
    memmove(&slots[at + 1], &slots[at], (topo->slot_count - at) * sizeof(*slots));
    slots[at] = (struct hl_topo_slot){.numa_id = numa_id};
    topo->slot_count++;
    *out = &slots[at];
    return HL_OK;
}

hl_status hl_topo_add_device(struct hl_topo_slot *slot, enum hl_pci_kind kind,
                             const struct hl_topo_device *dev)
{
    struct hl_topo_device **list = kind == HL_PCI_GPU ? &slot->gpus : &slot->nics;
    size_t *count = kind == HL_PCI_GPU ? &slot->gpu_count : &slot->nic_count;
    struct hl_topo_device *more = realloc(*list, (*count + 1) * sizeof(**list));
    if (more == NULL)
        return hl_fail(HL_ENOMEM, "out of memory allocating devices");
    *list = more;
    more[(*count)++] = *dev;
    return HL_OK;
}

static bool board_seen_before(const struct hl_topo *topo, size_t slot, size_t nic)
{
    const char *board = topo->slots[slot].nics[nic].board;
    for (size_t s = 0; s <= slot; s++)
        for (size_t n = 0; n < (s == slot ? nic : topo->slots[s].nic_count); n++)
            if (*board != '\0' && strcmp(topo->slots[s].nics[n].board, board) == 0)
                return true;
    return false;
}

size_t hl_topo_nic_boards(const struct hl_topo *topo)
{
    size_t boards = 0;
    for (size_t s = 0; s < topo->slot_count; s++)
        for (size_t n = 0; n < topo->slots[s].nic_count; n++)
            boards += !board_seen_before(topo, s, n);
    return boards;
}

static enum hl_nic_class oldest_nic(const struct hl_topo *machine, int numa)
{
    enum hl_nic_class found = HL_NIC_OTHER;
    for (size_t i = 0; i < machine->slot_count; i++) {
        const struct hl_topo_slot *slot = &machine->slots[i];
        for (size_t k = 0; k < slot->nic_count; k++) {
            enum hl_nic_class c = slot->nics[k].nic_class;
            if ((numa < 0 || slot->numa_id == numa) && c != HL_NIC_OTHER &&
                (found == HL_NIC_OTHER || c < found))
                found = c;
        }
    }
    return found;
}

enum hl_nic_class hl_topo_nic_beside(const struct hl_topo *machine, int numa)
{
    enum hl_nic_class near = numa >= 0 ? oldest_nic(machine, numa) : HL_NIC_OTHER;
    return near != HL_NIC_OTHER ? near : oldest_nic(machine, -1);
}

/* ---- shares of one machine ------------------------------------------------------------------ */

/* Which of `shares` gets item `i` of `n`: neighbours stay together if there are enough items;
 * otherwise each share gets one. */
static size_t share_of(size_t i, size_t n, size_t shares)
{
    return n >= shares ? i * shares / n : i;
}

static void deal_cpus(const struct hl_topo *machine, size_t share, size_t shares,
                      struct hl_topo_slot *slot)
{
    size_t n = 0, i = 0;
    for (size_t s = 0; s < machine->slot_count; s++)
        n += (size_t)hl_cpus_count(&machine->slots[s].cpus);
    for (size_t s = 0; s < machine->slot_count; s++)
        for (int cpu = 0; cpu < HL_TOPO_CPU_MAX; cpu++) {
            if (!hl_cpus_has(&machine->slots[s].cpus, cpu))
                continue;
            if (n >= shares ? share_of(i, n, shares) == share : share % n == i)
                hl_cpus_add(&slot->cpus, cpu);
            i++;
        }
    slot->cpus_shared = n < shares;
}

static hl_status deal_devices(const struct hl_topo *machine, enum hl_pci_kind kind, size_t share,
                              size_t shares, struct hl_topo_slot *slot)
{
    size_t n = 0, i = 0;
    for (size_t s = 0; s < machine->slot_count; s++)
        n += kind == HL_PCI_GPU ? machine->slots[s].gpu_count : machine->slots[s].nic_count;
    for (size_t s = 0; s < machine->slot_count; s++) {
        const struct hl_topo_slot *from = &machine->slots[s];
        size_t count = kind == HL_PCI_GPU ? from->gpu_count : from->nic_count;
        for (size_t d = 0; d < count; d++, i++)
            if (share_of(i, n, shares) == share)
                HL_TRY(hl_topo_add_device(slot, kind,
                                          kind == HL_PCI_GPU ? &from->gpus[d] : &from->nics[d]));
    }
    return HL_OK;
}

hl_status hl_topo_share(const struct hl_topo *machine, int nodes, int index, int slots,
                        struct hl_topo *out)
{
    uint64_t memory = 0;
    if (nodes < 1 || index < 0 || index >= nodes || slots < 0)
        return hl_fail(HL_EINVAL, "share %d of %d with %d slots does not exist", index, nodes,
                       slots);
    if (slots == 0)
        slots = (int)(machine->slot_count / (size_t)nodes);
    if (slots == 0)
        slots = 1;
    if (slots > HL_TOPO_SLOTS_MAX || nodes > 65536 || machine->slot_count == 0)
        return hl_fail(HL_EINVAL, "%d nodes of %d slots can't be cut from %zu slots", nodes, slots,
                       machine->slot_count);
    for (size_t s = 0; s < machine->slot_count; s++)
        memory += machine->slots[s].memory_bytes;
    struct hl_topo topo = {0};
    memcpy(topo.machine, machine->machine, sizeof(topo.machine));
    size_t shares = (size_t)nodes * (size_t)slots;
    hl_status st = HL_OK;
    for (int i = 0; st == HL_OK && i < slots; i++) {
        struct hl_topo_slot *slot = NULL;
        size_t share = (size_t)index * (size_t)slots + (size_t)i;
        st = hl_topo_add_slot(&topo, i, &slot);
        if (st != HL_OK)
            break;
        slot->memory_bytes = memory / shares;
        deal_cpus(machine, share, shares, slot);
        st = deal_devices(machine, HL_PCI_GPU, share, shares, slot);
        if (st == HL_OK)
            st = deal_devices(machine, HL_PCI_NIC, share, shares, slot);
    }
    if (st != HL_OK) {
        hl_topo_fini(&topo);
        return st;
    }
    *out = topo;
    return HL_OK;
}

static bool has_cpu_of(const struct hl_topo *offer, const struct hl_cpus *cpus)
{
    for (size_t i = 0; i < offer->slot_count; i++)
        for (int cpu = 0; cpu < HL_TOPO_CPU_MAX; cpu++)
            if (hl_cpus_has(cpus, cpu) && hl_cpus_has(&offer->slots[i].cpus, cpu))
                return true;
    return false;
}

size_t hl_topo_numa_of(const struct hl_topo *machine, const struct hl_topo *offer, int *out,
                       size_t max)
{
    size_t n = 0;
    for (size_t s = 0; s < machine->slot_count && n < max; s++)
        if (has_cpu_of(offer, &machine->slots[s].cpus))
            out[n++] = machine->slots[s].numa_id;
    return n;
}

hl_status hl_topo_share_parse(const char *text, int *index, int *nodes, int *slots)
{
    int i = -1, n = 0, m = 0, used = 0;
    int got = sscanf(text, "%5d/%5d%nx%4d%n", &i, &n, &used, &m, &used);
    if ((got != 2 && got != 3) || text[used] != '\0' || i < 0 || n < 1 || i >= n ||
        (got == 3 && m < 1) || text[0] < '0' || text[0] > '9')
        return hl_fail(HL_EINVAL, "'%.64s' is not a share I/N or I/NxM with I from 0 to N-1", text);
    *index = i;
    *nodes = n;
    *slots = m;
    return HL_OK;
}
