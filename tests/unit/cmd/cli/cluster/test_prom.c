/* The text of /metrics as the command line parses it. */
#include "support/test.h"

#include <math.h>
#include <string.h>

#include "cli/cluster/prom.h"

TEST(samples_have_names_labels_and_values)
{
    struct prom p;
    assert_int_equal(prom_read("# HELP a Of a.\n"
                               "# TYPE a counter\n"
                               "a 12\n"
                               "\n"
                               "a{path=\"shm\",op=\"get\"} 1.5e3 1700000000\n"
                               "a{path=\"tcp\",op=\"get\",} 7\n"
                               "b{} NaN\n",
                               &p),
                     HL_OK);
    assert_int_equal(p.count, 4);
    assert_true(prom_find(&p, "a", "path", "shm", NULL, NULL, -1) == 1500);
    assert_true(prom_find(&p, "a", "op", "get", "path", "tcp", -1) == 7);
    assert_true(prom_find(&p, "a", "path", "", NULL, NULL, -1) ==
                12); /* the sample without labels */
    assert_true(prom_find(&p, "a", "path", "ucx", NULL, NULL, -1) == -1);
    assert_true(isnan(p.samples[3].value));
    assert_string_equal(prom_label(&p.samples[1], "op"), "get");
    assert_string_equal(prom_label(&p.samples[1], "node"), "");
    prom_fini(&p);
}

TEST(a_value_may_have_quotes_commas_and_braces)
{
    struct prom p;
    assert_int_equal(prom_read("a{x=\"q\\\"\\\\\\n\",y=\",}=\\\"\"} 1\n", &p), HL_OK);
    assert_string_equal(prom_label(&p.samples[0], "x"), "q\"\\\n");
    assert_string_equal(prom_label(&p.samples[0], "y"), ",}=\"");
    prom_fini(&p);
}

TEST(a_text_without_samples_is_empty)
{
    struct prom p;
    assert_int_equal(prom_read("", &p), HL_OK);
    assert_int_equal(p.count, 0);
    prom_fini(&p);
    assert_int_equal(prom_read("# only a comment\n", &p), HL_OK);
    assert_int_equal(p.count, 0);
    prom_fini(&p);
}

TEST(lines_that_are_none_of_the_format_are_refused)
{
    static const char *const lines[] = {
        "a",
        "a ",
        "a x",
        "a 1x",
        "a{x=\"1\"}",
        "a{x=\"1\" 1",
        "a{x=\"1",
        "a{x=\"1\\",
        "a{x=1} 1",
        "a{a=\"\",b=\"\",c=\"\",d=\"\",e=\"\",f=\"\",g=\"\",h=\"\",i=\"\"} 1", /* nine labels */
    };
    for (size_t i = 0; i < HL_ARRAY_LEN(lines); i++) {
        struct prom p;
        assert_int_equal(prom_read(lines[i], &p), HL_EPROTO);
    }
}
