/* What the tests of the state machine of jobs share. */
#ifndef HL_TESTS_UNIT_CORE_JOBSTATE_RIG_H
#define HL_TESTS_UNIT_CORE_JOBSTATE_RIG_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <cmocka.h>

#include "core/job/jobstate.h"

/* A plan of n containers, container i on node-i. */
static struct hl_plan *plan_of(int n)
{
    json_t *list = json_array();
    struct hl_plan *plan = NULL;
    for (int i = 0; i < n; i++) {
        char node[32];
        snprintf(node, sizeof(node), "node-%d", i);
        json_array_append_new(list, json_pack("{s:i, s:s, s:i, s:s}", "index", i, "node", node,
                                              "numaId", 8, "cpus", "0"));
    }
    json_t *doc = json_pack("{s:o, s:b, s:s, s:s}", "containers", list, "feasible", 1, "masterNode",
                            "node-0", "masterAddress", "10.0.0.1");
    assert_int_equal(hl_plan_from_json(doc, &plan), HL_OK);
    json_decref(doc);
    return plan;
}

#endif
