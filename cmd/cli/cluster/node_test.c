/* `helios node test`: makes a node test itself now, and shows what it finds. */
#include <stdio.h>

#include "cli/cluster/commands.h"

#define TEST_MS 20000 /* the test's own deadline and the time of the calls */

static hl_status print_health(const char *node, const struct hl_api_health *health)
{
    struct cli_table t;
    cli_table_init(&t, "TEST|!RESULT|FOUND|WHY");
    for (size_t i = 0; i < health->rows.count; i++) {
        const struct hl_api_health_row *row = &health->rows.items[i];
        cli_cell(&t, "%s", row->name);
        cli_cell(&t, "%s", hl_api_health_state_name(row->state));
        cli_cell(&t, "%s", row->value[0] != '\0' ? row->value : "-");
        cli_cell(&t, "%s", row->text);
    }
    HL_TRY(cli_table_print(&t));
    cli_print(stdout, "%s %s in %d ms\n", node,
              health->state == HL_API_HEALTH_STATE_FAILED ? "failed" : "passed", health->took_ms);
    return HL_OK;
}

/* The exit status tells a script the result. */
hl_status cmd_node_test(struct cli *cli, int argc, char **argv)
{
    HL_AUTO(hl_arena_fini) struct hl_arena arena = {0};
    struct hl_api_controller_test_node_results r;
    HL_TRY(cli_no_args(cli, argc, argv, 1, 1));
    HL_TRY(CLI_CALL_FOR(cli, test_node,
                        &(struct hl_api_controller_test_node_params){.node = argv[0]}, TEST_MS,
                        &arena, &r));
    HL_TRY(cli->json ? cli_print_value(&hl_api_health_type, &r.health)
                     : print_health(argv[0], &r.health));
    if (r.health.state != HL_API_HEALTH_STATE_FAILED)
        return HL_OK;
    return hl_fail(HL_EIO, "node '%s' is not fit: %s", argv[0], r.health.reason);
}
