/* kube/config.h - the address of the API server, and the credentials for it.
 *
 * They come from a kubeconfig (current-context, or the context named), or from what a pod is given:
 * environment, token, ca.crt, namespace.
 * Source: kubernetes.io, "Organizing Cluster Access Using kubeconfig Files" and "Accessing the
 * Kubernetes API from a Pod".
 *
 * Owns:    copies of all texts. Keys and tokens never reach a log.
 * Threads: load and free on one thread; hl_kube_config_token on any.
 * Errors:  HL_ENOENT (no file, and not in a pod), HL_EINVAL (FILE: what is missing or wrong),
 *          HL_EUNSUPPORTED (a password, impersonation), HL_EPERM; errors of kube/plugin.h.
 * Units:   none.
 * Limits:  files of 1 MiB.
 */
#ifndef HL_KUBE_CONFIG_H
#define HL_KUBE_CONFIG_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"

#define HL_KUBE_TOKEN_MAX 16384

struct hl_kube_plugin;

struct hl_kube_config {
    char *server;                  /* "https://host:port", no slash at the end */
    char *ns;                      /* the default namespace; never NULL */
    char *token;                   /* NULL, or the token itself */
    char *token_file;              /* NULL, or the file with it, which changes at run time */
    struct hl_kube_plugin *plugin; /* NULL, or the program that prints it */
    /* PEM; NULL = none. */
    char *ca, *cert, *key;
    char *tls_server_name; /* name in the certificate; NULL = the host of `server` */
    char *proxy;           /* URL; NULL = what HTTPS_PROXY and similar variables say */
    bool insecure;
};

struct hl_kube_source {
    const char *path;    /* of a kubeconfig; "" = $KUBECONFIG, ~/.kube/config or the pod's */
    const char *context; /* "" = the current one */
    const char *master;  /* "https://..." instead of the cluster's; "" = none */
    const char *pod_dir; /* NULL = /var/run/secrets/kubernetes.io/serviceaccount */
};

hl_status hl_kube_config_load(const struct hl_kube_source *from,
                              struct hl_kube_config **out) HL_CHECK;
/* Gets the present bearer token, "" if there is none, and the number of seconds after which to ask
 * again. A program that prints it is killed soon after `cancel` (NULL allowed) is not 0. */
hl_status hl_kube_config_token(const struct hl_kube_config *c, const atomic_bool *cancel, char *out,
                               size_t cap, int64_t *again_s) HL_CHECK;
/* Whether the token can be different when it is asked for again. */
bool hl_kube_config_token_changes(const struct hl_kube_config *c);
/* NULL is allowed. */
void hl_kube_config_free(struct hl_kube_config *c);

#endif
