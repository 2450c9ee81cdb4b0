/* What a rank reports about its steps. The page is looked up once, on the first call: a parked
 * process only learns then which rank it is. */
#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>

#include "client/client_private.h"
#include "os/step_page.h"

static struct {
    pthread_once_t once;
    struct hl_step_page *page; /* NULL: no one reads it */
    hl_status st;
    char why[HL_ERROR_TEXT_MAX];
} steps = {.once = PTHREAD_ONCE_INIT};

static void find_page(void)
{
    static struct hl_step_pages pages; /* stays mapped until the process ends */
    const char *text = getenv("HELIOS_STEPS");
    if (text == NULL || text[0] == '\0')
        return;
    steps.st = hl_step_page_find(text, &pages, &steps.page);
    if (steps.st == HL_OK)
        hl_step_begin(steps.page, (uint64_t)getpid(), hl_now_ns());
    else
        snprintf(steps.why, sizeof(steps.why), "%s", hl_error_text());
}

/* *out NULL: no one reads the page. */
static hl_status page_get(struct hl_step_page **out)
{
    pthread_once(&steps.once, find_page);
    *out = steps.page;
    return steps.st == HL_OK ? HL_OK : hl_fail(steps.st, "HELIOS_STEPS: %s", steps.why);
}

int helios_report(int64_t step, double loss, uint64_t tokens)
{
    struct hl_step_page *page;
    if (step < 0)
        return hl_fail(HL_EINVAL, "helios_report: step %lld is below 0", (long long)step);
    HL_TRY(page_get(&page));
    if (page != NULL)
        hl_step_report(page, step, loss, tokens, hl_now_ns());
    return HELIOS_OK;
}

int helios_waited(uint64_t ns)
{
    struct hl_step_page *page;
    HL_TRY(page_get(&page));
    if (page != NULL)
        hl_step_waited(page, ns);
    return HELIOS_OK;
}

int helios_held(const void *address, uint64_t size)
{
    struct hl_step_page *page;
    HL_TRY(page_get(&page));
    if (page != NULL)
        hl_step_held(page, (uint64_t)(uintptr_t)address, size);
    return HELIOS_OK;
}

int helios_trouble(const char *text)
{
    struct hl_step_page *page;
    if (text == NULL)
        return hl_fail(HL_EINVAL, "helios_trouble: text is NULL");
    HL_TRY(page_get(&page));
    if (page != NULL)
        hl_step_trouble(page, text);
    return HELIOS_OK;
}

int helios_activity(int activity)
{
    struct hl_step_page *page;
    if (activity < HELIOS_JOINING || activity > HELIOS_SAVING)
        return hl_fail(HL_EINVAL,
                       "helios_activity: %d is not one of HELIOS_JOINING to HELIOS_SAVING",
                       activity);
    HL_TRY(page_get(&page));
    if (page != NULL)
        hl_step_set_activity(page, (enum hl_step_activity)activity, hl_now_ns());
    return HELIOS_OK;
}

int helios_joined(uint32_t generation)
{
    struct hl_step_page *page;
    HL_TRY(page_get(&page));
    if (page != NULL)
        hl_step_join(page, generation, hl_now_ns());
    return HELIOS_OK;
}

uint32_t helios_generation(void)
{
    struct hl_step_page *page;
    struct hl_step_state s;
    if (page_get(&page) != HL_OK || page == NULL || !hl_step_read(page, &s))
        return 0;
    return (uint32_t)s.generation;
}
