/* Converts failures to and from their form on the wire: a Cap'n Proto exception whose description
 * is "ENAME: sentence". */
#include "rpc/message.hpp"
#include "rpc/runtime.hpp"

#include <cctype>
#include <cerrno>
#include <cstring>

namespace hl::rpc
{
namespace
{
/* libcapnp marks failures that the other side reported, once for every hop. */
bool strip_remote(std::string &text)
{
    static const char prefix[] = "remote exception: ";
    bool found = false;
    while (text.compare(0, sizeof(prefix) - 1, prefix) == 0) {
        text.erase(0, sizeof(prefix) - 1);
        found = true;
    }
    return found;
}

/* Splits "ENOENT: no such model"; false if the text does not begin with one of our names. */
bool split(const std::string &text, Outcome *out)
{
    size_t colon = text.find(": ");
    if (colon == std::string::npos)
        return false;
    std::string name = text.substr(0, colon);
    hl_status st = hl_status_by_name(name.c_str());
    if (st == HL_OK || (st == HL_EINTERNAL && name != "EINTERNAL"))
        return false;
    *out = {st, text.substr(colon + 2)};
    return true;
}
} // namespace

Outcome outcome_of(const kj::Exception &e)
{
    std::string text = clean_text(e.getDescription().begin(), e.getDescription().size());
    bool remote = strip_remote(text);
    Outcome out;
    switch (e.getType()) {
    case kj::Exception::Type::DISCONNECTED:
        return {HL_EUNAVAIL, "the connection was lost before the answer came"};
    case kj::Exception::Type::UNIMPLEMENTED:
        return {HL_EUNSUPPORTED, "the daemon there doesn't know this method; is it of an older "
                                 "version, or another daemon?"};
    case kj::Exception::Type::OVERLOADED:
        out.refused = split(text, &out);
        return out.refused ? out : Outcome{HL_EBUSY, text};
    case kj::Exception::Type::FAILED:
        break;
    }
    out.refused = split(text, &out);
    if (out.refused)
        return out;
    if (remote)
        return {HL_EINTERNAL, text};
    return {HL_EPROTO, "what answers there doesn't keep to the protocol: " + text};
}

std::string connect_reason(const kj::Exception &e)
{
    static const int known[] = {ECONNREFUSED, EHOSTUNREACH, ENETUNREACH, ETIMEDOUT,    ENOENT,
                                EACCES,       ECONNRESET,   EMFILE,      EADDRNOTAVAIL};
    std::string text = e.getDescription().cStr();
    if (text.find("DNS lookup failed") != std::string::npos)
        return "the host name can't be resolved";
    for (int number : known) {
        std::string reason = strerror(number);
        if (text.find(reason) == std::string::npos)
            continue;
        reason[0] = (char)tolower((unsigned char)reason[0]);
        return reason;
    }
    return text;
}

kj::Exception exception_of(hl_status st, const std::string &text)
{
    return kj::Exception(kj::Exception::Type::FAILED, __FILE__, __LINE__,
                         kj::str(hl_status_name(st), ": ", text.c_str()));
}
} // namespace hl::rpc
