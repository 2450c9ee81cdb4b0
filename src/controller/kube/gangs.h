/* controller/kube/gangs.h - jobs whose containers run on Kubernetes: one Volcano Job for each
 * attempt.
 *
 * Level-triggered: watchers mirror the API server's Jobs and pods. A reconciliation compares them
 * with what the job's state requires, tells the state machine what happened to pods, and sends one
 * request at a time for a job until both agree. Nothing else is stored, so a restarted Controller
 * finds its gangs again by their label.
 *
 * Owns:    client, watchers, requests, the spooled logs. The Controller and its jobs are borrowed.
 * Threads: the Controller's loop; requests are made and logs fetched in the loop's worker threads.
 * Errors:  at start HL_ENOENT, HL_EINVAL (kubeconfig). Later ones are logged, or end the attempt
 *          with the API server's message.
 * Units:   ms.
 * Limits:  a slice of a log is 1 MiB; the logs of 256 ranks are kept when a gang is deleted.
 */
#ifndef HL_CONTROLLER_KUBE_GANGS_H
#define HL_CONTROLLER_KUBE_GANGS_H

struct job_executor;

/* If no kube.* option enables it (hl_controller_opts.kube), it still recognises its stored jobs,
 * but says that it can't run them. */
extern const struct job_executor kube_executor;

#endif
