/* helios.h - C ABI of libhelios: reading and writing shards of a model from inside a rank.
 *
 * A rank owns one (pp, tp, dp) position. Its share of a model version is a set of shards; a shard
 * is an immutable safetensors file (u64 little-endian header length, JSON header, tensor data) held
 * in the L3 pool, checksummed as a whole, per tensor and per MiB.
 *
 * A struct that begins with `size` may get further members at its end. The caller says which ones
 * it knows by setting size to the sizeof of the struct, which its _INIT macro does, and sets the
 * others to 0:
 *
 *     helios_options o = {HELIOS_OPTIONS_INIT, .path = "net"};
 *
 * A program may be older than the library, or newer while it leaves 0 what the library doesn't
 * know; else it is refused with HELIOS_EINVAL. Structs without `size` never change.
 *
 * Owns:    a client its connections and mappings; what a function hands out is released by the
 *          function named in its comment, nothing else.
 * Threads: a helios_client may be used from any thread; calls on it are serialised except
 *          helios_get, helios_get_range, helios_find and the helios_version_put's, which run in
 *          parallel. Never use a client after fork().
 * Errors:  functions return 0 or a negative HELIOS_E… code; helios_last_error() explains the last
 *          failure of the calling thread in one sentence (what, where, what to do). Outputs are
 *          untouched on failure.
 * Units:   sizes and offsets in bytes, times in milliseconds.
 * Limits:  names of models have 127 bytes, of parts 63.
 */
#ifndef HELIOS_HELIOS_H
#define HELIOS_HELIOS_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define HELIOS_API __attribute__((visibility("default")))

enum {
    HELIOS_OK = 0,
    HELIOS_EINVAL = -1,
    HELIOS_ENOENT = -2,
    HELIOS_EEXIST = -3,
    HELIOS_ENOMEM = -4,
    HELIOS_ENOSPC = -5,
    HELIOS_EIO = -6,
    HELIOS_ECORRUPT = -7,
    HELIOS_ETIMEDOUT = -8,
    HELIOS_EUNAVAIL = -9,
    HELIOS_EBUSY = -10,
    HELIOS_ESTALE = -11,
    HELIOS_ECANCELED = -12,
    HELIOS_EPERM = -13,
    HELIOS_EPROTO = -14,
    HELIOS_EUNSUPPORTED = -15,
    HELIOS_ECONFLICT = -16,
    HELIOS_EINTERNAL = -17
};

typedef struct helios_client helios_client;

/* Version of the library, "0.1.0". */
HELIOS_API const char *helios_version(void);
/* Why the calling thread's last helios call failed; "" if none did. Borrowed until its next call.
 */
HELIOS_API const char *helios_last_error(void);
HELIOS_API const char *helios_strerror(int code);

typedef struct helios_options {
    size_t size; /* HELIOS_OPTIONS_INIT */
    /* RPC address; NULL: $HELIOS_CONTROLLER. Where nothing names it or an L3 address either: that
     * of the local cluster ($HELIOS_STATE, else ~/.local/state/helios), else of the configuration.
     */
    const char *controller;
    const char *l3;   /* L3 address; NULL: $CONTROLLER_L3_CACHE_ADDRESS, else ask the Controller */
    const char *path; /* NULL or "auto"; "shm" or "net" force one way of reading */
    int timeout_ms;   /* deadline of one operation; 0: $HELIOS_READ_TIMEOUT, else 30000 */
    int retries; /* times a bad piece is fetched again; 0: $HELIOS_READ_RETRIES, else 3; -1 none */
} helios_options;

#define HELIOS_OPTIONS_INIT .size = sizeof(helios_options)

/* opts may be NULL. $HELIOS_DATA_CONNECT_TIMEOUT ("10s"; 3 s): how long one connection to another
 * host's pool may take, with RDMA and then TCP. Release with helios_close. HELIOS_EUNAVAIL when
 * nobody answers there. */
HELIOS_API int helios_open(const helios_options *opts, helios_client **out);
/* Reports accesses, drops every mapping handed out. NULL is fine. */
HELIOS_API void helios_close(helios_client *client);

typedef struct helios_id {
    uint64_t hi, lo;
} helios_id;

typedef struct helios_shard {
    helios_id id;
    char part[64]; /* "embedding", "layer-0003" (global layer number), "head", "optim-layer-0003" */
    uint64_t size; /* bytes, header included */
    uint32_t crc32;
    uint32_t tensors;
} helios_shard;

/* What a rank of another split calls a tensor of a shard. */
typedef struct helios_tensor_name {
    const char *stored;
    const char *shown;
} helios_tensor_name;

/* How a shard belongs to a position. */
typedef struct helios_shard_view {
    int pp, tp;  /* that it was stored for: what its header says */
    int renamed; /* 1: only the tensors in `names` belong to the position, under those names */
    int ep;      /* of experts, 0 otherwise; tp is then the rank within etp */
    size_t count;
    const helios_tensor_name *names;
} helios_shard_view;

typedef struct helios_shard_list {
    int64_t version;
    size_t count;
    helios_shard *shards;    /* in part order */
    const char *meta_json;   /* what rank 0 attached to the version; "{}" if nothing */
    const char *config_json; /* architecture and Hugging Face config of the model */
    const char *skipped;     /* version -1: newer ones with lost shards or damaged records, and what
                                each lacks; "" = none */
    const helios_shard_view *views; /* one for each shard */
    const char *left_out; /* what the version has and another tensor parallel size can't be given,
                             and why; "" = nothing */
} helios_shard_list;

/* The shards of model/version at (pp, tp). version -1: the newest visible one that is whole. A read
 * of a listed shard by helios_map or helios_map_private fails with HELIOS_ECORRUPT when what is
 * found has another size or checksum than the list says.
 * HELIOS_EINVAL when the model is the rank's own ($HELIOS_MODEL) and was imported with another
 * number of virtual stages than $VIRTUAL_PIPELINE_PARALLEL_SIZE. Release with
 * helios_shard_list_free. */
HELIOS_API int helios_request_shards(helios_client *client, const char *model, int64_t version,
                                     int pp, int tp, helios_shard_list **out);

/* Into how many pieces a model is split among ranks. */
typedef struct helios_split {
    size_t size;        /* HELIOS_SPLIT_INIT */
    int tp, pp;         /* tensor and pipeline parallel size; 0 = as the version has it */
    int virtual_stages; /* chunks per stage, 1 = none; 0 = as the version has it with as many stages
                         */
    int first_stage_layers; /* 0 = as the version has it with as many stages, else even */
    int last_stage_layers;
    int ep;  /* ranks that share the experts of a layer out; 0 = as the version has it */
    int etp; /* ranks that share an expert, a divisor of tp; 0 = as the version has it with as many
                tensor ranks, else tp */
} helios_split;

#define HELIOS_SPLIT_INIT .size = sizeof(helios_split)

/* The same for the position (pp, tp) of another split than the version was saved with; NULL: of
 * that one. Another number of stages copies no bytes: it changes which shards a position has
 * (`views` of the list) and how their tensors are called. For another tensor parallel size the
 * version is cut once, in the pool, into shards that are the first to go when room is needed; the
 * first reader waits for it, as long as it makes progress within the read timeout. Optimizer state
 * that data-parallel ranks share out and extra state of modules can't be cut: `left_out` says so.
 * HELIOS_EINVAL when layers or tensors can't be shared out like that, with the arithmetic;
 * HELIOS_EUNSUPPORTED for a version whose tensors were not recorded. */
HELIOS_API int helios_request_position(helios_client *client, const char *model, int64_t version,
                                       const helios_split *split, int pp, int tp,
                                       helios_shard_list **out);

/* A rank's place in its split. */
typedef struct helios_place {
    size_t size; /* HELIOS_PLACE_INIT */
    int pp, tp;
    int ep; /* whose experts it has, of each the slice of its rank within etp, tp % etp */
} helios_place;

#define HELIOS_PLACE_INIT .size = sizeof(helios_place)

/* The same for a model with experts; helios_request_position is that of ep 0. */
HELIOS_API int helios_request_place(helios_client *client, const char *model, int64_t version,
                                    const helios_split *split, const helios_place *place,
                                    helios_shard_list **out);
HELIOS_API void helios_shard_list_free(helios_shard_list *list);

typedef struct helios_names {
    size_t count;
    const char *const *names;
} helios_names;

/* What Megatron-core calls tensors under its naming `naming`, "local" or "te" (Transformer Engine).
 * The names given are those of whole layers, which say of each other whether a layer has experts or
 * latent attention; what stands before a layer ("model1.", "exp_avg.") is kept. The result has the
 * order of the names given; release it with helios_names_free. */
HELIOS_API int helios_names_under(const char *const *names, size_t count, const char *naming,
                                  helios_names **out);
/* The part that a rank of stage `pp` saves each of these tensors in, in their order: "embedding",
 * "layer-0003", … `config_json` is a model's (helios_shard_list) or a Hugging Face config.json of a
 * listed family, which says nothing of a split: one stage. The sizes that `split` says take the
 * place of those; NULL = none. Names that stand before a layer's ("exp_avg.") do not matter. */
HELIOS_API int helios_parts_of(const char *config_json, const helios_split *split, int pp,
                               const char *const *names, size_t count, helios_names **out);
HELIOS_API void helios_names_free(helios_names *names);

/* Size and CRC of a shard by id, from the pool's own index (no Controller involved). */
HELIOS_API int helios_find(helios_client *client, helios_id id, uint64_t *size, uint32_t *crc32);
/* Copy a whole shard into buf (size bytes as helios_find says, else HELIOS_EINVAL), verified. */
HELIOS_API int helios_get(helios_client *client, helios_id id, void *buf, size_t size);
/* Copy [offset, offset+size) verified: the started MiBs it touches are checked. */
HELIOS_API int helios_get_range(helios_client *client, helios_id id, uint64_t offset, void *buf,
                                size_t size);
/* Verified read-only view of a whole shard: the pool itself on the owner's host, a private copy
 * elsewhere. The bytes stay as they are until helios_unmap or helios_close, also when the shard is
 * removed. Writing through the view is a segmentation fault. */
HELIOS_API int helios_map(helios_client *client, helios_id id, const void **data, size_t *size);
/* The same for writing: the view is the caller's alone, and what is written to it is
 * the process's own copy, which the pool never sees. Memory is taken for the pages that are
 * written; for the whole shard where the bytes come from another host, or where the pool lies in
 * huge pages (hugetlbfs) of which none are left. */
HELIOS_API int helios_map_private(helios_client *client, helios_id id, void **data, size_t *size);
/* Ends a view of either kind. */
HELIOS_API int helios_unmap(helios_client *client, const void *data);

/* A shard's copy in the memory of one of this node's devices (L1), mapped read-only. */
typedef struct helios_device_view {
    size_t size;      /* HELIOS_DEVICE_VIEW_INIT */
    const void *host; /* where the CPU reaches it (an emulated device), else NULL */
    uint64_t address; /* on the device */
    uint64_t bytes;
    char device[96]; /* "emu:0", "cuda:1" */
} helios_device_view;

#define HELIOS_DEVICE_VIEW_INIT .size = sizeof(helios_device_view)

/* HELIOS_ENOENT when none of the node's devices has the shard (`helios shard copy ID --to
 * NODE:l1`) nor keeps what is mapped (agent.l1_keep), HELIOS_EUNAVAIL when the node has no store.
 * The copy stays until it is unmapped. */
HELIOS_API int helios_map_device(helios_client *client, helios_id id, helios_device_view *view);
HELIOS_API int helios_unmap_device(helios_client *client, const helios_device_view *view);

/* One tensor to be written. */
typedef struct helios_tensor {
    const char *name;
    const char *dtype;    /* safetensors name: F64 F32 F16 BF16 I64 I32 I16 I8 U8 BOOL */
    const int64_t *shape; /* `rank` extents, row-major, contiguous */
    int rank;
    const void *data;
} helios_tensor;

/* How much of the model's layout the parameters of a new version must keep: the names, shapes and
 * dtypes of the tensors of the model's oldest version, at every position (pp, tp). */
enum {
    HELIOS_LAYOUT_EXACT = 0,
    HELIOS_LAYOUT_ANY_DTYPE = 1, /* names and shapes */
    HELIOS_LAYOUT_UNCHECKED = 2
};

typedef struct helios_version_spec {
    size_t size; /* HELIOS_VERSION_SPEC_INIT */
    const char *model;
    const char *job; /* names the gang: the same on all of its ranks, and on no other gang's */
    int attempt;
    int64_t step;
    int rank; /* of this process in the gang, from 0 */
    int world;
    int layout;                /* HELIOS_LAYOUT_…, the same on all ranks */
    const helios_split *split; /* of this gang, the same on all ranks; NULL = the model's */
    /* NULL = the model has to exist. Else the first rank makes it when it is missing, with this
     * split (0 = 1), and it goes again unless the version becomes visible. */
    const helios_split *create;
    /* The Hugging Face config.json of that model, NULL = none: with it the model is read at every
     * split. The parameters have to be what it asks for. A model that exists has to have it. */
    const char *config_json;
} helios_version_spec;

#define HELIOS_VERSION_SPEC_INIT .size = sizeof(helios_version_spec)

/* Open a new version that becomes visible when `world` ranks have committed. Every rank of the gang
 * calls it with the same (model, job, attempt, step) and gets the same number. Each further call of
 * a rank is a further save and gives another version, at the same step too. HELIOS_ECANCELED, once,
 * when another rank has given that version up; the next call is a new save. */
HELIOS_API int helios_version_open(helios_client *client, const helios_version_spec *spec,
                                   int64_t *version);
/* Write one shard of that version (one part at pp, tp). Data is copied before the call returns.
 * Parts are "embedding", "layer-0003", "experts-0003" and "head" as in the model; "optim-PART"
 * holds optimizer state of PART, in tensors whose names end with a parameter's ("exp_avg.NAME");
 * "optim-dp1of2-PART" holds what only data-parallel rank 1 of 2 has; "extra-PART" holds anything.
 * One rank writes all parameters of a position (pp, tp). */
HELIOS_API int helios_version_put(helios_client *client, const char *model, int64_t version, int pp,
                                  int tp, const char *part, const helios_tensor *tensors,
                                  size_t count, helios_shard *out);
/* The same for tensors that are not in memory yet: those whose `data` is NULL are written by `fill`
 * into the shard itself, one after the other in their order, so there is no second copy of them.
 * What fill returns instead of 0 ends it with HELIOS_ECANCELED. Memory of one shard is needed at a
 * time, as in helios_version_put. */
typedef int (*helios_fill)(void *arg, size_t tensor, void *data, size_t size);
HELIOS_API int helios_version_put_from(helios_client *client, const char *model, int64_t version,
                                       int pp, int tp, const char *part,
                                       const helios_tensor *tensors, size_t count, helios_fill fill,
                                       void *arg, helios_shard *out);
/* The same for any part, experts too: a shard "experts-0003" is put at pp, tp and ep, where tp is
 * the rank within etp. `fill` may be NULL. */
HELIOS_API int helios_version_put_at(helios_client *client, const char *model, int64_t version,
                                     const helios_place *place, const char *part,
                                     const helios_tensor *tensors, size_t count, helios_fill fill,
                                     void *arg, helios_shard *out);
/* This rank has put all its shards. meta_json (rank 0's is kept) may be NULL. visible: 1 when this
 * commit was the last one needed. HELIOS_EINVAL names a tensor that does not match the model's
 * layout; HELIOS_ECANCELED says which rank gave the version up, and why. The last rank waits until
 * the shards are in as many failure domains as the Controller's versions.durability asks for, as
 * long as it takes; HELIOS_ETIMEDOUT then names one that does not get there. After a failure the
 * caller repeats the commit or calls helios_version_abandon. */
HELIOS_API int helios_version_commit(helios_client *client, const char *model, int64_t version,
                                     int rank, const char *meta_json, int *visible);
/* This rank can't complete its part: its shards are freed, the version never becomes visible, and
 * the other ranks' next call for it fails with `reason`. HELIOS_ECONFLICT when it is visible: then
 * this rank's commit has arrived, and so have all others. */
HELIOS_API int helios_version_abandon(helios_client *client, const char *model, int64_t version,
                                      int rank, const char *reason);

typedef struct helios_stats {
    size_t size;   /* HELIOS_STATS_INIT */
    char path[16]; /* how bytes came last: shm rdma tcp emulated, "" before the first read */
    uint64_t reads, read_bytes, read_ns; /* ns inside reads, verification included */
    uint64_t writes, write_bytes, write_ns;
    uint64_t crc_failures; /* bad pieces seen */
    uint64_t retries;      /* pieces fetched again */
} helios_stats;

#define HELIOS_STATS_INIT .size = sizeof(helios_stats)

HELIOS_API int helios_get_stats(helios_client *client, helios_stats *out);

/* What a rank tells of its training, in a page of memory that its node reads: a microsecond at
 * most, no call. They need no client. Outside of a job, where HELIOS_STEPS is not set, nobody reads
 * it and they return 0; HELIOS_EINVAL, HELIOS_ENOENT and the like when it is set and can't be used.
 * From one thread at a time, and not after fork(). */
enum { HELIOS_JOINING = 1, HELIOS_LOADING, HELIOS_TRAINING, HELIOS_SAVING };

/* A step has ended: its number, its loss, and the tokens that this rank has worked on in it. */
HELIOS_API int helios_report(int64_t step, double loss, uint64_t tokens);
/* So many ns of the step under way were spent waiting for other ranks, as in a collective. What is
 * left is the rank's own time, by which a slow one is told from those that wait for it. */
HELIOS_API int helios_waited(uint64_t ns);
/* What the rank is busy with now. A rank that trains and makes no steps is taken for one that
 * hangs; time for anything else is in no step. */
HELIOS_API int helios_activity(int activity);
/* Where the largest of its parameters lies in this process, until the gang comes together again:
 * what `helios drill` flips a bit of. size 0: nowhere. */
HELIOS_API int helios_held(const void *address, uint64_t size);
/* Something is wrong with the rank; its job gets an event with the text, of which 239 bytes count.
 */
HELIOS_API int helios_trouble(const char *text);
/* The gang has come together for the generation-th time; steps count from there. */
HELIOS_API int helios_joined(uint32_t generation);
/* The last generation of this rank, also of a process that had its place before; 0 = none. */
HELIOS_API uint32_t helios_generation(void);

/* The place that this process has in the gang of its job now, where the job may change its size:
 * asked each time the gang comes together. *number counts the sizes that the gang has had, from 0.
 * env: NAME=VALUE lines of the variables that go with the size, "" = the process has no place yet,
 * ask again. HELIOS_ENOENT: it is none of the gang any more; HELIOS_EINVAL: cap bytes are too few.
 */
HELIOS_API int helios_join_gang(helios_client *client, const char *job, int attempt, int container,
                                int local_rank, int32_t *number, char *env, size_t cap);

/* The CRC-32 (zlib's) of each MiB of them, the last one shorter, into `out`: by these the replicas
 * of data-parallel ranks are compared. Needs no client. */
HELIOS_API int helios_checksums(const void *data, uint64_t size, uint32_t *out);

#ifdef __cplusplus
}
#endif
#endif
