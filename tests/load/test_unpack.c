/* Archives: what other programs made comes out right, and nothing gets out of the directory. */
#include <check.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "buf.h"
#include "claims.h"
#include "golden.h"
#include "scratch.h"
#include "skip.h"
#include "tar_maker.h"
#include "tree.h"
#include "unpack.h"

enum { ARCHIVE_BYTES_MAX = 8 * 1024 * 1024 };
static char scratch[SL_SCRATCH_PATH_BYTES];
static int scratch_fd;
static struct sl_err err;

static void setup(void)
{
    scratch_fd = sl_scratch_open(scratch);
    err = (struct sl_err)SL_ERR_INIT;
}

static void teardown(void)
{
    sl_scratch_close(scratch_fd, scratch);
}

/* A golden archive as it is; golden_read() would inflate it. */
static uint8_t *read_archive(const char *name, size_t *bytes)
{
    char path[512];
    sl_autobuf data = SL_BUF_INIT(ARCHIVE_BYTES_MAX);
    snprintf(path, sizeof(path), "%s/golden/archives/%s", SL_TEST_DATA, name);
    ck_assert_msg(sl_buf_read_file(&data, path, &err) == 0, "%s", err.message);
    *bytes = data.used;
    return (uint8_t *)sl_steal(&data.data);
}

/* Into a fresh directory; 0 or -1 with err. */
static int unpack(const void *data, size_t bytes, bool zip)
{
    err = (struct sl_err)SL_ERR_INIT;
    ck_assert_int_eq(sl_tree_remove(scratch_fd, "out"), 0);
    ck_assert_int_eq(mkdirat(scratch_fd, "out", 0755), 0);
    sl_autoclose int out = openat(scratch_fd, "out", O_RDONLY | O_DIRECTORY);
    sl_autoclose int in = memfd_create("archive", 0);
    ck_assert_int_eq(write(in, data, bytes), (ssize_t)bytes);
    SL_AUTO(sl_unpack) tree = sl_unpack_new(out, scratch, bytes, NULL, &err);
    if (!tree)
        return -1;
    int done = zip ? sl_unzip(in, bytes, tree, &err) : sl_untar(in, bytes, tree, &err);
    return done < 0 ? -1 : sl_unpack_finish(tree, &err);
}

/* What a file of the tree holds, "" without it. */
static const char *content(const char *name)
{
    static char text[8192];
    char path[1024];
    snprintf(path, sizeof(path), "%s/out/%s", scratch, name);
    FILE *file = fopen(path, "r");
    size_t got = file ? fread(text, 1, sizeof(text) - 1, file) : 0;
    text[got] = 0;
    if (file)
        fclose(file);
    return text;
}

static unsigned mode_of(const char *name)
{
    char path[1024];
    struct stat status;
    snprintf(path, sizeof(path), "out/%s", name);
    return fstatat(scratch_fd, path, &status, AT_SYMLINK_NOFOLLOW) < 0 ? 0 : status.st_mode;
}

/* ---- what others made ----------------------------------------------------------------------- */

static void expect_model(const char *golden, bool zip, bool links)
{
    char deep[256], n[121];
    size_t bytes;
    uint8_t *data = read_archive(golden, &bytes);
    ck_assert_msg(unpack(data, bytes, zip) == 0, "%s: %s", golden, err.message);
    free(data);
    ck_assert_msg(strcmp(content("config.json"), "{\"a\":1}") == 0, "%s", golden);
    memset(n, 'n', 120);
    n[120] = 0;
    snprintf(deep, sizeof(deep), "1/%s/v.txt", n);
    ck_assert_msg(strcmp(content(deep), "v") == 0, "%s", golden);
    content("1/weights.bin");
    ck_assert_uint_eq(mode_of("config.json") & 07777, 0644);
    ck_assert_uint_eq(mode_of("run.sh") & 07777, zip ? 0644 : 0755);
    ck_assert_int_eq(S_ISLNK(mode_of("latest")), links);
    ck_assert_int_eq(S_ISREG(mode_of("copy.bin")), links);
}

SL_TEST(archives_of_other_programs_come_out_whole)
{
    static const char *const tars[] = {"gnu.tar", "pax.tar", "pax.tgz", "tool.tgz"};
    static const char *const zips[] = {"deflated.zip", "stored.zip", "tool.zip"};
    for (size_t i = 0; i < SL_COUNT(tars); i++)
        expect_model(tars[i], false, true);
    for (size_t i = 0; i < SL_COUNT(zips); i++)
        expect_model(zips[i], true, false);
}

static bool is_zero(const uint8_t *data, size_t bytes)
{
    return data[0] == 0 && memcmp(data, data + 1, bytes - 1) == 0;
}

SL_TEST(every_prefix_is_refused)
{
    static const char *const names[] = {"tool.tgz", "gnu.tar", "deflated.zip", "stored.zip"};
    for (size_t i = 0; i < SL_COUNT(names); i++) {
        size_t bytes;
        uint8_t *data = read_archive(names[i], &bytes);
        bool zip = strstr(names[i], ".zip") != NULL;
        size_t whole = bytes;
        if (strcmp(names[i], "gnu.tar") ==
            0) /* behind the first block of zeros nothing is missed */
            while (is_zero(data + whole - 512, 512))
                whole -= 512;
        for (size_t cut = 0; cut < whole; cut += cut < 600 || cut + 600 > whole ? 1 : 37)
            ck_assert_msg(unpack(data, cut, zip) < 0, "%s cut at %zu of %zu", names[i], cut, bytes);
        free(data);
    }
}

SL_TEST(every_changed_byte_is_noticed_or_harmless)
{
    static const char *const names[] = {"tool.tgz", "deflated.zip", "stored.zip"};
    for (size_t i = 0; i < SL_COUNT(names); i++) {
        size_t bytes;
        uint8_t *data = read_archive(names[i], &bytes);
        for (size_t at = 0; at < bytes; at++) {
            data[at] ^= 0x55;
            if (unpack(data, bytes, strstr(names[i], ".zip") != NULL) == 0 &&
                S_ISREG(mode_of("config.json")))
                ck_assert_msg(strcmp(content("config.json"), "{\"a\":1}") == 0, "%s at %zu",
                              names[i], at);
            data[at] ^= 0x55;
        }
        free(data);
    }
}

/* ---- hostile tars --------------------------------------------------------------------------- */

static const char *code_of_tar(struct sl_buf *tar)
{
    tar_end(tar);
    unpack(tar->data, tar->used, false);
    tar->used = 0;
    return err.code;
}

static const char *code_of_entry(char type, const char *name, const char *link)
{
    sl_autobuf tar = SL_BUF_INIT(ARCHIVE_BYTES_MAX);
    tar_entry(&tar, '0', "good", NULL, "x", 1);
    tar_entry(&tar, type, name, link, NULL, 0);
    return code_of_tar(&tar);
}

SL_TEST(names_cannot_leave_the_directory)
{
    static const char *const names[] = {"../x", "a/../../x", "..",        "a/..",     "a\nb",
                                        "a\\b", ".sluice/x", "./.sluice", "\xff\xfe", "a/../b"};
    for (size_t i = 0; i < SL_COUNT(names); i++)
        ck_assert_msg(strcmp(code_of_entry('0', names[i], NULL), "archive.name") == 0, "%s: %s",
                      names[i], err.message);
    ck_assert_str_eq(code_of_entry('0', "/etc//./passwd", NULL), "");
    ck_assert_uint_ne(mode_of("etc/passwd"), 0);
    ck_assert_str_eq(code_of_entry('0', "", NULL), "archive.name");
    ck_assert_str_eq(code_of_entry('5', "./", NULL), "");
}

SL_TEST(links_cannot_leave_the_directory)
{
    static const char *const bad[] = {"/etc",     "../x",    "..",         "a/../../x",
                                      "x/..",     "./../..", "",           "a/../b",
                                      "../../..", "a\nb",    "./x/../../y"};
    for (size_t i = 0; i < SL_COUNT(bad); i++)
        ck_assert_msg(strcmp(code_of_entry('2', "l", bad[i]), "archive.link") == 0, "%s", bad[i]);
    static const char *const fine[] = {"good", "./good", "missing", "good/", "."};
    for (size_t i = 0; i < SL_COUNT(fine); i++)
        ck_assert_msg(strcmp(code_of_entry('2', "l", fine[i]), "") == 0, "%s: %s", fine[i],
                      err.message);
    ck_assert_str_eq(code_of_entry('2', "a/b/l", "../../good"), "");
    ck_assert_str_eq(code_of_entry('2', "a/b/l", "../../../good"), "archive.link");
    ck_assert_str_eq(code_of_entry('1', "l", "/etc/passwd"), "archive.link");
    ck_assert_str_eq(code_of_entry('1', "l", "../x"), "archive.name");
    ck_assert_str_eq(code_of_entry('1', "l", "later"), "archive.link");
    ck_assert_str_eq(code_of_entry('1', "good", "./good"), "");
}

/* The classic: a link to a folder elsewhere, then a file through it. */
SL_TEST(nothing_is_written_through_a_link)
{
    sl_autobuf tar = SL_BUF_INIT(ARCHIVE_BYTES_MAX);
    ck_assert_int_eq(mkdirat(scratch_fd, "elsewhere", 0755), 0);
    tar_entry(&tar, '2', "d", "sub", NULL, 0);
    tar_entry(&tar, '0', "d/x", NULL, "x", 1);
    ck_assert_str_eq(code_of_tar(&tar), "archive.link");
    /* one link climbs out of what the other points to */
    tar_entry(&tar, '0', "q", NULL, "x", 1);
    tar_entry(&tar, '2', "a/b/c/x", "../../../q", NULL, 0);
    tar_entry(&tar, '2', "y", "a/b/c/x/../../q", NULL, 0);
    ck_assert_str_eq(code_of_tar(&tar), "archive.link");
    struct stat status;
    ck_assert_int_lt(fstatat(scratch_fd, "elsewhere/x", &status, 0), 0);
}

SL_TEST(devices_and_unknown_kinds_are_refused)
{
    static const char types[] = "346SMZ\x7f";
    for (const char *type = types; *type; type++)
        ck_assert_msg(strcmp(code_of_entry(*type, "x", NULL), "archive.type") == 0, "%c", *type);
}

SL_TEST(a_later_entry_replaces_an_earlier_one)
{
    sl_autobuf tar = SL_BUF_INIT(ARCHIVE_BYTES_MAX);
    tar_entry(&tar, '0', "a", NULL, "old", 3);
    tar_entry(&tar, '1', "b", "a", NULL, 0);
    tar_entry(&tar, '0', "a", NULL, "new", 3);
    ck_assert_str_eq(code_of_tar(&tar), "");
    ck_assert_str_eq(content("a"), "new");
    ck_assert_str_eq(content("b"), "old");
    tar_entry(&tar, '0', "f", NULL, "x", 1);
    tar_entry(&tar, '0', "f/x", NULL, "x", 1);
    code_of_tar(&tar);
    ck_assert_int_eq(err.kind, SL_E_NO_SPACE);
}

SL_TEST(sizes_that_lie_are_refused)
{
    sl_autobuf tar = SL_BUF_INIT(ARCHIVE_BYTES_MAX);
    static const char *const sizes[] = {"77777777777", "00000000002", "0000000000x", "-1"};
    for (size_t i = 0; i < SL_COUNT(sizes); i++) {
        tar_entry(&tar, '0', "a", NULL, "x", 1);
        memcpy(tar.data + 124, sizes[i], strlen(sizes[i]) + 1);
        tar_sum(&tar, 0);
        const char *code = code_of_tar(&tar);
        /* two bytes are there, in the padding */
        ck_assert_msg((*code != 0) == (i != 1), "%s: %s", sizes[i], code);
    }
    static const uint8_t wide[] = {0x80, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff};
    tar_entry(&tar, '0', "a", NULL, "x", 1);
    memcpy(tar.data + 124, wide, sizeof(wide));
    tar_sum(&tar, 0);
    ck_assert_str_eq(code_of_tar(&tar), "tar");
    tar_entry(&tar, '0', "a", NULL, "x", 1);
    tar.data[0] = 'b'; /* without its sum */
    ck_assert_str_eq(code_of_tar(&tar), "tar");
}

SL_TEST(extended_headers_are_judged)
{
    static const struct {
        char type;
        const char *data, *code;
    } rows[] = {
        {'x', "14 path=other\n", ""},
        {'x', "15 path=../out\n", "archive.name"},
        {'x', "20 GNU.sparse.map=1\n", "tar"},
        {'x', "99 path=x\n", "tar"},
        {'x', "0 path=x\n", "tar"},
        {'x', "9 path=x", "tar"},
        {'x', "path=x\n", "tar"},
        {'x', "8 pathx\n", "tar"},
        {'x', "10 size=-1\n", "tar"},
        {'x', "9 size=\n\n", "tar"},
        {'x', "29 size=18446744073709551616\n", "tar"},
        {'x', "9 size=1\n", ""},
        {'g', "9 size=1\n", "tar"},
        {'g', "10 comment\n", "tar"},
        {'g', "12 path=zzz\n", ""},
        {'L', "../out", "archive.name"},
        {'L', "longer/name", ""},
    };
    for (size_t i = 0; i < SL_COUNT(rows); i++) {
        sl_autobuf tar = SL_BUF_INIT(ARCHIVE_BYTES_MAX);
        tar_entry(&tar, rows[i].type, "meta", NULL, rows[i].data, strlen(rows[i].data));
        tar_entry(&tar, '0', "a", NULL, "x", 1);
        const char *code = code_of_tar(&tar);
        ck_assert_msg(strcmp(code, rows[i].code) == 0, "row %zu: '%s' %s", i, code, err.message);
    }
}

SL_TEST(a_bomb_is_refused_before_it_fills_the_disk)
{
    enum { ZEROS = 65 * 1024 * 1024 };
    sl_autobuf tar = SL_BUF_INIT(ZEROS + 4096);
    sl_autofree uint8_t *zeros = calloc(1, ZEROS);
    size_t packed_bytes;
    tar_entry(&tar, '0', "zeros", NULL, zeros, ZEROS);
    tar_entry(&tar, '0', "more", NULL, "x", 1);
    sl_autofree uint8_t *packed = tar_gzip(tar.data, tar.used, &packed_bytes);
    ck_assert_uint_lt(packed_bytes * 300, ZEROS);
    ck_assert_int_eq(unpack(packed, packed_bytes, false), -1);
    ck_assert_int_eq(err.kind, SL_E_FORMAT);
    sl_autobuf twice = SL_BUF_INIT(4096);
    tar_entry(&twice, '0', "huge", NULL, "x", 1);
    memcpy(twice.data + 124, "37777777777", 12); /* 4 GiB of a few bytes */
    tar_sum(&twice, 0);
    ck_assert_str_eq(code_of_tar(&twice), "archive.ratio");
}

SL_TEST(packings_and_what_follows_are_judged)
{
    sl_autobuf tar = SL_BUF_INIT(ARCHIVE_BYTES_MAX), two = SL_BUF_INIT(ARCHIVE_BYTES_MAX);
    size_t bytes;
    tar_entry(&tar, '0', "a", NULL, "x", 1);
    tar_end(&tar);
    sl_autofree uint8_t *half = tar_gzip(tar.data, 700, &bytes);
    ck_assert_int_eq(sl_buf_append(&two, half, bytes, NULL), 0);
    sl_autofree uint8_t *rest = tar_gzip(tar.data + 700, tar.used - 700, &bytes);
    ck_assert_int_eq(sl_buf_append(&two, rest, bytes, NULL), 0);
    ck_assert_msg(unpack(two.data, two.used, false) == 0, "%s", err.message);
    ck_assert_int_eq(sl_buf_append(&two, "\0\0\0", 3, NULL), 0);
    ck_assert_int_eq(unpack(two.data, two.used, false), 0);
    ck_assert_int_eq(sl_buf_append(&two, "!", 1, NULL), 0);
    ck_assert_int_eq(unpack(two.data, two.used, false), -1);
    ck_assert_str_eq(err.code, "gzip");
    static const char *const others[] = {"BZh91AY",
                                         "\xfd"
                                         "7zXZ\0..",
                                         "\x28\xb5\x2f\xfd...."};
    for (size_t i = 0; i < SL_COUNT(others); i++) {
        ck_assert_int_eq(unpack(others[i], 7, false), -1);
        ck_assert_str_eq(err.code, i == 2 ? "zstd" : "archive.packing");
    }
    tar.used = 0;
    ck_assert_str_eq(code_of_tar(&tar), "tar"); /* nothing but the end */
}

/* ---- hostile zips --------------------------------------------------------------------------- */

/* One field of tool.zip, changed. */
static const char *code_of_field(const char *golden, bool from_end, size_t at, uint8_t value)
{
    size_t bytes;
    uint8_t *data = read_archive(golden, &bytes);
    data[from_end ? bytes - at : at] = value;
    unpack(data, bytes, true);
    free(data);
    return err.kind ? (*err.code ? err.code : "other") : "";
}

/* Where the directory's row of an entry begins. */
static size_t row_of(const uint8_t *data, size_t bytes, const char *entry)
{
    for (size_t i = 0; i + 46 + strlen(entry) <= bytes; i++)
        if (sl_get_le32(data + i) == 0x02014b50 && sl_get_le16(data + i + 28) == strlen(entry) &&
            memcmp(data + i + 46, entry, strlen(entry)) == 0)
            return i;
    ck_abort_msg("no row of %s", entry);
}

SL_TEST(fields_of_zips_that_lie_are_refused)
{
    size_t bytes;
    uint8_t *data = read_archive("deflated.zip", &bytes);
    size_t row = row_of(data, bytes, "config.json");
    size_t header = sl_get_le32(data + row + 42);
    free(data);
    static const char *const zip = "deflated.zip";
    ck_assert_str_eq(code_of_field(zip, false, row + 8, 1), "archive.encrypted");
    ck_assert_str_eq(code_of_field(zip, false, row + 10, 12), "archive.packing");
    ck_assert_str_eq(code_of_field(zip, false, row + 16, 0xee), "zip.crc");
    ck_assert_str_eq(code_of_field(zip, false, row + 20, 0xee), "zip");
    ck_assert_str_eq(code_of_field(zip, false, row + 24, 200), "archive.truncated");
    ck_assert_str_eq(code_of_field(zip, false, row + 24, 2), "archive.bounds");
    ck_assert_str_eq(code_of_field(zip, false, row + 27, 0x7f), "archive.ratio");
    ck_assert_str_eq(code_of_field(zip, false, row + 45, 0x7f), "zip");
    ck_assert_str_eq(code_of_field(zip, false, row + 46, '/'), "zip"); /* not its own name */
    ck_assert_str_eq(code_of_field(zip, false, header + 26, 9), "zip");
    ck_assert_str_eq(code_of_field(zip, false, header + 8, 0), "zip");
    ck_assert_str_eq(code_of_field(zip, true, 22, 0), "zip");    /* no end */
    ck_assert_str_eq(code_of_field(zip, true, 18, 1), "zip");    /* a second volume */
    ck_assert_str_eq(code_of_field(zip, true, 12, 0x77), "zip"); /* entries */
    ck_assert_str_eq(code_of_field(zip, true, 1, 1), "zip");     /* a comment that is not there */
    data = read_archive("tool.zip", &bytes);
    row = row_of(data, bytes, "config.json");
    free(data);
    ck_assert_str_eq(code_of_field("tool.zip", false, row + 41, 0xa1), "archive.type"); /* a link */
}

/* The name of an entry in both places. */
/* A second archive behind the first, bytes in front of it, a second end record in the comment of
 * the first, bytes before the end record: others find or shift places where we would not. */
SL_TEST_LOOP(an_archive_that_others_read_otherwise_is_refused, 0, 4)
{
    enum { END = 22, COMMENT = 20 };
    size_t bytes;
    sl_autofree char *data = (char *)read_archive("deflated.zip", &bytes);
    const char *end = data + bytes - END;
    const struct {
        const char *data;
        size_t bytes;
    } parts[][3] = {{{data, bytes}, {data, bytes}},
                    {{"stub", 4}, {data, bytes}},
                    {{data, bytes}, {end, END}, {"x", 1}},
                    {{data, bytes - END}, {"x", 1}, {end, END}}};
    sl_autobuf whole = SL_BUF_INIT(1 << 20);
    for (size_t i = 0; i < 3; i++)
        ck_assert_int_eq(sl_buf_append(&whole, parts[_i][i].data, parts[_i][i].bytes, &err), 0);
    if (_i == 2)
        whole.data[bytes - END + COMMENT] = END + 1;
    ck_assert_int_eq(unpack(whole.data, whole.used, true), -1);
    ck_assert_str_eq(err.code, "zip");
}

SL_TEST(names_of_zips_cannot_leave_the_directory)
{
    size_t bytes;
    uint8_t *data = read_archive("deflated.zip", &bytes);
    size_t row = row_of(data, bytes, "config.json"), header = sl_get_le32(data + row + 42);
    memcpy(data + row + 46, "../fig.json", 11);
    memcpy(data + header + 30, "../fig.json", 11);
    ck_assert_int_eq(unpack(data, bytes, true), -1);
    ck_assert_str_eq(err.code, "archive.name");
    memcpy(data + row + 46, "/etc/pa.ssw", 11);
    memcpy(data + header + 30, "/etc/pa.ssw", 11);
    ck_assert_int_eq(unpack(data, bytes, true), 0);
    ck_assert_str_eq(content("etc/pa.ssw"), "{\"a\":1}");
    free(data);
}

SL_TEST(entries_that_share_data_are_refused)
{
    size_t bytes;
    uint8_t *data = read_archive("stored.zip", &bytes);
    size_t row = row_of(data, bytes, "config.json"), other = row_of(data, bytes, "run.sh");
    memcpy(data + other, data + row, 46 + 6); /* its name is then no prefix of the other's */
    ck_assert_int_eq(unpack(data, bytes, true), -1);
    ck_assert_str_eq(err.code, "zip");
    free(data);
}

/* ---- without room ---------------------------------------------------------------------------- */

SL_TEST(an_archive_that_is_given_back_as_it_is_read_comes_out_whole)
{
    enum { BYTES = 9 * 1024 * 1024 };
    static uint8_t data[BYTES];
    sl_autobuf tar = SL_BUF_INIT(4 * BYTES);
    struct stat status;
    for (size_t i = 0; i < BYTES; i++)
        data[i] = (uint8_t)(i * 31 + i / 4096);
    tar_entry(&tar, '0', "a.bin", NULL, data, BYTES);
    tar_entry(&tar, '0', "b.bin", NULL, data, BYTES);
    tar_end(&tar);
    sl_autoclose int in = memfd_create("archive", 0);
    ck_assert_int_eq(write(in, tar.data, tar.used), (ssize_t)tar.used);
    ck_assert_int_eq(mkdirat(scratch_fd, "out", 0755), 0);
    sl_autoclose int out = openat(scratch_fd, "out", O_RDONLY | O_DIRECTORY);
    SL_AUTO(sl_unpack) tree = sl_unpack_new(out, scratch, tar.used, NULL, &err);
    sl_unpack_eat(tree);
    ck_assert_msg(sl_untar(in, tar.used, tree, &err) == 0, "%s", err.message);
    ck_assert_int_eq(sl_unpack_finish(tree, &err), 0);
    ck_assert_int_eq(fstat(in, &status), 0);
    ck_assert_int_lt(status.st_blocks * 512, BYTES / 2);
    for (char name[] = "out/a.bin"; name[4] <= 'b'; name[4]++) {
        sl_autofree uint8_t *found = malloc(BYTES);
        sl_autoclose int fd = openat(scratch_fd, name, O_RDONLY);
        ck_assert_int_eq(read(fd, found, BYTES), BYTES);
        ck_assert_int_eq(memcmp(found, data, BYTES), 0);
    }
}

SL_TEST(a_zip_that_is_given_back_as_it_is_read_comes_out_whole)
{
    static const char *const names[] = {"deflated.zip", "stored.zip"};
    for (size_t i = 0; i < SL_COUNT(names); i++) {
        size_t bytes;
        sl_autofree uint8_t *data = read_archive(names[i], &bytes);
        sl_autoclose int in = memfd_create("archive", 0);
        ck_assert_int_eq(write(in, data, bytes), (ssize_t)bytes);
        ck_assert_int_eq(sl_tree_remove(scratch_fd, "out"), 0);
        ck_assert_int_eq(mkdirat(scratch_fd, "out", 0755), 0);
        sl_autoclose int out = openat(scratch_fd, "out", O_RDONLY | O_DIRECTORY);
        SL_AUTO(sl_unpack) tree = sl_unpack_new(out, scratch, bytes, NULL, &err);
        sl_unpack_eat(tree);
        ck_assert_msg(sl_unzip(in, bytes, tree, &err) == 0, "%s", err.message);
        ck_assert_str_eq(content("config.json"), "{\"a\":1}");
    }
}

SL_TEST(what_an_earlier_run_left_goes_before_it_is_replaced)
{
    size_t bytes;
    sl_autofree uint8_t *data = read_archive("tool.tgz", &bytes);
    ck_assert_int_eq(unpack(data, bytes, false), 0); /* it is there, and stays as "old" */
    ck_assert_int_eq(renameat(scratch_fd, "out", scratch_fd, "old"), 0);
    ck_assert_int_eq(mkdirat(scratch_fd, "out", 0755), 0);
    sl_autoclose int out = openat(scratch_fd, "out", O_RDONLY | O_DIRECTORY);
    sl_autoclose int old = openat(scratch_fd, "old", O_RDONLY | O_DIRECTORY);
    sl_autoclose int in = memfd_create("archive", 0);
    ck_assert_int_eq(write(in, data, bytes), (ssize_t)bytes);
    SL_AUTO(sl_unpack) tree = sl_unpack_new(out, scratch, bytes, NULL, &err);
    sl_unpack_over(tree, old);
    ck_assert_int_eq(sl_untar(in, bytes, tree, &err), 0);
    ck_assert_int_eq(faccessat(old, "config.json", F_OK, 0), -1);
    ck_assert_int_eq(faccessat(out, "config.json", F_OK, 0), 0);
}

/* ---- what fails on our side ------------------------------------------------------------------ */

struct once {
    const uint8_t *data;
    size_t bytes;
    bool zip;
};

static int unpack_once(void *arg, struct sl_err *why)
{
    const struct once *once = arg;
    int done = unpack(once->data, once->bytes, once->zip);
    *why = err;
    return done;
}

SL_TEST(every_failing_allocation_is_survived)
{
    static const char *const names[] = {"tool.tgz", "pax.tar", "deflated.zip"};
    for (size_t i = 0; i < SL_COUNT(names); i++) {
        size_t bytes;
        uint8_t *data = read_archive(names[i], &bytes);
        struct once once = {data, bytes, strstr(names[i], ".zip") != NULL};
        ck_assert_uint_gt(golden_each_allocation(unpack_once, &once), 2);
        free(data);
    }
}

/* Is an archive that cannot be unpacked into `out` given up for want of room? */
static rlim_t limit = RLIM_INFINITY; /* of files that it makes */
static bool is_full(int out)
{
    static const uint8_t content[16384];
    sl_autobuf tar = SL_BUF_INIT(1 << 20);
    const char *const names[] = {"a", "b/c", "d/e/f"};
    for (size_t i = 0; i < SL_COUNT(names); i++)
        tar_entry(&tar, '0', names[i], NULL, content, sizeof(content));
    tar_end(&tar);
    sl_autoclose int in = memfd_create("archive", 0);
    ck_assert_int_eq(write(in, tar.data, tar.used), (ssize_t)tar.used);
    ck_assert_int_eq(setrlimit(RLIMIT_FSIZE, &(struct rlimit){limit, RLIM_INFINITY}), 0);
    SL_AUTO(sl_unpack) tree = sl_unpack_new(out, scratch, tar.used, NULL, &err);
    ck_assert_int_eq(sl_untar(in, tar.used, tree, &err), -1);
    ck_assert_int_eq(err.kind, SL_E_NO_SPACE);
    return sl_unpack_is_full(tree);
}

SL_TEST(a_file_beyond_a_limit_is_no_lack_of_room)
{
    signal(SIGXFSZ, SIG_IGN);
    limit = 4096;
    ck_assert(!is_full(scratch_fd));
}

SL_TEST(a_lack_of_inodes_is_a_lack_of_room)
{
    if (unshare(CLONE_NEWNS) < 0 || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0 ||
        mkdirat(scratch_fd, "small", 0755) < 0)
        SL_SKIP("cannot mount");
    sl_autofree char *small = sl_asprintf(&err, "%s/small", scratch);
    ck_assert_int_eq(mount("small", small, "tmpfs", 0, "size=8m,nr_inodes=3"), 0);
    sl_autoclose int out = open(small, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    ck_assert(is_full(out));
    umount2(small, MNT_DETACH);
}

SL_TEST(a_wish_to_stop_is_heeded)
{
    size_t bytes;
    uint8_t *data = read_archive("tool.tgz", &bytes);
    struct sl_cancel *cancel = sl_cancel_new(&err);
    sl_autoclose int in = memfd_create("archive", 0);
    ck_assert_int_eq(write(in, data, bytes), (ssize_t)bytes);
    SL_AUTO(sl_unpack) tree = sl_unpack_new(scratch_fd, scratch, bytes, cancel, &err);
    sl_cancel_raise(cancel, 0);
    ck_assert_int_eq(sl_untar(in, bytes, tree, &err), -1);
    ck_assert_int_eq(err.kind, SL_E_CANCELED);
    sl_cancel_free(cancel);
    free(data);
}

SL_CASE(.setup = setup, .teardown = teardown)
