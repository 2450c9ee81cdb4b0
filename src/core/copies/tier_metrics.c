#include "core/copies/tier_metrics.h"

#include <inttypes.h>
#include <string.h>

#include "base/plane.h"
#include "core/copies/route.h"

/* L4 has no watermarks, so it gets no lines for them. */
static void tier_bytes(const struct hl_api_tier_info *t, struct hl_buf *out)
{
    const struct {
        const char *name;
        uint64_t bytes;
        bool there;
    } states[] = {{"quota", t->quota_bytes, true},
                  {"used", t->used_bytes, true},
                  {"writing", t->writing_bytes, true},
                  {"quarantined", t->quarantined_bytes, true},
                  {"high", t->high_bytes, t->high_bytes > 0},
                  {"low", t->low_bytes, t->high_bytes > 0}};

    char label[256];
    for (size_t i = 0; i < HL_ARRAY_LEN(states); i++)
        if (states[i].there)
            (void)hl_buf_printf(
                out, "helios_tier_bytes{tier=\"%s\",name=\"%s\",state=\"%s\"} %" PRIu64 "\n",
                hl_api_tier_name(t->tier), hl_metric_label(t->name, label, sizeof(label)),
                states[i].name, states[i].bytes);
}

static bool tier_is_of_shards(const struct hl_api_tier_info *t)
{
    return t->kind == NULL || t->kind[0] == '\0';
}

static void tier_asked(const struct hl_api_tier_info *t, struct hl_buf *out)
{
    char label[256];
    if (!tier_is_of_shards(t))
        (void)hl_buf_printf(out, "helios_chunks_asked_bytes{tier=\"%s\",name=\"%s\"} %" PRIu64 "\n",
                            hl_api_tier_name(t->tier),
                            hl_metric_label(t->name, label, sizeof(label)), t->asked_bytes);
}

/* For ranks' chunks: one line per process. */
static void tier_processes(const struct hl_api_tier_info *t, struct hl_buf *out)
{
    char label[256];
    for (size_t i = 0; i < t->processes.count; i++)
        (void)hl_buf_printf(
            out, "helios_chunk_bytes{tier=\"%s\",name=\"%s\",pid=\"%" PRId32 "\"} %" PRIu64 "\n",
            hl_api_tier_name(t->tier), hl_metric_label(t->name, label, sizeof(label)),
            t->processes.items[i].pid, t->processes.items[i].used_bytes);
}

hl_status hl_tier_gauges(const struct hl_api_tier_info_list *tiers, struct hl_buf *out)
{
    uint64_t shards[HL_API_TIER_COUNT] = {0};
    bool there[HL_API_TIER_COUNT] = {0};
    hl_metric_family(out, "helios_tier_bytes", "gauge",
                     "Bytes of each tier by state; quota 0 = no limit but the medium's.");
    for (size_t i = 0; i < tiers->count; i++) {
        const struct hl_api_tier_info *info = &tiers->items[i];
        tier_bytes(info, out);
        if (tier_is_of_shards(info)) {
            shards[info->tier] += info->shards;
            there[info->tier] = true;
        }
    }
    hl_metric_family(out, "helios_shards", "gauge", "Sealed copies of shards by tier.");
    for (int t = HL_API_TIER_L1; t < HL_API_TIER_COUNT; t++)
        if (there[t])
            (void)hl_buf_printf(out, "helios_shards{tier=\"%s\"} %" PRIu64 "\n",
                                hl_api_tier_name(t), shards[t]);
    hl_metric_family(out, "helios_chunk_bytes", "gauge",
                     "Bytes of HybridPS chunks by tier and process.");
    for (size_t i = 0; i < tiers->count; i++)
        tier_processes(&tiers->items[i], out);
    hl_metric_family(out, "helios_chunks_asked_bytes", "gauge",
                     "Bytes that HybridPS chunks of a tier are asked to keep at most; 0 = any.");
    for (size_t i = 0; i < tiers->count; i++)
        tier_asked(&tiers->items[i], out);
    return out->failed ? hl_fail(HL_ENOMEM, "out of memory listing the metrics of the tiers")
                       : HL_OK;
}
