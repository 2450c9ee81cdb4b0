#include "rpc/convert.hpp"

#include <kj/encoding.h>

#include <cmath>
#include <cstring>
#include <limits>

namespace hl::rpc
{
namespace
{
using capnp::DynamicEnum;
using capnp::DynamicList;
using capnp::DynamicStruct;
using capnp::DynamicValue;
using capnp::StructSchema;
using capnp::Type;
using Which = capnp::schema::Type::Which;

/* Where we are, as a chain on the stack: text is made only when something is wrong. */
struct Path {
    const Path *up;
    const char *name; /* NULL: an element */
    size_t index;
    int depth;
};

Path member(const Path &up, const char *name)
{
    return {&up, name, 0, up.depth + 1};
}

Path element(const Path &up, size_t index)
{
    return {&up, nullptr, index, up.depth + 1};
}

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

void check_depth(const Path &at)
{
    if (at.depth > max_depth)
        fail(HL_EINVAL, at, "nested more than " + std::to_string(max_depth) + " deep");
}

std::string kind_of(const json_t *v)
{
    switch (json_typeof(v)) {
    case JSON_OBJECT:
        return "an object";
    case JSON_ARRAY:
        return "a list";
    case JSON_STRING:
        return "text";
    case JSON_INTEGER:
        return "the integer " + std::to_string(json_integer_value(v));
    case JSON_REAL:
        return "a real number";
    case JSON_TRUE:
    case JSON_FALSE:
        return "a boolean";
    default:
        return "null";
    }
}

[[noreturn]] void expected(const char *what, const json_t *v, const Path &at)
{
    fail(HL_EINVAL, at, std::string("expected ") + what + ", found " + kind_of(v));
}

std::string short_name(capnp::Schema schema)
{
    return schema.getShortDisplayName().cStr();
}

/* ---- JSON to message ---- */

template <typename T> DynamicValue::Reader integer(const json_t *v, const Path &at)
{
    if (!json_is_integer(v))
        expected("an integer", v, at);
    json_int_t n = json_integer_value(v);
    bool fits;
    if constexpr (std::numeric_limits<T>::is_signed)
        fits = n >= std::numeric_limits<T>::min() && n <= std::numeric_limits<T>::max();
    else
        fits = n >= 0 && (uint64_t)n <= std::numeric_limits<T>::max();
    if (!fits)
        fail(HL_EINVAL, at,
             std::to_string(n) + " is outside " + std::to_string(std::numeric_limits<T>::min()) +
                 ".." + std::to_string(std::numeric_limits<T>::max()));
    return static_cast<T>(n);
}

DynamicValue::Reader enumerant(const json_t *v, capnp::EnumSchema schema, const Path &at)
{
    if (!json_is_string(v))
        expected("the name of an enumerant", v, at);
    KJ_IF_MAYBE (e, schema.findEnumerantByName(json_string_value(v)))
        return DynamicEnum(*e);
    fail(HL_EINVAL, at, short_name(schema) + " has no \"" + json_string_value(v) + "\"");
}

/* Values that fit into a DynamicValue without an allocation in the message. */
DynamicValue::Reader scalar(const json_t *v, Type type, const Path &at)
{
    switch (type.which()) {
    case Which::VOID:
        return capnp::VOID;
    case Which::BOOL:
        if (!json_is_boolean(v))
            expected("true or false", v, at);
        return static_cast<bool>(json_is_true(v));
    case Which::INT8:
        return integer<int8_t>(v, at);
    case Which::INT16:
        return integer<int16_t>(v, at);
    case Which::INT32:
        return integer<int32_t>(v, at);
    case Which::INT64:
        return integer<int64_t>(v, at);
    case Which::UINT8:
        return integer<uint8_t>(v, at);
    case Which::UINT16:
        return integer<uint16_t>(v, at);
    case Which::UINT32:
        return integer<uint32_t>(v, at);
    case Which::UINT64:
        return integer<uint64_t>(v, at);
    case Which::FLOAT32:
    case Which::FLOAT64:
        if (!json_is_number(v))
            expected("a number", v, at);
        return json_number_value(v);
    case Which::ENUM:
        return enumerant(v, type.asEnum(), at);
    case Which::TEXT:
        if (!json_is_string(v))
            expected("text", v, at);
        return capnp::Text::Reader(json_string_value(v), json_string_length(v));
    default:
        fail(HL_EUNSUPPORTED, at, "values of this type can't be given as JSON");
    }
}

kj::Array<kj::byte> bytes(const json_t *v, const Path &at)
{
    if (!json_is_string(v))
        expected("base64 text", v, at);
    auto data = kj::decodeBase64(kj::arrayPtr(json_string_value(v), json_string_length(v)));
    if (data.hadErrors)
        fail(HL_EINVAL, at, "the text is not base64");
    return kj::mv(data);
}

void fill_struct(DynamicStruct::Builder to, const json_t *from, const Path &at);

void fill_list(DynamicList::Builder to, const json_t *from, const Path &at)
{
    Type type = to.getSchema().getElementType();
    for (unsigned i = 0; i < to.size(); i++) {
        const json_t *v = json_array_get(from, i);
        Path here = element(at, i);
        if (type.isStruct()) {
            fill_struct(to[i].as<DynamicStruct>(), v, here);
        } else if (type.isList()) {
            if (!json_is_array(v))
                expected("a list", v, here);
            fill_list(to.init(i, json_array_size(v)).as<DynamicList>(), v, here);
        } else if (type.isData()) {
            auto data = bytes(v, here);
            to.set(i, capnp::Data::Reader(data));
        } else {
            to.set(i, scalar(v, type, here));
        }
    }
}

void fill_field(DynamicStruct::Builder to, StructSchema::Field field, const json_t *v,
                const Path &at)
{
    Type type = field.getType();
    if (type.isStruct()) {
        fill_struct(to.init(field).as<DynamicStruct>(), v, at);
    } else if (type.isList()) {
        if (!json_is_array(v))
            expected("a list", v, at);
        if (json_array_size(v) > max_values)
            fail(HL_EINVAL, at, "more than " + std::to_string(max_values) + " elements");
        fill_list(to.init(field, json_array_size(v)).as<DynamicList>(), v, at);
    } else if (type.isData()) {
        auto data = bytes(v, at);
        to.set(field, capnp::Data::Reader(data));
    } else {
        to.set(field, scalar(v, type, at));
    }
}

void fill_struct(DynamicStruct::Builder to, const json_t *from, const Path &at)
{
    check_depth(at);
    if (!json_is_object(from))
        expected("an object", from, at);
    json_t *object = const_cast<json_t *>(from); /* iterators of jansson know no const */
    const char *key;
    json_t *v;
    json_object_foreach (object, key, v) {
        Path here = member(at, key);
        KJ_IF_MAYBE (field, to.getSchema().findFieldByName(key)) {
            if (!json_is_null(v))
                fill_field(to, *field, v, here);
        } else {
            fail(HL_EINVAL, here, "unknown; " + short_name(to.getSchema()) + " has no such field");
        }
    }
}

/* ---- message to JSON ---- */

struct Budget {
    const size_t most;
    size_t left;
};

Json made(json_t *json)
{
    if (json == nullptr)
        throw ConvertError{HL_ENOMEM, "a JSON value"};
    return Json(json);
}

Json object_of(DynamicStruct::Reader from, const Path &at, Budget &budget);
Json value_of(DynamicValue::Reader from, const Path &at, Budget &budget);

Json text_json(capnp::Text::Reader text)
{
    std::string clean = clean_text(text.begin(), text.size());
    return made(json_stringn_nocheck(clean.data(), clean.size()));
}

Json enum_json(DynamicEnum value)
{
    KJ_IF_MAYBE (e, value.getEnumerant())
        return made(json_string(e->getProto().getName().cStr()));
    return made(json_string(std::to_string(value.getRaw()).c_str())); /* of a newer schema */
}

Json list_json(DynamicList::Reader from, const Path &at, Budget &budget)
{
    Json list = made(json_array());
    for (unsigned i = 0; i < from.size(); i++) {
        Json v = value_of(from[i], element(at, i), budget);
        if (json_array_append_new(list.get(), v.release()) != 0)
            throw ConvertError{HL_ENOMEM, "a JSON list"};
    }
    return list;
}

Json value_of(DynamicValue::Reader from, const Path &at, Budget &budget)
{
    check_depth(at);
    if (budget.left == 0)
        fail(HL_EINVAL, at, "the message has more than " + std::to_string(budget.most) + " values");
    budget.left--;
    switch (from.getType()) {
    case DynamicValue::VOID:
        return made(json_null());
    case DynamicValue::BOOL:
        return made(json_boolean(from.as<bool>()));
    case DynamicValue::INT:
        return made(json_integer(from.as<int64_t>()));
    case DynamicValue::UINT:
        if (from.as<uint64_t>() > (uint64_t)INT64_MAX)
            fail(HL_EINVAL, at, std::to_string(from.as<uint64_t>()) + " is above 2^63-1");
        return made(json_integer((json_int_t)from.as<uint64_t>()));
    case DynamicValue::FLOAT: /* JSON has no NaN and no infinity */
        return made(std::isfinite(from.as<double>()) ? json_real(from.as<double>()) : json_null());
    case DynamicValue::TEXT:
        return text_json(from.as<capnp::Text>());
    case DynamicValue::DATA:
        return made(json_string(kj::encodeBase64(from.as<capnp::Data>()).cStr()));
    case DynamicValue::LIST:
        return list_json(from.as<DynamicList>(), at, budget);
    case DynamicValue::ENUM:
        return enum_json(from.as<DynamicEnum>());
    case DynamicValue::STRUCT:
        return object_of(from.as<DynamicStruct>(), at, budget);
    default:
        fail(HL_EUNSUPPORTED, at, "values of this type can't be shown as JSON");
    }
}

void add_member(json_t *to, DynamicStruct::Reader from, StructSchema::Field field, const Path &at,
                Budget &budget)
{
    const char *name = field.getProto().getName().cStr();
    Json v = value_of(from.get(field), member(at, name), budget);
    if (json_object_set_new_nocheck(to, name, v.release()) != 0)
        throw ConvertError{HL_ENOMEM, "a JSON object"};
}

Json object_of(DynamicStruct::Reader from, const Path &at, Budget &budget)
{
    Json object = made(json_object());
    auto fields = from.getSchema().getNonUnionFields();
    for (auto field : fields)
        add_member(object.get(), from, field, at, budget);
    KJ_IF_MAYBE (field, from.which())
        add_member(object.get(), from, *field, at, budget);
    return object;
}

/* Length of the valid UTF-8 sequence at p, 0 when there is none (RFC 3629, table of section 4). */
size_t sequence(const unsigned char *p, size_t left)
{
    if (p[0] < 0x80)
        return p[0] == 0 ? 0 : 1;
    size_t len = p[0] >= 0xF0 ? 4 : p[0] >= 0xE0 ? 3 : 2;
    if (p[0] < 0xC2 || p[0] > 0xF4 || left < len)
        return 0;
    unsigned char low = p[0] == 0xE0 ? 0xA0 : p[0] == 0xF0 ? 0x90 : 0x80;
    unsigned char high = p[0] == 0xED ? 0x9F : p[0] == 0xF4 ? 0x8F : 0xBF;
    if (p[1] < low || p[1] > high)
        return 0;
    for (size_t i = 2; i < len; i++)
        if ((p[i] & 0xC0) != 0x80)
            return 0;
    return len;
}
} // namespace

std::string clean_text(const char *text, size_t len)
{
    const unsigned char *p = reinterpret_cast<const unsigned char *>(text);
    std::string out;
    out.reserve(len);
    for (size_t i = 0; i < len;) {
        size_t n = sequence(p + i, len - i);
        if (n == 0)
            out += "\xEF\xBF\xBD";
        else
            out.append(text + i, n);
        i += n == 0 ? 1 : n;
    }
    return out;
}

Message message_from_json(const json_t *json, StructSchema schema)
{
    auto message = std::make_unique<capnp::MallocMessageBuilder>();
    auto root = message->initRoot<DynamicStruct>(schema);
    Path top{nullptr, nullptr, 0, 0};
    if (json != nullptr)
        fill_struct(root, json, top);
    size_t words = message->sizeInWords();
    if (words >= max_message_words - 1024) /* room for the RPC envelope */
        throw ConvertError{HL_EINVAL, "the message has " + std::to_string(words * 8) +
                                          " bytes, more than the limit of " +
                                          std::to_string(max_message_words * 8)};
    return message;
}

Json json_from_struct(DynamicStruct::Reader reader, size_t &left)
{
    Budget budget{left, left};
    Path top{nullptr, nullptr, 0, 0};
    Json json = object_of(reader, top, budget);
    left = budget.left;
    return json;
}

size_t values_of(capnp::InterfaceSchema::Method method)
{
    constexpr uint64_t max_values_id = 0xd1f6a0c49bb3e27aull; /* $maxValues */
    for (auto annotation : method.getProto().getAnnotations())
        if (annotation.getId() == max_values_id)
            return annotation.getValue().getUint32();
    return request_values;
}
} // namespace hl::rpc
