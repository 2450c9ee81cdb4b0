/* The error text for a person when chunks don't fit. */
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/text.h"
#include "hybridps/client/client_private.h"
#include "hybridps/layout/layout.h"

#define TOP  5
#define ROOM 160 /* bytes kept free for the end of the text */

struct text {
    char data[HL_ERROR_TEXT_MAX];
    size_t len;
};

static void explain_add(struct text *t, const char *fmt, ...) HL_PRINTF(2, 3);

static void explain_add(struct text *t, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    int n = vsnprintf(t->data + t->len, sizeof(t->data) - t->len, fmt, args);
    va_end(args);
    if (n > 0)
        t->len += (size_t)n < sizeof(t->data) - t->len ? (size_t)n : sizeof(t->data) - t->len - 1;
}

/* For one place: the bytes of each kind's chunks, and of its tensors in each state. */
static void add_kind(const struct hybridps *h, struct text *t, int kind, uint64_t bytes,
                     const uint8_t *there)
{
    uint64_t in[HYBRIDPS_AFTER_BWD + 1] = {0};
    for (uint32_t i = 0; i < h->tensors.count; i++) {
        const struct hl_tensor *x = &h->tensors.list[i];
        if (x->kind == kind && x->chunk != HL_TENSOR_NONE && there[x->chunk])
            in[x->state] += x->bytes;
    }
    explain_add(t, " %s %" PRIu64 " (COMPUTE %" PRIu64, hl_tensor_kind_name(kind), bytes,
                in[HYBRIDPS_COMPUTE]);
    for (int s = HYBRIDPS_HOLD; s <= HYBRIDPS_AFTER_BWD; s++)
        if (in[s] > 0 && s != HYBRIDPS_COMPUTE)
            explain_add(t, ", %s %" PRIu64, hl_tensor_state_name(s), in[s]);
    explain_add(t, ")");
}

static void add_kinds(const struct hybridps *h, struct text *t, bool on_host)
{
    uint64_t all[HYBRIDPS_KINDS] = {0};
    const char *comma = "";
    uint8_t *there = calloc(h->tensors.chunk_count + 1, 1);
    if (there == NULL)
        return;
    for (uint32_t c = 0; c < h->tensors.chunk_count; c++) {
        struct hl_chunk_info info;
        hl_chunk_pool_info(h->pool, c, &info);
        there[c] = on_host ? info.on_host && !info.below : info.on_device != 0;
        all[info.kind] += there[c] ? info.bytes : 0;
    }
    explain_add(t, "; on the %s:", on_host ? "host" : "device");
    for (int k = 0; k < HYBRIDPS_KINDS; k++)
        if (all[k] > 0) {
            explain_add(t, "%s", comma);
            add_kind(h, t, k, all[k], there);
            comma = ",";
        }
    explain_add(t, "%s", comma[0] == '\0' ? " nothing" : "");
    free(there);
}

/* The largest pinned chunks, each with a tensor that pins it. */
static void add_pinned(const struct hybridps *h, struct text *t, int where)
{
    uint32_t told[TOP];
    size_t count = 0;
    while (count < TOP) {
        const struct hl_tensor *best = NULL;
        uint64_t bytes = 0;
        for (uint32_t i = 0; i < h->tensors.count; i++) {
            const struct hl_tensor *x = &h->tensors.list[i];
            bool known = false;
            for (size_t k = 0; k < count; k++)
                known |= told[k] == x->chunk;
            if (x->pins == 0 || x->where != where || known)
                continue;
            if (best == NULL || h->tensors.chunks[x->chunk].bytes > bytes) {
                best = x;
                bytes = h->tensors.chunks[x->chunk].bytes;
            }
        }
        if (best == NULL)
            break;
        explain_add(t, "%s \"%.60s\" (chunk %" PRIu32 ", %" PRIu64 ")",
                    count == 0 ? "; pinned by" : ",", best->name, best->chunk, bytes);
        told[count++] = best->chunk;
    }
}

/* Bytes that are pinned on the device or requested there. */
static uint64_t wanted_on_device(const struct hybridps *h, const hybridps_use *uses, size_t n)
{
    uint64_t bytes = 0;
    for (uint32_t c = 0; c < h->tensors.chunk_count; c++) {
        struct hl_chunk_info info;
        hl_chunk_pool_info(h->pool, c, &info);
        int in = info.device_pins > 0;
        for (size_t i = 0; i < n && !in; i++)
            in = uses[i].where == HYBRIDPS_DEVICE && h->tensors.list[uses[i].tensor].chunk == c;
        bytes += in ? info.bytes : 0;
    }
    return bytes;
}

/* Bytes that are pinned on the host, or requested there and not on the device. */
static uint64_t wanted_on_host(const struct hybridps *h, const hybridps_use *uses, size_t n)
{
    uint64_t bytes = 0;
    for (uint32_t c = 0; c < h->tensors.chunk_count; c++) {
        struct hl_chunk_info info;
        hl_chunk_pool_info(h->pool, c, &info);
        int in = info.host_pins > 0;
        for (size_t i = 0; i < n && !in; i++)
            in = h->tensors.list[uses[i].tensor].chunk == c &&
                 (uses[i].where == HYBRIDPS_HOST || info.below);
        bytes += in ? info.bytes : 0;
    }
    return bytes;
}

/* What a person can do about it; it comes first, before the details for others. */
static void add_remedy(const struct hybridps *h, struct text *t, const hybridps_use *uses, size_t n)
{
    struct hl_chunk_pool_stats s;
    char need[32], have[32], other[48] = "";
    uint64_t bytes = wanted_on_device(h, uses, n) + h->other;
    hl_chunk_pool_stats(h->pool, &s);
    if (h->other > 0)
        snprintf(other, sizeof(other), " (%" PRIu64 " bytes of it for others)", h->other);
    if (strcmp(h->stage, "FWD") == 0 || strcmp(h->stage, "BWD") == 0)
        explain_add(t, "module %s", h->op);
    else if (h->stage[0] != '\0' || h->op[0] != '\0')
        explain_add(t, "%s%s%s", h->stage, h->stage[0] != '\0' && h->op[0] != '\0' ? " " : "",
                    h->op);
    else
        explain_add(t, "tensor \"%.100s\"", n > 0 ? h->tensors.list[uses[0].tensor].name : "");
    explain_add(t, " needs %s of device memory at once%s; device %s has %s",
                hl_format_bytes(bytes, need, sizeof(need)), other, hl_chunk_pool_device(h->pool),
                hl_format_bytes(s.capacity, have, sizeof(have)));
    if (strncmp(hl_chunk_pool_device(h->pool), "emu", 3) == 0)
        explain_add(t, ". Use at least emu:%" PRIu64 "KiB. Details: ", (bytes + 1023) / 1024);
    else
        explain_add(t, ". Use a device with more memory. Details: ");
}

hl_status client_explain(const struct hybridps *h, hl_status st, const hybridps_use *uses, size_t n)
{
    struct text t = {.len = 0};
    if (st != HL_ENOSPC && st != HL_EBUSY)
        return hl_fail_prefix(
            st, "%s, moment %" PRIu64 " (%s%s%s): ", hl_chunk_pool_device(h->pool), h->moments,
            h->stage, h->stage[0] != '\0' && h->op[0] != '\0' ? " " : "", h->op);
    struct hl_chunk_pool_stats s;
    hl_chunk_pool_stats(h->pool, &s);
    if (st == HL_ENOSPC && !s.host_short)
        add_remedy(h, &t, uses, n);
    explain_add(&t, "moment %" PRIu64 " (%s%s%s)", h->moments, h->stage,
                h->stage[0] != '\0' && h->op[0] != '\0' ? " " : "", h->op);
    if (n > 0)
        explain_add(&t, ", tensor \"%.100s\"", h->tensors.list[uses[0].tensor].name);
    if (n > 1)
        explain_add(&t, " and %zu more", n - 1);
    explain_add(&t, ": %s", hl_error_text());
    add_kinds(h, &t, s.host_short);
    add_pinned(h, &t, s.host_short ? HYBRIDPS_HOST : HYBRIDPS_DEVICE);
    if (t.len > sizeof(t.data) - ROOM) /* the end of the text always fits */
        t.len = sizeof(t.data) - ROOM;
    if (st == HL_ENOSPC && s.host_short)
        explain_add(&t, "; %" PRIu64 " bytes must be on the host at once",
                    wanted_on_host(h, uses, n));
    return hl_fail(st, "%s", t.data);
}
