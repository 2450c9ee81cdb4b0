/* Parsers for the engines' output. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jansson.h>

#include "base/text.h"
#include "core/json.h"
#include "hw/engine/engine.h"

#define CDI_SINCE 25 /* docker's first version that supports it */

static bool docker_has_cdi(const json_t *info)
{
    uint64_t major = 0;
    const char *version = hl_json_str(info, "ServerVersion", "");
    (void)hl_scan_number(version, 1000000, &major);
    return major >= CDI_SINCE && json_array_size(json_object_get(info, "CDISpecDirs")) > 0;
}

enum hl_engine_gpus hl_engine_gpus_of(enum hl_engine_kind kind, const char *info)
{
    if (kind == HL_ENGINE_PODMAN)
        return HL_ENGINE_GPUS_CDI; /* its --gpus is silently ignored */
    json_t *v = json_loads(info, 0, NULL);
    enum hl_engine_gpus way = HL_ENGINE_GPUS_PLAIN;
    if (json_object_get(json_object_get(v, "Runtimes"), "nvidia") != NULL)
        way = HL_ENGINE_GPUS_RUNTIME;
    else if (docker_has_cdi(v))
        way = HL_ENGINE_GPUS_CDI;
    json_decref(v);
    return way;
}

/* ---- states ---- */

static bool take_int(const char *word, int *out)
{
    uint64_t n;
    if (word == NULL || !hl_parse_number(word, INT32_MAX, &n))
        return false;
    *out = (int)n;
    return true;
}

/* podman has several words for this state. */
static bool is_created_word(const char *status)
{
    return strcmp(status, "created") == 0 || strcmp(status, "configured") == 0 ||
           strcmp(status, "initialized") == 0;
}

static bool is_ended_word(const char *status)
{
    return strcmp(status, "exited") == 0 || strcmp(status, "dead") == 0 ||
           strcmp(status, "stopped") == 0;
}

hl_status hl_engine_state_parse(char *line, struct hl_engine_state *out)
{
    char *at = line;
    const char *id = strsep(&at, " "), *status = strsep(&at, " ");
    const char *code = strsep(&at, " "), *oom = strsep(&at, " "), *pid = strsep(&at, " ");
    struct hl_engine_state s = {0};
    if (pid == NULL || strlen(id) >= sizeof(s.id) || !take_int(code, &s.exit_code) ||
        !take_int(pid, &s.pid))
        return hl_fail(HL_EPROTO, "the engine reports '%.200s' for a container", line);
    snprintf(s.id, sizeof(s.id), "%s", id);
    s.created = is_created_word(status);
    s.ended = is_ended_word(status);
    s.oom = strcmp(oom, "true") == 0;
    s.error = at != NULL && strcmp(at, "<no value>") != 0 ? at : "";
    if (s.exit_code > 128 && s.exit_code <= 128 + 64)
        s.signal = s.exit_code - 128;
    *out = s;
    return HL_OK;
}

/* ---- images ---- */

#define ID_MARK "sha256:"

bool hl_engine_image_is_id(const char *image)
{
    return strncmp(image, ID_MARK, strlen(ID_MARK)) == 0;
}

/* The length of a name without its tag and digest. A colon before the last slash is a port's. */
static size_t repository_len(const char *image)
{
    size_t len = strcspn(image, "@");
    const char *slash = memrchr(image, '/', len);
    size_t name = slash != NULL ? (size_t)(slash - image) : 0;
    const char *colon = memchr(image + name, ':', len - name);
    return colon != NULL ? (size_t)(colon - image) : len;
}

/* "debian@sha256:..." belongs to debian:12; podman writes docker.io/library/debian for it. */
static bool is_of_repository(const char *digest, const char *image)
{
    size_t have = strcspn(digest, "@"), want = repository_len(image);
    return have >= want && strncmp(digest + have - want, image, want) == 0 &&
           (have == want || digest[have - want - 1] == '/');
}

/* podman's prefix for images that were built or loaded on this node. No other node can pull them by
 * that name. A registry on this host would have a port in its name. */
static bool is_of_no_registry(const char *digest)
{
    return strncmp(digest, "localhost/", strlen("localhost/")) == 0;
}

static const char *find_digest(const json_t *digests, const char *image)
{
    size_t i;
    const json_t *one;
    json_array_foreach (digests, i, one) {
        const char *text = json_string_value(one);
        if (text != NULL && !is_of_no_registry(text) && is_of_repository(text, image))
            return text;
    }
    return NULL;
}

hl_status hl_engine_image_parse(const char *image, char *line, struct hl_engine_image *out)
{
    char *at = line;
    const char *id = strsep(&at, " ");
    struct hl_engine_image found;
    if (at == NULL || *id == '\0' || strlen(id) > 100)
        return hl_fail(HL_EPROTO, "the engine reports '%.200s' for image %.200s", id, image);
    json_t *digests = json_loads(at, JSON_DECODE_ANY, NULL);
    bool said = strchr(image, '@') != NULL || hl_engine_image_is_id(image);
    const char *digest = said ? image : find_digest(digests, image);
    snprintf(found.id, sizeof(found.id), "%.110s", id);
    if (digest != NULL)
        snprintf(found.pinned, sizeof(found.pinned), "%.500s", digest);
    else
        snprintf(found.pinned, sizeof(found.pinned), "%s%.110s",
                 hl_engine_image_is_id(id) ? "" : ID_MARK, id);
    json_decref(digests);
    *out = found;
    return HL_OK;
}
