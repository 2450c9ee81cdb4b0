/* rpc/versions.hpp - hides the differences between Cap'n Proto 1.x (Debian 13) and 0.9 (Debian 12).
 *
 * Owns:    nothing.
 * Threads: as what it stands for.
 * Errors:  as what it stands for.
 * Units:   words of 8 bytes.
 * Limits:  none.
 */
#ifndef HL_RPC_VERSIONS_HPP
#define HL_RPC_VERSIONS_HPP

#include <capnp/capability.h>
#include <capnp/dynamic.h>

namespace hl::rpc
{
template <typename Client>
auto typeless_request(Client &client, uint64_t interface_id, uint16_t ordinal,
                      capnp::MessageSize hint)
{
#if CAPNP_VERSION >= 1000000
    return client.typelessRequest(interface_id, ordinal, hint, {});
#else
    return client.typelessRequest(interface_id, ordinal, hint);
#endif
}

/* A call is cancelled when its caller goes. In 1.x the server allows that, in 0.9 each call. */
class CancellableServer : public capnp::DynamicCapability::Server
{
  public:
#if CAPNP_VERSION >= 1000000
    explicit CancellableServer(capnp::InterfaceSchema schema) : Server(schema, {true})
    {
    }
#else
    using capnp::DynamicCapability::Server::Server;
#endif

    template <typename Context> static void may_be_cancelled(Context &context)
    {
#if CAPNP_VERSION >= 1000000
        (void)context;
#else
        context.allowCancellation();
#endif
    }
};
} // namespace hl::rpc

#endif
