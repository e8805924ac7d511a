/*
 * Keyless signatures: one that the reference implementation made with the public Sigstore
 * (data/golden/signing/released/), and those of a Sigstore of the test's own, for what the public
 * one has no golden file of. Each step refuses what it is there for.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "claims.h"
#include "golden.h"
#include "keyless_parts.h"
#include "private_sigstore.h"

#define PUBLIC_ID     "stefanb@us.ibm.com"
#define PUBLIC_ISSUER "https://sigstore.verify.ibm.com/oauth2"
#define ID            "signer@example.com"
#define ISSUER        "https://login.example.com"
#define ENTRY         "verificationMaterial.tlogEntries.0."
#define PROOF         ENTRY "inclusionProof."
#define STAMPS        "verificationMaterial.timestampVerificationData.rfc3161Timestamps."
#define LEAF          "verificationMaterial.certificate.rawBytes"

static struct sl_err err;
static struct sl_signing_signer signer;
static struct sl_sigstore sigstore;

static void setup(void)
{
    err = (struct sl_err)SL_ERR_INIT;
    sl_sigstore_init(&sigstore, false);
}

static void teardown(void)
{
    sl_sigstore_release(&sigstore);
}

static int verify_as(json_t *bundle_json, json_t *root_json, const char *identity,
                     const char *issuer)
{
    char *text = json_dumps(bundle_json, 0), *root = json_dumps(root_json, 0);
    const struct sl_signing_trust trust = {.method = SL_SIGNED_KEYLESS,
                                           .identity = identity,
                                           .issuer = issuer,
                                           .trusted_root_json = root};
    struct sl_bundle *bundle = NULL;
    err = (struct sl_err)SL_ERR_INIT;
    sl_signing_signer_release(&signer);
    int result = sl_bundle_parse(text, strlen(text), &bundle, &err);
    if (result == 0)
        result = sl_bundle_verify(bundle, &trust, 0, &signer, &err);
    sl_bundle_free(bundle);
    free(text);
    free(root);
    return result;
}

static int verify(json_t *bundle, json_t *root)
{
    return verify_as(bundle, root, ID, ISSUER);
}

static void expect(int result, const char *sentence)
{
    if (!sentence) {
        ck_assert_msg(result == 0, "%s", err.message);
        return;
    }
    ck_assert_msg(result == -1, "passes; expected: %s", sentence);
    ck_assert_msg(strstr(err.message, sentence), "'%s', not '%s'", err.message, sentence);
}

static void expect_refusal(int result, const char *sentence)
{
    expect(result, sentence);
    ck_assert_msg(err.kind == SL_E_INTEGRITY && strcmp(err.code, "E_SIGNATURE") == 0, "%s",
                  err.message);
    ck_assert_ptr_null(signer.who);
}

/* ---- the public Sigstore --------------------------------------------------------------------- */

static json_t *public_bundle(void)
{
    return golden_json("signing/released/v1.1.0-sigstore.sig");
}

static json_t *public_root(void)
{
    return golden_json("signing/released/trusted_root.json");
}

SL_TEST(a_signature_of_the_reference_passes)
{
    json_t *bundle = public_bundle(), *root = public_root();
    expect(verify_as(bundle, root, PUBLIC_ID, PUBLIC_ISSUER), NULL);
    ck_assert_str_eq(signer.who, PUBLIC_ID ", by " PUBLIC_ISSUER);
    ck_assert_int_eq(signer.signed_at, 1760062340);
    ck_assert_int_eq(signer.method, SL_SIGNED_KEYLESS);
    ck_assert_uint_eq(strlen(signer.fingerprint), 64);
    expect_refusal(verify_as(bundle, root, "stefanb@us.ibm.co", PUBLIC_ISSUER),
                   "signed by '" PUBLIC_ID "', and 'stefanb@us.ibm.co' is asked for");
    expect_refusal(verify_as(bundle, root, PUBLIC_ID "m", PUBLIC_ISSUER), "another identity");
    expect_refusal(verify_as(bundle, root, "STEFANB@us.ibm.com", PUBLIC_ISSUER),
                   "another identity");
    expect_refusal(verify_as(bundle, root, PUBLIC_ID, "https://accounts.google.com"),
                   "the issuer '" PUBLIC_ISSUER "' says who signed it, and "
                   "'https://accounts.google.com' is asked for");
    json_decref(bundle);
    json_decref(root);
}

SL_TEST(identity_and_issuer_are_never_left_out)
{
    json_t *bundle = public_bundle(), *root = public_root();
    expect(verify_as(bundle, root, NULL, PUBLIC_ISSUER), "needs identity, issuer");
    ck_assert_int_eq(err.kind, SL_E_USAGE);
    expect(verify_as(bundle, root, PUBLIC_ID, ""), "needs identity, issuer");
    json_decref(bundle);
    json_decref(root);
}

/* A change of one member, and what is then said. */
struct mutant {
    const char *path;
    const char *json; /* NULL: its last byte is another; "": it is removed */
    const char *sentence;
};

static void change(json_t *document, const struct mutant *mutant)
{
    if (!mutant->json)
        sl_sigstore_flip(document, mutant->path);
    else
        sl_sigstore_set(document, mutant->path,
                        *mutant->json ? json_loads(mutant->json, JSON_DECODE_ANY, NULL) : NULL);
}

static const struct mutant in_bundle[] = {
    {ENTRY "logIndex", "\"598151087\"", "promise of the log"},
    {ENTRY "logIndex", "\"-1\"", "promise of the log"},
    {ENTRY "logId.keyId", NULL, "is not in the trusted root"},
    {ENTRY "logId", "", "does not say of which log"},
    {ENTRY "kindVersion.kind", "\"hashedrekord\"", "of another kind than it says"},
    {ENTRY "kindVersion.version", "\"0.0.2\"", "of another kind than it says"},
    {ENTRY "kindVersion", "", "does not say of which kind"},
    {ENTRY "integratedTime", "\"1760062341\"", "promise of the log"},
    {ENTRY "integratedTime", "\"99999999999999999999\"", "promise of the log"},
    {ENTRY "integratedTime", "{}", "promise of the log"},
    {ENTRY "integratedTime", "\"0\"", "promise of the log"},
    {ENTRY "inclusionPromise.signedEntryTimestamp", NULL, "promise of the log"},
    {ENTRY "inclusionPromise", "{}", "promise of the log"},
    {ENTRY "inclusionPromise", "[]", "promise of the log"},
    {PROOF "logIndex", "\"476246823\"", "does not lead to the log's root"},
    {PROOF "logIndex", "\"476246825\"", "does not lead to the log's root"},
    {PROOF "logIndex", "", "cannot be read"},
    {PROOF "rootHash", NULL, "does not lead to the log's root"},
    {PROOF "rootHash", "\"AAAA\"", "cannot be read"},
    {PROOF "treeSize", "\"476246826\"", "does not lead to the log's root"},
    {PROOF "treeSize", "\"0\"", "does not lead to the log's root"},
    {PROOF "treeSize", "\"9223372036854775807\"", "does not lead to the log's root"},
    {PROOF "treeSize", "\"18446744073709551615\"", "cannot be read"},
    {PROOF "treeSize", "\"4.5\"", "cannot be read"},
    {PROOF "hashes.0", NULL, "does not lead to the log's root"},
    {PROOF "hashes.13", NULL, "does not lead to the log's root"},
    {PROOF "hashes.13", "", "does not lead to the log's root"},
    {PROOF "hashes.3", "\"AAAA\"", "cannot be read"},
    {PROOF "hashes.3", "7", "cannot be read"},
    {PROOF "hashes", "", "does not lead to the log's root"},
    {PROOF "hashes", "{}", "cannot be read"},
    {PROOF "checkpoint.envelope", "\"a\"", "no checkpoint"},
    {PROOF "checkpoint.envelope", "\"\\n\\n\"", "no checkpoint"},
    {PROOF "checkpoint.envelope", "\"a\\n\\n\"", "no checkpoint"},
    {PROOF "checkpoint.envelope", "\"a\\nb\\n\\n\"", "checkpoint is not signed"},
    {PROOF "checkpoint.envelope", "\"a\\nb\\n\\n\xe2\x80\x94 \"", "checkpoint is not signed"},
    {PROOF "checkpoint.envelope", "\"a\\nb\\n\\n\xe2\x80\x94 a wNI9ag==\"",
     "checkpoint is not signed"},
    {PROOF "checkpoint", "", "no checkpoint"},
    {ENTRY "inclusionProof", "", "no inclusion proof"},
    {ENTRY "inclusionProof", "null", "no inclusion proof"},
    {ENTRY "canonicalizedBody", NULL, "promise of the log"},
    {ENTRY "canonicalizedBody", "", "not base64"},
    {"verificationMaterial.tlogEntries", "[]", "not in a transparency log"},
    {"verificationMaterial.tlogEntries", "", "it has no tlogEntries"},
    {"verificationMaterial.tlogEntries", "[{},{}]", "2 log entries instead of one"},
    {STAMPS "0.signedTimestamp", NULL, "timestamp"},
    {STAMPS "0.signedTimestamp", "\"MAA=\"", "cannot be read"},
    {LEAF, NULL, "does not lead to a CA"},
    {LEAF, "\"MAA=\"", "certificate"},
    {"dsseEnvelope.payload", NULL, "of another payload"},
    {"dsseEnvelope.signatures.0.sig", NULL, "timestamp is of another signature"},
};

SL_TEST_LOOP(each_field_of_a_bundle_is_checked, 0, (int)SL_COUNT(in_bundle))
{
    json_t *bundle = public_bundle(), *root = public_root();
    change(bundle, &in_bundle[_i]);
    expect_refusal(verify_as(bundle, root, PUBLIC_ID, PUBLIC_ISSUER), in_bundle[_i].sentence);
    json_decref(bundle);
    json_decref(root);
}

static const struct mutant in_root[] = {
    {"tlogs.0.publicKey.validFor.end", "\"2025-10-10T02:12:19.999Z\"", "log was not in use"},
    {"tlogs.0.publicKey.validFor.end", "\"2025-10-10T02:12:20Z\"", NULL},
    {"tlogs.0.publicKey.validFor.start", "\"2025-10-10T02:12:21Z\"", "log was not in use"},
    {"tlogs.0.publicKey.rawBytes",
     "\"MFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAEbfwR+RJudXscgRBRpKX1XFDy3PyudDxz/SfnRi1fT8ekpfBd2O1uo"
     "z7jr3Z8nKzxA69EUQ+eFCFI3zeubPWU7w==\"",
     "promise of the log"},
    {"tlogs.0.publicKey.rawBytes", "\"MAA=\"", "of a kind that is not known here"},
    {"tlogs", "[]", "is not in the trusted root"},
    {"tlogs", "", "is not in the trusted root"},
    {"certificateAuthorities.1", "", "does not lead to a CA of the trusted root"},
    {"certificateAuthorities", "[]", "does not lead to a CA of the trusted root"},
    {"certificateAuthorities.1.certChain.certificates.0", "",
     "does not lead to a CA of the trusted root"},
    {"certificateAuthorities.1.certChain.certificates.1", "", NULL}, /* the intermediate is one */
    {"certificateAuthorities.1.validFor.end", "\"2025-10-10T02:12:19Z\"", "CA of its certificate"},
    {"certificateAuthorities.1.validFor.start", "\"2025-10-11T00:00:00Z\"",
     "CA of its certificate"},
    {"ctlogs.1", "", "(SCT) is not in the trusted root"},
    {"ctlogs.1.publicKey.validFor.end", "\"2025-10-10T02:12:18Z\"", "(SCT) was not in use"},
    {"ctlogs.1.publicKey.rawBytes", "\"MAA=\"", "(SCT) is not in the trusted root"},
    {"timestampAuthorities.0.validFor.end", "\"2025-10-10T02:12:19Z\"",
     "its authority was not in use"},
    {"timestampAuthorities", "[]", NULL}, /* the log's promise says when */
    {"timestampAuthorities.0.certChain.certificates.1", "", NULL},
};

SL_TEST_LOOP(each_field_of_the_trusted_root_counts, 0, (int)SL_COUNT(in_root))
{
    json_t *bundle = public_bundle(), *root = public_root();
    change(root, &in_root[_i]);
    expect(verify_as(bundle, root, PUBLIC_ID, PUBLIC_ISSUER), in_root[_i].sentence);
    if (in_root[_i].sentence)
        ck_assert_int_eq(err.kind, SL_E_INTEGRITY);
    json_decref(bundle);
    json_decref(root);
}

/* ---- a trusted root that is none ------------------------------------------------------------- */

static const struct mutant no_root[] = {
    {"mediaType", "\"application/json\"", "mediaType"},
    {"mediaType", "", "mediaType"},
    {"tlogs", "{}", "tlogs is not a list"},
    {"tlogs.0.hashAlgorithm", "\"SHA2_512\"", "tlogs[0]: hashAlgorithm"},
    {"tlogs.0.logId", "", "tlogs[0]: logId"},
    {"tlogs.0.logId.keyId", "\"AAA=\"", "tlogs[0]: logId"},
    {"tlogs.1.publicKey.rawBytes", "\"-\"", "tlogs[1]: publicKey"},
    {"ctlogs.0.publicKey", "[]", "ctlogs[0]: publicKey"},
    {"ctlogs.0.publicKey.validFor", "[]", "ctlogs[0]: validFor"},
    {"ctlogs.0.publicKey.validFor.start", "1", "ctlogs[0]: validFor"},
    {"ctlogs.0.publicKey.validFor.start", "\"2025-10-10T02:12:19+01:00\"", "ctlogs[0]: validFor"},
    {"ctlogs.0.publicKey.validFor.end", "\"soon\"", "ctlogs[0]: validFor"},
    {"certificateAuthorities.0.certChain", "", "certificateAuthorities[0]: certChain"},
    {"certificateAuthorities.0.certChain.certificates.0.rawBytes", "\"MAA=\"",
     "certificateAuthorities[0]: a certificate"},
    {"certificateAuthorities.1.validFor.end", "\"2025-13-10T02:12:19Z\"",
     "certificateAuthorities[1]: validFor"},
    {"timestampAuthorities.0", "7", "timestampAuthorities[0]: certChain"},
};

SL_TEST_LOOP(a_wrong_trusted_root_is_the_users_fault, 0, (int)SL_COUNT(no_root))
{
    json_t *bundle = public_bundle(), *root = public_root();
    change(root, &no_root[_i]);
    expect(verify_as(bundle, root, PUBLIC_ID, PUBLIC_ISSUER), no_root[_i].sentence);
    ck_assert_int_eq(err.kind, SL_E_USAGE);
    json_decref(bundle);
    json_decref(root);
}

static int parse_root(void *arg, struct sl_err *why)
{
    struct sl_trusted_root *root = NULL;
    int result = sl_trusted_root_parse(arg, &root, why);
    sl_trusted_root_free(root);
    return result;
}

SL_TEST(every_prefix_and_failing_allocation_of_a_trusted_root_is_survived)
{
    json_t *root = sl_sigstore_root(&sigstore);
    char *text = json_dumps(root, JSON_COMPACT);
    for (size_t i = 0; text[i]; i++) {
        char *copy = strndup(text, i);
        ck_assert_int_eq(parse_root(copy, &err), -1);
        ck_assert_int_eq(err.kind, SL_E_USAGE);
        free(copy);
    }
    ck_assert_int_eq(parse_root(text, &err), 0);
    free(text);
    json_decref(root);
}

SL_TEST(lists_of_a_trusted_root_have_a_limit)
{
    json_t *root = sl_sigstore_root(&sigstore), *logs = json_object_get(root, "tlogs");
    while (json_array_size(logs) < SL_TRUSTED_ITEMS_MAX)
        json_array_append(logs, json_array_get(logs, 0));
    char *text = json_dumps(root, 0);
    ck_assert_msg(parse_root(text, &err) == 0, "%s", err.message);
    free(text);
    json_array_append(logs, json_array_get(logs, 0));
    text = json_dumps(root, 0);
    expect(parse_root(text, &err), "tlogs is not a list of at most 64");
    free(text);
    json_decref(root);
}

/* ---- a private Sigstore ---------------------------------------------------------------------- */

static const struct wished {
    struct sl_sigstore_wish wish;
    const char *sentence; /* NULL: it passes */
} wishes[] = {
    /* of each kind */
    {{.entry = SL_ENTRY_DSSE}, NULL},
    {{.entry = SL_ENTRY_DSSE, .no_timestamp = true}, NULL},
    {{.entry = SL_ENTRY_DSSE, .no_promise = true}, NULL},
    {{.entry = SL_ENTRY_HASHED, .no_promise = true}, NULL},
    {{.timestamp_without_certificate = true}, NULL},
    {{.old_issuer = true}, NULL},
    {{.index = 0, .size = 1}, NULL},
    /* when */
    {{.no_promise = true, .no_timestamp = true}, "says when it was signed"},
    {{.timestamp_of_other = true}, "timestamp is of another signature"},
    {{.timestamp_denied = true}, "not a granted response"},
    {{.timestamp_after = 589}, NULL},
    {{.timestamp_after = 590},
     "was not valid when it was signed, at 2025-10-10T02:22:10Z: it is "
     "from 2025-10-10T02:12:10Z to 2025-10-10T02:22:10Z"},
    {{.timestamp_after = -11}, "was not valid when it was signed"},
    {{.timestamp_after = 10, .leaf_begin = 5, .leaf_end = 600}, "signed, at 2025-10-10T02:12:20Z"},
    {{.no_timestamp = true, .leaf_begin = 1, .leaf_end = 600}, "was not valid when it was signed"},
    {{.no_timestamp = true, .leaf_begin = -600, .leaf_end = -1},
     "was not valid when it was signed"},
    /* whose */
    {{.key_usage = "-"}, "KeyUsage digitalSignature"},
    {{.key_usage = "critical,keyEncipherment"}, "KeyUsage digitalSignature"},
    {{.extended_usage = "-"}, "ExtendedKeyUsage codeSigning"},
    {{.extended_usage = "serverAuth,clientAuth"}, "ExtendedKeyUsage codeSigning"},
    {{.scts_less = 1}, "not exactly one SCT of a log, but 0"},
    {{.scts_more = 1}, "not exactly one SCT of a log, but 2"},
    {{.sct_changed = true}, "SCT of its certificate is not signed by its log"},
    /* of what */
    {{.body_of_other_payload = true}, "of another payload"},
    {{.body_of_other_signature = true}, "of another signature"},
    {{.body_of_other_certificate = true}, "of another certificate"},
    {{.body_has_two = true}, "not exactly one signature"},
    {{.body_kind = "rekord"}, "of another kind than it says"},
    {{.entry = SL_ENTRY_HASHED, .body_of_other_payload = true}, "of another payload"},
    {{.entry = SL_ENTRY_HASHED, .body_of_other_signature = true}, "of another signature"},
    {{.entry = SL_ENTRY_HASHED, .body_of_other_certificate = true}, "of another certificate"},
    {{.entry = SL_ENTRY_HASHED, .body_kind = "dsse"}, "of another kind than it says"},
    /* who */
    {{.identity = "other@example.com"}, "signed by 'other@example.com', and '" ID "'"},
    {{.san = "DNS", .identity = "signer.example.com"}, "names no e-mail address or URI"},
    {{.issuer = "https://other.example.com"}, "the issuer 'https://other.example.com'"},
    {{.issuer = "https://login.example.co"}, "another issuer"},
    {{.old_issuer = true, .issuer = "https://login.example.com/"}, "another issuer"},
    {{.no_issuer = true}, "does not say which issuer"},
};

SL_TEST_LOOP(each_step_refuses_what_it_is_there_for, 0, (int)SL_COUNT(wishes))
{
    json_t *root = sl_sigstore_root(&sigstore);
    json_t *bundle = sl_sigstore_bundle(&sigstore, &wishes[_i].wish);
    int result = verify(bundle, root);
    if (wishes[_i].sentence)
        expect_refusal(result, wishes[_i].sentence);
    else
        expect(result, NULL);
    json_decref(bundle);
    json_decref(root);
}

SL_TEST(kinds_of_entries_that_are_not_known_are_named)
{
    const struct sl_sigstore_wish wish = {.body_kind = "intoto", .no_promise = true};
    json_t *root = sl_sigstore_root(&sigstore), *bundle = sl_sigstore_bundle(&sigstore, &wish);
    sl_sigstore_set(bundle, ENTRY "kindVersion.kind", json_string("intoto"));
    expect_refusal(verify(bundle, root), "kind 'intoto' 0.0.1 are not known here");
    json_decref(bundle);
    json_decref(root);
}

SL_TEST(an_identity_may_be_a_uri)
{
    static const char workflow[] =
        "https://github.com/org/repo/.github/workflows/sign.yml@refs/heads/main";
    const struct sl_sigstore_wish wish = {.san = "URI", .identity = workflow};
    json_t *root = sl_sigstore_root(&sigstore), *bundle = sl_sigstore_bundle(&sigstore, &wish);
    expect(verify_as(bundle, root, workflow, ISSUER), NULL);
    expect_refusal(verify_as(bundle, root, "https://github.com/org/repo/*", ISSUER),
                   "another identity");
    json_decref(bundle);
    json_decref(root);
}

SL_TEST_LOOP(a_log_may_have_a_key_of_either_kind, 0, 2)
{
    struct sl_sigstore other;
    const struct sl_sigstore_wish wish = {.entry = SL_ENTRY_HASHED, .no_promise = _i == 0};
    sl_sigstore_init(&other, true);
    json_t *root = sl_sigstore_root(&other), *bundle = sl_sigstore_bundle(&other, &wish);
    expect(verify(bundle, root), NULL);
    json_t *envelope = json_copy(sl_sigstore_at(bundle, PROOF "checkpoint.envelope"));
    char *text = strdup(json_string_value(envelope));
    *strstr(text, "rekor") = 'R';
    sl_sigstore_set(bundle, PROOF "checkpoint.envelope", json_string(text));
    expect_refusal(verify(bundle, root), "checkpoint is not signed by the log");
    free(text);
    json_decref(envelope);
    json_decref(bundle);
    json_decref(root);
    sl_sigstore_release(&other);
}

SL_TEST(a_checkpoint_is_of_the_trees_own_size_and_root)
{
    const struct sl_sigstore_wish one = {.index = 3, .size = 7}, two = {.index = 3, .size = 8};
    json_t *root = sl_sigstore_root(&sigstore), *bundle = sl_sigstore_bundle(&sigstore, &one);
    json_t *other = sl_sigstore_bundle(&sigstore, &two);
    sl_sigstore_set(bundle, PROOF "checkpoint",
                    json_incref(sl_sigstore_at(other, PROOF "checkpoint")));
    expect_refusal(verify(bundle, root), "checkpoint is of another tree");
    json_decref(bundle);
    json_decref(other);
    json_decref(root);
}

SL_TEST(what_another_sigstore_signed_is_refused)
{
    struct sl_sigstore other;
    sl_sigstore_init(&other, false);
    json_t *root = sl_sigstore_root(&sigstore), *their_root = sl_sigstore_root(&other);
    json_t *bundle = sl_sigstore_bundle(&other, NULL);
    static const struct {
        const char *list, *sentence;
    } steps[] = {{"tlogs", "does not lead to a CA of the trusted root"},
                 {"certificateAuthorities", "(SCT) is not in the trusted root"},
                 {"ctlogs", NULL}};
    expect_refusal(verify(bundle, root), "is not in the trusted root");
    for (size_t i = 0; i < SL_COUNT(steps); i++) { /* trusted one by one */
        json_object_set(root, steps[i].list, json_object_get(their_root, steps[i].list));
        expect(verify(bundle, root), steps[i].sentence);
    }
    sl_sigstore_set(bundle, ENTRY "inclusionPromise", NULL);
    expect_refusal(verify(bundle, root), "says when it was signed"); /* by their authority alone */
    json_decref(bundle);
    json_decref(their_root);
    json_decref(root);
    sl_sigstore_release(&other);
}

SL_TEST(timestamps_have_a_limit)
{
    json_t *root = sl_sigstore_root(&sigstore), *bundle = sl_sigstore_bundle(&sigstore, NULL);
    json_t *stamps =
        sl_sigstore_at(bundle, "verificationMaterial.timestampVerificationData.rfc3161Timestamps");
    while (json_array_size(stamps) < SL_KEYLESS_TIMES_MAX)
        json_array_append(stamps, json_array_get(stamps, 0));
    expect(verify(bundle, root), NULL);
    json_array_append(stamps, json_array_get(stamps, 0));
    expect_refusal(verify(bundle, root), "17 timestamps");
    json_decref(bundle);
    json_decref(root);
}

/* ---- trees ----------------------------------------------------------------------------------- */

SL_TEST(every_leaf_of_small_trees_is_found_and_at_its_place_alone)
{
    json_t *root = sl_sigstore_root(&sigstore);
    for (uint64_t size = 1; size <= 9; size++)
        for (uint64_t index = 0; index < size; index++) {
            const struct sl_sigstore_wish wish = {
                .index = index, .size = size, .no_timestamp = true};
            char text[24];
            json_t *bundle = sl_sigstore_bundle(&sigstore, &wish);
            expect(verify(bundle, root), NULL);
            for (uint64_t other = 0; other <= size; other++) {
                snprintf(text, sizeof(text), "%d", (int)other);
                sl_sigstore_set(bundle, PROOF "logIndex", json_string(text));
                if (other != index)
                    expect_refusal(verify(bundle, root), "does not lead to the log's root");
            }
            json_decref(bundle);
        }
    json_decref(root);
}

/* ---- memory ---------------------------------------------------------------------------------- */

struct once {
    struct sl_bundle *bundle;
    struct sl_signing_trust trust;
};

static int verify_once(void *arg, struct sl_err *why)
{
    struct once *once = arg;
    int result = sl_bundle_verify(once->bundle, &once->trust, 0, &signer, why);
    if (result < 0)
        ck_assert_ptr_null(signer.who);
    sl_signing_signer_release(&signer);
    return result;
}

SL_TEST(every_failing_allocation_is_survived)
{
    json_t *root = sl_sigstore_root(&sigstore), *bundle = sl_sigstore_bundle(&sigstore, NULL);
    char *text = json_dumps(bundle, 0), *trusted = json_dumps(root, 0);
    struct once once = {.trust = {.method = SL_SIGNED_KEYLESS,
                                  .identity = ID,
                                  .issuer = ISSUER,
                                  .trusted_root_json = trusted}};
    ck_assert_int_eq(sl_bundle_parse(text, strlen(text), &once.bundle, &err), 0);
    ck_assert_uint_gt(golden_each_allocation(verify_once, &once), 15);
    sl_bundle_free(once.bundle);
    free(text);
    free(trusted);
    json_decref(bundle);
    json_decref(root);
}

SL_CASE(.setup = setup, .teardown = teardown, .seconds = 240)
