/* `helios top`: what nodes, slots and jobs use. On a terminal it is redrawn until q is typed;
 * elsewhere it is printed once.
 *
 * A picture is printed as any result is, but into memory. There it is cut to the terminal's lines,
 * and then written out in one write. */
#include "cli/cluster/top.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/text.h"
#include "cli/cluster/commands.h"
#include "conf/options.h"
#include "core/job/jobstate.h"

#define LINES_DEFAULT 24
#define ENTER         "\033[?1049h\033[?25l" /* the alternate screen, without a cursor */
#define LEAVE         "\033[?25h\033[?1049l"
#define HOME          "\033[H"
#define LINE_END      "\033[K\r\n"
#define REST          "\033[J"

struct top_args {
    uint64_t interval_ms;
    bool once;
};

/* clang-format off */
static const struct hl_option top_rows[] = {
    {"interval", "--interval", "1s", "How often the display is refreshed.",
     HL_OPT_DURATION, 100, 3600000, NULL, HL_OPTION_FIELD(struct top_args, interval_ms)},
    {"once", "--once", "false", "Print once and exit, even on a terminal.",
     HL_OPT_BOOL, 0, 0, NULL, HL_OPTION_FIELD(struct top_args, once)},
};

/* clang-format on */

/* ---- what is shown --------------------------------------------------------------------------- */

static void percent_cell(struct cli_table *t, double percent)
{
    cli_cell(t, "%.0f%%", percent);
}

static void rate_cell(struct cli_table *t, double bytes_per_second)
{
    char text[32];
    cli_cell(t, "%s/s", hl_format_bytes((uint64_t)bytes_per_second, text, sizeof(text)));
}

static const char *state_of(const struct hl_api_node_state *n)
{
    if (n->state == HL_API_NODE_LIFE_READY && n->reason[0] != '\0')
        return "blocked";
    return hl_api_node_life_name(n->state);
}

static hl_status print_nodes(const struct hl_api_node_state_list *nodes)
{
    struct cli_table t;
    cli_table_init(&t, "NODE|!STATE|>CPU|>FREE|?>LOAD|?>GPU|>IN|>OUT|WHY");
    for (size_t i = 0; i < nodes->count; i++) {
        const struct hl_api_node_state *n = &nodes->items[i];
        const struct hl_api_telemetry *m = &n->telemetry;
        double in = 0, out = 0;
        for (size_t k = 0; k < m->nics.count; k++) {
            in += m->nics.items[k].rx_bytes_per_second;
            out += m->nics.items[k].tx_bytes_per_second;
        }
        cli_cell(&t, "%s", n->node.name);
        cli_cell(&t, "%s", state_of(n));
        percent_cell(&t, m->cpu_busy_percent);
        cli_cell_bytes(&t, m->memory_available_bytes);
        cli_cell(&t, "%.1f", m->load1);
        if (m->gpus.count > 0)
            percent_cell(&t, top_gpu_percent(m, NULL));
        else
            cli_cell(&t, "-");
        rate_cell(&t, in);
        rate_cell(&t, out);
        cli_cell(&t, "%s", n->reason);
    }
    return cli_table_print(&t);
}

static void slot_row(struct cli_table *t, const struct hl_api_node_state *n, size_t i)
{
    const struct hl_api_slot *slot = &n->node.slots.items[i];
    const struct hl_api_slot_load *load = top_slot_load(&n->telemetry, slot->numa_id);
    const struct hl_api_slot_state *held = i < n->slots.count ? &n->slots.items[i] : NULL;
    const struct hl_api_container_load *use =
        held != NULL ? top_container_load(&n->telemetry, held->container) : NULL;
    cli_cell(t, "%s:%d", n->node.name, slot->numa_id);
    if (load != NULL)
        percent_cell(t, load->cpu_busy_percent);
    else
        cli_cell(t, "-");
    if (load != NULL && load->memory_total_bytes > 0)
        cli_cell_bytes(t, load->memory_free_bytes);
    else
        cli_cell(t, "-");
    if (slot->gpus.count > 0 && n->telemetry.gpus.count > 0)
        percent_cell(t, top_gpu_percent(&n->telemetry, slot));
    else
        cli_cell(t, "-");
    cli_cell(t, "%s", held != NULL && held->job[0] != '\0' ? held->job : "-");
    if (use != NULL) {
        percent_cell(t, use->cpu_percent);
        cli_cell_bytes(t, use->memory_bytes);
        cli_cell(t, "%u", use->processes);
    } else {
        for (int k = 0; k < 3; k++)
            cli_cell(t, "-");
    }
}

static hl_status print_slots(const struct hl_api_node_state_list *nodes)
{
    struct cli_table t;
    cli_table_init(&t, "SLOT|>CPU|>FREE|?>GPU|JOB|>USES|>MEMORY|?>PROCESSES");
    for (size_t i = 0; i < nodes->count; i++)
        for (size_t k = 0; k < nodes->items[i].node.slots.count; k++)
            slot_row(&t, &nodes->items[i], k);
    return cli_table_print(&t);
}

static hl_status print_jobs(const struct hl_api_cluster_load *load)
{
    struct cli_table t;
    cli_table_init(&t, "JOB|!STATE|>RANKS|>USES|>MEMORY|>GOODPUT|>ELAPSED|REASON");
    for (size_t i = 0; i < load->jobs.count; i++) {
        const struct hl_api_job *job = &load->jobs.items[i];
        struct top_use use = top_job_use(&load->nodes, job->id);
        cli_cell(&t, "%s", job->id);
        cli_cell(&t, "%s", hl_api_job_state_name(job->state));
        cli_cell(&t, "%d", job->world_size);
        percent_cell(&t, use.cpu_percent);
        cli_cell_bytes(&t, use.memory_bytes);
        percent_cell(&t, 100 * job->ledger.goodput);
        cli_cell_duration(&t, job->ledger.wall_ms);
        cli_cell(&t, "%s", job->reason);
    }
    return cli_table_print(&t);
}

static hl_status print_load(const struct hl_api_cluster_load *load)
{
    HL_TRY(print_nodes(&load->nodes));
    puts("");
    HL_TRY(print_slots(&load->nodes));
    if (load->jobs.count == 0)
        return HL_OK;
    puts("");
    return print_jobs(load);
}

/* ---- asking ---------------------------------------------------------------------------------- */

/* Only asks for jobs that have not ended. */
static hl_status ask_load(struct cli *cli, struct hl_arena *arena, struct hl_api_cluster_load *out)
{
    struct hl_api_controller_list_nodes_results nodes;
    struct hl_api_controller_list_jobs_results jobs;
    HL_TRY(
        CLI_CALL(cli, list_nodes, &(struct hl_api_controller_list_nodes_params){0}, arena, &nodes));
    HL_TRY(CLI_CALL(cli, list_jobs, &(struct hl_api_controller_list_jobs_params){0}, arena, &jobs));
    *out = (struct hl_api_cluster_load){.time_ms = hl_wall_ms(), .nodes = nodes.nodes};
    out->jobs.items = jobs.jobs.items;
    for (size_t i = 0; i < jobs.jobs.count; i++)
        if (!hl_job_state_ended(jobs.jobs.items[i].state))
            out->jobs.items[out->jobs.count++] = jobs.jobs.items[i];
    return HL_OK;
}

static hl_status show_once(struct cli *cli)
{
    HL_AUTO(hl_arena_fini) struct hl_arena arena = {0};
    struct hl_api_cluster_load load;
    HL_TRY(ask_load(cli, &arena, &load));
    return cli->json ? cli_print_value(&hl_api_cluster_load_type, &load) : print_load(&load);
}

/* ---- the terminal ---------------------------------------------------------------------------- */

static volatile sig_atomic_t interrupted;

static void on_signal(int number)
{
    if (number != SIGWINCH) /* SIGWINCH only ends the wait: the next picture has the new size */
        interrupted = 1;
}

static void catch_signals(void)
{
    static const int numbers[] = {SIGINT, SIGTERM, SIGHUP, SIGWINCH};
    struct sigaction act = {.sa_handler = on_signal}; /* without SA_RESTART, so that poll returns */
    sigemptyset(&act.sa_mask);
    for (size_t i = 0; i < HL_ARRAY_LEN(numbers); i++)
        sigaction(numbers[i], &act, NULL);
}

static size_t terminal_lines(void)
{
    struct winsize size;
    return ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_row > 0 ? size.ws_row
                                                                           : LINES_DEFAULT;
}

/* Draws the picture into `text`, as it would appear on stdout. */
static hl_status draw_text(const struct hl_api_cluster_load *load, const char *trouble,
                           uint64_t interval_ms, char **text, size_t *len)
{
    FILE *terminal = stdout, *memory = open_memstream(text, len);
    char clock[32], every[32];
    time_t now = time(NULL);
    struct tm tm;
    if (memory == NULL)
        return hl_fail(HL_ENOMEM, "out of memory drawing");
    localtime_r(&now, &tm);
    strftime(clock, sizeof(clock), "%H:%M:%S", &tm);
    stdout = memory;
    cli_output_setup(false);
    cli_print(stdout, "helios top  %s  every %s, q ends%s%s\n\n", clock,
              hl_format_duration_ms(interval_ms, every, sizeof(every)),
              trouble[0] != '\0' ? "  " : "", trouble);
    hl_status st = load != NULL ? print_load(load) : HL_OK;
    fclose(memory);
    stdout = terminal;
    return st;
}

/* Prints as many lines as fit, and clears the rest of the screen. */
static hl_status put_text(const char *text)
{
    size_t lines = terminal_lines(), line = 0;
    fputs(HOME, stdout);
    while (*text != '\0' && line < lines) {
        size_t len = strcspn(text, "\n");
        fwrite(text, 1, len, stdout);
        line++;
        fputs(line < lines ? LINE_END : "\033[K", stdout);
        text += len + (text[len] == '\n');
    }
    fputs(REST, stdout);
    return fflush(stdout) == 0 ? HL_OK : hl_fail(HL_EIO, "writing to stdout: %m");
}

static hl_status picture_draw(struct cli *cli, uint64_t interval_ms)
{
    HL_AUTO(hl_arena_fini) struct hl_arena arena = {0};
    struct hl_api_cluster_load load;
    char trouble[200] = "", *text = NULL;
    size_t len = 0;
    hl_status st = ask_load(cli, &arena, &load);
    bool asked = st == HL_OK;
    if (!asked) {
        if (!failure_may_pass(st))
            return st;
        snprintf(trouble, sizeof(trouble), "%s", hl_error_text());
        cli_disconnect(cli);
    }
    st = draw_text(asked ? &load : NULL, trouble, interval_ms, &text, &len);
    if (st == HL_OK)
        st = put_text(text);
    free(text);
    return st;
}

/* True: the user wants to quit. */
static bool wait_key(uint64_t interval_ms)
{
    struct pollfd p = {.fd = STDIN_FILENO, .events = POLLIN};
    char key;
    if (poll(&p, 1, (int)interval_ms) <= 0)
        return interrupted != 0;
    ssize_t n = read(STDIN_FILENO, &key, 1);
    return n <= 0 || key == 'q' || key == 'Q' || interrupted != 0;
}

static hl_status show_live(struct cli *cli, uint64_t interval_ms)
{
    struct termios before, raw;
    if (tcgetattr(STDIN_FILENO, &before) != 0)
        return hl_fail(HL_EIO, "terminal: %m");
    raw = before;
    raw.c_lflag &= ~(tcflag_t)(ICANON | ECHO);
    catch_signals();
    tcsetattr(STDIN_FILENO, TCSANOW, &raw);
    fputs(ENTER, stdout);
    hl_status st;
    do
        st = picture_draw(cli, interval_ms);
    while (st == HL_OK && !interrupted && !wait_key(interval_ms));
    fputs(LEAVE, stdout);
    fflush(stdout);
    tcsetattr(STDIN_FILENO, TCSANOW, &before);
    return st;
}

hl_status cmd_top(struct cli *cli, int argc, char **argv)
{
    struct top_args a = {0};
    const char *term = getenv("TERM");
    HL_TRY(cli_args(cli, top_rows, HL_ARRAY_LEN(top_rows), argc, argv, &a, 0, 0));
    bool live = !a.once && !cli->json && isatty(STDIN_FILENO) && isatty(STDOUT_FILENO) &&
                term != NULL && strcmp(term, "dumb") != 0;
    return live ? show_live(cli, a.interval_ms) : show_once(cli);
}
