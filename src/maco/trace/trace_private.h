/* maco/trace/trace_private.h - the internals of a trace, for trace.c, write.c and overlap.c.
 *
 *    records   |r0|r1|r2|...          by start; written once, by hl_maco_trace_new
 *                  ^
 *    ran[t] -------+                  the record of task t as compute or communication
 *
 *    tasks[t].first_parent --+
 *                            v
 *    parents   |..|p|p|p|..           up to tasks[t + 1].first_parent
 *
 * Threads: any. A run's threads write their own records (maco/cpu/record.c) and are done before a
 *          trace is made; from then on it is read-only.
 */
#ifndef HL_MACO_TRACE_TRACE_PRIVATE_H
#define HL_MACO_TRACE_TRACE_PRIVATE_H

#include "maco/trace/trace.h"

struct hl_maco_traced {
    uint32_t name; /* within names */
    uint16_t type;
    uint16_t group;
    uint32_t event; /* event that it depends on; MACO_NONE */
    uint32_t first_parent;
    uint64_t bytes; /* moved by a collective or copy */
};

struct maco_trace {
    struct hl_maco_record *records; /* by start */
    size_t n;
    struct hl_maco_traced *tasks; /* of the plan */
    uint32_t n_tasks;
    uint32_t *parents; /* of task t: tasks[t].first_parent .. tasks[t + 1].first_parent - 1 */
    uint32_t *ran;     /* record of each task; MACO_NONE */
    char *names;
};

#endif
