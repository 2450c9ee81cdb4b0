/* Ids, prefixes and keys of shards. */
#include "cli/models/shard_id.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define PAGE       5000
#define CANDIDATES 4 /* that are named when a prefix fits several */
#define KEY_MAX    320

hl_status shard_list(struct cli *cli, const char *model, int64_t version, json_t **out)
{
    json_t *all = json_array();
    char cursor[64] = "0";
    while (cursor[0] != '\0') {
        json_t *result;
        hl_status st = cli_call(cli, "listShards",
                                json_pack("{s:s s:I s:s s:i}", "model", model, "version",
                                          (json_int_t)version, "cursor", cursor, "limit", PAGE),
                                &result);
        if (st != HL_OK) {
            json_decref(all);
            return st;
        }
        json_array_extend(all, hl_json_list(result, "shards"));
        snprintf(cursor, sizeof(cursor), "%s", hl_json_str(result, "next", ""));
        json_decref(result);
    }
    *out = all;
    return HL_OK;
}

const char *shard_key(const json_t *shard, char *buf, size_t cap)
{
    snprintf(buf, cap, "%s@%" PRId64 "/pp%" PRId64 "/tp%" PRId64 "/%s",
             hl_json_str(shard, "model", ""), hl_json_int(shard, "version", 0),
             hl_json_int(shard, "pp", 0), hl_json_int(shard, "tp", 0),
             hl_json_str(shard, "part", ""));
    return buf;
}

static int compare_ids(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

size_t shard_unique_digits(const json_t *shards)
{
    size_t i, digits = SHARD_DIGITS_MIN, count = json_array_size(shards);
    const json_t *s;
    HL_AUTO(hl_freep) const char **ids = calloc(count + 1, sizeof(*ids));
    if (ids == NULL)
        return HL_ID_TEXT_LEN;
    json_array_foreach (shards, i, s)
        ids[i] = hl_json_str(s, "id", "");
    qsort(ids, count, sizeof(*ids), compare_ids);
    for (i = 1; i < count; i++) {
        size_t same = 0;
        while (ids[i][same] != '\0' && ids[i][same] == ids[i - 1][same])
            same++;
        if (ids[i][same] != '\0' && same + 1 > digits)
            digits = same + 1;
    }
    return digits;
}

/* The shards whose key is the text or whose id begins with it; borrowed elements. */
static json_t *matches(const json_t *shards, const char *text, bool is_key)
{
    json_t *found = json_array(), *s;
    size_t i;
    char key[KEY_MAX];
    json_array_foreach (shards, i, s) {
        bool fits = is_key ? strcmp(shard_key(s, key, sizeof(key)), text) == 0
                           : strncmp(hl_json_str(s, "id", ""), text, strlen(text)) == 0;
        if (fits)
            json_array_append(found, s);
    }
    return found;
}

static hl_status ambiguous(struct cli *cli, const char *text, const json_t *found)
{
    struct hl_buf names = HL_BUF(1 << 12);
    size_t i, digits = shard_unique_digits(found);
    const json_t *s;
    char key[KEY_MAX];
    json_array_foreach (found, i, s)
        if (i < CANDIDATES)
            (void)!hl_buf_printf(&names, "%s%.*s (%s)", i > 0 ? ", " : "", (int)digits,
                                 hl_json_str(s, "id", ""), shard_key(s, key, sizeof(key)));
    cli->usage_failed = 1;
    hl_status st = hl_fail(HL_EINVAL, "%zu shard ids begin with %s: %s%s; give more digits",
                           json_array_size(found), text, names.data != NULL ? names.data : "",
                           json_array_size(found) > CANDIDATES ? ", ..." : "");
    hl_buf_fini(&names);
    return st;
}

hl_status shard_resolve(struct cli *cli, const char *text, char out[HL_ID_TEXT_LEN + 1])
{
    struct hl_id id;
    size_t len = strlen(text);
    bool is_key = strchr(text, '/') != NULL;
    json_t *shards;
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
    HL_TRY(shard_list(cli, "", -1, &shards));
    json_t *found = matches(shards, text, is_key);
    hl_status st = HL_OK;
    if (json_array_size(found) == 0 && is_key)
        st =
            hl_fail(HL_ENOENT, "there is no shard '%s'; a key is MODEL@VERSION/ppP/tpT/PART", text);
    else if (json_array_size(found) == 0)
        st = hl_fail(HL_ENOENT, "no shard id begins with %s; `helios shard ls` lists them", text);
    else if (json_array_size(found) > 1 && !is_key)
        st = ambiguous(cli, text, found);
    else
        snprintf(out, HL_ID_TEXT_LEN + 1, "%s", hl_json_str(json_array_get(found, 0), "id", ""));
    json_decref(found);
    json_decref(shards);
    return st;
}
