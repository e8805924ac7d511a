/* What the tests of the registry share: one registry a test, a holder that loads nothing, and words
 * for what tests do with them. */
#ifndef SL_REGISTRY_CASE_H
#define SL_REGISTRY_CASE_H

#include "registry.h"
#include "spec_case.h"
#include "thread.h"

/** Of the fake holder; guarded by lock where several threads see it. */
struct registry_fake {
    unsigned begun, running, admitted, dropped;
    bool gated;            /* loads wait before they end … */
    unsigned permits;      /* … for one of these */
    bool landed;           /* … when all bytes are there */
    enum sl_err_kind fail; /* of loads, once admitted */
    bool unversioned;      /* the source gives loads no version */
    bool open;             /* callers may have them early */
    bool reopens;          /* … and have `earlier` before a load starts over, with a permit */
    bool asks_again;       /* … and is admitted once more before it opens anything else */
    bool changes;        /* … have `first` before it starts over with version 99, with a permit */
    char first, earlier; /* bodies */
    unsigned earlier_dropped;
    unsigned shares_with;       /* loads will share with this version of their model … */
    uint64_t will_share, share; /* … so many bytes, and in the end so many */
    bool drop_fails;
    bool drops_gated; /* drops wait for a permit, too */
    bool keeps_gated; /* … and what keeps bodies */
    unsigned keeping; /* bodies that were to be kept … */
    unsigned kept;    /* … and are */
    char gone[256];   /* names of what was dropped, in order */
};
extern struct registry_fake fake;
extern pthread_mutex_t lock;
extern pthread_cond_t moved; /* something about the fake has changed */
extern struct sl_holder holder;
/** With a budget of 100 bytes, four loads at once, and an hour before a failed load is tried again.
 */
extern struct sl_registry *registry;

void reopen_with(uint64_t budget, unsigned retry_ms);
void reopen_with_places(uint64_t budget, unsigned places);
/** Until so many loads were admitted. */
void await_admitted(unsigned count);
/** Let so many gated loads end. */
void permit(unsigned count);

/** A model whose source is "memory://m/BYTES/VERSION". */
int define_as(const char *name, unsigned bytes, unsigned version,
              const struct sl_model_options *wanted, const char *replace);
/** … with a holder of the test's own, to be loaded. */
void load_at(const struct sl_holder *place, const char *name, unsigned bytes);
void define(const char *name, unsigned bytes, unsigned version);
void define_config(const char *name, unsigned bytes, unsigned version, bool pin, bool load);
/** Wait for a lease; NULL with err. */
struct sl_model_ref *ask(const char *name);
/** The same, and it must be given. */
struct sl_model_ref *must(const char *name);
/** … and is given back. */
void touch(const char *name);
/** … and must be refused, with these words. */
void refused(const char *name, enum sl_err_kind kind, const char *words);
struct sl_registry_counts counts(void);

void registry_case_setup(void);
void registry_case_teardown(void);

#endif
