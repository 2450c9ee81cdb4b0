/* Kubernetes expands $(NAME) in commands, but a program's shell means something else by it. So
 * every '$' is doubled; Kubernetes undoes that. */
#include "volcano/command.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SCRIPT_MAX 6144 /* only numbers in it vary */
/* Where a kubelet reads a container's last words, which then appear in the pod's status. */
#define LAST_WORDS "/dev/termination-log"
#define GROUPS     "/sys/fs/cgroup"

bool hl_volcano_shares_container(const struct hl_job *job, const struct hl_plan *plan)
{
    return job->command_count > 0 && plan->ranks_per_container > 1 &&
           plan->containers[0].ranks[0].gpu[0] != '\0';
}

static json_t *double_dollars(const char *text)
{
    size_t n = 0;
    char *out = malloc(2 * strlen(text) + 1);
    for (const char *p = text; out != NULL && *p != '\0'; p++) {
        if (*p == '$')
            out[n++] = '$';
        out[n++] = *p;
    }
    json_t *v = out != NULL ? json_stringn(out, n) : NULL;
    free(out);
    return v;
}

/* Derives the rank's place in the grid from RANK: hl_rank_of and hl_rank_experts as shell code. */
static int put_places(const struct hl_job *job, char *out, size_t cap)
{
    const struct hl_grid *grid = &job->grid;
    bool inner_is_pp = grid->order == HL_ORDER_TP_PP_DP;
    int inner = inner_is_pp ? grid->pp : grid->dp;
    int cp = hl_grid_cp(grid), group = grid->tp * cp;
    return snprintf(
        out, cap,
        "GLOBAL_RANK=$RANK; "
        "TENSOR_PARALLEL_RANK=$((RANK %% %d)); CONTEXT_PARALLEL_RANK=$((RANK / %d %% %d)); "
        "PIPELINE_PARALLEL_RANK=$((RANK / %d %s %d)); DATA_PARALLEL_RANK=$((RANK / %d %s %d)); "
        "HELIOS_AT=$((RANK %% %d + %d * DATA_PARALLEL_RANK)); "
        "EXPERT_PARALLEL_RANK=$((HELIOS_AT / %d %% %d)); "
        "EXPERT_TENSOR_PARALLEL_RANK=$((HELIOS_AT %% %d)); "
        "EXPERT_DATA_PARALLEL_RANK=$((HELIOS_AT / %d)); "
        "export RANK GLOBAL_RANK GROUP_RANK TENSOR_PARALLEL_RANK CONTEXT_PARALLEL_RANK "
        "PIPELINE_PARALLEL_RANK DATA_PARALLEL_RANK EXPERT_PARALLEL_RANK "
        "EXPERT_TENSOR_PARALLEL_RANK EXPERT_DATA_PARALLEL_RANK; unset HELIOS_AT; ",
        grid->tp, grid->tp, cp, group, inner_is_pp ? "%" : "/", inner, group,
        inner_is_pp ? "/" : "%", inner, group, group, job->etp, job->ep, job->etp,
        job->etp * job->ep);
}

static json_t *shell_of(const char *script)
{
    json_t *command = json_array();
    json_array_append_new(command, json_string("/bin/sh"));
    json_array_append_new(command, json_string("-c"));
    json_array_append_new(command, double_dollars(script));
    json_array_append_new(command, json_string("sh"));
    return command;
}

static void put_words(json_t *command, const struct hl_job *job)
{
    for (size_t i = 0; i < job->command_count; i++)
        json_array_append_new(command, double_dollars(job->command[i]));
}

json_t *hl_volcano_rank_command(const struct hl_volcano_pattern *p, int local_rank)
{
    const struct hl_plan_container *c = &p->g->plan->containers[p->first];
    json_t *command = NULL;
    if (p->pods > 1) { /* finds its rank by the pod's name, then becomes the program */
        char script[SCRIPT_MAX];
        int n = snprintf(script, sizeof(script),
                         "RANK=$((%d + ${" HL_VOLCANO_POD "##*-} * %d)); GROUP_RANK=$RANK; ",
                         c->ranks[local_rank].rank, c->rank_count);
        n += put_places(p->g->job, script + n, sizeof(script) - (size_t)n);
        snprintf(script + n, sizeof(script) - (size_t)n, "exec \"$@\"");
        command = shell_of(script);
    } else {
        command = json_array();
    }
    put_words(command, p->g->job);
    return command;
}

/* ---- ranks that share a container ------------------------------------------------------------ */

/* Its arguments: the file of last words, a directory in memory, the directory of control groups,
 * the command.
 *
 * hl_rank is a shell for one rank. It signals the first shell with SIGUSR1 if its rank has failed.
 * The container's own group, in cgroup v2 or v1, says how many processes the kernel has killed for
 * lack of memory. Output goes through a pipe to a shell that marks its lines; children of a rank
 * may keep that pipe open, so its end is awaited for the grace period at most. `wait` returns at
 * each caught signal, so it is repeated. A newly forked shell may lose a signal, also the one that
 * becomes the command, so it checks for the file `stop`, which is created before the signal is
 * sent. Only when all ranks have begun is it known which to stop, so a signal is deferred until
 * then. SIGKILL does not reach the first process of a container. */
static const char share[] =
    "hl_words=$1; hl_dir=$2/helios.$$; hl_groups=$3; shift 3\n"
    "hl_ranks=; hl_readers=; hl_timer=; hl_code=0; hl_k=0\n"
    "for hl_tool in mkdir mkfifo rm sleep; do\n"
    "  command -v $hl_tool >/dev/null || { echo \"helios: the image has no $hl_tool, which ranks "
    "that share a container need (docs/kubernetes.md)\"; exit 127; }\n"
    "done\n"
    "mkdir \"$hl_dir\" || exit 126\n"
    "hl_end() {\n"
    "  wait $1 2>/dev/null; hl_s=$?\n"
    "  while kill -0 $1 2>/dev/null; do wait $1 2>/dev/null; hl_s=$?; done\n"
    "}\n"
    "hl_oom() {\n"
    "  hl_kills=0\n"
    "  for hl_file in memory.events memory/memory.oom_control; do\n"
    "    [ -r \"$hl_groups/$hl_file\" ] || continue\n"
    "    while read -r hl_key hl_n; do\n"
    "      [ \"$hl_key\" != oom_kill ] || hl_kills=$hl_n\n"
    "    done <\"$hl_groups/$hl_file\"\n"
    "  done\n"
    "}\n"
    "hl_read() {\n"
    "  trap '' TERM\n"
    "  while IFS= read -r hl_line || [ -n \"$hl_line\" ]; do\n"
    "    printf '[rank %d] %s\\n' $1 \"$hl_line\"\n"
    "  done\n"
    "}\n"
    "hl_rank() {\n"
    "  LOCAL_RANK=$1; LOCAL_WORLD_SIZE=$hl_count; RANK=$((hl_first + $1)); shift\n"
    "  hl_place; export LOCAL_RANK LOCAL_WORLD_SIZE\n"
    "  hl_pid=; hl_late=\n"
    "  trap 'hl_late=1; [ -z \"$hl_pid\" ] || kill -TERM $hl_pid 2>/dev/null' TERM\n"
    "  [ ! -e \"$hl_dir/stop\" ] || exit 143\n"
    "  (trap - TERM; [ ! -e \"$hl_dir/stop\" ] || exit 143; exec \"$@\") & hl_pid=$!\n"
    "  [ -z \"$hl_late\" ] || kill -TERM $hl_pid 2>/dev/null\n"
    "  hl_end $hl_pid\n"
    "  [ $hl_s != 0 ] || exit 0\n"
    "  hl_oom; hl_why=\n"
    "  [ $hl_kills = $hl_before ] || hl_why=' out of memory'\n"
    "  [ -s \"$hl_words\" ] || echo \"rank $RANK exited with code $hl_s$hl_why\" >\"$hl_words\"\n"
    "  kill -USR1 $$\n"
    "  exit $hl_s\n"
    "}\n"
    "hl_stop() {\n"
    "  trap '' TERM USR1\n"
    "  : >\"$hl_dir/stop\"; kill -TERM $hl_ranks 2>/dev/null\n"
    "  { sleep $hl_grace; kill -KILL 0; } >/dev/null 2>&1 & hl_timer=$!\n"
    "}\n"
    "hl_asked=; trap 'hl_asked=1' TERM USR1\n"
    "hl_oom; hl_before=$hl_kills\n"
    "while [ $hl_k -lt $hl_count ] && [ -z \"$hl_asked\" ]; do\n"
    "  mkfifo \"$hl_dir/$hl_k\" || exit 126\n"
    "  (hl_read $((hl_first + hl_k)) <\"$hl_dir/$hl_k\") & hl_readers=\"$hl_readers $!\"\n"
    "  (hl_rank $hl_k \"$@\") >\"$hl_dir/$hl_k\" 2>&1 & hl_ranks=\"$hl_ranks $!\"\n"
    "  hl_k=$((hl_k + 1))\n"
    "done\n"
    "trap hl_stop TERM USR1\n"
    "[ -z \"$hl_asked\" ] || [ -n \"$hl_timer\" ] || hl_stop\n"
    "for hl_pid in $hl_ranks; do hl_end $hl_pid; [ $hl_s = 0 ] || hl_code=$hl_s; done\n"
    "[ -z \"$hl_timer\" ] || kill -KILL $hl_timer\n"
    "(sleep $hl_grace; kill -KILL $hl_readers) >/dev/null 2>&1 & hl_timer=$!\n"
    "for hl_pid in $hl_readers; do hl_end $hl_pid; done\n"
    "kill -KILL $hl_timer 2>/dev/null\n"
    "rm -rf \"$hl_dir\"\n"
    "[ ! -s \"$hl_words\" ] || read -r hl_1 hl_2 hl_3 hl_4 hl_5 hl_code hl_why "
    "<\"$hl_words\"\n"
    "exit $hl_code\n";

json_t *hl_volcano_shared_command(const struct hl_volcano_pattern *p)
{
    const struct hl_plan_container *c = &p->g->plan->containers[p->first];
    char script[SCRIPT_MAX];
    int n = snprintf(script, sizeof(script), "hl_pod=%s; ",
                     p->pods > 1 ? "${" HL_VOLCANO_POD "##*-}" : "0");
    n += snprintf(script + n, sizeof(script) - (size_t)n,
                  "hl_first=$((%d + hl_pod * %d)); hl_count=%d; hl_grace=%lld\n"
                  "hl_place() { GROUP_RANK=$((%d + hl_pod)); ",
                  c->ranks[0].rank, c->rank_count, c->rank_count,
                  (long long)(p->g->stop_grace_ms + 999) / 1000, p->first);
    n += put_places(p->g->job, script + n, sizeof(script) - (size_t)n);
    snprintf(script + n, sizeof(script) - (size_t)n, "}\n%s", share);
    json_t *command = shell_of(script);
    json_array_append_new(command, json_string(LAST_WORDS));
    json_array_append_new(command, json_string(HL_VOLCANO_SHM));
    json_array_append_new(command, json_string(GROUPS));
    put_words(command, p->g->job);
    return command;
}
