/* Runs the site's own script: its exit code decides, and the last line of its output is shown. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "hw/health/health_private.h"
#include "os/command.h"

#define OUTPUT_MAX 4096

static const char *last_line(char *text)
{
    size_t len = strlen(text);
    while (len > 0 && (text[len - 1] == '\n' || text[len - 1] == '\r'))
        text[--len] = '\0';
    char *line = strrchr(text, '\n');
    line = line != NULL ? line + 1 : text;
    for (char *c = line; *c != '\0'; c++)
        if ((unsigned char)*c < ' ' || (unsigned char)*c >= 0x7f)
            *c = '?';
    if (strlen(line) > 200)
        line[200] = '\0';
    return line;
}

static void script_judge(struct hl_health_run *r, hl_status st, struct hl_command_result *end)
{
    char text[300] = "", value[64], none[1] = "";
    const char *said = last_line(end->out.data != NULL ? end->out.data : none);
    if (st == HL_ETIMEDOUT)
        snprintf(text, sizeof(text), "it was not done within the test's %d ms and was killed",
                 r->opts->deadline_ms);
    else if (st != HL_OK)
        snprintf(text, sizeof(text), "%.250s", hl_error_text());
    else if (end->signal != 0)
        snprintf(text, sizeof(text), "it was killed by signal %d", end->signal);
    else if (end->exit_code != 0)
        snprintf(text, sizeof(text), "exit code %d%s%.250s", end->exit_code,
                 said[0] != '\0' ? ": " : "", said);
    snprintf(value, sizeof(value), "%.60s", said);
    hl_health_row(r, "script",
                  text[0] != '\0' ? HL_API_HEALTH_STATE_FAILED : HL_API_HEALTH_STATE_PASSED, value,
                  text);
}

void hl_health_script(struct hl_health_run *r)
{
    char name[512];
    uint64_t now = hl_now_ns();
    HL_AUTO(hl_command_fini) struct hl_command_result end = {0};
    if (r->opts->script[0] == '\0')
        return;
    snprintf(name, sizeof(name), "%s", r->opts->script);
    char *argv[] = {name, NULL};
    const struct hl_command script = {
        .program = name,
        .argv = argv,
        .env = environ,
        .timeout_ms = now < r->deadline_ns ? (int)((r->deadline_ns - now) / HL_NS_PER_MS) + 1 : 0,
        .join = true,
        .newest = OUTPUT_MAX};
    script_judge(r, hl_command_run(&script, &end), &end);
}
