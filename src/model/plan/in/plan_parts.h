/* What the files of plan/ share: the planner's own memory, and its steps in the order in which
 * sl_plan_make() takes them. */
#ifndef SL_PLAN_PARTS_H
#define SL_PLAN_PARTS_H

#include <string.h>

#include "plan.h"

struct sl_plan_claim;
struct sl_verified_reader;

/** An object that takes part. Either index or source is set once it is open. */
struct sl_candidate {
    char *name;
    uint64_t bytes;
    char *etag;                /* strong and quoted, from a listing; NULL: ask the object */
    char *pin;                 /* from a listing, NULL: none; without both, ask the object */
    struct sl_checksums *sums; /* of a listing or the first answer; NULL: none */
    bool probe;                /* read its first bytes to find its format */
    bool empty;                /* it was opened, and has no bytes */
    bool left_out;             /* once opened: the weights in it are there in another object too */
    bool named;                /* the ruling index brings it */
    bool ruled;                /* an index says which objects beside it have the weights */
    bool first_choice;         /* there is one beside it whose format is not a second choice */
    struct sl_plan_claim *claim; /* its claim on the whole model; NULL: none */
    struct sl_source *source;
    struct sl_index *index;
};

/** A sidecar that the listing shows, or that was read. */
struct sl_plan_sidecar {
    char *name; /* of the object */
    uint64_t bytes;
    bool wanted;             /* its object takes part, as far as the listing tells */
    struct sl_sidecar *read; /* ahead of need; NULL: not yet */
    struct sl_err *why;      /* it could not be; NULL: it could, or was not tried */
};

struct sl_plan_signature;

struct sl_plan_own {
    const struct sl_spec *spec;
    struct sl_plan_output output;
    struct sl_store *store;
    struct sl_candidate *candidates;
    size_t candidate_count, candidate_capacity;
    bool single; /* the URI names an object, not a prefix */
    bool ruled;  /* tensors are picked from what an index names */
    bool picks; /* single tensors are read: output.layout is not verbatim, or targets were asked for
                 */
    bool lists; /* unreadable tensors are targets, too */
    bool borrowed; /* store, keys and sidecars are the plan's that this one is a part of */
    struct sl_layout *layout;
    struct sl_minisign_key *signer;
    struct sl_plan_sidecar *listed; /* sidecars beside objects of a listing, by name */
    size_t listed_count, listed_capacity;
    struct {
        pthread_t thread; /* reads sidecars while objects are opened */
        bool started;
        pthread_mutex_t lock;
        struct {
            bool stop;
            uint64_t requests, bytes; /* for all sidecars */
        } locked;
    } ahead;
    struct sl_sidecar **sidecars;        /* one a source, NULL: none; NULL: of no source */
    bool *authentic;                     /* one a source: its sidecar is signed by the signer */
    size_t sidecars_of;                  /* how many of both */
    bool *guarded;                       /* one a source: targets are composed of it, and a sidecar
                                          * can prove that; NULL: of none */
    size_t guard_count;                  /* how many are; 0: none, or they would take too much */
    struct sl_verified_reader **guards;  /* of those, from when they are read; NULL: not yet */
    struct sl_plan_signature *signature; /* of the whole model; NULL: none is asked for */
    struct sl_keys *keys;                /* NULL: none; the indexes' tensors point to them */
    struct sl_buf texts;                 /* `what` texts of the whole-object checks */
    uint64_t *covered;                   /* per source: bytes below a check */
    size_t source_capacity, file_capacity, extent_capacity, range_capacity, literal_capacity,
        check_capacity, tensor_capacity;
    uint8_t nonce[16];       /* of the identity, if there are unversioned sources; else zeros */
    uint64_t left_out_bytes; /* of objects that the plan does not read at all */
    char **passed; /* of objects that were listed and left out: names, or folders with their '/' */
    size_t passed_count, passed_capacity;
    bool passed_more; /* than are kept */
};

/** Of an object: what follows the last slash. */
static inline const char *sl_base_name(const char *name)
{
    const char *slash = strrchr(name, '/');
    return slash ? slash + 1 : name;
}

/** plan.c: an empty one. picks: see there. SL_E_NO_SPACE. */
struct sl_plan *sl_plan_new(const struct sl_spec *spec, const struct sl_plan_output *output,
                            bool picks, struct sl_err *err);
/** objects.c: store opened, objects listed, judged, filtered and sorted into own->candidates. */
int sl_plan_gather(struct sl_plan *plan, const struct sl_source_config *config, struct sl_err *err);
/** objects.c: the same from an open store: own->candidates, in order. key: what the URI named. */
int sl_plan_list(struct sl_plan *plan, const char *key, struct sl_err *err);
/** objects.c: *err says that the only object is not there, or is empty. Where others lie below its
 * name the slash was forgotten, and err says so, as of an empty folder's mark; it asks the store.
 * Always -1. */
int sl_plan_explain_missing(struct sl_plan *plan, struct sl_err *err);
/** asked.c: plan->asked, if the listing is enough; plan->there. */
int sl_plan_ask(struct sl_plan *plan, struct sl_err *err);
/** candidates.c: one more; copied, etag may be NULL. */
int sl_plan_add_candidate(struct sl_plan *plan, const struct sl_entry *entry, bool probe,
                          struct sl_err *err);
void sl_candidate_release(struct sl_candidate *candidate);
/** candidates.c: those with true leave the candidates on purpose; out has candidate_count. */
int sl_plan_leave_out(struct sl_plan_own *own, const bool *out, struct sl_err *err);
/** rank_files.c: with source.rank, files of other ranks, and weights of none, leave the candidates.
 * SL_E_NOT_FOUND: nothing is called so; SL_E_FORMAT, E_INCOMPLETE: of other ranks, or not whole;
 * SL_E_USAGE: two sets. */
int sl_plan_choose_rank(struct sl_plan *plan, struct sl_err *err);
/** objects.c: -1 if the only object is empty, and others lie below its name, or the store says that
 * it stands for a folder. SL_E_NOT_FOUND. */
int sl_plan_refuse_marker(struct sl_plan *plan, struct sl_err *err);
/** usual.c: of what a repository publishes several times, one leaves the others out. SL_E_USAGE: it
 * is for the user to choose. */
int sl_plan_choose_usual(struct sl_plan *plan, struct sl_err *err);
/** folder_claims.c: does an object of this name say what the model consists of? */
bool sl_plan_claims(const char *name);
/** folder_claims.c: is it called like an index of a model in several files? */
bool sl_plan_names_files(const char *name);
/** folder_claims.c: candidate->claim from the object, whose source is consumed; it may stay NULL.
 * SL_E_FORMAT: it is broken. */
int sl_plan_read_claim(struct sl_candidate *candidate, struct sl_source *source,
                       struct sl_err *err);
void sl_plan_claim_free(struct sl_plan_claim *claim);
SL_AUTO_DEFINE(sl_plan_claim)
/** candidates.c: an object was listed and left out on purpose. */
int sl_plan_note_passed(struct sl_plan_own *own, const char *name, struct sl_err *err);
/** candidates.c: all of them are known: before anybody asks. */
void sl_plan_sort_passed(struct sl_plan_own *own);
/** candidates.c: is it left out on purpose, if it is there at all? */
bool sl_plan_leaves_out(const struct sl_plan_own *own, const char *name);
/** candidates.c: the same, where that it was there must be known. */
bool sl_plan_left_out(const struct sl_plan_own *own, const char *name);
/**
 * whole.c: something that names tell of is missing: refuse it, or warn where source.incomplete says
 * so.
 *
 * @format  of what is missing, as of printf().
 * @return  0 after a warning, or -1 with SL_E_FORMAT, code E_INCOMPLETE.
 */
__attribute__((format(printf, 3, 4))) int
sl_plan_find_missing(const struct sl_plan_own *own, struct sl_err *err, const char *format, ...);
/** whole.c: SL_E_FORMAT, code E_INCOMPLETE, unless all is there that names and claims tell of, or
 * source.incomplete is warn. Claims are freed. */
int sl_plan_check_whole(struct sl_plan *plan, struct sl_err *err);
/** sets.c: the other parts of a set whose first part is the model, still to be opened. */
int sl_plan_add_parts(struct sl_plan *plan, struct sl_err *err);
/** sets.c: is every set whole? */
int sl_plan_check_sets(const struct sl_plan *plan, struct sl_err *err);
/** opener.c: every candidate opened, and indexed where it is probed, several at a time. */
int sl_plan_open(struct sl_plan *plan, struct sl_err *err);
/** opener.c: the shards that the index names leave the candidates, since they come with it;
 * canceled, all of them stay. */
int sl_plan_drop_shards(struct sl_plan_own *own, const struct sl_index *index, struct sl_err *err);
/** select.c: plan->sources from the candidates. */
int sl_plan_add_sources(struct sl_plan *plan, struct sl_err *err);
/** select.c: plan->targets and metadata, as the spec's `tensors` says. */
int sl_plan_select(struct sl_plan *plan, struct sl_err *err);
/** select.c: -1 with the tensor's own error if it cannot be read. */
int sl_plan_refuse_unreadable(const struct sl_tensor *tensor, const char *object,
                              struct sl_err *err);
/** rename.c: tensors.rename, compiled. */
struct sl_renaming;
struct sl_renaming *sl_renaming_new(const struct sl_items *rules, struct sl_err *err);
void sl_renaming_free(struct sl_renaming *renaming);
SL_AUTO_DEFINE(sl_renaming)
/** Give the tensor its new name, if a rule has one; what it points to is the index's. */
int sl_rename(struct sl_renaming *renaming, struct sl_index *index, struct sl_tensor *tensor,
              struct sl_err *err);
/** Warn of rules that matched nothing. */
void sl_renaming_warn(const struct sl_renaming *renaming);
/** rename.c: do two targets have one name? */
int sl_plan_check_names(const struct sl_plan *plan, struct sl_err *err);
/** reshape.c: tensors.shard and tensors.cast. */
struct sl_reshaping;
struct sl_reshaping *sl_reshaping_new(const struct sl_spec_tensors *wanted, struct sl_err *err);
void sl_reshaping_free(struct sl_reshaping *reshaping);
SL_AUTO_DEFINE(sl_reshaping)
/** Cut and cast a target whose `out` has its new name and is else as in the file. */
int sl_reshape(struct sl_reshaping *reshaping, struct sl_target *target, struct sl_err *err);
/** Warn of rules and casts that nothing fell under. */
void sl_reshaping_warn(const struct sl_reshaping *reshaping);
/** plan_facts.c: *sum += bytes. SL_E_FORMAT: that is more than SL_PLAN_BYTES_MAX. */
int sl_plan_add_bytes(uint64_t *sum, uint64_t bytes, const struct sl_plan *plan,
                      struct sl_err *err);
/** assemble.c: files, extents (uncut), literals and tensors, for either layout. */
int sl_plan_assemble(struct sl_plan *plan, struct sl_err *err);
/**
 * placing.c: make the mapping of a target that goes here, and the extents that bring it; targets
 * that are composed, meta or empty have none.
 *
 * @target       one of plan->targets.
 * @file         its number in plan->files.
 * @file_offset  of its first byte that is written.
 * @return       0, or -1 with SL_E_NO_SPACE.
 */
int sl_plan_place(struct sl_plan *plan, const struct sl_target *target, uint32_t file,
                  uint64_t file_offset, struct sl_err *err);
enum {
    /* Whatever a request is worth, rows of slices that are as near as the heads of a request and
     * its answer are long, or as this part of what lies around the gap, are one row. */
    SL_PLAN_GAP_BYTES_MIN = 1024,
    SL_PLAN_GAP_PART = 50,
};
/** assemble_tensorizer.c: the targets as one .tensors file, into own->layout. */
int sl_plan_lay_tensorizer(struct sl_plan *plan, const struct sl_tensor *const *tensors,
                           struct sl_err *err);
/** assemble_slabs.c: the targets in slabs, into own->layout. SL_E_FORMAT for what the pool's index
 * cannot say. */
int sl_plan_lay_slabs(struct sl_plan *plan, const struct sl_tensor *const *tensors,
                      struct sl_err *err);
/** assemble_tensorizer.c: what of that file is neither data nor the head of the layout. */
int sl_plan_add_deferred_headers(struct sl_plan *plan, struct sl_err *err);
/** sidecars.c: an object that is left out by its name may be a sidecar of one that is not. */
int sl_plan_note_sidecar(struct sl_plan_own *own, const char *name, uint64_t bytes,
                         struct sl_err *err);
/** sidecars.c: objects that are sidecars of others leave the candidates, as verify.sidecar says. */
int sl_plan_set_sidecars_aside(struct sl_plan *plan, struct sl_err *err);
/** sidecars.c: the sidecars that the listing shows are read from now on, by a thread aside, until
 * sl_plan_end_sidecars(), which waits for them, or, with stop, for those that were asked for. */
void sl_plan_begin_sidecars(struct sl_plan *plan);
void sl_plan_end_sidecars(struct sl_plan *plan, bool stop);
/** sidecars.c: own->sidecars of the sources that have one, read side by side and judged. */
int sl_plan_read_sidecars(struct sl_plan *plan, struct sl_err *err);
/** plan_facts.c: the file that holds the whole object unchanged; file_count if there is none. In
 * layout verbatim it is the file with the object's number, whatever its name. In other layouts only
 * objects without tensors have one, and it has their name. */
uint32_t sl_plan_whole_file(const struct sl_plan *plan, uint32_t source);
/** store_checks.c: what stores keep of whole objects that have no other hash. */
int sl_plan_check_stores(struct sl_plan *plan, struct sl_err *err);
/** sidecars.c: a check for each range of the sources that have one, and what follows for others. */
int sl_plan_check_ranges(struct sl_plan *plan, struct sl_err *err);
/**
 * sidecar_coverage.c: as sl_plan_check_ranges() for a source of which only tensors are read.
 *
 * @sidecar  of that source, the plan's.
 * @check    holds what its checks share, the source among it; copied.
 * @covered  out: bytes that are read and under one of them.
 * @return   0, or -1: SL_E_INTEGRITY: `require`, and not all are; or what is read already is wrong.
 *           SL_E_NO_SPACE.
 */
int sl_plan_cover(struct sl_plan *plan, const struct sl_sidecar *sidecar,
                  const struct sl_check *check, uint64_t *covered, struct sl_err *err);
void sl_plan_free_sidecars(struct sl_plan_own *own);
/** composed_reads.c: which sources are read by way of their sidecars; once there are mappings and
 * sidecars. */
int sl_plan_decide_composed(struct sl_plan *plan, struct sl_err *err);
/** Before its sidecars. */
void sl_plan_free_guards(struct sl_plan *plan);
/** sidecars.c: own->sidecars for all sources, if there is none. */
int sl_plan_make_sidecar_room(struct sl_plan *plan, struct sl_err *err);
/** model_signing.c: the signature that the spec, or the node, asks for, read and verified; what was
 * used of the listing leaves the candidates; all that it names must be there or left out on
 * purpose. SL_E_INTEGRITY, code E_SIGNATURE; SL_E_FORMAT. */
int sl_plan_read_signature(struct sl_plan *plan, const struct sl_source_config *config,
                           struct sl_err *err);
/** plan_facts.c: all of an opened object, in place of what text has; counted as index. The
 * caller limits its size. */
int sl_plan_read_text(struct sl_plan *plan, struct sl_source *source, struct sl_buf *text,
                      struct sl_err *err);
/** model_signing.c: every source is in the signature, or may be there without; what it says of
 * their ranges becomes own->sidecars. */
int sl_plan_cover_by_signature(struct sl_plan *plan, struct sl_err *err);
/** model_signing.c: a check for every source whose hash is of all of it. */
int sl_plan_check_by_signature(struct sl_plan *plan, struct sl_err *err);
void sl_plan_signature_free(struct sl_plan_signature *signature);
/** signatures.c: own->signer from the spec. */
int sl_plan_read_signer(struct sl_plan *plan, struct sl_err *err);
/** plan_facts.c: one more. */
int sl_plan_add_check(struct sl_plan *plan, const struct sl_check *check, struct sl_err *err);
/** plan_facts.c: "object 'NAME'", owned by the plan; at most one for each hash that the user gave
 * and one for each source. */
int sl_plan_object_text(struct sl_plan *plan, const char *name, const char **what,
                        struct sl_err *err);
/** believed.c: whether the store's caches may bring each source: sl_plan_source.checked and
 * sampled. SL_E_USAGE: what no hash covers, unless the spec lets it. May read samples; blocks. */
int sl_plan_judge_through(struct sl_plan *plan, struct sl_err *err);
/** plan_facts.c: does the spec want signatures? */
bool sl_plan_is_signed(const struct sl_spec *spec);
/** signatures.c: a check for every object of a plan of layout verbatim. */
int sl_plan_check_signatures(struct sl_plan *plan, struct sl_err *err);
/** checks.c: which hashes are checked, and what remains unhashed. */
int sl_plan_check(struct sl_plan *plan, struct sl_err *err);
/** versions.c: sources[].version and what follows; after the checks. */
int sl_plan_judge_versions(struct sl_plan *plan, struct sl_err *err);
/** weighing.c: plan->weigh, from what is known of the store. */
void sl_plan_weigh(struct sl_plan *plan);
/** weighing.c: plan->rows, of the ranges. */
void sl_plan_count_rows(struct sl_plan *plan);
/** identity.c: plan->identity and those of its files, before it is cut. SL_E_NO_SPACE. */
int sl_plan_identify(struct sl_plan *plan, struct sl_err *err);
/** ranges.c: choose sizes, cut and merge extents into ranges, order them. */
int sl_plan_cut(struct sl_plan *plan, struct sl_err *err);

#endif
