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

#include "rpc/convert.hpp"

extern "C" {
#include "api/api.h"
}

namespace hl::rpc
{
/* A message whose root has the schema that `type` was made from. check_texts: one that is not UTF-8
 * is an error; else whoever reads it puts U+FFFD in the place of bad bytes. */
Message message_from_value(const struct hl_api_type &type, const void *value,
                           capnp::StructSchema schema, bool check_texts);
/* `to` has type.size bytes. `left`: how many values there may be; what remains of them afterwards.
 */
void value_from_message(const struct hl_api_type &type, capnp::DynamicStruct::Reader from,
                        struct hl_arena &arena, void *to, size_t &left);
} // namespace hl::rpc

#endif
