/* Groups between nodes: apart from group.c, which a library without the network has, too. */
#include "group/net/steps.h"

int hybridps_group_net(const hybridps_net_options *options, hybridps_group **out)
{
    hybridps_transport t;
    if (options == NULL || out == NULL)
        return hl_fail(HL_EINVAL, "a group wants options and a place for the result");
    HL_TRY(hl_collective_net_open(options, &t));
    int code = hybridps_group_over(&t, out);
    if (code != 0)
        t.close(t.arg);
    return code;
}
