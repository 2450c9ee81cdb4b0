/* kube/plugin.h - credentials from another program: the `exec` of a kubeconfig's user, which
 * managed clusters use (aws eks get-token, gke-gcloud-auth-plugin, kubelogin).
 *
 * The program is run with KUBERNETES_EXEC_INFO and prints an ExecCredential on its standard output.
 * It can't ask questions, because its standard input is empty.
 * Source: kubernetes.io, "client-go credential plugins".
 *
 * Owns:    copies of all texts.
 * Threads: any; a run blocks for HL_KUBE_PLUGIN_MS at most.
 * Errors:  HL_EINVAL (the kubeconfig, or the program's output), HL_EUNSUPPORTED (a program that
 *          must ask questions, a client certificate), HL_ENOENT (no such program, with the
 *          kubeconfig's hint), HL_EPERM (it failed, with the last line it wrote), HL_ETIMEDOUT,
 *          HL_ECANCELED.
 * Units:   seconds.
 * Limits:  1 MiB of output.
 */
#ifndef HL_KUBE_PLUGIN_H
#define HL_KUBE_PLUGIN_H

#include <jansson.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"

#define HL_KUBE_PLUGIN_MS 30000

struct hl_kube_plugin;

/* exec: of a kubeconfig's user; dir: of the kubeconfig; cluster: passed to a program that asks for
 * it. */
hl_status hl_kube_plugin_create(const json_t *exec, const char *dir, const json_t *cluster,
                                struct hl_kube_plugin **out) HL_CHECK;
/* NULL is allowed. */
void hl_kube_plugin_free(struct hl_kube_plugin *p);
/* Runs the program to get a token and how long it is valid; 0: the program does not say. The
 * program is killed soon after `cancel` (NULL allowed) is not 0. */
hl_status hl_kube_plugin_token(const struct hl_kube_plugin *p, const atomic_bool *cancel, char *out,
                               size_t cap, int64_t *lasts_s) HL_CHECK;
/* Parses a program's output at that time. Pure. */
hl_status hl_kube_plugin_read(const char *text, int64_t now_s, char *out, size_t cap,
                              int64_t *lasts_s) HL_CHECK;

#endif
