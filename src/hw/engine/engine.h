/* hw/engine/engine.h - builds the command lines of docker and podman, and parses their output.
 *
 * Each rank is one container of the engine, so it has its own exit code, OOM evidence and log. It
 * is found again by its labels (HL_LABEL_*). Command lines are arrays for execve; no shell is
 * involved. Variables are passed by name, and their values in the command's own environment, so
 * that values do not show up in a list of processes. Exceptions are variables that would affect the
 * command itself.
 *
 * Owns:    nothing; texts live in the caller's arena.
 * Threads: any. Pure, except for hl_engine_find_*, which read files below the given root.
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

/* A tmpfs that is private to each container and removed with it; ranks find it as HELIOS_TMPFS. Its
 * only size limit is the container's memory limit. */
#define HL_ENGINE_TMPFS "/run/helios.rank"

/* Labels of every rank's container. The Agent's state directory is in two of them: its path in
 * owner (hl_engine_owner), and its identity in state (hl_dir_identity), by which other Agents know
 * it. */
#define HL_LABEL_CONTAINER "helios.container"
#define HL_LABEL_JOB       "helios.job"
#define HL_LABEL_ATTEMPT   "helios.attempt"
#define HL_LABEL_RANK      "helios.rank"
#define HL_LABEL_EPOCH     "helios.epoch" /* epoch of the Controller that ordered it */
#define HL_LABEL_OWNER     "helios.owner"
#define HL_LABEL_STATE     "helios.state"

enum hl_engine_kind {
    HL_ENGINE_NONE, /* ranks are plain processes */
    HL_ENGINE_DOCKER,
    HL_ENGINE_PODMAN,
};

/* HL_EUNSUPPORTED: no executor of this name. */
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
    HL_ENGINE_GPUS_PLAIN,   /* device files; the job mounts the driver's libraries */
    HL_ENGINE_GPUS_RUNTIME, /* --gpus, NVIDIA's runtime */
    HL_ENGINE_GPUS_CDI,     /* --device nvidia.com/gpu=UUID */
};

struct hl_engine_gpu {
    char pci[32];
    char uuid[64];
    int minor; /* of /dev/nvidiaN */
};

/* The devices of a container that exist on this machine. */
struct hl_engine_devices {
    enum hl_engine_gpus way;
    struct hl_engine_gpu gpus[HL_ENGINE_DEVICES_MAX];
    size_t gpu_count;
    char verbs[HL_ENGINE_DEVICES_MAX][32]; /* "uverbs0" */
    size_t verbs_count;
    char note[256]; /* wanted devices that are missing; "" = none */
};

/* Finds the container's GPUs with their UUIDs. root: "/proc/driver/nvidia/gpus". HL_ENOENT: the
 * driver does not know one; HL_EINVAL: two have the same UUID. foreign: the spec describes another
 * machine, so missing GPUs are only noted. */
hl_status hl_engine_find_gpus(const char *root, const struct hl_container_spec *spec, bool foreign,
                              struct hl_engine_devices *io) HL_CHECK;
/* Reads one GPU. HL_ENOENT: the driver does not know it. */
hl_status hl_engine_read_gpu(const char *root, const char *pci, struct hl_engine_gpu *out) HL_CHECK;
/* Finds the verbs devices of the container's NICs. root: "/sys/class/infiniband". Missing ones are
 * only noted. */
void hl_engine_find_verbs(const char *root, const struct hl_container_spec *spec,
                          struct hl_engine_devices *io);
/* Decides from the output of `docker info --format '{{json .}}'`; podman only has CDI. */
enum hl_engine_gpus hl_engine_gpus_of(enum hl_engine_kind kind, const char *info);

/* The inputs of the create command. */
struct hl_engine_create {
    enum hl_engine_kind kind;
    const struct hl_container_spec *spec;
    size_t rank;                         /* index in the spec */
    const char *owner, *state;           /* the values of these labels */
    const char *dir;                     /* directory of the container's record */
    const char *image;                   /* id that hl_container_spec.image resolved to */
    const struct hl_cpuset *cpus, *mems; /* NULL = not bound */
    const struct hl_engine_devices *devices;
    uint64_t log_max_bytes; /* 0 = the engine's default */
    bool memlock;           /* ask for unlimited locked memory */
    const struct hl_env *env;
};

/* "helios-1f2e3d4c-job-1.1.0-5" */
void hl_engine_container_name(const struct hl_container_spec *spec, const char *owner, int rank,
                              char *out, size_t size);
/* The owner mark of the containers of a state directory. */
void hl_engine_owner(const char *containers_dir, char out[16]);
/* Makes `docker create ...`, and the environment that it needs in addition to the caller's; the
 * caller may append to both. */
hl_status hl_engine_create_args(const struct hl_engine_create *c, struct hl_args *args,
                                struct hl_args *env) HL_CHECK;

/* Makes a `ps` of all containers with these labels ("KEY" or "KEY=VALUE"). It prints a line per
 * container with its id and the values of the labels `shown`; both lists end with NULL. */
void hl_engine_list_args(enum hl_engine_kind kind, const char *const *having,
                         const char *const *shown, struct hl_args *args);
/* Makes an immediate `rm` of containers, running or not; the caller appends their ids. */
void hl_engine_remove_args(enum hl_engine_kind kind, struct hl_args *args);

/* Append an argument. A failure is recorded in the arena and checked once at the end. */
void hl_args_add(struct hl_args *args, const char *text);
void hl_args_printf(struct hl_args *args, const char *format, ...) HL_PRINTF(2, 3);
/* Terminates the array with NULL; HL_ENOMEM: an addition has failed. */
hl_status hl_args_end(struct hl_args *args) HL_CHECK;

/* The state of a container, as the engine reports it. */
struct hl_engine_state {
    char id[80];
    bool created; /* created and never started */
    bool ended;
    int exit_code;
    int signal; /* signal that ended the rank, which the engine's init reports as 128 + signal; 0 =
                   none */
    bool oom;   /* the kernel OOM-killed a process inside */
    int pid;    /* 0 = none */
    const char *error; /* the engine's error at the start; "" = none */
};

#define HL_ENGINE_STATE_FORMAT                                                                     \
    "{{.Id}} {{.State.Status}} {{.State.ExitCode}} {{.State.OOMKilled}} {{.State.Pid}} "           \
    "{{.State.Error}}"
/* Parses one line of that format and modifies it. HL_EPROTO. */
hl_status hl_engine_state_parse(char *line, struct hl_engine_state *out) HL_CHECK;

/* An image as it exists on a node. */
struct hl_engine_image {
    char id[128];
    /* The name by which every node gets the same bytes: REPOSITORY@sha256:..., or the id if the
     * image did not come from a registry. */
    char pinned[512];
};

#define HL_ENGINE_IMAGE_FORMAT "{{.Id}} {{json .RepoDigests}}"
/* Parses one line of that format for the image of that name, and modifies it. HL_EPROTO. */
hl_status hl_engine_image_parse(const char *image, char *line,
                                struct hl_engine_image *out) HL_CHECK;
/* Whether the name identifies the bytes, but not where to get them. */
bool hl_engine_image_is_id(const char *image);

#endif
