/* helios-ranktable: writes rank tables for the jobs of a Kubernetes cluster. Takes
 * hccl-controller's flags, with one dash or two. `helios-ranktable lint` checks a table and reports
 * its faults. */
#include <fcntl.h>
#include <malloc.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "conf/options.h"
#include "conf/yaml.h"
#include "http/metrics.h"
#include "os/file.h"
#include "os/loop.h"
#include "program/daemon.h"
#include "ranktable/lint.h"
#include "ranktabled/ranktabled.h"

#define IGNORED_TEXTS 7
#define IGNORED_FLAGS 3

/* Flags of hccl-controller that have no effect here, which is logged if they are given. */
struct ignored {
    char *text[IGNORED_TEXTS];
    bool flag[IGNORED_FLAGS];
};

struct args {
    char *kubeconfig, *context, *master, *json, *label_value, *ns;
    int64_t super_pod_servers;
    uint64_t batch_ms, watch_window_ms;
    bool leader_elect, dry_run;
    char *lease_namespace, *metrics_listen, *ready_file;
    uint64_t lease_ms;
    bool log_to_stderr;
    char *log_dir, *log_file;
    char *log_file_alone; /* of later hccl-controllers: counts without --logtostderr */
    int64_t verbosity, log_level;
    struct ignored ignored;
};

#define AT(field) HL_OPTION_FIELD(struct args, field)
#define IGNORED(name, flag_name, type, field)                                                      \
    {                                                                                              \
        name, flag_name, IGNORED_##type,                                                           \
            "Taken from hccl-controller's manifests; no effect here.", HL_OPT_##type, 0, 0, NULL,  \
            AT(ignored.field)                                                                      \
    }
#define IGNORED_STRING ""
#define IGNORED_BOOL   "false"

static const struct hl_option rows[] = {
    {"kubeconfig", "--kubeconfig", "",
     "A kubeconfig; empty for $KUBECONFIG, ~/.kube/config, or the credentials of the pod.",
     HL_OPT_PATH, 0, 0, NULL, AT(kubeconfig)},
    {"context", "--context", "", "Its context; empty for the current one.", HL_OPT_STRING, 0, 0,
     NULL, AT(context)},
    {"master", "--master", "", "Address of the API server, instead of the kubeconfig's.",
     HL_OPT_STRING, 0, 0, NULL, AT(master)},
    {"json", "--json", "v2", "Format of the tables.", HL_OPT_ENUM, 0, 0, "v1|v2|1.2|2.0", AT(json)},
    {"label_value", "--label-value", HL_RANKTABLE_LABEL_VALUE,
     "Value of the label ring-controller.atlas on jobs, pods and ConfigMaps.", HL_OPT_STRING, 0, 0,
     NULL, AT(label_value)},
    {"namespace", "--namespace", "",
     "Namespace of the jobs, so that rights in this namespace are enough; empty for all "
     "namespaces.",
     HL_OPT_STRING, 0, 0, NULL, AT(ns)},
    {"super_pod_servers", "--super-pod-servers", "0",
     "Format 1.2, for pods that don't name their super pod: servers per super pod; 0 for a single "
     "super pod.",
     HL_OPT_INT, 0, 100000, NULL, AT(super_pod_servers)},
    {"batch", "--batch", "100ms", "How long changes are collected before tables are written.",
     HL_OPT_DURATION, 10, 10000, NULL, AT(batch_ms)},
    {"watch_window", "--watch-window", "0",
     "How long one watch lasts; 0 for a random time of 5 to 10 minutes.", HL_OPT_DURATION, 0,
     3600000, NULL, AT(watch_window_ms)},
    {"leader_elect", "--leader-elect", "true",
     "Write only while this replica holds the Lease helios-ranktable, so that several replicas can "
     "run; with another --label-value the Lease helios-ranktable-VALUE.",
     HL_OPT_BOOL, 0, 0, NULL, AT(leader_elect)},
    {"lease_duration", "--lease-duration", "15s",
     "How long the Lease's holder may be silent before another replica takes over, in whole "
     "seconds; the holder renews it 7 times in that time.",
     HL_OPT_DURATION, 2000, 3600000, NULL, AT(lease_ms)},
    {"lease_namespace", "--lease-namespace", "",
     "Namespace of the Lease; empty for the pod's or the context's.", HL_OPT_STRING, 0, 0, NULL,
     AT(lease_namespace)},
    {"metrics_listen", "--metrics-listen", "",
     "host:port of /metrics and /healthz; empty for none.", HL_OPT_STRING, 0, 0, NULL,
     AT(metrics_listen)},
    {"ready_file", "--ready-file", "", "File written once the program serves.", HL_OPT_PATH, 0, 0,
     NULL, AT(ready_file)},
    {"logtostderr", "--logtostderr", "true", "Log to stderr, not to a file.", HL_OPT_BOOL, 0, 0,
     NULL, AT(log_to_stderr)},
    {"log_dir", "--log_dir", "", "Directory of the log, helios-ranktable.log in it.", HL_OPT_PATH,
     0, 0, NULL, AT(log_dir)},
    {"log_file", "--log_file", "", "The log file itself; takes precedence over --log_dir.",
     HL_OPT_PATH, 0, 0, NULL, AT(log_file)},
    {"log_file_alone", "--logFile", "", "The log file, regardless of --logtostderr.", HL_OPT_PATH,
     0, 0, NULL, AT(log_file_alone)},
    {"v", "--v", "0", "Verbosity; 4 and more for debug lines.", HL_OPT_INT, 0, 10, NULL,
     AT(verbosity)},
    {"log_level", "--logLevel", "0",
     "Lowest level that is logged: -1 debug, 0 info, 1 warning, 2 error.", HL_OPT_INT, -1, 5, NULL,
     AT(log_level)},
    {"dry_run", "--dryRun", "false", "Build tables and log their sizes, but write nothing.",
     HL_OPT_BOOL, 0, 0, NULL, AT(dry_run)},
    IGNORED("job_parallelism", "--jobParallelism", STRING, text[0]),
    IGNORED("pod_parallelism", "--podParallelism", STRING, text[1]),
    IGNORED("cm_check_interval", "--cmCheckInterval", STRING, text[2]),
    IGNORED("cm_check_timeout", "--cmCheckTimeout", STRING, text[3]),
    IGNORED("max_age", "--maxAge", STRING, text[4]),
    IGNORED("max_backups", "--maxBackups", STRING, text[5]),
    IGNORED("stderrthreshold", "--stderrthreshold", STRING, text[6]),
    IGNORED("is_compress", "--isCompress", BOOL, flag[0]),
    IGNORED("display_statistic", "--displayStatistic", BOOL, flag[1]),
    IGNORED("monitor_performance", "--monitorPerformance", BOOL, flag[2]),
};

static void tell_ignored(const struct ignored *given)
{
    static const char *const texts[IGNORED_TEXTS] = {
        "--jobParallelism: one loop judges all jobs",
        "--podParallelism: one loop judges all pods",
        "--cmCheckInterval: ConfigMaps are watched",
        "--cmCheckTimeout: ConfigMaps are watched",
        "--maxAge: the log is rotated by others",
        "--maxBackups: the log is rotated by others",
        "--stderrthreshold: the log goes to one place",
    };
    static const char *const flags[IGNORED_FLAGS] = {
        "--isCompress: the log is rotated by others",
        "--displayStatistic: --metrics-listen serves figures",
        "--monitorPerformance: --metrics-listen serves figures",
    };
    for (size_t i = 0; i < IGNORED_TEXTS; i++)
        if (given->text[i][0] != '\0')
            hl_warn("no effect of %s", texts[i]);
    for (size_t i = 0; i < IGNORED_FLAGS; i++)
        if (given->flag[i])
            hl_warn("no effect of %s", flags[i]);
}

/* Accepts "-v=5" and "-json v1" as klog and hccl-controller do. */
static char **two_dashes(int argc, char **argv)
{
    char **out = calloc((size_t)argc + 1, sizeof(*out));
    for (int i = 0; out != NULL && i < argc; i++) {
        out[i] = argv[i];
        if (argv[i][0] == '-' && argv[i][1] != '-' && argv[i][1] != '\0' && argv[i][1] != 'h' &&
            asprintf(&out[i], "-%s", argv[i]) < 0)
            return NULL;
    }
    return out; /* kept for the life of the process */
}

static enum hl_log_level log_level(const struct args *a)
{
    if (a->verbosity >= 4 || a->log_level < 0)
        return HL_LOG_DEBUG;
    return a->log_level == 0 ? HL_LOG_INFO : a->log_level == 1 ? HL_LOG_WARN : HL_LOG_ERROR;
}

/* "" = stderr. */
static void log_path(const struct args *a, char *out, size_t cap)
{
    out[0] = '\0';
    if (a->log_file_alone[0] != '\0')
        snprintf(out, cap, "%s", a->log_file_alone);
    else if (!a->log_to_stderr && a->log_file[0] != '\0')
        snprintf(out, cap, "%s", a->log_file);
    else if (!a->log_to_stderr && a->log_dir[0] != '\0')
        snprintf(out, cap, "%s/helios-ranktable.log", a->log_dir);
}

static hl_status set_log(const struct args *a)
{
    char path[4096];
    hl_log_init("ranktable", log_level(a));
    log_path(a, path, sizeof(path));
    if (path[0] == '\0')
        return HL_OK;
    /* Not freopen, which closes stderr if it fails: then nothing could say why. */
    int fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    if (fd < 0 || (fd != STDERR_FILENO && dup3(fd, STDERR_FILENO, O_CLOEXEC) < 0))
        return hl_fail(HL_EINVAL, "the log %s: %m", path);
    if (fd != STDERR_FILENO)
        close(fd);
    setvbuf(stderr, NULL, _IOLBF, 0);
    return HL_OK;
}

/* ---- lint ------------------------------------------------------------------------------------ */

#define OBJECTS_MAX 256

struct lint_args {
    char *chip;
    bool job;
};

static const struct hl_option lint_rows[] = {
    {"chip", "--chip", "", "The chip whose library reads the table: a2, a3 or a5; required.",
     HL_OPT_STRING, 0, 0, NULL, HL_OPTION_FIELD(struct lint_args, chip)},
    {"job", "--job", "false",
     "FILE is the manifest of a job, YAML or JSON: labels, node selector, devices, ConfigMap.",
     HL_OPT_BOOL, 0, 0, NULL, HL_OPTION_FIELD(struct lint_args, job)},
};

/* The objects of a manifest; those of a List are its items. */
struct manifest {
    struct hl_yaml *documents[OBJECTS_MAX];
    size_t document_count;
    const json_t *objects[OBJECTS_MAX];
    size_t object_count;
};

static hl_status add_object(struct manifest *m, const json_t *object)
{
    if (m->object_count == OBJECTS_MAX)
        return hl_fail(HL_EINVAL, "the manifest has more than %d objects", OBJECTS_MAX);
    m->objects[m->object_count++] = object;
    return HL_OK;
}

static hl_status add_document(struct manifest *m, struct hl_yaml *document)
{
    const json_t *root = hl_yaml_root(document), *item;
    const char *kind = json_string_value(json_object_get(root, "kind"));
    size_t i;
    m->documents[m->document_count++] = document;
    if (json_is_null(root))
        return HL_OK;
    if (kind == NULL || strcmp(kind, "List") != 0)
        return add_object(m, root);
    json_array_foreach (json_object_get(root, "items"), i, item)
        HL_TRY(add_object(m, item));
    return HL_OK;
}

/* Reads one document after the other. Lines before a document are left empty, so that positions in
 * it are right. */
static hl_status read_manifest(const char *path, char *text, size_t len, struct manifest *out)
{
    char *end = text + len, *line = text, *next;
    while (line < end) {
        struct hl_yaml *document = NULL;
        for (next = line; next < end && (next == line || strncmp(next, "---", 3) != 0);) {
            char *eol = memchr(next, '\n', (size_t)(end - next));
            next = eol != NULL ? eol + 1 : end;
        }
        if (out->document_count == OBJECTS_MAX)
            return hl_fail(HL_EINVAL, "%s has more than %d documents", path, OBJECTS_MAX);
        HL_TRY(hl_yaml_parse(path, text, (size_t)(next - text), &document));
        HL_TRY(add_document(out, document));
        for (char *p = text; p < next; p++)
            *p = *p == '\n' ? '\n' : ' ';
        line = next;
    }
    return HL_OK;
}

static hl_status lint_manifest(const char *path, enum hl_ranktable_chip chip, struct hl_buf *text,
                               struct hl_ranktable_report *out)
{
    struct manifest m = {0};
    hl_status st = read_manifest(path, text->data, text->len, &m);
    if (st == HL_OK)
        st = hl_ranktable_lint_job(chip, m.objects, m.object_count, out);
    for (size_t i = 0; i < m.document_count; i++)
        hl_yaml_free(m.documents[i]);
    return st;
}

/* Prints one sentence per line, each after the file's name. */
static void print_report(const char *path, bool of_job, const struct hl_ranktable_report *r)
{
    for (char *line = r->text, *save = NULL; (line = strtok_r(line, "\n", &save)) != NULL;
         line = NULL)
        printf("%s: %s\n", path, line);
    if (r->faults == 0 && of_job)
        printf("%s: no fault\n", path);
    else if (r->faults == 0 && r->servers > 0)
        printf("%s: no fault; %zu servers, %zu devices\n", path, r->servers, r->devices);
    else if (r->faults == 0)
        printf("%s: no fault; %zu devices\n", path, r->devices);
}

static hl_status lint_file(const char *path, const struct lint_args *a, size_t *faults)
{
    struct hl_ranktable_report r = {0};
    struct hl_buf text = HL_BUF(HL_RANKTABLE_TEXT_MAX);
    enum hl_ranktable_chip chip;
    if (a->chip[0] == '\0')
        return hl_fail(HL_EINVAL, "lint: --chip a2|a3|a5 is missing");
    HL_TRY(hl_ranktable_chip_parse(a->chip, &chip));
    hl_status st = hl_file_read(strcmp(path, "-") == 0 ? "/dev/stdin" : path, &text);
    hl_buf_append(&text, "", 0);
    if (st == HL_OK)
        st = a->job ? lint_manifest(path, chip, &text, &r)
                    : hl_ranktable_lint(chip, text.data, text.len, &r);
    if (st == HL_OK)
        print_report(path, a->job, &r);
    *faults = r.faults;
    hl_ranktable_report_fini(&r);
    hl_buf_fini(&text);
    return st;
}

/* Exit status: 0 no faults, 1 faults or unreadable, 2 wrong options. */
static int run_lint(int argc, char **argv)
{
    struct lint_args a = {0};
    size_t faults = 0;
    int rest = 0;
    hl_status st =
        hl_args_parse(lint_rows, HL_ARRAY_LEN(lint_rows),
                      "helios-ranktable lint FILE --chip a2|a3|a5 [--job]", argc, argv, &a, &rest);
    if (st == HL_OK && rest != 1)
        st = hl_fail(HL_EINVAL, "lint: give exactly one FILE, - for standard input");
    if (st == HL_OK)
        st = lint_file(argv[0], &a, &faults);
    int status = program_exit("helios-ranktable", st);
    hl_args_fini(lint_rows, HL_ARRAY_LEN(lint_rows), &a);
    return status == 0 && faults > 0 ? 1 : status;
}

/* ---- the daemon ------------------------------------------------------------------------------ */

struct program {
    struct args args;
    struct hl_loop *loop;
    struct hl_kube_config *config;
    struct hl_ranktabled *daemon;
    struct hl_metrics *metrics;
};

static hl_status ranktable_gauges(void *arg, struct hl_buf *out)
{
    struct program *p = arg;
    return p->daemon != NULL ? hl_ranktabled_gauges(p->daemon, out) : HL_OK;
}

/* Checked because the label becomes part of list URLs without escaping. */
static hl_status check_label(const char *value)
{
    static const char letters[] =
        "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.";
    size_t n = strlen(value);
    if (n > 0 && n <= 63 && strspn(value, letters) == n && strchr("-_.", value[0]) == NULL &&
        strchr("-_.", value[n - 1]) == NULL)
        return HL_OK;
    return hl_fail(HL_EINVAL,
                   "--label-value: '%.64s' is not a value of a label: 1 to 63 letters, digits, and "
                   "- _ . between them",
                   value);
}

/* Checked because the namespace becomes part of URLs too. */
static hl_status check_namespace(const char *ns)
{
    size_t n = strlen(ns);
    if (n <= 63 && strspn(ns, "abcdefghijklmnopqrstuvwxyz0123456789-") == n)
        return HL_OK;
    return hl_fail(HL_EINVAL,
                   "--namespace: '%.64s' is not the name of a namespace: at most 63 small letters, "
                   "digits and -",
                   ns);
}

static hl_status start_daemon(struct program *p)
{
    const struct args *a = &p->args;
    char host[256] = "", identity[320];
    struct hl_ranktabled_opts o = {
        .loop = p->loop,
        .config = p->config,
        .rules = {.label_value = a->label_value,
                  .super_pod_servers = (uint32_t)a->super_pod_servers},
        .ns = a->ns,
        .batch_ms = (int)a->batch_ms,
        .window_s = (int)((a->watch_window_ms + 999) / 1000),
        .identity = identity,
        .lease_s = (int)((a->lease_ms + 999) / 1000),
        .dry_run = a->dry_run,
        .lease_ns = !a->leader_elect || a->dry_run  ? ""
                    : a->lease_namespace[0] != '\0' ? a->lease_namespace
                                                    : p->config->ns,
    };
    HL_TRY(check_label(a->label_value));
    HL_TRY(check_namespace(a->ns));
    gethostname(host, sizeof(host) - 1);
    snprintf(identity, sizeof(identity), "%s_%d", host, (int)getpid());
    HL_TRY(hl_ranktable_format_parse(a->json, &o.rules.format));
    return hl_ranktabled_start(&o, &p->daemon);
}

static hl_status write_ready_file(const struct program *p)
{
    char text[512];
    if (p->args.ready_file[0] == '\0')
        return HL_OK;
    int n = snprintf(text, sizeof(text), "{\"pid\":%d,\"metrics\":\"%s\"}\n", (int)getpid(),
                     hl_metrics_address(p->metrics));
    return hl_file_write_atomic(p->args.ready_file, text, (size_t)n);
}

static hl_status start_program(struct program *p, int argc, char **argv)
{
    int rest = 0;
    struct args *a = &p->args;
    for (int i = 0; i < argc; i++)
        if (strcmp(argv[i], "--version") == 0) {
            puts("helios-ranktable " HELIOS_VERSION);
            return HL_ECANCELED;
        }
    HL_TRY(hl_args_parse(rows, HL_ARRAY_LEN(rows),
                         "helios-ranktable [options], or: helios-ranktable lint --help", argc, argv,
                         a, &rest));
    if (rest > 0)
        return hl_fail(HL_EINVAL, "unknown option '%.64s'; see --help", argv[0]);
    HL_TRY(set_log(a));
    tell_ignored(&a->ignored);
    HL_TRY(hl_kube_config_load(
        &(struct hl_kube_source){.path = a->kubeconfig, .context = a->context, .master = a->master},
        &p->config));
    HL_TRY(hl_loop_create(&p->loop));
    HL_TRY(hl_loop_stop_on_signals(p->loop));
    HL_TRY(start_daemon(p));
    HL_TRY(hl_metrics_start(
        &(struct hl_metrics_opts){
            .listen = a->metrics_listen, .loop = p->loop, .gauges = ranktable_gauges, .arg = p},
        &p->metrics));
    hl_info("watching server=%s format=%s label=%s", p->config->server, a->json, a->label_value);
    return write_ready_file(p);
}

int main(int argc, char **argv)
{
    struct program p = {0};
    if (argc > 1 && strcmp(argv[1], "lint") == 0)
        return run_lint(argc - 2, argv + 2);
    program_begin();
    mallopt(M_ARENA_MAX, 1); /* a dozen threads that mostly wait: one heap has fewer holes */
    mallopt(M_MXFAST, 0);    /* else each TLS record makes malloc join all fast chunks */
    char **args = two_dashes(argc, argv);
    hl_status st = args != NULL ? start_program(&p, argc - 1, args + 1) : HL_ENOMEM;
    if (st == HL_OK)
        st = hl_loop_run(p.loop);
    int status = program_exit("helios-ranktable", st);
    hl_metrics_stop(p.metrics);
    hl_ranktabled_stop(p.daemon);
    hl_loop_destroy(p.loop);
    hl_kube_config_free(p.config);
    hl_args_fini(rows, HL_ARRAY_LEN(rows), &p.args);
    return status;
}
