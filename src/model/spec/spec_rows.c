/*
 * Every key of `kind: Model`, in the order of the reference page. Those of
 * `source` are in spec_source.c; stores and the tmpfs have their rows where their code is. Checks
 * here judge one value alone; spec_check.c judges values against each other.
 */
#include <ctype.h>
#include <string.h>

#include "spec_decode.h"

/* ---- checks --------------------------------------------------------------------------------- */

static int check_name(const char *text, struct sl_err *err)
{
    size_t length = strlen(text);
    bool good = length >= 1 && length <= 63;
    for (size_t i = 0; i < length && good; i++)
        good = islower((unsigned char)text[i]) || isdigit((unsigned char)text[i]) ||
               (i > 0 && i + 1 < length && (text[i] == '-' || text[i] == '.'));
    if (good)
        return 0;
    return sl_fail(
        err, SL_E_USAGE,
        "'%.80s' is not a name: up to 63 of a-z, 0-9, '-' and '.', the first and the last "
        "a letter or digit",
        text);
}

static int check_sha256(const char *text, struct sl_err *err)
{
    size_t digits = 0;
    while (isxdigit((unsigned char)text[digits]))
        digits++;
    if (digits == 64 && !text[64])
        return 0;
    return sl_fail(err, SL_E_USAGE, "a SHA-256 is 64 hex digits, '%.80s' has %zu characters", text,
                   strlen(text));
}

static int check_device(const char *text, struct sl_err *err)
{
    size_t digits = strncmp(text, "cuda:", 5) == 0 ? strspn(text + 5, "0123456789") : 0;
    if (strcmp(text, "host") == 0 || strcmp(text, "cuda:all") == 0 ||
        (digits && digits < 4 && !text[5 + digits]))
        return 0;
    return sl_fail(err, SL_E_USAGE, "a device is host, cuda:0 or cuda:all, not '%.80s'", text);
}

static int check_fixed(const char *text, struct sl_err *err)
{
    struct sl_fixed fixed;
    return sl_fixed_parse(text, &fixed, err);
}

/* ---- rows ----------------------------------------------------------------------------------- */

static const struct sl_option metadata_rows[] = {
    SL_OPTION(sl_spec_metadata, name, STRING, "", "name of the model in metrics, logs and the API",
              .required = true, .check = check_name,
              .pattern = "^[a-z0-9]([-a-z0-9.]{0,61}[a-z0-9])?$", .value = "NAME"),
    SL_OPTION_END,
};
static const struct sl_option_table metadata_table = {"metadata", sizeof(struct sl_spec_metadata),
                                                      metadata_rows};

static const struct sl_option rename_rows[] = {
    SL_OPTION(sl_spec_rename_rule, match, STRING, "",
              "a POSIX extended regular expression; the first part of the name that it matches is "
              "replaced",
              .required = true, .check = sl_spec_check_match, .value = "REGEX"),
    SL_OPTION(sl_spec_rename_rule, to, STRING, "",
              "what stands there instead; \\1 to \\9 are the groups of 'match'"),
    SL_OPTION_END,
};
static const struct sl_option_table rename_table = {"rename", sizeof(struct sl_spec_rename_rule),
                                                    rename_rows};

static const struct sl_option rule_rows[] = {
    SL_OPTION(sl_spec_shard_rule, match, STRING, "",
              "tensor names (new ones, where they are renamed), as a shell pattern",
              .required = true),
    SL_OPTION(sl_spec_shard_rule, dim, UINT, "0", "the dimension to cut", .minimum = 0,
              .maximum = 63),
    SL_OPTION(sl_spec_shard_rule, whole, BOOL, "false", "not to be cut: every rank has all of it"),
    SL_OPTION_END,
};
static const struct sl_option_table rule_table = {"rules", sizeof(struct sl_spec_shard_rule),
                                                  rule_rows};

static const struct sl_option shard_rows[] = {
    SL_OPTION(sl_spec_shard, rank, UINT, "0", "which part to load, from 0", .minimum = 0,
              .maximum = 65535),
    SL_OPTION(sl_spec_shard, of, UINT, "1", "how many parts there are", .minimum = 1,
              .maximum = 65536),
    SL_OPTION(sl_spec_shard, rules, ITEMS, "",
              "which tensors to cut, and where; the first match counts", .section = &rule_table),
    SL_OPTION(sl_spec_shard, others, CHOICE, "whole",
              "what becomes of tensors that no rule names: whole for every rank, or refuse them",
              .choices = "whole|refuse"),
    SL_OPTION_END,
};
static const struct sl_option_table shard_table = {"shard", sizeof(struct sl_spec_shard),
                                                   shard_rows};

static const struct sl_option tensors_rows[] = {
    SL_OPTION(sl_spec_tensors, prefix, CHOICE, "none",
              "what is put in front of every name, before all else: object the folder of its "
              "object, so that unet/ and vae/ of one repository can be one model",
              .choices = "none|object"),
    SL_OPTION(sl_spec_tensors, include, LIST, "",
              "tensors to load, as shell patterns on their names; without any, all of them"),
    SL_OPTION(sl_spec_tensors, exclude, LIST, "", "tensors to leave out, as shell patterns"),
    SL_OPTION(sl_spec_tensors, rename, ITEMS, "",
              "new names; the first rule that matches a name counts", .section = &rename_table),
    SL_OPTION(sl_spec_tensors, cast, MAP, "",
              "change element types while loading, floating to floating: {F32: BF16}"),
    SL_OPTION(sl_spec_tensors, cast_overflow, CHOICE, "ieee",
              "what a cast makes of values that do not fit: ieee infinity, or NaN in types without "
              "one; saturate the largest finite value",
              .choices = "ieee|saturate"),
    SL_OPTION(sl_spec_tensors, shard, SECTION, "", "load one part of each tensor",
              .section = &shard_table),
    SL_OPTION_END,
};
static const struct sl_option_table tensors_table = {"tensors", sizeof(struct sl_spec_tensors),
                                                     tensors_rows};

static const struct sl_option minisign_rows[] = {
    SL_OPTION(sl_spec_minisign, public_key, STRING, "",
              "the key that signed the objects, 56 characters: each object has a signature beside "
              "it, OBJECT.minisig",
              .check = sl_spec_check_minisign, .pattern = "^RW[A-Za-z0-9+/]{54}$", .value = "KEY"),
    SL_OPTION(sl_spec_minisign, public_key_file, STRING, "",
              "a file that holds the key, as `minisign -G` writes it", .value = "FILE"),
    SL_OPTION_END,
};
static const struct sl_option_table minisign_table = {"minisign", sizeof(struct sl_spec_minisign),
                                                      minisign_rows};

static const struct sl_option verify_rows[] = {
    SL_OPTION(sl_spec_verify, hashes, CHOICE, "auto",
              "auto checks the cheapest hash that came with each byte and every hash given here; "
              "all checks every hash there is. require is auto and refuses bytes without a hash; "
              "off checks only hashes given here",
              .choices = "auto|all|require|off"),
    SL_OPTION(sl_spec_verify, sidecar, CHOICE, "auto",
              "hashes of ranges that `sluice sign` wrote into NAME.sluice.json: auto uses those "
              "that a listing shows; require asks for one of every object and fails without; off "
              "takes them for objects like others",
              .choices = "auto|require|off"),
    SL_OPTION(sl_spec_verify, sha256, MAP, "",
              "SHA-256 of whole objects by name, 64 hex digits each", .check = check_sha256,
              .pattern = "^[0-9A-Fa-f]{64}$"),
    SL_OPTION(sl_spec_verify, minisign, SECTION, "",
              "detached signatures of whole objects, made with `minisign -S`",
              .section = &minisign_table),
    SL_OPTION(sl_spec_verify, model_signing, SECTION, "",
              "a signature of the whole model (OpenSSF Model Signing): once it is asked for, "
              "nothing is published without it",
              .section = &sl_spec_signing_table),
    SL_OPTION_END,
};
static const struct sl_option_table verify_table = {"verify", sizeof(struct sl_spec_verify),
                                                    verify_rows};

static const struct sl_option decrypt_rows[] = {
    SL_OPTION(sl_spec_decrypt, key_file, STRING, "", "a file of 32 raw bytes", .flag = "key-file",
              .value = "FILE"),
    SL_OPTION(sl_spec_decrypt, passphrase_file, STRING, "",
              "a file that holds the passphrase; '-' asks for it at the terminal",
              .flag = "passphrase-file", .value = "FILE"),
    SL_OPTION_END,
};
static const struct sl_option_table decrypt_table = {"decrypt", sizeof(struct sl_spec_decrypt),
                                                     decrypt_rows};

static const struct sl_option pool_rows[] = {
    SL_OPTION(sl_spec_pool, device, STRING, "host",
              "where the slabs lie: host, cuda:0, cuda:all (the same on every GPU)",
              .check = check_device, .pattern = "^(host|cuda:all|cuda:[0-9]{1,3})$",
              .value = "DEVICE"),
    SL_OPTION(
        sl_spec_pool, decrypt, CHOICE, "auto",
        "where encrypted tensors for a GPU are decrypted and checked. auto is the GPU, or the "
        "host if this build has no kernels for it. Tensors that are cast or cut, or whose hashes "
        "are checked, are "
        "always decrypted on the host",
        .choices = "auto|host|gpu"),
    SL_OPTION(sl_spec_pool, cast, CHOICE, "auto",
              "where tensors on their way to a GPU are cast; auto is the host for casts to smaller "
              "types, else as with decrypt. Views whose elements do not lie one after another, and "
              "what goes to cuda:all, are cast on the host in any case",
              .choices = "auto|host|gpu"),
    SL_OPTION(sl_spec_pool, crc, CHOICE, "auto",
              "where CRC32 and CRC32C of what lands on a GPU as it came are computed; auto as with "
              "decrypt. Other hashes, and those of what goes to cuda:all, are computed on the host "
              "in any case",
              .choices = "auto|host|gpu"),
    SL_OPTION_END,
};
static const struct sl_option_table pool_table = {"pool", sizeof(struct sl_spec_pool), pool_rows};

static const struct sl_option sink_rows[] = {
#define SL_DESTINATION(name, key, options, table, text, refusal)                                   \
    SL_OPTION(sl_spec_sink, key, SECTION, "", text, .section = &(table), .served = (refusal)),
#define SL_DESTINATION_OF_CALLER(name)
#include "destinations.def"
#undef SL_DESTINATION
#undef SL_DESTINATION_OF_CALLER
    SL_OPTION(
        sl_spec_sink, caches, SECTION, "",
        "compile and kernel caches of an engine, restored beside a model of 'tmpfs' and saved",
        .section = &sl_spec_sets_table),
    SL_OPTION_END,
};
static const struct sl_option_table sink_table = {"sink", sizeof(struct sl_spec_sink), sink_rows};

static const struct sl_option readers_rows[] = {
    SL_OPTION(
        sl_spec_readers, connections, UINT, "auto",
        "connections at the same time; auto starts with a few and adds while the total still rises",
        .minimum = 1, .maximum = 1024, .flag = "connections"),
    SL_OPTION(sl_spec_readers, range_bytes, BYTES, "auto",
              "bytes of one range request; auto chooses from the object", .minimum = 64 << 10,
              .maximum = 5ull << 30, .flag = "range-bytes"),
    SL_OPTION(sl_spec_readers, memory_bytes, BYTES, "auto",
              "limit for the buffers of one load, beyond the destination itself",
              .minimum = 1 << 20, .maximum = 1ull << 40, .flag = "memory-bytes"),
    SL_OPTION(sl_spec_readers, stall_seconds, UINT, "30",
              "a transfer that brings less than 64 KiB in this time is given up and tried again",
              .minimum = 1, .maximum = 3600, .flag = "stall-seconds"),
    SL_OPTION(sl_spec_readers, attempts, UINT, "8", "tries of one range, the first included",
              .minimum = 1, .maximum = 1000, .flag = "attempts"),
    SL_OPTION(
        sl_spec_readers, unreachable_seconds, UINT, "auto",
        "while connections are refused, or a name is not known, tries go on for this time, "
        "and none of 'attempts' is used up; 0: 'attempts' alone counts. auto is 60 s, and for "
        "a person at a terminal 10 s, or 2 s where the name does not exist. Where a mirror is "
        "left it is tried after 'attempts'",
        .maximum = 86400, .flag = "unreachable-seconds"),
    SL_OPTION(sl_spec_readers, hedge, CHOICE, "auto",
              "requests that are silent or slow beside others: auto sends them again on another "
              "connection, off waits for them until 'stallSeconds', for stores where each request "
              "is billed. Either way a connection with nothing left to do takes over part of a "
              "large range, and what fails is tried again",
              .choices = "auto|off", .flag = "hedge"),
    SL_OPTION(sl_spec_readers, slices, CHOICE, "auto",
              "how slices are fetched that are read row by row. auto asks for several rows at once "
              "and drops the bytes between them where that is cheaper than a request for each row. "
              "least-bytes asks for each row, however many requests that is",
              .choices = "auto|least-bytes", .flag = "slices"),
    SL_OPTION(sl_spec_readers, request_price, BYTES, "0",
              "the price of one request, for stores that bill requests, as the number of extra "
              "bytes worth fetching to save it; 'slices' uses it",
              .minimum = 0, .maximum = 1ull << 30, .flag = "request-price"),
    SL_OPTION(sl_spec_readers, bandwidth, RATE, "0",
              "limit for what all loads of this process read from the network, such as 500MB/s, "
              "2GiB/s or 16Gbit/s; 0 is none",
              .minimum = 0, .maximum = 1ull << 50, .flag = "bandwidth"),
    SL_OPTION(sl_spec_readers, connections_per_host, UINT, "auto",
              "connections of this process to one host at the same time, all its loads together; "
              "auto is 128, or as many as 'connections' says",
              .minimum = 1, .maximum = 4096, .flag = "connections-per-host"),
    SL_OPTION(sl_spec_readers, idle_seconds, UINT, "0",
              "HTTP connections without use are kept for so long, for what else this process reads "
              "with this option: at most 16 to one origin, 64 in all. 0: they are closed",
              .maximum = 300),
    SL_OPTION(sl_spec_readers, timeout_seconds, UINT, "0", "limit for the whole load; 0 is none",
              .minimum = 0, .maximum = 31536000, .flag = "timeout-seconds"),
    SL_OPTION(sl_spec_readers, fixed, STRING, "",
              "pins all that a load decides by itself: usual, or some of it, such as "
              "'connections=8 threads=2 range-bytes=16MiB', and the rest as usual. Nothing is then "
              "decided by measured times, processors or other loads. A load says at its end what "
              "it had, in these words (at a terminal with -v). Without it SLUICE_FIXED of the "
              "environment counts",
              .check = check_fixed, .flag = "fixed", .value = "PINS"),
    SL_OPTION_END,
};

static const struct sl_option_table readers_table = {"readers", sizeof(struct sl_spec_readers),
                                                     readers_rows};

static const struct sl_option spec_rows[] = {
    SL_OPTION(sl_spec, api_version, STRING, "", "version of this format", .required = true,
              .pattern = "^sluice/v1alpha1$", .value = "sluice/v1alpha1"),
    SL_OPTION(sl_spec, kind, STRING, "", "what the document describes", .required = true,
              .pattern = "^Model$", .value = "Model"),
    SL_OPTION(sl_spec, metadata, SECTION, "", "what the model is called",
              .section = &metadata_table, .required = true),
    SL_OPTION(sl_spec, source, SECTION, "", "where the bytes come from",
              .section = &sl_spec_source_table, .required = true),
    SL_OPTION(sl_spec, tensors, SECTION, "",
              "which tensors to load; all of them unless given. Needs a layout other than verbatim",
              .section = &tensors_table),
    SL_OPTION(sl_spec, verify, SECTION, "", "what is checked before anything is published",
              .section = &verify_table),
    SL_OPTION(sl_spec, decrypt, SECTION, "", "keys of encrypted tensors, always in files",
              .section = &decrypt_table),
    SL_OPTION(sl_spec, sink, SECTION, "", "where the model goes: exactly one of 'tmpfs' and 'pool'",
              .section = &sink_table, .required = true),
    SL_OPTION(sl_spec, readers, SECTION, "", "connections, ranges, tries and limits of the load",
              .section = &readers_table),
    SL_OPTION(sl_spec, listen, STRING, "",
              "address of health, metrics and progress over HTTP; off unless given",
              .flag = "listen", .value = "ADDR:PORT"),
    SL_OPTION_END,
};
static const struct sl_option_table spec_table = {"", sizeof(struct sl_spec), spec_rows};

const struct sl_option_table *sl_spec_table(void)
{
    sl_spec_add_stores();
    return &spec_table;
}
