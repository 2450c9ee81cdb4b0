/* The calling half. The calling thread builds the message of a call. The KJ thread connects if
 * there is no connection, sends the message, and races the answer against a timer. A ClientCall is
 * finished once: by the answer, by the timer, by closing the peer, or by its caller, who waits a
 * little longer than the timer. Whatever comes later is dropped.
 *
 *     caller's thread                  KJ thread
 *     prepare: the message
 *     launch ------- post -----------> start --> begin --> connected --> send --> answered, failed
 *     wait, or go on                     '--- the timer --> time_out            |
 *        <------ `mutex`, wake -------- finish <-------------------------------'
 *     the loop <-- hl_loop_post ------- complete, of an asynchronous call
 *
 * Both threads share a ClientCall. What prepare writes does not change after the call is posted;
 * `params` is the KJ thread's from then on; `mutex` guards the rest. The job, the tasks and the
 * caller hold references, so none of them cares who goes first.
 *
 *     a call   prepared --> waits for a connection --may_send--> sent --> answered
 *                 |                |                              |
 *                 '----------------+---- finished, by the first of several: not sent, or unknown
 *
 * "Not sent" is a promise: the caller may call again. So may_send and the timeout exclude each
 * other, and a call that is finished is never sent.
 *
 * Only the KJ thread uses a PeerCore.
 *
 *     connection   none --attempt--> connected --ended, or found ended--> none
 *     attempt      none --first call that needs it--> runs --the last that waits has gone--> none
 *                    ^----- connected, or failed: all that wait learn it -----'
 *
 * All calls share one connection, and all that wait for it share one attempt. Each connection has a
 * number, so that a call that fails on an old connection does not end its successor. */
#include "rpc/message.hpp"
#include "rpc/runtime.hpp"
#include "rpc/versions.hpp"

#include <capnp/rpc-twoparty.h>

#include <poll.h>

#include <cassert>
#include <new>
#include <set>
#include <utility>

extern "C" {
#include "auth/secret.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/plane.h"
#include "os/loop.h"
#include "rpc/rpc.h"
}

namespace hl::rpc
{
namespace
{
using capnp::AnyPointer;
using VatId = capnp::rpc::twoparty::VatId;

/* How much longer than the deadline a caller waits for the KJ thread to report it. */
constexpr uint64_t grace_ns = 500 * HL_NS_PER_MS;

struct Target {
    std::string address;
    std::string interface;
    capnp::InterfaceSchema schema;
};

/* An answer: a struct in its own arena. */
struct Answer {
    Answer() = default;
    Answer(const Answer &) = delete;

    Answer(Answer &&other) noexcept : value(other.value)
    {
        hl_arena_move(&arena, &other.arena);
    }

    Answer &operator=(Answer &&other) noexcept
    {
        value = other.value;
        hl_arena_move(&arena, &other.arena);
        return *this;
    }

    ~Answer()
    {
        hl_arena_fini(&arena);
    }

    struct hl_arena arena {
    };

    void *value = nullptr;
};

/* Calls `finish` with an asynchronous answer, which calls `done`. */
struct Callback {
    struct hl_loop *loop;
    void *arg;
    hl_rpc_finish finish;
    hl_rpc_callback done;
};

/* An asynchronous answer on its way to the loop. */
struct Completion {
    Callback callback;
    Outcome outcome;
    Answer answer;
};

/* Runs on the caller's loop. */
void complete(void *arg)
{
    std::unique_ptr<Completion> c(static_cast<Completion *>(arg));
    const Callback &to = c->callback;
    to.finish(to.done, to.arg, c->outcome.status, c->outcome.text.c_str(),
              c->outcome.status == HL_OK ? c->answer.value : nullptr);
}

class ClientCall
{
  public:
    ClientCall(const Target &t, const struct hl_api_method &m, int timeout)
        : target(t), api(m), method(m.name), timeout_ms(timeout > 0 ? timeout : 1),
          started_ns(hl_now_ns()), deadline_ns(started_ns + (uint64_t)timeout_ms * HL_NS_PER_MS)
    {
    }

    /* Builds the message. HL_EINVAL: the method or its parameters do not match the schema. */
    Outcome prepare(const void *value);
    /* KJ thread. Throws the conversion's exceptions. */
    Answer decode(capnp::Response<AnyPointer> &response, size_t &left) const;
    /* Any thread; the first call wins. */
    void finish(Outcome o, Answer answer = {});
    void time_out();
    /* KJ thread, right before the message goes out. False: the call is finished, don't send it. */
    bool may_send();
    bool was_sent();
    /* Waits until the call is finished, and moves its answer out. */
    Outcome wait(Answer *out);

    const Target target;
    const struct hl_api_method &api;
    const std::string method;
    const int timeout_ms;
    const uint64_t started_ns;
    const uint64_t deadline_ns;
    uint64_t interface_id = 0;
    uint16_t ordinal = 0;
    capnp::StructSchema results;
    Message params;
    uint64_t request_bytes = 0;
    bool wants_result = true;
    Callback callback{}; /* no loop: a caller waits */

  private:
    /* Call with the mutex held; only the first end counts. */
    void end(Outcome o, Answer answer);

    Mutex mutex; /* guards the rest */
    bool sent = false;
    bool finished = false;
    Outcome outcome{};
    Answer result;
};

/* Runs on the caller's thread, so that the caller's structs need not outlive the call. */
Outcome ClientCall::prepare(const void *value)
{
    KJ_IF_MAYBE (m, target.schema.findMethodByName(method.c_str())) {
        interface_id = m->getContainingInterface().getProto().getId();
        ordinal = m->getOrdinal();
        results = m->getResultType();
        try {
            params = message_from_value(*api.params, value, m->getParamType(), true);
            request_bytes = params->sizeInWords() * sizeof(capnp::word);
        } catch (const ConvertError &e) {
            return {e.status, e.text};
        }
        return {HL_OK, ""};
    }
    return {HL_EINVAL, "the interface has no such method"};
}

Answer ClientCall::decode(capnp::Response<AnyPointer> &response, size_t &left) const
{
    Answer answer;
    if (!wants_result)
        return answer;
    auto reader = response.getAs<capnp::DynamicStruct>(results);
    answer.value = hl_arena_alloc(&answer.arena, api.results->size);
    if (answer.value == nullptr)
        throw ConvertError{HL_ENOMEM, "out of memory decoding it"};
    value_from_message(*api.results, reader, answer.arena, answer.value, left);
    return answer;
}

/* The error text names the call, unless the daemon's own sentence says enough. The loop's mailbox
 * has a lock of its own, which never waits for this one. */
void ClientCall::end(Outcome o, Answer answer)
{
    if (finished)
        return;
    finished = true;
    if (o.status != HL_OK && (!o.refused || hl_log_shows(HL_LOG_DEBUG)))
        o.text += " (" + target.interface + "." + method + " at " + target.address + ")";
    count_message(target.address, "call", true, request_bytes, hl_now_ns() - started_ns, o.status);
    if (callback.loop != nullptr) {
        auto c = new Completion{callback, std::move(o), std::move(answer)};
        hl_loop_post(callback.loop, complete, c);
        return;
    }
    outcome = std::move(o);
    result = std::move(answer);
    mutex.wake();
}

void ClientCall::finish(Outcome o, Answer answer)
{
    Locked lock(mutex);
    end(std::move(o), std::move(answer));
}

/* What it says of the sending must stay true, and a busy KJ thread may be about to send: the same
 * hold of the lock reads `sent` and finishes the call, after which may_send refuses. */
void ClientCall::time_out()
{
    std::string text = "no answer within " + std::to_string(timeout_ms) + " ms";
    Locked lock(mutex);
    end({HL_ETIMEDOUT, sent ? text : "connect to " + target.address + ": " + text}, {});
}

bool ClientCall::may_send()
{
    Locked lock(mutex);
    sent = !finished;
    return sent;
}

bool ClientCall::was_sent()
{
    Locked lock(mutex);
    return sent;
}

/* The KJ thread's timer ends the call. The caller waits longer only so that a busy KJ thread can't
 * hold it forever. The KJ thread may still use the call after this, so the answer is moved out
 * under the lock. */
Outcome ClientCall::wait(Answer *out)
{
    {
        Locked lock(mutex);
        while (!finished && mutex.wait_until(deadline_ns + grace_ns))
            continue;
    }
    time_out(); /* does nothing if there is an answer */
    Locked lock(mutex);
    *out = std::move(result);
    return outcome;
}

/* Members are destroyed in reverse order. */
struct Connection {
    Connection(kj::Own<kj::AsyncIoStream> s, capnp::ReaderOptions options, uint64_t n)
        : number(n), stream(kj::mv(s)),
          network(*stream, capnp::rpc::twoparty::Side::CLIENT, options),
          system(capnp::makeRpcClient(network)), main(bootstrap())
    {
    }

    capnp::Capability::Client bootstrap()
    {
        capnp::MallocMessageBuilder message(8);
        auto id = message.getRoot<VatId>();
        id.setSide(capnp::rpc::twoparty::Side::SERVER);
        return system.bootstrap(id);
    }

    const uint64_t number;
    kj::Own<kj::AsyncIoStream> stream;
    capnp::TwoPartyVatNetwork network;
    capnp::RpcSystem<VatId> system;
    capnp::Capability::Client main;
};

class PeerCore final : public Core, public kj::TaskSet::ErrorHandler
{
  public:
    PeerCore(std::shared_ptr<Runtime> rt, Target t) : runtime(std::move(rt)), target(std::move(t))
    {
    }

    /* KJ thread. */
    void start(const std::shared_ptr<ClientCall> &call);
    void shutdown() override;

    const std::shared_ptr<Runtime> runtime;
    const Target target;

  private:
    kj::Promise<void> connected();
    kj::Promise<void> attempt();
    void adopt(kj::Own<kj::AsyncIoStream> stream);
    void lose(uint64_t number);
    void retire_if_ended();
    kj::Promise<capnp::Response<AnyPointer>> begin(std::shared_ptr<ClientCall> call,
                                                   std::shared_ptr<uint64_t> number);
    kj::Promise<capnp::Response<AnyPointer>> send(ClientCall &call);
    kj::Promise<void> expire(std::shared_ptr<ClientCall> call);
    void answered(ClientCall &call, capnp::Response<AnyPointer> response);
    void failed(ClientCall &call, const kj::Exception &e, uint64_t number);

    void taskFailed(kj::Exception &&) override
    {
    }

    bool closed = false;
    uint64_t received = 0;      /* bytes since the last answer */
    uint64_t values = 0;        /* allowed for earlier answers, but unused */
    kj::Own<kj::TaskSet> tasks; /* calls, and watches over connections */
    kj::Own<Connection> connection;
    uint64_t last_number = 0;
    kj::Own<kj::ForkedPromise<void>> connecting; /* while an attempt runs */
    bool attempting = false;
    unsigned waiting = 0; /* calls that wait for the attempt */
    std::set<std::shared_ptr<ClientCall>> active;
};

/* Resolves, connects and, if there is a secret, greets. `attempting` is cleared before the waiting
 * calls continue, so that a call that finds no connection begins another attempt. */
kj::Promise<void> PeerCore::attempt()
{
    return runtime->network()
        .parseAddress(target.address.c_str())
        .then([](kj::Own<kj::NetworkAddress> address) {
            auto stream = address->connect();
            return stream.attach(kj::mv(address));
        })
        .then([this](kj::Own<kj::AsyncIoStream> stream) -> kj::Promise<kj::Own<kj::AsyncIoStream>> {
            if (is_unix(target.address) || !hl_auth_is_set())
                return kj::mv(stream);
            return greet_server(kj::mv(stream), target.address);
        })
        .then(
            [this](kj::Own<kj::AsyncIoStream> stream) {
                attempting = false;
                adopt(kj::mv(stream));
            },
            [this](kj::Exception &&e) {
                attempting = false;
                kj::throwFatalException(kj::mv(e));
            });
}

/* Calls share one attempt, which ends with the last of them. Otherwise a later call would wait for
 * the retransmission of a packet that was sent long ago, when the host was down. */
kj::Promise<void> PeerCore::connected()
{
    retire_if_ended();
    if (connection.get() != nullptr)
        return kj::READY_NOW;
    if (!attempting) {
        attempting = true;
        connecting = kj::heap<kj::ForkedPromise<void>>(attempt().fork());
    }
    waiting++;
    return connecting->addBranch().attach(kj::defer([this] {
        if (--waiting == 0 && attempting) {
            attempting = false;
            connecting = nullptr;
        }
    }));
}

void PeerCore::adopt(kj::Own<kj::AsyncIoStream> stream)
{
    capnp::ReaderOptions options;
    options.traversalLimitInWords = max_message_words;
    options.nestingLimit = max_depth;
    uint64_t number = ++last_number;
    set_keepalive(*stream, target.address);
    connection = kj::heap<Connection>(counted(kj::mv(stream), received), options, number);
    tasks->add(connection->network.onDisconnect().then([this, number] { lose(number); }));
}

void PeerCore::lose(uint64_t number)
{
    if (connection.get() == nullptr || connection->number != number)
        return;
    /* Destroys it later, because this may run in a continuation of the same connection. */
    tasks->add(kj::evalLater([old = kj::mv(connection)]() mutable { old = nullptr; }));
}

/* The other side may have closed the connection before our loop could notice. Asking the kernel
 * costs one system call and saves the next call from failing. Answers that arrived before the end
 * are still read. */
void PeerCore::retire_if_ended()
{
    if (connection.get() == nullptr)
        return;
    KJ_IF_MAYBE (fd, connection->stream->getFd()) {
        struct pollfd p = {*fd, POLLRDHUP, 0};
        if (poll(&p, 1, 0) <= 0)
            return;
        auto end = connection->network.onDisconnect();
        tasks->add(end.attach(kj::mv(connection)));
    }
}

/* From here on the daemon may have carried out the call, and a failure says so. */
kj::Promise<capnp::Response<AnyPointer>> PeerCore::send(ClientCall &call)
{
    if (!call.may_send()) /* its caller has gone, and was told that it was not sent */
        return KJ_EXCEPTION(FAILED, "the call has ended");
    capnp::MessageSize hint{call.params->sizeInWords() + 8, 0};
    auto request = typeless_request(connection->main, call.interface_id, call.ordinal, hint);
    request.set(call.params->getRoot<AnyPointer>().asReader());
    call.params = nullptr;
    return request.send();
}

/* *number: the connection that the call used; needed by failed(). */
kj::Promise<capnp::Response<AnyPointer>> PeerCore::begin(std::shared_ptr<ClientCall> call,
                                                         std::shared_ptr<uint64_t> number)
{
    return connected().then([this, call, number]() -> kj::Promise<capnp::Response<AnyPointer>> {
        if (connection.get() == nullptr) /* lost meanwhile; the deadline bounds this */
            return begin(call, number);
        *number = connection->number;
        return send(*call);
    });
}

void PeerCore::answered(ClientCall &call, capnp::Response<AnyPointer> response)
{
    uint64_t bytes = std::exchange(received, 0);
    count_message(target.address, "answer", false, bytes, 0, HL_OK);
    /* The bytes may have arrived together with an earlier answer, so values that it left unused
     * count too. */
    size_t left = std::min<uint64_t>(values + answer_values + bytes * values_per_byte, max_values);
    values = 0;
    try {
        Answer answer = call.decode(response, left);
        values = left;
        call.finish({HL_OK, ""}, std::move(answer));
    } catch (const ConvertError &e) {
        call.finish({HL_EPROTO, "the answer can't be used: " + e.text});
    } catch (const kj::Exception &e) {
        call.finish({HL_EPROTO, std::string("malformed answer: ") + e.getDescription().cStr()});
    }
}

void PeerCore::failed(ClientCall &call, const kj::Exception &e, uint64_t number)
{
    if (!call.was_sent()) {
        call.finish({HL_EUNAVAIL, "connect to " + target.address + ": " + connect_reason(e) +
                                      "; is " + daemon_of(target.interface) + " running there?"});
        return;
    }
    if (e.getType() == kj::Exception::Type::DISCONNECTED)
        lose(number);
    call.finish(outcome_of(e));
}

/* Times the call out at its deadline. KJ's timer counts from the last time that its loop waited, so
 * on a busy thread it fires early. */
kj::Promise<void> PeerCore::expire(std::shared_ptr<ClientCall> call)
{
    uint64_t now = hl_now_ns();
    if (now >= call->deadline_ns) {
        call->time_out();
        return kj::READY_NOW;
    }
    return runtime->timer()
        .afterDelay((int64_t)(call->deadline_ns - now) * kj::NANOSECONDS)
        .then([this, call] { return expire(call); });
}

/* The answer and the timer race; the loser is dropped, and the call is removed from `active`. */
void PeerCore::start(const std::shared_ptr<ClientCall> &call)
{
    if (closed)
        return call->finish({HL_ECANCELED, "the peer was closed"});
    if (hl_now_ns() >= call->deadline_ns)
        return call->time_out();
    if (tasks.get() == nullptr)
        tasks = kj::heap<kj::TaskSet>(*this);
    active.insert(call);
    auto number = std::make_shared<uint64_t>(0);
    auto work = begin(call, number).then([this, call](capnp::Response<AnyPointer> &&response) {
        answered(*call, kj::mv(response));
    });
    tasks->add(work.exclusiveJoin(expire(call))
                   .catch_([this, call, number](kj::Exception &&e) { failed(*call, e, *number); })
                   .attach(kj::defer([this, call] { active.erase(call); })));
}

/* Finishes the calls first: if their tasks were just dropped, the callers would wait for the
 * timeout. `active` is moved away before, because each task that is dropped takes its call out of
 * it. The tasks go before the attempt and the connection that they wait for. */
void PeerCore::shutdown()
{
    closed = true;
    auto calls = std::move(active);
    for (const auto &call : calls)
        call->finish({HL_ECANCELED, "the peer was closed"});
    tasks = nullptr;
    connecting = nullptr;
    connection = nullptr;
}
} // namespace
} // namespace hl::rpc

using namespace hl::rpc;

extern "C" {
struct hl_rpc_peer {
    std::shared_ptr<PeerCore> core;
};
}

namespace
{
/* Gives the call to the KJ thread. A call that can't be given is finished here. */
void launch(const std::shared_ptr<PeerCore> &core, const std::shared_ptr<ClientCall> &call,
            const Outcome &o)
{
    if (o.status != HL_OK)
        call->finish(o);
    else if (!core->runtime->post([core, call] { core->start(call); }))
        call->finish({HL_ECANCELED, "the RPC runtime has ended"});
}
} // namespace

extern "C" hl_status hl_rpc_open(struct hl_rpc *rpc, const char *address, const char *interface,
                                 struct hl_rpc_peer **out)
try {
    Target target{address, interface, {}};
    HL_TRY(find_interface(interface, &target.schema));
    HL_TRY(check_address(address, false));
    auto peer = std::make_unique<struct hl_rpc_peer>();
    peer->core = std::make_shared<PeerCore>(rpc->runtime, target);
    rpc->runtime->post([core = peer->core] { core->runtime->add(core); });
    *out = peer.release();
    return HL_OK;

} catch (const std::bad_alloc &) {
    return hl_fail(HL_ENOMEM, "out of memory allocating the RPC peer %s", address);
}

/* Returns at once. The core lives until its job has run, and as long as a call refers to it. If the
 * runtime has ended, the job is refused: then serve has shut the core down. */
extern "C" void hl_rpc_peer_close(struct hl_rpc_peer *peer)
{
    if (peer == nullptr)
        return;
    peer->core->runtime->post([core = peer->core] {
        core->shutdown();
        core->runtime->remove(core);
    });
    delete peer;
}

extern "C" const char *hl_rpc_peer_address(const struct hl_rpc_peer *peer)
{
    return peer->core->target.address.c_str();
}

extern "C" const char *hl_rpc_peer_interface(const struct hl_rpc_peer *peer)
{
    return peer->core->target.interface.c_str();
}

extern "C" hl_status hl_rpc_call(struct hl_rpc_peer *peer, const struct hl_api_method *method,
                                 const void *params, int timeout_ms, struct hl_arena *arena,
                                 void *results)
try {
    auto core = peer->core; /* another thread can close the peer while we wait, not before */
    assert(!core->runtime->on_thread());
    auto call = std::make_shared<ClientCall>(core->target, *method, timeout_ms);
    call->wants_result = results != nullptr;
    launch(core, call, call->prepare(params));
    Answer answer;
    Outcome o = call->wait(&answer);
    if (o.status != HL_OK)
        return hl_fail(o.status, "%s", o.text.c_str());
    if (results != nullptr) {
        memcpy(results, answer.value, method->results->size);
        hl_arena_move(arena, &answer.arena);
    }
    return HL_OK;

} catch (const std::bad_alloc &) {
    return hl_fail(HL_ENOMEM, "out of memory calling %s", method->name);
}

extern "C" void hl_rpc_call_async(struct hl_rpc_peer *peer, const struct hl_api_method *method,
                                  const void *params, int timeout_ms, struct hl_loop *loop,
                                  hl_rpc_finish finish, hl_rpc_callback done, void *arg)
{
    auto call = std::make_shared<ClientCall>(peer->core->target, *method, timeout_ms);
    call->callback = {loop, arg, finish, done};
    launch(peer->core, call, call->prepare(params));
}
