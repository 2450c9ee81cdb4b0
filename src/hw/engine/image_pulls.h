/* hw/engine/image_pulls.h - images that are brought to this node before containers need them.
 *
 *     prepare --it is not here--> pulling --thread ends--> here, or failed until it is asked again
 *
 * A pull that nobody has asked about for five minutes is broken off; what the engine has of it
 * stays.
 *
 * Owns:    the threads of pulls, which close ends.
 * Threads: any; prepare waits for the engine's answers, not for pulls.
 * Errors:  HL_EUNSUPPORTED: this node's ranks have no images. HL_EBUSY: too many pulls. That an
 *          image can't be had is an answer.
 * Units:   none.
 * Limits:  16 pulls at once.
 */
#ifndef HL_HW_ENGINE_IMAGE_PULLS_H
#define HL_HW_ENGINE_IMAGE_PULLS_H

#include "api/types.h"
#include "base/arena.h"
#include "base/status.h"

struct hl_image_pulls;

/* executor: "process", "docker", "podman". */
hl_status hl_image_pulls_open(const char *executor, struct hl_image_pulls **out) HL_CHECK;
/* NULL is fine. */
void hl_image_pulls_close(struct hl_image_pulls *p);
/* Whether the image is here; where it is not, its pull goes on or begins. */
hl_status hl_image_pulls_prepare(struct hl_image_pulls *p, const char *image,
                                 struct hl_arena *arena,
                                 struct hl_api_agent_prepare_image_results *out) HL_CHECK;

#endif
