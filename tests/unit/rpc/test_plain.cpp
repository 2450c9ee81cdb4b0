/* Helios against Cap'n Proto's own C++ API: generated stubs and EzRpc on the other
 * side. */
#include "helios.capnp.h"

#include <capnp/any.h>
#include <capnp/ez-rpc.h>
#include <kj/async-io.h>

#include "rpc/runtime.hpp"
#include "rpc/versions.hpp"

#include <atomic>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "support/test.h" /* its macro `skip` would change the headers above */

extern "C" {
#include "base/status.h"
#include "os/loop.h"
#include "rpc/rpc.h"
#include "support/rpc_json.h"
}

namespace
{
constexpr int patience_ms = 20000;
using helios::api::Controller;

/* A Helios server whose handler is a C++ function on the loop's thread. */
class Rig
{
  public:
    using Handler = std::function<void(struct hl_rpc_call *, const std::string &, const json_t *)>;

    explicit Rig(Handler h) : handler(std::move(h))
    {
        assert_int_equal(hl_loop_create(&loop), HL_OK);
        assert_int_equal(hl_rpc_create(&rpc), HL_OK);
        thread = std::thread([this] { status = hl_loop_run(loop); });
        struct hl_rpc_serve_opts opts = {};
        opts.address = "127.0.0.1:0";
        opts.loop = loop;
        opts.arg = this;
        assert_int_equal(rpc_json_serve(rpc, "Controller", &opts, handle, &server), HL_OK);
    }

    ~Rig()
    {
        hl_loop_post(loop, end, this);
        thread.join();
        hl_rpc_destroy(rpc);
        hl_loop_destroy(loop);
    }

    const char *address() const
    {
        return hl_rpc_server_address(server);
    }

  private:
    static void handle(void *arg, struct hl_rpc_call *call, const char *method,
                       const json_t *params)
    {
        static_cast<Rig *>(arg)->handler(call, method, params);
    }

    static void end(void *arg)
    {
        Rig *rig = static_cast<Rig *>(arg);
        hl_rpc_server_close(rig->server);
        hl_loop_stop(rig->loop);
    }

    Handler handler;
    struct hl_rpc *rpc = nullptr;
    struct hl_loop *loop = nullptr;
    struct hl_rpc_server *server = nullptr;
    hl_status status = HL_OK;
    std::thread thread;
};

template <typename Request> kj::Exception failure_of(Request &&request, kj::WaitScope &scope)
{
    KJ_IF_MAYBE (e, kj::runCatchingExceptions([&] { request.send().wait(scope); }))
        return *e;
    fail_msg("the call succeeded");
    return KJ_EXCEPTION(FAILED, "unreachable");
}

void expect_exception(const kj::Exception &e, kj::Exception::Type type, const char *text)
{
    assert_int_equal(static_cast<int>(e.getType()), static_cast<int>(type));
    if (strstr(e.getDescription().cStr(), text) == nullptr)
        fail_msg("\"%s\" is not in \"%s\"", text, e.getDescription().cStr());
}

TEST(a_generated_client_talks_to_a_helios_server)
{
    Rig rig([](struct hl_rpc_call *call, const std::string &method, const json_t *params) {
        std::string name = json_string_value(json_object_get(params, "name"));
        if (method != "getModel" || name == "missing")
            hl_rpc_reject(call, HL_ENOENT, "there is no model \"missing\"");
        else
            rpc_json_reply(call,
                           json_pack("{s: {s: s, s: i, s: [{s: I}]}}", "model", "name",
                                     name.c_str(), "tp", 4, "versions", "version", (json_int_t)7));
    });
    capnp::EzRpcClient client(rig.address());
    auto &scope = client.getWaitScope();
    auto controller = client.getMain<Controller>();
    auto request = controller.getModelRequest();
    request.setName("llama");
    auto response = request.send().wait(scope);
    auto model = response.getModel();
    assert_string_equal(model.getName().cStr(), "llama");
    assert_int_equal(model.getTp(), 4);
    assert_int_equal(model.getVersions().size(), 1);
    assert_int_equal(model.getVersions()[0].getVersion(), 7);
    auto missing = controller.getModelRequest();
    missing.setName("missing");
    expect_exception(failure_of(missing, scope), kj::Exception::Type::FAILED,
                     "ENOENT: there is no model \"missing\"");
    auto unknown = hl::rpc::typeless_request(controller, capnp::typeId<Controller>(), 999,
                                             capnp::MessageSize{4, 0});
    expect_exception(failure_of(unknown, scope), kj::Exception::Type::UNIMPLEMENTED, "");
}

TEST(texts_are_made_utf8_and_floats_must_be_finite)
{
    Rig rig([](struct hl_rpc_call *call, const std::string &, const json_t *params) {
        hl_rpc_reject(call, HL_EBUSY, json_string_value(json_object_get(params, "name")));
    });
    capnp::EzRpcClient client(rig.address());
    auto &scope = client.getWaitScope();
    auto controller = client.getMain<Controller>();
    auto nan = controller.heartbeatRequest();
    nan.setName("n");
    nan.setIncarnation("i");
    nan.initTelemetry().setLoad1(kj::nan());
    expect_exception(failure_of(nan, scope), kj::Exception::Type::FAILED,
                     "EINVAL: field telemetry.load1: not a finite number");
    auto bytes = controller.heartbeatRequest();
    static const char name[] = "a\xFF\0b\xC0\x80\xED\xA0\x80\xF0\x9F\x98\x80";
    bytes.setName(capnp::Text::Reader(name, sizeof(name) - 1));
    bytes.setIncarnation("i");
    bytes.initTelemetry();
#define BAD "\xEF\xBF\xBD"
    expect_exception(failure_of(bytes, scope), kj::Exception::Type::FAILED,
                     "EBUSY: a" BAD BAD "b" BAD BAD BAD BAD BAD "\xF0\x9F\x98\x80");
}

TEST(a_small_message_cannot_become_a_large_one)
{
    std::atomic<int> handled{0};
    Rig rig([&](struct hl_rpc_call *call, const std::string &, const json_t *) {
        handled++;
        rpc_json_reply(call, nullptr);
    });
    capnp::EzRpcClient client(rig.address());
    auto &scope = client.getWaitScope();
    auto controller = client.getMain<Controller>();
    constexpr int reports = 2; /* among the pointers of its parameters */
    /* Elements without a word of their own: two million of them fit into one packet. */
    auto report = controller.reportAccessRequest();
    capnp::toAny(report).getPointerSection()[reports].initAsListOfAnyStruct(0, 0, 1900000);
    expect_exception(failure_of(report, scope), kj::Exception::Type::FAILED,
                     "the message has more than 262144 values");
    auto other = controller.submitJobRequest();
    other.setYaml("x");
    other.send().wait(scope);
    auto many = controller.commitPartRequest();
    many.setModel("m");
    many.initShards(262144);
    expect_exception(failure_of(many, scope), kj::Exception::Type::FAILED,
                     "the message has more than 262144 values");
    assert_int_equal(handled.load(), 1);
}

TEST(a_required_field_that_is_missing_is_refused_by_name)
{
    std::atomic<int> handled{0};
    Rig rig([&](struct hl_rpc_call *call, const std::string &, const json_t *) {
        handled++;
        rpc_json_reply(call, nullptr);
    });
    capnp::EzRpcClient client(rig.address());
    auto &scope = client.getWaitScope();
    auto controller = client.getMain<Controller>();
    auto absent = controller.getModelRequest();
    expect_exception(failure_of(absent, scope), kj::Exception::Type::FAILED,
                     "EINVAL: field name: missing");
    auto empty = controller.cancelJobRequest();
    empty.setId("");
    expect_exception(failure_of(empty, scope), kj::Exception::Type::FAILED,
                     "EINVAL: field id: missing");
    auto unset = controller.dropCopyRequest(); /* its tier */
    unset.setId("00000000000000000000000000000001");
    expect_exception(failure_of(unset, scope), kj::Exception::Type::FAILED,
                     "EINVAL: field tier: missing");
    auto inside = controller.registerNodeRequest();
    inside.initNode();
    expect_exception(failure_of(inside, scope), kj::Exception::Type::FAILED,
                     "EINVAL: field node.name: missing");
    assert_int_equal(handled.load(), 0);
}

/* An older daemon: it knows one method. */
class OldController final : public Controller::Server
{
  protected:
    kj::Promise<void> listModels(ListModelsContext context) override
    {
        context.getResults(capnp::MessageSize{64, 0}).initModels(2)[1].setName("second");
        return kj::READY_NOW;
    }

    kj::Promise<void> getModel(GetModelContext context) override
    {
        kj::StringPtr name = context.getParams().getName();
        if (name == "busy")
            kj::throwFatalException(KJ_EXCEPTION(OVERLOADED, "too many"));
        KJ_FAIL_REQUIRE("strange name");
    }
};

TEST(a_helios_peer_talks_to_a_generated_server)
{
    std::atomic<unsigned> port{0};
    std::atomic<bool> end{false};
    std::thread thread([&] {
        capnp::EzRpcServer server(kj::heap<OldController>(), "127.0.0.1");
        auto &scope = server.getWaitScope();
        port = server.getPort().wait(scope);
        auto &timer = server.getIoProvider().getTimer();
        while (!end)
            timer.afterDelay(5 * kj::MILLISECONDS).wait(scope);
    });
    while (port == 0)
        std::this_thread::yield();
    std::string address = "127.0.0.1:" + std::to_string(port);
    struct hl_rpc *rpc = nullptr;
    struct hl_rpc_peer *peer = nullptr;
    assert_int_equal(hl_rpc_create(&rpc), HL_OK);
    assert_int_equal(hl_rpc_open(rpc, address.c_str(), "Controller", &peer), HL_OK);
    json_t *result = nullptr;
    assert_int_equal(rpc_json_call(peer, "listModels", nullptr, patience_ms, &result), HL_OK);
    json_t *models = json_object_get(result, "models");
    assert_int_equal(json_array_size(models), 2);
    assert_string_equal(json_string_value(json_object_get(json_array_get(models, 1), "name")),
                        "second");
    json_decref(result);
    result = nullptr;
    assert_int_equal(rpc_json_call(peer, "clusterInfo", nullptr, patience_ms, &result),
                     HL_EUNSUPPORTED);

    static const struct {
        const char *name;
        hl_status status;
        const char *text;
    } rows[] = {{"busy", HL_EBUSY, "too many (Controller.getModel at 127.0.0.1:"},
                {"other", HL_EINTERNAL, "strange name"}};

    for (const auto &row : rows) {
        json_t *params = json_pack("{s: s}", "name", row.name);
        assert_int_equal(rpc_json_call(peer, "getModel", params, patience_ms, &result), row.status);
        if (strstr(hl_error_text(), row.text) == nullptr)
            fail_msg("\"%s\" is not in \"%s\"", row.text, hl_error_text());
        json_decref(params);
    }
    assert_null(result);
    hl_rpc_peer_close(peer);
    hl_rpc_destroy(rpc);
    end = true;
    thread.join();
}

/* Otherwise the thread that waits for it would wait forever. */
TEST(a_job_that_throws_fails_and_the_runtime_goes_on)
{
    auto runtime = std::make_shared<hl::rpc::Runtime>();
    bool ran = false;
    assert_int_equal(runtime->start(), HL_OK);
    hl_status st = runtime->run([] { KJ_FAIL_REQUIRE("no room for a watch"); });
    assert_int_equal(st, HL_EIO);
    assert_non_null(strstr(hl_error_text(), "no room for a watch"));
    assert_int_equal(runtime->run([&] { ran = true; }), HL_OK);
    assert_true(ran);
    runtime->stop();
    assert_int_equal(runtime->run([&] { ran = false; }), HL_ECANCELED);
    assert_true(ran);
}
} // namespace
