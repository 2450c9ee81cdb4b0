/* What the queue counts in a cluster. */
#include "support/test.h"

#include "controller/jobs/queue.h"

TEST(slots_of_nodes_that_take_nothing_new_are_not_free)
{
    struct hl_cluster_slot slots[4][2] = {{{.busy = true}}};
    struct hl_cluster_node nodes[4] = {
        {.ready = true}, {.ready = true}, {.ready = true, .draining = true}, {.ready = false}};
    int free_slots;
    for (int i = 0; i < 4; i++) {
        nodes[i].slots = slots[i];
        nodes[i].slot_count = 2;
    }
    (void)queue_cluster_mark(&(struct hl_cluster){.nodes = nodes, .count = 4}, &free_slots);
    assert_int_equal(free_slots, 3); /* one of the first, both of the second */
}
