/* core/planner/topo.h - what a node offers: slots (NUMA nodes that have CPUs) with their memory,
 * GPUs and NICs.
 *
 * Owns:    everything in struct hl_topo; end with hl_topo_fini.
 * Threads: one at a time. Pure: src/hw/topology.h fills it from hwloc.
 * Errors:  HL_EINVAL with the text that is wrong.
 * Units:   bytes. numa_id is the system's number (0 and 8 on Power9), never an index.
 * Limits:  4096 CPUs per node, 1024 slots.
 */
#ifndef HL_CORE_PLANNER_TOPO_H
#define HL_CORE_PLANNER_TOPO_H

#include <stdbool.h>
#include <stdint.h>

#include "api/types.h"
#include "base/status.h"

#define HL_TOPO_CPU_MAX   4096
#define HL_TOPO_SLOTS_MAX 1024

/* A set of CPU numbers. */
struct hl_cpus {
    uint64_t bits[HL_TOPO_CPU_MAX / 64];
};

void hl_cpus_add(struct hl_cpus *set, int cpu);
bool hl_cpus_has(const struct hl_cpus *set, int cpu);
int hl_cpus_count(const struct hl_cpus *set);
bool hl_cpus_overlap(const struct hl_cpus *a, const struct hl_cpus *b);
/* "0-3,8". HL_EINVAL. "" is the empty set. */
hl_status hl_cpus_parse(const char *text, struct hl_cpus *out) HL_CHECK;
/* Caller frees; NULL when out of memory. */
char *hl_cpus_format(const struct hl_cpus *set);

/* Generations of ConnectX boards, which decide the plank path. */
enum hl_nic_class {
    HL_NIC_OTHER, /* not Mellanox/NVIDIA, or not known: try direct, fall back */
    HL_NIC_CX3,   /* and older: plank */
    HL_NIC_CX4,   /* plank */
    HL_NIC_CX5,   /* 5 and newer: direct */
    HL_NIC_CX6,
    HL_NIC_CX7,
    HL_NIC_CX8,
    HL_NIC_BLUEFIELD,
};

const char *hl_nic_class_name(enum hl_nic_class c);
/* The class with that name; HL_NIC_OTHER for any other text and NULL. */
enum hl_nic_class hl_nic_class_named(const char *name);
/* Classifies by PCI vendor and device; *virtual_function is set for SR-IOV functions, which don't
 * count as NICs. */
enum hl_nic_class hl_nic_classify(unsigned vendor, unsigned device, int *virtual_function);
/* True when device memory must pass through host memory (ConnectX-4 and older). */
bool hl_nic_plank_forced(enum hl_nic_class c);

enum hl_pci_kind { HL_PCI_NONE, HL_PCI_GPU, HL_PCI_NIC };
/* How a PCI function is used. has_compute: the system reports a compute device (cuda, nvml, ...) on
 * it. A board-management VGA and a display-only card are HL_PCI_NONE. */
enum hl_pci_kind hl_pci_classify(unsigned pci_class, unsigned vendor, unsigned device,
                                 bool has_compute);

struct hl_topo_device {
    char pci[24];   /* "0004:04:00.0" */
    char name[64];  /* "cuda0", "mlx5_0", "" when the system names none */
    char board[64]; /* NIC: functions of one board share it; bandwidth counts once per board */
    unsigned vendor, device;
    enum hl_nic_class nic_class;
    uint64_t memory_bytes; /* GPU; 0 = unknown */
};

struct hl_topo_slot {
    int numa_id;
    struct hl_cpus cpus;
    uint64_t memory_bytes;
    bool cpus_shared; /* its CPUs were also assigned to another slot */
    struct hl_topo_device *gpus;
    size_t gpu_count;
    struct hl_topo_device *nics;
    size_t nic_count;
};

struct hl_topo {
    char machine[64];           /* "PowerNV 8335-GTW", "" when unknown */
    struct hl_topo_slot *slots; /* by numa_id */
    size_t slot_count;
};

void hl_topo_fini(struct hl_topo *topo);
/* Adds an empty slot, in order of numa_id; the pointer is valid until the next add. */
hl_status hl_topo_add_slot(struct hl_topo *topo, int numa_id, struct hl_topo_slot **out) HL_CHECK;
hl_status hl_topo_add_device(struct hl_topo_slot *slot, enum hl_pci_kind kind,
                             const struct hl_topo_device *dev) HL_CHECK;
/* Number of NIC boards (not functions) on the node. */
size_t hl_topo_nic_boards(const struct hl_topo *topo);
/* The NIC class that decides on the path into device memory on NUMA node `numa`: the oldest NIC
 * there, because traffic may take any of them. If there is none there, or numa is -1: the oldest of
 * the machine. The slots of a share are renumbered, so ask the machine it was cut from. */
enum hl_nic_class hl_topo_nic_beside(const struct hl_topo *machine, int numa);

/* Share `index` of `nodes` equal shares of a machine, as `slots` slots (0 = as many as it has, at
 * least one per share). Slots are numbered 0..slots-1. Neighbouring CPUs stay together. If there
 * are fewer CPUs than slots, CPUs are assigned round-robin and shared, and the slots say so. Memory
 * is divided; a GPU or NIC goes to one slot. */
hl_status hl_topo_share(const struct hl_topo *machine, int nodes, int index, int slots,
                        struct hl_topo *out) HL_CHECK;

/* Writes the machine's NUMA nodes whose CPUs belong to the offered slots, ascending, at most `max`;
 * returns how many. If the offer is the machine itself, these are its slots' nodes. */
size_t hl_topo_numa_of(const struct hl_topo *machine, const struct hl_topo *offer, int *out,
                       size_t max);

/* Parses "I/N" or "I/NxM", the value of the option agent.share; *slots is 0 without M.
 * HL_EINVAL. */
hl_status hl_topo_share_parse(const char *text, int *index, int *nodes, int *slots) HL_CHECK;

hl_status hl_topo_to_api(const struct hl_topo *topo, struct hl_arena *arena,
                         struct hl_api_slot_list *out) HL_CHECK;
/* HL_EINVAL for a slot without a NUMA node, and for a CPU list that can't be parsed. */
hl_status hl_topo_from_api(const struct hl_api_slot_list *slots, struct hl_topo *out) HL_CHECK;

#endif
