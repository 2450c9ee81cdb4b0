/* A lost catalogue: what the Controller finds in pool and archive, and what comes back of it. */
#include <inttypes.h>
#include <stddef.h>
#include <string.h>

#include "cli/cluster/commands.h"

struct recover_args {
    int64_t dry_run, discard;
};

static const struct hl_option recover_rows[] = {
    {"dry-run", "--dry-run", "false", "Show what would be done and change nothing.", HL_OPT_BOOL, 0,
     0, NULL, offsetof(struct recover_args, dry_run), 0},
    {"discard", "--discard", "false",
     "Restore nothing: claim pool and archive, and give up what the catalogue does not know. It "
     "goes to the archive's trash, and is freed in the pool.",
     HL_OPT_BOOL, 0, 0, NULL, offsetof(struct recover_args, discard), 0},
};

static hl_status print_versions(const json_t *versions)
{
    struct cli_table t;
    size_t i;
    const json_t *v;
    if (json_array_size(versions) == 0)
        return HL_OK;
    cli_table_init(&t, "VERSION|>STEP|!VISIBLE|>SHARDS|>BYTES|STATE|REASON");
    json_array_foreach (versions, i, v) {
        cli_cell(&t, "%s@%" PRId64, hl_json_str(v, "model", ""), hl_json_int(v, "version", 0));
        cli_cell(&t, "%" PRId64, hl_json_int(v, "step", 0));
        cli_cell_time(&t, hl_json_int(v, "visibleMs", 0));
        cli_cell(&t, "%" PRId64, hl_json_int(v, "shards", 0));
        cli_cell_bytes(&t, (uint64_t)hl_json_int(v, "bytes", 0));
        cli_cell(&t, "%s", hl_json_str(v, "state", ""));
        cli_cell(&t, "%s", hl_json_str(v, "reason", ""));
    }
    return cli_table_print(&t);
}

static hl_status print_left(const json_t *left, const struct recover_args *a)
{
    struct cli_table t;
    size_t i;
    const json_t *g;
    if (json_array_size(left) == 0)
        return HL_OK;
    printf("\n%s:\n", !a->discard  ? "held by no version"
                      : a->dry_run ? "would be given up"
                                   : "given up");
    cli_table_init(&t, "VERSION|TIER|>SHARDS|>BYTES|REASON");
    json_array_foreach (left, i, g) {
        if (hl_json_str(g, "model", "")[0] != '\0')
            cli_cell(&t, "%s@%" PRId64, hl_json_str(g, "model", ""), hl_json_int(g, "version", 0));
        else
            cli_cell(&t, "-");
        cli_cell(&t, "%s", hl_json_str(g, "tier", ""));
        cli_cell(&t, "%" PRId64, hl_json_int(g, "shards", 0));
        cli_cell_bytes(&t, (uint64_t)hl_json_int(g, "bytes", 0));
        cli_cell(&t, "%s", hl_json_str(g, "reason", ""));
    }
    return cli_table_print(&t);
}

static void print_summary(const json_t *r, const struct recover_args *a)
{
    int64_t restored = hl_json_int(r, "restored", 0), known = hl_json_int(r, "known", 0);
    const char *would = a->dry_run ? "would be " : "";
    printf("%s%" PRId64 " version%s %srestored, with %" PRId64 " shards; %" PRId64
           " with a manifest %s in the catalogue\n",
           json_array_size(hl_json_list(r, "versions")) + json_array_size(hl_json_list(r, "left"))
               ? "\n"
               : "",
           restored, restored == 1 ? "" : "s", would, hl_json_int(r, "restoredShards", 0), known,
           a->dry_run ? "are" : "were");
    if (hl_json_int(r, "untrashed", 0) > 0)
        printf("%" PRId64 " shards came back from the archive's trash\n",
               hl_json_int(r, "untrashed", 0));
    if (!a->dry_run && strcmp(hl_json_str(r, "claim", ""), "ok") == 0)
        printf("pool and archive belong to this cluster, %s\n", hl_json_str(r, "cluster", ""));
}

static int64_t count_left(const json_t *r)
{
    int64_t n = 0;
    size_t i;
    const json_t *g;
    json_array_foreach (hl_json_list(r, "left"), i, g) {
        n += hl_json_int(g, "shards", 0);
    }
    return n;
}

static hl_status verdict(const json_t *r, const struct recover_args *a)
{
    if (a->dry_run || strcmp(hl_json_str(r, "claim", ""), "ok") == 0)
        return HL_OK;
    return hl_fail(HL_ECONFLICT,
                   "pool and archive are not claimed: they hold %" PRId64
                   " shards of no version, which the claim would give up; `helios recover "
                   "--discard` does that",
                   count_left(r));
}

hl_status cmd_recover(struct cli *cli, int argc, char **argv)
{
    struct recover_args a = {0};
    json_t *result;
    HL_TRY(cli_args(cli, recover_rows, HL_ARRAY_LEN(recover_rows), argc, argv, &a, 0, 0));
    HL_TRY(cli_call_for(cli, "recover",
                        json_pack("{s:b s:b}", "dryRun", a.dry_run != 0, "discard", a.discard != 0),
                        CLI_COPY_TIMEOUT_MS, &result));
    const json_t *r = json_object_get(result, "recovery");
    hl_status st = HL_OK;
    if (cli->json) {
        st = cli_print_json(json_incref((json_t *)r));
    } else {
        st = print_versions(hl_json_list(r, "versions"));
        if (st == HL_OK)
            st = print_left(hl_json_list(r, "left"), &a);
        if (st == HL_OK)
            print_summary(r, &a);
    }
    if (st == HL_OK)
        st = verdict(r, &a);
    json_decref(result);
    return st;
}
