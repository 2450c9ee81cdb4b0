/* libhelios in this process, connected to the cluster that the commands call. */
#include "cli/cli/cli.h"
#include "helios/helios.h"

static hl_status client_open(struct cli *cli, const char *path, int timeout_ms, helios_client **out)
{
    const char *controller;
    HL_TRY(cli_controller_address(cli, &controller));
    HL_TRY(cli_secret(cli));
    helios_options o = {HELIOS_OPTIONS_INIT, .controller = controller, .path = path,
                        .timeout_ms = timeout_ms};
    return (hl_status)helios_open(&o, out);
}

hl_status cli_client(struct cli *cli, const char *path, int timeout_ms, helios_client **out)
{
    hl_status st = client_open(cli, path, timeout_ms, out);
    if (st == HL_OK)
        return HL_OK;
    st = cli_await_l3(cli, st);
    return st == HL_OK ? client_open(cli, path, timeout_ms, out) : cli_explain(cli, st);
}
