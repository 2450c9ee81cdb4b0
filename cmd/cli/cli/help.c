/* Finds a command, prints its help, and prints the tree as JSON. */
#include "cli/cli/help.h"

#include <string.h>

#include "api/lists.h"

#define NAMES_MAX      128
#define COLUMNS        80
#define SUMMARY_INDENT 18

static bool is_heading(const struct cli_command *c)
{
    return c->run == NULL;
}

/* The part of the name after "GROUP "; NULL for a command of another group. */
static const char *name_in_group(const struct cli_command *c, const char *group)
{
    size_t len = strlen(group);
    if (is_heading(c) || strncmp(c->name, group, len) != 0 || c->name[len] != ' ')
        return NULL;
    return c->name + len + 1;
}

const struct cli_command *help_find(const struct help_tree *tree, int argc, char **argv, int *words)
{
    char name[128];
    for (int n = argc < 2 ? argc : 2; n > 0; n--) {
        snprintf(name, sizeof(name), n == 2 ? "%s %s" : "%s", argv[0], n == 2 ? argv[1] : "");
        for (size_t i = 0; i < tree->count; i++)
            if (!is_heading(&tree->rows[i]) && strcmp(tree->rows[i].name, name) == 0) {
                *words = n;
                return &tree->rows[i];
            }
    }
    return NULL;
}

bool help_is_group(const struct help_tree *tree, const char *word)
{
    for (size_t i = 0; i < tree->count; i++)
        if (name_in_group(&tree->rows[i], word) != NULL)
            return true;
    return false;
}

static void print_options(const struct hl_option *rows, size_t count, FILE *to)
{
    struct hl_buf text = HL_BUF(1 << 16);
    hl_args_help(rows, count, &text);
    fputs(text.data != NULL ? text.data : "", to);
    hl_buf_fini(&text);
}

static void print_command(const char *name, const char *summary, FILE *to)
{
    struct hl_buf text = HL_BUF(1 << 12);
    hl_text_wrap(&text, summary, SUMMARY_INDENT, COLUMNS);
    fprintf(to, "  %-*s  %s\n", SUMMARY_INDENT - 4, name, text.data != NULL ? text.data : "");
    hl_buf_fini(&text);
}

void help_print(const struct help_tree *tree, FILE *to)
{
    fputs("usage: helios [options] COMMAND ...\n", to);
    for (size_t i = 0; i < tree->count; i++) {
        const struct cli_command *c = &tree->rows[i];
        if (is_heading(c))
            fprintf(to, "\n%s\n", c->name);
        else
            print_command(c->name, c->help, to);
    }
    fputs("\nOptions of every command\n", to);
    print_options(tree->globals, tree->global_count, to);
    fputs("\n`helios help COMMAND` says more about one command.\n", to);
}

void help_print_group(const struct help_tree *tree, const char *group, FILE *to)
{
    fprintf(to, "usage: helios %s COMMAND ...\n\n", group);
    for (size_t i = 0; i < tree->count; i++) {
        const char *name = name_in_group(&tree->rows[i], group);
        if (name != NULL)
            print_command(name, tree->rows[i].help, to);
    }
    fprintf(to, "\n`helios help %s COMMAND` says more about one command.\n", group);
}

hl_status help_unknown(struct cli *cli, const struct help_tree *tree, int argc, char **argv)
{
    const char *names[NAMES_MAX];
    size_t count = 0;
    char typed[128];
    bool two_words = argc > 1 && argv[1][0] != '-';
    for (size_t i = 0; i < tree->count && count < NAMES_MAX; i++)
        if (!is_heading(&tree->rows[i]))
            names[count++] = tree->rows[i].name;
    cli->usage_failed = true;
    snprintf(typed, sizeof(typed), "%s%s%s", argv[0], two_words ? " " : "",
             two_words ? argv[1] : "");
    const char *near = hl_did_you_mean(typed, names, count);
    if (near == NULL && !help_is_group(tree, argv[0]))
        near = hl_did_you_mean(argv[0], names, count);
    if (near != NULL)
        return hl_fail(HL_EINVAL, "unknown command '%s', did you mean 'helios %s'?", typed, near);
    if (help_is_group(tree, argv[0]))
        return hl_fail(HL_EINVAL, "unknown command '%s'; `helios help %s` lists them", typed,
                       argv[0]);
    return hl_fail(HL_EINVAL, "unknown command '%s'; `helios help` lists them", typed);
}

bool help_argument(const struct cli_command *command, int index, struct help_argument *out)
{
    const char *p = command->args;
    for (int i = 0;; i++) {
        size_t len = strcspn(p, " ");
        bool optional = len > 2 && p[0] == '[' && p[len - 1] == ']';
        if (len == 0 || p[0] == '-' || strncmp(p, "[-", 2) == 0 || strncmp(p, "[options]", 9) == 0)
            return false;
        if (i == index) {
            const char *name = p + optional;
            size_t name_len = len - 2 * (size_t)optional;
            bool repeated = name_len > 3 && strncmp(name + name_len - 3, "...", 3) == 0;
            snprintf(out->name, sizeof(out->name), "%.*s", (int)(name_len - 3 * (size_t)repeated),
                     name);
            out->required = !optional;
            out->repeated = repeated;
            return true;
        }
        p += len + (p[len] == ' ');
    }
}

/* ---- dump ------------------------------------------------------------------------------------ */

/* Splits "-n,--last" into a list of texts. */
static struct hl_api_text_list split_text(struct hl_arena *arena, const char *text, char separator)
{
    struct hl_api_text_list list = {0};
    for (const char *p = text; *p != '\0';) {
        const char *end = strchrnul(p, separator);
        const char *part = hl_arena_text(arena, p, (size_t)(end - p));
        if (part != NULL)
            hl_api_text_add(arena, &list, part);
        p = end + (*end != '\0');
    }
    return list;
}

static struct hl_api_help_option option_to_api(const struct hl_option *row, struct hl_arena *arena)
{
    static const char *const types[] = {
        [HL_OPT_STRING] = "text",     [HL_OPT_PATH] = "path",   [HL_OPT_ENUM] = "enum",
        [HL_OPT_INT] = "int",         [HL_OPT_BYTES] = "bytes", [HL_OPT_DURATION] = "duration",
        [HL_OPT_PERCENT] = "percent", [HL_OPT_BOOL] = "bool",   [HL_OPT_RATE] = "rate",
        [HL_OPT_NUMBER] = "number",
    };
    struct hl_api_help_option option = {.flags = split_text(arena, row->flag, ','),
                                        .value = hl_option_value_word(row),
                                        .type = types[row->kind],
                                        .default_ = row->text,
                                        .help = row->help};
    if (row->kind != HL_OPT_STRING && row->kind != HL_OPT_PATH)
        option.bounds = (struct hl_api_help_bounds){row->min, row->max};
    if (row->kind == HL_OPT_ENUM)
        option.choices = split_text(arena, row->choices, '|');
    return option;
}

static struct hl_api_help_option_list options_to_api(const struct hl_option *rows, size_t count,
                                                     struct hl_arena *arena)
{
    struct hl_api_help_option_list list = {hl_arena_array(arena, count, sizeof(*list.items)), 0};
    for (size_t i = 0; list.items != NULL && i < count; i++)
        list.items[list.count++] = option_to_api(&rows[i], arena);
    return list;
}

hl_status help_dump_options(struct cli *cli, const struct hl_option *rows, size_t count)
{
    cli->dump->options = options_to_api(rows, count, &cli->dump->arena);
    cli->dump->told = true;
    if (hl_arena_failed(&cli->dump->arena))
        return hl_fail(HL_ENOMEM, "out of memory for the options of %s", cli->command->name);
    return HL_OK;
}

static struct hl_api_help_argument_list arguments_to_api(const struct cli_command *c,
                                                         struct hl_arena *arena)
{
    struct hl_api_help_argument_list list = {0};
    struct help_argument a;
    while (help_argument(c, (int)list.count, &a))
        list.count++;
    list.items = hl_arena_array(arena, list.count, sizeof(*list.items));
    for (size_t i = 0; list.items != NULL && help_argument(c, (int)i, &a); i++)
        list.items[i] =
            (struct hl_api_help_argument){hl_arena_strdup(arena, a.name), a.required, a.repeated};
    return list;
}

/* Runs the command, which stops when it passes its options to cli_args. */
static hl_status command_to_api(struct cli *cli, const struct cli_command *c, const char *heading,
                                struct hl_api_help_command *out)
{
    char *no_arguments[] = {NULL};
    cli->command = c;
    cli->dump->told = false;
    hl_status st = c->run(cli, 0, no_arguments);
    if (st != HL_ECANCELED || !cli->dump->told)
        return hl_fail(HL_EINTERNAL, "helios %s does not list its options", c->name);
    *out = (struct hl_api_help_command){.name = c->name,
                                        .heading = heading,
                                        .summary = c->help,
                                        .usage = c->args,
                                        .arguments = arguments_to_api(c, &cli->dump->arena),
                                        .options = cli->dump->options};
    return HL_OK;
}

static hl_status commands_to_api(struct cli *cli, const struct help_tree *tree,
                                 struct hl_api_help_command_list *out)
{
    const char *heading = "";
    struct hl_arena *arena = &cli->dump->arena;
    struct hl_api_help_command_list list = {hl_arena_array(arena, tree->count, sizeof(*list.items)),
                                            0};
    for (size_t i = 0; list.items != NULL && i < tree->count; i++) {
        const struct cli_command *c = &tree->rows[i];
        if (is_heading(c))
            heading = c->name;
        else
            HL_TRY(command_to_api(cli, c, heading, &list.items[list.count++]));
    }
    *out = list;
    return hl_arena_failed(arena) ? hl_fail(HL_ENOMEM, "out of memory for the commands") : HL_OK;
}

hl_status help_dump(struct cli *cli, const struct help_tree *tree)
{
    struct cli_dump dump = {0};
    struct hl_api_help_tree doc = {.program = "helios", .version = HELIOS_VERSION};
    doc.options = options_to_api(tree->globals, tree->global_count, &dump.arena);
    cli->dump = &dump;
    hl_status st = commands_to_api(cli, tree, &doc.commands);
    cli->dump = NULL;
    if (st == HL_OK) {
        hl_error_clear();
        st = cli_print_value(&hl_api_help_tree_type, &doc);
    }
    hl_arena_fini(&dump.arena);
    return st;
}
