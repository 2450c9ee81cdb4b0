#include "hw/engine/image_pulls.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "hw/engine/engine_ranks.h"

#define PULLS_MAX  16
#define UNASKED_NS (300 * HL_NS_PER_S)

/* The table's `lock` guards everything except image, thread and progress. */
struct pull {
    struct hl_image_pulls *pulls;
    char *image; /* NULL: the slot is free */
    pthread_t thread;
    uint64_t asked_ns;
    struct hl_pull_progress progress; /* used by the thread only */
    char text[256];
    bool over;
    hl_status st; /* valid once `over` */
    char why[HL_ERROR_TEXT_MAX];
};

struct hl_image_pulls {
    pthread_mutex_t lock;
    struct hl_engine_ranks client;
    bool closing;
    struct pull table[PULLS_MAX];
};

hl_status hl_image_pulls_open(const char *executor, struct hl_image_pulls **out)
{
    enum hl_engine_kind kind;
    HL_TRY(hl_engine_kind_of(executor, &kind));
    struct hl_image_pulls *p = calloc(1, sizeof(*p));
    if (p == NULL)
        return hl_fail(HL_ENOMEM, "out of memory for the table of image pulls");
    p->client.kind = kind;
    pthread_mutex_init(&p->lock, NULL);
    *out = p;
    return HL_OK;
}

static void pull_clear(struct pull *x)
{
    pthread_join(x->thread, NULL);
    free(x->image);
    *x = (struct pull){0};
}

void hl_image_pulls_close(struct hl_image_pulls *p)
{
    if (p == NULL)
        return;
    pthread_mutex_lock(&p->lock);
    p->closing = true;
    pthread_mutex_unlock(&p->lock);
    for (size_t i = 0; i < PULLS_MAX; i++)
        if (p->table[i].image != NULL)
            pull_clear(&p->table[i]);
    pthread_mutex_destroy(&p->lock);
    free(p);
}

/* ---- the thread of a pull ---- */

static bool pull_goes_on(void *arg, const struct hl_buf *out, const struct hl_buf *err)
{
    struct pull *x = arg;
    const char *printed = hl_engine_pull_printed(&x->pulls->client, out, err);
    hl_pull_progress_take(&x->progress, printed);
    pthread_mutex_lock(&x->pulls->lock);
    hl_pull_progress_tell(&x->progress, x->image, x->text, sizeof(x->text));
    bool on = !x->pulls->closing && hl_now_ns() < x->asked_ns + UNASKED_NS;
    pthread_mutex_unlock(&x->pulls->lock);
    return on;
}

static void *pull_thread(void *arg)
{
    struct pull *x = arg;
    struct hl_engine_ranks client;
    hl_status st = hl_engine_client(x->pulls->client.kind, &client);
    if (st == HL_OK)
        st = hl_engine_image_pull(&client, x->image,
                                  (struct hl_command){.go_on = pull_goes_on, .arg = x});
    pthread_mutex_lock(&x->pulls->lock);
    x->st = st;
    snprintf(x->why, sizeof(x->why), "%s", st != HL_OK ? hl_error_text() : "");
    x->over = true;
    pthread_mutex_unlock(&x->pulls->lock);
    if (st == HL_OK)
        hl_info("image pulled image=%s", x->image);
    else
        hl_warn("image not pulled image=%s error=\"%s\"", x->image, hl_error_text());
    return NULL;
}

/* ---- the table; call with the lock held ---- */

/* Finds a free slot, or that of a finished pull whose result was not polled in time. */
static struct pull *table_room(struct hl_image_pulls *p)
{
    for (size_t i = 0; i < PULLS_MAX; i++) {
        struct pull *x = &p->table[i];
        if (x->image != NULL && x->over && hl_now_ns() >= x->asked_ns + UNASKED_NS)
            pull_clear(x);
        if (x->image == NULL)
            return x;
    }
    return NULL;
}

static struct pull *table_find(struct hl_image_pulls *p, const char *image)
{
    for (size_t i = 0; i < PULLS_MAX; i++)
        if (p->table[i].image != NULL && strcmp(p->table[i].image, image) == 0)
            return &p->table[i];
    return NULL;
}

static hl_status pull_begin(struct hl_image_pulls *p, const char *image)
{
    struct pull *x = table_room(p);
    if (x == NULL)
        return hl_fail(HL_EBUSY, "%d images are being pulled to this node", PULLS_MAX);
    *x = (struct pull){.pulls = p, .image = strdup(image), .asked_ns = hl_now_ns()};
    if (x->image != NULL && pthread_create(&x->thread, NULL, pull_thread, x) == 0)
        return HL_OK;
    free(x->image);
    *x = (struct pull){0};
    return hl_fail(HL_ENOMEM, "out of memory pulling image %.200s", image);
}

/* Called when the image is not present. */
static hl_status pull_look(struct hl_image_pulls *p, const char *image, struct hl_arena *arena,
                           struct hl_api_agent_prepare_image_results *out)
{
    struct pull *x = table_find(p, image);
    out->state = HL_API_IMAGE_STATE_PULLING;
    if (x == NULL) {
        HL_TRY(pull_begin(p, image));
        out->text = hl_arena_printf(arena, "pulling %.200s", image);
        return HL_OK;
    }
    x->asked_ns = hl_now_ns();
    out->text = hl_arena_strdup(arena, x->over && x->st != HL_OK ? x->why : x->text);
    if (x->over && x->st != HL_OK)
        out->state = HL_API_IMAGE_STATE_ABSENT;
    if (x->over)
        pull_clear(x); /* the next request finds the image, or starts another pull */
    return HL_OK;
}

static hl_status answer_found(const struct hl_engine_image *image, struct hl_arena *arena,
                              struct hl_api_agent_prepare_image_results *out)
{
    out->state = HL_API_IMAGE_STATE_HERE;
    out->pinned = hl_arena_strdup(arena, image->pinned);
    return HL_OK;
}

hl_status hl_image_pulls_prepare(struct hl_image_pulls *p, const char *image,
                                 struct hl_arena *arena,
                                 struct hl_api_agent_prepare_image_results *out)
{
    struct hl_engine_ranks client;
    struct hl_engine_image found;
    if (p->client.kind == HL_ENGINE_NONE)
        return hl_fail(HL_EUNSUPPORTED,
                       "ranks of this node have no images: its executor is process");
    *out = (struct hl_api_agent_prepare_image_results){.pinned = "", .text = ""};
    hl_status st = hl_engine_client(p->client.kind, &client);
    if (st == HL_OK)
        st = hl_engine_image_find(&client, image, &found);
    if (st == HL_OK)
        return answer_found(&found, arena, out);
    if (st != HL_ENOENT) {
        out->state = HL_API_IMAGE_STATE_ABSENT;
        out->text = hl_arena_strdup(arena, hl_error_text());
        return HL_OK;
    }
    pthread_mutex_lock(&p->lock);
    st = pull_look(p, image, arena, out);
    pthread_mutex_unlock(&p->lock);
    return st;
}
