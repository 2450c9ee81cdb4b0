/* Which nodes of a Kubernetes cluster are remembered, without an API server. */
#include "support/test.h"

#include "controller/kube/gangs_private.h"

#define LOST_MS 1000

struct rig {
    struct hl_controller c;
    struct gangs g;
    struct job j;
};

static void rig_init(struct rig *r)
{
    *r = (struct rig){.c = {.gangs = &r->g, .listening.listened_ns = 100 * HL_NS_PER_S},
                      .g = {.c = &r->c, .node_lost_ms = LOST_MS},
                      .j = {.controller = &r->c, .spec.node_lost_ms = LOST_MS}};
    r->g.pods.now = json_object();
}

static void rig_fini(struct rig *r)
{
    nodes_free(&r->g);
    json_decref(r->g.pods.now);
}

static void node_change(struct rig *r, enum hl_kube_event type, const char *name)
{
    json_t *node = json_pack("{s:{s:s}}", "metadata", "name", name);
    nodes_changed(&r->g, type, node);
    json_decref(node);
}

static json_t *pod_on(const char *node)
{
    return json_pack("{s:{s:s}}", "spec", "nodeName", node);
}

static bool is_lost(struct rig *r, const char *node)
{
    char why[256];
    json_t *pod = pod_on(node);
    bool lost = gang_node_lost(&r->j, pod, why, sizeof(why));
    json_decref(pod);
    return lost;
}

TEST(a_removed_node_is_forgotten_once_no_pod_is_there)
{
    struct rig r;
    rig_init(&r);
    json_object_set_new(r.g.pods.now, "ours", pod_on("a"));
    node_change(&r, HL_KUBE_ADDED, "a");
    node_change(&r, HL_KUBE_ADDED, "b");
    node_change(&r, HL_KUBE_ADDED, "c");
    node_change(&r, HL_KUBE_DELETED, "a");
    node_change(&r, HL_KUBE_DELETED, "b");
    nodes_prune(&r.g);
    r.c.listening.listened_ns += LOST_MS * HL_NS_PER_MS;
    assert_true(is_lost(&r, "b")); /* of a pod that is not seen yet */
    nodes_prune(&r.g);
    assert_true(is_lost(&r, "a"));
    assert_false(is_lost(&r, "b"));
    json_object_clear(r.g.pods.now);
    nodes_prune(&r.g);
    rig_fini(&r);
}

TEST(a_node_that_is_back_stays)
{
    struct rig r;
    rig_init(&r);
    node_change(&r, HL_KUBE_DELETED, "a");
    node_change(&r, HL_KUBE_ADDED, "a");
    r.c.listening.listened_ns += LOST_MS * HL_NS_PER_MS;
    nodes_prune(&r.g);
    assert_false(is_lost(&r, "a"));
    rig_fini(&r);
}
