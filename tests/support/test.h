/* support/test.h - tests that register themselves.
 *
 *     TEST(a_sentence_that_says_what_holds)
 *     {
 *         assert_int_equal(...);
 *     }
 *
 * The program runs all of them in the order of the file, or those named on its command line, and
 * prints the name and the result of each. `state` is cmocka's.
 *
 * Owns:    nothing.
 * Threads: registration before main; the tests run in main's thread.
 * Errors:  the exit status is the number of tests that failed; 2 for a name without a test.
 * Units:   none.
 * Limits:  TESTS_MAX tests in a program.
 */
#ifndef TESTS_SUPPORT_TEST_H
#define TESTS_SUPPORT_TEST_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#include <cmocka.h>

#define TESTS_MAX 256

/* Ends a test that can't run here. tests/summary.py prints the reason, a format with arguments. */
#define TEST_SKIP(...)                                                                             \
    do {                                                                                           \
        print_message("[  REASON  ] " __VA_ARGS__);                                                \
        print_message("\n");                                                                       \
        skip();                                                                                    \
    } while (0)

/* How long a test waits for what must happen. A wait ends when it has happened, so a busy machine
 * does not fail the test and a quiet one loses no time. */
#define TEST_PATIENCE_NS UINT64_C(60000000000)

void test_register(const char *name, CMUnitTestFunction run, CMFixtureFunction setup,
                   CMFixtureFunction teardown);
/* Before the first test and after the last one. */
void tests_surround(CMFixtureFunction setup, CMFixtureFunction teardown);
/* For a program with a main of its own; all others use that of tests/support/test_main.c. argc 0:
 * all tests. */
int tests_run(int argc, char **argv);

#ifdef __cplusplus
}
#endif

#define TEST(name) TEST_IN(NULL, NULL, name)

/* A test with a fixture of its own; NULL = none. */
#define TEST_IN(setup, teardown, name)                                                             \
    static void name(void **state);                                                                \
    __attribute__((constructor)) static void register_##name(void)                                 \
    {                                                                                              \
        test_register(#name, name, setup, teardown);                                               \
    }                                                                                              \
    static void name(void **state __attribute__((unused)))

/* One fixture for the whole file. */
#define TESTS_IN(setup, teardown)                                                                  \
    __attribute__((constructor)) static void surround_tests(void)                                  \
    {                                                                                              \
        tests_surround(setup, teardown);                                                           \
    }

#endif
