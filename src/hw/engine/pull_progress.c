#include "hw/engine/pull_progress.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

#include "base/text.h"

/* Ends of a line; on a terminal also the sequences that move its cursor. */
static const char line_ends[] = "\r\n\033";

static struct hl_pull_layer *layer_of(struct hl_pull_progress *p, const char *id, size_t len)
{
    struct hl_pull_layer *x;
    if (len == 0 || len >= sizeof(x->id))
        return NULL;
    for (size_t i = 0; i < p->count; i++)
        if (strncmp(p->layers[i].id, id, len) == 0 && p->layers[i].id[len] == '\0')
            return &p->layers[i];
    if (p->count == HL_PULL_LAYERS_MAX)
        return NULL;
    x = &p->layers[p->count++];
    *x = (struct hl_pull_layer){0};
    memcpy(x->id, id, len);
    return x;
}

/* "Downloading [==>   ]  17.86MB/62.93MB", with or without the bar. */
static void layer_take_bytes(struct hl_pull_layer *x, const char *status, size_t len)
{
    char text[64], *slash;
    uint64_t done, total;
    const char *begin = status + len;
    while (begin > status && begin[-1] != ' ')
        begin--;
    snprintf(text, sizeof(text), "%.*s", (int)(status + len - begin), begin);
    slash = strchr(text, '/');
    if (slash == NULL)
        return;
    *slash = '\0';
    if (hl_parse_bytes(text, &done) != HL_OK || hl_parse_bytes(slash + 1, &total) != HL_OK)
        return;
    x->total = total;
    x->done = done < total ? done : total;
}

static bool line_begins(const char *text, size_t len, const char *word)
{
    return len >= strlen(word) && strncmp(text, word, strlen(word)) == 0;
}

static void docker_line(struct hl_pull_progress *p, const char *line, size_t len)
{
    static const char *const states[] = {"Pulling fs layer",   "Waiting",       "Downloading",
                                         "Verifying Checksum", "Extracting",    "Download complete",
                                         "Pull complete",      "Already exists"};
    size_t id = 0, state = 0;
    while (id < len && isalnum((unsigned char)line[id]))
        id++;
    if (len < id + 2 || line[id] != ':' || line[id + 1] != ' ')
        return;
    const char *status = line + id + 2;
    for (len -= id + 2; len > 0 && status[len - 1] == ' ';)
        len--;
    while (state < HL_ARRAY_LEN(states) && !line_begins(status, len, states[state]))
        state++;
    struct hl_pull_layer *x = state < HL_ARRAY_LEN(states) ? layer_of(p, line, id) : NULL;
    if (x == NULL)
        return;
    x->begun = state >= 2;
    x->here = state >= 6;
    if (state == 2)
        layer_take_bytes(x, status, len);
    else if (x->begun)
        x->done = x->total;
}

/* "Copying blob sha256:1234 done", "Copying blob 1234 skipped: already exists" */
static void podman_line(struct hl_pull_progress *p, const char *line, size_t len)
{
    static const char word[] = "Copying blob ";
    if (!line_begins(line, len, word))
        return;
    line += strlen(word);
    len -= strlen(word);
    size_t id = 0;
    while (id < len && line[id] != ' ')
        id++;
    struct hl_pull_layer *x = layer_of(p, line, id);
    if (x == NULL)
        return;
    x->begun = true;
    x->here = x->here || line_begins(line + id, len - id, " done") ||
              line_begins(line + id, len - id, " skipped: already exists");
}

/* A newline, or ESC [ 1 A. */
static const char *line_end_skip(const char *at)
{
    if (at[0] != '\033' || at[1] != '[')
        return at + 1;
    at += 2 + strspn(at + 2, "0123456789;");
    return isalpha((unsigned char)*at) ? at + 1 : at;
}

void hl_pull_progress_take(struct hl_pull_progress *p, const char *printed)
{
    const char *at = printed;
    if (p->taken)
        at += strcspn(at, line_ends);
    while (*at != '\0') {
        size_t len = strcspn(at, line_ends);
        if (at[len] == '\0')
            break; /* the rest of the line has not arrived */
        docker_line(p, at, len);
        podman_line(p, at, len);
        p->taken = true;
        at = line_end_skip(at + len);
    }
}

void hl_pull_progress_tell(const struct hl_pull_progress *p, const char *image, char *out,
                           size_t size)
{
    size_t here = 0, waiting = 0, at;
    uint64_t done = 0, total = 0;
    for (size_t i = 0; i < p->count; i++) {
        here += p->layers[i].here;
        waiting += !p->layers[i].begun;
        done += p->layers[i].done;
        total += p->layers[i].total;
    }
    at = (size_t)snprintf(out, size, "pulling %.150s", image);
    if (p->count > 0 && at < size)
        at += (size_t)snprintf(out + at, size - at, ": %zu of %zu layers", here, p->count);
    char a[32], b[32];
    if (total > 0 && at < size)
        at +=
            (size_t)snprintf(out + at, size - at, ", %s of %s", hl_format_bytes(done, a, sizeof(a)),
                             hl_format_bytes(total, b, sizeof(b)));
    if (waiting > 0 && at < size)
        snprintf(out + at, size - at, ", %zu not begun", waiting);
}
