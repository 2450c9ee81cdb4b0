/* From above: executor.c (for jobs), engine.c (what starts gangs), watch.c and nodes.c (what there
 * is), kubelets.c, waiting.c, gangs.c (what is decided), calls.c (what is sent), logs.c, plan.c. */
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
#define GANG_FORCE_MAX 256 /* pods that one call deletes; the next one takes others */

/* What is remembered of a job between two reconciliations: job.gang. */
struct gang {
    char id[HL_ID_TEXT_LEN + 1]; /* label of its objects */
    bool busy;                   /* a request is under way */
    bool stale;                  /* its objects changed since they were last reconciled */
    bool restored;               /* and not yet reconciled by this Controller */
    int created, deleted;        /* attempt whose Job was created, deleted; 0 = none by us */
    int seen;                    /* attempt whose Job the watch has shown, or the record names */
    int maps_sent;               /* attempt whose ConfigMaps were made */
    int table_sent;              /* attempt whose rank table was written */
    int logs_kept;               /* attempt that succeeded and whose logs were fetched */
    unsigned tries;              /* failures in a row */
    uint64_t not_before_ns;
    char problem[200];   /* of the last request, "" = it went well */
    uint64_t gone_ns;    /* while stopping: since when its Job is gone; 0 = it is not */
    uint64_t forced_ns;  /* when its pods were last deleted without grace */
    uint64_t trouble_ns; /* since when its Job is at an end that no pod explains; 0 = it is not */
};

/* How far a rank's log was fetched: the API counts in seconds. */
struct spool {
    char key[HL_JOB_ID_MAX + 32]; /* JOB.ATTEMPT.RANK */
    char second[64];              /* of the last line, with its zone; "" = nothing yet */
    unsigned lines;               /* of that second that we have */
    bool begun;                   /* false: what the file has is of a Controller before us */
    UT_hash_handle hh;
};

struct kube_node;

/* Of what starts gangs: engine.c. */
struct gang_engine {
    hl_status (*watch)(struct gangs *g); /* begin to, once it is decided */
    bool is_known;                       /* by the option, or as it was at the last start */
    bool is_decided;                     /* and its objects are watched */
    bool is_asked;
    unsigned tries;
    uint64_t not_before_ns;
    char problem[512]; /* why it is not known; "" = not asked yet */
    char dir[PATH_MAX];
};

struct gangs {
    struct hl_controller *c;
    struct hl_kube_config *config;
    struct hl_kube *api;
    atomic_bool cancel;
    struct hl_kube_watcher *jobs_watch, *pods_watch, *nodes_watch, *groups_watch, *topologies_watch;
    struct kube_node *nodes; /* of the whole cluster, by name */
    int64_t node_lost_ms;    /* where the job does not say */
    struct gang_engine engine;
    struct hl_gang_root root;        /* of gangs: Volcano Jobs, or PodGroups */
    struct hl_kube_table jobs;       /* by name, of our namespace: roots of gangs */
    struct hl_kube_table pods;       /* by name, of our namespace */
    struct hl_kube_table groups;     /* PodGroups, by the name of their Volcano Job */
    struct hl_kube_table topologies; /* NodeResourceTopologies, by the name of the node */
    unsigned calls;                  /* under way */
    void (*answered)(struct job *j); /* a request of the job has ended */
    bool reconcile_posted;           /* a reconciliation of what is stale is posted */
    struct hl_volcano_opts volcano;
    char *ns, *queue, *device, *policy, *near_key, *host_paths, *table_label, *accelerator;
    const char *podgroups; /* of hl_gang_versions */
    char logs[PATH_MAX];   /* directory */
    pthread_mutex_t spool_lock;
    struct spool *spools;
};

/* data_locality.c: for each container the nodes that hold what its ranks will read, for free(),
 * with names of the nodes themselves; NULL: out of memory. */
struct hl_volcano_nodes *gangs_preferred_nodes(const struct job *j);

/* nodes.c: of the watch of nodes. */
void nodes_listed(void *arg, const json_t *objects, unsigned page);
void nodes_changed(void *arg, enum hl_kube_event type, json_t *object);
/* The pod's node counts as lost, and why. */
bool gang_node_lost(const struct job *j, const json_t *pod, char *why, size_t cap);
void nodes_free(struct gangs *g);

/* kubelets.c */
/* What is known of the kubelets, for pods of several containers. */
void gangs_kubelets(const struct gangs *g, struct hl_volcano_kubelets *out);
/* Why a pod's ranks may be on several NUMA nodes; "" = they are not, it is not known, or no matter.
 * Into cap bytes. */
void gang_pod_spreads(const struct job *j, const json_t *pod, char *out, size_t cap);

/* engine.c */
/* option: kube.podgroups. Begins to watch, or to ask what there is. */
hl_status engine_start(struct gangs *g, const char *option, const char *state_dir) HL_CHECK;
void engine_tick(struct gangs *g);
/* HL_EUNAVAIL while nothing is known of it. */
hl_status engine_check(const struct gangs *g) HL_CHECK;

/* waiting.c */
/* The Volcano Job that made a PodGroup, NULL = none did. Borrowed. */
const char *gang_of_group(const json_t *group);
/* Why the gang is not up, as its objects say; "" = they don't. Into cap bytes. */
void gang_waits_for(const struct job *j, char *out, size_t cap);

/* calls.c: one request of a job; gangs->answered when it is done. */
void gang_create(struct job *j);
/* uid: of its Job, which owns them. */
void gang_put_maps(struct job *j, const char *uid);
/* What the attempt's pods wrote is kept. */
void gang_delete(struct job *j, int attempt);
void gang_put_table(struct job *j, const char *table);
/* Deletes pods of the attempt without waiting for their kubelets, at most GANG_FORCE_MAX. */
void gang_force(struct job *j, const json_t *const *pods, size_t count);
/* What the pods of an attempt that succeeded wrote stays when Kubernetes drops them. */
void gang_keep_logs(struct job *j);

/* plan.c */
/* Which rank is in which pod; HL_EINVAL: Kubernetes can't have this job. */
hl_status gangs_plan(const struct gangs *g, const struct hl_job *spec, const char *job_id,
                     int attempt, struct hl_plan **out) HL_CHECK;
/* The plan of an attempt, earlier ones too; *made (NULL before) is the caller's to free. NULL and
 * a failure recorded: it can't be made. */
const struct hl_plan *gangs_plan_of(const struct job *j, int attempt, struct hl_plan **made);

/* gangs.c */
/* Once in a while, for all jobs. */
void gangs_tick(struct hl_controller *c);
/* Tell the state machine what its pods say, then gang_apply. */
void gang_reconcile(struct job *j);
/* Have made or deleted what the job's state wants; gives no events. */
void gang_apply(struct job *j);
/* Jobs and pods were listed. */
bool gangs_synced(const struct gangs *g);
/* The job of an object, NULL when it is not one of ours. */
struct job *gang_owner(struct gangs *g, const json_t *object);
/* The pod of a container of the plan, NULL when there is none that is ours. Borrowed. */
const json_t *gang_pod(const struct job *j, int index);
void gang_pod_read(const struct job *j, int index, const json_t *pod, struct hl_volcano_pod *out);

/* watch.c */
hl_status gangs_start(struct hl_controller *c, const struct hl_kube_opts *opts,
                      struct gangs **out) HL_CHECK;
/* NULL is fine. Requests under way end first. */
void gangs_stop(struct gangs *g);
const char *gangs_server(const struct gangs *g);
/* "ready", or why nothing is known of the API server's objects. Into cap bytes. */
void gangs_state(const struct gangs *g, char *out, size_t cap);
/* What starts gangs, "" = not known. Into cap bytes. */
void gangs_engine(const struct gangs *g, char *out, size_t cap);
/* What is done without, and why; "" = nothing. Into cap bytes. */
void gangs_warning(const struct gangs *g, char *out, size_t cap);
/* Why the watches know nothing new; "" = they do. Into cap bytes. */
void gangs_problem(const struct gangs *g, char *out, size_t cap);

/* logs.c */
/* The job was forgotten: its fetched logs go too, soon. */
void gangs_forget(const struct job *j);

/* A rank's log: what it is called here, and where its lines come from. */
struct gang_log {
    const char *job, *pod;
    int attempt, rank, local_rank;
    bool shared; /* the container is that of all ranks of the pod */
};

/* Fetch what is new of it. In a worker thread. */
hl_status gang_log_fetch(struct gangs *g, const struct gang_log *log) HL_CHECK;
/* Path of what was fetched. */
void gang_log_path(const struct gangs *g, const char *job, int attempt, int rank,
                   char out[PATH_MAX]);
/* Answers the call; pod: the rank's, NULL = it is gone. */
void gang_log_read(struct job *j, struct hl_rpc_call *call, const json_t *pod, int local_rank,
                   const struct log_query *query);
/* At the end: forget how far logs were fetched. */
void gang_logs_fini(struct gangs *g);

#endif
