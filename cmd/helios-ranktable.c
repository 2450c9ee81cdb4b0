/* helios-ranktable: rank tables for the jobs of a Kubernetes cluster. Takes hccl-controller's
 * flags, with one dash or two. */
#include <malloc.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "conf/options.h"
#include "http/metrics.h"
#include "os/file.h"
#include "os/loop.h"
#include "program/daemon.h"
#include "ranktabled/ranktabled.h"

struct args {
    char *kubeconfig, *context, *master, *json, *label_value;
    int64_t super_pod_servers;
    uint64_t batch_ms, watch_window_ms;
    bool leader_elect;
    char *lease_namespace, *metrics_listen, *ready_file;
    bool log_to_stderr;
    char *log_dir, *log_file;
    int64_t stderr_threshold, verbosity;
};

#define AT(field) HL_OPTION_FIELD(struct args, field)

static const struct hl_option rows[] = {
    {"kubeconfig", "--kubeconfig", "",
     "A kubeconfig; empty for $KUBECONFIG, ~/.kube/config, or what a pod is given.", HL_OPT_PATH, 0,
     0, NULL, AT(kubeconfig)},
    {"context", "--context", "", "Its context; empty for the current one.", HL_OPT_STRING, 0, 0,
     NULL, AT(context)},
    {"master", "--master", "", "Address of the API server, instead of the kubeconfig's.",
     HL_OPT_STRING, 0, 0, NULL, AT(master)},
    {"json", "--json", "v2", "Format of the tables.", HL_OPT_ENUM, 0, 0, "v1|v2|1.2|2.0", AT(json)},
    {"label_value", "--label-value", "ascend-910",
     "Value of the label ring-controller.atlas on jobs, pods and ConfigMaps.", HL_OPT_STRING, 0, 0,
     NULL, AT(label_value)},
    {"super_pod_servers", "--super-pod-servers", "0",
     "Format 1.2, where pods don't say their super pod: servers in each; 0 for one super pod.",
     HL_OPT_INT, 0, 100000, NULL, AT(super_pod_servers)},
    {"batch", "--batch", "100ms", "How long changes are gathered before tables are made.",
     HL_OPT_DURATION, 10, 10000, NULL, AT(batch_ms)},
    {"watch_window", "--watch-window", "0",
     "How long one watch lasts; 0 for 5 to 10 minutes by chance.", HL_OPT_DURATION, 0, 3600000,
     NULL, AT(watch_window_ms)},
    {"leader_elect", "--leader-elect", "true",
     "Write only while the Lease helios-ranktable is held, so that several replicas may run.",
     HL_OPT_BOOL, 0, 0, NULL, AT(leader_elect)},
    {"lease_namespace", "--lease-namespace", "",
     "Namespace of the Lease; empty for the pod's or the context's.", HL_OPT_STRING, 0, 0, NULL,
     AT(lease_namespace)},
    {"metrics_listen", "--metrics-listen", "",
     "host:port of /metrics and /healthz; empty for none.", HL_OPT_STRING, 0, 0, NULL,
     AT(metrics_listen)},
    {"ready_file", "--ready-file", "", "Written when the program serves.", HL_OPT_PATH, 0, 0, NULL,
     AT(ready_file)},
    {"logtostderr", "--logtostderr", "true", "Log to stderr, not to a file.", HL_OPT_BOOL, 0, 0,
     NULL, AT(log_to_stderr)},
    {"log_dir", "--log_dir", "", "Directory of the log, helios-ranktable.log in it.", HL_OPT_PATH,
     0, 0, NULL, AT(log_dir)},
    {"log_file", "--log_file", "", "The log itself; counts before --log_dir.", HL_OPT_PATH, 0, 0,
     NULL, AT(log_file)},
    {"stderrthreshold", "--stderrthreshold", "2",
     "Accepted from hccl-controller's manifests; a log goes to one place.", HL_OPT_INT, 0, 3, NULL,
     AT(stderr_threshold)},
    {"v", "--v", "0", "Verbosity; 4 and more for debug lines.", HL_OPT_INT, 0, 10, NULL,
     AT(verbosity)},
};

/* "-v=5" and "-json v1" as klog and hccl-controller take them. */
static char **two_dashes(int argc, char **argv)
{
    char **out = calloc((size_t)argc + 1, sizeof(*out));
    for (int i = 0; out != NULL && i < argc; i++) {
        out[i] = argv[i];
        if (argv[i][0] == '-' && argv[i][1] != '-' && argv[i][1] != '\0' && argv[i][1] != 'h' &&
            asprintf(&out[i], "-%s", argv[i]) < 0)
            return NULL;
    }
    return out; /* for the life of the process */
}

static hl_status set_log(const struct args *a)
{
    char path[4096];
    hl_log_init("ranktable", a->verbosity >= 4 ? HL_LOG_DEBUG : HL_LOG_INFO);
    if (a->log_to_stderr || (a->log_file[0] == '\0' && a->log_dir[0] == '\0'))
        return HL_OK;
    snprintf(path, sizeof(path), a->log_file[0] != '\0' ? "%s%s" : "%s/%s",
             a->log_file[0] != '\0' ? a->log_file : a->log_dir,
             a->log_file[0] != '\0' ? "" : "helios-ranktable.log");
    if (freopen(path, "ae", stderr) == NULL)
        return hl_fail(HL_EINVAL, "--log_file: %s: %m", path);
    setvbuf(stderr, NULL, _IOLBF, 0);
    return HL_OK;
}

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

/* It stands in the addresses of lists as it is. */
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

static hl_status start_daemon(struct program *p)
{
    const struct args *a = &p->args;
    char host[256] = "", identity[320];
    struct hl_ranktabled_opts o = {
        .loop = p->loop,
        .config = p->config,
        .rules = {.label_value = a->label_value,
                  .super_pod_servers = (uint32_t)a->super_pod_servers},
        .batch_ms = (int)a->batch_ms,
        .window_s = (int)((a->watch_window_ms + 999) / 1000),
        .identity = identity,
        .lease_ns = !a->leader_elect                ? ""
                    : a->lease_namespace[0] != '\0' ? a->lease_namespace
                                                    : p->config->ns,
    };
    HL_TRY(check_label(a->label_value));
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
    if (argc > 0 && strcmp(argv[0], "--version") == 0) {
        puts("helios-ranktable " HELIOS_VERSION);
        return HL_ECANCELED;
    }
    HL_TRY(hl_args_parse(rows, HL_ARRAY_LEN(rows), "helios-ranktable [options]", argc, argv, a,
                         &rest));
    if (rest > 0)
        return hl_fail(HL_EINVAL, "unknown option '%.64s'; see --help", argv[0]);
    HL_TRY(set_log(a));
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
    mallopt(M_ARENA_MAX, 1); /* a dozen threads that mostly wait: one heap has fewer holes */
    mallopt(M_MXFAST, 0); /* each TLS record takes a buffer that has malloc join all fast chunks */
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
