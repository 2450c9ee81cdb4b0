#include "support/test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "auth/secret.h"

static char dir[32], path[64];

static void write_secret(const char *text, mode_t mode)
{
    unlink(path);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
    assert_int_equal(chmod(path, mode), 0);
}

static int begin(void **state)
{
    (void)state;
    snprintf(dir, sizeof(dir), "/tmp/helios-test-XXXXXX");
    assert_non_null(mkdtemp(dir));
    snprintf(path, sizeof(path), "%s/secret", dir);
    hl_auth_use_none();
    return 0;
}

static int end(void **state)
{
    (void)state;
    hl_auth_use_none();
    unlink(path);
    return rmdir(dir);
}

TEST_IN(begin, end, no_file_is_no_secret)
{
    assert_int_equal(hl_auth_use_file(""), HL_OK);
    assert_false(hl_auth_is_set());
    assert_int_equal(hl_auth_use_file("none"), HL_OK);
    assert_int_equal(hl_auth_use_file(path), HL_ENOENT);
    assert_false(hl_auth_is_set());
}

TEST_IN(begin, end, a_file_that_others_may_read_is_refused)
{
    static const mode_t bad[] = {0644, 0604, 0602, 0620, 0660};
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        write_secret("0123456789abcdef\n", bad[i]);
        assert_int_equal(hl_auth_use_file(path), HL_EPERM);
        assert_false(hl_auth_is_set());
    }
    write_secret("0123456789abcdef\n", 0640); /* a daemons' group */
    assert_int_equal(hl_auth_use_file(path), HL_OK);
}

TEST_IN(begin, end, a_secret_has_a_least_and_a_greatest_length)
{
    char text[4200];
    write_secret("0123456789abcde\n\n", 0600);
    assert_int_equal(hl_auth_use_file(path), HL_EINVAL);
    memset(text, 'x', sizeof(text));
    text[4097] = '\0';
    write_secret(text, 0600);
    assert_int_equal(hl_auth_use_file(path), HL_EINVAL);
    text[4096] = '\0';
    write_secret(text, 0600);
    assert_int_equal(hl_auth_use_file(path), HL_OK);
}

/* Expected values: HMAC-SHA-256 of Python's hmac module, key SHA-256 of the secret. */
TEST_IN(begin, end, keys_and_proofs_are_those_of_another_implementation)
{
    static const uint8_t derived[] = {0xe0, 0xfa, 0x73, 0x68, 0xf7, 0x11, 0xbb, 0xd7,
                                      0x2c, 0xc9, 0x9b, 0x96, 0xea, 0xbb, 0xd7, 0xbd,
                                      0x66, 0x32, 0xea, 0x92, 0x40, 0x30, 0x3a, 0x51,
                                      0xa3, 0x4d, 0x90, 0xb3, 0x01, 0x01, 0x95, 0xe0};
    static const uint8_t proved[] = {0x92, 0xb6, 0xdb, 0xe9, 0xf3, 0xfd, 0xdd, 0x8f,
                                     0x8f, 0xda, 0x8f, 0x8b, 0x3f, 0x37, 0x97, 0x03,
                                     0xfb, 0x8c, 0x53, 0xf5, 0xbc, 0x7b, 0x8c, 0x30,
                                     0x6f, 0xbf, 0x88, 0x55, 0xe8, 0x46, 0xb0, 0x3e};
    uint8_t a[HL_AUTH_LEN], b[HL_AUTH_LEN], out[HL_AUTH_LEN];
    memset(a, 1, sizeof(a));
    memset(b, 2, sizeof(b));
    write_secret("correct horse battery staple\n", 0600);
    assert_int_equal(hl_auth_use_file(path), HL_OK);
    hl_auth_derive("purpose", out);
    assert_memory_equal(out, derived, sizeof(out));
    hl_auth_proof("purpose", a, b, out);
    assert_memory_equal(out, proved, sizeof(out));
    assert_true(hl_auth_equal(out, proved));
    hl_auth_proof("purpose", b, a, out);
    assert_false(hl_auth_equal(out, proved));
}

TEST_IN(begin, end, a_process_has_one_secret)
{
    write_secret("0123456789abcdef", 0600);
    assert_int_equal(hl_auth_use_file(path), HL_OK);
    assert_int_equal(hl_auth_use_file(path), HL_OK);
    assert_int_equal(hl_auth_use_file(""), HL_OK);
    assert_true(hl_auth_is_set());
    assert_int_equal(hl_auth_use_file("none"), HL_ECONFLICT);
    write_secret("another one, long enough", 0600);
    assert_int_equal(hl_auth_use_file(path), HL_ECONFLICT);
}

TEST_IN(begin, end, a_made_file_is_private_and_stays)
{
    struct stat st;
    uint8_t first[HL_AUTH_LEN], again[HL_AUTH_LEN];
    assert_int_equal(hl_auth_make_file(path), HL_OK);
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0600);
    assert_int_equal(hl_auth_use_file(path), HL_OK);
    hl_auth_derive("x", first);
    assert_int_equal(hl_auth_make_file(path), HL_OK);
    assert_int_equal(hl_auth_use_file(path), HL_OK);
    hl_auth_derive("x", again);
    assert_memory_equal(first, again, sizeof(first));
}
