/* The serving half. A call arrives on the KJ thread, becomes JSON there and travels to the
 * handler's loop as an hl_rpc_call; its promise waits in ServerCore::pending under a number. The
 * answer is built into a message by the answering thread and travels back with the number: when the
 * promise is gone meanwhile (connection lost, server closed), nobody is found under it and the
 * answer is dropped. */
#include "rpc/convert.hpp"
#include "rpc/runtime.hpp"
#include "rpc/versions.hpp"

#include <capnp/rpc-twoparty.h>

#include <atomic>
#include <new>
#include <unordered_map>
#include <utility>

extern "C" {
#include "base/log.h"
#include "os/loop.h"
#include "rpc/rpc.h"
}

namespace hl::rpc
{
namespace
{
using capnp::DynamicStruct;
using Context = capnp::CallContext<DynamicStruct, DynamicStruct>;
using VatId = capnp::rpc::twoparty::VatId;

constexpr unsigned max_connections = 512;

class ServerCore final : public Core,
                         public std::enable_shared_from_this<ServerCore>,
                         public kj::TaskSet::ErrorHandler
{
  public:
    ServerCore(std::shared_ptr<Runtime> rt, capnp::InterfaceSchema interface,
               const struct hl_rpc_serve_opts &opts)
        : runtime(std::move(rt)), schema(interface), loop(opts.loop), handler(opts.handler),
          arg(opts.arg)
    {
    }

    /* KJ thread. Takes the descriptor. */
    void listen(int fd, const std::string &where);
    kj::Promise<void> call(capnp::InterfaceSchema::Method method, Context context);
    void answer(uint64_t id, Message message);
    void reject(uint64_t id, hl_status st, const std::string &text);
    void shutdown() override;

    const std::shared_ptr<Runtime> runtime;
    const capnp::InterfaceSchema schema;
    struct hl_loop *const loop;
    const hl_rpc_handler handler;
    void *const arg;
    std::atomic<bool> closed{false};

  private:
    struct Pending {
        kj::Own<kj::PromiseFulfiller<void>> fulfiller;
        Context context;
    };

    kj::Promise<void> accept();
    void admit(kj::Own<kj::AsyncIoStream> stream);
    void taskFailed(kj::Exception &&e) override;

    std::string address;
    kj::Own<kj::ConnectionReceiver> listener;
    kj::Maybe<capnp::Capability::Client> bootstrap;
    kj::Own<kj::TaskSet> tasks; /* the accept loop and every connection */
    unsigned connections = 0;
    uint64_t received = 0; /* bytes, since the last call */
    uint64_t last_id = 0;
    std::unordered_map<uint64_t, Pending> pending;
};

/* The capability that clients get; it lives as long as somebody refers to it. */
class Servant final : public CancellableServer
{
  public:
    explicit Servant(std::shared_ptr<ServerCore> c)
        : CancellableServer(c->schema), core(std::move(c))
    {
    }

    kj::Promise<void> call(capnp::InterfaceSchema::Method method, Context context) override
    {
        return core->call(method, kj::mv(context));
    }

  private:
    std::shared_ptr<ServerCore> core;
};

/* Members are destroyed from the last to the first: the RPC system leaves before its stream. */
struct Connection {
    Connection(kj::Own<kj::AsyncIoStream> s, capnp::Capability::Client bootstrap,
               capnp::ReaderOptions options)
        : stream(kj::mv(s)), network(*stream, capnp::rpc::twoparty::Side::SERVER, options),
          system(capnp::makeRpcServer(network, kj::mv(bootstrap)))
    {
        system.setFlowLimit(max_message_words);
    }

    kj::Own<kj::AsyncIoStream> stream;
    capnp::TwoPartyVatNetwork network;
    capnp::RpcSystem<VatId> system;
};
} // namespace
} // namespace hl::rpc

extern "C" {
struct hl_rpc_server {
    std::shared_ptr<hl::rpc::ServerCore> core;
    std::string address;
    uint64_t inode;
};

struct hl_rpc_call {
    std::shared_ptr<hl::rpc::ServerCore> core;
    uint64_t id;
    std::string method;
    capnp::StructSchema results;
    hl::rpc::Json params;
};
}

namespace hl::rpc
{
namespace
{
void deliver(void *arg)
{
    auto *call = static_cast<struct hl_rpc_call *>(arg);
    if (call->core->closed.load(std::memory_order_acquire)) {
        delete call;
        return;
    }
    call->core->handler(call->core->arg, call, call->method.c_str(), call->params.get());
}

void ServerCore::listen(int fd, const std::string &where)
{
    address = where;
    using Flags = kj::LowLevelAsyncIoProvider;
    listener = runtime->io().wrapListenSocketFd(fd, Flags::TAKE_OWNERSHIP | Flags::ALREADY_CLOEXEC |
                                                        Flags::ALREADY_NONBLOCK);
    bootstrap = capnp::Capability::Client(
        capnp::DynamicCapability::Client(kj::heap<Servant>(shared_from_this())));
    tasks = kj::heap<kj::TaskSet>(*this);
    tasks->add(accept());
    runtime->add(shared_from_this());
}

kj::Promise<void> ServerCore::accept()
{
    return listener->accept()
        .then(
            [this](kj::Own<kj::AsyncIoStream> stream) -> kj::Promise<void> {
                admit(kj::mv(stream));
                return kj::READY_NOW;
            },
            [this](kj::Exception &&e) {
                /* Out of descriptors, most likely: wait for some to be closed. */
                hl_debug("RPC: accept: %s", e.getDescription().cStr());
                return runtime->timer().afterDelay(100 * kj::MILLISECONDS);
            })
        .then([this] { return accept(); });
}

void ServerCore::admit(kj::Own<kj::AsyncIoStream> stream)
{
    if (connections >= max_connections) {
        hl_debug("RPC: connection refused: %u are open already", connections);
        return;
    }
    set_keepalive(*stream, address);
    capnp::ReaderOptions options;
    options.traversalLimitInWords = max_message_words;
    options.nestingLimit = max_depth;
    auto connection = kj::heap<Connection>(counted(kj::mv(stream), received),
                                           KJ_ASSERT_NONNULL(bootstrap), options);
    connections++;
    auto gone = connection->network.onDisconnect();
    tasks->add(gone.attach(kj::mv(connection), kj::defer([this] { connections--; })));
}

void ServerCore::taskFailed(kj::Exception &&e)
{
    hl_debug("RPC: connection ended: %s", e.getDescription().cStr());
}

kj::Promise<void> ServerCore::call(capnp::InterfaceSchema::Method method, Context context)
{
    auto call = std::make_unique<struct hl_rpc_call>();
    count_message(address, "call", false, std::exchange(received, 0), 0, HL_OK);
    try {
        call->params = json_from_struct(context.getParams());
    } catch (const ConvertError &e) {
        return exception_of(e.status, e.text);
    } catch (const kj::Exception &e) {
        return exception_of(HL_EINVAL,
                            std::string("malformed message: ") + e.getDescription().cStr());
    }
    context.releaseParams();
    Servant::may_be_cancelled(context);
    uint64_t id = ++last_id;
    call->core = shared_from_this();
    call->id = id;
    call->method = method.getProto().getName().cStr();
    call->results = method.getResultType();
    auto paf = kj::newPromiseAndFulfiller<void>();
    pending.emplace(id, Pending{kj::mv(paf.fulfiller), kj::mv(context)});
    hl_loop_post(loop, deliver, call.release());
    return paf.promise.attach(
        kj::defer([self = shared_from_this(), id] { self->pending.erase(id); }));
}

void ServerCore::answer(uint64_t id, Message message)
{
    auto found = pending.find(id);
    if (found == pending.end())
        return;
    Context &context = found->second.context;
    auto root = message->getRoot<DynamicStruct>(context.getResultsType());
    count_message(address, "answer", true, message->sizeInWords() * sizeof(capnp::word), 0, HL_OK);
    context.setResults(root.asReader());
    found->second.fulfiller->fulfill();
}

void ServerCore::reject(uint64_t id, hl_status st, const std::string &text)
{
    auto found = pending.find(id);
    if (found == pending.end())
        return;
    count_message(address, "answer", true, text.size(), 0, st);
    found->second.fulfiller->reject(exception_of(st, text));
}

void ServerCore::shutdown()
{
    tasks = nullptr; /* drops the connections, and with them the waiting calls */
    listener = nullptr;
    bootstrap = nullptr;
    pending.clear();
}

void post_reject(struct hl_rpc_call *call, hl_status st, std::string text)
{
    std::unique_ptr<struct hl_rpc_call> owner(call);
    auto core = call->core;
    call->core->runtime->post(
        [core, id = call->id, st, text = std::move(text)] { core->reject(id, st, text); });
}
} // namespace
} // namespace hl::rpc

using namespace hl::rpc;

extern "C" hl_status hl_rpc_serve(struct hl_rpc *rpc, const struct hl_rpc_serve_opts *opts,
                                  struct hl_rpc_server **out)
try {
    capnp::InterfaceSchema schema;
    HL_TRY(find_interface(opts->interface, &schema));
    auto server = std::make_unique<struct hl_rpc_server>();
    server->core = std::make_shared<ServerCore>(rpc->runtime, schema, *opts);
    int fd = -1;
    HL_TRY(listen_on(opts->address, &fd, &server->address));
    server->inode = socket_inode(server->address);
    rpc->runtime->run([&] { server->core->listen(fd, server->address); });
    *out = server.release();
    return HL_OK;

} catch (const std::bad_alloc &) {
    return hl_fail(HL_ENOMEM, "RPC server on %s", opts->address);
}

extern "C" const char *hl_rpc_server_address(const struct hl_rpc_server *server)
{
    return server->address.c_str();
}

extern "C" void hl_rpc_server_close(struct hl_rpc_server *server)
{
    if (server == nullptr)
        return;
    server->core->closed.store(true, std::memory_order_release);
    unlink_socket(server->address, server->inode);
    server->core->runtime->run([&] {
        server->core->shutdown();
        server->core->runtime->remove(server->core);
    });
    delete server;
}

extern "C" void hl_rpc_reply(struct hl_rpc_call *call, json_t *result)
{
    Json owned(result);
    try {
        Message message = message_from_json(result, call->results);
        auto core = call->core;
        core->runtime->post([core, id = call->id, m = std::move(message)]() mutable {
            core->answer(id, std::move(m));
        });
        delete call;
    } catch (const ConvertError &e) {
        /* Our own bug, but the caller must not wait for ever. */
        std::string text = "the answer of " + call->method + " doesn't fit the schema: " + e.text;
        post_reject(call, HL_EINTERNAL, text);
    } catch (const std::bad_alloc &) {
        post_reject(call, HL_ENOMEM, "the answer");
    }
}

extern "C" void hl_rpc_reject(struct hl_rpc_call *call, hl_status st, const char *text)
{
    std::string clean = text != nullptr ? text : hl_error_text();
    post_reject(call, st == HL_OK ? HL_EINTERNAL : st, clean_text(clean.data(), clean.size()));
}
