/* Ids, prefixes and keys of shards. */
#include "cli/models/shard_id.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "core/model/part.h"

#define PAGE       5000
#define CANDIDATES 4 /* listed if a prefix fits several */
#define KEY_MAX    320

static hl_status list_add(struct hl_api_shard_list *all, const struct hl_api_shard_list *page,
                          struct hl_arena *arena)
{
    size_t count = all->count + page->count;
    struct hl_api_shard *items = hl_arena_array(arena, count, sizeof(*items));
    if (items == NULL)
        return hl_fail(HL_ENOMEM, "out of memory for a list of %zu shards", count);
    if (all->count > 0)
        memcpy(items, all->items, all->count * sizeof(*items));
    if (page->count > 0)
        memcpy(items + all->count, page->items, page->count * sizeof(*items));
    *all = (struct hl_api_shard_list){items, count};
    return HL_OK;
}

hl_status shard_list(struct cli *cli, const char *model, int64_t version, struct hl_arena *arena,
                     struct hl_api_shard_list *out)
{
    struct hl_api_shard_list all = {0};
    struct hl_api_controller_list_shards_params p = {
        .model = model, .version = version, .cursor = "0", .limit = PAGE};
    while (p.cursor[0] != '\0') {
        struct hl_api_controller_list_shards_results r;
        HL_TRY(CLI_CALL(cli, list_shards, &p, arena, &r));
        HL_TRY(list_add(&all, &r.shards, arena));
        p.cursor = r.next;
    }
    *out = all;
    return HL_OK;
}

const char *shard_key(const struct hl_api_shard *shard, char *buf, size_t cap)
{
    char place[HL_PART_PLACE_MAX];
    snprintf(buf, cap, "%s@%" PRId64 "/%s", shard->model, shard->version,
             hl_part_place(shard->pp, shard->tp, shard->ep, shard->part, place));
    return buf;
}

static int compare_ids(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

size_t shard_unique_digits(const struct hl_api_shard_list *shards)
{
    size_t digits = SHARD_DIGITS_MIN;
    HL_AUTO(hl_freep) const char **ids = calloc(shards->count + 1, sizeof(*ids));
    if (ids == NULL)
        return HL_ID_TEXT_LEN;
    for (size_t i = 0; i < shards->count; i++)
        ids[i] = shards->items[i].id;
    qsort(ids, shards->count, sizeof(*ids), compare_ids);
    for (size_t i = 1; i < shards->count; i++) {
        size_t same = 0;
        while (ids[i][same] != '\0' && ids[i][same] == ids[i - 1][same])
            same++;
        if (ids[i][same] != '\0' && same + 1 > digits)
            digits = same + 1;
    }
    return digits;
}

/* Keeps the shards whose key is the text, or whose id begins with it. */
static void keep_matches(struct hl_api_shard_list *shards, const char *text, bool is_key)
{
    size_t kept = 0;
    char key[KEY_MAX];
    for (size_t i = 0; i < shards->count; i++) {
        const struct hl_api_shard *s = &shards->items[i];
        if (is_key ? strcmp(shard_key(s, key, sizeof(key)), text) == 0
                   : strncmp(s->id, text, strlen(text)) == 0)
            shards->items[kept++] = *s;
    }
    shards->count = kept;
}

/* A key means the version's own shard; only if there is none, one of a cut. */
static void prefer_own(struct hl_api_shard_list *found)
{
    size_t own = 0;
    for (size_t i = 0; i < found->count; i++)
        if (found->items[i].derived_split[0] == '\0')
            found->items[own++] = found->items[i];
    if (own > 0)
        found->count = own;
}

static hl_status fail_ambiguous(struct cli *cli, const char *text, bool is_key,
                                const struct hl_api_shard_list *found)
{
    struct hl_buf names = HL_BUF(1 << 12);
    size_t digits = shard_unique_digits(found);
    char key[KEY_MAX];
    for (size_t i = 0; i < found->count && i < CANDIDATES; i++)
        (void)!hl_buf_printf(
            &names, "%s%.*s (%s)", i > 0 ? ", " : "", (int)digits, found->items[i].id,
            is_key ? found->items[i].derived_split : shard_key(&found->items[i], key, sizeof(key)));
    cli->usage_failed = true;
    hl_status st =
        hl_fail(HL_EINVAL, "%zu %s %s: %s%s; give %s", found->count,
                is_key ? "shards have the key" : "shard ids begin with", text,
                names.data != NULL ? names.data : "", found->count > CANDIDATES ? ", ..." : "",
                is_key ? "the id of one" : "more digits");
    hl_buf_fini(&names);
    return st;
}

hl_status shard_resolve(struct cli *cli, const char *text, char out[HL_ID_TEXT_LEN + 1])
{
    HL_AUTO(hl_arena_fini) struct hl_arena arena = {0};
    struct hl_api_shard_list found;
    struct hl_id id;
    size_t len = strlen(text);
    bool is_key = strchr(text, '/') != NULL;
    if (hl_id_parse(text, &id) == HL_OK) {
        snprintf(out, HL_ID_TEXT_LEN + 1, "%s", text);
        return HL_OK;
    }
    if (!is_key && (len < SHARD_PREFIX_MIN || len >= HL_ID_TEXT_LEN ||
                    strspn(text, "0123456789abcdef") != len))
        return cli_usage(cli,
                         "'%s' names no shard: give 32 hexadecimal digits, at least the first %d "
                         "of them, or MODEL@VERSION/ppP/tpT/PART",
                         text, SHARD_PREFIX_MIN);
    HL_TRY(shard_list(cli, "", -1, &arena, &found));
    keep_matches(&found, text, is_key);
    if (is_key)
        prefer_own(&found);
    if (found.count == 0 && is_key)
        return hl_fail(HL_ENOENT, "there is no shard '%s'; a key is MODEL@VERSION/ppP/tpT/PART",
                       text);
    if (found.count == 0)
        return hl_fail(HL_ENOENT, "no shard id begins with %s; `helios shard ls` lists them", text);
    if (found.count > 1)
        return fail_ambiguous(cli, text, is_key, &found);
    snprintf(out, HL_ID_TEXT_LEN + 1, "%s", found.items[0].id);
    return HL_OK;
}
