/* The files shared by executor and shim. */
#include "support/test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "hw/process/process_executor_private.h"
#include "os/file.h"

TEST(what_the_executor_tells_the_shim_is_read_as_written)
{
    char dir[] = "/tmp/helios-test-files-XXXXXX";
    const struct hl_shim_options wrote = {
        .foreign = true, .log_max_bytes = UINT64_C(1) << 40, .engine = HL_ENGINE_PODMAN};
    struct hl_shim_options read = {0};
    assert_non_null(mkdtemp(dir));
    assert_int_equal(hl_shim_file_write(dir, &wrote), HL_OK);
    assert_int_equal(hl_shim_file_read(dir, &read), HL_OK);
    assert_true(read.foreign);
    assert_int_equal(read.log_max_bytes, UINT64_C(1) << 40);
    assert_int_equal(read.engine, HL_ENGINE_PODMAN);
    unlink(hl_path_in(dir, "shim.json").s);
    rmdir(dir);
}

/* Its shim was started by an Agent that knew no other executor. */
TEST(a_file_without_an_executor_means_processes)
{
    static const char text[] = "{\"foreignTopology\": false, \"logMaxBytes\": 1}";
    char dir[] = "/tmp/helios-test-files-XXXXXX";
    struct hl_shim_options read = {.engine = HL_ENGINE_DOCKER};
    assert_non_null(mkdtemp(dir));
    const struct hl_path path = hl_path_in(dir, "shim.json");
    assert_int_equal(hl_file_write_atomic(path.s, text, strlen(text)), HL_OK);
    assert_int_equal(hl_shim_file_read(dir, &read), HL_OK);
    assert_int_equal(read.engine, HL_ENGINE_NONE);
    unlink(path.s);
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
        {"{\"foreignTopology\": true, \"logMaxBytes\": 1, \"executor\": \"lxc\"}", "lxc"},
        {"{", "shim.json:1"},
    };

    char dir[] = "/tmp/helios-test-files-XXXXXX";
    assert_non_null(mkdtemp(dir));
    const struct hl_path path = hl_path_in(dir, "shim.json");
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct hl_shim_options read;
        assert_int_equal(hl_file_write_atomic(path.s, rows[i].text, strlen(rows[i].text)), HL_OK);
        assert_true(hl_shim_file_read(dir, &read) != HL_OK);
        assert_non_null(strstr(hl_error_text(), rows[i].word));
    }
    unlink(path.s);
    rmdir(dir);
}
