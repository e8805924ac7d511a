/*
 * Sizes are judged before anything is laid out: the header of a sealed tensor holds 16 bytes for
 * each piece of it, so what a file claims decides how much memory its layout takes.
 */
#include <errno.h>
#include <string.h>
#include <sys/statvfs.h>

#include "descriptors.h"
#include "file_store.h"
#include "job.h"
#include "stores.h"

/* 64 TiB, of one conversion that seals, to a destination whose room cannot be asked. */
static const uint64_t SEALED_BYTES_MAX = 70368744177664;
/* A file that is written holds itself and its folder; so many are open anyway. */
enum { DESCRIPTORS_EACH = 2, DESCRIPTORS_ANYWAY = 40 };

/* Free bytes where the file would be, or where its first folder would be made; UINT64_MAX: not
 * known. */
static int find_free(const char *uri, uint64_t *bytes, struct sl_err *err)
{
    struct statvfs space;
    *bytes = UINT64_MAX;
    if (!sl_uri_is_local(uri))
        return 0;
    sl_autofree char *place = sl_file_path(uri, err);
    if (!place)
        return -1;
    while (statvfs(*place ? place : ".", &space) < 0) {
        char *slash = strrchr(place, '/');
        if (errno != ENOENT || !*place || slash == place)
            return 0;
        *(slash ? slash : place) = 0;
    }
    if (space.f_blocks)
        *bytes = (uint64_t)space.f_bavail * space.f_frsize;
    return 0;
}

int sl_job_check_room(struct sl_job *job, const struct sl_plan *plan, struct sl_err *err)
{
    char needs[32], has[32];
    for (size_t i = 0; i < plan->target_count; i++)
        job->wanted_bytes = sl_add_capped(job->wanted_bytes, plan->targets[i].out.bytes);
    const char *to = job->config->to;
    uint64_t room;
    if (find_free(to, &room, err) < 0)
        return -1;
    sl_human_bytes(job->wanted_bytes, needs);
    if (job->wanted_bytes > room)
        return sl_fail(err, SL_E_NO_SPACE,
                       "'%s' needs %s, its file system has %s left: make room there", to, needs,
                       sl_human_bytes(room, has));
    if (job->config->seal && job->wanted_bytes > SEALED_BYTES_MAX)
        return sl_fail_code(err, SL_E_FORMAT, "size",
                            "the tensors of '%s' are %s, and at most %s are encrypted at once: "
                            "choose some with --include",
                            sl_plan_uri(plan), needs, sl_human_bytes(SEALED_BYTES_MAX, has));
    return 0;
}

int sl_job_check_descriptors(const struct sl_job *job, struct sl_err *err)
{
    size_t needed = job->output_count * DESCRIPTORS_EACH + DESCRIPTORS_ANYWAY;
    if (!sl_uri_is_local(job->config->to) || job->output_count < 2 || needed <= sl_descriptors())
        return 0;
    return sl_fail(err, SL_E_NO_SPACE,
                   "%zu files are written side by side, and this process may have %u open: raise "
                   "its limit (ulimit -n) to %zu, or make the shards larger",
                   job->output_count, sl_descriptors(), needed);
}
