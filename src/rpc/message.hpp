/* rpc/message.hpp - Cap'n Proto messages from and to the structs of api/types.h.
 *
 * Owns:    nothing; what is decoded lives in the arena that is given.
 * Threads: any; different messages at the same time.
 * Errors:  ConvertError, whose text names the field by its path ("containers[3].state").
 * Units:   none.
 * Limits:  as many values (fields and elements) as the caller gives; nesting at most max_depth.
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
/* A value takes up to 40 bytes of memory where Cap'n Proto needs as little as a bit. */
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

using Message = std::unique_ptr<capnp::MallocMessageBuilder>;

/* A message whose root has the schema that `type` was made from. check_texts: one that is not UTF-8
 * is an error; else whoever reads it puts U+FFFD in the place of bad bytes. */
Message message_from_value(const struct hl_api_type &type, const void *value,
                           capnp::StructSchema schema, bool check_texts);
/* `to` has type.size bytes. `left`: how many values there may be; what remains of them afterwards.
 */
void value_from_message(const struct hl_api_type &type, capnp::DynamicStruct::Reader from,
                        struct hl_arena &arena, void *to, size_t &left);
/* How many values the parameters of a method may have. */
size_t values_of(capnp::InterfaceSchema::Method method);
/* Valid UTF-8 without NUL: every other byte becomes U+FFFD. */
std::string clean_text(const char *text, size_t len);
} // namespace hl::rpc

#endif
