/* rpc/message.hpp - converts between Cap'n Proto messages and the structs of api/types.h.
 *
 * Owns:    nothing; decoded values live in the caller's arena.
 * Threads: any; different messages at the same time.
 * Errors:  ConvertError, whose text names the field by its path ("containers[3].state").
 * Units:   none.
 * Limits:  as many values (fields and elements) as the caller allows; nesting up to max_depth.
 */
#ifndef HL_RPC_MESSAGE_HPP
#define HL_RPC_MESSAGE_HPP

#include <capnp/dynamic.h>
#include <capnp/message.h>

#include <memory>
#include <string>

extern "C" {
#include "api/api.h"
#include "base/status.h"
}

namespace hl::rpc
{
constexpr uint64_t max_message_words = 64ull << 20;
constexpr uint64_t max_request_words = 8ull << 20;
constexpr int max_depth = 64;
/* A value takes up to 40 bytes of memory, although Cap'n Proto can encode it in one bit. */
constexpr size_t max_values = 16u << 20;
/* The limit for a request whose method states no other one ($maxValues in helios.capnp). */
constexpr size_t request_values = 65536;
/* The limit for an answer: a fixed number plus some for each byte, because a list whose elements
 * have no bytes can claim any length. */
constexpr size_t answer_values = 4096;
constexpr size_t values_per_byte = 32;
/* From this many values on, memory is returned to the system at once. */
constexpr size_t many_values = 65536;

struct ConvertError {
    hl_status status;
    std::string text;
};

using Message = std::unique_ptr<capnp::MallocMessageBuilder>;

/* Makes a message whose root has the schema that `type` was made from. check_texts: text that is
 * not UTF-8 is an error; otherwise the reader replaces invalid bytes by U+FFFD. */
Message message_from_value(const struct hl_api_type &type, const void *value,
                           capnp::StructSchema schema, bool check_texts);
/* Decodes into `to`, which has type.size bytes. left: the number of values allowed, and afterwards
 * what remains of it. */
void value_from_message(const struct hl_api_type &type, capnp::DynamicStruct::Reader from,
                        struct hl_arena &arena, void *to, size_t &left);
/* The number of values that the parameters of a method can have. */
size_t values_of(capnp::InterfaceSchema::Method method);
/* Returns valid UTF-8 without NUL: any other byte becomes U+FFFD. */
std::string clean_text(const char *text, size_t len);
} // namespace hl::rpc

#endif
