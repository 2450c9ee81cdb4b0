/* whatif/access_trace.h - a trace of shard accesses, and its strict reader.
 *
 *     t_seconds,node,shard,size_bytes,op
 *     0.25,node-1,llama/layer-0003,16777216,read
 *
 * The first line is that header. Times never decrease, and a shard keeps its size. `write` creates
 * a shard, which is immutable from then on. Rows of the same time and node are one load of a rank.
 * `plan` and `unplan` are not accesses: from then on it is known that a gang's ranks on the node
 * will read the shard, or that they won't. Plans are stored separately from the rows.
 *
 * Owns:    struct hl_access_trace owns its rows and names; the reader borrows a trace.
 * Threads: one at a time.
 * Errors:  HL_EINVAL with line, column and what is allowed; HL_ENOSPC beyond a limit; HL_ENOMEM.
 * Units:   nanoseconds from the trace's own zero; bytes.
 * Limits:  HL_ACCESS_ROWS_MAX rows, and as many plans; HL_ACCESS_SHARDS_MAX shards,
 *          HL_ACCESS_NODES_MAX nodes; a line of HL_ACCESS_LINE_MAX bytes; a name of
 *          HL_ACCESS_NAME_MAX; HL_ACCESS_SECONDS_MAX seconds; a shard of HL_ACCESS_SIZE_MAX bytes.
 */
#ifndef HL_WHATIF_ACCESS_TRACE_H
#define HL_WHATIF_ACCESS_TRACE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/status.h"

#define HL_ACCESS_HEADER      "t_seconds,node,shard,size_bytes,op"
#define HL_ACCESS_ROWS_MAX    (UINT32_C(1) << 24)
#define HL_ACCESS_SHARDS_MAX  (UINT32_C(1) << 20)
#define HL_ACCESS_NODES_MAX   4096
#define HL_ACCESS_LINE_MAX    512
#define HL_ACCESS_NAME_MAX    128
#define HL_ACCESS_SECONDS_MAX 1000000000 /* 31 years */
#define HL_ACCESS_SIZE_MAX    (UINT64_C(1) << 44)

struct hl_access_row {
    int64_t at_ns;
    uint32_t shard;
    uint16_t node;
    bool is_write;
};

struct hl_access_plan {
    int64_t at_ns;
    uint32_t shard;
    uint16_t node;
    bool is_off; /* `unplan` */
};

/* Maps names to numbers from 0. */
struct hl_name_table {
    struct hl_buf text; /* each with its NUL */
    uint32_t *starts;   /* offset of each name in the text */
    uint32_t *slots;    /* number + 1 by hash; 0 = empty */
    uint32_t count, room, slot_bits;
};

/* Zero-initialise; end with hl_access_trace_fini. */
struct hl_access_trace {
    struct hl_access_row *rows;
    uint32_t count, room;
    struct hl_access_plan *plans;
    uint32_t plan_count, plan_room;
    uint64_t *sizes; /* by shard */
    bool *written;
    uint32_t size_room;
    struct hl_name_table shards, nodes;
};

struct hl_access_reader {
    struct hl_access_trace *trace;
    uint64_t line; /* the line being read, from 1 */
    size_t length;
    char text[HL_ACCESS_LINE_MAX + 1];
};

void hl_access_trace_fini(struct hl_access_trace *t);
const char *hl_access_shard_name(const struct hl_access_trace *t, uint32_t shard);
const char *hl_access_node_name(const struct hl_access_trace *t, uint32_t node);

/* A row to append, as a generator makes it. */
struct hl_trace_access {
    int64_t at_ns;
    const char *node, *shard;
    uint64_t size_bytes;
    bool is_write;
};

/* Appends a plan; is_write: the shard is no longer planned. It must not be earlier than existing
 * rows and plans. */
hl_status hl_access_trace_plan(struct hl_access_trace *t,
                               const struct hl_trace_access *access) HL_CHECK;
hl_status hl_access_trace_add(struct hl_access_trace *t,
                              const struct hl_trace_access *access) HL_CHECK;

/* Adds a row in any order; hl_access_trace_sort then makes a valid trace. HL_EINVAL: the shard had
 * another size. */
hl_status hl_access_trace_put(struct hl_access_trace *t,
                              const struct hl_trace_access *access) HL_CHECK;
/* Sorts rows by time, then by node. A write that is later than an access of its shard is moved to
 * the time of that access, before it; a repeated write is removed. */
void hl_access_trace_sort(struct hl_access_trace *t);

void hl_access_reader_init(struct hl_access_reader *r, struct hl_access_trace *trace);
/* Feeds the next bytes of the file, in pieces of any size. After an error the trace has the rows
 * before it. */
hl_status hl_access_reader_feed(struct hl_access_reader *r, const char *bytes,
                                size_t count) HL_CHECK;
/* Call it at the end of the file. HL_EINVAL: it has no row. */
hl_status hl_access_reader_end(struct hl_access_reader *r) HL_CHECK;
/* Prints the row as a line of such a file, with a newline, preceded by the plans that came after
 * the previous row. */
hl_status hl_access_row_print(const struct hl_access_trace *t, uint32_t row,
                              struct hl_buf *out) HL_CHECK;

#endif
