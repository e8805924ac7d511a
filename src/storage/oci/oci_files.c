/* The manifest behind a reference, asked for once a store, and the files that it names. */
#include <stdio.h>
#include <string.h>

#include "oci_ask.h"
#include "oci_unpack.h"

enum { WHAT_BYTES = 400, URI_SHOWN_MAX = 380 };

/* ---- the manifest ---------------------------------------------------------------------------- */

static int ask(struct sl_oci_asking *asking, struct sl_oci_manifest *manifest, struct sl_err *err)
{
    struct sl_answer answer = {0};
    struct sl_err why = SL_ERR_INIT;
    int result = sl_oci_ask(asking, &answer, &why);
    if (result < 0 && err)
        *err = why;
    if (result == 0)
        result = sl_oci_manifest_parse(sl_buf_string(&answer.body), answer.body.used, asking->what,
                                       manifest, err);
    if (result == 0)
        memcpy(manifest->digest, asking->digest, sizeof(manifest->digest));
    sl_answer_release(&answer);
    return result;
}

/* An index leads to a manifest, which must not be another index. */
static int resolve(struct sl_oci *oci, const char *what, struct sl_oci_manifest *manifest,
                   struct sl_err *err)
{
    char child[SL_OCI_DIGEST_BYTES], index[SL_OCI_DIGEST_BYTES];
    struct sl_oci_asking asking = {.oci = oci, .reference = oci->uri.reference, .what = what};
    if (ask(&asking, manifest, err) < 0)
        return -1;
    if (!manifest->child[0])
        return 0;
    memcpy(child, manifest->child, sizeof(child));
    memcpy(index, manifest->digest, sizeof(index));
    sl_oci_manifest_release(manifest);
    asking.reference = child;
    if (ask(&asking, manifest, err) < 0)
        return -1;
    memcpy(manifest->index, index, sizeof(index));
    if (manifest->child[0])
        return sl_fail(err, SL_E_FORMAT, "%s: an index in its index: name a manifest by its digest",
                       what);
    return 0;
}

/* ---- the files ------------------------------------------------------------------------------- */

/* What layers turn out to be may be the fault of a mirror or a cache: then they are read again
 * without it. */
static int make(struct sl_oci *oci, const char *what, struct sl_oci_manifest *made,
                struct sl_err *err)
{
    for (;;) {
        struct sl_err why = SL_ERR_INIT;
        if (resolve(oci, what, made, &why) == 0 && sl_oci_unpack(oci, made, what, &why) == 0 &&
            sl_oci_manifest_sort(made, &why) == 0)
            return 0;
        sl_oci_manifest_release(made);
        if ((why.kind == SL_E_FORMAT || why.kind == SL_E_INTEGRITY) &&
            sl_store_blame_mirrors(oci->store, &why))
            continue;
        if (err)
            *err = why;
        return -1;
    }
}

static bool is_known(struct sl_oci *oci)
{
    SL_LOCKED(&oci->locked.mutex);
    return oci->locked.known;
}

/* How much of the store's URI is told: behind a tag no '/', as people write it. */
static int shown_bytes(const struct sl_oci *oci)
{
    return (int)SL_MIN(strlen(oci->store->uri) - !*oci->folder, (size_t)URI_SHOWN_MAX);
}

int sl_oci_files(struct sl_oci *oci, const struct sl_oci_manifest **manifest, struct sl_err *err)
{
    char what[WHAT_BYTES];
    struct sl_oci_manifest made = {0};
    snprintf(what, sizeof(what), "cannot open '%.*s'", shown_bytes(oci), oci->store->uri);
    if (!is_known(oci) && make(oci, what, &made, err) < 0)
        return -1;
    SL_LOCKED(&oci->locked.mutex);
    if (oci->locked.known) { /* the first one who asked decides */
        sl_oci_manifest_release(&made);
    } else {
        oci->locked.manifest = made;
        oci->locked.known = true;
        for (size_t i = 0; i < made.layer_count; i++)
            if (sl_oci_is_in_order(&made.layers[i]))
                sl_oci_advise_in_order(oci);
    }
    *manifest = &oci->locked.manifest;
    return 0;
}

int sl_oci_list(struct sl_store *store, const struct sl_listing *listing, struct sl_err *err)
{
    struct sl_oci *oci = store->impl;
    const struct sl_oci_manifest *manifest;
    size_t below = strlen(oci->folder);
    bool found = false;
    if (sl_oci_files(oci, &manifest, err) < 0)
        return -1;
    for (size_t i = 0; i < manifest->count; i++) {
        const struct sl_oci_file *file = &manifest->files[i];
        struct sl_checksums sums = {.count = 1, .items[0].kind = SL_HASH_SHA256};
        if (strncmp(file->name, oci->folder, below) != 0 || !file->name[below])
            continue;
        memcpy(sums.items[0].value, file->sha256, sizeof(file->sha256));
        const struct sl_entry entry = {.name = file->name + below,
                                       .bytes = file->bytes,
                                       .etag = "",
                                       .pin = file->pin,
                                       .sums = file->hashed ? &sums : NULL};
        found = true;
        if (listing->each(&entry, listing->arg, err) < 0)
            return -1;
    }
    if (!found)
        return sl_fail(err, SL_E_NOT_FOUND, "there is no file below '%s': check the folder",
                       store->uri);
    return 0;
}
