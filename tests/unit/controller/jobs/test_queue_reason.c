/* Why a job waits, in words. */
#include "support/test.h"

#include "controller/jobs/queue.h"

/* A reason without words would be recorded again by every pass. */
TEST(every_reason_has_words)
{
    char text[HL_JOB_TEXT_MAX];
    struct job j = {.wait.reason = HL_API_WAIT_REASON_NOT_ENOUGH_FREE_SLOTS};
    queue_reason(&j, text, sizeof(text));
    assert_string_equal(text, hl_api_wait_reason_name(j.wait.reason));
    j.wait.reason = HL_API_WAIT_REASON_TOPOLOGY_UNSATISFIABLE;
    queue_reason(&j, text, sizeof(text));
    assert_string_equal(text, hl_api_wait_reason_name(j.wait.reason));
    j.wait.reason = HL_API_WAIT_REASON_NONE;
    queue_reason(&j, text, sizeof(text));
    assert_string_equal(text, "");
}
