/* The files that executor and shim share. */
#include "support/test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "hw/process_executor_private.h"
#include "os/file.h"

TEST(what_the_executor_tells_the_shim_is_read_as_written)
{
    char dir[] = "/tmp/helios-test-files-XXXXXX";
    int foreign = 0;
    uint64_t log_max = 0;
    assert_non_null(mkdtemp(dir));
    assert_int_equal(hl_shim_file_write(dir, true, UINT64_C(1) << 40), HL_OK);
    assert_int_equal(hl_shim_file_read(dir, &foreign, &log_max), HL_OK);
    assert_true(foreign);
    assert_int_equal(log_max, UINT64_C(1) << 40);
    unlink(hl_path_in(dir, "shim.json").s);
    rmdir(dir);
}

TEST(a_field_that_the_shim_lacks_or_that_has_another_type_is_named)
{
    static const struct {
        const char *text, *word;
    } rows[] = {
        {"{\"logMaxBytes\": 1}", "foreignTopology"},
        {"{\"foreignTopology\": true}", "logMaxBytes"},
        {"{\"foreignTopology\": 1, \"logMaxBytes\": 1}", "foreignTopology"},
        {"{\"foreignTopology\": true, \"logMaxBytes\": \"1MiB\"}", "logMaxBytes"},
        {"{", "shim.json:1"},
    };

    char dir[] = "/tmp/helios-test-files-XXXXXX";
    assert_non_null(mkdtemp(dir));
    const struct hl_path path = hl_path_in(dir, "shim.json");
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        int foreign;
        uint64_t log_max;
        assert_int_equal(hl_file_write_atomic(path.s, rows[i].text, strlen(rows[i].text)), HL_OK);
        assert_int_equal(hl_shim_file_read(dir, &foreign, &log_max), HL_EINVAL);
        assert_non_null(strstr(hl_error_text(), path.s));
        assert_non_null(strstr(hl_error_text(), rows[i].word));
    }
    unlink(path.s);
    rmdir(dir);
}
