/* Layers that are tars: which files are left of them, where they lie, and what is refused. */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "claims.h"
#include "hash.h"
#include "oci_tree.h"
#include "tar_maker.h"
#include "thread.h"

enum { LAYERS_MAX = 4, TEXT_BYTES = 1024, TAR_BYTES_MAX = 8 * 1024 * 1024 };
#define DIGEST "sha256:00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff"

static struct sl_err err;
static struct sl_cancel *cancel; /* NULL: none */
static uint64_t cancel_at;       /* a byte of a layer */
static uint64_t added_ns, finished_ns, read_bytes;

/* A layer in memory. */
struct memory {
    const uint8_t *data;
    uint64_t at, bytes;
};

static int read_memory(void *arg, void *data, uint64_t bytes, uint64_t *got, struct sl_err *why)
{
    struct memory *memory = arg;
    (void)why;
    if (cancel && memory->at >= cancel_at)
        sl_cancel_raise(cancel, 0);
    *got = SL_MIN(bytes, memory->bytes - memory->at);
    if (data && *got)
        memcpy(data, memory->data + memory->at, *got);
    memory->at += *got;
    return 0;
}

static uint64_t cpu_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return (uint64_t)now.tv_sec * SL_NS_PER_S + (uint64_t)now.tv_nsec;
}

/* What is left of these layers, to be released; 0 or -1 with err. */
static int lay(const struct sl_buf *tars, size_t count, const char *folder, bool image, bool check,
               struct sl_oci_manifest *manifest)
{
    static struct sl_oci_layer layers[LAYERS_MAX];
    *manifest = (struct sl_oci_manifest){0};
    err = (struct sl_err)SL_ERR_INIT;
    SL_AUTO(sl_oci_tree) tree = sl_oci_tree_new(folder, cancel, &err);
    for (size_t i = 0; i < count; i++) {
        struct memory memory = {(const uint8_t *)tars[i].data, 0, tars[i].used};
        const struct sl_tar_input input = {read_memory, &memory};
        layers[i] = (struct sl_oci_layer){DIGEST, tars[i].used, image};
        layers[i].digest[7] = (char)('0' + i);
        added_ns -= cpu_ns();
        int done = sl_oci_tree_add(tree, &layers[i], &input, &memory.at, check, &err);
        added_ns += cpu_ns();
        read_bytes = memory.at;
        if (done < 0)
            return -1;
    }
    finished_ns = cpu_ns();
    int done = sl_oci_tree_finish(tree, manifest, &err);
    finished_ns = cpu_ns() - finished_ns;
    return done;
}

/* "a=1 b=2": names and contents, by where the pins say that they are. */
static void tell(const struct sl_oci_manifest *manifest, const struct sl_buf *tars,
                 char text[TEXT_BYTES])
{
    *text = 0;
    for (size_t i = 0; i < manifest->count; i++) {
        const struct sl_oci_file *file = &manifest->files[i];
        struct sl_oci_piece piece;
        ck_assert(sl_oci_pin_parse(file->pin, &piece));
        const struct sl_buf *tar = &tars[piece.digest[7] - '0'];
        ck_assert_uint_eq(piece.of, tar->used);
        ck_assert_uint_le(piece.at + file->bytes, piece.of);
        size_t used = strlen(text);
        snprintf(text + used, TEXT_BYTES - used, "%s%s=%.*s", i ? " " : "", file->name,
                 (int)file->bytes, tar->data + piece.at);
    }
}

/* Entries "NAME=TEXT", "NAME/", "NAME>SYMLINK", "NAME@HARDLINK", "NAME!" (a device), and blanks
 * between them. */
static void add_entry(struct sl_buf *tar, char *entry)
{
    size_t name = strcspn(entry, "=>@!");
    char mark = entry[name], *rest = entry + name + (mark != 0);
    char type = mark == '>' ? '2' : mark == '@' ? '1' : mark == '!' ? '3' : mark ? '0' : '5';
    entry[name] = 0;
    tar_entry(tar, type, entry, mark == '>' || mark == '@' ? rest : NULL, rest,
              mark == '=' ? strlen(rest) : 0);
}

static void add_entries(struct sl_buf *tar, const char *entries)
{
    sl_autofree char *text = strdup(entries);
    char *next = NULL;
    for (char *entry = strtok_r(text, " ", &next); entry; entry = strtok_r(NULL, " ", &next))
        add_entry(tar, entry);
    tar_end(tar);
}

/* Layers divided by '|'; how many. */
static size_t make_layers(const char *layers, struct sl_buf tars[LAYERS_MAX])
{
    size_t count = 0;
    sl_autofree char *text = strdup(layers);
    for (char *at = text; at; count++) {
        char *bar = strchr(at, '|');
        if (bar)
            *bar++ = 0;
        tars[count] = (struct sl_buf)SL_BUF_INIT(TAR_BYTES_MAX);
        add_entries(&tars[count], at);
        at = bar;
    }
    return count;
}

/* ---- what is left ---------------------------------------------------------------------------- */

static const struct {
    const char *layers, *left;
} overlays[] = {
    {"", ""},
    {"etc/passwd=x models/ models/a=1 models/d/b=2 modelsx/c=3", "a=1 d/b=2"},
    {"./models/a=1 /models/b=2 models//c=3", "a=1 b=2 c=3"},
    {"models/a=1 models/a=22", "a=22"},
    {"models/a=1|models/a=2", "a=2"},
    {"models/a=1 models/b=2|models/.wh.a=", "b=2"},
    {"models/a=1|models/.wh.a=|models/a=3", "a=3"},
    {"models/a=1|models/.wh.a= models/a=2", "a=2"}, /* whiteouts are of lower layers */
    {"models/a=1|models/a=2 models/.wh.a=", "a=2"},
    {"models/d/a=1 models/d/e/b=2 models/c=3|models/.wh.d=", "c=3"},
    {"models/d/a=1 models/d/e/b=2|models/d/.wh..wh..opq= models/d/c=3", "d/c=3"},
    {"models/d/a=1|models/d/c=3 models/d/.wh..wh..opq=", "d/c=3"},
    {"models/a=1|.wh.models=|models/b=2", "b=2"},
    {"models/a=1|.wh..wh..opq= models/b=2", "b=2"},
    {"models/a=1|models=file|models/b=2", "b=2"},
    {"models/d/a=1|models/d=file", "d=file"},
    {"models/d=file|models/d/", ""},
    {"models/d=file|models/.wh.d=|models/d/a=1", "d/a=1"},
    {"models/ab=1 models/a/b=2 models/a-b=3", "a-b=3 a/b=2 ab=1"},
    /* links are the files that they lead to */
    {"models/a=1 models/b@models/a", "a=1 b=1"},
    {"models/a=1 models/b@models/a models/c@models/b", "a=1 b=1 c=1"},
    {"models/a=1 models/b@models/a models/a=2", "a=2 b=1"},
    {"models/a=1 models/b@models/a|models/.wh.a=", "b=1"},
    {"models/d/a=1 models/l>d/a models/d/m>../d/a models/n>/models/d/a", "d/a=1 d/m=1 l=1 n=1"},
    {"models/a=1 models/l>a|models/a=2", "a=2 l=2"},
    {"models/l>m models/m>a models/a=1", "a=1 l=1 m=1"},
    {"bin/sh! dev/null! models/a=1 lib>usr/lib", "a=1"},
};

SL_TEST_LOOP(later_layers_lie_over_earlier_ones, 0, SL_COUNT(overlays))
{
    struct sl_buf tars[LAYERS_MAX];
    struct sl_oci_manifest manifest;
    char text[TEXT_BYTES];
    size_t count = make_layers(overlays[_i].layers, tars);
    ck_assert_msg(lay(tars, count, "models", true, _i % 2, &manifest) == 0, "%s: %s",
                  overlays[_i].layers, err.message);
    tell(&manifest, tars, text);
    ck_assert_msg(strcmp(text, overlays[_i].left) == 0, "'%s' leaves '%s'", overlays[_i].layers,
                  text);
    sl_oci_manifest_release(&manifest);
    for (size_t i = 0; i < count; i++)
        sl_buf_release(&tars[i]);
}

static const struct {
    const char *folder, *layers, *left;
    bool image;
} folders[] = {
    {"", "a=1 models/b=2|.wh.a=", "models/b=2", true},
    {"", "a=1|.wh..wh..opq= b=2", "b=2", true},
    {"opt/m", "opt/m/a=1 opt/n=2 a=3|opt/.wh.m=|opt/m/b=1", "b=1", true},
    {"opt/m", "opt/m/a=1|opt=file", "", true},
    {"models", "a=1 d/b=2", "a=1 d/b=2", false}, /* a model's own tar: all of it */
    {"models", "a=1|.wh.a=2 .wh..wh..opq=3", ".wh..wh..opq=3 .wh.a=2 a=1", false},
    {"models", "a=1|a=2", "a=2", false},
};

SL_TEST_LOOP(a_folder_of_an_image_is_the_model, 0, SL_COUNT(folders))
{
    struct sl_buf tars[LAYERS_MAX];
    struct sl_oci_manifest manifest;
    char text[TEXT_BYTES];
    size_t count = make_layers(folders[_i].layers, tars);
    ck_assert_msg(lay(tars, count, folders[_i].folder, folders[_i].image, false, &manifest) == 0,
                  "%s: %s", folders[_i].layers, err.message);
    tell(&manifest, tars, text);
    ck_assert_msg(strcmp(text, folders[_i].left) == 0, "'%s' leaves '%s'", folders[_i].layers,
                  text);
    sl_oci_manifest_release(&manifest);
    for (size_t i = 0; i < count; i++)
        sl_buf_release(&tars[i]);
}

SL_TEST(files_get_hashes_only_where_their_layer_is_checked)
{
    struct sl_buf tar = SL_BUF_INIT(TAR_BYTES_MAX);
    struct sl_oci_manifest manifest;
    uint8_t digest[SL_HASH_BYTES_MAX];
    add_entries(&tar, "models/a=hello models/b@models/a");
    ck_assert_int_eq(lay(&tar, 1, "models", true, true, &manifest), 0);
    sl_digest_of(SL_HASH_SHA256, NULL, 0, "hello", 5, digest, NULL);
    for (size_t i = 0; i < 2; i++) {
        ck_assert(manifest.files[i].hashed);
        ck_assert_mem_eq(manifest.files[i].sha256, digest, 32);
    }
    sl_oci_manifest_release(&manifest);
    ck_assert_int_eq(lay(&tar, 1, "models", true, false, &manifest), 0);
    ck_assert(!manifest.files[0].hashed);
    sl_oci_manifest_release(&manifest);
    sl_buf_release(&tar);
}

/* ---- what is refused ------------------------------------------------------------------------- */

static const struct {
    const char *layers, *says;
} hostile[] = {
    {"models/../a=1", "leads out of the archive"},
    {"../models/a=1", "leads out of the archive"},
    {"models/a!", "is a device"},
    {"models/a=1 models/a/b=2", "is both a file and a folder"},
    {"models/a=1|models/a/b=2", "is both a file and a folder"},
    {"models/.wh.=", "a whiteout without a name"},
    {"models/.wh...=", "a whiteout without a name"},
    {".=x", "has no name"},
    {"models/l>nowhere", "leads to no file"},
    {"models/l>../../etc/passwd etc/passwd=x", "leads to no file"},
    {"models/l>/etc/passwd etc/passwd=x", "leads to no file"},
    {"models/l>.. models/a=1", "leads to no file"},
    {"models/l>d models/d/a=1 models/d/", "leads to no file"},
    {"models/l>m models/m>l", "leads to no file"},
    {"models/l>l", "leads to no file"},
    {"models/a=1 models/l>a|models/.wh.a=", "leads to no file"},
    {"models/l@models/a models/a=1", "leads to no file"},
    {"models/a=1|models/l@models/a", "leads to no file"},
    {"models/l@etc/passwd etc/passwd=x", "leads to no file"},
    {"models/l@models/l", "leads to no file"},
    {"models/l> models/a=1", "a link without a target"},
};

SL_TEST_LOOP(a_hostile_layer_is_refused, 0, SL_COUNT(hostile))
{
    struct sl_buf tars[LAYERS_MAX];
    struct sl_oci_manifest manifest;
    size_t count = make_layers(hostile[_i].layers, tars);
    ck_assert_msg(lay(tars, count, "models", true, false, &manifest) < 0, "%s", hostile[_i].layers);
    ck_assert_int_eq(err.kind, SL_E_FORMAT);
    ck_assert_msg(strstr(err.message, hostile[_i].says), "%s: %s", hostile[_i].layers, err.message);
    sl_oci_manifest_release(&manifest);
    for (size_t i = 0; i < count; i++)
        sl_buf_release(&tars[i]);
}

SL_TEST(every_prefix_of_a_layer_is_refused)
{
    struct sl_buf tar = SL_BUF_INIT(TAR_BYTES_MAX);
    struct sl_oci_manifest manifest;
    tar_entry(&tar, 'x', "x", NULL, "17 path=models/p\n", 17);
    tar_entry(&tar, '0', "p", NULL, "1", 1);
    tar_entry(&tar, '0', "models/a", NULL, NULL, 0);
    tar_entry(&tar, '5', "models/d/", NULL, NULL, 0);
    size_t whole = tar.used + 512; /* behind the first block of zeros nothing is missed */
    tar_end(&tar);
    for (size_t cut = 0; cut < whole; cut++)
        for (int check = 0; check < 2; check++) {
            uint8_t *copy = malloc(cut + 1); /* so that a sanitizer sees its end */
            memcpy(copy, tar.data, cut);
            struct sl_buf part = {.data = (char *)copy, .used = cut};
            ck_assert_msg(lay(&part, 1, "models", true, check, &manifest) < 0, "cut at %zu", cut);
            ck_assert_str_eq(err.code, "tar");
            sl_oci_manifest_release(&manifest);
            free(copy);
        }
    ck_assert_int_eq(lay(&tar, 1, "models", true, false, &manifest), 0);
    ck_assert_uint_eq(manifest.count, 2);
    sl_oci_manifest_release(&manifest);
    sl_buf_release(&tar);
}

SL_TEST(a_size_that_lies_is_refused)
{
    static const char *const sizes[] = {"00000004000", "77777777777", "xx",
                                        "\x80\x7f\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff"};
    for (size_t i = 0; i < SL_COUNT(sizes); i++) {
        struct sl_buf tar = SL_BUF_INIT(TAR_BYTES_MAX);
        struct sl_oci_manifest manifest;
        tar_entry(&tar, '0', "models/a", NULL, "1", 1);
        memcpy(tar.data + 124, sizes[i], strlen(sizes[i]));
        tar_sum(&tar, 0);
        tar_end(&tar);
        ck_assert_msg(lay(&tar, 1, "models", true, false, &manifest) < 0, "%zu", i);
        ck_assert_int_eq(err.kind, SL_E_FORMAT);
        sl_oci_manifest_release(&manifest);
        sl_buf_release(&tar);
    }
}

/* The same header again and again. */
static int read_endless(void *arg, void *data, uint64_t bytes, uint64_t *got, struct sl_err *why)
{
    const struct sl_buf *tar = arg;
    (void)why;
    *got = bytes;
    if (data)
        memcpy(data, tar->data, SL_MIN(bytes, tar->used));
    return 0;
}

SL_TEST(entries_without_end_are_refused)
{
    struct sl_buf tar = SL_BUF_INIT(TAR_BYTES_MAX);
    const struct sl_tar_input input = {read_endless, &tar};
    const struct sl_oci_layer layer = {DIGEST, UINT64_C(1) << 40, true};
    uint64_t at = 0;
    err = (struct sl_err)SL_ERR_INIT;
    tar_entry(&tar, '0', "models/a", NULL, NULL, 0);
    SL_AUTO(sl_oci_tree) tree = sl_oci_tree_new("models", NULL, &err);
    ck_assert_int_lt(sl_oci_tree_add(tree, &layer, &input, &at, false, &err), 0);
    ck_assert_msg(strstr(err.message, "more than 200000 entries"), "%s", err.message);
    sl_buf_release(&tar);
}

/* ---- many links ------------------------------------------------------------------------------ */

enum { LINKS = 8000, CHAIN = 8, DEPTH = 480 };

/* As deep as names may be, in chains as long as they may be. */
static struct sl_buf make_links(void)
{
    struct sl_buf tar = SL_BUF_INIT(64 << 20);
    char folder[2 * DEPTH + 1] = "", name[2 * DEPTH + 32], target[16];
    for (size_t i = 0; i < DEPTH; i++)
        memcpy(folder + 2 * i, "d/", 3);
    for (unsigned i = 0; i <= LINKS; i++) {
        bool file = i == LINKS;
        int bytes = snprintf(name, sizeof(name), "%s%c%u", folder, file ? 'f' : 'l', file ? 0 : i);
        snprintf(target, sizeof(target), i % CHAIN == CHAIN - 1 ? "f0" : "l%u", i + 1);
        tar_entry(&tar, 'L', "././@LongLink", NULL, name, (size_t)bytes + 1);
        tar_entry(&tar, file ? '0' : '2', "short", file ? NULL : target, "1", file);
    }
    tar_end(&tar);
    return tar;
}

/* To read a layer grows with its names, and so must what is made of it. */
SL_TEST(the_work_on_links_grows_with_their_names_alone)
{
    struct sl_buf tar = make_links();
    struct sl_oci_manifest manifest;
    ck_assert_msg(lay(&tar, 1, "", true, false, &manifest) == 0, "%s", err.message);
    ck_assert_uint_eq(manifest.count, LINKS + 1);
    ck_assert_msg(finished_ns < 20 * added_ns, "%u ms to read, %u ms to lay over",
                  (unsigned)(added_ns / SL_NS_PER_MS), (unsigned)(finished_ns / SL_NS_PER_MS));
    sl_oci_manifest_release(&manifest);
    sl_buf_release(&tar);
}

/* In the middle of a layer, and when all are read. */
SL_TEST_LOOP(a_signal_ends_the_work_on_a_layer_at_once, 0, 2)
{
    struct sl_buf tar = make_links();
    struct sl_oci_manifest manifest;
    cancel = sl_cancel_new(NULL);
    cancel_at = _i ? tar.used - 1024 : tar.used / 2;
    ck_assert_int_eq(lay(&tar, 1, "", true, false, &manifest), -1);
    ck_assert_int_eq(err.kind, SL_E_CANCELED);
    ck_assert_uint_le(read_bytes, cancel_at + 4096);
    sl_oci_manifest_release(&manifest);
    sl_cancel_free(cancel);
    sl_buf_release(&tar);
}

SL_CASE(.seconds = 60)
