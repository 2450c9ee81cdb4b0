#include "rpc/message.hpp"

#include <cmath>
#include <cstring>

extern "C" {
#include "base/utf8.h"
}

namespace hl::rpc
{
namespace
{
using capnp::DynamicEnum;
using capnp::DynamicList;
using capnp::DynamicStruct;
using capnp::DynamicValue;
using capnp::StructSchema;

/* The path to the present field, as a chain on the stack; text is only made for an error. */
struct Path {
    const Path *up;
    const char *name; /* NULL: an element of a list */
    size_t index;
    int depth;
};

std::string text_of(const Path *path)
{
    if (path == nullptr || path->up == nullptr)
        return "";
    std::string up = text_of(path->up);
    if (path->name == nullptr)
        return up + "[" + std::to_string(path->index) + "]";
    return up.empty() ? path->name : up + "." + path->name;
}

[[noreturn]] void fail(hl_status st, const Path &at, const std::string &what)
{
    std::string where = text_of(&at);
    throw ConvertError{st, where.empty() ? what : "field " + where + ": " + what};
}

template <typename T> T load(const char *from)
{
    T value;
    memcpy(&value, from, sizeof(value));
    return value;
}

template <typename T> void store(char *to, T value)
{
    memcpy(to, &value, sizeof(value));
}

/* ---- struct to message ---- */

/* The path for errors about invalid text; NULL: the reader replaces invalid bytes by U+FFFD. */
using Checked = const Path *;

void write_struct(const struct hl_api_type &type, const char *from, DynamicStruct::Builder to,
                  Checked at);

/* Converts values that need no separate object in the message. */
DynamicValue::Reader scalar(const struct hl_api_field &field, const char *from, capnp::Type type,
                            Checked at)
{
    switch (field.kind) {
    case HL_API_BOOL:
        return load<bool>(from);
    case HL_API_INT32:
        return load<int32_t>(from);
    case HL_API_INT64:
        return load<int64_t>(from);
    case HL_API_UINT16:
        return load<uint16_t>(from);
    case HL_API_UINT32:
        return load<uint32_t>(from);
    case HL_API_UINT64:
        return load<uint64_t>(from);
    case HL_API_FLOAT64:
        return load<double>(from);
    case HL_API_ENUM:
        return DynamicEnum(type.asEnum(), (uint16_t)load<int>(from));
    case HL_API_TEXT: {
        auto text = load<const char *>(from);
        if (at != nullptr && text != nullptr && !hl_utf8_valid(text))
            fail(HL_EINVAL, *at, "it is not UTF-8");
        return capnp::Text::Reader(text != nullptr ? text : "");
    }
    default: {
        auto data = load<struct hl_api_data>(from);
        return capnp::Data::Reader(static_cast<const kj::byte *>(data.bytes), data.size);
    }
    }
}

void write_list(const struct hl_api_field &field, const struct hl_api_list &from,
                DynamicList::Builder to, Checked at)
{
    size_t size = hl_api_element_size(&field);
    auto *item = static_cast<const char *>(from.items);
    for (unsigned i = 0; i < to.size(); i++, item += size) {
        const Path element{at, nullptr, i, 0};
        Checked here = at != nullptr ? &element : nullptr;
        if (field.kind == HL_API_STRUCT)
            write_struct(*field.type, item, to[i].as<DynamicStruct>(), here);
        else
            to.set(i, scalar(field, item, to.getSchema().getElementType(), here));
    }
}

/* Empty texts and lists stay null pointers, which take no space and read the same. */
bool is_empty(const struct hl_api_field &field, const char *at)
{
    if (field.list)
        return load<struct hl_api_list>(at).count == 0;
    if (field.kind == HL_API_TEXT) {
        auto text = load<const char *>(at);
        return text == nullptr || text[0] == '\0';
    }
    return field.kind == HL_API_DATA && load<struct hl_api_data>(at).size == 0;
}

/* Whether a required field lacks its value. */
bool is_missing(const struct hl_api_field &field, const char *at)
{
    if (field.kind == HL_API_ENUM && !field.list)
        return *hl_api_enum_word(field.words, load<int>(at)) == '\0';
    return is_empty(field, at);
}

void write_struct(const struct hl_api_type &type, const char *from, DynamicStruct::Builder to,
                  Checked at)
{
    auto members = to.getSchema().getFields();
    for (unsigned i = 0; i < type.field_count; i++) {
        const struct hl_api_field &field = type.fields[i];
        const char *value = from + field.offset;
        const Path member{at, field.name, 0, 0};
        Checked here = at != nullptr ? &member : nullptr;
        if (is_empty(field, value))
            continue;
        if (field.list) {
            auto list = load<struct hl_api_list>(value);
            write_list(field, list, to.init(members[i], (unsigned)list.count).as<DynamicList>(),
                       here);
        } else if (field.kind == HL_API_STRUCT) {
            write_struct(*field.type, value, to.init(members[i]).as<DynamicStruct>(), here);
        } else {
            to.set(members[i], scalar(field, value, members[i].getType(), here));
        }
    }
}

/* ---- message to struct ---- */

struct Reading {
    struct hl_arena &arena;
    const size_t most;
    size_t left;

    void count(const Path &at)
    {
        if (left == 0)
            fail(HL_EINVAL, at, "the message has more than " + std::to_string(most) + " values");
        left--;
    }

    template <typename T> T *made(T *piece)
    {
        if (piece == nullptr)
            throw ConvertError{HL_ENOMEM, "out of memory decoding a message"};
        return piece;
    }
};

void read_struct(const struct hl_api_type &type, DynamicStruct::Reader from, char *to,
                 const Path &at, Reading &r);

void read_float(double number, char *to, const Path &at)
{
    if (!std::isfinite(number))
        fail(HL_EINVAL, at, "not a finite number");
    store(to, number);
}

void read_element(const struct hl_api_field &field, const DynamicValue::Reader &from, char *to,
                  const Path &at, Reading &r)
{
    r.count(at);
    switch (field.kind) {
    case HL_API_BOOL:
        return store(to, from.as<bool>());
    case HL_API_INT32:
        return store(to, from.as<int32_t>());
    case HL_API_INT64:
        return store(to, from.as<int64_t>());
    case HL_API_UINT16:
        return store(to, from.as<uint16_t>());
    case HL_API_UINT32:
        return store(to, from.as<uint32_t>());
    case HL_API_UINT64:
        return store(to, from.as<uint64_t>());
    case HL_API_FLOAT64:
        return read_float(from.as<double>(), to, at);
    case HL_API_ENUM: {
        unsigned raw = from.as<DynamicEnum>().getRaw();
        char text[HL_API_UNKNOWN_MAX];
        if (raw >= field.words->count)
            fail(HL_EINVAL, at,
                 hl_api_enum_unknown(field.words, std::to_string(raw).c_str(), text));
        return store(to, (int)raw);
    }
    case HL_API_TEXT: {
        auto text = from.as<capnp::Text>();
        return store<const char *>(to, r.made(hl_utf8_clean(&r.arena, text.begin(), text.size())));
    }
    case HL_API_DATA: {
        auto data = from.as<capnp::Data>();
        auto *bytes = reinterpret_cast<const char *>(data.begin());
        struct hl_api_data copy = {r.made(hl_arena_text(&r.arena, bytes, data.size())),
                                   data.size()};
        return store(to, copy);
    }
    case HL_API_STRUCT:
        return read_struct(*field.type, from.as<DynamicStruct>(), to, at, r);
    }
}

void read_list(const struct hl_api_field &field, DynamicList::Reader from, char *to, const Path &at,
               Reading &r)
{
    size_t size = hl_api_element_size(&field);
    r.count(at);
    if (from.size() > r.left) /* before memory is allocated for them */
        fail(HL_EINVAL, at, "the message has more than " + std::to_string(r.most) + " values");
    auto *items = static_cast<char *>(r.made(hl_arena_array(&r.arena, from.size(), size)));
    for (unsigned i = 0; i < from.size(); i++)
        read_element(field, from[i], items + i * size, Path{&at, nullptr, i, at.depth + 1}, r);
    store(to, hl_api_list{items, from.size()});
}

void read_struct(const struct hl_api_type &type, DynamicStruct::Reader from, char *to,
                 const Path &at, Reading &r)
{
    if (at.depth > max_depth)
        fail(HL_EINVAL, at, "nested more than " + std::to_string(max_depth) + " deep");
    auto members = from.getSchema().getFields();
    for (unsigned i = 0; i < type.field_count; i++) {
        const struct hl_api_field &field = type.fields[i];
        Path here{&at, field.name, 0, at.depth + 1};
        char *target = to + field.offset;
        if (field.list)
            read_list(field, from.get(members[i]).as<DynamicList>(), target, here, r);
        else
            read_element(field, from.get(members[i]), target, here, r);
        if (field.required &&
            (field.kind == HL_API_STRUCT && !field.list ? !from.has(members[i])
                                                        : is_missing(field, target)))
            fail(HL_EINVAL, here, "missing");
    }
}
} // namespace

Message message_from_value(const struct hl_api_type &type, const void *value, StructSchema schema,
                           bool check_texts)
{
    const Path top{};
    auto message = std::make_unique<capnp::MallocMessageBuilder>();
    try {
        write_struct(type, static_cast<const char *>(value),
                     message->initRoot<DynamicStruct>(schema), check_texts ? &top : nullptr);
    } catch (const kj::Exception &e) { /* a list or text longer than the encoding can count */
        throw ConvertError{HL_EINVAL,
                           std::string("the message can't be built: ") + e.getDescription().cStr()};
    }
    size_t words = message->sizeInWords();
    if (words >= max_message_words - 1024) /* room for the RPC envelope */
        throw ConvertError{HL_EINVAL, "the message has " + std::to_string(words * 8) +
                                          " bytes, more than the limit of " +
                                          std::to_string(max_message_words * 8)};
    return message;
}

void value_from_message(const struct hl_api_type &type, DynamicStruct::Reader from,
                        struct hl_arena &arena, void *to, size_t &left)
{
    Reading r{arena, left, left};
    Path top{nullptr, nullptr, 0, 0};
    r.count(top);
    memset(to, 0, type.size);
    read_struct(type, from, static_cast<char *>(to), top, r);
    left = r.left;
}

size_t values_of(capnp::InterfaceSchema::Method method)
{
    constexpr uint64_t max_values_id = 0xd1f6a0c49bb3e27aull; /* $maxValues */
    for (auto annotation : method.getProto().getAnnotations())
        if (annotation.getId() == max_values_id)
            return annotation.getValue().getUint32();
    return request_values;
}

std::string clean_text(const char *text, size_t len)
{
    struct hl_arena arena = {};
    const char *clean = hl_utf8_clean(&arena, text, len);
    std::string out = clean != nullptr ? clean : "";
    hl_arena_fini(&arena);
    return out;
}
} // namespace hl::rpc
