/*
 * One load from spec to ready. Any thread, several loads at once; each blocks its thread and has
 * threads of its own while it reads. The spec is borrowed for the call.
 */
#ifndef SL_LOAD_H
#define SL_LOAD_H

#include "plan.h"
#include "progress.h"
#include "publish.h"
#include "reader.h"
#include "spec.h"

struct sl_load_result {
    bool already; /* the same version was there: nothing was read */
    uint64_t bytes, fetched, resumed, verified, unhashed; /* at the destination; received; … */
    bool unhashed_matters; /* some of it has hashes, or they were asked for: not none of it as usual
                            */
    uint64_t inherited;    /* taken over from another version */
    uint64_t tensors, objects, files;
    uint64_t decrypted, cast, sliced; /* of the tensors */
    uint64_t gpu_decrypted, gpu_cast; /* of these, by a GPU (whoever fills it sets them) */
    uint64_t checks, sidecars, index_requests, retries, refetched_ranges;
    uint64_t hedged, wasted; /* slow requests sent again; bytes that came and were thrown away */
    uint64_t mirrored;       /* of what was received: from mirrors of a registry */
    uint64_t cached;         /* the same, from caches (source.through) */
    uint64_t fallbacks;      /* sources read in a simpler way, since the better one failed */
    uint64_t unversioned; /* of the objects: nothing tells their versions apart, sl_plan_version */
    uint64_t range_bytes; /* of one request, at most */
    struct sl_reader_outcome reading; /* of the last try: connections, threads, and why so many */
    const char *destination;          /* kind of its pages (pages.h); "" for none */
    double seconds, plan_seconds, key_seconds, read_seconds, publish_seconds;
    struct sl_supplier places[SL_SUPPLIERS_MAX]; /* whose bytes they are */
    struct sl_signed_by signed_by;
    size_t place_count;
    char path[512], uri[512]; /* without secrets; cut where they are longer */
};
/**
 * Load one model: lock, plan, check room, read, verify, publish.
 *
 * @spec      borrowed for the call.
 * @cancel    ends it within a second and leaves a resumable state; may be NULL.
 * @progress  finished here; may be NULL.
 * @result    out: also after a failure, as far as it came; may be NULL.
 * @return    0, or -1 with the error of the last source: SL_E_USAGE, SL_E_AUTH, SL_E_NOT_FOUND,
 *            SL_E_INTEGRITY, SL_E_NO_SPACE, SL_E_NET, SL_E_FORMAT, SL_E_GPU; SL_E_TIMEOUT:
 *            readers.timeoutSeconds are over; SL_E_CANCELED.
 *
 * Blocks. A source that changed in mid-load restarts once from a clean state, then SL_E_INTEGRITY.
 * Mirrors are tried in turn when a source cannot be reached, refuses, or lacks the objects.
 */
int sl_load_run(const struct sl_spec *spec, struct sl_cancel *cancel, struct sl_progress *progress,
                struct sl_load_result *result, struct sl_err *err);
/**
 * Where a model goes, decided when its version and size are known but nothing is read: fill path,
 * an absolute directory that is there, in a folder of this process alone (sl_publish_open_own), or
 * refuse (-1 with err); and older, one of the same kind with another version of which files may be
 * taken over, or "". It runs on the load's thread, and once more where
 * a load starts over: the object changed, or a mirror is tried.
 */
struct sl_load_place {
    int (*choose)(void *arg, const struct sl_plan *plan, char path[SL_PUBLISH_PATH_MAX],
                  char older[SL_PUBLISH_PATH_MAX], struct sl_err *err);
    void *arg;
};
/**
 * As sl_load_run(), into the directory that `place` chooses instead of sink.tmpfs.path.
 *
 * @place             borrowed for the call.
 * @cancel, progress  as of sl_load_run().
 * @result            out: the same.
 * @return            the same, or what place->choose() fails with.
 */
int sl_load_run_placed(const struct sl_spec *spec, const struct sl_load_place *place,
                       struct sl_cancel *cancel, struct sl_progress *progress,
                       struct sl_load_result *result, struct sl_err *err);
struct sl_load_destination;
/**
 * As sl_load_run(), to any destination (load_destination.h). The load itself looks at no sink of
 * the spec.
 *
 * @to                lives until it returns.
 * @cancel, progress  as of sl_load_run().
 * @result            out: the same.
 * @return            the same, or what the destination fails with.
 */
int sl_load_run_to(const struct sl_spec *spec, struct sl_load_destination *to,
                   struct sl_cancel *cancel, struct sl_progress *progress,
                   struct sl_load_result *result, struct sl_err *err);
/** Would sl_load_run() refuse the spec's path for this plan, before it reads? Its errors. Nothing
 * is made, room is not looked at. */
int sl_load_would_take(const struct sl_spec *spec, const struct sl_plan *plan, struct sl_err *err);
/**
 * As sl_plan_measure(), of the spec's source, not of its mirrors, and with one try.
 *
 * @cancel  may be NULL.
 */
int sl_load_measure(const struct sl_spec *spec, struct sl_cancel *cancel, uint64_t *bytes,
                    struct sl_err *err);
/** As an object; name: the model's. */
void sl_load_result_json(struct sl_json *json, const struct sl_load_result *result,
                         const char *name);
/** Bytes per second, of what this load read, over all its time: what the summary, the page and logs
 * show beside size and time; 0: nothing was. */
double sl_load_rate(const struct sl_load_result *result);
/** "15.0 GiB in 12.4 s, 1.21 GiB/s, 64 connections", and what was not as usual; text holds 512 and
 * is returned, as of the next: files, tensors, hashes, what was changed on the way. */
const char *sl_load_summary(const struct sl_load_result *result, char text[512]);
const char *sl_load_details(const struct sl_load_result *result, char text[512]);
/** Log that it is there: one line with the summary, and one with the details for debug.
 *
 * @progress  its figures go into the JSON log.
 * @where     such as its path. */
void sl_load_say(const struct sl_load_result *result, struct sl_progress *progress,
                 const char *name, const char *where);

#endif
