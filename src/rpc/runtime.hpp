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
/* pthreads instead of <mutex>: std::condition_variable waits with pthread_cond_clockwait, which gcc
 * 12's thread sanitizer does not know. */
class Mutex
{
  public:
    Mutex();
    ~Mutex();
    void lock();
    void unlock();
    void wait();
    /* False if the deadline (0 = none) has passed. */
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

/* Something that lives on the KJ thread: the inner half of a server or a peer. The C handle, calls
 * in flight and the Runtime refer to it. After its shutdown it has nothing of KJ any more, so any
 * thread may drop the last reference. */
class Core
{
  public:
    virtual ~Core() noexcept(false)
    {
    }

    /* KJ thread. Drops everything that belongs to KJ; a second call does nothing. */
    virtual void shutdown() = 0;
};

class Runtime : public std::enable_shared_from_this<Runtime>
{
  public:
    using Job = kj::Function<void()>;

    ~Runtime();
    hl_status start();
    /* Runs the jobs posted before, shuts down every core and joins. */
    void stop();
    /* Runs the job on the KJ thread. False: stop() was called, and the job is dropped. */
    bool post(Job job);
    /* Posts the job and waits until it has run; fails if it threw, or if the runtime has ended. Not
     * for the KJ thread. */
    hl_status run(Job job) HL_CHECK;
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
    /* False when the thread should end. */
    bool drain();

    std::thread thread;
    int event_fd = -1; /* from start to the destructor, so that a late post can write to it */
    Mutex mutex;       /* guards state, why, jobs */
    State state = State::starting;
    std::string why;
    std::vector<Job> jobs;
    /* KJ thread. */
    kj::AsyncIoContext *kj = nullptr;
    std::unordered_set<std::shared_ptr<Core>> cores;
};

/* Finds an interface of helios.capnp by its name. */
hl_status find_interface(const char *name, capnp::InterfaceSchema *out);
/* HL_EINVAL: the address is not "unix:/path" or "host:port". */
hl_status check_address(const char *address, bool may_be_any_port);
/* Opens a bound, listening, non-blocking socket; `real` has the actual port. */
hl_status listen_on(const char *address, int *fd, std::string *real);
/* Removes the socket file of a listening address, if it is still the one with that inode. */
void unlink_socket(const std::string &address, uint64_t inode);
/* The inode of the socket file; 0 for TCP. */
uint64_t socket_inode(const std::string &address);
/* The name of the daemon that serves an interface ("helios-controller"). */
const char *daemon_of(const std::string &interface);
/* Lets the kernel detect dead hosts, so that it does not take a deadline. */
void set_keepalive(kj::AsyncIoStream &stream, const std::string &address);
/* For a Unix socket: fails if the peer is a process of another user than root and ours. */
hl_status check_user(kj::AsyncIoStream &stream, const std::string &address);

bool is_unix(const std::string &address);
bool is_loopback(const std::string &address);

/* A stream after the greeting. stream: null = the client has gone; known: the client has proved
 * that it knows the secret. */
struct Greeted {
    kj::Own<kj::AsyncIoStream> stream;
    bool known;
};

/* greeting.cpp: for TCP connections of a process with a secret (auth/secret.h). `heard` is called
 * when the client's hello has arrived, and must work as long as the promise exists. */
kj::Promise<Greeted> greet_client(kj::Own<kj::AsyncIoStream> stream, kj::Function<void()> heard);
/* Fails with HL_EPERM if the server can't prove that it knows the secret. */
kj::Promise<kj::Own<kj::AsyncIoStream>> greet_server(kj::Own<kj::AsyncIoStream> stream,
                                                     const std::string &address);

/* Counts one complete message on the management plane (for a Unix socket: inside the host). */
void count_message(const std::string &address, const char *op, bool sent, uint64_t bytes,
                   uint64_t ns, hl_status st);
/* Wraps the stream so that incoming bytes are added to `received`, which must outlive it. Asking a
 * message for its size would walk it once more, and use the budget that limits a hostile one. */
kj::Own<kj::AsyncIoStream> counted(kj::Own<kj::AsyncIoStream> stream, uint64_t &received);

struct Outcome {
    hl_status status;
    std::string text;
    bool refused = false; /* by the daemon, whose sentence says all that users need */
};

/* The result of a failed call: its status and a sentence. */
Outcome outcome_of(const kj::Exception &e);
/* The text after the last colon of KJ's "connect(): Connection refused", for people. */
std::string connect_reason(const kj::Exception &e);
/* The exception that outcome_of() converts back on the other side. */
kj::Exception exception_of(hl_status st, const std::string &text);
} // namespace hl::rpc

extern "C" {
/* The C handle. */
struct hl_rpc {
    std::shared_ptr<hl::rpc::Runtime> runtime;
};
}

#endif
