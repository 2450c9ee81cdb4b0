/* The scratch model: one version of three positions that no job reads.
 *
 *     tp 0   two hot shards        the policy's rows
 *     tp 1   cold shards           what fills an L1
 *     tp 2   a small and a large   paths and speeds
 *
 * It uses at most half of the pool's free memory, so that L3 evicts nothing for it. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/id.h"
#include "cli/validate/validate.h"

#define SMALL_BYTES  64
#define LEAST_BYTES  ((uint64_t)64 << 10)
#define HOT_BYTES    ((uint64_t)1 << 20) /* if there is no L1 to fill */
#define LARGE_BYTES  ((uint64_t)64 << 20)
#define HEADER_BYTES 256 /* limit for a shard with one tensor */
#define REMOVE_MS    15000
#define POSITIONS    3

/* ---- sizes ----------------------------------------------------------------------------------- */

static uint64_t least_of(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

/* Bytes of the shards by kind; 0: there is no shard of the kind. */
struct sizes {
    uint64_t of[SCRATCH_KINDS];
};

/* Why the L1 of the readers' node can't be filled; NULL: it can. */
static const char *fill_obstacle(struct validation *v, const struct hl_l1_fill *fill, uint64_t room)
{
    char need[32], has[32];
    if (v->reader < 0)
        return v->no_reader;
    const struct vnode *n = &v->facts.nodes[v->reader];
    if (n->devices == 0)
        return validate_text(v, "%s has no L1", n->name);
    if (n->l1_used > 0)
        return validate_text(v, "L1 of %s holds %s of others", n->name,
                             hl_format_bytes(n->l1_used, has, sizeof(has)));
    if (fill->bytes == 0)
        return "policy.high_pct leaves no room above it";
    if (fill->bytes <= room && fill->bytes <= n->l2_free)
        return NULL;
    return validate_text(v, "filling L1 of %s needs %s, and %s are free (--size, pool, L2)",
                         n->name, hl_format_bytes(fill->bytes, need, sizeof(need)),
                         hl_format_bytes(least_of(room, n->l2_free), has, sizeof(has)));
}

static uint64_t large_bytes(const struct validation *v, uint64_t room)
{
    uint64_t most = least_of(room / 4, LARGE_BYTES);
    for (size_t i = 0; i < v->facts.count; i++) {
        const struct vnode *n = &v->facts.nodes[i];
        if (n->l2_free / 2 >= LEAST_BYTES)
            most = least_of(most, n->l2_free / 2);
        if (n->devices > 0 && n->l1_free / 2 >= LEAST_BYTES)
            most = least_of(most, n->l1_free / 2);
    }
    return most;
}

static hl_status choose_sizes(struct validation *v, struct sizes *out)
{
    uint64_t room = least_of(v->args->size, v->facts.pool_free / 2);
    struct hl_l1_room l1 = {.high_pct = v->facts.high_pct};
    struct sizes s = {0};
    char has[32];
    if (room < 8 * LEAST_BYTES)
        return hl_fail(HL_ENOSPC, "the pool has %s left, and half of it stays free",
                       hl_format_bytes(v->facts.pool_free, has, sizeof(has)));
    if (v->reader >= 0) {
        l1.quota = v->facts.nodes[v->reader].l1_bytes;
        l1.devices = v->facts.nodes[v->reader].devices;
    }
    struct hl_l1_fill fill = hl_l1_fill_of(&l1);
    v->no_fill = fill_obstacle(v, &fill, room * 3 / 4);
    if (v->no_fill == NULL)
        v->cold_count = fill.cold_count;
    s.of[SCRATCH_HOT] = s.of[SCRATCH_HOT + 1] =
        v->no_fill == NULL ? fill.hot_bytes : least_of(room / 16, HOT_BYTES);
    for (unsigned i = 0; i < v->cold_count; i++)
        s.of[SCRATCH_COLD + i] = fill.cold_bytes;
    if (v->no_fill != NULL) /* one shard that is read once */
        s.of[SCRATCH_COLD] = least_of(room / 16, HOT_BYTES);
    s.of[SCRATCH_SMALL] = SMALL_BYTES + HEADER_BYTES;
    s.of[SCRATCH_LARGE] = large_bytes(v, room);
    *out = s;
    return HL_OK;
}

/* ---- making ---------------------------------------------------------------------------------- */

/* Makes content that neither compresses nor repeats. */
static hl_status random_bytes(uint64_t size, unsigned char **out)
{
    uint64_t seed = hl_random_u64();
    unsigned char *bytes = malloc(size + 8);
    if (bytes == NULL)
        return hl_fail(HL_ENOMEM, "out of memory allocating %" PRIu64 " bytes of a shard", size);
    for (uint64_t i = 0; i < size; i += 8) {
        uint64_t x = seed += UINT64_C(0x9e3779b97f4a7c15);
        x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
        x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
        x ^= x >> 31;
        memcpy(bytes + i, &x, 8);
    }
    *out = bytes;
    return HL_OK;
}

static void name_part(int kind, int *tp, char part[32])
{
    *tp = kind >= SCRATCH_SMALL ? 2 : kind >= SCRATCH_COLD ? 1 : 0;
    snprintf(part, 32, "layer-%04d",
             kind - (*tp == 2   ? SCRATCH_SMALL
                     : *tp == 1 ? SCRATCH_COLD
                                : SCRATCH_HOT));
}

static hl_status put_shard(struct validation *v, helios_client *client, int64_t version, int kind,
                           uint64_t size)
{
    unsigned char *bytes = NULL;
    helios_shard made;
    char part[32], name[48];
    int tp;
    const int64_t shape[] = {(int64_t)(size - HEADER_BYTES)};
    HL_TRY(random_bytes(size - HEADER_BYTES, &bytes));
    name_part(kind, &tp, part);
    snprintf(name, sizeof(name), "%s.scratch", part);
    const helios_tensor tensor = {
        .name = name, .dtype = "U8", .shape = shape, .rank = 1, .data = bytes};
    hl_status st =
        (hl_status)helios_version_put(client, v->model, version, 0, tp, part, &tensor, 1, &made);
    free(bytes);
    HL_TRY(st);
    struct scratch_shard *s = &v->shards[kind];
    struct hl_id id = {made.id.hi, made.id.lo};
    snprintf(s->id, sizeof(s->id), "%s", hl_id_format(id).s);
    s->key = made.id;
    s->size = made.size;
    s->crc32 = made.crc32;
    v->bytes += made.size;
    return validate_check(v);
}

static hl_status put_version(struct validation *v, helios_client *client, const struct sizes *sizes)
{
    const helios_split split = {HELIOS_SPLIT_INIT, .tp = POSITIONS, .pp = 1};
    const helios_version_spec spec = {
        HELIOS_VERSION_SPEC_INIT,          .model = v->model, .job = v->model, .world = 1,
        .layout = HELIOS_LAYOUT_UNCHECKED, .create = &split};
    int64_t version;
    int visible = 0;
    HL_TRY((hl_status)helios_version_open(client, &spec, &version));
    v->made = true;
    hl_status st = HL_OK;
    for (int kind = 0; kind < SCRATCH_KINDS && st == HL_OK; kind++)
        if (sizes->of[kind] > HEADER_BYTES)
            st = put_shard(v, client, version, kind, sizes->of[kind]);
    if (st == HL_OK)
        st = (hl_status)helios_version_commit(client, v->model, version, 0, "{}", &visible);
    if (st == HL_OK)
        return HL_OK;
    char text[HL_ERROR_TEXT_MAX];
    snprintf(text, sizeof(text), "%s", hl_error_text());
    if (helios_version_abandon(client, v->model, version, 0, "the validation ended") != HELIOS_OK)
        hl_error_clear(); /* the model is removed all the same */
    return hl_fail(st, "the scratch model: %s", text);
}

/* Scratch models of other validations that run now look the same. */
static hl_status tell_leftovers(struct validation *v)
{
    struct hl_api_controller_list_models_results r;
    HL_TRY(CLI_CALL(v->cli, list_models, &(struct hl_api_controller_list_models_params){0},
                    &v->arena, &r));
    for (size_t i = 0; i < r.models.count; i++) {
        const char *name = r.models.items[i].name;
        if (strncmp(name, VALIDATE_NAME, strlen(VALIDATE_NAME)) == 0)
            fprintf(stderr,
                    "helios: %s belongs to a validation that is running or was killed; when none "
                    "is running, remove it with `helios model rm %s`\n",
                    name, name);
    }
    return HL_OK;
}

hl_status scratch_client(struct validation *v, const char *path, helios_client **out)
{
    /* This process belongs to no node, so its reads cause no moves. */
    if (unsetenv("HELIOS_NODE") != 0 || unsetenv("HELIOS_STORE_SOCKET") != 0)
        return hl_fail(HL_EINTERNAL, "unsetenv: %m");
    return cli_client(v->cli, path, validate_left_ms(v), out);
}

hl_status scratch_make(struct validation *v)
{
    struct sizes sizes;
    helios_client *client;
    HL_TRY(tell_leftovers(v));
    HL_TRY(choose_sizes(v, &sizes));
    HL_TRY(scratch_client(v, "auto", &client));
    hl_status st = put_version(v, client, &sizes);
    helios_close(client);
    return st;
}

/* ---- removing -------------------------------------------------------------------------------- */

hl_status scratch_remove(struct validation *v)
{
    HL_AUTO(hl_arena_fini) struct hl_arena arena = {0};
    struct hl_api_controller_remove_model_results r;
    hl_status stopped = readers_stop(v);
    if (!v->made)
        return stopped;
    const struct hl_api_controller_remove_model_params p = {
        .name = v->model, .version = -1, .force = true};
    hl_status st = CLI_CALL_FOR(v->cli, remove_model, &p, REMOVE_MS, &arena, &r);
    if (st == HL_OK || st == HL_ENOENT) {
        v->made = false;
        return stopped;
    }
    return hl_fail_prefix(st,
                          "the scratch model stays, `helios model rm %s` removes it: ", v->model);
}
