/*
 * What an upload leaves that broke off (nothing), what a clone leaves that was made without git-lfs
 * (a pointer), what a server says that wants a login or is asked for a folder (a page): none of it
 * is weights, and all of it is seen in the first bytes. Names are those under which frameworks keep
 * weights; of formats that are read the rows say more.
 */
#include "weights.h"

#include <string.h>
#include <strings.h>

#include "buf.h"

/* A rank with nothing to save writes such a file: whether it is needed, .metadata says. */
static const char may_be_empty[] = ".distcp";

static const char *const others[] = {".h5",     ".hdf5",      ".keras",  ".msgpack",  ".ot",
                                     ".onnx",   ".onnx_data", ".tflite", ".pkl",      ".pickle",
                                     ".joblib", ".npz",       ".engine", ".mlmodel",  ".bst",
                                     ".ggml",   ".pb",        ".nemo",   ".llamafile"};

bool sl_weights_named(const char *name)
{
    enum sl_format_says says = sl_format_name_says(name);
    if (says == SL_SAYS_STATE || says == SL_SAYS_LIKELY || says == SL_SAYS_MODEL)
        return true;
    for (size_t i = 0; i < SL_COUNT(others); i++)
        if (sl_format_has_suffix(name, others[i]))
            return true;
    return false;
}

/* ---- pages ----------------------------------------------------------------------------------- */

static bool is_called_page(const char *name)
{
    static const char *const suffixes[] = {".html", ".htm", ".xhtml", ".xml", ".svg", ".md"};
    size_t bytes = strlen(name);
    for (size_t i = 0; i < SL_COUNT(suffixes); i++)
        if (bytes > strlen(suffixes[i]) &&
            strcasecmp(name + bytes - strlen(suffixes[i]), suffixes[i]) == 0)
            return true;
    return false;
}

static bool begins(const struct sl_format_head *head, size_t at, const char *text)
{
    size_t bytes = strlen(text);
    return head->bytes - at >= bytes &&
           strncasecmp((const char *)head->data + at, text, bytes) == 0;
}

/* White space, and the mark that some editors put in front. */
static size_t begin_of_text(const struct sl_format_head *head)
{
    size_t at = head->bytes >= 3 && memcmp(head->data, "\xef\xbb\xbf", 3) == 0 ? 3 : 0;
    while (at < head->bytes && head->data[at] && strchr(" \t\r\n", head->data[at]))
        at++;
    return at;
}

static bool is_page(const struct sl_format_head *head)
{
    static const char *const marks[] = {"<html", "<Error", "<ListBucketResult",
                                        "<EnumerationResults"};
    size_t at = begin_of_text(head);
    if (begins(head, at, "<!doctype html") || begins(head, at, "<html"))
        return true;
    for (size_t i = 0; begins(head, at, "<?xml") && i < SL_COUNT(marks); i++)
        if (memmem(head->data, head->bytes, marks[i], strlen(marks[i])))
            return true;
    return false;
}

int sl_weights_judge_page(const struct sl_format_head *head, struct sl_err *err)
{
    if (is_called_page(head->name) || !is_page(head))
        return 0;
    return sl_fail_code(
        err, SL_E_FORMAT, "E_PAGE",
        "it is a web page, not a model: the server wants a login (docs/kserve.md, "
        "HOST-headers), or shows a folder: end its name with '/', or name a file in it");
}

/* ---- the rest -------------------------------------------------------------------------------- */

int sl_weights_judge(const struct sl_format_head *head, struct sl_err *err)
{
    static const char pointer[] = "version https://git-lfs.github.com/spec/";
    if (head->object_bytes == 0 && !sl_format_has_suffix(head->name, may_be_empty))
        return sl_fail_code(err, SL_E_FORMAT, "E_EMPTY",
                            "it is empty: the upload broke off, store it again");
    if (begins(head, 0, pointer))
        return sl_fail_code(err, SL_E_FORMAT, "E_POINTER",
                            "it is a pointer of git-lfs, not the file: run `git lfs pull` where it "
                            "was copied from, and store it again");
    return sl_weights_judge_page(head, err);
}
