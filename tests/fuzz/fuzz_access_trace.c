/* A trace of accesses of any bytes. What is accepted reads back to the same, and is carried out
 * under every policy with each read found in one tier. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "whatif/whatif.h"

#define ROWS_MAX 300 /* of those that are carried out */

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static hl_status read_bytes(const char *bytes, size_t size, size_t piece, struct hl_access_trace *t)
{
    struct hl_access_reader reader;
    hl_access_reader_init(&reader, t);
    for (size_t at = 0; at < size; at += piece) {
        size_t count = size - at < piece ? size - at : piece;
        HL_TRY(hl_access_reader_feed(&reader, bytes + at, count));
    }
    return hl_access_reader_end(&reader);
}

static void print_trace(const struct hl_access_trace *t, struct hl_buf *out)
{
    if (hl_buf_printf(out, "%s\n", HL_ACCESS_HEADER) != HL_OK)
        abort();
    for (uint32_t i = 0; i < t->count; i++)
        if (hl_access_row_print(t, i, out) != HL_OK)
            abort();
}

static void carry_out(const struct hl_access_trace *t)
{
    struct hl_whatif_world w = {.l1_bytes = 100,
                                .l2_bytes = 1000,
                                .l3_bytes = UINT64_C(1) << 44,
                                .rates = {1e9, 1e9, 1e9, 1e9},
                                .pass_ms = 1000};
    hl_placement_params_init(&w.params);
    for (int p = 0; p < HL_WHATIF_POLICIES; p++) {
        struct hl_whatif_result r;
        uint64_t found = 0;
        w.keep_pct = t->count % 3 * 50;
        w.keep_l1_pct = t->count % 5 * 25;
        w.moves = t->count % 2 == 0;
        if (hl_whatif_run(t, &w, (enum hl_whatif_policy)p, &r) != HL_OK)
            abort();
        for (int i = 0; i < HL_FOUND_KINDS; i++)
            found += r.hits[i];
        if (r.reads + r.writes != t->count || !(r.wait_s >= 0) ||
            (p != HL_WHATIF_OPTIMAL && found != r.reads))
            abort();
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct hl_access_trace t = {0}, again = {0};
    struct hl_buf one = HL_BUF(SIZE_MAX / 2), two = HL_BUF(SIZE_MAX / 2);
    if (read_bytes((const char *)data, size, 7, &t) == HL_OK) {
        print_trace(&t, &one);
        if (read_bytes(one.data, one.len, one.len, &again) != HL_OK)
            abort();
        print_trace(&again, &two);
        if (one.len != two.len || memcmp(one.data, two.data, one.len) != 0)
            abort();
        if (t.count <= ROWS_MAX)
            carry_out(&t);
    }
    hl_buf_fini(&one);
    hl_buf_fini(&two);
    hl_access_trace_fini(&again);
    hl_access_trace_fini(&t);
    return 0;
}
