/* Valid tables have no faults; for each broken one every message is known. */
#include "support/test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "ranktable/lint.h"

/* The examples of HCCL's chapters, shortened: two servers of two devices. */
static const char a2[] =
    "{\"status\":\"completed\",\"version\":\"1.0\",\"server_count\":\"2\",\"server_list\":["
    "{\"server_id\":\"node_0\",\"device\":["
    "{\"device_id\":\"0\",\"device_ip\":\"192.168.1.8\",\"device_port\":\"16667\",\"rank_id\":"
    "\"0\"},"
    "{\"device_id\":\"1\",\"device_ip\":\"192.168.1.9\",\"device_port\":\"16667\",\"rank_id\":"
    "\"1\"}]},"
    "{\"server_id\":\"node_1\",\"device\":["
    "{\"device_id\":\"0\",\"device_ip\":\"192.168.2.8\",\"device_port\":\"16667\",\"rank_id\":"
    "\"2\"},"
    "{\"device_id\":\"1\",\"device_ip\":\"fd00::9\",\"device_port\":\"16667\",\"rank_id\":\"3\"}]}]"
    "}";

/* Two super pods, of two servers and of one. */
static const char a3[] =
    "{\"status\":\"completed\",\"version\":\"1.2\",\"server_count\":\"3\",\"server_list\":["
    "{\"server_id\":\"node_0\",\"host_ip\":\"172.16.0.100\",\"device\":["
    "{\"device_id\":\"0\",\"super_device_id\":\"0\",\"device_ip\":\"192.168.1.6\","
    "\"backup_device_ip\":\"192.168.1.7\",\"backup_device_port\":\"16667\",\"host_port\":\"16665\","
    "\"rank_id\":\"0\"},"
    "{\"device_id\":\"1\",\"super_device_id\":\"1\",\"device_ip\":\"192.168.1.7\","
    "\"host_port\":\"16666\",\"rank_id\":\"1\"}]},"
    "{\"server_id\":\"node_1\",\"device\":["
    "{\"device_id\":\"0\",\"super_device_id\":\"2\",\"device_ip\":\"192.168.2.6\",\"rank_id\":"
    "\"2\"}]},"
    "{\"server_id\":\"node_2\",\"device\":["
    "{\"device_id\":\"0\",\"super_device_id\":\"0\",\"device_ip\":\"192.168.3.6\",\"rank_id\":"
    "\"3\"}]}],"
    "\"super_pod_list\":[{\"super_pod_id\":\"0\",\"server_list\":[{\"server_id\":\"node_0\"},"
    "{\"server_id\":\"node_1\"}]},"
    "{\"super_pod_id\":\"1\",\"server_list\":[{\"server_id\":\"node_2\"}]}]}";

static const char a5[] =
    "{\"status\":\"completed\",\"version\":\"2.0\",\"rank_count\":2,\"rank_list\":["
    "{\"rank_id\":0,\"local_id\":0,\"device_id\":0,\"device_port\":16666,\"level_list\":["
    "{\"net_layer\":0,\"net_instance_id\":\"rack0\",\"net_type\":\"TOPO_FILE_DESC\",\"net_attr\":"
    "\"\","
    "\"rank_addr_list\":[{\"addr_type\":\"EID\",\"addr\":\"000000000000000000100000dfdf0020\","
    "\"ports\":[\"0/4\"],\"plane_id\":\"plane0\"},{\"addr_type\":\"IPV4\",\"addr\":\"172.16.0.10\","
    "\"ports\":[\"0/5\",\"0/6\"]}]},"
    "{\"net_layer\":3,\"net_instance_id\":\"cluster\",\"net_type\":\"CLOS\",\"rank_addr_list\":["
    "{\"addr_type\":\"IPv6\",\"addr\":\"fd00::1\",\"ports\":[\"d2h\"]}]}]},"
    "{\"rank_id\":1,\"local_id\":1,\"device_id\":1,\"level_list\":["
    "{\"net_layer\":0,\"net_instance_id\":\"rack0\",\"net_type\":\"TOPO_FILE_DESC\","
    "\"rank_addr_list\":[{\"addr_type\":\"EID\",\"addr\":\"000000000000000000100000dfdf0021\","
    "\"ports\":[\"0/4\"]}]}]}]}";

static const struct {
    enum hl_ranktable_chip chip;
    const char *table, *old, *now; /* the first `old` in it, and its replacement */
    const char *said;
} broken[] = {
    /* of any format */
    {HL_RANKTABLE_A2, a2, "\"node_0\"", "\"node_0\" // AI Server",
     "it is not JSON: '}' expected near '/', in line 1, column 95; JSON has no comments, take them "
     "out\n"},
    {HL_RANKTABLE_A2, a2, "\"rank_id\":\"0\"", "\"rank_id\":\"0\",\"rank_id\":\"0\"",
     "it is not JSON: duplicate object key near '\"rank_id\"', in line 1, column 192\n"},
    {HL_RANKTABLE_A2, "[]", "", "", "it is not a JSON object\n"},
    {HL_RANKTABLE_A2, a2, "\"completed\"", "\"initializing\"",
     "status is \"initializing\": the table is not made yet, and ranks wait\n"},
    {HL_RANKTABLE_A2, a2, "\"completed\"", "\"complete\"",
     "status is 'complete', neither \"completed\" nor \"initializing\"\n"},
    {HL_RANKTABLE_A2, a2, "\"status\":\"completed\",", "", "status is missing\n"},
    {HL_RANKTABLE_A2, a2, "\"server_list\"", "\"group_list\"",
     "group_list is the first format (v1), which only Ascend 910 reads\n"},
    {HL_RANKTABLE_A2, a2, "\"1.0\"", "1.0", "version is not a text: put it in quotes\n"},
    {HL_RANKTABLE_A2, a3, "", "", "version is '1.2'; this chip reads 1.0\n"},
    {HL_RANKTABLE_A3, a5, "", "",
     "version is '2.0'; this chip reads 1.2 (1.0 for servers outside of super pods)\n"},
    {HL_RANKTABLE_A5, a2, "", "", "version is '1.0'; this chip reads 2.0\n"},
    /* servers */
    {HL_RANKTABLE_A2, a2, "\"server_count\":\"2\",", "", "server_count is missing\n"},
    {HL_RANKTABLE_A2, a2, "\"server_count\":\"2\"", "\"server_count\":\"3\"",
     "server_count is 3, and server_list has 2\n"},
    {HL_RANKTABLE_A2, a2, "\"server_count\":\"2\"", "\"server_count\":2",
     "server_count is not a text: put it in quotes\n"},
    {HL_RANKTABLE_A2, "{\"status\":\"completed\",\"version\":\"1.0\",\"server_list\":[]}", "", "",
     "server_list is empty\n"},
    {HL_RANKTABLE_A2, a2, "node_1", "node_0",
     "server_list[1]: server_id node_0 is also that of server_list[0]\n"},
    {HL_RANKTABLE_A2, a2, "\"node_1\"", "\"\"", "server_list[1]: server_id is empty\n"},
    {HL_RANKTABLE_A2, a2, "node_1",
     "a-name-of-a-server-that-has-more-bytes-than-the-sixty-four-that-are-read",
     "server_list[1]: server_id has 72 bytes, more than 64\n"},
    {HL_RANKTABLE_A3, a3, "172.16.0.100", "fd00::1",
     "server_list[0]: host_ip 'fd00::1' is not an IPv4 address\n"},
    /* devices */
    {HL_RANKTABLE_A2, a2, "\"device_id\":\"1\"", "\"device_id\":\"0\"",
     "server_list[0].device[1]: device_id 0 is also that of server_list[0].device[0]\n"},
    {HL_RANKTABLE_A2, a2, "\"device_id\":\"1\"", "\"device_id\":\"16\"",
     "server_list[0].device[1]: device_id is 16, not between 0 and 15\n"},
    {HL_RANKTABLE_A2, a2, "\"device_id\":\"0\"", "\"device_id\":\"npu0\"",
     "server_list[0].device[0]: device_id 'npu0' is not a decimal number\n"},
    {HL_RANKTABLE_A2, a2, "\"192.168.1.8\"", "\"192.168.1.800\"",
     "server_list[0].device[0]: device_ip '192.168.1.800' is not an IP address\n"},
    {HL_RANKTABLE_A2, a2, "\"192.168.1.8\"", "\"-1\"",
     "server_list[0].device[0]: device_ip '-1' is not an IP address: -1 is what a device plugin "
     "writes that found none\n"},
    {HL_RANKTABLE_A2, a2, "\"device_ip\":\"192.168.1.8\",", "",
     "server_list[0].device[0]: device_ip is missing, and there is more than one server\n"},
    {HL_RANKTABLE_A2, a2, "192.168.2.8", "192.168.1.9",
     "server_list[1].device[0]: device_ip 192.168.1.9 is also that of "
     "server_list[0].device[1]\n"},
    {HL_RANKTABLE_A2, a2, "16667", "0",
     "server_list[0].device[0]: device_port is 0, not between 1 and 65535\n"},
    /* ranks */
    {HL_RANKTABLE_A2, a2, "\"rank_id\":\"0\"", "\"rank_id\":0",
     "server_list[0].device[0]: rank_id is not a text: put it in quotes\n"},
    {HL_RANKTABLE_A2, a2, "\"rank_id\":\"3\"", "\"rank_id\":\"4\"",
     "server_list[1].device[1]: rank_id is 4, not between 0 and 3\n"},
    {HL_RANKTABLE_A2, a2, "\"rank_id\":\"2\"", "\"rank_id\":\"1\"",
     "server_list[1].device[0]: rank_id 1 is also that of server_list[0].device[1]\n"},
    {HL_RANKTABLE_A2, a2,
     "\"rank_id\":\"1\"}]},{\"server_id\":\"node_1\",\"device\":[{\"device_id\":"
     "\"0\",\"device_ip\":\"192.168.2.8\",\"device_port\":\"16667\",\"rank_id\":\"2\"",
     "\"rank_id\":\"2\"}]},{\"server_id\":\"node_1\",\"device\":[{\"device_id\":\"0\",\"device_"
     "ip\":"
     "\"192.168.2.8\",\"device_port\":\"16667\",\"rank_id\":\"1\"",
     "server_list[0]: its 2 ranks lie between 0 and 2: those of a server must follow each other\n"
     "server_list[1]: its 2 ranks lie between 1 and 3: those of a server must follow each other\n"},
    /* super pods */
    {HL_RANKTABLE_A3, a3, "\"super_device_id\":\"1\",", "",
     "server_list[0].device[1]: super_device_id is missing\n"},
    {HL_RANKTABLE_A3, a3, "\"super_device_id\":\"2\"", "\"super_device_id\":\"1\"",
     "server_list[1].device[0]: super_device_id 1 in super pod 0 is also that of "
     "server_list[0].device[1]\n"},
    {HL_RANKTABLE_A3, a3, "\"super_pod_list\"", "\"super_pods\"",
     "super_pod_list is missing: HCCL then treats each server separately, which is version 1.0\n"},
    {HL_RANKTABLE_A3, a3, "\"super_pod_id\":\"1\"", "\"super_pod_id\":\"0\"",
     "super_pod_list[1]: super_pod_id 0 is also that of super_pod_list[0]\n"
     "server_list[2].device[0]: super_device_id 0 in super pod 0 is also that of "
     "server_list[0].device[0]\n"},
    {HL_RANKTABLE_A3, a3, "{\"server_id\":\"node_0\"},", "{\"server_id\":\"node_7\"},",
     "super_pod_list[0].server_list[0]: server node_7 is not in server_list\n"
     "server_list[0]: server node_0 is in no super pod\n"},
    {HL_RANKTABLE_A3, a3, "[{\"server_id\":\"node_2\"}]",
     "[{\"server_id\":\"node_2\"},{\"server_id\":\"node_1\"}]",
     "super_pod_list[1].server_list[1]: server node_1 is in super pod 0, too\n"},
    {HL_RANKTABLE_A3, a3,
     "{\"server_id\":\"node_1\"}]},{\"super_pod_id\":\"1\",\"server_list\":[{"
     "\"server_id\":\"node_2\"}]",
     "{\"server_id\":\"node_2\"}]},{\"super_pod_id\":\"1\",\"server_list\":[{\"server_id\":\"node_"
     "1\"}]",
     "server_list[2]: servers of super pod 0 stand apart: list those of one super pod together\n"
     "server_list[2].device[0]: super_device_id 0 in super pod 0 is also that of "
     "server_list[0].device[0]\n"},
    {HL_RANKTABLE_A3, a3, "\"device_ip\":\"192.168.3.6\",", "",
     "server_list[2].device[0]: device_ip is missing, and there is more than one super pod\n"},
    {HL_RANKTABLE_A3, a3, "\"backup_device_ip\":\"192.168.1.7\"",
     "\"backup_device_ip\":\"192.168.1.6\"",
     "server_list[0].device[0]: backup_device_ip is the device's own address\n"},
    {HL_RANKTABLE_A3, a3, "16666", "16665",
     "server_list[0].device[1]: host_port 16665 is also that of server_list[0].device[0]\n"},
    /* format 2.0 */
    {HL_RANKTABLE_A5, a5, "\"rank_count\":2", "\"rank_count\":3",
     "rank_count is 3, and rank_list has 2\n"},
    {HL_RANKTABLE_A5, a5, "\"rank_id\":1", "\"rank_id\":\"1\"",
     "rank_list[1]: rank_id is not a whole number: format 2.0 has it without quotes\n"},
    {HL_RANKTABLE_A5, a5, "\"rank_id\":1", "\"rank_id\":0",
     "rank_list[1]: rank_id 0 is also that of rank_list[0]\n"},
    {HL_RANKTABLE_A5, a5, "\"local_id\":1", "\"local_id\":0",
     "rank_list[1]: local_id 0 in rack0 is also that of rank_list[0]\n"},
    {HL_RANKTABLE_A5, a5, "\"device_id\":1", "\"device_id\":65",
     "rank_list[1]: device_id is 65, not between 0 and 64\n"},
    {HL_RANKTABLE_A5, a5, "\"net_layer\":0", "\"net_layer\":1",
     "rank_list[0].level_list[0]: net_layer is 1: layers begin with 0 and rise\n"},
    {HL_RANKTABLE_A5, a5, "\"TOPO_FILE_DESC\"", "\"CLOS\"",
     "rank_list[0].level_list[0]: net_type of layer 0 is CLOS: only TOPO_FILE_DESC is read "
     "there\n"},
    {HL_RANKTABLE_A5, a5, "dfdf0020", "dfdf002",
     "rank_list[0].level_list[0].rank_addr_list[0]: addr '000000000000000000100000dfdf002' is not "
     "an "
     "address of type EID\n"},
    {HL_RANKTABLE_A5, a5, "\"IPV4\"", "\"MAC\"",
     "rank_list[0].level_list[0].rank_addr_list[1]: addr_type is 'MAC', none of EID, IPV4, "
     "IPV6\n"},
    {HL_RANKTABLE_A5, a5, "\"0/5\"", "\"0/4\"",
     "rank_list[0].level_list[0].rank_addr_list[1]: port 0/4 is also that of "
     "rank_list[0].level_list[0].rank_addr_list[0]\n"},
    {HL_RANKTABLE_A5, a5, "\"0/5\"", "\"5\"",
     "rank_list[0].level_list[0].rank_addr_list[1]: port '5' is not DIE/PORT, as 0/4\n"},
};

static char *replaced(const char *text, const char *old, const char *now)
{
    const char *at = strstr(text, old);
    char *out = NULL;
    assert_non_null(at);
    assert_true(asprintf(&out, "%.*s%s%s", (int)(at - text), text, now, at + strlen(old)) > 0);
    return out;
}

static void judge(enum hl_ranktable_chip chip, const char *text, struct hl_ranktable_report *out)
{
    assert_int_equal(hl_ranktable_lint(chip, text, strlen(text), out), HL_OK);
}

TEST(a_sound_table_has_no_fault)
{
    static const struct {
        enum hl_ranktable_chip chip;
        const char *text;
        size_t servers, devices;
    } sound[] = {
        {HL_RANKTABLE_A2, a2, 2, 4},
        {HL_RANKTABLE_A3, a2, 2, 4}, /* servers on their own */
        {HL_RANKTABLE_A3, a3, 3, 4},
        {HL_RANKTABLE_A5, a5, 0, 2},
    };

    for (size_t i = 0; i < HL_ARRAY_LEN(sound); i++) {
        struct hl_ranktable_report r;
        judge(sound[i].chip, sound[i].text, &r);
        assert_string_equal(r.text, "");
        assert_int_equal(r.faults, 0);
        assert_int_equal(r.servers, sound[i].servers);
        assert_int_equal(r.devices, sound[i].devices);
        hl_ranktable_report_fini(&r);
    }
}

TEST(of_a_broken_table_each_fault_is_one_sentence)
{
    for (size_t i = 0; i < HL_ARRAY_LEN(broken); i++) {
        struct hl_ranktable_report r;
        char *text = replaced(broken[i].table, broken[i].old, broken[i].now);
        judge(broken[i].chip, text, &r);
        if (strcmp(r.text, broken[i].said) != 0)
            fail_msg("%s -> %s: said\n%sand not\n%s", broken[i].old, broken[i].now, r.text,
                     broken[i].said);
        hl_ranktable_report_fini(&r);
        free(text);
    }
}

/* One server communicates over its own links; so does one super pod. */
TEST(addresses_are_wanted_only_between_servers)
{
    static const char one[] =
        "{\"status\":\"completed\",\"version\":\"1.0\",\"server_count\":\"1\",\"server_list\":[{"
        "\"server_id\":\"a\",\"device\":[{\"device_id\":\"0\",\"rank_id\":\"0\"}]}]}";
    static const char pod[] =
        "{\"status\":\"completed\",\"version\":\"1.2\",\"server_list\":[{\"server_id\":\"a\","
        "\"device\":[{\"device_id\":\"0\",\"super_device_id\":\"0\",\"rank_id\":\"0\"}]},{"
        "\"server_id\":\"b\",\"device\":[{\"device_id\":\"0\",\"super_device_id\":\"1\","
        "\"rank_id\":\"1\"}]}],\"super_pod_list\":[{\"super_pod_id\":\"0\",\"server_list\":[{"
        "\"server_id\":\"a\"},{\"server_id\":\"b\"}]}]}";
    struct hl_ranktable_report r;
    judge(HL_RANKTABLE_A2, one, &r);
    assert_string_equal(r.text, "");
    hl_ranktable_report_fini(&r);
    judge(HL_RANKTABLE_A3, pod, &r);
    assert_string_equal(r.text, "");
    hl_ranktable_report_fini(&r);
}

TEST(after_a_hundred_sentences_faults_are_only_counted)
{
    struct hl_ranktable_report r;
    struct hl_buf text = HL_BUF(1 << 20);
    hl_buf_printf(&text, "{\"status\":\"completed\",\"version\":\"1.0\",\"server_count\":\"150\","
                         "\"server_list\":[");
    for (int i = 0; i < 150; i++)
        hl_buf_printf(&text, "%s7", i > 0 ? "," : "");
    hl_buf_printf(&text, "]}");
    judge(HL_RANKTABLE_A2, text.data, &r);
    assert_true(r.faults > HL_RANKTABLE_FAULTS_MAX);
    size_t lines = 0;
    for (const char *p = r.text; (p = strchr(p, '\n')) != NULL; p++)
        lines++;
    assert_int_equal(lines, HL_RANKTABLE_FAULTS_MAX + 1);
    char *last = NULL;
    assert_true(asprintf(&last, "\nand %zu more\n", r.faults - HL_RANKTABLE_FAULTS_MAX) > 0);
    assert_non_null(strstr(r.text, last));
    free(last);
    hl_ranktable_report_fini(&r);
    hl_buf_fini(&text);
}

/* Text from the file goes to a terminal. */
TEST(a_report_has_no_control_characters)
{
    struct hl_ranktable_report r;
    char *text = replaced(a2, "\"completed\"", "\"\\u001b[2Jx\\n\"");
    judge(HL_RANKTABLE_A2, text, &r);
    assert_string_equal(r.text, "status is '?[2Jx?', neither \"completed\" nor \"initializing\"\n");
    hl_ranktable_report_fini(&r);
    free(text);
}

/* ---- manifests ------------------------------------------------------------------------------- */

/* Two pods of eight devices, with single quotes. */
static const char manifest[] =
    "[{'apiVersion':'v1','kind':'ConfigMap','metadata':{'name':'rings-config-j','labels':{"
    "'ring-controller.atlas':'ascend-910b'}},'data':{'hccl.json':'{}'}},"
    "{'apiVersion':'batch.volcano.sh/v1alpha1','kind':'Job','metadata':{'name':'j','labels':{"
    "'ring-controller.atlas':'ascend-910b'}},'spec':{'minAvailable':2,'tasks':[{'name':'w',"
    "'replicas':2,'template':{'metadata':{'labels':{'ring-controller.atlas':'ascend-910b'}},"
    "'spec':{'nodeSelector':{'accelerator-type':'module-910b-8'},'containers':[{'name':'c',"
    "'resources':{'requests':{'huawei.com/Ascend910':8},'limits':{'huawei.com/Ascend910':'8'}}}],"
    "'volumes':[{'name':'v','configMap':{'name':'rings-config-j'}}]}}}]}}]";

static const struct {
    enum hl_ranktable_chip chip;
    const char *old, *now, *said;
} wrong[] = {
    {HL_RANKTABLE_A2, "", "", ""},
    {HL_RANKTABLE_A2, "'kind':'Job'", "'kind':'Queue'",
     "there is no Volcano Job, batch Job or Deployment in it\n"},
    {HL_RANKTABLE_A2, "'j','labels':{'ring-controller.atlas':'ascend-910b'}", "'j'",
     "Job j: the label ring-controller.atlas: ascend-910b is missing\n"},
    {HL_RANKTABLE_A2, "'metadata':{'labels':{'ring-controller.atlas':'ascend-910b'",
     "'metadata':{'labels':{'ring-controller.atlas':'ascend-910'",
     "Job j, tasks[0]: the label ring-controller.atlas is ascend-910; this chip's is "
     "ascend-910b\n"},
    {HL_RANKTABLE_A2, "'ascend-910b'", "'ascend-910'",
     "ConfigMap rings-config-j: the label ring-controller.atlas is ascend-910; this chip's is "
     "ascend-910b\n"},
    {HL_RANKTABLE_A2, "'hccl.json'", "'table'",
     "ConfigMap rings-config-j: data has no hccl.json: pods that start before the table find no "
     "file\n"},
    {HL_RANKTABLE_A2, "'nodeSelector':{'accelerator-type':'module-910b-8'},", "",
     "Job j, tasks[0]: nodeSelector has no accelerator-type: one of module-910b-8, "
     "module-910b-16, card-910b-2\n"},
    {HL_RANKTABLE_A3, "", "",
     "Job j, tasks[0]: accelerator-type is module-910b-8; this chip's are module-a3-16, "
     "module-a3-16-super-pod\n"},
    {HL_RANKTABLE_A2, "'huawei.com/Ascend910':8", "'huawei.com/Ascend910':4",
     "Job j, tasks[0]: requests has 4 huawei.com/Ascend910 and limits 8: they must be the same\n"},
    {HL_RANKTABLE_A2, "'requests':{'huawei.com/Ascend910':8},'limits':{'huawei.com/Ascend910':'8'}",
     "'limits':{'huawei.com/Ascend910':9}",
     "Job j, tasks[0]: its pods have 9 devices, which module-910b-8 does not give to one of "
     "several pods\n"},
    {HL_RANKTABLE_A2, "'requests':{'huawei.com/Ascend910':8},'limits':{'huawei.com/Ascend910':'8'}",
     "'limits':{'huawei.com/npu':8}",
     "Job j, tasks[0]: a container requests huawei.com/npu; this chip's resource is "
     "huawei.com/Ascend910\nJob j, tasks[0]: no container has huawei.com/Ascend910 in its "
     "limits\n"},
    {HL_RANKTABLE_A2, "'containers':[",
     "'containers':[{'name':'d','resources':{'limits':{'huawei.com/Ascend910':1}}},",
     "Job j, tasks[0]: 2 containers ask for huawei.com/Ascend910: the device plugin gives a pod's "
     "devices to one\n"
     "Job j, tasks[0]: its pods have 9 devices, which module-910b-8 does not give to one of "
     "several pods\n"},
    {HL_RANKTABLE_A2, "'minAvailable':2", "'minAvailable':1",
     "Job j: minAvailable is 1, and its tasks have 2 pods: ranks would wait\n"},
    {HL_RANKTABLE_A2, "'configMap':{'name':'rings-config-j'}", "'emptyDir':{}",
     "Job j, tasks[0]: no volume has the ConfigMap rings-config-j: pods could not read it\n"},
};

static void judge_manifest(enum hl_ranktable_chip chip, const char *text, char **said)
{
    const json_t *objects[4];
    struct hl_ranktable_report r;
    char *json = strdup(text);
    for (char *p = json; *p != '\0'; p++)
        *p = *p == '\'' ? '"' : *p;
    json_t *list = json_loads(json, 0, NULL);
    assert_non_null(list);
    for (size_t i = 0; i < json_array_size(list); i++)
        objects[i] = json_array_get(list, i);
    assert_int_equal(hl_ranktable_lint_job(chip, objects, json_array_size(list), &r), HL_OK);
    *said = strdup(r.text);
    hl_ranktable_report_fini(&r);
    json_decref(list);
    free(json);
}

TEST(a_manifest_is_judged_by_what_its_device_plugin_wants)
{
    for (size_t i = 0; i < HL_ARRAY_LEN(wrong); i++) {
        char *text = replaced(manifest, wrong[i].old, wrong[i].now), *said;
        judge_manifest(wrong[i].chip, text, &said);
        if (strcmp(said, wrong[i].said) != 0)
            fail_msg("%s -> %s: said\n%sand not\n%s", wrong[i].old, wrong[i].now, said,
                     wrong[i].said);
        free(said);
        free(text);
    }
}

/* A product, how many devices in how many pods, whether it gives them. */
TEST(a_product_gives_some_numbers_of_devices)
{
    static const struct {
        enum hl_ranktable_chip chip;
        const char *type;
        int devices, pods;
        bool given;
    } rows[] = {
        {HL_RANKTABLE_A2, "module-910b-16", 8, 2, true},
        {HL_RANKTABLE_A2, "module-910b-16", 9, 2, false},
        {HL_RANKTABLE_A2, "module-910b-16", 10, 2, true},
        {HL_RANKTABLE_A2, "card-910b-2", 3, 1, false},
        {HL_RANKTABLE_A3, "module-a3-16", 1, 1, true},
        {HL_RANKTABLE_A3, "module-a3-16", 1, 2, false},
        {HL_RANKTABLE_A3, "module-a3-16-super-pod", 16, 2, true},
        {HL_RANKTABLE_A3, "module-a3-16", 18, 2, false},
        {HL_RANKTABLE_A5, "850-Atlas-8p-8", 4, 2, true},
        {HL_RANKTABLE_A5, "850-Atlas-8p-8", 3, 1, false},
        {HL_RANKTABLE_A5, "950-SuperPod-Atlas-8", 4, 1, true},
        {HL_RANKTABLE_A5, "950-SuperPod-Atlas-8", 4, 2, false},
        {HL_RANKTABLE_A5, "350-Atlas-16", 15, 1, true},
    };

    for (size_t i = 0; i < HL_ARRAY_LEN(rows); i++) {
        bool is_npu = rows[i].chip == HL_RANKTABLE_A5;
        const char *label = is_npu ? "ascend-npu" : "ascend-910b";
        char *text = NULL, *said;
        assert_true(
            asprintf(&text,
                     "[{'apiVersion':'batch/v1','kind':'Job','metadata':{'name':'j','labels':{"
                     "'ring-controller.atlas':'%s'}},'spec':{'parallelism':%d,'template':{"
                     "'metadata':{'labels':{'ring-controller.atlas':'%s'}},'spec':{"
                     "'nodeSelector':{'accelerator-type':'%s'},'containers':[{'resources':{"
                     "'limits':{'huawei.com/%s':%d}}}],'volumes':[{'configMap':{'name':"
                     "'rings-config-j'}}]}}}}]",
                     label, rows[i].pods, label, rows[i].type, is_npu ? "npu" : "Ascend910",
                     rows[i].devices) > 0);
        judge_manifest(rows[i].chip, text, &said);
        if (rows[i].given != (said[0] == '\0'))
            fail_msg("%s, %d devices: %s", rows[i].type, rows[i].devices, said);
        free(said);
        free(text);
    }
}
