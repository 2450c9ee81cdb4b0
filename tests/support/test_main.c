#include "support/test.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct CMUnitTest all[TESTS_MAX];
static size_t all_count;
static CMFixtureFunction all_setup, all_teardown;

void test_register(const char *name, CMUnitTestFunction run, CMFixtureFunction setup,
                   CMFixtureFunction teardown)
{
    if (all_count == TESTS_MAX) {
        fprintf(stderr, "more than %d tests in a program; split it\n", TESTS_MAX);
        abort();
    }
    all[all_count++] = (struct CMUnitTest){name, run, setup, teardown, NULL};
}

void tests_surround(CMFixtureFunction setup, CMFixtureFunction teardown)
{
    all_setup = setup;
    all_teardown = teardown;
}

static const struct CMUnitTest *find_test(const char *name)
{
    for (size_t i = 0; i < all_count; i++)
        if (strcmp(all[i].name, name) == 0)
            return &all[i];
    return NULL;
}

int tests_run(int argc, char **argv)
{
    struct CMUnitTest chosen[TESTS_MAX];
    size_t count = 0;
    for (int i = 1; i < argc; i++) {
        const struct CMUnitTest *test = find_test(argv[i]);
        if (test == NULL || count == TESTS_MAX) {
            fprintf(stderr, "%s: there is no test '%s'; its tests are:\n",
                    program_invocation_short_name, argv[i]);
            for (size_t k = 0; k < all_count; k++)
                fprintf(stderr, "    %s\n", all[k].name);
            return 2;
        }
        chosen[count++] = *test;
    }
    if (all_count == 0) {
        fprintf(stderr, "%s has no tests\n", program_invocation_short_name);
        return 2;
    }
    return _cmocka_run_group_tests(program_invocation_short_name, argc > 1 ? chosen : all,
                                   argc > 1 ? count : all_count, all_setup, all_teardown);
}

__attribute__((weak)) int main(int argc, char **argv)
{
    return tests_run(argc, argv);
}
