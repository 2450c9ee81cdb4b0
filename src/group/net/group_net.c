/* Groups between nodes. They are separate from group.c, which is also in a library without the
 * network. */
#include "base/abi.h"
#include "group/net/steps.h"

int hybridps_group_net(const hybridps_net_options *options, hybridps_group **out)
{
    hybridps_net_options o;
    hybridps_transport t;
    if (options == NULL || out == NULL)
        return hl_fail(HL_EINVAL, "hybridps_group_net: options and out must not be NULL");
    HL_TRY(HL_ABI_READ(hybridps_net_options, options, &o));
    HL_TRY(hl_collective_net_open(&o, &t));
    int code = hybridps_group_over(&t, out);
    if (code != 0)
        t.close(t.arg);
    return code;
}
