/* core/planner/view.h - the cluster as one job sees it: how many free slots that fit the job each
 * server has. Servers are taken out of the view as a gang is placed.
 *
 * Owns:    the bitmaps; the index is borrowed.
 * Threads: one at a time. Pure.
 * Errors:  HL_ENOMEM.
 * Units:   positions of core/planner/index.h.
 * Limits:  HL_TOPO_SLOTS_MAX slots of a server.
 */
#ifndef HL_CORE_PLANNER_VIEW_H
#define HL_CORE_PLANNER_VIEW_H

#include "core/planner/index.h"

/* What a slot must have for one container, and when. */
struct hl_slot_needs {
    int gpus, cpus;                          /* 0 = any */
    uint64_t memory_bytes, gpu_memory_bytes; /* 0 = any */
    int nic;                                 /* at least this class; HL_NIC_OTHER = any */
    int64_t begin_ms, end_ms;
};

/* The servers of the class are reserved for something else at that time. */
static inline bool hl_class_is_reserved(const struct hl_place_class *c,
                                        const struct hl_slot_needs *needs)
{
    return c->state == HL_SERVER_READY &&
           hl_window_meets(c->reserved, needs->begin_ms, needs->end_ms);
}

/* What is wrong with a slot; HL_SLOT_FITS if nothing is. */
enum hl_slot_fault {
    HL_SLOT_FITS,
    HL_SLOT_TOO_SMALL, /* GPUs, CPUs or memory */
    HL_SLOT_GPU_MEMORY,
    HL_SLOT_NIC,
    HL_SLOT_FAULTS,
};

enum hl_slot_fault hl_slot_fault(const struct hl_slot_needs *needs, const struct hl_slot_group *g);

/* Which servers count, and which of their slots. */
enum hl_view_of {
    HL_VIEW_FREE, /* free slots of ready servers that are not reserved */
    HL_VIEW_IDLE, /* all slots of all servers: everything that could ever be free */
};

struct hl_place_range {
    uint32_t lo, hi; /* positions */
};

struct hl_place_view {
    const struct hl_place_index *index;
    int most;       /* the most slots of any one server */
    uint64_t *bits; /* most + 1 bitmaps of index->words */
    long slots;     /* in total */
};

/* Requires a fresh index. */
hl_status hl_place_view_init(struct hl_place_view *v, const struct hl_place_index *x,
                             const struct hl_slot_needs *needs, enum hl_view_of of) HL_CHECK;
hl_status hl_place_view_copy(struct hl_place_view *v, const struct hl_place_view *from) HL_CHECK;
void hl_place_view_fini(struct hl_place_view *v);

struct hl_place_range hl_place_view_all(const struct hl_place_view *v);
/* Number of servers in the range that have exactly k slots. */
long hl_place_view_count(const struct hl_place_view *v, int k, struct hl_place_range in);
/* The first server in the range with exactly k slots; UINT32_MAX = none. */
uint32_t hl_place_view_first(const struct hl_place_view *v, int k, struct hl_place_range in);
/* Number of slots in the range. */
long hl_place_view_slots(const struct hl_place_view *v, struct hl_place_range in);
/* The server now has `left` slots instead of k. */
void hl_place_view_move(struct hl_place_view *v, uint32_t pos, int k, int left);

#endif
