/* Messages of an RPC peer. The first two bytes choose a method and the way: bytes of a message to a
 * struct, as a server reads parameters and a caller results; JSON to a struct and to a message, as
 * what we are given to send; or JSON, a byte 0 and patches (two bytes of where, one of what) of the
 * message it makes. What came from a message must make a message that reads the same. */
#include <capnp/schema.h>
#include <capnp/serialize.h>

#include <cstdlib>
#include <cstring>
#include <memory>
#include <vector>

#include "helios.capnp.h"
#include "rpc/message.hpp"

extern "C" {
#include "api/types.h"
#include "base/arena.h"
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

namespace
{
using namespace hl::rpc;

struct JsonFree {
    void operator()(json_t *json) const
    {
        json_decref(json);
    }
};

using Json = std::unique_ptr<json_t, JsonFree>;

struct Side {
    capnp::StructSchema schema;
    const struct hl_api_type *type;
    size_t values; /* 0: of an answer, by its bytes */
};

/* Parameters and results of every method of every daemon. */
const std::vector<Side> &sides()
{
    static const std::vector<Side> all = [] {
        std::vector<Side> made;
        const struct hl_api_interface *tables[] = {&hl_api_controller, &hl_api_agent, &hl_api_l3};
        capnp::InterfaceSchema interfaces[] = {capnp::Schema::from<helios::api::Controller>(),
                                               capnp::Schema::from<helios::api::Agent>(),
                                               capnp::Schema::from<helios::api::L3>()};
        for (int i = 0; i < 3; i++)
            for (auto method : interfaces[i].getMethods()) {
                const struct hl_api_method &typed = tables[i]->methods[method.getOrdinal()];
                made.push_back({method.getParamType(), typed.params, values_of(method)});
                made.push_back({method.getResultType(), typed.results, 0});
            }
        return made;
    }();
    return all;
}

/* A struct of one side, and what it points to. */
struct Value {
    explicit Value(const struct hl_api_type *t)
        : type(t), at(hl_arena_alloc(&arena, t->size)), json(nullptr)
    {
    }

    Value(const Value &) = delete;

    ~Value()
    {
        hl_arena_fini(&arena);
    }

    const struct hl_api_type *type;

    struct hl_arena arena {
    };

    void *at;
    Json json;
};

/* False: it is refused. */
bool read_value(const Side &side, kj::ArrayPtr<const capnp::word> words, size_t left, Value &to)
{
    size_t most = left;
    capnp::ReaderOptions options;
    options.traversalLimitInWords = max_request_words;
    options.nestingLimit = max_depth;
    try {
        capnp::FlatArrayMessageReader reader(words, options);
        value_from_message(*side.type, reader.getRoot<capnp::DynamicStruct>(side.schema), to.arena,
                           to.at, left);
    } catch (const ConvertError &e) {
        if (e.text.empty())
            abort();
        return false;
    } catch (const kj::Exception &) {
        return false;
    }
    to.json = Json(hl_api_to_json(side.type, to.at));
    if (left > most || to.json == nullptr)
        abort();
    return true;
}

void value_from_bytes(const Side &side, kj::ArrayPtr<const capnp::word> words, size_t most)
{
    Value one(side.type), two(side.type), three(side.type);
    if (!read_value(side, words, most, one))
        return;
    try {
        auto sent =
            capnp::messageToFlatArray(*message_from_value(*side.type, one.at, side.schema, false));
        if (!read_value(side, sent, max_values, two) || !json_equal(one.json.get(), two.json.get()))
            abort();
    } catch (const ConvertError &) { /* larger than a message may be */
    }
    if (hl_api_from_json(side.type, one.json.get(), &three.arena, three.at) != HL_OK)
        abort();
    three.json = Json(hl_api_to_json(side.type, three.at));
    if (!json_equal(one.json.get(), three.json.get()))
        abort();
}

void from_bytes(const Side &side, const uint8_t *data, size_t size)
{
    std::vector<capnp::word> words(size / sizeof(capnp::word));
    if (!words.empty())
        memcpy(words.data(), data, words.size() * sizeof(capnp::word));
    size_t most = side.values > 0 ? side.values : answer_values + size * values_per_byte;
    value_from_bytes(side, kj::arrayPtr(words.data(), words.size()), most);
}

/* The message that JSON makes, with patches. */
void from_json(const Side &side, const uint8_t *data, size_t size)
{
    const void *end = memchr(data, 0, size);
    size_t len = end != nullptr ? static_cast<const uint8_t *>(end) - data : size;
    Json json(json_loadb(reinterpret_cast<const char *>(data), len, 0, nullptr));
    Value value(side.type);
    if (json == nullptr || hl_api_from_json(side.type, json.get(), &value.arena, value.at) != HL_OK)
        return;
    try {
        auto words =
            capnp::messageToFlatArray(*message_from_value(*side.type, value.at, side.schema, true));
        auto bytes = words.asBytes();
        for (size_t i = len + 1; i + 3 <= size; i += 3)
            bytes[(data[i] | data[i + 1] << 8) % bytes.size()] = data[i + 2];
        from_bytes(side, bytes.begin(), bytes.size());
    } catch (const ConvertError &e) {
        if (e.text.empty())
            abort();
    }
}
} // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 2)
        return 0;
    const Side &side = sides()[data[0] % sides().size()];
    if (data[1] % 3 == 0)
        from_bytes(side, data + 2, size - 2);
    else
        from_json(side, data + 2, size - 2);
    return 0;
}
