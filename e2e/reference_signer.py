"""The package model-signing as a program: keys, signatures and verdicts for checks_signing.py.

    reference_signer.py keys DIR                          keys of three curves; a root, an intermediate and a signer
    reference_signer.py sign HOW MODEL SIG KEY [CERT CHAIN]   HOW: files, blake2, shards:N
    reference_signer.py verify MODEL SIG PUBLIC           by the library, which finds out how it was hashed
    reference_signer.py verify-certificate MODEL SIG ROOT

It ends with 3 if a signature is refused.
"""
import datetime
import os
import pathlib
import sys

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from model_signing import hashing, signing, verifying

CURVES = {"p256": ec.SECP256R1, "p384": ec.SECP384R1, "p521": ec.SECP521R1}
PEM = serialization.Encoding.PEM


def write_key(folder, name, key):
    private = key.private_bytes(PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    public = key.public_key().public_bytes(PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    for end, data in (("key", private), ("pub", public)):
        with open(os.path.join(folder, f"{name}.{end}.pem"), "wb") as file:
            file.write(data)


def certificate(subject, key, issuer, issuer_key, ca):
    now = datetime.datetime.now(datetime.timezone.utc)
    usage = dict.fromkeys(("content_commitment", "key_encipherment", "data_encipherment", "key_agreement", "encipher_only", "decipher_only"), False)
    made = (x509.CertificateBuilder().subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, subject)]))
            .issuer_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, issuer)])).public_key(key.public_key())
            .serial_number(x509.random_serial_number()).not_valid_before(now - datetime.timedelta(hours=1))
            .not_valid_after(now + datetime.timedelta(days=1)).add_extension(x509.BasicConstraints(ca, None), critical=True)
            .add_extension(x509.KeyUsage(digital_signature=not ca, key_cert_sign=ca, crl_sign=ca, **usage), critical=True))
    if not ca:
        made = made.add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CODE_SIGNING]), critical=False)
    return made.sign(issuer_key, hashes.SHA256())


def keys(folder):
    for name, curve in CURVES.items():
        write_key(folder, name, ec.generate_private_key(curve()))
    root, intermediate, leaf = (ec.generate_private_key(ec.SECP384R1()) for _ in range(3))
    write_key(folder, "leaf", leaf)
    for name, made in {"root": certificate("root", root, "root", root, True),
                       "intermediate": certificate("intermediate", intermediate, "root", root, True),
                       "leaf": certificate("signer", leaf, "intermediate", intermediate, False)}.items():
        with open(os.path.join(folder, f"{name}.cert.pem"), "wb") as file:
            file.write(made.public_bytes(PEM))


def sign(how, model, signature, key, cert=None, *chain):
    config = signing.Config()
    if cert:
        config.use_certificate_signer(private_key=pathlib.Path(key), signing_certificate=pathlib.Path(cert),
                                      certificate_chain=[pathlib.Path(one) for one in chain])
    else:
        config.use_elliptic_key_signer(private_key=pathlib.Path(key))
    hashed = hashing.Config()
    if how.startswith("shards:"):
        hashed.use_shard_serialization(hashing_algorithm="sha256", shard_size=int(how[7:]))
    else:
        hashed.use_file_serialization(hashing_algorithm="sha256" if how == "files" else how)
    config.set_hashing_config(hashed.set_ignored_paths(paths=[os.path.basename(signature)]))
    config.sign(pathlib.Path(model), pathlib.Path(signature))


def verify(config, model, signature):
    try:
        config.verify(pathlib.Path(model), pathlib.Path(signature))
    except Exception as error:  # it raises what comes
        print(error, file=sys.stderr)
        sys.exit(3)


def main(what, *rest):
    if what == "keys":
        keys(*rest)
    elif what == "sign":
        sign(*rest)
    elif what == "verify":
        verify(verifying.Config().use_elliptic_key_verifier(public_key=pathlib.Path(rest[2])), *rest[:2])
    else:
        verify(verifying.Config().use_certificate_verifier(certificate_chain=[pathlib.Path(rest[2])]), *rest[:2])


main(*sys.argv[1:])
