/*
 * `verify.modelSigning`: which bundle, who may have signed it, and what becomes of files that it
 * does not name. A spec and the rules of a node are made of the same rows.
 */

#include "spec_decode.h"

static const struct sl_option certificates_rows[] = {
    SL_OPTION(sl_spec_signing_certificates, ca_file, STRING, "",
              "PEM file of the authorities that a signer's certificate must lead to; those of the "
              "system do not count",
              .required = true, .value = "FILE"),
    SL_OPTION(sl_spec_signing_certificates, subject, STRING, "",
              "shell pattern for a name of the signer's certificate (subject alternative or "
              "common name); without it every certificate of these authorities is good",
              .value = "PATTERN"),
    SL_OPTION(sl_spec_signing_certificates, expired, CHOICE, "refuse",
              "certificates that were valid once and are not now: refuse them, or allow them with "
              "a warning",
              .choices = "refuse|allow"),
    SL_OPTION_END,
};
static const struct sl_option_table certificates_table = {
    "certificates", sizeof(struct sl_spec_signing_certificates), certificates_rows};

static const struct sl_option keyless_rows[] = {
    SL_OPTION(sl_spec_signing_keyless, identity, STRING, "",
              "who signed: the mail address or URI in the certificate, as it stands there",
              .required = true, .value = "NAME"),
    SL_OPTION(sl_spec_signing_keyless, issuer, STRING, "",
              "who knew the signer: the OpenID issuer in the certificate, as it stands there",
              .required = true, .value = "URL"),
    SL_OPTION(sl_spec_signing_keyless, trusted_root_file, STRING, "",
              "trusted_root.json of Sigstore, the public one or your own; nothing is fetched",
              .required = true, .value = "FILE"),
    SL_OPTION_END,
};
static const struct sl_option_table keyless_table = {
    "keyless", sizeof(struct sl_spec_signing_keyless), keyless_rows};

static const struct sl_option rows[] = {
    SL_OPTION(sl_spec_model_signing, file, STRING, "model.sig",
              "the signature: relative to the source's folder, an absolute path, or a URI",
              .flag = "signature", .value = "FILE|URI"),
    SL_OPTION(sl_spec_model_signing, public_key_file, STRING, "",
              "PEM file with the public key of the signer (ECDSA, P-256, P-384 or P-521), or with "
              "several, of which any may have signed",
              .flag = "signed-by", .value = "FILE"),
    SL_OPTION(sl_spec_model_signing, certificates, SECTION, "",
              "signers by certificate instead of by key", .section = &certificates_table),
    SL_OPTION(sl_spec_model_signing, keyless, SECTION, "",
              "signers by identity instead: Sigstore, checked offline", .section = &keyless_table),
    {
        .member = "unsigned", /* no name for a member in C */
        .type = SL_OPTION_CHOICE,
        .offset = offsetof(struct sl_spec_model_signing, strangers),
        .initial = "refuse",
        .help = "objects of the model that the signature does not name: refuse the load, or allow "
                "them, as they come",
        .choices = "refuse|allow",
    },
    SL_OPTION_END,
};
const struct sl_option_table sl_spec_signing_table = {"modelSigning",
                                                      sizeof(struct sl_spec_model_signing), rows};

bool sl_spec_signing_is_set(const struct sl_spec_model_signing *signing)
{
    return signing->public_key_file || signing->certificates.ca_file || signing->keyless.identity ||
           signing->keyless.issuer;
}

bool sl_spec_is_signed(const struct sl_spec *spec)
{
    return sl_spec_signing_is_set(&spec->verify.model_signing) ||
           sl_spec_signing_is_set(&spec->verify.rule);
}

void sl_spec_check_signing(const struct sl_yaml_pair *pair,
                           const struct sl_spec_model_signing *signing,
                           struct sl_complaints *complaints)
{
    if (!pair || pair->value->kind != SL_YAML_MAP)
        return;
    const struct sl_yaml_node *node = pair->value;
    unsigned named = (sl_yaml_get(node, "publicKeyFile") != NULL) +
                     (sl_yaml_get(node, "certificates") != NULL) +
                     (sl_yaml_get(node, "keyless") != NULL);
    if (named > 1)
        sl_complain(complaints, pair->mark,
                    "'modelSigning' takes one of 'publicKeyFile', 'certificates' and 'keyless'");
    else if (!named || !sl_spec_signing_is_set(signing))
        sl_complain(complaints, pair->mark,
                    "'modelSigning' names no signer: give it 'publicKeyFile', "
                    "'certificates' or 'keyless'");
}

static int copy_text(const char *from, char **to, struct sl_err *err)
{
    *to = from ? sl_strdup(from, err) : NULL;
    return from && !*to ? -1 : 0;
}

int sl_spec_signing_copy(const struct sl_spec_model_signing *from, struct sl_spec_model_signing *to,
                         struct sl_err *err)
{
    *to = (struct sl_spec_model_signing){.strangers = from->strangers,
                                         .certificates.expired = from->certificates.expired};
    if (copy_text(from->file, &to->file, err) == 0 &&
        copy_text(from->public_key_file, &to->public_key_file, err) == 0 &&
        copy_text(from->certificates.ca_file, &to->certificates.ca_file, err) == 0 &&
        copy_text(from->certificates.subject, &to->certificates.subject, err) == 0 &&
        copy_text(from->keyless.identity, &to->keyless.identity, err) == 0 &&
        copy_text(from->keyless.issuer, &to->keyless.issuer, err) == 0 &&
        copy_text(from->keyless.trusted_root_file, &to->keyless.trusted_root_file, err) == 0)
        return 0;
    sl_options_release(&sl_spec_signing_table, to);
    return -1;
}

/* minisign: base64 of "Ed", 8 bytes of key id, 32 of key. */
int sl_spec_check_minisign(const char *text, struct sl_err *err)
{
    size_t good = strspn(text, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/");
    if (good == 56 && !text[56] && strncmp(text, "RW", 2) == 0)
        return 0;
    return sl_fail(err, SL_E_USAGE, "a minisign public key is 56 characters that start with RW");
}
