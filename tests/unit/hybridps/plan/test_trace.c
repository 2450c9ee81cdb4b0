#include "support/test.h"

#include <stdlib.h>
#include <string.h>

#include "base/status.h"
#include "hybridps/plan/trace.h"

#define GOOD                                                                                       \
    "{\"chunks\":[{\"id\":7,\"kind\":\"param\",\"bytes\":4096,\"init\":\"cpu\"},"                  \
    "{\"id\":\"g\",\"kind\":\"grad\",\"bytes\":512,\"init\":\"none\"}],"                           \
    "\"iteration\":[{\"stage\":\"FWD\",\"op\":\"l0\",\"avail\":8192,"                              \
    "\"need\":[[7,\"gpu\",\"r\"],[\"g\",\"gpu\",\"w\"]],\"free\":[]},"                             \
    "{\"stage\":\"ADAM\",\"op\":\"\",\"avail\":0,\"need\":[[7,\"cpu\",\"w\"]],"                    \
    "\"free\":[\"g\"]}],\"iterations\":3}"

TEST(test_a_trace_is_read_and_printed_as_it_came)
{
    struct hl_trace t = {0};
    assert_int_equal(hl_trace_parse(GOOD, strlen(GOOD), &t), HL_OK);
    assert_int_equal(t.chunk_count, 2);
    assert_int_equal(t.moment_count, 2);
    assert_int_equal(t.iterations, 3);
    assert_string_equal(t.chunks[0].id, "7");
    assert_int_equal(t.chunks[0].bytes, 4096);
    assert_true(t.chunks[0].has_content);
    assert_false(t.chunks[1].has_content);
    assert_int_equal(t.moments[0].need_count, 2);
    assert_int_equal(t.moments[0].need[1].chunk, 1);
    assert_true(t.moments[0].need[1].write);
    assert_false(t.moments[0].need[0].on_host);
    assert_true(t.moments[1].need[0].on_host);
    assert_int_equal(t.moments[1].free[0], 1);
    char name[64], *text = NULL;
    assert_string_equal(hl_trace_moment_name(&t, 0, name, sizeof(name)), "moment 0 (FWD l0)");
    assert_string_equal(hl_trace_moment_name(&t, 1, name, sizeof(name)), "moment 1 (ADAM)");
    assert_int_equal(hl_trace_print(&t, &text), HL_OK);
    assert_string_equal(text, GOOD);
    free(text);
    hl_trace_fini(&t);
}

TEST(test_what_is_needed_twice_is_merged)
{
    const char *text = "{\"chunks\":[{\"id\":1,\"bytes\":1}],\"iteration\":[{\"avail\":1.0,"
                       "\"need\":[[1,\"gpu\",\"r\"],[1,\"gpu\",\"w\"],[1,\"gpu\",\"r\"]]}]}";
    struct hl_trace t = {0};
    assert_int_equal(hl_trace_parse(text, strlen(text), &t), HL_OK);
    assert_int_equal(t.moments[0].need_count, 1);
    assert_true(t.moments[0].need[0].write);
    assert_int_equal(t.iterations, 1);
    hl_trace_fini(&t);
}

#define CHUNK "\"chunks\":[{\"id\":1,\"bytes\":1}]"

TEST(test_a_bad_trace_is_refused_with_its_place)
{

    static const struct {
        const char *text, *says;
    } bad[] = {
        {"{\"chunks\":\n [}", "line 2 column 3"},
        {"[]", "it is not an object"},
        {"{\"iteration\":[]}", "chunks is missing"},
        {"{" CHUNK "}", "iteration is missing"},
        {"{" CHUNK ",\"iteration\":[]}", "no moment"},
        {"{" CHUNK ",\"iteration\":7}", "iteration is no array"},
        {"{\"chunks\":[{\"id\":1,\"bytes\":1},{\"id\":1,\"bytes\":1}]}",
         "chunks[1].id \"1\" is another"},
        {"{\"chunks\":[{\"id\":[],\"bytes\":1}]}", "chunks[0].id is neither"},
        {"{\"chunks\":[{\"id\":1}]}", "chunks[0].bytes is missing"},
        {"{\"chunks\":[{\"id\":1,\"bytes\":0}]}", "chunks[0].bytes: "},
        {"{\"chunks\":[{\"id\":1,\"bytes\":-5}]}", "chunks[0].bytes is not a whole"},
        {"{\"chunks\":[{\"id\":1,\"bytes\":1.5}]}", "chunks[0].bytes is not a whole"},
        {"{\"chunks\":[{\"id\":1,\"bytes\":1e30}]}", "chunks[0].bytes is not a whole"},
        {"{\"chunks\":[{\"id\":1,\"bytes\":1,\"init\":\"disk\"}]}", "chunks[0].init"},
        {"{\"chunks\":[3]}", "chunks[0] is not an object"},
        {"{" CHUNK ",\"iteration\":[{}]}", "iteration[0].avail is missing"},
        {"{" CHUNK ",\"iteration\":[{\"avail\":1},{\"avail\":1,\"need\":[[2,\"gpu\",\"r\"]]}]}",
         "iteration[1].need[0]: unknown chunk \"2\""},
        {"{" CHUNK ",\"iteration\":[{\"avail\":1,\"need\":[[\"1\",\"gpu\",\"r\"]]}]}",
         "iteration[0].need[0]: unknown chunk \"1\""},
        {"{" CHUNK ",\"iteration\":[{\"avail\":1,\"need\":[[1,\"tpu\",\"r\"]]}]}",
         "iteration[0].need[0] is not [id"},
        {"{" CHUNK ",\"iteration\":[{\"avail\":1,\"need\":[[1,\"gpu\"]]}]}",
         "iteration[0].need[0] is not [id"},
        {"{" CHUNK ",\"iteration\":[{\"avail\":1,\"free\":[{}]}]}", "iteration[0].free[0]: id"},
        {"{" CHUNK ",\"iteration\":[{\"avail\":1,\"stage\":[]}]}", "iteration[0].stage is"},
        {"{" CHUNK ",\"iteration\":[{\"avail\":1,\"need\":[[1,\"gpu\",\"r\"],[1,\"cpu\",\"w\"]]}]}",
         "iteration[0].need[1]: chunk \"1\" is needed on the device and on the host"},
        {"{" CHUNK ",\"iteration\":[{\"avail\":1}],\"iterations\":0}", "iterations is 0"},
        {"{" CHUNK ",\"iteration\":[{\"avail\":1}],\"iterations\":\"3\"}", "iterations is no"},
    };

    for (size_t i = 0; i < HL_ARRAY_LEN(bad); i++) {
        struct hl_trace t = {.iterations = 99};
        assert_int_equal(hl_trace_parse(bad[i].text, strlen(bad[i].text), &t), HL_EINVAL);
        if (strstr(hl_error_text(), bad[i].says) == NULL)
            fail_msg("%s: \"%s\" does not say \"%s\"", bad[i].text, hl_error_text(), bad[i].says);
        assert_int_equal(t.iterations, 99);
    }
}
