/* torch_rig.h - files of torch.save for tests, made by tests/support/torch_files.py, and a source
 * of bytes in memory.
 *
 * Owns:    the folder, from rig_setup to rig_teardown; rig_file is the caller's (rig_free).
 * Threads: one.
 * Errors:  a test skips itself where torch is not installed; any other failure fails it.
 * Units:   bytes.
 * Limits:  one folder at a time.
 */
#ifndef HL_TESTS_TORCH_RIG_H
#define HL_TESTS_TORCH_RIG_H

#include "support/test.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/torch/file.h"
#include "support/torch_command.h"

struct rig_file {
    uint8_t *bytes;
    size_t len;
    struct hl_torch_source source;
};

static char rig_dir[] = "/tmp/hl_torch_XXXXXX";
static bool rig_made; /* torch has made the files */

static inline int rig_make(const char *what)
{
    char arguments[256];
    if (mkdtemp(rig_dir) == NULL)
        return 1;
    snprintf(arguments, sizeof(arguments), "tests/support/torch_files.py %s %s", rig_dir, what);
    int rc = torch_command(arguments);
    rig_made = rc == 0;
    return rc == 0 || rc == 77 ? 0 : 1;
}

static inline int rig_teardown(void **state __attribute__((unused)))
{
    char command[64];
    snprintf(command, sizeof(command), "rm -r %s", rig_dir);
    return system(command);
}

static inline void rig_need_torch(void)
{
    if (!rig_made)
        TEST_SKIP("torch is not installed");
}

static inline hl_status rig_read(void *arg, uint64_t at, void *to, size_t len)
{
    const struct rig_file *f = arg;
    assert_true(at <= f->len && len <= f->len - at);
    memcpy(to, f->bytes + at, len);
    return HL_OK;
}

/* The source reads the first `len` bytes; rig_file must not move. */
static inline void rig_source(struct rig_file *f, size_t len)
{
    f->len = len;
    f->source = (struct hl_torch_source){.size = len, .read = rig_read, .arg = f};
}

static inline void rig_load(const char *name, struct rig_file *f)
{
    char path[256];
    snprintf(path, sizeof(path), "%s/%s", rig_dir, name);
    FILE *in = fopen(path, "rb");
    assert_non_null(in);
    assert_int_equal(fseek(in, 0, SEEK_END), 0);
    size_t len = (size_t)ftell(in);
    rewind(in);
    f->bytes = malloc(len + 1);
    assert_non_null(f->bytes);
    assert_int_equal(fread(f->bytes, 1, len, in), len);
    f->bytes[len] = '\0';
    fclose(in);
    rig_source(f, len);
}

static inline void rig_free(struct rig_file *f)
{
    free(f->bytes);
    f->bytes = NULL;
}

static inline void assert_error_has(const char *text)
{
    if (strstr(hl_error_text(), text) == NULL)
        fail_msg("'%s' is not in: %s", text, hl_error_text());
}

#endif
