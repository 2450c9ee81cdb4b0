/* conf/yaml.h - a YAML (or JSON) file as a JSON value, with the position of every key and value.
 *
 * Values have the types of YAML 1.2's core schema: null, true/false, integers (decimal, 0x, 0o) and
 * floats; everything else is text ("175B" and "on" are text). Quoted scalars are always text.
 *
 * Owns:    the value and the position table; both are released by hl_yaml_free.
 * Threads: one at a time.
 * Errors:  HL_EINVAL "FILE:LINE:COL: ..." for syntax, duplicate keys, keys that are not text, a
 *          second document, aliases that expand too far; HL_ENOENT, HL_EIO for the file.
 * Units:   lines and columns count from 1.
 * Limits:  1 MiB of text, 32 levels, 100,000 values after aliases are expanded.
 */
#ifndef HL_CONF_YAML_H
#define HL_CONF_YAML_H

#include <jansson.h>
#include <stdbool.h>

#include "base/status.h"

#define HL_YAML_BYTES_MAX  (1u << 20)
#define HL_YAML_DEPTH_MAX  32
#define HL_YAML_VALUES_MAX 100000

struct hl_yaml;

struct hl_yaml_pos {
    int line;
    int column;
};

/* `name` is used in messages ("job.yaml") and copied. An empty text parses to null. */
hl_status hl_yaml_parse(const char *name, const char *text, size_t len,
                        struct hl_yaml **out) HL_CHECK;
hl_status hl_yaml_load(const char *path, struct hl_yaml **out) HL_CHECK;
void hl_yaml_free(struct hl_yaml *doc);
void hl_yaml_freep(struct hl_yaml **doc);

/* Borrowed. */
json_t *hl_yaml_root(const struct hl_yaml *doc);
const char *hl_yaml_name(const struct hl_yaml *doc);
/* Position of the value at a JSON pointer ("/parallelism/tensor_parallel_size"), or of its nearest
 * ancestor if there is no such value. */
struct hl_yaml_pos hl_yaml_where(const struct hl_yaml *doc, const char *pointer);
/* Position of the value's key. */
struct hl_yaml_pos hl_yaml_where_key(const struct hl_yaml *doc, const char *pointer);
/* hl_yaml_where with the signature of hl_job_where_fn (ctx = const struct hl_yaml *). */
void hl_yaml_locate(const void *doc, const char *pointer, bool of_key, int *line, int *column);

#endif
