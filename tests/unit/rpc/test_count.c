/* What calls leave in the table of planes; caller and server are in one process here. */
#include "support/test.h"

#include "unit/rpc/rig.h"

#include <unistd.h>

#include "base/plane.h"

struct counted {
    struct hl_plane_stats management, inside;
};

static struct counted now(void)
{
    struct counted c;
    hl_plane_stats(HL_PLANE_MANAGEMENT, &c.management);
    hl_plane_stats(HL_PLANE_INSIDE, &c.inside);
    return c;
}

static uint64_t timed(const struct hl_plane_stats *s)
{
    uint64_t n = 0;
    for (int i = 0; i < HL_PLANE_BUCKETS; i++)
        n += s->latency[i];
    return n;
}

TEST(a_call_is_counted_by_both_sides_with_its_bytes)
{
    struct rig r;
    static const struct rig_answer answers[] = {{"getModel", "{\"model\": {\"tp\": 2}}"},
                                                {NULL, NULL}};
    rig_start(&r, "127.0.0.1:0", "Controller", answers);
    struct counted a = now();
    char params[4200], name[4097];
    memset(name, 'n', sizeof(name) - 1);
    name[sizeof(name) - 1] = '\0';
    snprintf(params, sizeof(params), "{\"name\": \"%s\"}", name);
    assert_int_equal(rig_call(&r, "getModel", params, NULL), HL_OK);
    struct counted b = now();
    /* the call and its answer, each sent by one side and received by the other */
    assert_int_equal(b.management.ops[1] - a.management.ops[1], 2);
    assert_int_equal(b.management.ops[0] - a.management.ops[0], 2);
    /* 4097 bytes of text and three words around them, in whole words */
    uint64_t sent = b.management.bytes[1] - a.management.bytes[1];
    uint64_t received = b.management.bytes[0] - a.management.bytes[0];
    assert_true(sent >= 4096 && sent < 4096 + 1024);
    assert_true(received >= sent && received < sent + 1024);          /* with the frames */
    assert_int_equal(timed(&b.management) - timed(&a.management), 1); /* the caller's */
    assert_int_equal(b.management.failed, a.management.failed);
    assert_int_equal(b.inside.ops[0], a.inside.ops[0]);
    rig_stop(&r);
}

TEST(a_call_that_fails_is_counted_as_failed)
{
    struct rig r;
    rig_start(&r, "127.0.0.1:0", "Controller", NULL);
    struct counted a = now();
    assert_int_equal(rig_call(&r, "getModel", "{\"name\": \"ENOENT\"}", NULL), HL_ENOENT);
    struct counted b = now();
    assert_int_equal(b.management.failed - a.management.failed, 2); /* the call, and its answer */
    assert_int_equal(timed(&b.management), timed(&a.management));
    rig_stop(&r);
}

TEST(a_unix_socket_is_no_network)
{
    struct rig r;
    char address[64];
    snprintf(address, sizeof(address), "unix:/tmp/helios-count-%d.sock", (int)getpid());
    rig_start(&r, address, "Controller", NULL);
    struct counted a = now();
    assert_int_equal(rig_call(&r, "listModels", NULL, NULL), HL_OK);
    struct counted b = now();
    assert_int_equal(b.management.ops[0], a.management.ops[0]);
    assert_int_equal(b.management.ops[1], a.management.ops[1]);
    assert_int_equal(b.inside.ops[0] - a.inside.ops[0], 2);
    rig_stop(&r);
}
