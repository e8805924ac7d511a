/*
 * One page of the tree of a commit, or of a bucket, which is made of the same entries and has no
 * commit. Everything in it is a stranger's: names must lie below the folder that was asked for (the
 * plan judges them further), sizes must be numbers, and hashes hex.
 */
#include <stdio.h>
#include <string.h>

#include "hf_store.h"
#include "http_call.h"
#include "json_pull.h"

/* Of Xet: that of no chunks. */
static const char empty_hash[SL_XET_HASH_TEXT] =
    "0000000000000000000000000000000000000000000000000000000000000000";

/* ---- one page -------------------------------------------------------------------------------- */

static int hostile(const struct sl_hf_page *page, struct sl_err *err, const char *why)
{
    return sl_fail_code(err, SL_E_FORMAT, "listing", "%s: %s", page->what, why);
}

/* Members of an entry that count; the strings lie in the page's text. */
struct item {
    const char *type, *path, *sha1, *sha256, *xet;
    uint64_t bytes;
    bool sized, on_xet;
};

/* LFS keeps the SHA-256 of a file's bytes, git its own hash of a blob; that of an LFS file is of
 * its pointer. */
static int take_hash(const struct sl_hf_page *page, const struct item *item,
                     struct sl_checksums *sums, struct sl_err *err)
{
    *sums = (struct sl_checksums){.count = 1};
    if (item->sha256) {
        sums->items[0].kind = SL_HASH_SHA256;
        if (sl_unhex(item->sha256, sums->items[0].value, 32) < 0)
            return hostile(page, err, "the SHA-256 of a file is not 64 hex digits");
    } else if (item->sha1 && !item->on_xet) {
        sums->items[0].kind = SL_HASH_SHA1;
        sums->items[0].git = true;
        if (sl_unhex(item->sha1, sums->items[0].value, 20) < 0)
            return hostile(page, err, "the SHA-1 of a file is not 40 hex digits");
    } else {
        sums->count = 0;
    }
    return 0;
}

/* What names the bytes of a file for good; NULL: nothing does. Nothing is on Xet that is empty. */
static const char *pin_of(const struct sl_hf_page *page, const struct item *item)
{
    if (page->commit)
        return page->commit;
    if (item->xet && sl_xet_is_hash(item->xet))
        return item->xet;
    return item->bytes ? NULL : empty_hash;
}

static int take_item(const struct sl_hf_page *page, const struct item *item, struct sl_err *err)
{
    struct sl_checksums sums;
    if (!item->type || !item->path || !*item->path)
        return hostile(page, err, "an entry has no type or no path");
    if (strcmp(item->type, "file") != 0)
        return 0;
    if (!item->sized)
        return hostile(page, err, "the size of a file is not a number");
    size_t below = strlen(page->folder);
    if (strncmp(item->path, page->folder, below) != 0 || !item->path[below])
        return page->commit ? hostile(page, err, "a file does not lie below the folder") : 0;
    if (take_hash(page, item, &sums, err) < 0)
        return -1;
    const char *name = item->path + below, *pin = pin_of(page, item);
    if (!pin)
        return hostile(page, err, "a file of a bucket has no valid Xet hash");
    if (item->xet && page->xet &&
        sl_xet_note(page->xet, pin, name, item->xet, item->bytes, err) < 0)
        return -1;
    const struct sl_entry entry = {.name = name,
                                   .bytes = item->bytes,
                                   .etag = "",
                                   .pin = pin,
                                   .sums = sums.count ? &sums : NULL};
    return page->each(&entry, page->arg, err);
}

/* A text without NUL into its place, once. */
static bool put_text(struct sl_pull *pull, enum sl_pull_token token, const char **place)
{
    if (token != SL_PULL_STRING)
        return sl_pull_skip(pull, token, NULL);
    if (*place || strlen(pull->string) != pull->string_bytes)
        return false;
    *place = pull->string;
    return true;
}

static bool read_lfs(struct sl_pull *pull, enum sl_pull_token token, struct item *item)
{
    if (token != SL_PULL_OBJECT)
        return sl_pull_skip(pull, token, NULL);
    while ((token = sl_pull_next(pull)) == SL_PULL_KEY) {
        bool oid = strcmp(pull->string, "oid") == 0;
        token = sl_pull_next(pull);
        if (!(oid ? put_text(pull, token, &item->sha256) : sl_pull_skip(pull, token, NULL)))
            return false;
    }
    return token == SL_PULL_CLOSE;
}

static bool read_member(struct sl_pull *pull, const char *key, enum sl_pull_token token,
                        struct item *item)
{
    if (strcmp(key, "type") == 0)
        return put_text(pull, token, &item->type);
    if (strcmp(key, "path") == 0)
        return put_text(pull, token, &item->path);
    if (strcmp(key, "oid") == 0)
        return put_text(pull, token, &item->sha1);
    if (strcmp(key, "lfs") == 0)
        return read_lfs(pull, token, item);
    if (strcmp(key, "size") == 0 && token == SL_PULL_NUMBER) {
        bool twice = item->sized;
        item->sized = sl_pull_uint(pull, &item->bytes) && item->bytes <= INT64_MAX;
        return !twice;
    }
    bool xet = strcmp(key, "xetHash") == 0;
    item->on_xet |= xet;
    return xet ? put_text(pull, token, &item->xet) : sl_pull_skip(pull, token, NULL);
}

/* false: the text is broken, or a member is there twice. */
static bool read_item(struct sl_pull *pull, enum sl_pull_token token, struct item *item)
{
    *item = (struct item){.bytes = 0};
    if (token != SL_PULL_OBJECT)
        return sl_pull_skip(pull, token, NULL);
    while ((token = sl_pull_next(pull)) == SL_PULL_KEY) {
        const char *key = pull->string;
        token = sl_pull_next(pull);
        if (!read_member(pull, key, token, item))
            return false;
    }
    return token == SL_PULL_CLOSE;
}

int sl_hf_page_parse(const struct sl_hf_page *page, char *text, size_t bytes, uint64_t *entries,
                     struct sl_err *err)
{
    struct sl_pull pull;
    enum sl_pull_token token;
    *entries = 0;
    sl_pull_init(&pull, text, bytes);
    if (!sl_is_utf8(text, bytes) || sl_pull_next(&pull) != SL_PULL_ARRAY)
        return hostile(page, err, "the answer is not a tree of files");
    for (; (token = sl_pull_next(&pull)) != SL_PULL_CLOSE; ++*entries) {
        struct item item;
        if (!read_item(&pull, token, &item))
            return hostile(page, err, pull.why ? pull.why : "a member of a file is there twice");
        if (take_item(page, &item, err) < 0)
            return -1;
    }
    return sl_pull_next(&pull) == SL_PULL_DONE ? 0 : hostile(page, err, pull.why);
}

/* ---- from page to page ----------------------------------------------------------------------- */

int sl_hf_next_page(const char *link, const char *endpoint, const char *what, char **next,
                    struct sl_err *err)
{
    size_t bytes;
    const char *url = sl_http_next_link(link, &bytes);
    *next = NULL;
    if (!url)
        return 0;
    sl_autofree char *copy = sl_strndup(url, bytes, err);
    const char *api = copy ? strstr(copy, "/api/") : NULL;
    if (!copy)
        return -1;
    for (const char *at = copy; *at; at++)
        if ((unsigned char)*at <= 0x20 || (unsigned char)*at >= 0x7f)
            api = NULL;
    if (!api)
        return sl_fail_code(err, SL_E_FORMAT, "listing", "%s: the link to the next page is invalid",
                            what);
    *next = sl_asprintf(err, "%s%s", endpoint, api);
    return *next ? 0 : -1;
}
