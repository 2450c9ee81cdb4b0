/* The greeting that precedes Cap'n Proto on a TCP connection of a cluster with a secret:
 *
 *     client: MAGIC, nonce           server: nonce, proof            client: proof
 *
 * Each side proves over both nonces that it knows the secret, the server first. If a client does
 * not begin with MAGIC, the bytes that it has sent are put back at the front of its stream, so that
 * Cap'n Proto can tell the client what is missing. */
#include "rpc/runtime.hpp"
#include "rpc/stream.hpp"

#include <cstring>

extern "C" {
#include "auth/secret.h"
}

namespace hl::rpc
{
namespace
{
constexpr char magic[8] = {'H', 'E', 'L', 'I', 'O', 'S', 'A', '1'};
constexpr char server_purpose[] = "helios rpc server";
constexpr char client_purpose[] = "helios rpc client";

struct Hello {
    char magic[8];
    uint8_t nonce[HL_AUTH_LEN];
};

struct Reply {
    uint8_t nonce[HL_AUTH_LEN];
    uint8_t proof[HL_AUTH_LEN];
};

static_assert(sizeof(Hello) == 40 && sizeof(Reply) == 64, "sent as they are");

/* The stream of a greeting, and what was read from and written to it. */
struct Talk {
    explicit Talk(
        kj::Own<kj::AsyncIoStream> s, kj::Function<void()> h = [] {})
        : stream(kj::mv(s)), heard(kj::mv(h))
    {
    }

    kj::Own<kj::AsyncIoStream> stream;
    kj::Function<void()> heard; /* the server's: the client's hello has arrived */
    Hello hello = {};
    Reply reply = {};
    uint8_t proof[HL_AUTH_LEN] = {};
};

/* A stream that begins with bytes that were already read from it. */
class PutBack final : public StreamInFront
{
  public:
    PutBack(kj::Own<kj::AsyncIoStream> s, const void *bytes, size_t n)
        : StreamInFront(kj::mv(s)), left(n)
    {
        memcpy(front, bytes, n);
    }

    kj::Promise<size_t> tryRead(void *buffer, size_t min, size_t max) override
    {
        size_t n = left < max ? left : max;
        if (n > 0) /* if nothing is left, the caller's buffer may be null */
            memcpy(buffer, front + at, n);
        at += n;
        left -= n;
        if (n >= min)
            return n;
        return stream->tryRead((char *)buffer + n, min - n, max - n).then([n](size_t more) {
            return n + more;
        });
    }

  private:
    char front[sizeof(magic)];
    size_t at = 0, left;
};

/* After the client's hello: answers it and checks the client's proof. */
kj::Promise<bool> prove(Talk &t)
{
    if (hl_auth_nonce(t.reply.nonce) != HL_OK)
        return false;
    hl_auth_proof(server_purpose, t.hello.nonce, t.reply.nonce, t.reply.proof);
    return t.stream->write(&t.reply, sizeof(t.reply))
        .then([&t] { return t.stream->tryRead(t.proof, sizeof(t.proof), sizeof(t.proof)); })
        .then([&t](size_t n) {
            uint8_t want[HL_AUTH_LEN];
            hl_auth_proof(client_purpose, t.hello.nonce, t.reply.nonce, want);
            return n == sizeof(t.proof) && hl_auth_equal(want, t.proof);
        });
}
} // namespace

kj::Promise<Greeted> greet_client(kj::Own<kj::AsyncIoStream> stream, kj::Function<void()> heard)
{
    auto talk = kj::heap<Talk>(kj::mv(stream), kj::mv(heard));
    Talk &t = *talk;
    return t.stream->tryRead(&t.hello, sizeof(magic), sizeof(magic))
        .then([&t](size_t n) -> kj::Promise<Greeted> {
            if (n < sizeof(magic))
                return Greeted{kj::Own<kj::AsyncIoStream>(), false};
            if (memcmp(t.hello.magic, magic, sizeof(magic)) != 0) {
                kj::Own<kj::AsyncIoStream> again =
                    kj::heap<PutBack>(kj::mv(t.stream), t.hello.magic, sizeof(magic));
                return Greeted{kj::mv(again), false};
            }
            return t.stream->tryRead(t.hello.nonce, HL_AUTH_LEN, HL_AUTH_LEN)
                .then([&t](size_t more) -> kj::Promise<bool> {
                    if (more < HL_AUTH_LEN)
                        return false;
                    t.heard();
                    return prove(t);
                })
                .then([&t](bool known) {
                    return Greeted{kj::mv(t.stream), known};
                });
        })
        .attach(kj::mv(talk));
}

kj::Promise<kj::Own<kj::AsyncIoStream>> greet_server(kj::Own<kj::AsyncIoStream> stream,
                                                     const std::string &address)
{
    auto talk = kj::heap<Talk>(kj::mv(stream));
    Talk &t = *talk;
    memcpy(t.hello.magic, magic, sizeof(magic));
    if (hl_auth_nonce(t.hello.nonce) != HL_OK)
        kj::throwFatalException(exception_of(HL_EIO, hl_error_text()));
    return t.stream->write(&t.hello, sizeof(t.hello))
        .then([&t] { return t.stream->tryRead(&t.reply, sizeof(t.reply), sizeof(t.reply)); })
        .then([&t, address](size_t n) -> kj::Promise<void> {
            uint8_t want[HL_AUTH_LEN];
            hl_auth_proof(server_purpose, t.hello.nonce, t.reply.nonce, want);
            if (n < sizeof(t.reply) || !hl_auth_equal(want, t.reply.proof))
                kj::throwFatalException(
                    exception_of(HL_EPERM, "the server at " + address +
                                               " does not know this cluster's secret: set "
                                               "auth.secret_file to the same file on both sides"));
            hl_auth_proof(client_purpose, t.hello.nonce, t.reply.nonce, t.proof);
            return t.stream->write(t.proof, sizeof(t.proof));
        })
        .then([&t] { return kj::mv(t.stream); })
        .attach(kj::mv(talk));
}
} // namespace hl::rpc
