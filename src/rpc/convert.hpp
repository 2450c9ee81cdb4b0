/* rpc/convert.hpp - Cap'n Proto messages from and to JSON, driven by the schema.
 *
 * Owns:    nothing; messages and JSON belong to the caller.
 * Threads: any; different messages at the same time.
 * Errors:  ConvertError, whose text names the field by its path ("containers[3].state").
 * Units:   none.
 * Limits:  JSON made from one message has at most max_values values and nests at most max_depth
 * deep.
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
constexpr int max_depth = 64;
/* A value of JSON takes about 40 bytes where Cap'n Proto needs as little as a bit. */
constexpr size_t max_values = 16u << 20;

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
Json json_from_struct(capnp::DynamicStruct::Reader reader);
/* Valid UTF-8 without NUL: every other byte becomes U+FFFD. */
std::string clean_text(const char *text, size_t len);
} // namespace hl::rpc

#endif
