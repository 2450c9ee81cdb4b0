/* Compressed chunks of a peer that says anything: two bytes say how large the chunk is, the rest is
 * its payload. The destination ends with the chunk, so that a byte too many is seen. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "net/zmq/zstd.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct hl_mig_unpack *u; /* one for all, as a receiver has it */
    uint16_t len;
    if (size < sizeof(len) || (u == NULL && hl_mig_unpack_create(&u) != HL_OK))
        return 0;
    memcpy(&len, data, sizeof(len));
    if (len == 0)
        return 0;
    uint8_t *dst = malloc(len), *packed = malloc(size);
    if (dst == NULL || packed == NULL)
        abort();
    memcpy(packed, data + sizeof(len), size - sizeof(len));
    (void)!hl_mig_unpack(u, dst, len, packed, size - sizeof(len));
    free(dst);
    free(packed);
    return 0;
}
