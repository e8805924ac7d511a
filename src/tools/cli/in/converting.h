/* What convert, encrypt and decrypt have in common: their operands, keys to encrypt with, one run.
 */
#ifndef SL_CONVERTING_H
#define SL_CONVERTING_H

#include "cli.h"
#include "convert.h"

/** How hard a key is to be guessed from a passphrase. */
struct sl_kdf_options {
    int kdf;                     /* preset */
    uint64_t opslimit, memlimit; /* 0: the preset's */
    char *salt;                  /* hex; NULL: random */
};
/* Rows of a command's own struct that has these members. */
#define SL_KDF_ROWS(type)                                                                          \
    SL_OPTION(type, kdf, CHOICE, "moderate",                                                       \
              "with a passphrase: work of deriving a key from it (Argon2id): min 8 KiB, "          \
              "interactive 64 MiB, moderate 256 MiB, sensitive 1 GiB of memory",                   \
              .choices = "min|interactive|moderate|sensitive"),                                    \
        SL_OPTION(type, opslimit, UINT, "0", "passes of Argon2id; 0 is what --kdf says",           \
                  .maximum = SL_KDF_OPSLIMIT_MAX),                                                 \
        SL_OPTION(type, memlimit, BYTES, "0", "memory of Argon2id; 0 is what --kdf says",          \
                  .maximum = SL_KDF_MEMLIMIT_MAX),                                                 \
        SL_OPTION(type, salt, STRING, "", "32 hex digits instead of a random salt",                \
                  .value = "HEX")

/**
 * Get the key to encrypt with and, for a passphrase, how it is derived.
 *
 * @key_file, passphrase_file  as sl_keys_open() takes them.
 * @options                    as the flags say.
 * @keys                       out: the caller's, also where a flag is wrong; NULL before.
 * @kdf                        out: of use with a passphrase.
 * @return                     0, or -1: SL_E_USAGE for --memlimit and --salt; else as
 *                             sl_keys_open().
 */
int sl_converting_seal(const char *key_file, const char *passphrase_file,
                       const struct sl_kdf_options *options, struct sl_keys **keys,
                       struct sl_kdf *kdf, struct sl_err *err);

/** Flags of the spec that mean nothing to a conversion. */
extern const char *const sl_converting_idle_flags[];

struct sl_converting {
    struct sl_convert_config config; /* spec, to, format, cancel, progress are filled in */
    int to_format;                   /* enum sl_convert_format; -1: as the destination is called */
    const struct sl_spec_setting *settings; /* beside those of the command line */
    size_t setting_count;
    const char *verb; /* "converted", for the summary */
};
/** From operands[0] to operands[1], with progress, summary and --json. */
int sl_converting_run(struct sl_cli *cli, struct sl_converting *converting, struct sl_err *err);

#endif
