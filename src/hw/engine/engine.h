/* hw/engine/engine.h - the command lines of docker and podman, and what their answers say.
 *
 * A rank is one container of the engine: it has exit code, evidence of memory and log of its own.
 * It is found again by its labels (HL_ENGINE_LABELS). Command lines are arrays for execve; no shell
 * sees them. Variables are passed by name, and their values as the command's own environment, so
 * that none shows in a list of processes, but for those that would change the command itself.
 *
 * Owns:    nothing; texts are the caller's arena's.
 * Threads: any. Pure, but for hl_engine_find_*, which read files below the root they are given.
 * Errors:  HL_EINVAL, HL_ENOENT name the field, the device or the image, and what to do; HL_ENOMEM.
 * Units:   bytes, milliseconds.
 * Limits:  HL_ENGINE_ARGS_MAX arguments.
 */
#ifndef HL_HW_ENGINE_ENGINE_H
#define HL_HW_ENGINE_ENGINE_H

#include "base/arena.h"
#include "hw/executor.h"
#include "os/process.h"

#define HL_ENGINE_ARGS_MAX    16384
#define HL_ENGINE_DEVICES_MAX 64

/* Memory of each container of its own, which goes with it; ranks find it as HELIOS_TMPFS. It has no
 * size but the container's limit. */
#define HL_ENGINE_TMPFS "/run/helios.rank"

/* Labels of every rank's container; owner is the Agent's state directory (hl_engine_owner). */
#define HL_LABEL_CONTAINER "helios.container"
#define HL_LABEL_JOB       "helios.job"
#define HL_LABEL_ATTEMPT   "helios.attempt"
#define HL_LABEL_RANK      "helios.rank"
#define HL_LABEL_EPOCH     "helios.epoch" /* of the Controller that ordered it */
#define HL_LABEL_OWNER     "helios.owner"

enum hl_engine_kind {
    HL_ENGINE_NONE, /* ranks are plain processes */
    HL_ENGINE_DOCKER,
    HL_ENGINE_PODMAN,
};

/* HL_EUNSUPPORTED: no executor has this name. */
hl_status hl_engine_kind_of(const char *name, enum hl_engine_kind *out) HL_CHECK;
const char *hl_engine_name(enum hl_engine_kind kind);

/* An argument array under construction. */
struct hl_args {
    struct hl_arena *arena;
    char **v;
    size_t count;
};

/* How the engine hands GPUs to a container. */
enum hl_engine_gpus {
    HL_ENGINE_GPUS_PLAIN,   /* device files; the driver's libraries come by mounts of the job */
    HL_ENGINE_GPUS_RUNTIME, /* --gpus, NVIDIA's runtime */
    HL_ENGINE_GPUS_CDI,     /* --device nvidia.com/gpu=UUID */
};

struct hl_engine_gpu {
    char pci[32];
    char uuid[64];
    int minor; /* of /dev/nvidiaN */
};

/* What a machine has of a container's devices. */
struct hl_engine_devices {
    enum hl_engine_gpus way;
    struct hl_engine_gpu gpus[HL_ENGINE_DEVICES_MAX];
    size_t gpu_count;
    char verbs[HL_ENGINE_DEVICES_MAX][32]; /* "uverbs0" */
    size_t verbs_count;
    char note[256]; /* what was wanted and is not there; "" = nothing */
};

/* The container's GPUs by UUID. root: "/proc/driver/nvidia/gpus". HL_ENOENT: the driver does not
 * know one; HL_EINVAL: two have one UUID. foreign: they are another machine's, so that what is
 * absent is a note. */
hl_status hl_engine_find_gpus(const char *root, const struct hl_container_spec *spec, bool foreign,
                              struct hl_engine_devices *io) HL_CHECK;
/* One of them. HL_ENOENT: the driver does not know it. */
hl_status hl_engine_read_gpu(const char *root, const char *pci, struct hl_engine_gpu *out) HL_CHECK;
/* The verbs devices of the container's NICs. root: "/sys/class/infiniband". What is absent is a
 * note. */
void hl_engine_find_verbs(const char *root, const struct hl_container_spec *spec,
                          struct hl_engine_devices *io);
/* From the text of `docker info --format '{{json .}}'`; podman has CDI alone. */
enum hl_engine_gpus hl_engine_gpus_of(enum hl_engine_kind kind, const char *info);

/* What the create command is made from. */
struct hl_engine_create {
    enum hl_engine_kind kind;
    const struct hl_container_spec *spec;
    size_t rank; /* index in the spec */
    const char *owner;
    const char *dir;                     /* of the container's record */
    const char *image;                   /* what hl_container_spec.image was found to be: an id */
    const struct hl_cpuset *cpus, *mems; /* NULL = not bound */
    const struct hl_engine_devices *devices;
    uint64_t log_max_bytes; /* 0 = the engine's own way */
    bool memlock;           /* ask for unlimited locked memory */
    const struct hl_env *env;
};

/* "helios-1f2e3d4c-job-1.1.0-5" */
void hl_engine_container_name(const struct hl_container_spec *spec, const char *owner, int rank,
                              char *out, size_t size);
/* Who the containers of a state directory belong to. */
void hl_engine_owner(const char *containers_dir, char out[16]);
/* `docker create ...`, and the environment that it needs beside the caller's; both may be added
 * to. */
hl_status hl_engine_create_args(const struct hl_engine_create *c, struct hl_args *args,
                                struct hl_args *env) HL_CHECK;

/* `ps` of all containers with these labels ("KEY" or "KEY=VALUE"), a line of its id and the values
 * of `shown` for each; both lists end with NULL. */
void hl_engine_list_args(enum hl_engine_kind kind, const char *const *having,
                         const char *const *shown, struct hl_args *args);
/* `rm` of containers whether they run or not, at once; their ids are to follow. */
void hl_engine_remove_args(enum hl_engine_kind kind, struct hl_args *args);

/* Append. A failure is the arena's, which is looked at once in the end. */
void hl_args_add(struct hl_args *args, const char *text);
void hl_args_printf(struct hl_args *args, const char *format, ...) HL_PRINTF(2, 3);
/* NULL behind the last; HL_ENOMEM: an addition has failed. */
hl_status hl_args_end(struct hl_args *args) HL_CHECK;

/* What an engine says of one container. */
struct hl_engine_state {
    char id[80];
    bool created; /* and never started */
    bool ended;
    int exit_code;
    int signal; /* that ended the rank: 128 + signal is how the engine's init tells it; 0 = none */
    bool oom;   /* the kernel killed something inside for want of memory */
    int pid;    /* 0 = none */
    const char *error; /* of the engine, at the start; "" = none */
};

#define HL_ENGINE_STATE_FORMAT                                                                     \
    "{{.Id}} {{.State.Status}} {{.State.ExitCode}} {{.State.OOMKilled}} {{.State.Pid}} "           \
    "{{.State.Error}}"
/* One line of that format, which is changed. HL_EPROTO. */
hl_status hl_engine_state_parse(char *line, struct hl_engine_state *out) HL_CHECK;

/* What an image is on a node. */
struct hl_engine_image {
    char id[128];
    /* The name by which every node gets the same bytes: REPOSITORY@sha256:..., or the id where the
     * image came from no registry. */
    char pinned[512];
};

#define HL_ENGINE_IMAGE_FORMAT "{{.Id}} {{json .RepoDigests}}"
/* One line of that format, about the image of that name; it is changed. HL_EPROTO. */
hl_status hl_engine_image_parse(const char *image, char *line,
                                struct hl_engine_image *out) HL_CHECK;
/* The name says which bytes, not where they are. */
bool hl_engine_image_is_id(const char *image);

#endif
