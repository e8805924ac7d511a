/*
 * A directory that models are put into, and the place inside it where they are made ready:
 * DIR/.sluice/initializer/, which is gone when all is done, so that an engine that lists the
 * directory sees a model and nothing else.
 *
 * A model is made ready in DIR/.sluice/initializer/NUMBER.KIND/ and moved file by file once all
 * models are ready. Whoever is killed while moving finds a mark and goes on moving.
 */
#ifndef SL_DESTINATION_H
#define SL_DESTINATION_H

#include "choosing.h"
#include "err.h"
#include "mem.h"
#include "thread.h"

struct sl_destination;
/**
 * Make the directory and take its lock, DIR/.sluice/lock, which goes with the
 * destination; waits while another one holds it, ends on cancel. What cannot be written needs none.
 * SL_E_NO_SPACE if it cannot be made.
 */
struct sl_destination *sl_destination_open(const char *path, struct sl_cancel *cancel,
                                           struct sl_err *err);
void sl_destination_free(struct sl_destination *destination);
SL_AUTO_DEFINE(sl_destination)
/** Is this path the same directory? */
bool sl_destination_is(const struct sl_destination *destination, const char *path);

/** "load": what a load publishes. "files": what came out of an archive. */
#define SL_WORK_LOAD  "load"
#define SL_WORK_FILES "files"
/** DIR/.sluice/initializer/NUMBER.KIND; made if it is missing. free() it. */
char *sl_destination_work(struct sl_destination *destination, unsigned number, const char *kind,
                          struct sl_err *err);
/** Throw away what lies there. */
int sl_destination_discard(struct sl_destination *destination, unsigned number, const char *kind,
                           struct sl_err *err);
/** What a load published there is about to be spoiled: the next load is to begin anew. */
int sl_destination_spoil(struct sl_destination *destination, unsigned number, struct sl_err *err);
/** A descriptor of it, close() it. */
int sl_destination_open_work(struct sl_destination *destination, unsigned number, const char *kind,
                             struct sl_err *err);

/**
 * If so many bytes do not fit, files that will be replaced go first: an earlier run of this Pod
 * left them, and a memory volume rarely holds a model twice. How many went; whether it then fits,
 * the load will say.
 */
unsigned sl_destination_make_room(struct sl_destination *destination, uint64_t bytes,
                                  const struct sl_choice *choice);
/** The directory itself; borrowed. */
int sl_destination_fd(const struct sl_destination *destination);

/** A finished result to be moved; request: a hash of what was asked for. */
struct sl_ready {
    char request[65];
    char kind[8];     /* "load", "files" */
    char strip[1032]; /* as sl_choice.strip */
};
/** Leave the mark: from here on only forwards. */
int sl_destination_mark(struct sl_destination *destination, unsigned number,
                        const struct sl_ready *ready, struct sl_err *err);
/**
 * Find the mark of an earlier run that was to fulfil the same request.
 *
 * @number   of the model.
 * @request  the hash of what is asked for; may be ready->request.
 * @ready    out: what the mark says; as it was if there is none.
 * @return   false: there is none.
 */
bool sl_destination_marked(struct sl_destination *destination, unsigned number, const char *request,
                           struct sl_ready *ready);
/** The mark is of something that must not be moved: the next run starts over. */
void sl_destination_unmark(struct sl_destination *destination, unsigned number);

/*
 * Moving to final places, as moving.h has it: everything is listed, then judged, then marked, then
 * nothing is in the way, then it is moved. Good at any point: what was moved before a kill is not
 * listed any more. After a failure nothing is listed.
 */

/** What is ready in a work place. */
int sl_destination_list(struct sl_destination *destination, unsigned number,
                        const struct sl_ready *ready, struct sl_err *err);
/**
 * Find out whether what is ready could be moved by itself: list, judge and look at it, and forget
 * all that is listed.
 *
 * @number  of the model.
 * @ready   which of its work places, and what is cut off.
 * @cancel  ends it; may be NULL.
 * @return  0, or -1 as those three.
 */
int sl_destination_judge_alone(struct sl_destination *destination, unsigned number,
                               const struct sl_ready *ready, const struct sl_cancel *cancel,
                               struct sl_err *err);
/** A link that sl_destination_link() will make. */
int sl_destination_list_link(struct sl_destination *destination, const char *name,
                             struct sl_err *err);
int sl_destination_judge(struct sl_destination *destination, const struct sl_cancel *cancel,
                         struct sl_err *err);
int sl_destination_look(struct sl_destination *destination, struct sl_err *err);
/** Over what is there. */
int sl_destination_move(struct sl_destination *destination, struct sl_err *err);
/** Make a link to something local, unless something of this name is there. */
int sl_destination_link(struct sl_destination *destination, const char *name, const char *target,
                        struct sl_err *err);
/** Remove .sluice/initializer, and .sluice if nothing else is in it. */
int sl_destination_clean(struct sl_destination *destination, struct sl_err *err);

#endif
