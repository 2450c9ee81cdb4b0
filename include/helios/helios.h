/* helios.h - C ABI of libhelios: reading and writing shards of a model from inside a rank.
 *
 * A rank owns one (pp, tp, dp) position. Its share of a model version is a set of shards; a shard
 * is an immutable safetensors file (u64 little-endian header length, JSON header, tensor data) held
 * in the L3 pool, checksummed as a whole, per tensor and per MiB.
 *
 * A struct that begins with `size` may gain members at its end in later versions. The caller sets
 * `size` to sizeof the struct, which tells the library which members it knows; the _INIT macro of
 * the struct does so. All other members that it does not use it sets to 0:
 *
 *     helios_options o = {HELIOS_OPTIONS_INIT, .path = "net"};
 *
 * A program may be older than the library. It may also be newer, as long as the members that the
 * library doesn't know are 0; otherwise the call fails with HELIOS_EINVAL. Structs without `size`
 * never change.
 *
 * Owns:    a client owns its connections and mappings. Release what a function hands out only with
 *          the function that its comment names.
 * Threads: a helios_client may be used from any thread. Calls on one client are serialised, except
 *          helios_get, helios_get_range, helios_find and the helios_version_put functions, which
 *          run in parallel. Never use a client after fork().
 * Errors:  functions return 0 or a negative HELIOS_E… code; helios_last_error() explains the last
 *          failure of the calling thread in one sentence (what, where, what to do). Outputs are
 *          untouched on failure.
 * Units:   sizes and offsets in bytes, times in milliseconds.
 * Limits:  a model's name has at most 127 bytes, a part's name 63.
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
    /* RPC address; NULL: $HELIOS_CONTROLLER. When neither this nor an L3 address is given anywhere:
     * the address of the local cluster ($HELIOS_STATE, else ~/.local/state/helios), else the
     * configured one. */
    const char *controller;
    const char *l3;   /* L3 address; NULL: $CONTROLLER_L3_CACHE_ADDRESS, else ask the Controller */
    const char *path; /* how shards are read: NULL or "auto"; "shm" or "net" force one way */
    int timeout_ms;   /* deadline of one operation; 0: $HELIOS_READ_TIMEOUT, else 30000 */
    int retries; /* how often a bad piece is fetched again; 0: $HELIOS_READ_RETRIES, else 3; -1:
                    never */
} helios_options;

#define HELIOS_OPTIONS_INIT .size = sizeof(helios_options)

/* opts may be NULL. $HELIOS_DATA_CONNECT_TIMEOUT ("10s"; 3 s): how long one attempt to connect to
 * another host's pool may take, over RDMA and then TCP. Release with helios_close. HELIOS_EUNAVAIL
 * when no process answers at the address. */
HELIOS_API int helios_open(const helios_options *opts, helios_client **out);
/* Reports the accesses made so far and drops every mapping that was handed out. NULL is fine. */
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

/* A tensor's name in the stored shard, and the name that a rank of another split knows it by. */
typedef struct helios_tensor_name {
    const char *stored;
    const char *shown;
} helios_tensor_name;

/* How a shard relates to a position. */
typedef struct helios_shard_view {
    int pp, tp;  /* the position that it was stored for, from its header */
    int renamed; /* 1: only the tensors in `names` belong to the position, under those names */
    int ep;      /* of a shard of experts, 0 for others; with experts tp is the rank within etp */
    size_t count;
    const helios_tensor_name *names;
} helios_shard_view;

typedef struct helios_shard_list {
    int64_t version;
    size_t count;
    helios_shard *shards;    /* in part order */
    const char *meta_json;   /* what rank 0 attached to the version; "{}" if nothing */
    const char *config_json; /* architecture and Hugging Face config of the model */
    const char *skipped; /* version -1: the newer versions that were skipped because shards are lost
                            or records damaged, and what each lacks; "" = none */
    const helios_shard_view *views; /* one for each shard */
    const char *left_out; /* what the version has but can't be cut for another tensor parallel size,
                             and why; "" = nothing */
} helios_shard_list;

/* The shards of model/version at (pp, tp). version -1: the newest visible version that is whole.
 * helios_map and helios_map_private fail with HELIOS_ECORRUPT when the shard they find differs in
 * size or checksum from the list. HELIOS_EINVAL when the model is the rank's own ($HELIOS_MODEL)
 * and was imported with a number of virtual stages other than $VIRTUAL_PIPELINE_PARALLEL_SIZE.
 * Release with helios_shard_list_free. */
HELIOS_API int helios_request_shards(helios_client *client, const char *model, int64_t version,
                                     int pp, int tp, helios_shard_list **out);

/* How a model is split among ranks. */
typedef struct helios_split {
    size_t size;        /* HELIOS_SPLIT_INIT */
    int tp, pp;         /* tensor and pipeline parallel size; 0 = the version's */
    int virtual_stages; /* chunks per stage, 1 = no virtual stages; 0 = the version's if it has as
                           many stages */
    int first_stage_layers; /* 0 = the version's if it has as many stages, else layers are spread
                               evenly */
    int last_stage_layers;
    int ep;  /* number of ranks that the experts of a layer are divided among; 0 = the version's */
    int etp; /* number of ranks that each expert is divided among, a divisor of tp; 0 = the
                version's if it has as many tensor ranks, else tp */
} helios_split;

#define HELIOS_SPLIT_INIT .size = sizeof(helios_split)

/* As helios_request_shards, for the position (pp, tp) of a split other than the one the version was
 * saved with; split NULL: the version's own. A different number of stages copies no bytes: it only
 * changes which shards a position has (`views` of the list) and the names of their tensors. For a
 * different tensor parallel size the version is cut once, in the pool, into derived shards, which
 * are evicted first when room is needed. The first reader waits for the cut, as long as it makes
 * progress within the read timeout. Optimizer state that is distributed over data-parallel ranks
 * and extra state of modules can't be cut; `left_out` then says so. HELIOS_EINVAL, with the
 * arithmetic, when layers or tensors can't be divided that way; HELIOS_EUNSUPPORTED for a version
 * whose tensors were not recorded. */
HELIOS_API int helios_request_position(helios_client *client, const char *model, int64_t version,
                                       const helios_split *split, int pp, int tp,
                                       helios_shard_list **out);

/* A rank's place in its split. */
typedef struct helios_place {
    size_t size; /* HELIOS_PLACE_INIT */
    int pp, tp;
    int ep; /* expert-parallel rank: which experts it has; of each it has slice tp % etp, its rank
               within etp */
} helios_place;

#define HELIOS_PLACE_INIT .size = sizeof(helios_place)

/* As helios_request_position, for a model with experts; helios_request_position is the same with ep
 * 0. */
HELIOS_API int helios_request_place(helios_client *client, const char *model, int64_t version,
                                    const helios_split *split, const helios_place *place,
                                    helios_shard_list **out);
HELIOS_API void helios_shard_list_free(helios_shard_list *list);

typedef struct helios_names {
    size_t count;
    const char *const *names;
} helios_names;

/* The names that Megatron-core gives these tensors under its naming `naming`: "local" or "te"
 * (Transformer Engine). Pass the names of whole layers, because only all names of a layer together
 * show whether it has experts or latent attention. A prefix before the layer ("model1.",
 * "exp_avg.") is kept. The result has the order of the names given; release it with
 * helios_names_free. */
HELIOS_API int helios_names_under(const char *const *names, size_t count, const char *naming,
                                  helios_names **out);
/* The part that a rank of stage `pp` saves each of these tensors in, in their order: "embedding",
 * "layer-0003", … `config_json` is a model's (helios_shard_list) or the Hugging Face config.json of
 * a listed family, which has no split and so counts as one stage. The sizes in `split` override the
 * config's; NULL = none. A prefix before a layer's name ("exp_avg.") does not matter. */
HELIOS_API int helios_parts_of(const char *config_json, const helios_split *split, int pp,
                               const char *const *names, size_t count, helios_names **out);
HELIOS_API void helios_names_free(helios_names *names);

/* Size and CRC of a shard by id, from the pool's own index (no Controller involved). */
HELIOS_API int helios_find(helios_client *client, helios_id id, uint64_t *size, uint32_t *crc32);
/* Copy a whole shard into buf (size bytes as helios_find says, else HELIOS_EINVAL), verified. */
HELIOS_API int helios_get(helios_client *client, helios_id id, void *buf, size_t size);
/* Copy [offset, offset+size), verified: every started MiB that the range touches is checked. */
HELIOS_API int helios_get_range(helios_client *client, helios_id id, uint64_t offset, void *buf,
                                size_t size);
/* Verified read-only view of a whole shard: the pool itself on the owner's host, a private copy
 * elsewhere. The bytes stay unchanged until helios_unmap or helios_close, even if the shard is
 * removed. Writing through the view is a segmentation fault. */
HELIOS_API int helios_map(helios_client *client, helios_id id, const void **data, size_t *size);
/* A writable view (copy-on-write): it belongs to the caller alone, and the pool never sees what is
 * written to it. Only the pages that are written take memory. The whole shard takes memory when its
 * bytes come from another host, or when the pool lies in huge pages (hugetlbfs) and none are
 * left. */
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

/* HELIOS_ENOENT when no device of the node has the shard (`helios shard copy ID --to NODE:l1` puts
 * it there) and none keeps what is mapped (agent.l1_keep); HELIOS_EUNAVAIL when the node has no
 * store. The copy stays until it is unmapped. */
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

/* How far the parameters of a new version must match the model's layout: the names, shapes and
 * dtypes that the tensors of its oldest version have at every position (pp, tp). */
enum {
    HELIOS_LAYOUT_EXACT = 0,
    HELIOS_LAYOUT_ANY_DTYPE = 1, /* names and shapes */
    HELIOS_LAYOUT_UNCHECKED = 2
};

typedef struct helios_version_spec {
    size_t size; /* HELIOS_VERSION_SPEC_INIT */
    const char *model;
    /* identifies the gang: the same on all its ranks, and different from every other gang's */
    const char *job;
    int attempt;
    int64_t step;
    int rank; /* of this process in the gang, counted from 0 */
    int world;
    int layout;                /* HELIOS_LAYOUT_…, the same on all ranks */
    const helios_split *split; /* of this gang, the same on all its ranks; NULL = the model's */
    /* NULL = the model has to exist. Otherwise the first rank creates a missing model with this
     * split (a size of 0 counts as 1); the model is removed again unless the version becomes
     * visible. */
    const helios_split *create;
    /* The Hugging Face config.json of that model; NULL = none. With it the model can be read under
     * any split. The parameters have to match it, and a model that exists already has to have the
     * same one. */
    const char *config_json;
} helios_version_spec;

#define HELIOS_VERSION_SPEC_INIT .size = sizeof(helios_version_spec)

/* Open a new version, which becomes visible when `world` ranks have committed. Every rank of the
 * gang calls this with the same (model, job, attempt, step) and gets the same number. Each further
 * call of a rank starts another save and gives another version, even at the same step.
 * HELIOS_ECANCELED is returned once when another rank has abandoned the version; the next call is a
 * new save. */
HELIOS_API int helios_version_open(helios_client *client, const helios_version_spec *spec,
                                   int64_t *version);
/* Write one shard of that version (one part at pp, tp). Data is copied before the call returns.
 * Parts are "embedding", "layer-0003", "experts-0003" and "head" as in the model; "optim-PART"
 * holds the optimizer state of PART, in tensors whose names end with the name of a parameter
 * ("exp_avg.NAME"); "optim-dp1of2-PART" holds what only data-parallel rank 1 of 2 has; "extra-PART"
 * holds anything. One rank writes all parameters of a position (pp, tp). */
HELIOS_API int helios_version_put(helios_client *client, const char *model, int64_t version, int pp,
                                  int tp, const char *part, const helios_tensor *tensors,
                                  size_t count, helios_shard *out);
/* As helios_version_put, for tensors that are not in memory yet. `fill` writes those whose `data`
 * is NULL straight into the shard, one after the other in their order, so no second copy of them
 * exists. When fill returns anything but 0, the call fails with HELIOS_ECANCELED. As in
 * helios_version_put, memory for one shard at a time is needed. */
typedef int (*helios_fill)(void *arg, size_t tensor, void *data, size_t size);
HELIOS_API int helios_version_put_from(helios_client *client, const char *model, int64_t version,
                                       int pp, int tp, const char *part,
                                       const helios_tensor *tensors, size_t count, helios_fill fill,
                                       void *arg, helios_shard *out);
/* As helios_version_put_from, for any part including experts: a shard "experts-0003" is put at pp,
 * tp and ep, where tp is the rank within etp. `fill` may be NULL. */
HELIOS_API int helios_version_put_at(helios_client *client, const char *model, int64_t version,
                                     const helios_place *place, const char *part,
                                     const helios_tensor *tensors, size_t count, helios_fill fill,
                                     void *arg, helios_shard *out);
/* Call when this rank has put all its shards. meta_json may be NULL; rank 0's is kept. visible: 1
 * when this commit was the last one needed. HELIOS_EINVAL names a tensor that does not match the
 * model's layout; HELIOS_ECANCELED says which rank abandoned the version, and why. The last rank
 * waits, as long as it takes, until the shards are in as many failure domains as the Controller's
 * versions.durability asks for; HELIOS_ETIMEDOUT names a shard that does not get there. After a
 * failure the caller repeats the commit or calls helios_version_abandon. */
HELIOS_API int helios_version_commit(helios_client *client, const char *model, int64_t version,
                                     int rank, const char *meta_json, int *visible);
/* Call when this rank can't complete its part. Its shards are freed, the version never becomes
 * visible, and the other ranks' next call for it fails with `reason`. HELIOS_ECONFLICT when the
 * version is already visible, which means that the commits of all ranks, this one's included, have
 * arrived. */
HELIOS_API int helios_version_abandon(helios_client *client, const char *model, int64_t version,
                                      int rank, const char *reason);

typedef struct helios_stats {
    size_t size;   /* HELIOS_STATS_INIT */
    char path[16]; /* how the last read got its bytes: shm rdma tcp emulated; "" before the first
                      read */
    uint64_t reads, read_bytes, read_ns; /* ns inside reads, verification included */
    uint64_t writes, write_bytes, write_ns;
    uint64_t crc_failures; /* bad pieces seen */
    uint64_t retries;      /* pieces fetched again */
} helios_stats;

#define HELIOS_STATS_INIT .size = sizeof(helios_stats)

HELIOS_API int helios_get_stats(helios_client *client, helios_stats *out);

/* A rank reports its training progress in a page of memory that its node reads. A report takes a
 * microsecond at most, makes no call and needs no client. Outside a job, where HELIOS_STEPS is not
 * set, no process reads the page and these functions return 0. When HELIOS_STEPS is set but can't
 * be used they return HELIOS_EINVAL, HELIOS_ENOENT and the like. Call them from one thread at a
 * time, and not after fork(). */
enum { HELIOS_JOINING = 1, HELIOS_LOADING, HELIOS_TRAINING, HELIOS_SAVING };

/* A step has ended: its number, its loss, and the number of tokens that this rank processed in
 * it. */
HELIOS_API int helios_report(int64_t step, double loss, uint64_t tokens);
/* This rank spent `ns` of the current step waiting for other ranks, as in a collective. The rest is
 * the rank's own time, which tells a slow rank from the ranks that wait for it. */
HELIOS_API int helios_waited(uint64_t ns);
/* What the rank is doing now. A rank that is training but completes no steps is taken to hang; time
 * spent in any other activity counts towards no step. */
HELIOS_API int helios_activity(int activity);
/* Where the rank's largest parameter lies in this process, valid until the gang re-forms. `helios
 * drill` flips a bit in it. size 0: nowhere. */
HELIOS_API int helios_held(const void *address, uint64_t size);
/* Something is wrong with the rank. Its job gets an event with the first 239 bytes of the text. */
HELIOS_API int helios_trouble(const char *text);
/* The gang has formed for the generation-th time; steps are counted from here. */
HELIOS_API int helios_joined(uint32_t generation);
/* The last generation that was reported for this rank, including by an earlier process in its
 * place; 0 = none. */
HELIOS_API uint32_t helios_generation(void);

/* This process's current place in the gang of an elastic job, one that may change its size; call it
 * each time the gang forms. *number counts the sizes that the gang has had, from 0. env: NAME=VALUE
 * lines of the variables that go with the size; "" = the process has no place yet, ask again.
 * HELIOS_ENOENT: the process no longer belongs to the gang; HELIOS_EINVAL: cap is too small. */
HELIOS_API int helios_join_gang(helios_client *client, const char *job, int attempt, int container,
                                int local_rank, int32_t *number, char *env, size_t cap);

/* Writes the CRC-32 (zlib's) of each MiB of the data into `out`; the last piece may be shorter.
 * These are compared between the replicas of data-parallel ranks. Needs no client. */
HELIOS_API int helios_checksums(const void *data, uint64_t size, uint32_t *out);

#ifdef __cplusplus
}
#endif
#endif
