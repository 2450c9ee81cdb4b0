/* Which keys of a job file an executor cannot honour. */
#include <string.h>

#include "core/job_private.h"

#define IMAGE_PYTHON                                                                               \
    "on Kubernetes the image brings its own Python; remove the key and begin command with the "    \
    "interpreter's path in the image"

#define VOLCANO_PLACES                                                                             \
    "on Kubernetes Volcano chooses the nodes and knows no such rule; remove the key, or submit "   \
    "to a "                                                                                        \
    "cluster whose Agents run the jobs"

#define VOLCANO_QUEUE                                                                              \
    "on Kubernetes Volcano has the queue (option kube.queue of helios-controller); remove the key"

/* Keys that one executor cannot honour: why, and what to do instead. */
static const struct {
    const char *name;
    enum hl_job_executor executor;
    const char *instead;
} unsupported[] = {
    {"dockerImage", HL_JOB_EXECUTOR_PROCESS,
     "this cluster runs ranks as processes, without images; remove the key and give command, or "
     "submit to a cluster that runs jobs on Kubernetes"},
    {"venv", HL_JOB_EXECUTOR_KUBERNETES, IMAGE_PYTHON},
    {"conda", HL_JOB_EXECUTOR_KUBERNETES, IMAGE_PYTHON},
    {"python", HL_JOB_EXECUTOR_KUBERNETES, IMAGE_PYTHON},
    {"mounts", HL_JOB_EXECUTOR_PROCESS,
     "this cluster runs ranks as processes, which see the node's own files; remove the key and use "
     "the nodes' paths, or submit to a cluster that runs jobs on Kubernetes"},
    {"queue", HL_JOB_EXECUTOR_KUBERNETES, VOLCANO_QUEUE},
    {"priority", HL_JOB_EXECUTOR_KUBERNETES, VOLCANO_QUEUE},
    {"recovery.mode", HL_JOB_EXECUTOR_KUBERNETES,
     "on Kubernetes a gang is restarted as a whole; remove the key and give restarts"},
    {"resources.gpu_memory", HL_JOB_EXECUTOR_KUBERNETES, VOLCANO_PLACES},
    {"resources.nic_class", HL_JOB_EXECUTOR_KUBERNETES, VOLCANO_PLACES},
    {"placement.tensor", HL_JOB_EXECUTOR_KUBERNETES, VOLCANO_PLACES},
    {"placement.pipeline", HL_JOB_EXECUTOR_KUBERNETES, VOLCANO_PLACES},
    {"placement.data", HL_JOB_EXECUTOR_KUBERNETES, VOLCANO_PLACES},
    {"placement.gang", HL_JOB_EXECUTOR_KUBERNETES, VOLCANO_PLACES},
};

const char *hl_job_unsupported(const char *key, enum hl_job_executor executor)
{
    for (size_t i = 0; i < HL_ARRAY_LEN(unsupported); i++)
        if (unsupported[i].executor == executor && strcmp(unsupported[i].name, key) == 0)
            return unsupported[i].instead;
    return NULL;
}
