/* rpc/convert.hpp - Cap'n Proto messages from and to JSON, driven by the schema.
 *
 * Owns:    nothing; messages and JSON belong to the caller.
 * Threads: any; different messages at the same time.
 * Errors:  ConvertError, whose text names the field by its path ("containers[3].state").
 * Units:   none.
 * Limits:  JSON made from one message has at most so many values as the caller gives and nests at
 *          most max_depth deep.
 */
#ifndef HL_RPC_CONVERT_HPP
#define HL_RPC_CONVERT_HPP

#include <capnp/dynamic.h>
#include <capnp/message.h>
#include <jansson.h>

#include <memory>
#include <string>

extern "C" {
#include "base/status.h"
}

namespace hl::rpc
{
constexpr uint64_t max_message_words = 64ull << 20;
constexpr uint64_t max_request_words = 8ull << 20;
constexpr int max_depth = 64;
/* A value of JSON takes about 40 bytes where Cap'n Proto needs as little as a bit. */
constexpr size_t max_values = 16u << 20;
/* Of a request whose method says no other number ($maxValues in helios.capnp). */
constexpr size_t request_values = 65536;
/* An answer has at most so many, and so many more for each byte of it: a list whose elements have
 * no bytes may claim any length. */
constexpr size_t answer_values = 4096;
constexpr size_t values_per_byte = 32;
/* From so many on memory is given back to the system at once. */
constexpr size_t many_values = 65536;

struct ConvertError {
    hl_status status;
    std::string text;
};

struct JsonFree {
    void operator()(json_t *json) const
    {
        json_decref(json);
    }
};

using Json = std::unique_ptr<json_t, JsonFree>;
using Message = std::unique_ptr<capnp::MallocMessageBuilder>;

/* A message whose root has this schema; NULL gives the defaults. */
Message message_from_json(const json_t *json, capnp::StructSchema schema);
/* `left`: how many values there may be; what remains of them afterwards. */
Json json_from_struct(capnp::DynamicStruct::Reader reader, size_t &left);
/* How many values the parameters of a method may have. */
size_t values_of(capnp::InterfaceSchema::Method method);
/* Valid UTF-8 without NUL: every other byte becomes U+FFFD. */
std::string clean_text(const char *text, size_t len);
} // namespace hl::rpc

#endif
