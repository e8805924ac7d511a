/* The files of a commit's tree, or of a bucket, from page to page. */
#include <stdio.h>
#include <string.h>

#include "hf_store.h"
#include "http_call.h"

enum {
    TREE_ENTRIES_MAX = 1000 * 1000, /* folders count, too */
    WHAT_BYTES = 400,
};

static char *first_page(const struct sl_hf *hf, const char *commit, struct sl_err *err)
{
    size_t bytes = strlen(hf->folder);
    sl_autofree char *folder = sl_strndup(hf->folder, bytes ? bytes - 1 : 0, err);
    sl_autofree char *encoded = folder ? sl_url_encode(folder, true, err) : NULL;
    sl_autofree char *tree = encoded ? sl_hf_api_url(hf, "tree", commit ? commit : "", err) : NULL;
    return tree ? sl_asprintf(err, "%s%s%s?recursive=true%s", tree, bytes ? "/" : "", encoded,
                              commit ? "&expand=false" : "")
                : NULL;
}

struct listing {
    struct sl_hf *hf;
    const struct sl_hf_page *page;
    uint64_t entries;
    int (*each)(const struct sl_entry *entry, void *arg, struct sl_err *err);
    void *arg;
    bool any; /* file */
    struct sl_hf_files files;
};

static int take_file(const struct sl_entry *entry, void *arg, struct sl_err *err)
{
    struct listing *listing = arg;
    listing->any = true;
    if (listing->hf->uri.bucket && sl_hf_files_add(&listing->files, entry, err) < 0)
        return -1;
    return listing->each(entry, listing->arg, err);
}

/* url: as the page before said; NULL: the first. */
static int list_page(void *arg, const char *url, char **next, uint64_t *entries, struct sl_err *err)
{
    struct listing *listing = arg;
    struct sl_hf *hf = listing->hf;
    const struct sl_hf_page *page = listing->page;
    struct sl_answer answer;
    sl_autofree char *first = url ? NULL : first_page(hf, page->commit, err);
    if ((!url && !first) || sl_http_get(hf->store, &hf->http, url ? url : first, page->what,
                                        SL_HF_PAGE_BYTES_MAX, &answer, err) < 0)
        return -1;
    sl_autofree char *link = sl_answer_header_whole(&answer, "Link", err);
    int result =
        link ? sl_hf_page_parse(page, answer.body.data, answer.body.used, entries, err) : -1;
    if (result == 0)
        result = sl_hf_next_page(link, hf->endpoint, page->what, next, err);
    sl_answer_release(&answer);
    listing->entries += *entries;
    if (result == 0 && listing->entries > TREE_ENTRIES_MAX)
        result = sl_fail_code(err, SL_E_FORMAT, "listing",
                              "%s: its tree has more than %d entries: name a folder", page->what,
                              TREE_ENTRIES_MAX);
    return result;
}

int sl_hf_list(struct sl_store *store, const struct sl_listing *wanted, struct sl_err *err)
{
    struct sl_hf *hf = store->impl;
    char commit[SL_HF_COMMIT_BYTES], what[WHAT_BYTES];
    uint64_t total = 0;
    snprintf(what, sizeof(what), "cannot list '%.380s'", store->uri);
    if (!hf->uri.bucket && sl_hf_commit(hf, commit, err) < 0)
        return -1;
    struct listing listing = {.hf = hf, .each = wanted->each, .arg = wanted->arg};
    const struct sl_hf_page page = {
        .what = what,
        .folder = hf->folder,
        .commit = hf->uri.bucket ? NULL : commit,
        .each = take_file,
        .arg = &listing,
        .xet = hf->xet,
    };
    listing.page = &page;
    const struct sl_http_walk walk = {what, list_page, &listing};
    int result = sl_http_walk(store, &walk, &total, err);
    if (result == 0 && !listing.any)
        result = sl_fail(err, SL_E_NOT_FOUND, "there is no file below '%s': check the folder",
                         store->uri);
    if (result == 0)
        sl_hf_files_keep(hf, &listing.files);
    sl_hf_files_release(&listing.files);
    return result;
}
