/*
 * Sets of engine caches: what vLLM, SGLang and others compile while they start, kept in a store so
 * that the next engine of the same kind finds it (docs/engines.md).
 *
 *     PREFIX/sets/KEY/latest.json      names what is the set of this key
 *     PREFIX/blobs/SHA256.tar.zst      its files
 *
 * KEY is a hash of all that the set depends on. A set is code: one that no trusted key has signed
 * is not used, unless the spec trusts the store. None of this ever fails a load.
 *
 * One thread for a spec at a time; the spec is borrowed for the call. What asks the store, or reads
 * many files, blocks until it is done or canceled.
 */
#ifndef SL_SETS_H
#define SL_SETS_H

#include "json.h"
#include "spec.h"

/** The one model of a file that has engine caches; NULL: none has. Borrowed. */
const struct sl_spec *sl_sets_find(const struct sl_specs *specs);

/* ---- keys ---- */

enum { SL_SETS_KEY_BYTES = 65 };
/** This machine's part of a key; "cpu" and twice "" without a GPU. */
struct sl_sets_machine {
    char gpu[96], capability[16], driver[64];
    char arch[32]; /* of the processors, as uname() has it */
};
/** Of the first GPU that this process sees. */
void sl_sets_look(struct sl_sets_machine *machine);
/**
 * Tell all that a set depends on.
 *
 * @machine  of sl_sets_look().
 * @facts    one JSON object is appended.
 * @key      out: its SHA-256 in hex digits.
 * @return   0, or -1 with SL_E_NO_SPACE.
 */
int sl_sets_key(const struct sl_spec *spec, const struct sl_sets_machine *machine,
                struct sl_buf *facts, char key[SL_SETS_KEY_BYTES], struct sl_err *err);

/* ---- restoring ---- */

enum sl_sets_outcome {
    SL_SETS_RESTORED,
    SL_SETS_KEPT,    /* there were files at the path already: they stay */
    SL_SETS_MISSED,  /* the store has no such set */
    SL_SETS_REFUSED, /* it has one that is not used, or cannot be asked: `why` */
    SL_SETS_NO_PLACE /* nor may an engine be told of the path: `why` */
};
struct sl_sets_result {
    enum sl_sets_outcome outcome;
    char key[SL_SETS_KEY_BYTES];
    uint64_t files, bytes, packed_bytes;
    int64_t newest_ns; /* of what was restored: what has a later time the engine wrote */
    double seconds;
    struct sl_err why;
};
/** "restored", "kept", "missed", "refused", "no place": constants. */
const char *sl_sets_outcome_name(enum sl_sets_outcome outcome);
/**
 * Restore the set of this machine to its path, within the seconds that the spec gives. Nothing of
 * it is there before all of it is. The path is a folder afterwards, of this user alone, unless the
 * outcome is NO_PLACE. Logs what came of it; counts it in metrics.
 */
void sl_sets_restore(const struct sl_spec *spec, struct sl_cancel *cancel,
                     struct sl_sets_result *result);
/** Members of an object that is open; json keeps what failed. */
void sl_sets_result_json(struct sl_json *json, const struct sl_sets_result *result);
/** The variables of sets.def that the caller has not set, for the folders below the path. 0, or -1
 * with SL_E_NO_SPACE. */
int sl_sets_each_variable(const char *path,
                          int (*each)(void *arg, const char *name, const char *value), void *arg,
                          struct sl_err *err);
/** Set them for this process, which is about to become the engine. While no other thread runs. -1
 * as above. */
int sl_sets_export(const char *path, struct sl_err *err);

/* ---- saving ---- */

struct sl_sets_saved {
    bool there,
        lost; /* the store had the set before; or another one was faster: nothing is saved */
    char key[SL_SETS_KEY_BYTES], sha256[65];
    uint64_t files, bytes, packed_bytes;
    uint64_t passed; /* files that no set can hold: sockets, links that lead out, names of ours */
};
/**
 * Save what lies at the path as the set of this machine.
 *
 * @replace  also where the store has one.
 * @saved    out.
 * @return   0, or -1: SL_E_NOT_FOUND where nothing lies there, SL_E_USAGE without `save: true`,
 *           those of uploads.
 */
int sl_sets_save(const struct sl_spec *spec, bool replace, struct sl_cancel *cancel,
                 struct sl_sets_saved *saved, struct sl_err *err);
/** Is there anything to do when the engine is ready? */
bool sl_sets_waits(const struct sl_spec *spec, const struct sl_sets_result *restored);
/** When the engine answers that it is ready, tell how long that took; when its caches have stood
 * still, warn if what was restored was of no use to it, and save, if the spec says so. Logs what
 * came of it, which is never a failure. Ends on cancel, and after the seconds that the spec gives.
 */
void sl_sets_when_ready(const struct sl_spec *spec, const struct sl_sets_result *restored,
                        struct sl_cancel *cancel);

/* ---- what the store has ---- */

/** One set of a listing; texts are borrowed for the call. */
struct sl_sets_entry {
    const char *key, *sha256, *facts;
    uint64_t bytes, files;
    int64_t created_seconds;
    bool own;        /* it is the set of this machine and spec */
    const char *bad; /* NULL, or why it is not used */
};
/**
 * List the sets of the spec's prefix, as far as they can be read.
 *
 * @cancel  may be NULL.
 * @each    gets one after another, with `arg`; -1 (err filled) ends it.
 * @return  0, or -1: errors of the store, and what each() says.
 */
int sl_sets_list(const struct sl_spec *spec, struct sl_cancel *cancel,
                 int (*each)(const struct sl_sets_entry *entry, void *arg, struct sl_err *err),
                 void *arg, struct sl_err *err);

/** Which sets are removed, and the listener that hears of it. */
struct sl_sets_prune {
    uint64_t older_days; /* sets that are older, too; 0: none */
    bool remove;         /* else it is only told */
    int (*each)(void *arg, const char *name, uint64_t bytes, const char *why, struct sl_err *err);
    void *arg;
};
/** Blobs that no set names, and old sets with theirs; while nobody saves. -1: SL_E_USAGE where
 * nothing can be removed, errors of the store, what each() says. */
int sl_sets_prune(const struct sl_spec *spec, const struct sl_sets_prune *how,
                  struct sl_cancel *cancel, struct sl_err *err);

#endif
