/*
 * sluice keygen: a new random key for `sluice encrypt`. It goes into a new file that only its owner
 * may read, is on disk when the command ends, and is never shown.
 */
#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cli.h"
#include "crypt.h"
#include "exact_io.h"
#include "json.h"

/* O_EXCL: whatever has the name already stays, be it a key, a directory, a link or a terminal. */
static int create(const char *path, struct sl_err *err)
{
    if (strcmp(path, "-") == 0)
        return sl_fail(err, SL_E_USAGE,
                       "a key goes into a file, not to standard output: name a new one");
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC | O_NOCTTY, 0600);
    if (fd >= 0)
        return fd;
    if (errno == EEXIST)
        return sl_fail(
            err, SL_E_USAGE,
            "'%s' exists, and replacing it could lose the key of encrypted models: name a new file",
            path);
    return sl_fail_errno(err, SL_E_NO_SPACE, errno, "cannot make the key file '%s'", path);
}

static int write_key(int fd, const char *path, struct sl_err *err)
{
    uint8_t key[SL_KEY_BYTES];
    sl_crypt_random(key, sizeof(key));
    int failed = sl_write_all(fd, key, sizeof(key)) < 0 ? errno : 0;
    sl_crypt_wipe(key, sizeof(key));
    if (!failed && (fchmod(fd, 0600) < 0 || fsync(fd) < 0))
        failed = errno;
    if (failed)
        return sl_fail_errno(err, SL_E_NO_SPACE, failed, "cannot write the key file '%s'", path);
    return 0;
}

/* The name is on disk when its folder is. Some file systems cannot say. */
static int sync_folder(const char *path, struct sl_err *err)
{
    sl_autofree char *copy = sl_strdup(path, err);
    if (!copy)
        return -1;
    sl_autoclose int folder = open(dirname(copy), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (folder >= 0 && fsync(folder) < 0 && errno != EINVAL)
        return sl_fail_errno(err, SL_E_NO_SPACE, errno, "cannot write the folder of '%s'", path);
    return 0;
}

static int report(struct sl_cli *cli, const char *path, struct sl_err *err)
{
    if (!cli->json) {
        printf("%s: a new key; keep a copy, since models encrypted with it cannot be opened "
               "without it\n",
               path);
        return 0;
    }
    struct sl_json json;
    sl_json_init(&json, 64 * 1024);
    sl_json_object(&json);
    sl_json_key_string(&json, "path", path);
    sl_json_key_uint(&json, "bytes", SL_KEY_BYTES);
    sl_json_end(&json);
    int done = sl_cli_print_json(&json, err);
    sl_json_release(&json);
    return done;
}

static int run(struct sl_cli *cli, struct sl_err *err)
{
    const char *path = cli->operands[0];
    if (sl_crypt_init(err) < 0)
        return -1;
    sl_autoclose int fd = create(path, err);
    if (fd < 0)
        return -1;
    errno = 0;
    if (write_key(fd, path, err) < 0 || sync_folder(path, err) < 0) {
        unlink(path);
        return -1;
    }
    return report(cli, path, err);
}

const struct sl_command sl_cmd_keygen = {
    .name = "keygen",
    .usage = "sluice keygen FILE",
    .summary = "make a key for encrypting models",
    .description = "Writes 32 random bytes into a new file that only its owner may read (mode "
                   "0600). A file that exists is never "
                   "overwritten. With the key all models that it encrypted can be read, and "
                   "without it none of them.",
    .examples = "sluice keygen model.key\n"
                "sluice encrypt model.tensors s3://bucket/model.tensors --key-file model.key\n"
                "kubectl create secret generic model-key --from-file=model.key   # for pods",
    .operand_min = 1,
    .operand_max = 1,
    .run = run,
};
