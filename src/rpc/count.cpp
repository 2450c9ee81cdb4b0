/* Counts the messages of the management plane and their bytes. */
#include "rpc/runtime.hpp"
#include "rpc/stream.hpp"

extern "C" {
#include "base/plane.h"
}

namespace hl::rpc
{
namespace
{
class CountedStream final : public StreamInFront
{
  public:
    CountedStream(kj::Own<kj::AsyncIoStream> s, uint64_t &n) : StreamInFront(kj::mv(s)), received(n)
    {
    }

    kj::Promise<size_t> tryRead(void *buffer, size_t min, size_t max) override
    {
        return stream->tryRead(buffer, min, max).then([this](size_t n) {
            received += n;
            return n;
        });
    }

  private:
    uint64_t &received;
};
} // namespace

kj::Own<kj::AsyncIoStream> counted(kj::Own<kj::AsyncIoStream> stream, uint64_t &received)
{
    return kj::heap<CountedStream>(kj::mv(stream), received);
}

void count_message(const std::string &address, const char *op, bool sent, uint64_t bytes,
                   uint64_t ns, hl_status st)
{
    struct hl_transfer t = {};
    t.plane = address.compare(0, 5, "unix:") == 0 ? HL_PLANE_INSIDE : HL_PLANE_MANAGEMENT;
    t.op = op;
    t.path = "rpc";
    t.reason = "";
    t.sent = sent;
    t.bytes = bytes;
    t.ns = ns;
    t.status = st;
    hl_plane_count(&t);
}
} // namespace hl::rpc
