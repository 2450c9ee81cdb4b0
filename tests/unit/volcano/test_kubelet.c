/* What a NodeResourceTopology tells about a kubelet. */
#include "support/test.h"

#include <string.h>

#include "base/status.h"
#include "volcano/kubelet.h"

static const struct {
    const char *object;
    const char *one, *several; /* why a pod with so many containers may be spread; "" = it is not */
} cases[] = {
    {"{\"attributes\":[{\"name\":\"topologyManagerScope\",\"value\":\"pod\"},{\"name\":"
     "\"topologyManagerPolicy\",\"value\":\"single-numa-node\"}]}",
     "", ""},
    {"{\"attributes\":[{\"name\":\"topologyManagerScope\",\"value\":\"container\"},{\"name\":"
     "\"topologyManagerPolicy\",\"value\":\"restricted\"}]}",
     "", "topologyManagerScope: container, not pod"},
    {"{\"attributes\":[{\"name\":\"topologyManagerScope\",\"value\":\"pod\"},{\"name\":"
     "\"topologyManagerPolicy\",\"value\":\"none\"}]}",
     "topologyManagerPolicy: none", "topologyManagerPolicy: none"},
    /* As before 0.13; attributes take precedence. */
    {"{\"topologyPolicies\":[\"SingleNUMANodePodLevel\"]}", "", ""},
    {"{\"topologyPolicies\":[\"BestEffortContainerLevel\"]}", "",
     "topologyManagerScope: container"},
    {"{\"topologyPolicies\":[\"None\"]}", "topologyManagerPolicy: none",
     "topologyManagerPolicy: none"},
    {"{\"topologyPolicies\":[\"BestEffortContainerLevel\"],\"attributes\":[{\"name\":"
     "\"topologyManagerScope\",\"value\":\"pod\"}]}",
     "", ""},
    /* Nothing, or nonsense. */
    {"{}", "", ""},
    {"{\"topologyPolicies\":[7],\"attributes\":[null,{\"name\":3},{\"name\":"
     "\"topologyManagerScope\"}]}",
     "", ""},
    {"{\"topologyPolicies\":\"x\",\"attributes\":{\"name\":\"topologyManagerScope\"}}", "", ""},
};

static void expect(const char *why, const char *wanted, const char *object)
{
    if ((wanted[0] == '\0') != (why[0] == '\0') || strstr(why, wanted) == NULL)
        fail_msg("'%s', not '%s': %s", why, wanted, object);
}

TEST(a_kubelet_that_spreads_pods_is_known_by_policy_and_scope)
{
    for (size_t i = 0; i < HL_ARRAY_LEN(cases); i++) {
        json_t *object = json_loads(cases[i].object, 0, NULL);
        char why[256];
        assert_non_null(object);
        const struct hl_kubelet k = hl_kubelet_read(object);
        hl_kubelet_spreads(&k, false, why, sizeof(why));
        expect(why, cases[i].one, cases[i].object);
        hl_kubelet_spreads(&k, true, why, sizeof(why));
        expect(why, cases[i].several, cases[i].object);
        json_decref(object);
    }
}

TEST(a_node_that_nobody_tells_of_is_not_known)
{
    const struct hl_kubelet k = hl_kubelet_read(NULL);
    assert_string_equal(k.policy, "");
    assert_string_equal(k.scope, "");
}
