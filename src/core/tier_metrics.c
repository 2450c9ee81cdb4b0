#include "core/tier_metrics.h"

#include <inttypes.h>
#include <string.h>

#include "base/plane.h"
#include "core/json.h"
#include "core/route.h"

static void bytes_of(const json_t *tier, struct hl_buf *out)
{
    static const char *const states[][2] = {
        {"quota", "quotaBytes"},     {"used", "usedBytes"},
        {"writing", "writingBytes"}, {"quarantined", "quarantinedBytes"},
        {"high", "highBytes"},       {"low", "lowBytes"}};
    char label[2][256];
    for (size_t i = 0; i < HL_ARRAY_LEN(states); i++) {
        if (json_object_get(tier, states[i][1]) == NULL)
            continue; /* the tier has no such state: none of the watermarks, say */
        (void)hl_buf_printf(
            out, "helios_tier_bytes{tier=\"%s\",name=\"%s\",state=\"%s\"} %" PRId64 "\n",
            hl_metric_label(hl_json_str(tier, "tier", ""), label[0], sizeof(label[0])),
            hl_metric_label(hl_json_str(tier, "name", ""), label[1], sizeof(label[1])),
            states[i][0], hl_json_int(tier, states[i][1], 0));
    }
}

/* Of ranks' chunks: each process. */
static void processes_of(const json_t *tier, struct hl_buf *out)
{
    char label[2][256];
    const json_t *p;
    size_t i;
    json_array_foreach (hl_json_list(tier, "processes"), i, p) {
        (void)hl_buf_printf(
            out, "helios_chunk_bytes{tier=\"%s\",name=\"%s\",pid=\"%" PRId64 "\"} %" PRId64 "\n",
            hl_metric_label(hl_json_str(tier, "tier", ""), label[0], sizeof(label[0])),
            hl_metric_label(hl_json_str(tier, "name", ""), label[1], sizeof(label[1])),
            hl_json_int(p, "pid", 0), hl_json_int(p, "usedBytes", 0));
    }
}

static int is_of_shards(const json_t *tier)
{
    return hl_json_str(tier, "kind", "")[0] == '\0';
}

hl_status hl_tier_gauges(const json_t *tiers, struct hl_buf *out)
{
    int64_t shards[HL_TIER_COUNT] = {0};
    int there[HL_TIER_COUNT] = {0};
    size_t i;
    const json_t *tier;
    hl_metric_family(out, "helios_tier_bytes", "gauge",
                     "Bytes of each tier by state; quota 0 = no limit but the medium's.");
    json_array_foreach (tiers, i, tier) {
        bytes_of(tier, out);
        for (int t = 0; t < HL_TIER_COUNT; t++)
            if (is_of_shards(tier) && strcmp(hl_tier_name(t), hl_json_str(tier, "tier", "")) == 0) {
                shards[t] += hl_json_int(tier, "shards", 0);
                there[t] = 1;
            }
    }
    hl_metric_family(out, "helios_shards", "gauge", "Sealed copies of shards by tier.");
    for (int t = 0; t < HL_TIER_COUNT; t++)
        if (there[t])
            (void)hl_buf_printf(out, "helios_shards{tier=\"%s\"} %" PRId64 "\n", hl_tier_name(t),
                                shards[t]);
    hl_metric_family(out, "helios_chunk_bytes", "gauge",
                     "Bytes of HybridPS chunks by tier and process.");
    json_array_foreach (tiers, i, tier)
        processes_of(tier, out);
    return out->failed ? hl_fail(HL_ENOMEM, "metrics of the tiers") : HL_OK;
}
