/* A lost catalogue: what the Controller finds in pool and archive, and what can be restored. */
#include <inttypes.h>
#include <stddef.h>
#include <string.h>

#include "cli/cluster/commands.h"

struct recover_args {
    bool dry_run, discard;
};

static const struct hl_option recover_rows[] = {
    {"dry-run", "--dry-run", "false", "Show what would be done and change nothing.", HL_OPT_BOOL, 0,
     0, NULL, HL_OPTION_FIELD(struct recover_args, dry_run)},
    {"discard", "--discard", "false",
     "Restore nothing: claim the pool and the archive, and discard every shard that the catalogue "
     "does not know. Archived shards go to the archive's trash, those in the pool are freed.",
     HL_OPT_BOOL, 0, 0, NULL, HL_OPTION_FIELD(struct recover_args, discard)},
};

static hl_status print_versions(const struct hl_api_recovered_version_list *versions)
{
    struct cli_table t;
    if (versions->count == 0)
        return HL_OK;
    cli_table_init(&t, "VERSION|>STEP|!VISIBLE|>SHARDS|>BYTES|STATE|REASON");
    for (size_t i = 0; i < versions->count; i++) {
        const struct hl_api_recovered_version *v = &versions->items[i];
        cli_cell(&t, "%s@%" PRId64, v->model, v->version);
        cli_cell(&t, "%" PRId64, v->step);
        cli_cell_time(&t, v->visible_ms);
        cli_cell(&t, "%" PRIu64, v->shards);
        cli_cell_bytes(&t, v->bytes);
        cli_cell(&t, "%s", hl_api_recovery_state_name(v->state));
        cli_cell(&t, "%s", v->reason);
    }
    return cli_table_print(&t);
}

static hl_status print_left(const struct hl_api_left_shards_list *left,
                            const struct recover_args *a)
{
    struct cli_table t;
    if (left->count == 0)
        return HL_OK;
    printf("\n%s:\n", !a->discard  ? "held by no version"
                      : a->dry_run ? "would be discarded"
                                   : "discarded");
    cli_table_init(&t, "VERSION|TIER|>SHARDS|>BYTES|REASON");
    for (size_t i = 0; i < left->count; i++) {
        const struct hl_api_left_shards *g = &left->items[i];
        if (g->model[0] != '\0')
            cli_cell(&t, "%s@%" PRId64, g->model, g->version);
        else
            cli_cell(&t, "-");
        cli_cell(&t, "%s", hl_api_tier_name(g->tier));
        cli_cell(&t, "%" PRIu64, g->shards);
        cli_cell_bytes(&t, g->bytes);
        cli_cell(&t, "%s", g->reason);
    }
    return cli_table_print(&t);
}

static void print_summary(const struct hl_api_recovery *r, const struct recover_args *a)
{
    const char *would = a->dry_run ? "would be " : "";
    printf("%s%" PRIu32 " version%s %srestored, with %" PRIu64 " shards; %" PRIu32
           " with a manifest %s in the catalogue\n",
           r->versions.count + r->left.count > 0 ? "\n" : "", r->restored,
           r->restored == 1 ? "" : "s", would, r->restored_shards, r->known,
           a->dry_run ? "are" : "were");
    if (r->untrashed > 0)
        printf("%" PRIu64 " shards came back from the archive's trash\n", r->untrashed);
    if (!a->dry_run && r->claim == HL_API_CLAIM_STATE_OK)
        printf("pool and archive belong to this cluster, %s\n", r->cluster);
}

static hl_status recovery_verdict(const struct hl_api_recovery *r, const struct recover_args *a)
{
    uint64_t left = 0;
    if (a->dry_run || r->claim == HL_API_CLAIM_STATE_OK)
        return HL_OK;
    for (size_t i = 0; i < r->left.count; i++)
        left += r->left.items[i].shards;
    return hl_fail(HL_ECONFLICT,
                   "pool and archive are not claimed: they hold %" PRIu64
                   " shards that belong to no version and that a claim would discard; to discard "
                   "them, run `helios recover --discard`",
                   left);
}

hl_status cmd_recover(struct cli *cli, int argc, char **argv)
{
    HL_AUTO(hl_arena_fini) struct hl_arena arena = {0};
    struct recover_args a = {0};
    struct hl_api_controller_recover_results r;
    HL_TRY(cli_args(cli, recover_rows, HL_ARRAY_LEN(recover_rows), argc, argv, &a, 0, 0));
    const struct hl_api_controller_recover_params p = {.dry_run = a.dry_run != 0,
                                                       .discard = a.discard != 0};
    HL_TRY(CLI_CALL_FOR(cli, recover, &p, CLI_COPY_TIMEOUT_MS, &arena, &r));
    if (cli->json) {
        HL_TRY(cli_print_value(&hl_api_recovery_type, &r.recovery));
        return recovery_verdict(&r.recovery, &a);
    }
    HL_TRY(print_versions(&r.recovery.versions));
    HL_TRY(print_left(&r.recovery.left, &a));
    print_summary(&r.recovery, &a);
    return recovery_verdict(&r.recovery, &a);
}
