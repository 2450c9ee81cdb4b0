/* The keys of a job file that an executor does not support. */
#include <string.h>

#include "core/job/job_private.h"

/* One bit per executor. */
#define BY(executor) (1u << HL_JOB_EXECUTOR_##executor)
#define BY_IMAGE     (BY(KUBERNETES) | BY(DOCKER) | BY(PODMAN))

#define IMAGE_PYTHON                                                                               \
    "the image brings its own Python; remove the key and begin command with the interpreter's "    \
    "path in the image"

#define VOLCANO_PLACES                                                                             \
    "on Kubernetes, Volcano chooses the nodes and has no such rule; remove the key, or submit "    \
    "to a cluster whose Agents run the jobs"

#define VOLCANO_QUEUE                                                                              \
    "on Kubernetes, Volcano keeps the queue; remove the key, and give kubernetes.queue or "        \
    "podTemplate.spec.priorityClassName there"

#define WHOLE_GANG                                                                                 \
    "ranks that run in images are not replaced, the gang is restarted as a whole; remove the key " \
    "and give restarts"

#define NO_PROCESS                                                                                 \
    "a rank that runs in an image can only be named, the node can't end its process; remove "      \
    "the key"

/* Keys that some executors do not support: why, and what to do instead. */
static const struct {
    const char *name;
    unsigned executors;
    const char *instead;
} unsupported[] = {
    {"dockerImage", BY(PROCESS),
     "this cluster runs ranks as processes, without images; remove the key and give command, or "
     "submit to a cluster that runs jobs by docker or podman, or on Kubernetes"},
    {"venv", BY_IMAGE, IMAGE_PYTHON},
    {"conda", BY_IMAGE, IMAGE_PYTHON},
    {"python", BY_IMAGE, IMAGE_PYTHON},
    {"mounts", BY(PROCESS),
     "this cluster runs ranks as processes, which see the node's own files; remove the key and use "
     "the nodes' paths, or submit to a cluster that runs jobs by docker or podman, or on "
     "Kubernetes"},
    {"parallelism.data_parallel_size.min", BY(KUBERNETES),
     "a Volcano Job has a fixed number of pods; give one size"},
    {"recovery.mode", BY_IMAGE, WHOLE_GANG},
    {"recovery.onHang", BY_IMAGE, NO_PROCESS},
    {"recovery.onSlow", BY_IMAGE, NO_PROCESS},
    {"queue", BY(KUBERNETES), VOLCANO_QUEUE},
    {"kubernetes", BY(PROCESS) | BY(DOCKER) | BY(PODMAN),
     "only Kubernetes has pods; remove the section, or submit to a cluster on Kubernetes"},
    {"priority", BY(KUBERNETES), VOLCANO_QUEUE},
    {"resources.gpu_memory", BY(KUBERNETES), VOLCANO_PLACES},
    {"resources.nic_class", BY(KUBERNETES), VOLCANO_PLACES},
    {"placement.tensor", BY(KUBERNETES), VOLCANO_PLACES},
    {"placement.pipeline", BY(KUBERNETES), VOLCANO_PLACES},
    {"placement.data", BY(KUBERNETES), VOLCANO_PLACES},
    {"placement.gang", BY(KUBERNETES), VOLCANO_PLACES},
};

bool hl_job_executor_has_image(enum hl_job_executor executor)
{
    return (BY_IMAGE & 1u << executor) != 0;
}

const char *hl_job_unsupported(const char *key, enum hl_job_executor executor)
{
    for (size_t i = 0; i < HL_ARRAY_LEN(unsupported); i++)
        if ((unsupported[i].executors & 1u << executor) != 0 &&
            strcmp(unsupported[i].name, key) == 0)
            return unsupported[i].instead;
    return NULL;
}
