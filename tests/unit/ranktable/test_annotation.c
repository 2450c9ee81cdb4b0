/* The usual form of an annotation has a parser of its own, with the same result as the general
 * one. */
#include "support/test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ranktable/pod.h"

#define KEY "ascend.kubectl.kubernetes.io/ascend-910-configuration"

static struct hl_ranktable_pod *read_pod(const char *annotation)
{
    struct hl_ranktable_pod *out = NULL;
    json_t *pod =
        json_pack("{s:{s:s s:{s:s}}}", "metadata", "name", "p", "annotations", KEY, annotation);
    assert_int_equal(hl_ranktable_pod_read(pod, &out), HL_OK);
    json_decref(pod);
    return out;
}

/* The result, and the same with an unusual member added. */
static void expect(const char *text, hl_status st)
{
    char other[16384];
    snprintf(other, sizeof(other), "{\"unusual\":[{}],%s", text + 1);
    struct hl_ranktable_pod *one = read_pod(text), *two = read_pod(other);
    if (one->st != st || !hl_ranktable_pod_equal(one, two))
        fail_msg("%s: %d %s; %d %s", text, (int)one->st, one->reason, (int)two->st, two->reason);
    hl_ranktable_pod_free(one);
    hl_ranktable_pod_free(two);
}

TEST(the_usual_form_and_others_say_the_same)
{
    static const char *const good[] = {
        "{\"pod_name\":\"3\",\"server_id\":\"10.1.0.3\",\"devices\":[{\"device_id\":\"0\","
        "\"device_ip\":\"10.2.0.3\"},{\"device_id\":\"1\",\"device_ip\":\"fd00::1\"}]}",
        "{ \"devices\" : [ { \"device_ip\" : \"\" , \"device_id\" : \"7\" } ] ,\n\t\"server_id\" : "
        "\"a\" } ",
        "{\"server_id\":\"s\",\"host_ip\":\"10.0.0.1\",\"hardware_type\":\"850\","
        "\"super_pod_id\":\"2\",\"devices\":[{\"super_device_id\":\"9\",\"device_id\":\"0\"}]}",
        "{\"server_id\":\"s\",\"devices\":[{\"device_id\":3}],\"pod_name\":\"a \\u00e9\"}",
        "{\"server_id\":\"s\",\"devices\":[{\"device_id\":\"0\",\"levelList\":[1]}],\"x\":null}",
    };
    static const char *const bad[] = {
        "{\"server_id\":\"s \",\"devices\":[{\"device_id\":\"0\"}]}",
        "{\"server_id\":\"s\",\"server_id\":\"s\",\"devices\":[{\"device_id\":\"0\"}]}",
        "{\"server_id\":\"s\",\"devices\":[{\"device_id\":\"0\",\"device_id\":\"1\"}]}",
        "{\"server_id\":\"s\",\"devices\":[{\"device_id\":\"0\"}],\"devices\":[]}",
        "{\"server_id\":\"s\",\"devices\":[{\"device_id\":\"0\"},{\"device_id\":\"0\"}]}",
        "{\"server_id\":\"s\",\"devices\":[{\"device_id\":\"0\"},]}",
        "{\"server_id\":\"s\",\"devices\":[{\"device_id\":\"0\"}]",
        "{\"server_id\":\"s\",\"devices\":[{\"device_id\":\"0\"}]}}",
        "{\"server_id\":\"s\",\"devices\":[{\"device_id\":\"x\"}]}",
        "{\"server_id\":\"s\",\"devices\":[{\"device_id\":\"123456789012\"}]}",
        "{\"server_id\":\"\",\"devices\":[{\"device_id\":\"0\"}]}",
        "{\"server_id\":\"s\",\"devices\":[]}",
        "{\"server_id\":\"s\"}",
    };
    for (size_t i = 0; i < HL_ARRAY_LEN(good); i++)
        expect(good[i], HL_OK);
    for (size_t i = 0; i < HL_ARRAY_LEN(bad); i++)
        expect(bad[i], HL_EINVAL);
}

TEST(as_many_devices_as_there_may_be)
{
    for (int count = HL_RANKTABLE_DEVICES_MAX; count <= HL_RANKTABLE_DEVICES_MAX + 1; count++) {
        char text[8192];
        int n = snprintf(text, sizeof(text), "{\"server_id\":\"s\",\"devices\":[");
        for (int i = 0; i < count; i++)
            n += snprintf(text + n, sizeof(text) - (size_t)n, "%s{\"device_id\":\"%d\"}",
                          i > 0 ? "," : "", i);
        snprintf(text + n, sizeof(text) - (size_t)n, "]}");
        expect(text, count <= HL_RANKTABLE_DEVICES_MAX ? HL_OK : HL_EINVAL);
    }
}

TEST(texts_are_what_was_written)
{
    struct hl_ranktable_pod *p =
        read_pod("{\"server_id\":\"10.1.0.3\",\"host_ip\":\"10.9.9.9\",\"devices\":[{\"device_id\":"
                 "\"0\",\"device_ip\":\"10.2.0.3\"},{\"device_id\":\"15\"}]}");
    assert_int_equal(p->st, HL_OK);
    assert_string_equal(p->instance.server_id, "10.1.0.3");
    assert_string_equal(p->instance.host_ip, "10.9.9.9");
    assert_int_equal(p->instance.device_count, 2);
    assert_string_equal(p->instance.devices[0].ip, "10.2.0.3");
    assert_string_equal(p->instance.devices[1].id, "15");
    assert_string_equal(p->instance.devices[1].ip, "");
    hl_ranktable_pod_free(p);
}
