/* controller/kube/gangs.h - jobs whose containers Kubernetes runs: one Volcano Job for each
 * attempt.
 *
 * Level-triggered: watchers keep what the API server has of Jobs and pods; a reconciliation
 * compares them with what the job's state wants, tells the state machine what happened to pods, and
 * has one request at a time sent for a job until both agree. Nothing else is remembered, so that a
 * Controller that was restarted finds its gangs again by their label.
 *
 * Owns:    client, watchers, requests, the spooled logs. The Controller and its jobs are borrowed.
 * Threads: the Controller's loop; requests and logs are fetched in the loop's worker threads.
 * Errors:  at start HL_ENOENT, HL_EINVAL (kubeconfig). Later ones are logged, or end the attempt
 *          with the API server's own words.
 * Units:   ms.
 * Limits:  a slice of a log is 1 MiB; 256 ranks' logs are kept when a gang is deleted.
 */
#ifndef HL_CONTROLLER_KUBE_GANGS_H
#define HL_CONTROLLER_KUBE_GANGS_H

struct job_executor;

/* Where no kube.* option asks for it (hl_controller_opts.kube), it knows its stored jobs and says
 * that it can't run them. */
extern const struct job_executor kube_executor;

#endif
