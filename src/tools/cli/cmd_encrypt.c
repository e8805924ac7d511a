/* sluice encrypt: a .tensors file, its data sealed; all else stays as it is. */
#include "converting.h"

enum { THREADS_MAX = 64 };

struct encrypt_options {
    char *key_file, *passphrase_file;
    int kdf;
    uint64_t opslimit, memlimit;
    char *salt;
    bool replace;
    uint64_t threads;
};
static const struct sl_option rows[] = {
    SL_OPTION(encrypt_options, key_file, STRING, "",
              "32 bytes to encrypt with; `sluice keygen` makes them", .value = "FILE"),
    SL_OPTION(encrypt_options, passphrase_file, STRING, "",
              "a passphrase to encrypt with; - asks at the terminal", .value = "FILE"),
    SL_KDF_ROWS(encrypt_options),
    SL_OPTION(encrypt_options, replace, BOOL, "false",
              "replace what is at the destination, which may be the source itself"),
    SL_OPTION(encrypt_options, threads, UINT, "0",
              "threads that hash and encrypt; 0 is one a processor, at most 8",
              .maximum = THREADS_MAX),
    SL_OPTION_END,
};
static const struct sl_option_table table = {"encrypt", sizeof(struct encrypt_options), rows};

static int run(struct sl_cli *cli, struct sl_err *err)
{
    const struct encrypt_options *options = cli->options;
    const struct sl_kdf_options kdf = {options->kdf, options->opslimit, options->memlimit,
                                       options->salt};
    SL_AUTO(sl_keys) seal = NULL;
    struct sl_converting converting = {
        .config = {.plain_only = true,
                   .replace = options->replace,
                   .threads = (unsigned)options->threads},
        .to_format = SL_CONVERT_TENSORIZER,
        .verb = "encrypted",
    };
    if (!options->key_file && !options->passphrase_file)
        return sl_fail(err, SL_E_USAGE,
                       "a key is missing: add --key-file FILE (see `sluice keygen`) "
                       "or --passphrase-file FILE");
    if (sl_converting_seal(options->key_file, options->passphrase_file, &kdf, &seal,
                           &converting.config.kdf, err) < 0)
        return -1;
    converting.config.seal = seal;
    return sl_converting_run(cli, &converting, err);
}

const struct sl_command sl_cmd_encrypt = {
    .name = "encrypt",
    .usage = "sluice encrypt SRC DST --key-file FILE | --passphrase-file FILE",
    .summary = "encrypt the data of a .tensors file",
    .description =
        "Tensors, names, roles and module numbers stay as they are; data are sealed with "
        "XSalsa20-Poly1305, which the tensorizer package reads. Names, shapes and hashes stay "
        "readable without the key. Hashes of the source are checked on the way. Keys and "
        "passphrases come from files or the terminal, never from the command line.",
    .examples = "sluice keygen key && sluice encrypt m.tensors sealed.tensors --key-file key\n"
                "sluice encrypt s3://b/m.tensors s3://b/sealed.tensors --passphrase-file phrase\n"
                "sluice encrypt m.tensors m.tensors --replace --key-file key   # in place",
    .options = &table,
    .spec_flags = true,
    .idle_flags = sl_converting_idle_flags,
    .operand_min = 2,
    .operand_max = 2,
    .run = run,
};
