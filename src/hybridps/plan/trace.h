/* hybridps/plan/trace.h - the access trace of an iteration: what was needed where, moment by
 * moment.
 *
 * {"chunks":[{"id","kind","bytes","init":"cpu"|"none"}],
 *  "iteration":[{"stage","op","avail","need":[[id,"gpu"|"cpu","r"|"w"],...],"free":[id,...]}],
 *  "iterations":N, "capacity":N}
 * An id is a string or an integer and is printed as it was read. "kind", "stage", "op", "need",
 * "free" may be absent. The default of "init" is "cpu", of "iterations" 1, of "capacity" (of the
 * device) 0, unknown. Other members are ignored. An id that is needed twice in a moment is merged.
 *
 * Owns:    a trace owns all its texts and lists (hl_trace_fini). Zero-initialise.
 * Threads: one at a time.
 * Errors:  HL_EINVAL with the position: line and column if it is not JSON, else like
 *          "iteration[3].need[2]"; HL_ENOMEM. A failed call changes nothing.
 * Units:   bytes.
 * Limits:  HL_TRACE_CHUNKS_MAX chunks, HL_TRACE_MOMENTS_MAX moments, HL_TRACE_ITERATIONS_MAX
 *          iterations; 2^60 bytes in all chunks together.
 */
#ifndef HL_HYBRIDPS_PLAN_TRACE_H
#define HL_HYBRIDPS_PLAN_TRACE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"

#define HL_TRACE_CHUNKS_MAX     (1u << 20)
#define HL_TRACE_MOMENTS_MAX    (1u << 22)
#define HL_TRACE_ITERATIONS_MAX 1000000
#define HL_TRACE_BYTES_MAX      (UINT64_C(1) << 60)

struct hl_trace_chunk {
    char *id;
    bool id_is_number;
    char *kind;
    uint64_t bytes;
    bool has_content; /* on the host, before the first iteration */
};

struct hl_trace_use {
    uint32_t chunk;
    uint8_t on_host;
    uint8_t write;
};

struct hl_trace_moment {
    char *stage, *op;
    uint64_t avail; /* device bytes for chunks */
    struct hl_trace_use *need;
    size_t need_count, need_cap;
    uint32_t *free; /* content is discarded at the end of the moment */
    size_t free_count, free_cap;
};

struct hl_trace {
    struct hl_trace_chunk *chunks;
    size_t chunk_count, chunk_cap;
    struct hl_trace_moment *moments;
    size_t moment_count, moment_cap;
    uint64_t iterations;
    uint64_t capacity; /* of the device; 0 = not known */
};

hl_status hl_trace_parse(const char *text, size_t len, struct hl_trace *out) HL_CHECK;
/* malloc'ed text, the same on every call. */
hl_status hl_trace_print(const struct hl_trace *t, char **out) HL_CHECK;
void hl_trace_fini(struct hl_trace *t);

/* Strings are copied; NULL means "". */
hl_status hl_trace_add_chunk(struct hl_trace *t, const char *id, bool id_is_number,
                             const char *kind, uint64_t bytes, bool has_content) HL_CHECK;
hl_status hl_trace_add_moment(struct hl_trace *t, const char *stage, const char *op,
                              uint64_t avail) HL_CHECK;
/* Add to the last moment; a need is merged with an existing one of that chunk. HL_EINVAL: the chunk
 * is needed in both places and written in one, there is no such chunk, or no moment yet. */
hl_status hl_trace_add_need(struct hl_trace *t, uint32_t chunk, bool on_host, bool write) HL_CHECK;
hl_status hl_trace_add_free(struct hl_trace *t, uint32_t chunk) HL_CHECK;

/* "moment 12 (FWD layer3)" into buf. */
const char *hl_trace_moment_name(const struct hl_trace *t, size_t moment, char *buf, size_t cap);

#endif
