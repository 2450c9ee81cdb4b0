/* Checksums of memory, for callers that compare it with memory elsewhere. */
#include "base/chunk.h"
#include "base/crc32.h"
#include "client/client_private.h"

int helios_checksums(const void *data, uint64_t size, uint32_t *out)
{
    const char *bytes = data;
    if ((data == NULL && size > 0) || out == NULL)
        return hl_fail(HL_EINVAL, "helios_checksums: data or out is NULL");
    for (uint64_t at = 0; at < size; at += HL_CHUNK) {
        uint64_t left = size - at;
        *out++ = hl_crc32(0, bytes + at, left < HL_CHUNK ? (size_t)left : HL_CHUNK);
    }
    return HELIOS_OK;
}
