/* controller/kube/gangs_private.h - shared by the files of this folder.
 * From top to bottom: executor.c (for jobs), engine.c (what starts gangs), watch.c and nodes.c
 * (what exists), kubelets.c, waiting.c, gangs.c (decisions), calls.c (requests), logs.c, plan.c.
 *
 * Threads: the Controller's loop; requests run in libuv's pool, watches in threads of their own
 *          (kube/watcher.h).
 */
#ifndef HL_CONTROLLER_GANGS_PRIVATE_H
#define HL_CONTROLLER_GANGS_PRIVATE_H

#include <limits.h>
#include <pthread.h>
#include <stdatomic.h>
#include <uthash.h>

#include "base/id.h"
#include "controller/core.h"
#include "controller/executor.h"
#include "controller/kube/gangs.h"
#include "core/job/gang.h"
#include "kube/table.h"
#include "kube/watcher.h"
#include "volcano/gang.h"
#include "volcano/podgroup.h"

#define GANG_MAP_MAX   (HL_VOLCANO_NAME_MAX + 16)
#define GANG_FORCE_MAX 256 /* pods that one call deletes; the next call takes others */

/* What is remembered about a job between reconciliations: job.gang. */
struct gang {
    char id[HL_ID_TEXT_LEN + 1]; /* label of its objects */
    bool busy;                   /* a request is in progress */
    bool stale;                  /* its objects changed since they were last reconciled */
    bool restored;               /* restored, and not yet reconciled by this Controller */
    int created, deleted;        /* attempt whose Job we created, deleted; 0 = none */
    int seen;                    /* attempt whose Job the watch has shown, or the record names */
    int maps_sent;               /* attempt whose ConfigMaps were made */
    int table_sent;              /* attempt whose rank table was written */
    int logs_kept;               /* attempt that succeeded and whose logs were fetched */
    unsigned tries;              /* failures in a row */
    uint64_t not_before_ns;
    char problem[200];  /* error of the last request; "" = it succeeded */
    uint64_t gone_ns;   /* while stopping: since when its Job has been gone; 0 = it is not gone */
    uint64_t forced_ns; /* when its pods were last deleted without grace */
    /* since when its Job has been at an end that no pod explains; 0 = not so */
    uint64_t trouble_ns;
};

/* How far a rank's log was fetched. The API can only resume at whole seconds. */
struct spool {
    char key[HL_JOB_ID_MAX + 32]; /* JOB.ATTEMPT.RANK */
    char second[64]; /* second of the last line, with its time zone; "" = nothing yet */
    unsigned lines;  /* lines of that second that we already have */
    bool begun;      /* false: the file's content is from an earlier Controller */
    UT_hash_handle hh;
};

struct kube_node;

/* What starts gangs: engine.c. */
struct gang_engine {
    hl_status (*watch)(struct gangs *g); /* starts watching, once the engine is decided */
    bool is_known;                       /* from the option, or from the last start */
    bool is_decided;                     /* decided, and its objects are watched */
    bool is_asked;
    unsigned tries;
    uint64_t not_before_ns;
    char problem[512]; /* why it is unknown; "" = not asked yet */
    char dir[PATH_MAX];
};

struct gangs {
    struct hl_controller *c;
    struct hl_kube_config *config;
    struct hl_kube *api;
    atomic_bool cancel;
    struct hl_kube_watcher *jobs_watch, *pods_watch, *nodes_watch, *groups_watch, *topologies_watch;
    struct kube_node *nodes; /* all nodes of the cluster, by name */
    int64_t node_lost_ms;    /* default for jobs that don't say */
    struct gang_engine engine;
    struct hl_gang_root root;        /* root objects of gangs: Volcano Jobs, or PodGroups */
    struct hl_kube_table jobs;       /* roots of gangs in our namespace, by name */
    struct hl_kube_table pods;       /* by name, of our namespace */
    struct hl_kube_table groups;     /* PodGroups, by the name of their Volcano Job */
    struct hl_kube_table topologies; /* NodeResourceTopologies, by the name of the node */
    unsigned calls;                  /* in flight */
    void (*answered)(struct job *j); /* called when a request of the job has ended */
    bool reconcile_posted;           /* a reconciliation of what is stale is posted */
    struct hl_volcano_opts volcano;
    char *ns, *queue, *device, *policy, *near_key, *host_paths, *table_label, *accelerator;
    const char *podgroups; /* of hl_gang_versions */
    char logs[PATH_MAX];   /* directory */
    pthread_mutex_t spool_lock;
    struct spool *spools;
};

/* data_locality.c: for each container, the nodes that hold what its ranks will read; free(). The
 * names belong to the nodes. NULL: out of memory. */
struct hl_volcano_nodes *gangs_preferred_nodes(const struct job *j);

/* nodes.c: callbacks of the watch on nodes. */
void nodes_listed(void *arg, const json_t *objects, unsigned page);
void nodes_changed(void *arg, enum hl_kube_event type, json_t *object);
/* Whether the pod's node counts as lost, and why. */
bool gang_node_lost(const struct job *j, const json_t *pod, char *why, size_t cap);
/* Forgets removed nodes on which no pod of ours is. */
void nodes_prune(struct gangs *g);
void nodes_free(struct gangs *g);

/* kubelets.c */
/* What is known about the kubelets, for pods with several containers. */
void gangs_kubelets(const struct gangs *g, struct hl_volcano_kubelets *out);
/* Writes why a pod's ranks may be spread over several NUMA nodes into cap bytes; "" = they are not,
 * it is unknown, or it does not matter. */
void gang_pod_spreads(const struct job *j, const json_t *pod, char *out, size_t cap);

/* engine.c */
/* option: kube.podgroups. Starts watching, or asks which engine there is. */
hl_status engine_start(struct gangs *g, const char *option, const char *state_dir) HL_CHECK;
void engine_tick(struct gangs *g);
/* HL_EUNAVAIL while the engine is unknown. */
hl_status engine_check(const struct gangs *g) HL_CHECK;

/* waiting.c */
/* The Volcano Job that made a PodGroup; NULL = none did. Borrowed. */
const char *gang_of_group(const json_t *group);
/* Writes why the gang is not up, according to its objects, into cap bytes; "" = they don't say. */
void gang_waits_for(const struct job *j, char *out, size_t cap);

/* calls.c: each makes one request for a job; gangs->answered is called when it is done. */
void gang_create(struct job *j);
/* uid: of the Job that will own the ConfigMaps. */
void gang_put_maps(struct job *j, const char *uid);
/* Keeps the logs of the attempt's pods. */
void gang_delete(struct job *j, int attempt);
void gang_put_table(struct job *j, const char *table);
/* Deletes pods of the attempt without waiting for their kubelets, at most GANG_FORCE_MAX. */
void gang_force(struct job *j, const json_t *const *pods, size_t count);
/* Keeps the logs of a succeeded attempt's pods for the time after Kubernetes drops them. */
void gang_keep_logs(struct job *j);

/* plan.c */
/* Plans which rank is in which pod; HL_EINVAL: this job can't run on Kubernetes. */
hl_status gangs_plan(const struct gangs *g, const struct hl_job *spec, const char *job_id,
                     int attempt, struct hl_plan **out) HL_CHECK;
/* The plan of an attempt, also of earlier ones; the caller frees *made (NULL before). NULL, with a
 * recorded failure, if it can't be made. */
const struct hl_plan *gangs_plan_of(const struct job *j, int attempt, struct hl_plan **made);

/* gangs.c */
/* Periodic work for all jobs. */
void gangs_tick(struct hl_controller *c);
/* Tells the state machine what the pods' states mean, then calls gang_apply. */
void gang_reconcile(struct job *j);
/* Creates or deletes what the job's state requires; sends no events. */
void gang_apply(struct job *j);
/* Jobs and pods have been listed. */
bool gangs_synced(const struct gangs *g);
/* The job to which an object belongs; NULL if it is not ours. */
struct job *gang_owner(struct gangs *g, const json_t *object);
/* The pod of a container of the plan; NULL if we have none. Borrowed. */
const json_t *gang_pod(const struct job *j, int index);
void gang_pod_read(const struct job *j, int index, const json_t *pod, struct hl_volcano_pod *out);

/* watch.c */
hl_status gangs_start(struct hl_controller *c, const struct hl_kube_opts *opts,
                      struct gangs **out) HL_CHECK;
/* NULL is fine. Requests in progress end first. */
void gangs_stop(struct gangs *g);
const char *gangs_server(const struct gangs *g);
/* Writes "ready", or why the API server's objects are unknown, into cap bytes. */
void gangs_state(const struct gangs *g, char *out, size_t cap);
/* Writes what starts gangs into cap bytes; "" = unknown. */
void gangs_engine(const struct gangs *g, char *out, size_t cap);
/* Writes which feature is missing, and why, into cap bytes; "" = none. */
void gangs_warning(const struct gangs *g, char *out, size_t cap);
/* Writes why the watches get no news into cap bytes; "" = they do. */
void gangs_problem(const struct gangs *g, char *out, size_t cap);

/* logs.c */
/* The job was forgotten: its fetched logs will be removed, too. */
void gangs_forget(const struct job *j);

/* A rank's log: its name here, and the source of its lines. */
struct gang_log {
    const char *job, *pod;
    int attempt, rank, local_rank;
    bool shared; /* all ranks of the pod share the container */
};

/* Fetches new lines, in a worker thread. */
hl_status gang_log_fetch(struct gangs *g, const struct gang_log *log) HL_CHECK;
/* Path of the fetched log. */
void gang_log_path(const struct gangs *g, const char *job, int attempt, int rank,
                   char out[PATH_MAX]);
/* Answers the call; pod: the rank's pod, NULL = it is gone. */
void gang_log_read(struct job *j, struct hl_rpc_call *call, const json_t *pod, int local_rank,
                   const struct log_query *query);
/* At the end: forgets how far logs were fetched. */
void gang_logs_fini(struct gangs *g);

#endif
