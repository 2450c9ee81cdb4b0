/* shard move, moves, pin, unpin, model pin, unpin; and what `shard show` says about the use of a
 * shard. */
#include <inttypes.h>
#include <string.h>

#include "cli/models/commands.h"
#include "cli/models/shard_id.h"

hl_status placement_get(struct cli *cli, const char *id, struct hl_arena *arena,
                        struct hl_api_shard_placement *out, bool *known)
{
    struct hl_api_controller_shard_placement_results r;
    hl_status st = CLI_CALL(cli, shard_placement,
                            &(struct hl_api_controller_shard_placement_params){id}, arena, &r);
    *known = st == HL_OK;
    if (st == HL_OK)
        *out = r.placement;
    return st == HL_ENOENT || st == HL_EUNSUPPORTED ? HL_OK : st;
}

static void print_place(enum hl_api_tier tier, const char *node)
{
    cli_print(stdout, "%s%s%s", hl_api_tier_name(tier), node[0] != '\0' ? " of " : "", node);
}

/* Shows "accesses 25, threshold 20": a decision's numbers with their names. */
static void cell_numbers(struct cli_table *t, const char *numbers, double value, double limit)
{
    const char *comma = strchr(numbers, ',');
    if (comma == NULL)
        cli_cell(t, "-");
    else
        cli_cell(t, "%.*s %.4g,%s %.4g", (int)(comma - numbers), numbers, value, comma + 1, limit);
}

static hl_status print_changes(const struct hl_api_shard_change_list *changes)
{
    struct cli_table t;
    cli_table_init(&t, "!WHEN|FROM|TO|NODE|WHY|!NUMBERS");
    for (size_t i = 0; i < changes->count; i++) {
        const struct hl_api_shard_change *x = &changes->items[i];
        cli_cell_time(&t, x->time_ms);
        cli_cell(&t, "%s", x->from);
        cli_cell(&t, "%s", x->to);
        cli_cell(&t, "%s", x->node[0] != '\0' ? x->node : "-");
        cli_cell(&t, "%s", x->reason);
        cell_numbers(&t, x->numbers, x->value, x->limit);
    }
    return cli_table_print(&t);
}

static void print_decision(const struct hl_api_shard_decision *d)
{
    const char *comma = strchr(d->numbers, ',');
    if (d->reason[0] == '\0' || comma == NULL)
        return;
    cli_print(stdout, "decision    %s to ", d->carried_out ? "goes" : "would go");
    print_place(d->tier, d->node);
    cli_print(stdout, ": %s (%.*s %.4g,%s %.4g)", d->reason, (int)(comma - d->numbers), d->numbers,
              d->value, comma + 1, d->limit);
    if (d->cost_seconds > 0)
        cli_print(stdout, "; readers would save %.4g s, the copy costs %.4g s", d->gain_seconds,
                  d->cost_seconds);
    if (d->backbone_percent >= 0)
        cli_print(stdout, "; the backbone was %.0f %% busy", d->backbone_percent);
    puts("");
}

hl_status placement_print(const struct hl_api_shard_placement *p)
{
    cli_print(stdout, "state       %s, in ", p->state);
    print_place(p->tier, p->node);
    if (p->goal_tier != HL_API_TIER_UNSAID) {
        cli_print(stdout, ", goes to ");
        print_place(p->goal_tier, p->goal_node);
    }
    cli_print(stdout, "%s\n",
              p->pinned_version ? ", pinned with its version"
              : p->pinned       ? ", pinned"
                                : "");
    cli_print(stdout,
              "use         heat %.4f, stability %.2f, fluidity %.2f; %" PRIu32
              " accesses in %" PRId64 " s, %" PRIu32 " moves\n",
              p->heat, p->stability, p->fluidity, p->accesses, p->window_ms / 1000, p->moves);
    if (p->readers.count > 0)
        cli_print(stdout, "readers    ");
    for (size_t i = 0; i < p->readers.count; i++)
        cli_print(stdout, "%s %s %.0f", i > 0 ? "," : "", p->readers.items[i].node,
                  p->readers.items[i].accesses);
    if (p->readers.count > 0)
        puts("");
    for (size_t i = 0; i < p->refused_by.count; i++)
        cli_print(stdout, "refused     by node %s, which has other bytes under this id\n",
                  p->refused_by.items[i]);
    print_decision(&p->decision);
    if (p->changes.count == 0)
        return HL_OK;
    puts("");
    return print_changes(&p->changes);
}

/* ---- pins ------------------------------------------------------------------------------------ */

static hl_status print_pinned(struct cli *cli, const struct hl_api_pinned *pinned, const char *what)
{
    static const char *const said[2][2] = {{"was not pinned", "is pinned already"},
                                           {"is no longer pinned", "is pinned"}};
    if (cli->json)
        return cli_print_value(&hl_api_pinned_type, pinned);
    cli_print(stdout, "%s %s\n", what, said[pinned->changed][pinned->pinned]);
    return HL_OK;
}

static hl_status pin_shard(struct cli *cli, int argc, char **argv, bool pinned)
{
    HL_AUTO(hl_arena_fini) struct hl_arena arena = {0};
    struct hl_api_controller_pin_results r;
    char id[HL_ID_TEXT_LEN + 1];
    HL_TRY(cli_no_args(cli, argc, argv, 1, 1));
    HL_TRY(shard_resolve(cli, argv[0], id));
    HL_TRY(CLI_CALL(cli, pin, (&(struct hl_api_controller_pin_params){.id = id, .pinned = pinned}),
                    &arena, &r));
    return print_pinned(
        cli, &(struct hl_api_pinned){.id = id, .pinned = pinned, .changed = r.changed}, argv[0]);
}

static hl_status pin_model(struct cli *cli, int argc, char **argv, bool pinned)
{
    HL_AUTO(hl_arena_fini) struct hl_arena arena = {0};
    struct hl_api_controller_pin_results r;
    char name[160];
    int64_t version;
    HL_TRY(cli_no_args(cli, argc, argv, 1, 1));
    HL_TRY(cli_split_model(cli, argv[0], name, sizeof(name), &version));
    const struct hl_api_controller_pin_params p = {
        .model = name, .version = version, .pinned = pinned};
    HL_TRY(CLI_CALL(cli, pin, &p, &arena, &r));
    return print_pinned(
        cli,
        &(struct hl_api_pinned){
            .model = name, .version = version, .pinned = pinned, .changed = r.changed},
        argv[0]);
}

hl_status cmd_shard_pin(struct cli *cli, int argc, char **argv)
{
    return pin_shard(cli, argc, argv, true);
}

hl_status cmd_shard_unpin(struct cli *cli, int argc, char **argv)
{
    return pin_shard(cli, argc, argv, false);
}

hl_status cmd_model_pin(struct cli *cli, int argc, char **argv)
{
    return pin_model(cli, argc, argv, true);
}

hl_status cmd_model_unpin(struct cli *cli, int argc, char **argv)
{
    return pin_model(cli, argc, argv, false);
}

/* ---- moves ----------------------------------------------------------------------------------- */

struct move_args {
    char *node, *tier, *cancel;
    uint64_t rate;
};

#define AT(field) HL_OPTION_FIELD(struct move_args, field)

static const struct hl_option move_rows[] = {
    {"node", "--node", "", "Node to move the shard to; none for l3 and l4.", HL_OPT_STRING, 0, 0,
     NULL, AT(node)},
    {"tier", "--tier", "", "Tier to move the shard to.", HL_OPT_ENUM, 0, 0, "l1|l2|l3|l4",
     AT(tier)},
    {"rate", "--rate", "0", "Highest rate of the move, 8Mbit or more; 0 for no limit.", HL_OPT_RATE,
     0, 0, NULL, AT(rate)},
};

static const struct hl_option moves_rows[] = {
    {"cancel", "--cancel", "", "Cancel the move with this id, or the move of this shard.",
     HL_OPT_STRING, 0, 0, NULL, AT(cancel)},
};

static enum hl_api_tier tier_of(const char *text)
{
    static const enum hl_api_tier tiers[] = {HL_API_TIER_L1, HL_API_TIER_L2, HL_API_TIER_L3,
                                             HL_API_TIER_L4};

    return tiers[text[1] - '1']; /* one of the option's choices */
}

static hl_status shard_move(struct cli *cli, const char *shard, const struct move_args *a)
{
    HL_AUTO(hl_arena_fini) struct hl_arena arena = {0};
    struct hl_api_controller_move_shard_results r;
    char id[HL_ID_TEXT_LEN + 1];
    if (a->tier[0] == '\0')
        return cli_usage(cli, "--tier is missing");
    enum hl_api_tier tier = tier_of(a->tier);
    if ((tier == HL_API_TIER_L1 || tier == HL_API_TIER_L2) != (a->node[0] != '\0'))
        return cli_usage(cli,
                         a->node[0] != '\0' ? "%s is at the L3 host: leave --node out"
                                            : "%s is on a node: --node is missing",
                         a->tier);
    HL_TRY(shard_resolve(cli, shard, id));
    const struct hl_api_controller_move_shard_params p = {
        .id = id, .node = a->node, .tier = tier, .bytes_per_s = (a->rate + 7) / 8};
    HL_TRY(CLI_CALL_FOR(cli, move_shard, &p, CLI_COPY_TIMEOUT_MS, &arena, &r));
    if (cli->json)
        return cli_print_value(&hl_api_shard_move_type, &r.move);
    cli_print(stdout, "moved from ");
    print_place(r.move.from_tier, r.move.from_node);
    cli_print(stdout, " to ");
    print_place(r.move.tier, r.move.node);
    cli_print(stdout, " in %.3f s%s\n", r.move.seconds,
              r.move.keep_source ? "; the source copy stays" : "");
    return HL_OK;
}

hl_status cmd_shard_move(struct cli *cli, int argc, char **argv)
{
    struct move_args a = {0};
    HL_TRY(cli_args(cli, move_rows, HL_ARRAY_LEN(move_rows), argc, argv, &a, 1, 1));
    hl_status st = shard_move(cli, argv[0], &a);
    hl_args_fini(move_rows, HL_ARRAY_LEN(move_rows), &a);
    return st;
}

static void cell_place(struct cli_table *t, enum hl_api_tier tier, const char *node)
{
    cli_cell(t, "%s%s%s", hl_api_tier_name(tier), node[0] != '\0' ? "@" : "", node);
}

static hl_status print_moves(const struct hl_api_shard_move_list *moves)
{
    struct cli_table t;
    cli_table_init(&t, "SHARD|!PHASE|FROM|TO|>SIZE|>SECONDS|WHY|NUMBERS|ERROR");
    for (size_t i = 0; i < moves->count; i++) {
        const struct hl_api_shard_move *m = &moves->items[i];
        cli_cell(&t, "%.*s", SHARD_DIGITS_MIN, m->shard);
        cli_cell(&t, "%s", m->phase);
        cell_place(&t, m->from_tier, m->from_node);
        cell_place(&t, m->tier, m->node);
        cli_cell_bytes(&t, m->size_bytes);
        cli_cell(&t, "%.3f", m->seconds);
        cli_cell(&t, "%s", m->reason);
        cell_numbers(&t, m->numbers, m->value, m->limit);
        cli_cell(&t, "%s", m->error[0] != '\0' ? m->error : "-");
    }
    return cli_table_print(&t);
}

/* {"items": [...], "rest": "...", "backbonePercent": ..., "thresholdAccesses": ...} */
static hl_status print_moves_json(const struct hl_api_controller_list_moves_results *r)
{
    const struct hl_api_field fields[] = {
        {.name = "items",
         .offset = offsetof(struct hl_api_controller_list_moves_results, moves),
         .kind = HL_API_STRUCT,
         .type = &hl_api_shard_move_type,
         .list = true},
        {.name = "rest",
         .offset = offsetof(struct hl_api_controller_list_moves_results, rest),
         .kind = HL_API_TEXT},
        {.name = "backbonePercent",
         .offset = offsetof(struct hl_api_controller_list_moves_results, backbone_percent),
         .kind = HL_API_FLOAT64},
        {.name = "thresholdAccesses",
         .offset = offsetof(struct hl_api_controller_list_moves_results, threshold_accesses),
         .kind = HL_API_FLOAT64}};
    const struct hl_api_type document = {"moves", sizeof(*r), fields, HL_ARRAY_LEN(fields)};
    return cli_print_value(&document, r);
}

static hl_status move_cancel(struct cli *cli, const char *text)
{
    HL_AUTO(hl_arena_fini) struct hl_arena arena = {0};
    struct hl_api_controller_cancel_move_results r;
    char id[HL_ID_TEXT_LEN + 1];
    HL_TRY(shard_resolve(cli, text, id));
    HL_TRY(
        CLI_CALL(cli, cancel_move, &(struct hl_api_controller_cancel_move_params){id}, &arena, &r));
    if (cli->json)
        return cli_print_value(&hl_api_shard_move_type, &r.move);
    cli_print(stdout, "the move of shard %s is being undone\n", r.move.shard);
    return HL_OK;
}

static hl_status moves_list(struct cli *cli)
{
    HL_AUTO(hl_arena_fini) struct hl_arena arena = {0};
    struct hl_api_controller_list_moves_results r;
    HL_TRY(CLI_CALL(cli, list_moves, &(struct hl_api_controller_list_moves_params){0}, &arena, &r));
    if (cli->json)
        return print_moves_json(&r);
    HL_TRY(print_moves(&r.moves));
    if (r.rest[0] != '\0')
        cli_print(stdout, "moves of the policy are paused: %s\n", r.rest);
    if (r.backbone_percent >= 0)
        cli_print(stdout,
                  "the backbone is %.0f %% busy: a shard goes to a node that reads it more than "
                  "%.0f times\n",
                  r.backbone_percent, r.threshold_accesses);
    return HL_OK;
}

hl_status cmd_shard_moves(struct cli *cli, int argc, char **argv)
{
    HL_AUTO(hl_arena_fini) struct hl_arena arena = {0};
    struct hl_api_key_value_list given = {0};
    struct move_args a = {0};
    HL_TRY(cli_args_given(cli, moves_rows, HL_ARRAY_LEN(moves_rows), argc, argv, &a, 0, 0, &arena,
                          &given));
    /* `--cancel "$ID"` with an empty ID is refused: a list would look like success. */
    hl_status st = given.count > 0 ? move_cancel(cli, a.cancel) : moves_list(cli);
    hl_args_fini(moves_rows, HL_ARRAY_LEN(moves_rows), &a);
    return st;
}
