/* rpc/stream.hpp - a stream in front of another one; it passes on whatever it does not change.
 *
 * Owns:    the stream behind it.
 * Threads: the loop of that stream.
 * Errors:  those of that stream.
 * Units:   bytes.
 * Limits:  derived classes implement reading.
 */
#ifndef HL_RPC_STREAM_HPP
#define HL_RPC_STREAM_HPP

#include <kj/async-io.h>

namespace hl::rpc
{
class StreamInFront : public kj::AsyncIoStream
{
  public:
    explicit StreamInFront(kj::Own<kj::AsyncIoStream> s) : stream(kj::mv(s))
    {
    }

    kj::Promise<void> write(const void *buffer, size_t size) override
    {
        return stream->write(buffer, size);
    }

    kj::Promise<void> write(kj::ArrayPtr<const kj::ArrayPtr<const kj::byte>> pieces) override
    {
        return stream->write(pieces);
    }

    kj::Promise<void> whenWriteDisconnected() override
    {
        return stream->whenWriteDisconnected();
    }

    void shutdownWrite() override
    {
        stream->shutdownWrite();
    }

    void abortRead() override
    {
        stream->abortRead();
    }

    kj::Maybe<int> getFd() const override
    {
        return stream->getFd();
    }

  protected:
    kj::Own<kj::AsyncIoStream> stream;
};
} // namespace hl::rpc

#endif
