/* A peer that says anything: the bytes are cut into frames for a receiver. Half of them get a valid
 * magic, version and checksum, so that what lies behind the header's CRC is reached too. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/crc32.h"
#include "net/zmq/inbox.h"

#define OBJECT_MAX ((uint64_t)2 << 20)

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static hl_status sink_begin(void *arg, struct hl_id id, uint64_t size, void **token, void **ptr)
{
    (void)arg;
    (void)id;
    if (size > OBJECT_MAX)
        return hl_fail(HL_ENOSPC, "an object of %llu bytes", (unsigned long long)size);
    *token = *ptr = malloc(size);
    return *token != NULL ? HL_OK : hl_fail(HL_ENOMEM, "no memory");
}

static hl_status sink_commit(void *arg, void *token, uint32_t crc, const uint32_t *chunk_crcs,
                             size_t chunk_count, struct hl_id *id)
{
    (void)arg;
    *id = (struct hl_id){crc, chunk_crcs[chunk_count - 1]};
    free(token);
    return HL_OK;
}

static void sink_abort(void *arg, void *token)
{
    (void)arg;
    free(token);
}

/* What decodes must encode to the same bytes. */
static void round_trip(const uint8_t *header)
{
    struct hl_mig_frame f;
    uint8_t again[HL_MIG_HEADER];
    if (hl_mig_decode(header, HL_MIG_HEADER, &f) != HL_OK)
        return;
    hl_mig_encode(&f, again);
    if (memcmp(header, again, sizeof(again)) != 0)
        abort();
}

static void feed(struct hl_mig_inbox *in, const uint8_t *record, uint64_t now)
{
    static uint8_t payload[HL_MIG_CHUNK_MAX];
    uint8_t header[HL_MIG_HEADER];
    struct hl_mig_reply r;
    struct hl_mig_frame f;
    size_t len = 0;
    memcpy(header, record, sizeof(header));
    if (record[HL_MIG_HEADER] & 1) {
        memcpy(header, "HLMG\1\0", 6);
        uint32_t crc = hl_crc32(0, header, HL_MIG_HEADER - 4);
        memcpy(header + HL_MIG_HEADER - 4, &crc, 4);
    }
    round_trip(header);
    if (hl_mig_decode(header, sizeof(header), &f) == HL_OK && f.length <= sizeof(payload) &&
        !(record[HL_MIG_HEADER] & 2))
        len = f.length;
    hl_mig_inbox_message(in, header, sizeof(header), payload, len, now, &r);
    if (!r.send)
        return;
    hl_mig_encode(&r.frame, header);
    if (hl_mig_decode(header, sizeof(header), &f) != HL_OK)
        abort(); /* our own answers are valid */
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct hl_migrate_server_opts opts = {
        .sink = {sink_begin, sink_commit, sink_abort, NULL}, .max_open = 3, .keep_ms = 1};
    struct hl_mig_inbox *in = NULL;
    if (hl_mig_inbox_create(&opts, &in) != HL_OK)
        abort();
    uint64_t now = 0;
    for (; size > HL_MIG_HEADER; size -= HL_MIG_HEADER + 1, data += HL_MIG_HEADER + 1) {
        feed(in, data, now += 10000);
        if (data[HL_MIG_HEADER] & 4)
            hl_mig_inbox_expire(in, now += 2000000);
    }
    hl_mig_inbox_destroy(in);
    return 0;
}
