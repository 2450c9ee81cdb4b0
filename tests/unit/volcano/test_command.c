/* Ranks that share a container: its command is run as a kubelet would run it. */
#include "support/test.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/json.h"
#include "volcano/gang.h"

#define WORDS_MAX 16
#define OUTPUT    32768
#define LONG_MS   60000 /* slow processes are not killed */

static const struct hl_volcano_opts gpus = {.ns = "train",
                                            .queue = "q",
                                            .topology_policy = "restricted",
                                            .device = "nvidia.com/gpu",
                                            .near_key = "",
                                            .podgroups = "",
                                            .slot_devices = 4,
                                            .keep_s = 60};

struct gang {
    struct hl_job job;
    struct hl_plan *plan;
    json_t *doc;
};

/* script: the ranks' own, for `sh -c`. */
static void gang_make(struct gang *g, const char *parallelism, int grace_ms, const char *script)
{
    json_t *doc = json_loads(parallelism, 0, NULL);
    doc = json_pack("{s:s s:s s:[s s s] s:o s:{s:i s:s}}", "jobName", "g", "dockerImage", "i",
                    "command", "sh", "-c", script, "parallelism", doc, "resources", "cpus_per_rank",
                    2, "memory", "8GiB");
    if (hl_job_parse(doc, NULL, &g->job) != HL_OK ||
        hl_volcano_plan(&g->job, "g-1", 1, &gpus, &g->plan) != HL_OK)
        fail_msg("%s", hl_error_text());
    json_decref(doc);
    const struct hl_volcano_gang gang = {.job_id = "g-1",
                                         .gang = "abcd",
                                         .attempt = 1,
                                         .stop_grace_ms = grace_ms,
                                         .job = &g->job,
                                         .plan = g->plan};
    g->doc = NULL;
    if (hl_volcano_job(&gang, &gpus, NULL, &g->doc) != HL_OK)
        fail_msg("%s", hl_error_text());
}

static void gang_free(struct gang *g)
{
    json_decref(g->doc);
    hl_plan_free(g->plan);
    hl_job_fini(&g->job);
}

/* The pod of the task to which it belongs. Borrowed. */
static const json_t *pod_of(const struct gang *g, const char *pod)
{
    size_t i;
    const json_t *task;
    json_array_foreach (hl_json_list(json_object_get(g->doc, "spec"), "tasks"), i, task) {
        char begin[128];
        snprintf(begin, sizeof(begin), "helios-g-1-a1-%s-", hl_json_str(task, "name", ""));
        if (strncmp(pod, begin, strlen(begin)) == 0)
            return json_object_get(json_object_get(task, "template"), "spec");
    }
    fail_msg("no task has pod %s", pod);
    return NULL;
}

static const json_t *container_of(const struct gang *g, const char *pod)
{
    const json_t *all = json_object_get(pod_of(g, pod), "containers");
    assert_int_equal(json_array_size(all), 1);
    return json_array_get(all, 0);
}

/* ---- a container that runs ------------------------------------------------------------------- */

struct run {
    char dir[64], words[80]; /* its memory; its last words' file */
    pid_t pid;
    FILE *out;
    char text[OUTPUT];
    int status;
};

/* To Kubernetes $$ is a $. */
static char *undouble(const char *text)
{
    char *out = malloc(strlen(text) + 1), *at = out;
    for (; *text != '\0'; text++) {
        *at++ = *text;
        text += text[0] == '$' && text[1] == '$';
    }
    *at = '\0';
    return out;
}

static void run_start(struct run *r, const struct gang *g, const char *pod)
{
    char *argv[WORDS_MAX + 1] = {NULL};
    int pipe_fds[2];
    size_t i;
    const json_t *word;
    snprintf(r->dir, sizeof(r->dir), "/tmp/helios-command-XXXXXX");
    assert_non_null(mkdtemp(r->dir));
    snprintf(r->words, sizeof(r->words), "%s/memory.events", r->dir);
    FILE *events = fopen(r->words, "w");
    assert_true(events != NULL && fputs("oom 3\noom_kill 3\n", events) > 0 && fclose(events) == 0);
    snprintf(r->words, sizeof(r->words), "%s/words", r->dir);
    json_array_foreach (json_object_get(container_of(g, pod), "command"), i, word) {
        const char *text = json_string_value(word);
        assert_true(i < WORDS_MAX);
        if (strcmp(text, "/dev/termination-log") == 0)
            text = r->words;
        bool is_dir = strcmp(text, "/dev/shm") == 0 || strcmp(text, "/sys/fs/cgroup") == 0;
        argv[i] = undouble(is_dir ? r->dir : text);
    }
    assert_int_equal(pipe(pipe_fds), 0);
    r->pid = fork();
    if (r->pid == 0) {
        setsid();
        setenv("HELIOS_POD", pod, 1);
        setenv("GROUPS_DIR", r->dir, 1);
        dup2(pipe_fds[1], 1);
        dup2(pipe_fds[1], 2);
        close(pipe_fds[0]);
        close(pipe_fds[1]);
        execv(argv[0], argv);
        _exit(99);
    }
    close(pipe_fds[1]);
    r->out = fdopen(pipe_fds[0], "r");
    for (i = 0; argv[i] != NULL; i++)
        free(argv[i]);
}

static void run_end(struct run *r)
{
    char line[1024];
    size_t n = fread(r->text, 1, sizeof(r->text) - 1, r->out);
    r->text[n] = '\0';
    fclose(r->out);
    waitpid(r->pid, &r->status, 0);
    FILE *words = fopen(r->words, "r");
    r->words[0] = '\0';
    if (words != NULL) {
        n = fread(r->words, 1, sizeof(r->words) - 1, words);
        r->words[n] = '\0';
        fclose(words);
    }
    snprintf(line, sizeof(line), "rm -rf %s", r->dir);
    assert_int_equal(system(line), 0);
}

static void expect_exit(const struct run *r, int code)
{
    if (!WIFEXITED(r->status) || WEXITSTATUS(r->status) != code)
        fail_msg("status %x, not exit code %d:\n%s", (unsigned)r->status, code, r->text);
}

static void expect_line(const struct run *r, const char *line)
{
    const char *at = strstr(r->text, line);
    if (at == NULL || (at != r->text && at[-1] != '\n'))
        fail_msg("no line %s in:\n%s", line, r->text);
}

static size_t count_lines(const struct run *r)
{
    size_t n = 0;
    for (const char *p = r->text; (p = strchr(p, '\n')) != NULL; p++)
        n++;
    return n;
}

/* ---- tests ----------------------------------------------------------------------------------- */

TEST(ranks_with_devices_are_one_container_that_has_what_all_of_them_need)
{
    struct gang g;
    gang_make(&g, "{\"tensor_parallel_size\":4,\"data_parallel_size\":3}", LONG_MS, "true");
    const json_t *c = container_of(&g, "helios-g-1-a1-c0-0");
    const json_t *limits = json_object_get(json_object_get(c, "resources"), "limits");
    assert_string_equal(hl_json_str(c, "name", ""), "ranks");
    assert_string_equal(hl_json_str(limits, "nvidia.com/gpu", ""), "4");
    assert_string_equal(hl_json_str(limits, "cpu", ""), "8");
    assert_string_equal(hl_json_str(limits, "memory", ""), "8589934592");
    assert_true(json_equal(limits, json_object_get(json_object_get(c, "resources"), "requests")));
    assert_null(g.plan->warnings); /* one container is aligned with any scope of the kubelet */
    gang_free(&g);
}

TEST(ranks_whose_command_is_the_images_own_stay_apart_and_the_plan_says_what_that_costs)
{
    struct hl_job job;
    struct hl_plan *plan = NULL;
    json_t *doc = json_pack("{s:s s:s s:{s:i}}", "jobName", "g", "dockerImage", "i", "parallelism",
                            "tensor_parallel_size", 2);
    assert_int_equal(hl_job_parse(doc, NULL, &job), HL_OK);
    assert_int_equal(hl_volcano_plan(&job, "g-1", 1, &gpus, &plan), HL_OK);
    assert_false(hl_volcano_shares_container(&job, plan));
    assert_non_null(plan->warnings);
    assert_non_null(strstr(plan->warnings[0], "no P2P and no NVLink"));
    hl_plan_free(plan);
    hl_job_fini(&job);
    json_decref(doc);
}

static void expect_rank(const struct run *r, const struct gang *g,
                        const struct hl_plan_container *c, int local)
{
    const struct hl_plan_rank *x = &c->ranks[local];
    const struct hl_expert_rank e = hl_rank_experts(&g->job.grid, x->at, g->job.ep, g->job.etp);
    char line[256];
    snprintf(line, sizeof(line), "[rank %d] %d %d %d %d tp %d pp %d dp %d cp %d e %d %d %d\n",
             x->rank, x->rank, local, c->rank_count, c->index, x->at.tp, x->at.pp, x->at.dp,
             x->at.cp, e.ep, e.etp, e.dp);
    expect_line(r, line);
}

/* Few ranks, written out; many, of which a pod counts its own by its name. */
TEST(each_process_finds_its_place_and_its_lines_say_whose_they_are)
{
    static const char *const grids[] = {
        "{\"tensor_parallel_size\":4,\"pipeline_parallel_size\":3}",
        "{\"tensor_parallel_size\":2,\"data_parallel_size\":3}", /* the last pod has two */
        "{\"tensor_parallel_size\":2,\"pipeline_parallel_size\":5,\"data_parallel_size\":20,"
        "\"context_parallel_size\":2,\"order\":\"tp-pp-dp\"}",
        "{\"tensor_parallel_size\":8,\"pipeline_parallel_size\":2,\"data_parallel_size\":16}",
    };
    for (size_t i = 0; i < HL_ARRAY_LEN(grids); i++) {
        struct gang g;
        gang_make(&g, grids[i], LONG_MS,
                  "echo $RANK $LOCAL_RANK $LOCAL_WORLD_SIZE $GROUP_RANK tp $TENSOR_PARALLEL_RANK "
                  "pp $PIPELINE_PARALLEL_RANK dp $DATA_PARALLEL_RANK cp $CONTEXT_PARALLEL_RANK e "
                  "$EXPERT_PARALLEL_RANK $EXPERT_TENSOR_PARALLEL_RANK $EXPERT_DATA_PARALLEL_RANK; "
                  "printf '%s' 'a \\ line  without end' >&2; [ -z \"$hl_first$hl_place\" ]");
        const int picked[] = {0, g.plan->container_count / 2, g.plan->container_count - 1};
        for (size_t k = 0; k < HL_ARRAY_LEN(picked); k++) {
            const struct hl_plan_container *c = &g.plan->containers[picked[k]];
            struct run r;
            run_start(&r, &g, c->node);
            run_end(&r);
            expect_exit(&r, 0);
            assert_string_equal(r.words, "");
            for (int local = 0; local < c->rank_count; local++)
                expect_rank(&r, &g, c, local);
            expect_line(&r, "[rank ");
            assert_non_null(strstr(r.text, "] a \\ line  without end\n"));
            assert_int_equal(count_lines(&r), 2 * (size_t)c->rank_count);
        }
        gang_free(&g);
    }
}

TEST(the_first_rank_that_fails_ends_the_others_and_is_named)
{
    struct gang g;
    struct run r;
    gang_make(&g, "{\"tensor_parallel_size\":4}", LONG_MS,
              "trap 'echo asked to end; exit 5' TERM; [ $RANK != 2 ] || { echo bad; exit 7; }; "
              "while :; do sleep 0.05; done");
    run_start(&r, &g, "helios-g-1-a1-c0-0");
    run_end(&r);
    expect_exit(&r, 7);
    expect_line(&r, "[rank 2] bad\n");
    assert_string_equal(r.words, "rank 2 exited with code 7\n");
    gang_free(&g);
}

/* Only in a container is its first process out of SIGKILL's reach. */
TEST(ranks_that_do_not_end_are_killed_after_the_grace)
{
    struct gang g;
    struct run r;
    gang_make(&g, "{\"tensor_parallel_size\":2}", 700,
              "trap '' TERM; [ $RANK != 1 ] || exit 3; while :; do sleep 5; done");
    run_start(&r, &g, "helios-g-1-a1-c0-0");
    run_end(&r);
    assert_true(WIFSIGNALED(r.status) || WEXITSTATUS(r.status) == 3);
    assert_string_equal(r.words, "rank 1 exited with code 3\n");
    gang_free(&g);
}

/* The kernel's count, after the earlier three (run_start); in v2's file, and in v1's. */
TEST(the_rank_is_named_whose_process_was_killed_for_memory)
{
    static const char *const kills[] = {
        "printf 'oom 4\\noom_kill 4\\noom_group_kill 0\\n' >$GROUPS_DIR/memory.events",
        "cd $GROUPS_DIR; rm memory.events; mkdir memory; echo oom_kill 4 "
        ">memory/memory.oom_control",
        "true",
    };
    static const char *const words[] = {"rank 1 exited with code 137 out of memory\n",
                                        "rank 1 exited with code 137 out of memory\n",
                                        "rank 1 exited with code 137\n"};
    for (size_t i = 0; i < HL_ARRAY_LEN(kills); i++) {
        struct gang g;
        struct run r;
        char script[512];
        snprintf(script, sizeof(script), "[ $RANK = 1 ] || exec sleep 60; %s; kill -9 $$",
                 kills[i]);
        gang_make(&g, "{\"tensor_parallel_size\":2}", LONG_MS, script);
        run_start(&r, &g, "helios-g-1-a1-c0-0");
        run_end(&r);
        expect_exit(&r, 137);
        assert_string_equal(r.words, words[i]);
        gang_free(&g);
    }
}

TEST(a_signal_reaches_every_rank)
{
    struct gang g;
    struct run r;
    char line[64] = "";
    gang_make(&g, "{\"tensor_parallel_size\":2}", LONG_MS,
              "trap 'echo saved; exit 0' TERM; echo up; while :; do sleep 0.05; done");
    run_start(&r, &g, "helios-g-1-a1-c0-0");
    for (int i = 0; i < 2; i++) {
        assert_non_null(fgets(line, sizeof(line), r.out));
        assert_non_null(strstr(line, "up"));
    }
    kill(r.pid, SIGTERM); /* as a kubelet sends it: to the first process alone */
    run_end(&r);
    expect_exit(&r, 0);
    expect_line(&r, "[rank 0] saved\n");
    expect_line(&r, "[rank 1] saved\n");
    gang_free(&g);
}

/* Of which the lines "[rank N] PID" tell. */
static void kill_children(const struct run *r)
{
    int rank, pid;
    for (const char *p = r->text; p != NULL && *p != '\0'; p = strchr(p, '\n') + 1)
        if (sscanf(p, "[rank %d] %d\n", &rank, &pid) == 2)
            kill(pid, SIGKILL);
}

TEST(a_child_that_a_rank_leaves_behind_holds_nothing_up)
{
    struct gang g;
    struct run r;
    gang_make(&g, "{\"tensor_parallel_size\":2}", 700, "sleep 90 & echo $!; echo done");
    run_start(&r, &g, "helios-g-1-a1-c0-0");
    run_end(&r);
    expect_exit(&r, 0);
    expect_line(&r, "[rank 1] done\n");
    kill_children(&r);
    gang_free(&g);
}
