/* The serving half. A call arrives on the KJ thread, is decoded there to a struct, and goes to the
 * handler's loop as an hl_rpc_call; its promise waits in ServerCore::pending under a number. The
 * answering thread builds the message of the answer, which goes back with the number. If the
 * promise is gone meanwhile (connection lost, server closed), the number is not found and the
 * answer is dropped.
 *
 *     KJ thread                           handler's loop             any thread
 *     accept --> admit --> Client
 *     call: decode, pending[id] --post--> deliver --> handler ....   hl_rpc_reply, hl_rpc_reject:
 *     answer, reject: pending[id] <--------------- runtime->post --- the message is built here
 *
 * Only the KJ thread uses a ServerCore, except for `runtime`, `schema` and `serve`, which are
 * constant, and `closed`, which deliver reads: it drops calls that arrive after the close. An
 * hl_rpc_call belongs to one thread at a time: to the handler's from deliver until the reply or
 * rejection, which may come from any thread; the post hands its number back to the KJ thread.
 *
 *     who has the call      its hl_rpc_call      its entry in `pending`
 *     KJ thread             made, posted         added before the post
 *     handler's loop        deliver; handler     (not looked at)
 *     any thread            reply: deleted       (not looked at)
 *     KJ thread             gone                 answered; removed when its promise is dropped
 *
 * A promise may be dropped between any two of these lines. An answer then finds no entry: numbers
 * are never used again.
 *
 *     hl_rpc_server --> ServerCore <-- Runtime::cores, until the shutdown
 *                        ^  ^  '-- each hl_rpc_call, until it is answered
 *                        |  '-- the promise of each call
 *                        '-- Servant <-- its connection, and what a client does with it
 *
 * None of these references leads back from the core after its shutdown, which drops the tasks, and
 * with them connections, servants and promises.
 *
 *     connection   admit --no secret, or a Unix socket--> serve_or_refuse
 *                    '---a secret is needed--> greeting --known--> serve_or_refuse
 *                                                 |-----not known--> refused: told why, then closed
 *                                                 '-----says nothing, or is the oldest of too
 *                                                       many like it--> closed
 *                  serve_or_refuse --room--> served --> gone
 *                                  '-no room--> refused
 *
 *     served       no call for first_call_ns: closed; idle for idle_ns: closed if room is needed
 */
#include "rpc/message.hpp"
#include "rpc/runtime.hpp"
#include "rpc/versions.hpp"

#include <capnp/rpc-twoparty.h>

#include <malloc.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cassert>
#include <map>
#include <new>
#include <unordered_map>
#include <unordered_set>
#include <utility>

extern "C" {
#include "auth/secret.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/log_limit.h"
#include "base/plane.h"
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

/* A client that has made no call is closed after this time. After its first call it can be idle
 * forever, and is closed only to make room. */
constexpr uint64_t first_call_ns = 10 * HL_NS_PER_S;
constexpr uint64_t idle_ns = 60 * HL_NS_PER_S;
/* How long a client that is told that there is no room has to read it. */
constexpr auto refusal_time = 2 * kj::SECONDS;
constexpr unsigned max_refused = 64;
/* A refused peer may be unknown: its messages get little memory. */
constexpr uint64_t refused_words = 8192;
constexpr unsigned most_greeted = 1024;
constexpr unsigned most_connections = 16384;
constexpr unsigned least_connections = 64;

/* The server's data about a connection. */
struct Client {
    uint64_t since_ns;      /* of its last call or answer, or of its start */
    unsigned calls_waiting; /* that wait for their answers */
    bool has_called;
    kj::Own<kj::PromiseFulfiller<void>> close;
};

/* Half of the descriptors that the process may have, because its files and other servers need
 * some. */
unsigned connections_by_limit()
{
    struct rlimit files;
    if (getrlimit(RLIMIT_NOFILE, &files) != 0 || files.rlim_cur == RLIM_INFINITY)
        return most_connections;
    return (unsigned)std::clamp<rlim_t>(files.rlim_cur / 2, least_connections, most_connections);
}

/* A call without an answer yet, for the KJ thread. The answer is set in its context. */
struct Pending {
    kj::Own<kj::PromiseFulfiller<void>> fulfiller;
    Context context;
};

/* Connections that have not proved their identity yet, oldest first. */
using Greetings = std::map<uint64_t, kj::Own<kj::PromiseFulfiller<Greeted>>>;

/* It lives as long as the server, one of its calls, or a client's capability refers to it: a
 * handler can answer after the server was closed, and then finds `pending` empty. */
class ServerCore final : public Core,
                         public std::enable_shared_from_this<ServerCore>,
                         public kj::TaskSet::ErrorHandler
{
  public:
    ServerCore(std::shared_ptr<Runtime> rt, capnp::InterfaceSchema interface,
               const struct hl_rpc_serve_opts &opts)
        : runtime(std::move(rt)), schema(interface), serve(opts),
          max_connections(opts.max_connections > 0 ? opts.max_connections : connections_by_limit()),
          max_greeted(std::clamp(max_connections / 4, 1u, most_greeted))
    {
    }

    /* KJ thread. Takes the descriptor. */
    void listen(int fd, const std::string &where);
    kj::Promise<void> call(const std::shared_ptr<Client> &client,
                           capnp::InterfaceSchema::Method method, Context context);
    void answer(uint64_t id, Message message);
    void reject(uint64_t id, hl_status st, const std::string &text);
    void shutdown() override;
    void decode(struct hl_rpc_call &call, capnp::InterfaceSchema::Method method, Context &context);

    const std::shared_ptr<Runtime> runtime;
    const capnp::InterfaceSchema schema;
    const struct hl_rpc_serve_opts serve; /* its texts belong to the caller: don't use them later */
    std::atomic<bool> closed{false};

  private:
    kj::Promise<void> accept();
    void admit(kj::Own<kj::AsyncIoStream> stream);
    void serve_client(kj::Own<kj::AsyncIoStream> stream);
    void greet(kj::Own<kj::AsyncIoStream> stream);
    void push_oldest(Greetings &of);
    void hear(uint64_t number);
    void serve_or_refuse(kj::Own<kj::AsyncIoStream> stream);
    std::string no_room() const;
    void refuse(kj::Own<kj::AsyncIoStream> stream, hl_status st, const std::string &why);
    void tell_refusal(const std::string &why);
    bool make_room();
    kj::Promise<void> close_silent();
    void taskFailed(kj::Exception &&e) override;

    std::string address;
    kj::Own<kj::ConnectionReceiver> listener;
    kj::Own<kj::TaskSet> tasks; /* the accept loop and every connection */
    const unsigned max_connections;
    std::unordered_set<std::shared_ptr<Client>> clients;
    unsigned refused = 0; /* connections that are being told why */
    const unsigned max_greeted;
    Greetings silent, heard; /* before and after the client's hello */
    uint64_t last_greeted = 0;
    struct hl_log_limit refusals = {};
    uint64_t received = 0; /* bytes since the last call */
    uint64_t last_id = 0;
    std::unordered_map<uint64_t, Pending> pending;
};

/* The capability that a client gets; it lives as long as something refers to it. */
class Servant final : public CancellableServer
{
  public:
    Servant(std::shared_ptr<ServerCore> c, std::shared_ptr<Client> of)
        : CancellableServer(c->schema), core(std::move(c)), client(std::move(of))
    {
    }

    kj::Promise<void> call(capnp::InterfaceSchema::Method method, Context context) override
    {
        return core->call(client, method, kj::mv(context));
    }

  private:
    std::shared_ptr<ServerCore> core;
    std::shared_ptr<Client> client;
};

/* Members are destroyed in reverse order: the RPC system before its stream. */
struct Connection {
    Connection(kj::Own<kj::AsyncIoStream> s, capnp::Capability::Client bootstrap,
               uint64_t max_words)
        : stream(kj::mv(s)),
          network(*stream, capnp::rpc::twoparty::Side::SERVER, options(max_words)),
          system(capnp::makeRpcServer(network, kj::mv(bootstrap)))
    {
        system.setFlowLimit(max_words);
    }

    static capnp::ReaderOptions options(uint64_t max_words)
    {
        capnp::ReaderOptions o;
        o.traversalLimitInWords = max_words;
        o.nestingLimit = max_depth;
        return o;
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
    ~hl_rpc_call()
    {
        hl_arena_fini(&arena);
        if (values >= hl::rpc::many_values) /* otherwise the heap keeps what one message took */
            malloc_trim(0);
    }

    std::shared_ptr<hl::rpc::ServerCore> core;
    uint64_t id;
    capnp::StructSchema results;
    const struct hl_api_method *api = nullptr;
    void *params = nullptr; /* in the arena */

    struct hl_arena arena {
    };

    size_t values = 0; /* in the parameters */
};
}

namespace hl::rpc
{
namespace
{
/* Runs on the handler's loop, like hl_rpc_server_close, so no handler starts after the close: a
 * call that was posted before finds `closed` and goes without an answer: its connection is gone. */
void deliver(void *arg)
{
    auto *call = static_cast<struct hl_rpc_call *>(arg);
    if (call->core->closed.load(std::memory_order_acquire)) {
        delete call;
        return;
    }
    const struct hl_rpc_serve_opts &serve = call->core->serve;
    serve.dispatch(serve.handlers, serve.arg, call, call->api->ordinal, call->params);
}

void ServerCore::listen(int fd, const std::string &where)
{
    address = where;
    using Flags = kj::LowLevelAsyncIoProvider;
    listener = runtime->io().wrapListenSocketFd(fd, Flags::TAKE_OWNERSHIP | Flags::ALREADY_CLOEXEC |
                                                        Flags::ALREADY_NONBLOCK);
    tasks = kj::heap<kj::TaskSet>(*this);
    tasks->add(accept());
    tasks->add(close_silent());
    runtime->add(shared_from_this());
}

/* Accepts one connection after another, forever. Without free descriptors it waits, because
 * retrying at once would spin. */
kj::Promise<void> ServerCore::accept()
{
    /* Without a free descriptor KJ throws here, not in the promise. */
    return kj::evalNow([this] { return listener->accept(); })
        .then(
            [this](kj::Own<kj::AsyncIoStream> stream) -> kj::Promise<void> {
                /* KJ reads at once and throws if the client has reset the connection already: that
                 * must end this connection, not the loop. */
                KJ_IF_MAYBE (e, kj::runCatchingExceptions([&] { admit(kj::mv(stream)); }))
                    taskFailed(kj::mv(*e));
                return kj::READY_NOW;
            },
            [this](kj::Exception &&e) {
                hl_warn("no connection can be accepted; the next try is in 1 s address=%s cause=%s",
                        address.c_str(), e.getDescription().cStr());
                return runtime->timer().afterDelay(1 * kj::SECONDS);
            })
        .then([this] { return accept(); });
}

void ServerCore::admit(kj::Own<kj::AsyncIoStream> stream)
{
    set_keepalive(*stream, address);
    if (check_user(*stream, address) != HL_OK) {
        tell_refusal(hl_error_text());
        return;
    }
    if (is_unix(address) || !hl_auth_is_set())
        serve_or_refuse(kj::mv(stream));
    else
        greet(kj::mv(stream));
}

/* Makes room for another connection. */
void ServerCore::push_oldest(Greetings &of)
{
    if (of.size() < max_greeted)
        return;
    of.begin()->second->fulfill(Greeted{kj::Own<kj::AsyncIoStream>(), false});
    of.erase(of.begin());
}

void ServerCore::hear(uint64_t number)
{
    auto node = silent.extract(number);
    if (node.empty()) /* pushed out meanwhile */
        return;
    push_oldest(heard);
    heard.insert(std::move(node));
}

/* The states of a greeting, by the table that has its number:
 *
 *     silent --hello has arrived--> heard --proof--> (none): served, or refused and told why
 *        '---------------------------'--gone, late, or pushed out by a newer one--> (none): closed
 *
 * Three promises race: the greeting, a timer, and the one that push_oldest fulfils. The task of the
 * winner destroys the others, and then erases the number from whichever table has it. `hear` runs
 * inside the greeting, so the tables are there: they go with the core, the greeting with `tasks`.
 *
 * A client is served only after it has proved that it knows the secret. Unknown peers have places
 * of their own, where a new one replaces the oldest: however many there are, they take no room from
 * known clients, and a client that greets without delay is heard. Those that have sent their hello
 * have other places than those that have not, because connecting costs a peer nothing: however many
 * do only that, a greeting that has begun goes on. */
void ServerCore::greet(kj::Own<kj::AsyncIoStream> stream)
{
    push_oldest(silent);
    auto pushed = kj::newPromiseAndFulfiller<Greeted>();
    uint64_t number = ++last_greeted;
    silent.emplace(number, kj::mv(pushed.fulfiller));
    auto late = runtime->timer().afterDelay(first_call_ns * kj::NANOSECONDS).then([] {
        return Greeted{kj::Own<kj::AsyncIoStream>(), false};
    });
    tasks->add(
        kj::evalNow([&] { return greet_client(kj::mv(stream), [this, number] { hear(number); }); })
            .exclusiveJoin(kj::mv(late))
            .exclusiveJoin(kj::mv(pushed.promise))
            .then([this](Greeted g) {
                if (g.stream.get() == nullptr)
                    return;
                if (g.known)
                    serve_or_refuse(kj::mv(g.stream));
                else
                    refuse(kj::mv(g.stream), HL_EPERM,
                           "the server wants the cluster's secret: set auth.secret_file, or "
                           "HELIOS_AUTH_SECRET_FILE, to a file that holds it");
            })
            .attach(kj::defer([this, number] {
                silent.erase(number);
                heard.erase(number);
            })));
}

void ServerCore::serve_or_refuse(kj::Own<kj::AsyncIoStream> stream)
{
    if (clients.size() < max_connections || make_room())
        serve_client(kj::mv(stream));
    else
        refuse(kj::mv(stream), HL_EBUSY, no_room());
}

/* The connection lives in its own promise: when the client disconnects or `close` is fulfilled, the
 * task ends and destroys it. */
void ServerCore::serve_client(kj::Own<kj::AsyncIoStream> stream)
{
    auto close = kj::newPromiseAndFulfiller<void>();
    auto client = std::make_shared<Client>(Client{hl_now_ns(), 0, false, kj::mv(close.fulfiller)});
    capnp::Capability::Client bootstrap(
        capnp::DynamicCapability::Client(kj::heap<Servant>(shared_from_this(), client)));
    auto connection = kj::heap<Connection>(counted(kj::mv(stream), received), kj::mv(bootstrap),
                                           max_request_words);
    clients.insert(client);
    auto gone = connection->network.onDisconnect().exclusiveJoin(kj::mv(close.promise));
    tasks->add(
        gone.attach(kj::mv(connection), kj::defer([this, client] { clients.erase(client); })));
}

std::string ServerCore::no_room() const
{
    return "too many connections: " + std::to_string(max_connections) +
           " are open; try again later, or raise the daemon's limit of open files";
}

/* The client gets the reason as the answer to its first call, because a connection that is just
 * closed would look like a dead daemon. Beyond max_refused at once, connections are just closed. */
void ServerCore::refuse(kj::Own<kj::AsyncIoStream> stream, hl_status st, const std::string &why)
{
    tell_refusal(why);
    hl_fault_count(st == HL_EPERM ? "no-secret" : "no-room", "rpc");
    if (refused >= max_refused)
        return;
    auto connection =
        kj::heap<Connection>(counted(kj::mv(stream), received),
                             capnp::Capability::Client(exception_of(st, why)), refused_words);
    refused++;
    auto gone =
        connection->network.onDisconnect().exclusiveJoin(runtime->timer().afterDelay(refusal_time));
    tasks->add(gone.attach(kj::mv(connection), kj::defer([this] { refused--; })));
}

void ServerCore::tell_refusal(const std::string &why)
{
    uint64_t others;
    if (hl_log_limit_passes(&refusals, hl_now_ns(), &others))
        hl_warn("a connection was refused address=%s cause=\"%s\" others=%llu", address.c_str(),
                why.c_str(), (unsigned long long)others);
}

/* Closes the client that has been silent for longest: one that never called, or otherwise one that
 * has been idle for long. False: all are in use. */
bool ServerCore::make_room()
{
    std::shared_ptr<Client> oldest;
    uint64_t now = hl_now_ns();
    for (const auto &c : clients) {
        if (c->calls_waiting > 0 || (c->has_called && now - c->since_ns < idle_ns))
            continue;
        if (oldest == nullptr || c->has_called < oldest->has_called ||
            (c->has_called == oldest->has_called && c->since_ns < oldest->since_ns))
            oldest = c;
    }
    if (oldest == nullptr)
        return false;
    oldest->close->fulfill();
    clients.erase(oldest);
    return true;
}

/* Checks every second. Ends with `tasks`, as accept does. */
kj::Promise<void> ServerCore::close_silent()
{
    uint64_t now = hl_now_ns();
    for (const auto &c : clients)
        if (!c->has_called && now - c->since_ns >= first_call_ns)
            c->close->fulfill(); /* its task erases it from `clients` later, not during this loop */
    return runtime->timer().afterDelay(1 * kj::SECONDS).then([this] { return close_silent(); });
}

void ServerCore::taskFailed(kj::Exception &&e)
{
    hl_debug("RPC: connection ended: %s", e.getDescription().cStr());
}

/* Runs on the KJ thread, and limits how many values a message can expand to. A method without a
 * handler is refused before anything is decoded. */
void ServerCore::decode(struct hl_rpc_call &call, capnp::InterfaceSchema::Method method,
                        Context &context)
{
    size_t most = values_of(method), left = most;
    unsigned ordinal = method.getOrdinal();
    if (!serve.dispatch(serve.handlers, nullptr, nullptr, ordinal, nullptr))
        throw ConvertError{HL_EUNSUPPORTED, "the daemon here does not have this method"};
    call.api = &serve.api->methods[ordinal];
    call.params = hl_arena_alloc(&call.arena, call.api->params->size);
    if (call.params == nullptr)
        throw ConvertError{HL_ENOMEM, "out of memory decoding a call"};
    value_from_message(*call.api->params, context.getParams(), call.arena, call.params, left);
    call.values = most - left;
}

/* The promise can be dropped at any time, because the client disconnects or cancels. The deferred
 * part then removes the call, and its answer is dropped. */
kj::Promise<void> ServerCore::call(const std::shared_ptr<Client> &client,
                                   capnp::InterfaceSchema::Method method, Context context)
{
    auto call = std::make_unique<struct hl_rpc_call>();
    client->has_called = true;
    client->since_ns = hl_now_ns();
    count_message(address, "call", false, std::exchange(received, 0), 0, HL_OK);
    try {
        decode(*call, method, context);
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
    call->results = method.getResultType();
    auto paf = kj::newPromiseAndFulfiller<void>();
    /* Before the post: the handler may answer from another thread at once. */
    pending.emplace(id, Pending{kj::mv(paf.fulfiller), kj::mv(context)});
    client->calls_waiting++;
    hl_loop_post(serve.loop, deliver, call.release());
    return paf.promise.attach(kj::defer([self = shared_from_this(), client, id] {
        self->pending.erase(id);
        client->calls_waiting--;
        client->since_ns = hl_now_ns();
    }));
}

/* KJ thread. The answering thread has built the message; here it is only copied. The entry stays:
 * fulfilling only schedules the promise's end, which removes it. */
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
    tasks = nullptr; /* drops connections, their waiting calls, and accept, which uses `listener` */
    listener = nullptr;
    pending.clear();
}

/* `core` keeps the server, and so the runtime, until the post has written its signal: the KJ thread
 * may run the job and drop the other references before that. */
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
    HL_TRY(find_interface(opts->api->name, &schema));
    auto server = std::make_unique<struct hl_rpc_server>();
    server->core = std::make_shared<ServerCore>(rpc->runtime, schema, *opts);
    int fd = -1;
    HL_TRY(listen_on(opts->address, &fd, &server->address));
    server->inode = socket_inode(server->address);
    if (!is_unix(server->address) && !is_loopback(server->address) && !hl_auth_is_set())
        hl_warn(
            "every peer that reaches this port may do everything; set auth.secret_file address=%s",
            server->address.c_str());
    /* Waits: the caller's texts and `fd` are used by the job, and its failure is ours. */
    hl_status st =
        rpc->runtime->run([&] { server->core->listen(std::exchange(fd, -1), server->address); });
    if (st != HL_OK) {
        if (fd >= 0) /* the runtime has ended, so nothing has taken it */
            close(fd);
        unlink_socket(server->address, server->inode);
        return hl_fail_prefix(st, "listen on %s: ", opts->address);
    }
    *out = server.release();
    return HL_OK;

} catch (const std::bad_alloc &) {
    return hl_fail(HL_ENOMEM, "out of memory allocating the RPC server on %s", opts->address);
}

extern "C" const char *hl_rpc_server_address(const struct hl_rpc_server *server)
{
    return server->address.c_str();
}

/* Blocks until the KJ thread has dropped all connections, so no call arrives afterwards. `closed`
 * comes first: calls that the KJ thread posts until then, and those that wait in the loop's mailbox
 * already, meet it in deliver after this has returned, when the handlers' state may be gone. If the
 * runtime has ended, it has shut the core down itself. */
extern "C" void hl_rpc_server_close(struct hl_rpc_server *server)
{
    if (server == nullptr)
        return;
    server->core->closed.store(true, std::memory_order_release);
    unlink_socket(server->address, server->inode);
    hl_status st = server->core->runtime->run([&] {
        server->core->shutdown();
        server->core->runtime->remove(server->core);
    });
    if (st != HL_OK)
        hl_debug("RPC: closing the server on %s: %s", server->address.c_str(), hl_error_text());
    delete server;
}

extern "C" struct hl_arena *hl_rpc_call_arena(struct hl_rpc_call *call)
{
    return &call->arena;
}

extern "C" const struct hl_api_method *hl_rpc_call_method(const struct hl_rpc_call *call)
{
    return call->api;
}

extern "C" void hl_rpc_reply(struct hl_rpc_call *call, const struct hl_api_method *method,
                             const void *results)
{
    assert(call->api == method);
    if (hl_arena_failed(&call->arena))
        return post_reject(call, HL_ENOMEM, "out of memory building the answer");
    try {
        Message message = message_from_value(*method->results, results, call->results, false);
        auto core = call->core;
        core->runtime->post([core, id = call->id, m = std::move(message)]() mutable {
            core->answer(id, std::move(m));
        });
        delete call;
    } catch (const ConvertError &e) {
        post_reject(call, e.status, e.text);
    } catch (const std::bad_alloc &) {
        post_reject(call, HL_ENOMEM, "out of memory building the answer");
    }
}

extern "C" void hl_rpc_reject(struct hl_rpc_call *call, hl_status st, const char *text)
{
    std::string clean = text != nullptr ? text : hl_error_text();
    post_reject(call, st == HL_OK ? HL_EINTERNAL : st, clean_text(clean.data(), clean.size()));
}
