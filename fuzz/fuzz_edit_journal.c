/*
 * A journal of an edit that somebody put beside a file. The first byte chooses how far it gets: as
 * it is, it was not written here, and nobody who reads or edits changes a byte of the file; else
 * what proves it and its hash are made right and the file gets its mark, so that what is behind
 * them is reached, and nothing but the file may change.
 */
#include <string.h>
#include <sys/stat.h>

#include "buf.h"
#include "file_edit.h"
#include "fuzz_folder.h"
#include "hash.h"
#include "log.h"

enum {
    FILE_BYTES = 4096,
    INPUT_BYTES_MAX = 64 * 1024,
    SEAL_AT = 40, /* of the journal's head: places in file_journal.c */
    MARK_AT = 64,
    FILE_AT = 80,
    SELF_AT = 104,
    HEAD_BYTES = 128,
    DIGEST_BYTES = 32,
};

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

static void put_identity(int folder, const char *name, uint8_t to[24])
{
    struct statx info;
    if (statx(folder, name, AT_SYMLINK_NOFOLLOW, STATX_INO | STATX_BTIME, &info) < 0)
        abort();
    sl_put_le64(to, info.stx_ino);
    sl_put_le64(to + 8, (uint64_t)info.stx_btime.tv_sec);
    sl_put_le64(to + 16, info.stx_btime.tv_nsec);
}

/* Everything that a stranger cannot know. */
static void prove(int folder, uint8_t *journal, size_t bytes, uint8_t content[FILE_BYTES])
{
    uint64_t seal = sl_get_le64(journal + SEAL_AT);
    memcpy(journal, "sluice-edit 2\n\0", 16);
    sl_put_le64(journal + 16, bytes);
    put_identity(folder, "m", journal + FILE_AT);
    put_identity(folder, ".m.sluice-edit", journal + SELF_AT);
    if (seal <= FILE_BYTES - 8)
        memcpy(content + seal, journal + MARK_AT, 8);
    SL_AUTO(sl_sha256) sha = sl_sha256_new(NULL);
    if (!sha)
        abort();
    sl_sha256_update(sha, journal, bytes - DIGEST_BYTES);
    sl_sha256_finish(sha, journal + bytes - DIGEST_BYTES);
}

static void put_at(int folder, const char *name, const uint8_t *data, size_t bytes)
{
    int fd = openat(folder, name, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (fd < 0 || write(fd, data, bytes) != (ssize_t)bytes)
        abort();
    close(fd);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    struct sl_err err = SL_ERR_INIT;
    struct sl_file_edit *edit = NULL;
    uint8_t content[FILE_BYTES], found[FILE_BYTES + 1];
    char path[128];
    if (bytes == 0 || bytes > INPUT_BYTES_MAX)
        return 0;
    sl_log_silence();
    bool right = data[0] % 2 && bytes > HEAD_BYTES + DIGEST_BYTES;
    uint8_t *journal = malloc(bytes);
    memcpy(journal, data + 1, --bytes);
    memset(content, 0x41, sizeof(content));
    int folder = fuzz_folder_put("m", NULL, 0, content, sizeof(content));
    put_at(folder, ".m.sluice-edit", journal, bytes);
    if (right) {
        prove(folder, journal, bytes, content);
        put_at(folder, ".m.sluice-edit", journal, bytes);
        put_at(folder, "m", content, sizeof(content));
    }
    snprintf(path, sizeof(path), "%s/m", fuzz_folder_path);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    int looked = sl_file_edit_check(fd, &err);
    if (pread(fd, found, sizeof(found), 0) != FILE_BYTES || memcmp(found, content, FILE_BYTES) != 0)
        abort();
    int opened = sl_file_edit_open(path, &edit, &err);
    sl_file_edit_free(edit);
    if (!right && (looked < 0 || opened < 0 || pread(fd, found, sizeof(found), 0) != FILE_BYTES ||
                   memcmp(found, content, FILE_BYTES) != 0))
        abort();
    close(fd);
    unlinkat(folder, ".m.sluice-edit", 0);
    free(journal);
    return 0;
}
