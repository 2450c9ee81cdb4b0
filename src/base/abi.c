#include "base/abi.h"

#include <stdbool.h>
#include <string.h>

static size_t size_of(const void *grown)
{
    size_t size;
    memcpy(&size, grown, sizeof(size));
    return size;
}

static bool all_zero(const unsigned char *bytes, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (bytes[i] != 0)
            return false;
    return true;
}

hl_status hl_abi_check(const char *type, const void *out)
{
    size_t given = size_of(out);
    if (given >= sizeof(size_t) && given <= HL_ABI_MAX)
        return HL_OK;
    return hl_fail(HL_EINVAL, "%s.size is %zu: set it to sizeof(%s)", type, given, type);
}

hl_status hl_abi_read(const char *type, const void *given, size_t size, void *known)
{
    HL_TRY(hl_abi_check(type, given));
    size_t theirs = size_of(given), common = theirs < size ? theirs : size;
    if (!all_zero((const unsigned char *)given + common, theirs - common))
        return hl_fail(HL_EINVAL,
                       "%s.size is %zu, and a member after the %zu bytes that this libhelios (%s) "
                       "knows is not 0: install the libhelios that the program was compiled for, "
                       "or leave that member 0",
                       type, theirs, size, HELIOS_VERSION);
    memset(known, 0, size);
    memcpy(known, given, common);
    memcpy(known, &size, sizeof(size));
    return HL_OK;
}

hl_status hl_abi_write(const char *type, const void *known, size_t size, void *out)
{
    HL_TRY(hl_abi_check(type, out));
    size_t theirs = size_of(out), common = theirs < size ? theirs : size;
    memcpy((char *)out + sizeof(size), (const char *)known + sizeof(size), common - sizeof(size));
    memset((char *)out + common, 0, theirs - common);
    return HL_OK;
}
