/* One thread runs the KJ event loop. Other threads put jobs into a vector under a mutex and signal
 * an eventfd. kj::Executor was rejected because its synchronous form blocks the caller until the
 * loop has time, and its asynchronous form needs an event loop on the caller's side too.
 *
 *     any thread                                   the KJ thread
 *     post: jobs.push_back, under the mutex        pump: whenBecomesReadable, then drain
 *        '--eventfd_write-------------------->     drain: swaps the vector out, runs it unlocked
 *     run: posts, waits for its own gate <-----    the job's destructor wakes the gate
 *
 *     state        set by           posts are
 *     starting                      refused
 *     running      KJ thread        taken
 *     stopping     stop             taken, as jobs that still run may post others
 *     stopped      KJ thread        refused; the vector is empty, and stays so
 *     failed       KJ thread        refused; KJ threw, before the loop ran or in it
 *
 * The mutex guards `state`, `jobs` and `why`. `stopped` is entered under the same hold that finds
 * the vector empty, so a job is either in the vector before, and is run, or refused: none is lost,
 * and run never waits for a thread that has ended. After `failed` drain takes what is left, too.
 *
 * Locks: `mutex` is never held while a job runs or is destroyed. A job's destructor takes a gate's
 * lock (run), or drops the last reference to a Core; neither may happen under `mutex`.
 *
 * Lifetime: a Core holds the Runtime, and the Runtime holds its Cores in `cores` until serve ends,
 * which breaks the circle. A thread that posts holds a reference to one of them: the event
 * descriptor is still open when post writes to it, even if the KJ thread has taken the job and
 * ended meanwhile. */
#include "rpc/runtime.hpp"

#include <signal.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <exception>
#include <new>
#include <system_error>

extern "C" {
#include "base/clock.h"
#include "base/log.h"
#include "os/cond.h"
#include "rpc/rpc.h"
}

namespace hl::rpc
{
Mutex::Mutex()
{
    hl_cond_init(&cond);
    pthread_mutex_init(&mutex, nullptr);
}

Mutex::~Mutex()
{
    pthread_cond_destroy(&cond);
    pthread_mutex_destroy(&mutex);
}

void Mutex::lock()
{
    pthread_mutex_lock(&mutex);
}

void Mutex::unlock()
{
    pthread_mutex_unlock(&mutex);
}

void Mutex::wait()
{
    pthread_cond_wait(&cond, &mutex);
}

bool Mutex::wait_until(uint64_t deadline_ns)
{
    return hl_cond_wait_until(&cond, &mutex, deadline_ns) != ETIMEDOUT;
}

void Mutex::wake()
{
    pthread_cond_broadcast(&cond);
}

Runtime::~Runtime()
{
    if (event_fd >= 0)
        close(event_fd);
}

hl_status Runtime::start()
{
    event_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    if (event_fd < 0)
        return hl_fail(HL_EIO, "RPC runtime: eventfd: %m");
    /* Signals are for the program's own threads: this one must never be chosen to handle one. */
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    try {
        thread = std::thread([this] { main(); });
    } catch (const std::system_error &e) {
        pthread_sigmask(SIG_SETMASK, &before, nullptr);
        return hl_fail(HL_ENOMEM, "RPC runtime: start a thread: %s", e.what());
    }
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    Locked lock(mutex);
    while (state == State::starting)
        mutex.wait();
    if (state == State::running)
        return HL_OK;
    thread.join();
    return hl_fail(HL_EIO, "RPC runtime: %s", why.c_str());
}

/* Idempotent. The state is written first and the descriptor second: a KJ thread that wakes for an
 * older signal sees `stopping` already, and one that has just gone to sleep gets the signal. */
void Runtime::stop()
{
    {
        Locked lock(mutex);
        if (state == State::running)
            state = State::stopping;
    }
    eventfd_write(event_fd, 1);
    if (thread.joinable())
        thread.join();
}

bool Runtime::post(Job job)
{
    {
        Locked lock(mutex);
        if (state != State::running && state != State::stopping)
            return false;
        jobs.push_back(kj::mv(job));
    }
    eventfd_write(event_fd, 1);
    return true;
}

/* The gate opens when the posted job is destroyed: after it ran or threw, or if the runtime has
 * ended before; so the wait ends. It lives on this stack: done is set and the gate is
 * woken under its lock, because once we see `done` we destroy it. */
hl_status Runtime::run(Job job)
{
    Mutex gate;
    bool done = false, ran = false;
    std::string error;
    auto open = kj::defer([&] {
        Locked lock(gate);
        done = true;
        gate.wake();
    });
    (void)post([&, opens = kj::mv(open)] {
        KJ_IF_MAYBE (e, kj::runCatchingExceptions([&] { job(); }))
            error = e->getDescription().cStr();
        ran = true;
    });
    Locked lock(gate);
    while (!done)
        gate.wait();
    if (!ran)
        return hl_fail(HL_ECANCELED, "the RPC runtime has ended");
    return error.empty() ? HL_OK : hl_fail(HL_EIO, "RPC runtime: %s", error.c_str());
}

bool Runtime::on_thread() const
{
    return thread.get_id() == std::this_thread::get_id();
}

void Runtime::add(std::shared_ptr<Core> core)
{
    cores.insert(std::move(core));
}

void Runtime::remove(const std::shared_ptr<Core> &core)
{
    cores.erase(core);
}

kj::Timer &Runtime::timer()
{
    return kj->provider->getTimer();
}

kj::Network &Runtime::network()
{
    return kj->provider->getNetwork();
}

kj::LowLevelAsyncIoProvider &Runtime::io()
{
    return *kj->lowLevelProvider;
}

/* Jobs of a batch are destroyed when all of it has run. A job may post another one, which is taken
 * before the loop gets back to its connections. */
bool Runtime::drain()
{
    for (;;) {
        std::vector<Job> batch;
        {
            Locked lock(mutex);
            if (jobs.empty() && state == State::stopping) {
                state = State::stopped;
                return false;
            }
            batch.swap(jobs);
        }
        if (batch.empty())
            return true;
        for (Job &job : batch) {
            KJ_IF_MAYBE (e, kj::runCatchingExceptions([&job] { job(); }))
                hl_error("RPC: a job failed: %s", e->getDescription().cStr());
        }
    }
}

kj::Promise<void> Runtime::pump(kj::UnixEventPort::FdObserver &observer)
{
    eventfd_t rung;
    eventfd_read(event_fd, &rung); /* first, so that a signal during drain() is a new edge */
    auto readable = observer.whenBecomesReadable();
    if (!drain())
        return kj::READY_NOW;
    return readable.then([this, &observer] { return pump(observer); });
}

/* Everything that belongs to KJ must go before `context`, on this thread: promises and streams of a
 * Core may not outlive their loop, even if other threads keep the Core itself. A failed loop ends
 * its Cores, too, or their callers would wait for answers that are never read. */
void Runtime::serve(kj::AsyncIoContext &context)
{
    kj = &context;
    kj::UnixEventPort::FdObserver observer(context.unixEventPort, event_fd,
                                           kj::UnixEventPort::FdObserver::OBSERVE_READ);
    {
        Locked lock(mutex);
        state = State::running;
        mutex.wake();
    }
    auto failure = kj::runCatchingExceptions([&] { pump(observer).wait(context.waitScope); });
    KJ_IF_MAYBE (e, failure) {
        hl_error("RPC: the event loop ended: %s", e->getDescription().cStr());
        {
            Locked lock(mutex);
            state = State::failed;
        }
        drain(); /* a call that one of them begins is ended below, with the others */
    }
    for (auto &core : cores)
        core->shutdown();
    cores.clear();
}

/* Only what serve does before it runs, or the making of KJ's loop, can still throw here. */
void Runtime::main()
{
    KJ_IF_MAYBE (e, kj::runCatchingExceptions([this] {
                     auto context = kj::setupAsyncIo();
                     serve(context);
                 })) {
        Locked lock(mutex);
        why = e->getDescription().cStr();
        state = State::failed;
        mutex.wake();
    }
}
} // namespace hl::rpc

extern "C" hl_status hl_rpc_create(struct hl_rpc **out)
try {
    auto rpc = std::make_unique<hl_rpc>();
    rpc->runtime = std::make_shared<hl::rpc::Runtime>();
    HL_TRY(rpc->runtime->start());
    *out = rpc.release();
    return HL_OK;

} catch (const std::bad_alloc &) {
    return hl_fail(HL_ENOMEM, "out of memory allocating the RPC runtime");
}

extern "C" void hl_rpc_destroy(struct hl_rpc *rpc)
{
    if (rpc == nullptr)
        return;
    rpc->runtime->stop();
    delete rpc;
}
