/* sluice decrypt: an encrypted .tensors file, its data as they were. */
#include "converting.h"

enum { THREADS_MAX = 64 };

struct decrypt_options {
    bool replace;
    uint64_t threads;
};
static const struct sl_option rows[] = {
    SL_OPTION(decrypt_options, replace, BOOL, "false",
              "replace what is at the destination, which may be the source itself"),
    SL_OPTION(decrypt_options, threads, UINT, "0",
              "threads that decrypt and hash; 0 is one a processor, at most 8",
              .maximum = THREADS_MAX),
    SL_OPTION_END,
};
static const struct sl_option_table table = {"decrypt", sizeof(struct decrypt_options), rows};

static int run(struct sl_cli *cli, struct sl_err *err)
{
    const struct decrypt_options *options = cli->options;
    struct sl_converting converting = {
        .config = {.encrypted_only = true,
                   .replace = options->replace,
                   .threads = (unsigned)options->threads},
        .to_format = SL_CONVERT_TENSORIZER,
        .verb = "decrypted",
    };
    return sl_converting_run(cli, &converting, err);
}

const struct sl_command sl_cmd_decrypt = {
    .name = "decrypt",
    .usage = "sluice decrypt SRC DST --key-file FILE | --passphrase-file FILE",
    .summary = "decrypt the data of a .tensors file",
    .description =
        "The reverse of `sluice encrypt`, for files of the tensorizer package too. Every piece of "
        "the data is checked with its MAC; a wrong key or damaged data leave nothing at the "
        "destination. To decrypt while loading, give the key to `sluice load`: no plain copy need "
        "exist.",
    .examples = "sluice decrypt sealed.tensors model.tensors --key-file key\n"
                "sluice decrypt s3://b/sealed.tensors model.tensors --passphrase-file -",
    .options = &table,
    .spec_flags = true,
    .idle_flags = sl_converting_idle_flags,
    .operand_min = 2,
    .operand_max = 2,
    .run = run,
};
