/* The greeting of a cluster's secret, both sides, over a pipe in memory. The first byte chooses who
 * sends what; the second where the bytes are cut in two. Raw bytes are never taken for somebody who
 * knows the secret, and what is no greeting comes out of the stream as it was sent. A peer who does
 * know it is refused as soon as one bit of his proof differs. */
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <unistd.h>

#include "rpc/runtime.hpp"

extern "C" {
#include "auth/secret.h"
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

namespace
{
using namespace hl::rpc;
constexpr size_t hello_len = 8 + HL_AUTH_LEN;
constexpr size_t reply_len = 2 * HL_AUTH_LEN;
constexpr char magic[] = "HELIOSA1";

void check(bool ok)
{
    if (!ok)
        abort();
}

void make_secret()
{
    char path[] = "/tmp/helios-fuzz-secret-XXXXXX";
    const char text[] = "a secret of this test alone\n";
    int fd = mkstemp(path);
    check(fd >= 0 && write(fd, text, sizeof(text) - 1) == (ssize_t)sizeof(text) - 1);
    close(fd);
    check(hl_auth_use_file(path) == HL_OK);
    unlink(path);
}

struct Bytes {
    const uint8_t *at;
    size_t size;
    size_t cut;
};

/* This side's half of a connection; what it has to say is said in two pieces, and then no more. */
class Far
{
  public:
    explicit Far(kj::Own<kj::AsyncIoStream> s) : stream(kj::mv(s)), saying(kj::READY_NOW)
    {
    }

    void say(Bytes b)
    {
        size_t first = b.size > 0 ? b.cut % b.size : 0;
        saying = stream->write(b.at, first)
                     .then([this, b, first] { return stream->write(b.at + first, b.size - first); })
                     .then([this] { stream->shutdownWrite(); })
                     .eagerlyEvaluate([](kj::Exception &&) {});
    }

    kj::Own<kj::AsyncIoStream> stream;

  private:
    kj::Promise<void> saying;
};

/* Until the end of the stream, or until `max` bytes. */
kj::Promise<kj::Array<kj::byte>> heard(kj::AsyncInputStream &from, size_t max)
{
    auto room = kj::heapArray<kj::byte>(max);
    auto reading = from.tryRead(room.begin(), max, max);
    return reading.then([room = kj::mv(room)](size_t n) mutable {
        return kj::heapArray<kj::byte>(room.slice(0, n));
    });
}

/* A client that sends these bytes. */
void raw_client(kj::WaitScope &scope, Bytes b)
{
    auto pipe = kj::newTwoWayPipe();
    Far client(kj::mv(pipe.ends[0]));
    client.say(b);
    auto answer = heard(*client.stream, reply_len).eagerlyEvaluate(nullptr);
    bool complete = memcmp(b.at, magic, b.size < 8 ? b.size : 8) == 0 && b.size >= hello_len;
    bool told = false;
    Greeted g = greet_client(kj::mv(pipe.ends[1]), [&told] { told = true; }).wait(scope);
    check(!g.known && told == complete);
    if (b.size < 8) {
        check(g.stream.get() == nullptr);
        return;
    }
    check(g.stream.get() != nullptr);
    if (memcmp(b.at, magic, 8) != 0) {
        auto again = g.stream->readAllBytes().wait(scope);
        check(again.size() == b.size && memcmp(again.begin(), b.at, b.size) == 0);
    }
    g.stream = nullptr; /* no more is answered */
    check(answer.wait(scope).size() == (complete ? reply_len : 0));
}

/* A client that knows the secret. Of the bytes: the nonce, and what is added to his proof. */
void knowing_client(kj::WaitScope &scope, Bytes b)
{
    uint8_t hello[hello_len], proof[HL_AUTH_LEN] = {}, want[HL_AUTH_LEN];
    size_t noise = b.size < HL_AUTH_LEN ? b.size : HL_AUTH_LEN;
    memset(hello, 0x5a, sizeof(hello));
    memcpy(hello, magic, 8);
    memcpy(hello + 8, b.at, noise);
    auto pipe = kj::newTwoWayPipe();
    Far client(kj::mv(pipe.ends[0]));
    auto greeted = greet_client(kj::mv(pipe.ends[1]), [] {}).eagerlyEvaluate(nullptr);
    client.stream->write(hello, sizeof(hello)).wait(scope);
    auto reply = heard(*client.stream, reply_len).wait(scope);
    check(reply.size() == reply_len);
    hl_auth_proof("helios rpc server", hello + 8, reply.begin(), want);
    check(memcmp(want, reply.begin() + HL_AUTH_LEN, sizeof(want)) == 0);
    hl_auth_proof("helios rpc client", hello + 8, reply.begin(), proof);
    bool right = true;
    for (size_t i = noise; i < b.size && i - noise < sizeof(proof); i++) {
        proof[i - noise] ^= b.at[i];
        right = right && b.at[i] == 0;
    }
    size_t said = b.cut < sizeof(proof) ? b.cut : sizeof(proof); /* or he leaves before that */
    client.say({proof, said, said / 2});
    Greeted g = greeted.wait(scope);
    check(g.stream.get() != nullptr && g.known == (right && said == sizeof(proof)));
}

/* A server that sends these bytes, or his proof with these added. */
void server(kj::WaitScope &scope, Bytes b, bool knowing)
{
    uint8_t reply[reply_len];
    auto pipe = kj::newTwoWayPipe();
    Far far(kj::mv(pipe.ends[1]));
    auto greeted = greet_server(kj::mv(pipe.ends[0]), "[::1]:1")
                       .then([](kj::Own<kj::AsyncIoStream> &&) { return true; },
                             [](kj::Exception &&e) {
                                 Outcome o = outcome_of(e);
                                 check(o.status == HL_EPERM && !o.text.empty());
                                 return false;
                             })
                       .eagerlyEvaluate(nullptr);
    auto hello = heard(*far.stream, hello_len).wait(scope);
    check(hello.size() == hello_len && memcmp(hello.begin(), magic, 8) == 0);
    bool right = knowing;
    if (knowing) {
        memset(reply, 0xa5, HL_AUTH_LEN);
        hl_auth_proof("helios rpc server", hello.begin() + 8, reply, reply + HL_AUTH_LEN);
        for (size_t i = 0; i < b.size && i < reply_len; i++) {
            reply[i] ^= b.at[i];
            right = right && b.at[i] == 0;
        }
        b = {reply, reply_len, b.cut};
    }
    auto proof = heard(*far.stream, HL_AUTH_LEN).eagerlyEvaluate(nullptr);
    far.say(b);
    check(greeted.wait(scope) == right);
    check(proof.wait(scope).size() == (right ? HL_AUTH_LEN : 0));
}
} // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 2)
        return 0;
    if (!hl_auth_is_set())
        make_secret();
    kj::EventLoop loop;
    kj::WaitScope scope(loop);
    Bytes b = {data + 2, size - 2, data[1]};
    switch (data[0] % 4) {
    case 0:
        raw_client(scope, b);
        break;
    case 1:
        knowing_client(scope, b);
        break;
    default:
        server(scope, b, data[0] % 4 == 3);
    }
    return 0;
}
