/*
 * Each parser of what strangers say, times the shapes that grow the most, as long as its text may
 * be: what it becomes is measured. And what is right in earnest is still taken, with room to spare.
 */
#include <check.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "az_store.h"
#include "claims.h"
#include "gs_store.h"
#include "hf_store.h"
#include "ms_store.h"
#include "oci_store.h"
#include "publish_parts.h"
#include "s3_store.h"
#include "scratch.h"
#include "seed.h"
#include "sidecar.h"
#include "spec.h"
#include "xet_plan.h"
#include "xml.h"

enum { MIB = 1024 * 1024, LIMIT_KIB = 64 * 1024 };

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
static const bool sanitized = true;
#else
static const bool sanitized = false;
#endif

static struct sl_err err;

static int each(const struct sl_entry *entry, void *arg, struct sl_err *why)
{
    (void)entry, (void)why;
    ++*(uint64_t *)arg;
    return 0;
}

static uint64_t taken;

static int of_hub(char *text, size_t bytes)
{
    uint64_t entries;
    const struct sl_hf_page page = {"it", "", "commit", each, &taken, NULL};
    return sl_hf_page_parse(&page, text, bytes, &entries, &err);
}

static int of_modelscope(char *text, size_t bytes)
{
    static char endpoint[] = "https://hub";
    struct sl_ms ms = {.endpoint = endpoint};
    struct sl_ms_tree tree = {0};
    struct sl_ms_page page = {.ms = &ms, .what = "it", .root = "", .tree = &tree};
    int done = sl_ms_page_parse(&page, text, bytes, &err);
    taken += page.entries;
    sl_ms_tree_release(&tree);
    return done;
}

static int of_google(char *text, size_t bytes)
{
    char *next = NULL;
    uint64_t entries;
    int done = sl_gs_page_parse(text, bytes, "it", "", each, &taken, &next, &entries, &err);
    free(next);
    return done;
}

static int of_azure(char *text, size_t bytes)
{
    char *next = NULL;
    uint64_t entries;
    int done = sl_az_page_parse(text, bytes, "it", "", each, &taken, &next, &entries, &err);
    free(next);
    return done;
}

static int of_xet(char *text, size_t bytes)
{
    struct sl_xet_plan plan;
    int done = sl_xet_plan_parse(text, bytes, 1, &plan, &err);
    sl_xet_plan_release(&plan);
    return done;
}

static int of_registry(char *text, size_t bytes)
{
    struct sl_oci_manifest manifest;
    int done = sl_oci_manifest_parse(text, bytes, "it", &manifest, &err);
    if (done == 0) {
        taken += manifest.count;
        sl_oci_manifest_release(&manifest);
    }
    return done;
}

static int of_publisher(char *text, size_t bytes)
{
    char scratch[SL_SCRATCH_PATH_BYTES];
    struct sl_published published;
    int folder = sl_scratch_open(scratch);
    int fd = openat(folder, SL_MANIFEST, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    ck_assert_int_eq(write(fd, text, bytes), (ssize_t)bytes);
    close(fd);
    int done = sl_published_read(folder, SL_MANIFEST, &published, &err);
    taken += published.count;
    sl_published_release(&published);
    sl_scratch_close(folder, scratch);
    return done;
}

static int of_author(char *text, size_t bytes)
{
    struct sl_specs specs = {0};
    sl_autobuf complaints = SL_BUF_INIT(1 << 20);
    int done = sl_spec_parse(text, bytes, "it", NULL, 0, &specs, &complaints, &err);
    sl_specs_release(&specs);
    return done;
}

static int of_signer(char *text, size_t bytes)
{
    struct sl_sidecar *sidecar = NULL;
    int done = sl_sidecar_parse(text, bytes, &sidecar, &err);
    sl_sidecar_free(sidecar);
    return done;
}

static const struct parser {
    const char *name;
    int (*parse)(char *text, size_t bytes);
    size_t limit;       /* of its text */
    const char *before; /* where its list is */
    const char *behind;
    const char *item; /* one in earnest, %u: its number */
    unsigned items;   /* so many are right */
} parsers[] = {
    {"a page of a hub", of_hub, SL_HF_PAGE_BYTES_MAX, "[", "]",
     "{\"type\":\"file\",\"oid\":\"0123456789abcdef0123456789abcdef01234567\",\"size\":1234567890,"
     "\"lfs\":{\"oid\":\"0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef\","
     "\"size\":1234567890,\"pointerSize\":135},\"xetHash\":"
     "\"0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef\","
     "\"path\":\"folder/of/the/model/part-%u.safetensors\"}",
     10000},
    {"ModelScope", of_modelscope, SL_MS_LISTING_BYTES_MAX, "{\"Code\":200,\"Data\":{\"Files\":[",
     "]}}",
     "{\"CommitId\":\"0123456789abcdef0123456789abcdef01234567\",\"CommitMessage\":\"Upload\","
     "\"CommittedDate\":1700000000,\"CommitterName\":\"someone\",\"InCheck\":false,\"IsLFS\":true,"
     "\"Mode\":\"33188\",\"Name\":\"m\",\"Path\":\"part-%u\",\"Revision\":\"0123456789abcdef\","
     "\"Sha256\":\"0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef\","
     "\"Size\":123456,\"Type\":\"blob\"}",
     3000},
    {"a page of Google", of_google, SL_GS_PAGE_BYTES_MAX, "{\"items\":[", "]}",
     "{\"name\":\"folder/of/the/model/part-%u.safetensors\",\"size\":\"1234567890\","
     "\"generation\":\"1700000000000000\",\"crc32c\":\"AAAAAA==\",\"md5Hash\":"
     "\"AAAAAAAAAAAAAAAAAAAAAA==\"}",
     5000},
    {"an answer of Xet", of_xet, 4 * MIB, "{\"terms\":[", "]}", NULL, 0},
    {"a manifest of a registry", of_registry, SL_OCI_MANIFEST_BYTES_MAX, "{\"layers\":[", "]}",
     "{\"mediaType\":\"application/octet-stream\",\"digest\":\"sha256:"
     "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef\",\"size\":1234567890,"
     "\"annotations\":{\"org.opencontainers.image.title\":\"folder/part-%u.safetensors\"}}",
     10000},
    {"a manifest of a folder", of_publisher, 24 * MIB, "{\"identity\":\"i\",\"files\":[", "]}",
     "{\"name\":\"folder/of/the/model/part-%u.safetensors\",\"bytes\":1234567890,"
     "\"mtime_ns\":1700000000123456789,\"crc32c\":\"01234567\"}",
     100000},
    {"a spec", of_author, SL_SPEC_BYTES_MAX, "{\"source\":[", "]}", NULL, 0},
    {"a sidecar", of_signer, SL_SIDECAR_TEXT_BYTES_MAX, "{\"ranges\":[", "]}", NULL, 0},
    {"a page of Azure", of_azure, SL_XML_BYTES_MAX, "<EnumerationResults><Blobs>",
     "</Blobs></EnumerationResults>", NULL, 0},
};
enum { PARSERS = SL_COUNT(parsers) };

static const char *const shapes[] = {"{}",
                                     "[]",
                                     "0",
                                     "\"\"",
                                     "\"abcdefgh\"",
                                     "{\"\":{\"\":[]}}",
                                     "[[[[[[]]]]]]",
                                     "{\"name\":\"a\",\"type\":\"file\"}",
                                     "{\"a\":0,\"b\":0,\"c\":0,\"d\":0,\"e\":0,\"f\":0}"};
enum { SHAPES = SL_COUNT(shapes) };

/* Of its resident pages, at most, since this process began. */
static long peak_kib(void)
{
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return usage.ru_maxrss;
}

/* before, then items with commas, then behind; NULL: alone. */
static char *fill(const struct parser *parser, const char *item, size_t limit, unsigned items,
                  bool bare, size_t *bytes)
{
    size_t one = strlen(item), behind = strlen(parser->behind), used;
    const size_t room = limit + one + 64;
    char *text = malloc(room);
    ck_assert_ptr_nonnull(text);
    const char *number = strstr(item, "%u");
    bool xml = *parser->before == '<';
    used = (size_t)snprintf(text, room, "%s", bare ? "[" : parser->before);
    for (unsigned i = 0; i < items && used + one + behind + 16 < limit; i++) {
        if (i && !xml)
            text[used++] = ',';
        if (number)
            used += (size_t)snprintf(text + used, room - used, "%.*s%u%s", (int)(number - item),
                                     item, i, number + 2);
        else
            memcpy(text + used, item, one), used += one;
    }
    used += (size_t)snprintf(text + used, room - used, "%s", bare ? "]" : parser->behind);
    memset(text + used, 0, room - used);
    *bytes = used;
    return text;
}

/* As the whole text, or where its list is: in the gate one of the two. Memory is not measured
 * in a sanitizer's build: a text may be shorter there. */
SL_TEST_LOOP(no_answer_becomes_more_than_64_mib, 0, (int)(PARSERS *SHAPES * 2))
{
    const int number = _i / 2;
    const struct parser *parser = &parsers[number / (int)SHAPES];
    const char *shape = shapes[number % (int)SHAPES];
    bool xml = *parser->before == '<', bare = _i % 2;
    size_t bytes;
    if ((xml && (bare || number % (int)SHAPES)) ||
        (!xml && bare == number % 2 && sl_test_rounds(0, 1) == 0))
        return;
    char *text = fill(parser, xml ? "<a/>" : shape, sanitized ? parser->limit / 32 : parser->limit,
                      UINT32_MAX, bare, &bytes);
    long before = peak_kib();
    parser->parse(text, bytes);
    long took = peak_kib() - before;
    free(text);
    ck_assert_msg(sanitized || took <= LIMIT_KIB, "%s, of %s: %ld KiB", parser->name, shape, took);
}

SL_TEST_LOOP(what_is_right_in_earnest_is_taken, 0, (int)PARSERS)
{
    const struct parser *parser = &parsers[_i];
    size_t bytes;
    if (!parser->item)
        return;
    char *text = fill(parser, parser->item, parser->limit, parser->items, false, &bytes);
    long before = peak_kib();
    ck_assert_msg(parser->parse(text, bytes) == 0, "%s: %s", parser->name, err.message);
    long took = peak_kib() - before;
    ck_assert_uint_eq(taken, parser->items);
    ck_assert_msg(sanitized || took <= LIMIT_KIB, "%s: %ld KiB", parser->name, took);
    free(text);
}

SL_CASE(.seconds = 120)
