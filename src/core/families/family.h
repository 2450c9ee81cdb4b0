/* core/families/family.h - what is known about the families of models: one constant table per
 * family.
 *
 * A table says how the fields of config.json become symbols, and for every tensor of Megatron-core
 * from which Hugging Face tensors it is made, with which shape, and how it is cut. Shapes and
 * conditions are expressions over the symbols: integers, + - * / %, == != < <= > >=, && || !,
 * parentheses, and `layer`, the number of the layer. docs/families.md explains the columns.
 *
 * Owns:    nothing; tables are constant.
 * Threads: any; pure.
 * Errors:  HL_EINVAL names the family and the expression.
 * Units:   elements.
 * Limits:  HL_FAMILY_SYMBOLS_MAX symbols; expressions nest HL_FAMILY_DEPTH_MAX deep.
 */
#ifndef HL_CORE_FAMILIES_FAMILY_H
#define HL_CORE_FAMILIES_FAMILY_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"

#define HL_FAMILY_SYMBOLS_MAX 40
#define HL_FAMILY_DEPTH_MAX   32
#define HL_FAMILY_SOURCES_MAX 3

enum hl_symbol_kind {
    HL_SYMBOL_SIZE,   /* a field of 1..2^31-1 */
    HL_SYMBOL_COUNT,  /* a field of 0..2^31-1 */
    HL_SYMBOL_BOOL,   /* a field that is true or false */
    HL_SYMBOL_LAYERS, /* 1 if the field, a list of layers, contains `layer` */
    HL_SYMBOL_VALUE,  /* no field: an expression, evaluated where it is used */
};

struct hl_family_symbol {
    const char *name;
    enum hl_symbol_kind kind;
    const char *field;  /* of config.json */
    const char *absent; /* the value without that field; NULL = the field is required */
};

enum hl_family_place {
    HL_PLACE_EMBEDDING,
    HL_PLACE_LAYER,
    HL_PLACE_EXPERT, /* one of a layer's experts */
    HL_PLACE_HEAD,
    HL_PLACE_MTP,      /* extra tensors of a multi-token prediction layer */
    HL_PLACE_MTP_COPY, /* a copy of hf[1] under the name hf[0]: compared, not stored */
};

enum hl_split {
    HL_SPLIT_WHOLE,      /* the same on every rank */
    HL_SPLIT_ROWS,       /* column parallel */
    HL_SPLIT_COLUMNS,    /* row parallel */
    HL_SPLIT_VOCABULARY, /* rows of the padded vocabulary */
    HL_SPLIT_QKV, /* rows in query groups, each with its q heads, its k head and its v head */
    /* the rank's rows of gate, then those of up; `rows` is the number of one of them */
    HL_SPLIT_PAIRS,
};

/* How the source stores a matrix of Megatron's [rows, cols]. */
enum hl_form {
    HL_FORM_TRANSPOSED = 1,  /* as [cols, rows] */
    HL_FORM_STACKED = 2,     /* all experts in one tensor; the first dimension is the expert */
    HL_FORM_INTERLEAVED = 4, /* gate and up alternate, row by row */
    HL_FORM_SEPARATE = 8,    /* replaces the STACKED row of the same name if the files have it */
};

struct hl_family_tensor {
    enum hl_family_place place;
    enum hl_split split;
    unsigned form;
    const char *name; /* Megatron-core's name below the layer; '*' is the expert's number */
    const char *te;   /* its name in the naming te; NULL = `name` */
    /* Hugging Face's names below the layer; '*' is the expert's number, and a leading '/' means
     * that it is the full name. A single source for QKV or PAIRS contains all parts,
     * concatenated. */
    const char *hf[HL_FAMILY_SOURCES_MAX];
    const char *rows; /* of Megatron's whole tensor; not used for QKV */
    const char *cols; /* NULL = a vector */
    const char *when; /* NULL = always */
};

enum hl_divided_by { HL_BY_TP, HL_BY_ETP, HL_BY_EP };

/* A number that a size of the layout must divide. */
struct hl_family_divided {
    enum hl_divided_by by;
    const char *value;
    const char *what;
};

/* The prefixes of a model's tensor names in its files. */
struct hl_family_prefix {
    const char *body;
    const char *head;
};

struct hl_family {
    const char *name;         /* model_type */
    const char *types[4];     /* further model_types */
    const char *class_prefix; /* identifies files without model_type; NULL = none */
    const char *nested;       /* object of config.json that contains the fields, if it exists */
    const struct hl_family_symbol *symbols;
    const struct hl_family_divided *divided;
    const struct hl_family_tensor *tensors;
    const struct hl_family_prefix *prefixes; /* the first is the usual one */
    const char *layers;                      /* "layers." */
    const char *norm_eps;                    /* field; norm_eps_absent is its default */
    double norm_eps_absent;
    double rope_theta_absent;   /* 0 = no rotary embedding */
    const char *const *buffers; /* name suffixes of tensors that are computed, not trained */
    bool mla;                   /* latent attention: no query groups */
};

/* The known families, NULL at the end. */
extern const struct hl_family *const hl_families[];

/* Finds a family by model_type, or by class if that is NULL. NULL = unknown. */
const struct hl_family *hl_family_find(const char *model_type, const char *class_name);
/* Writes "llama, mistral or gpt2" into buf. */
const char *hl_family_names(char *buf, size_t cap);

/* The place in a name, after any prefix, where a module beside the text model begins:
 * "vision_tower.…", "vision_model.…", "multi_modal_projector.…"; NULL = no such module. */
const char *hl_vision_name(const char *name);

/* The context in which an expression is evaluated. */
struct hl_family_scope {
    const struct hl_family *family;
    const json_t *config;  /* the object with the fields */
    const int64_t *values; /* values of the symbols that have a field */
    int64_t layer;
};

/* The dimensions of a tensor. */
struct hl_dims {
    uint32_t rank;
    uint64_t shape[4];
};

/* Source k of a row: its full name (HL_EINVAL if it is too long for `cap`), and its dimensions. */
hl_status hl_family_source_name(const struct hl_family *family,
                                const struct hl_family_prefix *prefix,
                                const struct hl_family_tensor *row, size_t k, uint64_t layer,
                                uint64_t expert, char *out, size_t cap) HL_CHECK;
hl_status hl_family_source_dims(const struct hl_family_scope *scope,
                                const struct hl_family_tensor *row, size_t k,
                                struct hl_dims *out) HL_CHECK;
size_t hl_family_source_count(const struct hl_family_tensor *row);
/* Copies the pattern with '*' replaced by the number. */
hl_status hl_family_fill(const char *pattern, uint64_t number, char *out, size_t cap) HL_CHECK;

hl_status hl_family_eval(const struct hl_family_scope *scope, const char *expression,
                         int64_t *out) HL_CHECK;
/* Evaluates a size: HL_EINVAL if it is below 0; a NULL expression gives `absent`. */
hl_status hl_family_size(const struct hl_family_scope *scope, const char *expression,
                         uint64_t absent, uint64_t *out) HL_CHECK;
/* -1 = no such symbol. */
int hl_family_symbol_index(const struct hl_family *family, const char *name, size_t len);

#endif
