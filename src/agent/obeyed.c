/* The file is written once per Controller lifetime, before the first order of that Controller is
 * obeyed. */
#include "agent/obeyed.h"

#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "os/file.h"

static hl_status obeyed_read(struct obeyed *o)
{
    HL_AUTO(hl_buf_fini) struct hl_buf text = HL_BUF(HL_EPOCH_TEXT_MAX);
    HL_TRY(hl_file_read(o->path, &text));
    return hl_epoch_parse(text.len > 0 ? text.data : "", &o->newest);
}

void obeyed_init(struct obeyed *o, const char *state_dir)
{
    pthread_mutex_init(&o->lock, NULL);
    o->newest = (struct hl_epoch){0};
    snprintf(o->path, sizeof(o->path), "%s/controller", state_dir);
    hl_status st = obeyed_read(o);
    if (st != HL_OK && st != HL_ENOENT)
        hl_warn("the last Controller that was obeyed is unknown, the next one will be obeyed "
                "error=\"%s\"",
                hl_error_text());
}

void obeyed_fini(struct obeyed *o)
{
    pthread_mutex_destroy(&o->lock);
}

static void obeyed_write(const struct obeyed *o)
{
    char text[HL_EPOCH_TEXT_MAX];
    hl_epoch_print(&o->newest, text);
    if (hl_file_write_durable(o->path, text, strlen(text), 0644) != HL_OK)
        hl_warn(
            "can't store which Controller is obeyed, the next Agent will not know it error=\"%s\"",
            hl_error_text());
}

/* Call with the lock held. */
static hl_status obeyed_told(struct obeyed *o, const struct hl_epoch *told)
{
    const struct hl_epoch before = o->newest;
    HL_TRY(hl_epoch_hear(&o->newest, told));
    if (o->newest.number != before.number || !hl_id_equal(o->newest.cluster, before.cluster))
        obeyed_write(o);
    return HL_OK;
}

hl_status obeyed_hear(struct obeyed *o, const char *cluster, uint64_t epoch)
{
    struct hl_epoch told = {.number = epoch};
    if (cluster[0] != '\0')
        HL_TRY(hl_id_parse(cluster, &told.cluster));
    pthread_mutex_lock(&o->lock);
    hl_status st = obeyed_told(o, &told);
    pthread_mutex_unlock(&o->lock);
    return st;
}

hl_status obeyed_begin(struct obeyed *o, uint64_t epoch)
{
    pthread_mutex_lock(&o->lock);
    hl_status st = obeyed_told(o, &(struct hl_epoch){.number = epoch});
    if (st != HL_OK)
        pthread_mutex_unlock(&o->lock);
    return st;
}

void obeyed_end(struct obeyed *o)
{
    pthread_mutex_unlock(&o->lock);
}
