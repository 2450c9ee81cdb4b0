/* hw/engine/image_pulls.h - pulls images to this node before containers need them.
 *
 *     prepare --it is not here--> pulling --thread ends--> here, or failed until it is asked again
 *
 * A pull that no caller has asked about for five minutes is aborted; what the engine has of it
 * stays.
 *
 * Owns:    the threads of pulls, until close.
 * Threads: any; prepare waits for the engine's answers, not for pulls.
 * Errors:  HL_EUNSUPPORTED: this node's ranks use no images. HL_EBUSY: too many pulls. An image
 *          that can't be pulled is a result, not an error.
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
/* Returns whether the image is here; if not, its pull continues or begins. */
hl_status hl_image_pulls_prepare(struct hl_image_pulls *p, const char *image,
                                 struct hl_arena *arena,
                                 struct hl_api_agent_prepare_image_results *out) HL_CHECK;

#endif
