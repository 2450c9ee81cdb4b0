/* The KJ thread when it is busy, when it fails, and when it gets what Cap'n Proto can't encode. */
#include "rpc/runtime.hpp"

#include <unistd.h>

#include <atomic>
#include <climits>
#include <cstdarg>
#include <cstring>
#include <dirent.h>
#include <functional>
#include <memory>
#include <set>
#include <setjmp.h>
#include <string>
#include <thread>
#include <vector>

extern "C" {
#include <cmocka.h>

#include "base/status.h"
#include "os/loop.h"
#include "rpc/controller_calls.h"
#include "rpc/rpc.h"
}

namespace
{
constexpr int patience_ms = 20000;

/* A Controller on a loop of its own. listModels answers with what the test wants. */
class Rig
{
  public:
    Rig()
    {
        handlers.list_models = list_models;
        assert_int_equal(hl_loop_create(&loop), HL_OK);
        assert_int_equal(hl_rpc_create(&rpc), HL_OK);
        thread = std::thread([this] { (void)!hl_loop_run(loop); });
        struct hl_rpc_serve_opts opts = {};
        opts.address = "127.0.0.1:0";
        opts.loop = loop;
        opts.arg = this;
        assert_int_equal(hl_serve_controller(rpc, &opts, &handlers, &server), HL_OK);
    }

    ~Rig()
    {
        hl_loop_post(loop, end, this);
        thread.join();
        hl_rpc_destroy(rpc);
        hl_loop_destroy(loop);
    }

    std::atomic<int> calls{0};
    std::atomic<bool> hold{false}; /* the next call, until the end */
    std::atomic<size_t> models{0}; /* how many the answer claims to have */
    struct hl_loop *loop = nullptr;
    struct hl_rpc *rpc = nullptr;
    struct hl_rpc_server *server = nullptr;

  private:
    void answer(struct hl_rpc_call *call) const
    {
        struct hl_api_controller_list_models_results results = {};
        results.models.count = models;
        hl_reply_controller_list_models(call, &results);
    }

    static void list_models(void *arg, struct hl_rpc_call *call,
                            const struct hl_api_controller_list_models_params *)
    {
        Rig *rig = static_cast<Rig *>(arg);
        rig->calls++;
        if (rig->hold)
            rig->held.push_back(call);
        else
            rig->answer(call);
    }

    static void end(void *arg)
    {
        Rig *rig = static_cast<Rig *>(arg);
        rig->hold = false;
        for (struct hl_rpc_call *call : rig->held)
            rig->answer(call);
        hl_rpc_server_close(rig->server);
        hl_loop_stop(rig->loop);
    }

    std::vector<struct hl_rpc_call *> held; /* on the loop */
    struct hl_controller_handlers handlers = {};
    std::thread thread;
};

/* A runtime of the caller's own, and a peer of the rig's server on it. */
struct Caller {
    explicit Caller(const Rig &rig)
    {
        assert_int_equal(hl_rpc_create(&rpc), HL_OK);
        assert_int_equal(hl_rpc_open(rpc, hl_rpc_server_address(rig.server), "Controller", &peer),
                         HL_OK);
    }

    ~Caller()
    {
        hl_rpc_peer_close(peer);
        hl_rpc_destroy(rpc);
    }

    hl_status list_models(int timeout_ms) const
    {
        return hl_call_controller_list_models(peer, nullptr, timeout_ms, nullptr, nullptr);
    }

    struct hl_rpc *rpc = nullptr;
    struct hl_rpc_peer *peer = nullptr;
};

/* The call starts and has to connect; the thread is busy until its caller has given up, because a
 * job that posts itself again keeps it from its events. */
void a_call_that_its_caller_was_told_is_not_sent_is_not_sent(void **)
{
    Rig rig;
    Caller caller(rig);
    std::atomic<bool> go_on{false};
    std::function<void()> busy = [&] {
        if (!go_on)
            caller.rpc->runtime->post([&] { busy(); });
    };
    caller.rpc->runtime->post([&] { busy(); });
    assert_int_equal(caller.list_models(500), HL_ETIMEDOUT);
    assert_non_null(strstr(hl_error_text(), "connect to"));
    go_on = true;
    assert_int_equal(caller.list_models(patience_ms), HL_OK);
    assert_int_equal(rig.calls.load(), 1); /* the second one */
}

void what_cannot_be_encoded_fails_the_call_or_its_answer(void **)
{
    Rig rig;
    Caller caller(rig);
    constexpr size_t too_many = 1u << 29; /* elements; they are counted before one is read */
    rig.models = too_many;
    assert_int_equal(caller.list_models(patience_ms), HL_EINVAL);
    rig.models = 0;
    assert_int_equal(caller.list_models(patience_ms), HL_OK);
    struct hl_api_controller_report_access_params report = {};
    report.node = "n";
    report.reports.count = too_many;
    assert_int_equal(
        hl_call_controller_report_access(caller.peer, &report, patience_ms, nullptr, nullptr),
        HL_EINVAL);
}

/* The descriptors of this process whose target has this beginning. */
std::set<int> descriptors(const std::string &begin)
{
    std::set<int> found;
    DIR *dir = opendir("/proc/self/fd");
    for (struct dirent *e = readdir(dir); e != nullptr; e = readdir(dir)) {
        char to[PATH_MAX];
        ssize_t n = readlinkat(dirfd(dir), e->d_name, to, sizeof(to));
        if (n > 0 && std::string(to, (size_t)n).compare(0, begin.size(), begin) == 0)
            found.insert(atoi(e->d_name));
    }
    closedir(dir);
    return found;
}

std::set<int> epolls()
{
    return descriptors("anon_inode:[eventpoll]");
}

struct Told {
    std::atomic<int> times{0};
    std::atomic<int> status{HL_OK};
};

void tell(void *arg, hl_status st, const char *,
          const struct hl_api_controller_list_models_results *)
{
    Told *told = static_cast<Told *>(arg);
    told->status = st;
    told->times++;
}

template <typename Done> void wait_until(Done done)
{
    for (int i = 0; i < patience_ms && !done(); i++)
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
    assert_true(done());
}

/* A program that closes descriptors that it does not know ends the event loop. One call is under
 * way then, and another one comes when the loop is about to fail. */
void calls_end_when_the_event_loop_fails(void **)
{
    Rig rig;
    Told first, second;
    std::set<int> others = epolls();
    Caller caller(rig);
    std::atomic<bool> go_on{false};
    rig.hold = true;
    hl_call_controller_list_models_async(caller.peer, nullptr, patience_ms, rig.loop, tell, &first);
    wait_until([&] { return rig.calls == 1; });
    caller.rpc->runtime->post([&] {
        for (int fd : epolls())
            if (others.count(fd) == 0)
                close(fd);
        while (!go_on)
            std::this_thread::yield();
    });
    hl_call_controller_list_models_async(caller.peer, nullptr, patience_ms, rig.loop, tell,
                                         &second);
    go_on = true;
    wait_until([&] { return first.times + second.times == 2; });
    assert_int_equal(first.status.load(), HL_ECANCELED);
    assert_int_equal(second.status.load(), HL_ECANCELED);
    assert_int_equal(caller.list_models(patience_ms), HL_ECANCELED);
    std::set<int> sockets = descriptors("socket:");
    struct hl_controller_handlers none = {};
    struct hl_rpc_server *server = nullptr;
    struct hl_rpc_serve_opts opts = {};
    opts.address = "127.0.0.1:0";
    opts.loop = rig.loop;
    assert_int_equal(hl_serve_controller(caller.rpc, &opts, &none, &server), HL_ECANCELED);
    assert_true(sockets == descriptors("socket:"));
}
} // namespace

int main()
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_call_that_its_caller_was_told_is_not_sent_is_not_sent),
        cmocka_unit_test(what_cannot_be_encoded_fails_the_call_or_its_answer),
        cmocka_unit_test(calls_end_when_the_event_loop_fails),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
