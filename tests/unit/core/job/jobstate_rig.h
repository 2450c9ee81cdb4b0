/* Shared by the tests of the state machine of jobs. */
#ifndef HL_TESTS_UNIT_CORE_JOBSTATE_RIG_H
#define HL_TESTS_UNIT_CORE_JOBSTATE_RIG_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <cmocka.h>

#include "core/job/jobstate.h"

/* A plan with n containers, container i with rank i on node-i, followed by parked ones. */
static struct hl_plan *plan_with_spares(int n, int spares)
{
    json_t *list = json_array();
    struct hl_plan *plan = NULL;
    for (int i = 0; i < n + spares; i++) {
        char node[32], address[32];
        snprintf(node, sizeof(node), "node-%d", i);
        snprintf(address, sizeof(address), "10.0.1.%d", i);
        json_t *ranks = i < n ? json_pack("[{s:i}]", "rank", i) : json_array();
        json_array_append_new(list, json_pack("{s:i, s:s, s:i, s:s, s:o, s:s}", "index", i, "node",
                                              node, "numaId", 8, "cpus", "0", "ranks", ranks,
                                              "address", i < n ? "" : address));
    }
    json_t *doc =
        json_pack("{s:o, s:b, s:s, s:s, s:i, s:i}", "containers", list, "feasible", 1, "masterNode",
                  "node-0", "masterAddress", "10.0.0.1", "worldSize", n, "ranksPerContainer", 1);
    assert_int_equal(hl_plan_from_json(doc, &plan), HL_OK);
    json_decref(doc);
    return plan;
}

static inline struct hl_plan *plan_of(int n)
{
    return plan_with_spares(n, 0);
}

#endif
