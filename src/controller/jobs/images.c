/* The image of a job: its name is pinned once, and all nodes have it before the containers start.
 *
 *     a node has it --its pinned name--> job record --> all nodes are asked for that name
 *       ^ asked when the job waits; where it lacks it, it pulls
 *
 * The first node that has the image resolves its name; only then are the others asked, for the
 * resolved name. So if a tag moves later, only later jobs get the other image. While a job is next
 * in line, its image is already pulled to where it would run. */
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "controller/jobs/jobs_private.h"

#define AHEAD_NS   (2 * HL_NS_PER_S) /* between two checks of a waiting job */
#define AGAIN_NS   (HL_NS_PER_S / 2) /* between two queries about a pull */
#define ASKING_MAX 4                 /* nodes queried at the same time for waiting jobs */
#define AHEAD_ONE  1                 /* place in line up to which images are pulled ahead */

struct node_image {
    char node[HL_NODE_NAME_MAX + 1];
    char *image; /* as it was requested */
    enum hl_api_image_state state;
    bool asking;
    bool placed; /* the query was sent after the gang got its slots */
    uint64_t asked_ns;
    char text[HL_JOB_TEXT_MAX];
};

struct job_images {
    char *pinned;
    int attempt; /* the attempt to which `nodes` belong */
    struct node_image *nodes;
    size_t count;
    uint64_t looked_ns;
};

/* ---- the record ------------------------------------------------------------------------------ */

const char *images_pinned(const struct job *j)
{
    return j->images != NULL && j->images->pinned != NULL ? j->images->pinned : "";
}

hl_status images_pin(struct job *j, const char *pinned)
{
    if (pinned == NULL || pinned[0] == '\0')
        return HL_OK;
    if (j->images == NULL)
        j->images = calloc(1, sizeof(*j->images));
    char *copy = j->images != NULL ? strdup(pinned) : NULL;
    if (copy == NULL)
        return hl_fail(HL_ENOMEM, "out of memory for the image of job %s", j->id);
    free(j->images->pinned);
    j->images->pinned = copy;
    return HL_OK;
}

static void nodes_clear(struct job_images *images)
{
    for (size_t i = 0; i < images->count; i++)
        free(images->nodes[i].image);
    free(images->nodes);
    images->nodes = NULL;
    images->count = 0;
}

void images_free(struct job_images *images)
{
    if (images == NULL)
        return;
    nodes_clear(images);
    free(images->pinned);
    free(images);
}

/* ---- what is known --------------------------------------------------------------------------- */

static bool has_image(const struct job *j)
{
    enum hl_job_executor kind = controller_agents_kind(j->controller);
    return j->executor == &agents_executor && j->spec.image != NULL && j->spec.image[0] != '\0' &&
           (kind == HL_JOB_EXECUTOR_DOCKER || kind == HL_JOB_EXECUTOR_PODMAN);
}

static const char *image_wanted(const struct job *j)
{
    return images_pinned(j)[0] != '\0' ? images_pinned(j) : j->spec.image;
}

static struct node_image *node_image_find(const struct job *j, const char *node)
{
    const struct job_images *images = j->images;
    for (size_t i = 0; images != NULL && images->attempt == j->run.attempt && i < images->count;
         i++)
        if (strcmp(images->nodes[i].node, node) == 0)
            return &images->nodes[i];
    return NULL;
}

/* The node's last answer, provided it is about the image that is wanted now. NULL: not known. */
static const struct node_image *node_image_now(const struct job *j, const char *node)
{
    const struct node_image *x = node_image_find(j, node);
    bool known = x != NULL && x->image != NULL && strcmp(x->image, image_wanted(j)) == 0;
    return known ? x : NULL;
}

static bool node_has_image(const struct job *j, const char *node)
{
    const struct node_image *x = node_image_now(j, node);
    return x != NULL && x->state == HL_API_IMAGE_STATE_HERE;
}

bool images_wait(const struct job *j)
{
    if (!has_image(j) || j->run.plan == NULL)
        return false;
    for (int i = 0; i < j->run.container_count; i++)
        if (!node_has_image(j, j->run.containers[i].node))
            return true;
    return false;
}

bool images_missing(const struct job *j, int *index, char *why, size_t size)
{
    if (!has_image(j) || j->run.state != HL_API_JOB_STATE_STARTING)
        return false;
    for (int i = 0; i < j->run.container_count; i++) {
        const struct node_image *x = node_image_now(j, j->run.containers[i].node);
        if (x == NULL || !x->placed || x->asking || x->state != HL_API_IMAGE_STATE_ABSENT ||
            j->run.containers[i].state != HL_API_CONTAINER_STATE_WANTED)
            continue;
        snprintf(why, size, "image %.100s is not available: %s", x->image, x->text);
        *index = i;
        return true;
    }
    return false;
}

void images_tell(const struct job *j, char *out, size_t cap)
{
    for (int i = 0; images_wait(j) && i < j->run.container_count; i++) {
        const struct node_image *x = node_image_now(j, j->run.containers[i].node);
        if (x != NULL && x->state == HL_API_IMAGE_STATE_PULLING) {
            snprintf(out, cap, "node %s: %s", x->node, x->text);
            return;
        }
    }
}

void images_tell_ahead(const struct job *j, char *io, size_t cap)
{
    const struct job_images *images = j->images;
    size_t at = strlen(io);
    if (!has_image(j) || images == NULL || j->run.state != HL_API_JOB_STATE_PENDING ||
        images->attempt != j->run.attempt)
        return;
    for (size_t i = 0; i < images->count; i++) {
        const struct node_image *x = node_image_now(j, images->nodes[i].node);
        if (x == NULL || x->text[0] == '\0' || x->state == HL_API_IMAGE_STATE_HERE)
            continue;
        bool absent = x->state == HL_API_IMAGE_STATE_ABSENT;
        snprintf(io + at, cap - at, "; node %s: %s%s", x->node,
                 absent ? "its image is not available: " : "", x->text);
        return;
    }
}

/* ---- asking ---------------------------------------------------------------------------------- */

/* Context of a call; the job may be gone when the answer arrives. */
struct image_call {
    struct hl_controller *c;
    char job[HL_JOB_ID_MAX + 1];
    char node[HL_NODE_NAME_MAX + 1];
    int attempt;
    bool ahead;
};

static void image_found(struct job *j, const char *pinned)
{
    char text[HL_JOB_TEXT_MAX];
    if (images_pinned(j)[0] != '\0' || pinned[0] == '\0')
        return;
    if (images_pin(j, pinned) != HL_OK) {
        hl_warn("%s", hl_error_text()); /* the query is repeated later */
        return;
    }
    snprintf(text, sizeof(text), "%.80s is %.160s", j->spec.image, pinned);
    job_note(j, "image", text);
}

static void on_prepared(void *arg, hl_status st, const char *text,
                        const struct hl_api_agent_prepare_image_results *r)
{
    struct image_call *k = arg;
    if (controller_stopped(k->c)) {
        free(k);
        return;
    }
    struct job *j;
    HASH_FIND_STR(k->c->jobs->table, k->job, j);
    struct node_image *x =
        j != NULL && j->run.attempt == k->attempt ? node_image_find(j, k->node) : NULL;
    k->c->jobs->images_asking -= k->ahead;
    free(k);
    if (x == NULL)
        return;
    x->asking = false;
    snprintf(x->text, sizeof(x->text), "%s", st == HL_OK ? r->text : text);
    if (st == HL_OK)
        x->state = r->state;
    else if (st == HL_EUNSUPPORTED) /* an older Agent, whose containers pull the image themselves */
        x->state = HL_API_IMAGE_STATE_HERE;
    else
        hl_debug("image is requested again job=%s node=%s error=\"%s\"", j->id, x->node, text);
    if (st == HL_OK && r->state == HL_API_IMAGE_STATE_HERE && !hl_job_state_ended(j->run.state))
        image_found(j, r->pinned);
}

static struct node_image *node_image_add(struct job *j, const char *node)
{
    struct node_image *x = node_image_find(j, node);
    if (x != NULL)
        return x;
    if (j->images == NULL && (j->images = calloc(1, sizeof(*j->images))) == NULL)
        return NULL;
    struct job_images *images = j->images;
    if (images->attempt != j->run.attempt)
        nodes_clear(images);
    images->attempt = j->run.attempt;
    x = realloc(images->nodes, (images->count + 1) * sizeof(*x));
    if (x == NULL)
        return NULL;
    images->nodes = x;
    x = &images->nodes[images->count++];
    *x = (struct node_image){0};
    snprintf(x->node, sizeof(x->node), "%s", node);
    return x;
}

/* True when the answer is still valid, a query is in flight, or the last one was too recent. */
static bool need_not_ask(const struct job *j, const struct node_image *x)
{
    bool placed = j->run.state == HL_API_JOB_STATE_STARTING;
    bool same = x->image != NULL && strcmp(x->image, image_wanted(j)) == 0;
    if (x->asking || (same && x->state == HL_API_IMAGE_STATE_HERE))
        return true;
    if (same && x->state == HL_API_IMAGE_STATE_ABSENT && placed && x->placed)
        return true;
    return same && x->placed == placed && hl_now_ns() < x->asked_ns + AGAIN_NS;
}

static void node_ask(struct job *j, const char *node)
{
    struct hl_controller *c = j->controller;
    struct node *n = node_find(c, node);
    struct node_image *x = n != NULL && node_ready(n) ? node_image_add(j, node) : NULL;
    bool ahead = j->run.state != HL_API_JOB_STATE_STARTING;
    if (x == NULL || need_not_ask(j, x) || (ahead && c->jobs->images_asking >= ASKING_MAX))
        return;
    struct image_call *k = calloc(1, sizeof(*k));
    char *image = strdup(image_wanted(j));
    if (k == NULL || image == NULL) {
        free(k);
        free(image);
        return; /* the next tick asks */
    }
    *k = (struct image_call){.c = c, .attempt = j->run.attempt, .ahead = ahead};
    memcpy(k->job, j->id, sizeof(k->job));
    memcpy(k->node, x->node, sizeof(k->node));
    if (x->image == NULL || strcmp(x->image, image) != 0)
        x->state = HL_API_IMAGE_STATE_PULLING;
    free(x->image);
    x->image = image;
    x->asking = true;
    x->placed = !ahead;
    x->asked_ns = hl_now_ns();
    c->jobs->images_asking += ahead;
    controller_hold(c);
    hl_call_agent_prepare_image_async(n->agent,
                                      &(struct hl_api_agent_prepare_image_params){x->image},
                                      c->opts.rpc_timeout_ms, c->opts.loop, on_prepared, k);
}

/* ---- where ----------------------------------------------------------------------------------- */

/* Until the name is resolved, only one node is asked. */
static void plan_ask(struct job *j, const struct hl_plan *plan)
{
    for (int i = 0; i < plan->container_count; i++) {
        node_ask(j, plan->containers[i].node);
        if (images_pinned(j)[0] == '\0')
            return;
    }
}

static void any_ask(struct job *j)
{
    for (struct node *n = nodes_first(j->controller); n != NULL; n = n->hh.next)
        if (node_takes(n) == HL_OK) {
            node_ask(j, n->name);
            break;
        }
    hl_error_clear();
}

static void ahead_ask(struct job *j)
{
    struct hl_plan *plan = NULL;
    if (j->images != NULL && hl_now_ns() < j->images->looked_ns + AHEAD_NS)
        return;
    if (j->wait.place > 0 && j->wait.place <= AHEAD_ONE) {
        plan = job_plan_ahead(j, false);
        if (plan == NULL)
            plan = job_plan_ahead(j, true);
        hl_error_clear();
    }
    if (plan != NULL)
        plan_ask(j, plan);
    else if (images_pinned(j)[0] == '\0')
        any_ask(j);
    hl_plan_free(plan);
    if (j->images != NULL)
        j->images->looked_ns = hl_now_ns();
}

void images_round(struct job *j)
{
    if (!has_image(j))
        return;
    if (j->run.state == HL_API_JOB_STATE_PENDING)
        ahead_ask(j);
    else if (j->run.state == HL_API_JOB_STATE_STARTING && j->run.plan != NULL && images_wait(j))
        plan_ask(j, j->run.plan);
}
