/* The model spec: what is good, and every mistake at its place. */
#include <check.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "claims.h"
#include "http_store.h"
#include "json.h"
#include "s3_options.h"
#include "spec_case.h"

/* ---- what is good --------------------------------------------------------------------------- */

static const struct sl_http_options *http_options(void)
{
    return sl_spec_store_options(specs.items, &sl_http_table);
}

SL_TEST(a_whole_spec_is_read)
{
    ck_assert_msg(parse(spec_everything) == 0, "%s", sl_buf_string(&complaints));
    ck_assert_uint_eq(specs.count, 1);
    const struct sl_spec *spec = specs.items;
    ck_assert_str_eq(spec->metadata.name, "gpt-j-6b");
    ck_assert_str_eq(spec->source.uri, "s3://models/gpt-j-6b/");
    ck_assert_uint_eq(spec->source.include.count, 2);
    ck_assert_uint_eq(spec->source.exclude.count, 0);
    const struct sl_s3_options *s3 = sl_spec_store_options(spec, &sl_s3_table);
    ck_assert_int_eq(s3->addressing, SL_S3_ADDRESSING_PATH);
    ck_assert_ptr_null(s3->profile);
    ck_assert(s3->anonymous);
    ck_assert(!spec->source.tls.verify);
    ck_assert_int_eq(spec->verify.hashes, SL_HASHES_OFF);
    ck_assert_uint_eq(spec->verify.sha256.count, 1);
    ck_assert_int_eq(spec->sink.tmpfs.layout, SL_LAYOUT_SAFETENSORS);
    ck_assert_uint_eq(spec->sink.tmpfs.shard_bytes, 2ull << 30);
    ck_assert_str_eq(spec->sink.tmpfs.owner, "1000");
    ck_assert_uint_eq(spec->readers.connections, 16);
    ck_assert_uint_eq(spec->readers.range_bytes, 8 << 20);
    ck_assert_uint_eq(spec->readers.memory_bytes, SL_AUTO_VALUE);
    ck_assert_uint_eq(spec->readers.stall_seconds, 5);
    ck_assert_str_eq(spec->listen, "127.0.0.1:9464");
    ck_assert(!spec->has_pool);
}

SL_TEST(defaults_are_those_of_the_rows)
{
    ck_assert_int_eq(parse(GOOD), 0);
    const struct sl_spec *spec = specs.items;
    ck_assert_uint_eq(spec->readers.connections, SL_AUTO_VALUE);
    ck_assert_uint_eq(spec->readers.stall_seconds, 30);
    ck_assert_uint_eq(spec->readers.attempts, 8);
    ck_assert_uint_eq(spec->readers.timeout_seconds, 0);
    ck_assert_int_eq(spec->verify.hashes, SL_HASHES_AUTO);
    ck_assert(spec->source.tls.verify);
    ck_assert_ptr_null(spec->listen);
}

static void expect_patience(unsigned unreachable, unsigned unresolved)
{
    struct sl_source_config config;
    sl_spec_source_config(specs.items, NULL, NULL, &config);
    ck_assert_uint_eq(config.unreachable_seconds, unreachable);
    ck_assert_uint_eq(config.unresolved_seconds, unresolved);
}

SL_TEST(a_person_at_a_terminal_waits_less_unless_told_how_long)
{
    int nobody = open("/dev/null", O_WRONLY | O_CLOEXEC);
    int master = posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC);
    if (master < 0 || grantpt(master) < 0 || unlockpt(master) < 0)
        SL_SKIP("there are no terminals here");
    int terminal = open(ptsname(master), O_RDWR | O_NOCTTY | O_CLOEXEC), own = dup(STDERR_FILENO);
    ck_assert(nobody >= 0 && terminal >= 0 && own >= 0);
    ck_assert_int_eq(parse(GOOD), 0);
    dup2(nobody, STDERR_FILENO);
    expect_patience(60, 0);
    dup2(terminal, STDERR_FILENO);
    expect_patience(10, 2);
    ck_assert_int_eq(parse(GOOD "readers: {unreachableSeconds: 30}\n"), 0);
    expect_patience(30, 0);
    dup2(own, STDERR_FILENO);
}

SL_TEST(several_documents_are_several_models)
{
    ck_assert_int_eq(parse("---\n" GOOD
                           "---\napiVersion: sluice/v1alpha1\nkind: Model\nmetadata: {name: n}\n"
                           "source: {uri: /n/}\nsink: {tmpfs: {path: /u}}\n...\n---\n"),
                     0);
    ck_assert_uint_eq(specs.count, 2);
    ck_assert_str_eq(specs.items[1].metadata.name, "n");
}

SL_TEST(aliases_and_merge_keys_work)
{
    ck_assert_msg(parse("apiVersion: sluice/v1alpha1\nkind: Model\nmetadata: {name: &n m}\n"
                        "source:\n  uri: /m/\n  include: &lists [a, b]\n  exclude: *lists\n"
                        "  s3: &s {region: one, profile: p}\n"
                        "  http: {bearerTokenFile: *n}\n"
                        "sink: {tmpfs: {path: /t}}\n") == 0,
                  "%s", sl_buf_string(&complaints));
    ck_assert_uint_eq(specs.items->source.exclude.count, 2);
    ck_assert_str_eq(http_options()->bearer_token_file, "m");
    ck_assert_msg(
        parse(HEAD
              "source: {uri: /m/}\nsink:\n  tmpfs: {path: /t}\n"
              "readers:\n  <<: [{attempts: 2, connections: 3}, {attempts: 9, stallSeconds: 7}]\n"
              "  connections: 4\n") == 0,
        "%s", sl_buf_string(&complaints));
    ck_assert_uint_eq(specs.items->readers.connections, 4);
    ck_assert_uint_eq(specs.items->readers.attempts, 2);
    ck_assert_uint_eq(specs.items->readers.stall_seconds, 7);
}

/* ---- variables ------------------------------------------------------------------------------ */

SL_TEST(variables_are_replaced_in_values_only)
{
    ck_assert_int_eq(
        parse(
            HEAD
            "source: {uri: \"s3://${BUCKET}/$x/$${BUCKET}/$/\", http: {headersFile: '${TRICK}'}}\n"
            "sink: {tmpfs: {path: /t, owner: '${EMPTY}'}}\n"),
        0);
    ck_assert_str_eq(specs.items->source.uri, "s3://models/$x/${BUCKET}/$/");
    ck_assert_str_eq(http_options()->headers_file, "a: b\n- ${BUCKET} # x");
    ck_assert_ptr_null(specs.items->sink.tmpfs.owner);
    expect(GOOD "${BUCKET}: 1\n", "m.yaml:6:1: unknown key '${BUCKET}'\n");
}

SL_TEST(an_unset_variable_is_a_mistake)
{
    expect(HEAD "source: {uri: '${UNSET}/m'}\nsink: {tmpfs: {path: '${UNSET'}}\n",
           "m.yaml:4:15: the environment variable 'UNSET' is not set\n"
           "m.yaml:5:22: '${UNSET' is not a ${NAME}; write $${ for a plain ${\n");
    expect(HEAD "source: {uri: '${}'}\nsink: {tmpfs: {path: '${1A}'}}\n",
           "m.yaml:4:15: '${}' is not a ${NAME}; write $${ for a plain ${\n"
           "m.yaml:5:22: '${1A}' is not a ${NAME}; write $${ for a plain ${\n");
}

/* ---- mistakes ------------------------------------------------------------------------------- */

SL_TEST(every_mistake_has_its_place)
{
    expect(HEAD "source:\n  uri: /m\n  includes: [a]\n  include: b\n"
                "sink: {tmpfs: {path: /t, layuot: verbatim}}\n"
                "readers: {connections: 0, rangeBytes: 1Ki, attempts: x}\n"
                "lisen: a\n",
           "m.yaml:6:3: unknown key 'includes' in 'source', did you mean 'include'?\n"
           "m.yaml:7:12: 'source.include' must be a list such as [one, two], not a text\n"
           "m.yaml:8:26: unknown key 'layuot' in 'sink.tmpfs', did you mean 'layout'?\n"
           "m.yaml:9:24: 'connections': expected a number from 1 to 1024 or 'auto', not '0'\n"
           "m.yaml:9:39: 'rangeBytes': expected a size from 64 KiB to 5 GiB or 'auto', not '1Ki'\n"
           "m.yaml:9:54: 'attempts': expected a whole number, not 'x'\n"
           "m.yaml:10:1: unknown key 'lisen', did you mean 'listen'?\n");
    ck_assert_str_eq(err.message,
                     "m.yaml:6:3: unknown key 'includes' in 'source', did you mean 'include'?");
}

SL_TEST(keys_that_are_needed_are_missed)
{
    expect(
        "{}",
        "m.yaml:1:1: 'apiVersion' is missing: version of this format\n"
        "m.yaml:1:1: 'kind' is missing: what the document describes\n"
        "m.yaml:1:1: 'metadata' is missing: what the model is called\n"
        "m.yaml:1:1: 'sink' is missing: where the model goes: exactly one of 'tmpfs' and 'pool'\n"
        "m.yaml:1:1: 'source' is missing: where the bytes come from\n");
    expect(HEAD "source: {uri: }\nsink: {tmpfs: {}}\n",
           "m.yaml:4:10: 'uri' must not be empty: an object, a prefix with a slash at its end, or "
           "an index "
           "(*.index.json)\n"
           "m.yaml:5:8: 'path' is missing in 'sink.tmpfs': the directory that the model is "
           "published into, best on a tmpfs\n");
}

SL_TEST(duplicate_keys_are_refused)
{
    expect(GOOD "readers: {attempts: 1, attempts: 1}\nlisten: a\nlisten: b\n",
           "m.yaml:6:24: 'attempts' is here twice, first in line 6\n"
           "m.yaml:8:1: 'listen' is here twice, first in line 7\n");
}

SL_TEST(the_head_says_what_is_read)
{
    expect("apiVersion: sluice/v2\nkind: Model\nmetadata: {name: m}\nsource: {uri: /m}\nsink: "
           "{tmpfs: {path: /t}}\n",
           "m.yaml:1:1: apiVersion 'sluice/v2' is not known here, this sluice reads "
           "'sluice/v1alpha1'\n");
    expect(
        "apiVersion: sluice/v1alpha1\nkind: Modle\n",
        "m.yaml:1:1: 'metadata' is missing: what the model is called\n"
        "m.yaml:1:1: 'sink' is missing: where the model goes: exactly one of 'tmpfs' and 'pool'\n"
        "m.yaml:1:1: 'source' is missing: where the bytes come from\n"
        "m.yaml:2:1: unknown kind 'Modle', did you mean 'Model'?\n");
    expect("apiVersion: sluice/v1alpha1\nkind: Node\nmodels: []\n",
           "m.yaml:2:1: kind 'Node' is the config of `sluice serve`: a model has kind 'Model'\n");
    expect("", "m.yaml: no model in it: see `sluice docs spec`\n");
    expect("# nothing\n---\n---\n", "m.yaml: no model in it: see `sluice docs spec`\n");
    expect("[a]", "m.yaml:1:1: a model spec is a mapping of keys, not a list\n");
}

SL_TEST(an_open_bracket_is_named_where_it_opens)
{
    expect("apiVersion: sluice/v1alpha1\nkind: Model\nmetadata: {name: m\nsource: {uri: /m}\n",
           "m.yaml:3:11: this bracket is not closed: did not find expected ',' or '}' in line 4\n");
    expect("apiVersion: sluice/v1alpha1\nkind: Model\nmetadata: {name: 'm' 'x'}\n",
           "m.yaml:3:22: did not find expected ',' or '}', while parsing a flow mapping\n");
}

SL_TEST(a_variable_between_brackets_needs_quotes)
{
    static const char *const values[] = {"${HOME}", "${HOME}/m", "x${HOME}", "[a, ${HOME}]"};
    char text[256];
    for (size_t i = 0; i < SL_COUNT(values); i++) {
        snprintf(text, sizeof(text), "apiVersion: sluice/v1alpha1\nmetadata: {name: %s}\n",
                 values[i]);
        ck_assert_int_eq(parse(text), -1);
        ck_assert_msg(strstr(sl_buf_string(&complaints), "with ${NAME} needs quotes around it"),
                      "%s: %s", values[i], sl_buf_string(&complaints));
    }
}

SL_TEST(names_follow_their_rule)
{
    static const char *const good[] = {
        "a", "0", "a-b.c", "a--b",
        "123456789012345678901234567890123456789012345678901234567890123"};
    static const char *const bad[] = {
        "A",   "-a", "a-",
        ".a",  "a.", "a_b",
        "a/b", "é",  "1234567890123456789012345678901234567890123456789012345678901234"};
    char text[512];
    for (size_t i = 0; i < SL_COUNT(good); i++) {
        snprintf(text, sizeof(text), "%s%s%s",
                 "apiVersion: sluice/v1alpha1\nkind: Model\nmetadata: {name: '", good[i],
                 "'}\nsource: {uri: /m}\nsink: {tmpfs: {path: /t}}\n");
        ck_assert_msg(parse(text) == 0, "%s", good[i]);
    }
    for (size_t i = 0; i < SL_COUNT(bad); i++) {
        snprintf(text, sizeof(text), "%s%s%s",
                 "apiVersion: sluice/v1alpha1\nkind: Model\nmetadata: {name: '", bad[i],
                 "'}\nsource: {uri: /m}\nsink: {tmpfs: {path: /t}}\n");
        ck_assert_msg(parse(text) < 0, "%s", bad[i]);
    }
}

SL_TEST(impossible_combinations_are_refused)
{
    expect(GOOD "tensors: {include: [a], exclude: [b]}\n",
           "m.yaml:6:11: 'tensors.include' needs a layout other than verbatim, which copies "
           "objects whole: set "
           "'sink.tmpfs.layout' to safetensors or tensorizer\n"
           "m.yaml:6:25: 'tensors.exclude' needs a layout other than verbatim, which copies "
           "objects whole: set "
           "'sink.tmpfs.layout' to safetensors or tensorizer\n");
    expect(HEAD "source: {uri: /m}\nsink: {}\n",
           "m.yaml:5:1: 'sink' names no place: give it 'tmpfs: {path: DIRECTORY}'\n");
    expect(HEAD "source: {uri: /m}\nsink: {tmpfs: {path: /t}, pool: {device: host}}\n",
           "m.yaml:5:27: 'sink' takes either 'tmpfs' or 'pool', not both\n"
           "m.yaml:5:27: only `sluice serve` takes 'pool': run that, or load into 'tmpfs'\n");
    expect(HEAD "source: {uri: s3://m/, mirrors: ['s3://n']}\nsink: {tmpfs: {path: /t}}\n",
           "m.yaml:4:24: the mirror 's3://n' must end with '/', as 'uri' does\n");
    expect(HEAD "source: {uri: /m/, rank: {index: 4, of: 4}}\nsink: {tmpfs: {path: /t}}\n",
           "m.yaml:4:20: rank 4 is not below 4, the value of 'of'\n");
    expect(HEAD "source: {uri: /m/, rank: {of: 4}}\nsink: {tmpfs: {path: /t}}\n",
           "m.yaml:4:20: 'index' is missing in 'source.rank': whose files to load, from 0\n");
    expect(GOOD "verify: {minisign: {}}\n",
           "m.yaml:6:10: 'minisign' names no key: give it 'publicKey' or 'publicKeyFile'\n");
    expect(SAFE "verify: {minisign: {publicKeyFile: /k, publicKey: "
                "RWSjX+vT03Ch0DgtZtIIdzTx/p7H9qoyCqagFt4DGylixxdqt9+dAZ28}}\n",
           "m.yaml:6:10: 'verify.minisign' needs layout verbatim: signatures are of whole objects\n"
           "m.yaml:6:21: 'minisign' takes either 'publicKey' or 'publicKeyFile', not both\n");
    expect(
        GOOD "verify: {modelSigning: {}}\n",
        "m.yaml:6:10: 'modelSigning' names no signer: give it 'publicKeyFile', 'certificates' or "
        "'keyless'\n");
    expect(
        GOOD "verify: {modelSigning: {file: x.sig, unsigned: maybe}}\n",
        "m.yaml:6:10: 'modelSigning' names no signer: give it 'publicKeyFile', 'certificates' or "
        "'keyless'\n"
        "m.yaml:6:48: 'unsigned': expected one of refuse|allow, not 'maybe'\n");
    expect(GOOD "verify: {modelSigning: {publicKeyFile: /k, certificates: {caFile: /c}}}\n",
           "m.yaml:6:10: 'modelSigning' takes one of 'publicKeyFile', 'certificates' and "
           "'keyless'\n");
    expect(
        GOOD "verify: {modelSigning: {keyless: {identity: a}}}\n",
        "m.yaml:6:25: 'issuer' is missing in 'verify.modelSigning.keyless': who knew the signer: "
        "the OpenID issuer in the certificate, as it stands there\n"
        "m.yaml:6:25: 'trustedRootFile' is missing in 'verify.modelSigning.keyless': "
        "trusted_root.json of Sigstore, the public one or your own; nothing is fetched\n");
    expect(GOOD "decrypt: {keyFile: /k, passphraseFile: /p}\n",
           "m.yaml:6:24: 'decrypt' takes either 'keyFile' or 'passphraseFile', not both\n");
    expect(
        HEAD "source: {uri: /m}\n"
             "sink: {tmpfs: {path: /t, layout: tensorizer, shardBytes: 1GiB}}\n",
        "m.yaml:5:46: 'shardBytes' is for layout safetensors: layout tensorizer writes one file\n");
}

SL_TEST(owners_are_numbers)
{
    expect(HEAD "source: {uri: /m}\nsink: {tmpfs: {path: /t, owner: root, group: 99999999999}}\n",
           "m.yaml:5:26: 'sink.tmpfs.owner': 'root' is not a numeric id, such as 1000\n"
           "m.yaml:5:39: 'sink.tmpfs.group': '99999999999' is not a numeric id, such as 1000\n");
    ck_assert_int_eq(
        parse(HEAD "source: {uri: /m}\nsink: {tmpfs: {path: /t, owner: 0, group: 65534}}\n"), 0);
}

SL_TEST(twins_in_one_file_are_refused)
{
    expect(GOOD "---\n" GOOD, "m.yaml:9:12: another model of this file is called 'm'\n"
                              "m.yaml:11:16: another model of this file goes to '/t'\n");
}

#define SPEC(name, path)                                                                           \
    "apiVersion: sluice/v1alpha1\nkind: Model\nmetadata: {name: " name                             \
    "}\nsource: {uri: /m/}\nsink: {tmpfs: {path: " path "}}\n"

SL_TEST(one_directory_spelled_two_ways_is_one)
{
    expect(SPEC("a", "/t/x") "---\n" SPEC("b", "//t/./x/"),
           "m.yaml:11:16: another model of this file goes to '/t/x'\n");
    expect(SPEC("a", "t") "---\n" SPEC("b", "./t"),
           "m.yaml:11:16: another model of this file goes to 't'\n");
    ck_assert_int_eq(parse(SPEC("a", "/t/x") "---\n" SPEC("b", "/t/xy")), 0);
    ck_assert_int_eq(parse(SPEC("a", "/t") "---\n" SPEC("b", "t")), 0);
    ck_assert_int_eq(parse(SPEC("a", "/t") "---\n" SPEC("b", "/t/.x")), 0);
}

#define TYPES                                                                                      \
    "the floating types are F8_E5M2, F8_E4M3, F8_E4M3FNUZ, F8_E5M2FNUZ, F16, BF16, F32, F64\n"

SL_TEST(casts_and_cuts_are_checked)
{
    ck_assert_int_eq(parse(SAFE "tensors: {cast: {F32: BF16, F64: F8_E4M3FNUZ}, "
                                "castOverflow: saturate}\n"),
                     0);
    expect(SAFE "tensors:\n  cast:\n    F32: I8\n    X: F16\n",
           "m.yaml:8:5: 'I8' cannot be cast: " TYPES "m.yaml:9:5: 'X' cannot be cast: " TYPES);
    expect(
        SAFE "tensors: {shard: {rank: 8, of: 8, rules: [{dim: 64}]}}\n",
        "m.yaml:6:11: rank 8 is not below 8, the value of 'of'\n"
        "m.yaml:6:43: 'match' is missing in 'tensors.shard.rules': tensor names (new ones, where "
        "they are renamed), as a shell pattern\n"
        "m.yaml:6:49: 'dim': expected a number from 0 to 63, not '64'\n");
    expect(SAFE "tensors: {shard: {rank: 1, of: 2}}\n",
           "m.yaml:6:11: 'shard' without 'rules' cuts nothing: name tensors and the dimension to "
           "cut, as in rules: [{match: \"*.q_proj.weight\", dim: 0}]\n");
    expect(GOOD "tensors: {rename: [{match: a, to: b}], castOverflow: ieee}\n",
           "m.yaml:6:11: 'tensors.rename' needs a layout other than verbatim, which copies objects "
           "whole: set 'sink.tmpfs.layout' to safetensors or tensorizer\n"
           "m.yaml:6:40: 'tensors.castOverflow' needs a layout other than verbatim, which copies "
           "objects whole: set 'sink.tmpfs.layout' to safetensors or tensorizer\n");
}

SL_TEST(new_names_are_checked)
{
    ck_assert_int_eq(parse(SAFE "tensors: {rename: [{match: '^h[.]([0-9]+)', to: 'l.\\1'}]}\n"), 0);
    ck_assert_int_eq(parse(SAFE "tensors: {rename: [{match: '\\\\1', to: '\\\\'}]}\n"), 0);
    expect(SAFE "tensors:\n  rename:\n  - {match: 'a(b', to: c}\n  - {match: '(a)', to: '\\2'}\n"
                "  - {match: a, to: '\\d'}\n  - {to: a}\n",
           "m.yaml:8:13: 'match': 'a(b' is not a regular expression: Unmatched ( or \\(\n"
           "m.yaml:9:5: 'to' names group 2, but '(a)' has 1\n"
           "m.yaml:10:5: 'to' takes \\1 to \\9 for groups and \\\\ for a backslash, not '\\d'\n"
           "m.yaml:11:5: 'match' is missing in 'tensors.rename': a POSIX extended regular "
           "expression; the first part of the name that it matches is replaced\n");
    expect(
        SAFE "tensors: {rename: [{match: '((a{1,99}){99}){9}'}, {match: '(a)\\1'}]}\n",
        "m.yaml:6:28: 'match': the expression '((a{1,99}){99}){9}' repeats more than 1000 times\n"
        "m.yaml:6:59: 'match': the expression '(a)\\1' refers to a group of its own: \\1 to \\9 "
        "belong into 'to'\n");
    sl_autobuf text = SL_BUF_INIT(65536);
    sl_buf_text(&text, SAFE "tensors: {rename: [{match: '", NULL);
    for (int i = 0; i < 1025; i++)
        sl_buf_text(&text, "a", NULL);
    sl_buf_text(&text, "'}]}\n", NULL);
    expect(sl_buf_string(&text),
           "m.yaml:6:28: 'match': the expression has 1025 bytes, at most 1024 are taken\n");
    text.used = 0;
    sl_buf_text(&text, SAFE "tensors:\n  rename:\n", NULL);
    for (int i = 0; i < 257; i++)
        sl_buf_text(&text, "  - {match: a}\n", NULL);
    expect(sl_buf_string(&text),
           "m.yaml:7:3: 'tensors.rename' has 257 rules, at most 256 are taken\n");
}

SL_TEST(what_serve_alone_takes_is_checked_then_refused)
{
    expect(GOOD "verify: {minisign: {publicKey: RWx}}\n",
           "m.yaml:6:32: 'publicKey': a minisign public key is 56 characters that start with RW\n");
    expect(HEAD "source: {uri: /m}\nsink: {pool: {device: tpu}}\n",
           "m.yaml:5:8: only `sluice serve` takes 'pool': run that, or load into 'tmpfs'\n"
           "m.yaml:5:23: 'device': a device is host, cuda:0 or cuda:all, not 'tpu'\n");
    ck_assert_int_eq(parse(GOOD "decrypt: {keyFile: , passphraseFile: }\nverify: {minisign: }\n"),
                     0);
}

SL_TEST(hashes_and_schemes_are_checked)
{
    expect(
        GOOD "verify: {sha256: {a: 12, b: "
             "zz86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08}}\n",
        "m.yaml:6:22: 'verify.sha256': a SHA-256 is 64 hex digits, '12' has 2 characters\n"
        "m.yaml:6:29: 'verify.sha256': a SHA-256 is 64 hex digits, "
        "'zz86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08' has 64 characters\n");
    expect(HEAD "source: {uri: 's4://m/'}\nsink: {tmpfs: {path: /t}}\n",
           "m.yaml:4:15: 'uri': 's4://' is not supported, did you mean 's3://'? There are: a path, "
           "file://, s3://, gs://, az://, azure://, abfs://, abfss://, http://, https://, hf://, "
           "ms://, modelscope://, oci://, "
           "redis://, rediss://, memory://\n"); /* the last is the tests' own */
}

SL_TEST(the_first_fifty_mistakes_are_shown)
{
    sl_autobuf text = SL_BUF_INIT(65536);
    sl_buf_text(&text, GOOD, NULL);
    for (int i = 0; i < 60; i++)
        sl_buf_printf(&text, NULL, "zz%d: 1\n", i);
    ck_assert_int_lt(parse(sl_buf_string(&text)), 0);
    size_t lines = 0;
    for (const char *p = sl_buf_string(&complaints); *p; p++)
        lines += *p == '\n';
    ck_assert_uint_eq(lines, 51);
    ck_assert_ptr_nonnull(
        strstr(sl_buf_string(&complaints), "m.yaml: 10 more mistakes are not shown\n"));
}

#define AT(uri) HEAD "source: {uri: '" uri "'}\nsink: {tmpfs: {path: /t}}\n"

SL_TEST(a_uri_without_a_bucket_or_a_host_is_told_with_its_place)
{
    static const char redis[] = "m.yaml:4:15: 'uri': the Redis URI names no host: write "
                                "redis://[user[:password]@]host[:port]/PREFIX\n";
    expect(AT("s3://"), "m.yaml:4:15: 'uri': 's3://' names no bucket: expected s3://BUCKET/KEY or "
                        "s3://BUCKET/PREFIX/\n");
    expect(AT("s3:///k"), "m.yaml:4:15: 'uri': 's3:///k' names no bucket: expected "
                          "s3://BUCKET/KEY or s3://BUCKET/PREFIX/\n");
    expect(AT("http://"), "m.yaml:4:15: 'uri': bad URL 'http://': it names no host\n");
    expect(AT("https://u:p@:80/x"), "m.yaml:4:15: 'uri': bad URL 'https://:80/x': it names no "
                                    "host\n");
    expect(AT("redis://"), redis);
    expect(AT("rediss://u:secret@:6379/p"), redis);
    expect(HEAD "source: {uri: /m, mirrors: ['s3://']}\nsink: {tmpfs: {path: /t}}\n",
           "m.yaml:4:29: 'mirrors': 's3://' names no bucket: expected s3://BUCKET/KEY or "
           "s3://BUCKET/PREFIX/\n");
    ck_assert_int_eq(parse(AT("http://[::1]:80/x")), 0);
    ck_assert_int_eq(parse(AT("redis://:secret@h:1/p")), 0);
}

SL_TEST(a_byte_that_is_no_text_is_told_with_its_place)
{
    expect("kind: Model\nmetadata:\n  name: x\xff\n",
           "m.yaml:3:10: invalid leading UTF-8 octet (byte 0xff): the file must be UTF-8 text\n");
    expect("kind: Model\n# \xc3\xa4\xc3\xa4\xff\n",
           "m.yaml:2:5: invalid leading UTF-8 octet (byte 0xff): the file must be UTF-8 text\n");
    expect("kind: Model\r\nmetadata: \x01\n",
           "m.yaml:2:11: control characters are not allowed (byte 0x01): the file must be UTF-8 "
           "text\n");
    expect("kind: \"\xe2\x82x\"\n",
           "m.yaml:1:9: invalid trailing UTF-8 octet (byte 0x78): the file must be UTF-8 text\n");
    expect("kind: Model\nmetadata:\n\tname: x\n",
           "m.yaml:3:1: a tab: YAML is indented with spaces\n");
}

/* `models` models in one file; specs.count if it is taken, else -1. */
static int parse_many(unsigned models)
{
    static const char one[] =
        "---\napiVersion: sluice/v1alpha1\nkind: Model\nmetadata: {name: m%u}\n"
        "source: {uri: /m/x}\nsink: {tmpfs: {path: /n/m%u}}\n";
    sl_autobuf text = SL_BUF_INIT(SL_SPEC_BYTES_MAX);
    char document[256];
    for (unsigned i = 0; i < models; i++) {
        int bytes = snprintf(document, sizeof(document), one, i, i);
        ck_assert_int_eq(sl_buf_append(&text, document, (size_t)bytes, &err), 0);
    }
    int done = parse(sl_buf_string(&text));
    return done < 0 ? -1 : (int)specs.count;
}

SL_TEST(a_file_has_as_many_models_as_a_node_takes)
{
    ck_assert_msg(parse_many(600) == 600, "%s", err.message);
    ck_assert_int_eq(parse_many(SL_SPEC_DOCUMENTS_MAX), SL_SPEC_DOCUMENTS_MAX);
    ck_assert_int_eq(parse_many(SL_SPEC_DOCUMENTS_MAX + 1), -1);
    ck_assert_msg(strstr(err.message, "more than 4096 models in one file"), "%s", err.message);
}

SL_CASE(.setup = spec_case_setup, .teardown = spec_case_reset)
