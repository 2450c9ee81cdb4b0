/* Numbering and the four formats. */
#include "support/test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ranktable/lint.h"
#include "ranktable/table.h"

/* Devices "id=ip id=ip"; a super device id is 1000 + id when `super`. */
static struct hl_ranktable_instance make(const char *name, const char *server, uint32_t group,
                                         uint32_t place, int32_t index, const char *devices)
{
    struct hl_ranktable_instance x = {.group = group, .place = place, .rank_index = index};
    char text[1024], *save = NULL;
    snprintf(x.name, sizeof(x.name), "%s", name);
    snprintf(x.server_id, sizeof(x.server_id), "%s", server);
    snprintf(text, sizeof(text), "%s", devices);
    x.devices = calloc(80, sizeof(*x.devices));
    for (char *d = strtok_r(text, " ", &save); d != NULL; d = strtok_r(NULL, " ", &save)) {
        struct hl_ranktable_device *v = &x.devices[x.device_count++];
        char *ip = strchr(d, '=');
        if (ip != NULL)
            *ip++ = '\0';
        snprintf(v->id, sizeof(v->id), "%s", d);
        snprintf(v->ip, sizeof(v->ip), "%s", ip != NULL ? ip : "");
        snprintf(v->super_id, sizeof(v->super_id), "%d", 1000 + atoi(d));
    }
    return x;
}

static void add(struct hl_ranktable *t, struct hl_ranktable_instance x)
{
    assert_int_equal(hl_ranktable_add(t, &x), HL_OK);
}

static void group(struct hl_ranktable *t, const char *name, uint32_t instances)
{
    assert_int_equal(hl_ranktable_add_group(t, name, instances), HL_OK);
}

static void assert_document(struct hl_ranktable *t, enum hl_ranktable_format f, const char *want)
{
    struct hl_buf text = HL_BUF(HL_RANKTABLE_TEXT_MAX);
    json_t *expected = json_loads(want, 0, NULL);
    assert_non_null(expected);
    assert_int_equal(hl_ranktable_number(t), HL_OK);
    assert_int_equal(hl_ranktable_document(t, f, &text), HL_OK);
    json_t *doc = json_loads(text.data, JSON_REJECT_DUPLICATES, NULL);
    if (!json_equal(doc, expected))
        fail_msg("got %s", text.data);
    struct hl_buf small = HL_BUF(text.len); /* and a byte for its end */
    assert_int_equal(hl_ranktable_document(t, f, &small), HL_ENOMEM);
    hl_buf_fini(&small);
    hl_buf_fini(&text);
    json_decref(doc);
    json_decref(expected);
}

/* The example of the user guide's appendix, but for the groups, of which it says two and lists one.
 */
TEST(v1_is_the_appendix)
{
    struct hl_ranktable t = {0};
    group(&t, "", 2);
    add(&t, make("tf-ze9o", "10.0.0.11", 0, 1, -1, "6=192.168.0.25 7=192.168.0.26"));
    add(&t, make("tf-bae43", "10.0.0.10", 0, 0, -1, "0=192.168.0.11 1=192.168.0.12"));
    assert_document(
        &t, HL_RANKTABLE_V1,
        "{\"status\":\"completed\",\"group_count\":\"1\",\"group_list\":[{\"group_name\":\"\","
        "\"instance_count\":\"2\",\"instance_list\":["
        "{\"pod_name\":\"tf-bae43\",\"server_id\":\"10.0.0.10\",\"devices\":["
        "{\"device_id\":\"0\",\"device_ip\":\"192.168.0.11\"},"
        "{\"device_id\":\"1\",\"device_ip\":\"192.168.0.12\"}]},"
        "{\"pod_name\":\"tf-ze9o\",\"server_id\":\"10.0.0.11\",\"devices\":["
        "{\"device_id\":\"6\",\"device_ip\":\"192.168.0.25\"},"
        "{\"device_id\":\"7\",\"device_ip\":\"192.168.0.26\"}]}]}]}");
    hl_ranktable_fini(&t);
}

TEST(v2_numbers_devices)
{
    struct hl_ranktable t = {0};
    group(&t, "w", 2);
    add(&t, make("b", "10.0.0.11", 0, 1, -1, "0=192.168.0.13"));
    add(&t, make("a", "10.0.0.10", 0, 0, -1, "1=192.168.0.12 0=192.168.0.11"));
    assert_document(&t, HL_RANKTABLE_V2,
                    "{\"status\":\"completed\",\"server_count\":\"2\",\"version\":\"1.0\","
                    "\"server_list\":[{\"server_id\":\"10.0.0.10\",\"device\":["
                    "{\"device_id\":\"1\",\"device_ip\":\"192.168.0.12\",\"rank_id\":\"0\"},"
                    "{\"device_id\":\"0\",\"device_ip\":\"192.168.0.11\",\"rank_id\":\"1\"}]},"
                    "{\"server_id\":\"10.0.0.11\",\"device\":["
                    "{\"device_id\":\"0\",\"device_ip\":\"192.168.0.13\",\"rank_id\":\"2\"}]}]}");
    hl_ranktable_fini(&t);
}

/* What lint.h says of a table. */
static void expect_sound(struct hl_ranktable *t, enum hl_ranktable_format f,
                         enum hl_ranktable_chip chip)
{
    struct hl_buf text = HL_BUF(HL_RANKTABLE_TEXT_MAX);
    struct hl_ranktable_report report;
    assert_int_equal(hl_ranktable_document(t, f, &text), HL_OK);
    assert_int_equal(hl_ranktable_lint(chip, text.data, text.len, &report), HL_OK);
    assert_string_equal(report.text, "");
    hl_ranktable_report_fini(&report);
    hl_buf_fini(&text);
}

/* HCCL refuses a server_id that stands twice. */
TEST(instances_on_one_server_are_one_entry)
{
    struct hl_ranktable t = {0};
    group(&t, "w", 3);
    add(&t, make("c", "10.0.0.10", 0, 1, -1, "2=192.168.0.14 3=192.168.0.15"));
    add(&t, make("b", "10.0.0.11", 0, 2, -1, "0=192.168.0.13"));
    add(&t, make("a", "10.0.0.10", 0, 0, -1, "1=192.168.0.12"));
    assert_document(&t, HL_RANKTABLE_V2,
                    "{\"status\":\"completed\",\"server_count\":\"2\",\"version\":\"1.0\","
                    "\"server_list\":[{\"server_id\":\"10.0.0.10\",\"device\":["
                    "{\"device_id\":\"1\",\"device_ip\":\"192.168.0.12\",\"rank_id\":\"0\"},"
                    "{\"device_id\":\"2\",\"device_ip\":\"192.168.0.14\",\"rank_id\":\"1\"},"
                    "{\"device_id\":\"3\",\"device_ip\":\"192.168.0.15\",\"rank_id\":\"2\"}]},"
                    "{\"server_id\":\"10.0.0.11\",\"device\":["
                    "{\"device_id\":\"0\",\"device_ip\":\"192.168.0.13\",\"rank_id\":\"3\"}]}]}");
    expect_sound(&t, HL_RANKTABLE_V2, HL_RANKTABLE_A2);
    expect_sound(&t, HL_RANKTABLE_1_2, HL_RANKTABLE_A3);
    hl_ranktable_fini(&t);
}

/* In 2.0 the lowest layer's instance is the server, on which each device has its place. */
TEST(instances_on_one_server_count_its_places_together)
{
    struct hl_ranktable t = {0};
    group(&t, "w", 2);
    for (unsigned i = 0; i < 2; i++) {
        struct hl_ranktable_instance x =
            make(i == 0 ? "a" : "b", "n0", 0, i, -1, i == 0 ? "0 1" : "2 3");
        for (size_t d = 0; d < 2; d++)
            x.devices[d].levels = json_loads(
                "[{\"net_layer\":0,\"net_instance_id\":\"n0\",\"net_type\":\"TOPO_FILE_DESC\","
                "\"rank_addr_list\":[{\"addr_type\":\"EID\",\"addr\":"
                "\"000102030405060708090a0b0c0d0e0f\",\"ports\":[\"0/1\"]}]}]",
                0, NULL);
        add(&t, x);
    }
    assert_int_equal(hl_ranktable_number(&t), HL_OK);
    expect_sound(&t, HL_RANKTABLE_2_0, HL_RANKTABLE_A5);
    hl_ranktable_fini(&t);
}

TEST(super_pods_by_what_is_said_or_by_size)
{
    for (int said = 0; said < 2; said++) {
        struct hl_ranktable t = {.super_pod_servers = 1};
        group(&t, "w", 2);
        struct hl_ranktable_instance a = make("a", "n0", 0, 0, -1, "0=1.1.1.1");
        struct hl_ranktable_instance b = make("b", "n1", 0, 1, -1, "0=1.1.1.2");
        snprintf(a.host_ip, sizeof(a.host_ip), "10.0.0.1");
        if (said) {
            snprintf(a.super_pod_id, sizeof(a.super_pod_id), "7");
            snprintf(b.super_pod_id, sizeof(b.super_pod_id), "7");
        }
        add(&t, a);
        add(&t, b);
        char want[1024];
        snprintf(want, sizeof(want),
                 "{\"status\":\"completed\",\"server_count\":\"2\",\"version\":\"1.2\","
                 "\"server_list\":[{\"server_id\":\"n0\",\"host_ip\":\"10.0.0.1\",\"device\":[{"
                 "\"device_id\":\"0\",\"device_ip\":\"1.1.1.1\",\"super_device_id\":\"1000\","
                 "\"rank_id\":\"0\"}]},{\"server_id\":\"n1\",\"device\":[{\"device_id\":\"0\","
                 "\"device_ip\":\"1.1.1.2\",\"super_device_id\":\"1000\",\"rank_id\":\"1\"}]}],"
                 "\"super_pod_list\":[%s]}",
                 said ? "{\"super_pod_id\":\"7\",\"server_list\":[{\"server_id\":\"n0\"},"
                        "{\"server_id\":\"n1\"}]}"
                      : "{\"super_pod_id\":\"0\",\"server_list\":[{\"server_id\":\"n0\"}]},"
                        "{\"super_pod_id\":\"1\",\"server_list\":[{\"server_id\":\"n1\"}]}");
        assert_document(&t, HL_RANKTABLE_1_2, want);
        hl_ranktable_fini(&t);
    }
}

TEST(net_layers_in_2_0)
{
    struct hl_ranktable t = {0};
    struct hl_buf text = HL_BUF(HL_RANKTABLE_TEXT_MAX);
    group(&t, "w", 1);
    struct hl_ranktable_instance a = make("a", "n0", 0, 0, -1, "3");
    a.devices[0].levels = json_pack("[{s:i s:s}]", "net_layer", 0, "net_type", "CLOS");
    add(&t, a);
    assert_document(
        &t, HL_RANKTABLE_2_0,
        "{\"status\":\"completed\",\"version\":\"2.0\",\"rank_count\":1,\"rank_list\":[{"
        "\"rank_id\":0,\"local_id\":0,\"device_id\":3,\"level_list\":[{\"net_layer\":0,"
        "\"net_type\":\"CLOS\"}]}]}");
    hl_ranktable_fini(&t);
    group(&t, "w", 1);
    add(&t, make("a", "n0", 0, 0, -1, "3"));
    assert_int_equal(hl_ranktable_number(&t), HL_OK);
    assert_int_equal(hl_ranktable_document(&t, HL_RANKTABLE_2_0, &text), HL_EUNSUPPORTED);
    assert_null(text.data);
    hl_ranktable_fini(&t);
}

/* In any order of adding; requested indices stay, others fill the gaps. */
TEST(ranks_do_not_depend_on_the_order)
{
    static const int orders[][4] = {{0, 1, 2, 3}, {3, 2, 1, 0}, {2, 0, 3, 1}, {1, 3, 0, 2}};
    for (size_t o = 0; o < HL_ARRAY_LEN(orders); o++) {
        struct hl_ranktable t = {0};
        group(&t, "a", 2);
        group(&t, "b", 2);
        for (int k = 0; k < 4; k++) {
            int i = orders[o][k];
            char name[16], server[16], device[48];
            snprintf(name, sizeof(name), "p%d", i);
            snprintf(server, sizeof(server), "s%d", i);
            snprintf(device, sizeof(device), "0=1.1.1.%d 1=1.1.2.%d", i + 1, i + 1);
            add(&t, make(name, server, (uint32_t)i / 2, (uint32_t)i % 2, i == 3 ? 0 : -1, device));
        }
        assert_int_equal(hl_ranktable_number(&t), HL_OK);
        static const char *const want[] = {"p3", "p0", "p1", "p2"};
        for (int i = 0; i < 4; i++) {
            assert_string_equal(t.instances[i].name, want[i]);
            assert_int_equal(t.instances[i].first_rank, 2 * i);
        }
        hl_ranktable_fini(&t);
    }
}

/* One is missing: the others already have their final ranks. */
TEST(ranks_wait_for_who_is_missing)
{
    struct hl_ranktable t = {0};
    struct hl_buf text = HL_BUF(HL_RANKTABLE_TEXT_MAX);
    group(&t, "w", 3);
    add(&t, make("c", "s2", 0, 2, 2, "0=1.1.1.3 1=1.1.1.4"));
    add(&t, make("a", "s0", 0, 0, 0, "0=1.1.1.1 1=1.1.1.2"));
    assert_false(hl_ranktable_is_complete(&t));
    assert_int_equal(hl_ranktable_number(&t), HL_OK);
    assert_int_equal(t.instances[1].first_rank, 4);
    assert_int_equal(hl_ranktable_document(&t, HL_RANKTABLE_V2, &text), HL_OK);
    assert_non_null(strstr(text.data, "{\"status\":\"initializing\","));
    hl_buf_fini(&text);
    hl_ranktable_fini(&t);
}

static void assert_refused(struct hl_ranktable_instance x, const char *word)
{
    struct hl_ranktable t = {0};
    group(&t, "w", 1);
    assert_int_equal(hl_ranktable_add(&t, &x), HL_EINVAL);
    assert_non_null(strstr(hl_error_text(), word));
    assert_null(x.devices);
    hl_ranktable_fini(&t);
}

TEST(bad_instances_are_refused)
{
    assert_refused(make("a", "s", 0, 0, -1, "0=-1"), "'-1'");
    assert_refused(make("a", "s", 0, 0, -1, "0=51w.38.67.98s"), "51w.38.67.98s");
    assert_refused(make("a", "s", 0, 0, -1, "x=1.1.1.1"), "'x'");
    assert_refused(make("a", "", 0, 0, -1, "0=1.1.1.1"), "server_id");
    assert_refused(make("a", "s", 1, 0, -1, "0=1.1.1.1"), "task");
    assert_refused(make("a", "s", 0, 0, 10001, "0=1.1.1.1"), "10001");
    assert_refused(make("a", "s", 0, 0, -1, "0=1.1.1.1 1=1.1.1.2 0=1.1.1.3"), "twice");
}

static void assert_clash(const char *device_a, const char *server_b, const char *device_b,
                         int32_t index, const char *word)
{
    struct hl_ranktable t = {0};
    group(&t, "w", 2);
    add(&t, make("a", "s", 0, 0, index, device_a));
    add(&t, make("b", server_b, 0, 1, index, device_b));
    assert_int_equal(hl_ranktable_number(&t), HL_EINVAL);
    assert_non_null(strstr(hl_error_text(), word));
    hl_ranktable_fini(&t);
}

TEST(what_two_claim_is_refused)
{
    assert_clash("0=1.1.1.1", "s", "0=1.1.1.2", -1, "device 0 of server s");
    assert_clash("0=1.1.1.1", "t", "0=1.1.1.2", 4, "rank index 4");
    assert_clash("0=1.1.1.1", "t", "0", -1, "no address");
}
