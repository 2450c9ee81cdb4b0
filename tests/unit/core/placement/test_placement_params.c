/* The parameters of placement, and which values are refused. */
#include "support/test.h"

#include <math.h>
#include <string.h>

#include "core/placement/params.h"

static void refused(const struct hl_placement_params *params, const char *words)
{
    assert_int_equal(hl_placement_params_check(params), HL_EINVAL);
    if (strstr(hl_error_text(), words) == NULL)
        fail_msg("'%s' does not say '%s'", hl_error_text(), words);
}

static struct hl_placement_params defaults(void)
{
    struct hl_placement_params params;
    memset(&params, 0xff,
           sizeof(params)); /* every field must be set, otherwise it stays NaN or -1 */
    hl_placement_params_init(&params);
    return params;
}

TEST(defaults_are_those_of_the_specification_and_pass)
{
    struct hl_placement_params params = defaults();
    assert_int_equal(hl_placement_params_check(&params), HL_OK);
    assert_int_equal(params.window_ms, 300000);
    assert_int_equal(params.tau_ms, 120000);
    assert_float_equal(params.alpha, 0.7, 0);
    assert_float_equal(params.beta, 0.3, 0);
    assert_float_equal(params.high_pct, 85, 0);
    assert_float_equal(params.low_pct, 70, 0);
    assert_int_equal(params.spread_servers, 3);
    assert_int_equal(params.archive_ms, 3600000);
}

TEST(what_is_not_a_number_is_refused_by_name)
{
    struct hl_placement_params params = defaults();
    params.alpha = NAN;
    refused(&params, "policy.alpha");
    params = defaults();
    params.beta = INFINITY;
    refused(&params, "policy.beta");
    params = defaults();
    params.high_pct = NAN;
    refused(&params, "policy.high_pct");
}

TEST(what_is_out_of_range_is_refused_by_name)
{
    struct hl_placement_params params = defaults();
    params.alpha = -0.1;
    refused(&params, "policy.alpha is -0.1");
    params = defaults();
    params.window_ms = 0;
    refused(&params, "policy.window");
    params = defaults();
    params.tau_ms = INT64_MAX;
    refused(&params, "policy.tau");
    params = defaults();
    params.high_pct = 101;
    refused(&params, "policy.high_pct is 101");
    params = defaults();
    params.spread_servers = 5; /* more readers than are counted */
    refused(&params, "policy.spread_servers");
}

TEST(a_low_that_is_not_below_its_high_is_refused)
{
    struct hl_placement_params params = defaults();
    params.low_pct = 86;
    refused(&params, "policy.low_pct 86 is not below policy.high_pct 85");
    params.low_pct = 85;
    refused(&params, "policy.low_pct");
    params = defaults();
    params.warm_heat = params.cool_heat;
    refused(&params, "policy.cool_heat");
    params = defaults();
    params.alpha = params.beta = 0;
    refused(&params, "policy.alpha and policy.beta");
}
