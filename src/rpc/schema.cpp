/* The only file that includes what capnp generates from helios.capnp. */
#include "rpc/runtime.hpp"

#include "helios.capnp.h"

#include <cstring>

namespace hl::rpc
{
hl_status find_interface(const char *name, capnp::InterfaceSchema *out)
{
    if (strcmp(name, "Controller") == 0)
        *out = capnp::Schema::from<helios::api::Controller>();
    else if (strcmp(name, "Agent") == 0)
        *out = capnp::Schema::from<helios::api::Agent>();
    else if (strcmp(name, "L3") == 0)
        *out = capnp::Schema::from<helios::api::L3>();
    else
        return hl_fail(HL_EINVAL, "helios.capnp has no interface \"%s\"", name);
    return HL_OK;
}

const char *daemon_of(const std::string &interface)
{
    if (interface == "Controller")
        return "helios-controller";
    return interface == "Agent" ? "helios-agent" : "helios-l3d";
}
} // namespace hl::rpc
