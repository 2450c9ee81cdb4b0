/* rpc/runtime.hpp - the thread of the KJ event loop and the way into it.
 *
 * Owns:    the thread, and the connections of every Core until its shutdown.
 * Threads: post, run and Gate from anywhere; everything marked "KJ thread" only there.
 * Errors:  hl_status; a job must not throw.
 * Units:   ns of CLOCK_MONOTONIC for deadlines.
 * Limits:  none; jobs run in the order of posting.
 */
#ifndef HL_RPC_RUNTIME_HPP
#define HL_RPC_RUNTIME_HPP

#include <capnp/message.h>
#include <capnp/schema.h>
#include <kj/async-io.h>
#include <kj/async-unix.h>
#include <kj/function.h>

#include <pthread.h>

#include <memory>
#include <string>
#include <thread>
#include <unordered_set>
#include <vector>

extern "C" {
#include "base/status.h"
}

namespace hl::rpc
{
/* pthreads instead of <mutex>: std::condition_variable waits by pthread_cond_clockwait, which the
 * thread sanitizer of gcc 12 doesn't know. */
class Mutex
{
  public:
    Mutex();
    ~Mutex();
    void lock();
    void unlock();
    void wait();
    /* False when the deadline (0 = none) has passed. */
    bool wait_until(uint64_t deadline_ns);
    void wake();

  private:
    pthread_mutex_t mutex;
    pthread_cond_t cond;
};

class Locked
{
  public:
    explicit Locked(Mutex &m) : mutex(m)
    {
        mutex.lock();
    }

    ~Locked()
    {
        mutex.unlock();
    }

    Locked(const Locked &) = delete;

  private:
    Mutex &mutex;
};

/* Something that lives on the KJ thread: the inner half of a server or a peer. */
class Core
{
  public:
    virtual ~Core() noexcept(false)
    {
    }

    /* KJ thread. Drop everything that belongs to KJ; called again it does nothing. */
    virtual void shutdown() = 0;
};

class Runtime : public std::enable_shared_from_this<Runtime>
{
  public:
    using Job = kj::Function<void()>;

    ~Runtime();
    hl_status start();
    /* Runs what was posted before, shuts every core down and joins. */
    void stop();
    /* Run the job on the KJ thread. False, and the job is dropped, after stop(). */
    bool post(Job job);
    /* post() and wait until the job has run. Not on the KJ thread. */
    void run(Job job);
    bool on_thread() const;

    /* KJ thread. */
    void add(std::shared_ptr<Core> core);
    void remove(const std::shared_ptr<Core> &core);
    kj::Timer &timer();
    kj::Network &network();
    kj::LowLevelAsyncIoProvider &io();

  private:
    enum class State { starting, running, failed, stopping, stopped };

    void main();
    void serve(kj::AsyncIoContext &context);
    kj::Promise<void> pump(kj::UnixEventPort::FdObserver &observer);
    /* False when it is time to end. */
    bool drain();

    std::thread thread;
    int event_fd = -1;
    Mutex mutex; /* guards state, why, jobs */
    State state = State::starting;
    std::string why;
    std::vector<Job> jobs;
    kj::AsyncIoContext *kj = nullptr;
    std::unordered_set<std::shared_ptr<Core>> cores;
};

/* Interface of helios.capnp by its name. */
hl_status find_interface(const char *name, capnp::InterfaceSchema *out);
/* HL_EINVAL unless the address is "unix:/path" or "host:port". */
hl_status check_address(const char *address, bool may_be_any_port);
/* A bound, listening, non-blocking socket; `real` has the port that was given. */
hl_status listen_on(const char *address, int *fd, std::string *real);
/* Remove the socket file of a listening address, if it is still that of `fd`. */
void unlink_socket(const std::string &address, uint64_t inode);
/* Inode of the socket file, 0 for TCP. */
uint64_t socket_inode(const std::string &address);
/* Names of the daemon that serves an interface ("helios-controller"). */
const char *daemon_of(const std::string &interface);
/* Dead hosts are noticed by the kernel, not only by deadlines. */
void set_keepalive(kj::AsyncIoStream &stream, const std::string &address);
/* At a Unix socket: another user's process, which is logged. */
bool is_stranger(kj::AsyncIoStream &stream, const std::string &address);

bool is_unix(const std::string &address);
bool is_loopback(const std::string &address);

/* A stream whose client has been greeted: `stream` null = he has gone; `known` = he has proved that
 * he knows the secret. */
struct Greeted {
    kj::Own<kj::AsyncIoStream> stream;
    bool known;
};

/* greeting.cpp: for TCP connections of a process with a secret (auth/secret.h). */
kj::Promise<Greeted> greet_client(kj::Own<kj::AsyncIoStream> stream);
/* Fails with HL_EPERM where the server can't prove it. */
kj::Promise<kj::Own<kj::AsyncIoStream>> greet_server(kj::Own<kj::AsyncIoStream> stream,
                                                     const std::string &address);

/* One message that has ended, on the management plane (a Unix socket's: inside the host). */
void count_message(const std::string &address, const char *op, bool sent, uint64_t bytes,
                   uint64_t ns, hl_status st);
/* The stream, with the bytes that come in added to `received`, which must outlive it. Asking a
 * message for its size would walk it once more, and on the budget that bounds a hostile one. */
kj::Own<kj::AsyncIoStream> counted(kj::Own<kj::AsyncIoStream> stream, uint64_t &received);

struct Outcome {
    hl_status status;
    std::string text;
    bool refused = false; /* by the daemon itself, whose sentence says all that users need */
};

/* What a failed call says: its status and a sentence. */
Outcome outcome_of(const kj::Exception &e);
/* Text after the last colon of KJ's "connect(): Connection refused", for people. */
std::string connect_reason(const kj::Exception &e);
/* The exception that outcome_of() on the other side turns back. */
kj::Exception exception_of(hl_status st, const std::string &text);
} // namespace hl::rpc

extern "C" {
/* The C handle. */
struct hl_rpc {
    std::shared_ptr<hl::rpc::Runtime> runtime;
};
}

#endif
