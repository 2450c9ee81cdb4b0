#include "cli/models/stored.h"

#include <stdio.h>

#include "base/id.h"
#include "cli/models/rankfile.h"
#include "cli/models/shard_id.h"

static void leave_derived(struct hl_api_shard_list *shards)
{
    size_t kept = 0;
    for (size_t i = 0; i < shards->count; i++)
        if (!shards->items[i].derived)
            shards->items[kept++] = shards->items[i];
    shards->count = kept;
}

hl_status stored_list(struct cli *cli, const char *model, int64_t version, struct hl_arena *arena,
                      struct stored_version *out)
{
    struct hl_api_controller_request_shards_results r;
    const struct hl_api_controller_request_shards_params p = {.model = model, .version = version};
    HL_TRY(CLI_CALL(cli, request_shards, &p, arena, &r));
    struct stored_version v = {
        .model = model, .version = r.version, .config = r.config, .split = r.split};
    HL_TRY(shard_list(cli, model, r.version, arena, &v.shards));
    leave_derived(&v.shards);
    *out = v;
    return HL_OK;
}

HL_CHECK static hl_status shard_of(const struct hl_api_shard *s, helios_shard *out)
{
    struct hl_id id;
    HL_TRY(hl_id_parse(s->id, &id));
    *out = (helios_shard){.id = {.hi = id.hi, .lo = id.lo}, .size = s->size_bytes};
    snprintf(out->part, sizeof(out->part), "%s", s->part);
    return HL_OK;
}

hl_status stored_header(helios_client *client, const struct hl_api_shard *s,
                        struct hl_safetensors *out)
{
    helios_shard shard;
    struct hl_safetensors h;
    HL_TRY(shard_of(s, &shard));
    HL_TRY(rankfile_header(client, &shard, &h));
    hl_status st =
        hl_safetensors_check_origin(&h, s->model, s->version, s->pp, s->tp, s->ep, s->part);
    if (st != HL_OK) {
        hl_safetensors_fini(&h);
        return st;
    }
    *out = h;
    return HL_OK;
}

hl_status stored_map(helios_client *client, const struct hl_api_shard *s, const void **out)
{
    helios_shard shard;
    HL_TRY(shard_of(s, &shard));
    return (hl_status)helios_map(client, shard.id, out, NULL);
}
