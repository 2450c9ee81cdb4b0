#include "cli/models/export_folder.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cli/cli/cli.h"
#include "cli/models/hf_files.h"
#include "core/model/lora.h"
#include "core/model/model_config.h"

#define OTHERWISE "--replace removes it first, or choose another --out"
#define FOREIGN   "which a loader could read too; remove it or choose another --out"

struct listing {
    struct dirent **names; /* sorted */
    int count;
};

static void listing_fini(struct listing *l)
{
    for (int i = 0; i < l->count; i++)
        free(l->names[i]);
    free(l->names);
}

static int is_name(const struct dirent *d)
{
    return strcmp(d->d_name, ".") != 0 && strcmp(d->d_name, "..") != 0;
}

/* A directory that does not exist counts as empty. */
HL_CHECK static hl_status list_folder(const char *dir, struct listing *out)
{
    int n = scandir(dir, &out->names, is_name, alphasort);
    if (n < 0 && errno != ENOENT)
        return hl_fail(HL_EIO, "can't list %s: %m", dir);
    out->count = n < 0 ? 0 : n;
    return HL_OK;
}

static bool ends_with(const char *name, const char *end)
{
    size_t n = strlen(name), m = strlen(end);
    return n >= m && strcmp(name + n - m, end) == 0;
}

HL_CHECK static hl_status remove_file(const char *dir, const char *name)
{
    char path[PATH_MAX];
    HL_TRY(cli_path(path, "%s/%s", dir, name));
    return unlink(path) == 0 || errno == ENOENT ? HL_OK
                                                : hl_fail(HL_EIO, "can't remove %s: %m", path);
}

/* ---- a Hugging Face checkpoint --------------------------------------------------------------- */

enum meaning { OTHER, TENSORS, DESCRIPTION, UNKNOWN };

/* The meaning of a file in a checkpoint's directory, or in its folder of optimizer state (`stem`
 * tells which). */
static enum meaning meaning_of(const char *name, const char *stem)
{
    static const char *const descriptions[] = {"config.json", HL_LORA_CONFIG,
                                               HL_QUANTIZATION_CONFIG};
    if (hf_is_file_of(name, stem) || strcmp(name, HL_LORA_FILE) == 0)
        return TENSORS;
    for (size_t i = 0; i < HL_ARRAY_LEN(descriptions) && strcmp(stem, HF_MODEL) == 0; i++)
        if (strcmp(name, descriptions[i]) == 0)
            return DESCRIPTION;
    return ends_with(name, ".safetensors") || ends_with(name, ".safetensors.index.json") ? UNKNOWN
                                                                                         : OTHER;
}

HL_CHECK static hl_status check_stem(const char *dir, const char *stem, bool replace)
{
    HL_AUTO(listing_fini) struct listing l = {0};
    HL_TRY(list_folder(dir, &l));
    for (int i = 0; i < l.count; i++) {
        const char *name = l.names[i]->d_name;
        enum meaning is = meaning_of(name, stem);
        if (is == UNKNOWN)
            return hl_fail(HL_EEXIST, "%s has %s, " FOREIGN, dir, name);
        if (is != OTHER && !replace)
            return hl_fail(HL_EEXIST, "%s has %s of another checkpoint; " OTHERWISE, dir, name);
    }
    return HL_OK;
}

hl_status hf_folder_check(const char *dir, bool replace)
{
    char state[PATH_MAX];
    HL_TRY(cli_path(state, "%s/" HF_OPTIMIZER, dir));
    HL_TRY(check_stem(dir, HF_MODEL, replace));
    return check_stem(state, HF_OPTIMIZER, replace);
}

HL_CHECK static hl_status clear_stem(const char *dir, const char *stem)
{
    HL_AUTO(listing_fini) struct listing l = {0};
    HL_TRY(list_folder(dir, &l));
    for (int i = 0; i < l.count; i++)
        if (meaning_of(l.names[i]->d_name, stem) == DESCRIPTION)
            HL_TRY(remove_file(dir, l.names[i]->d_name));
    for (int i = 0; i < l.count; i++)
        if (meaning_of(l.names[i]->d_name, stem) == TENSORS)
            HL_TRY(remove_file(dir, l.names[i]->d_name));
    return HL_OK;
}

hl_status hf_folder_clear(const char *dir)
{
    char state[PATH_MAX];
    HL_TRY(cli_path(state, "%s/" HF_OPTIMIZER, dir));
    HL_TRY(clear_stem(dir, HF_MODEL));
    HL_TRY(clear_stem(state, HF_OPTIMIZER));
    (void)rmdir(state); /* removed only if it is empty */
    return HL_OK;
}

/* ---- files of ranks -------------------------------------------------------------------------- */

/* Which rank an entry belongs to, in the layout of this export. */
enum owner {
    NOBODYS,    /* no rank */
    ITS_OWN,    /* a rank that is written now */
    ANOTHERS,   /* another rank of the same layout */
    OF_ANOTHER, /* a rank of another TP, PP or EP */
};

static enum owner owner_of(const struct ranks_folder *f, const char *entry)
{
    struct hl_megatron_place place;
    char rank[NAME_MAX + 1];
    const char *suffix = f->torch ? "" : RANKS_FILE;
    if (strncmp(entry, "mp_rank_", strlen("mp_rank_")) != 0 || !ends_with(entry, suffix))
        return NOBODYS;
    snprintf(rank, sizeof(rank), "%.*s", (int)(strlen(entry) - strlen(suffix)), entry);
    if (hl_megatron_place(rank, &f->sizes, &place) != HL_OK) {
        hl_error_clear();
        return OF_ANOTHER;
    }
    return (f->pp < 0 || (uint64_t)f->pp == place.pp) &&
                   (f->tp < 0 || (uint64_t)f->tp == place.tp) &&
                   (f->ep < 0 || (uint64_t)f->ep == place.ep)
               ? ITS_OWN
               : ANOTHERS;
}

/* Checks a rank's folder as Megatron has it. *holds: it has the file that will be replaced. */
HL_CHECK static hl_status check_rank_folder(const char *dir, bool *holds)
{
    HL_AUTO(listing_fini) struct listing l = {0};
    HL_TRY(list_folder(dir, &l));
    *holds = false;
    for (int i = 0; i < l.count; i++) {
        const char *name = l.names[i]->d_name;
        if (strcmp(name, HL_MEGATRON_FILE) == 0)
            *holds = true;
        else if (strncmp(name, HL_MEGATRON_FILE ".", strlen(HL_MEGATRON_FILE ".")) != 0)
            return hl_fail(HL_EEXIST, "%s has %s, " FOREIGN, dir, name);
    }
    return HL_OK;
}

hl_status ranks_folder_check(const struct ranks_folder *f, bool replace)
{
    HL_AUTO(listing_fini) struct listing l = {0};
    HL_TRY(list_folder(f->dir, &l));
    for (int i = 0; i < l.count; i++) {
        const char *name = l.names[i]->d_name;
        enum owner of = owner_of(f, name);
        bool holds = of != NOBODYS;
        char path[PATH_MAX];
        if (of == NOBODYS && (f->torch || ends_with(name, RANKS_FILE)))
            return hl_fail(HL_EEXIST, "%s has %s, " FOREIGN, f->dir, name);
        if (of == NOBODYS || of == ANOTHERS)
            continue;
        HL_TRY(cli_path(path, "%s/%s", f->dir, name));
        if (f->torch)
            HL_TRY(check_rank_folder(path, &holds));
        if (!replace && of == OF_ANOTHER)
            return hl_fail(HL_EEXIST,
                           "%s has %s of an export with another TP, PP or EP, which %s; " OTHERWISE,
                           f->dir, name,
                           f->torch ? "Megatron would load" : "would look like a rank of this one");
        if (!replace && holds)
            return hl_fail(HL_EEXIST, "%s has %s of another export; " OTHERWISE, f->dir, name);
    }
    return HL_OK;
}

hl_status ranks_folder_clear(const struct ranks_folder *f)
{
    HL_AUTO(listing_fini) struct listing l = {0};
    HL_TRY(list_folder(f->dir, &l));
    for (int i = 0; i < l.count; i++) {
        const char *name = l.names[i]->d_name;
        enum owner of = owner_of(f, name);
        char path[PATH_MAX];
        if (of != ITS_OWN && of != OF_ANOTHER)
            continue;
        HL_TRY(cli_path(path, "%s/%s", f->dir, name));
        HL_TRY(remove_file(f->torch ? path : f->dir, f->torch ? HL_MEGATRON_FILE : name));
        if (f->torch)
            (void)rmdir(path);
    }
    return HL_OK;
}
