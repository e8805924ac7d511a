/* Certificates are read once, and again when they change; sessions stay with those who trust the
 * same. */
#include "trust.h"

#include <check.h>
#include <openssl/pem.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "claims.h"
#include "range_blob.h"
#include "range_server.h"
#include "stores.h"

static struct sl_server *right, *other; /* each trusted by its own certificate */
static char path[] = "/tmp/sluice-test-trust-XXXXXX";

static void setup(void)
{
    sl_test_environment();
    ck_assert_int_eq(sl_libcurl_open(NULL), 0);
    right = sl_server_start_tls();
    other = sl_server_start_tls();
    sl_server_put(right, "/m", sl_blob(), SL_BLOB_BYTES, "\"v1\"");
    snprintf(path, sizeof(path), "/tmp/sluice-test-trust-XXXXXX");
    close(mkstemp(path));
}

static void teardown(void)
{
    sl_server_stop(right);
    sl_server_stop(other);
    unlink(path);
}

/* Write the certificates of a server, as a new file that takes the old one's place. */
static void publish(struct sl_server *server)
{
    char text[8192], next[sizeof(path) + 4];
    FILE *from = fopen(sl_server_ca(server), "r");
    size_t bytes = fread(text, 1, sizeof(text), from);
    fclose(from);
    snprintf(next, sizeof(next), "%s.new", path);
    FILE *to = fopen(next, "w");
    ck_assert_uint_eq(fwrite(text, 1, bytes, to), bytes);
    ck_assert_int_eq(fclose(to), 0);
    ck_assert_int_eq(rename(next, path), 0);
}

static int read_from(const char *ca_file, bool verify, struct sl_err *err)
{
    struct sl_tls_options tls = {.ca_file = (char *)ca_file, .verify = verify};
    struct sl_source_config config = {.tls = &tls, .attempts = 1, .stall_seconds = 20};
    *err = (struct sl_err)SL_ERR_INIT;
    return sl_read_blob(sl_server_url(right, "/m"), &config, 1000, 300000, err);
}

SL_TEST(one_choice_is_read_once)
{
    publish(right);
    struct sl_ca_choice choice = {.file = path};
    struct sl_trust *a = sl_trust_take(&choice, NULL), *b = sl_trust_take(&choice, NULL);
    ck_assert_ptr_nonnull(a);
    ck_assert_ptr_eq(a, b);
    ck_assert_ptr_nonnull(sl_trust_store(a));
    ck_assert_ptr_eq(sl_trust_store(a), sl_trust_store(b));
    ck_assert_ptr_ne(sl_trust_cache(a, false), sl_trust_cache(a, true));
    sl_trust_release(a);
    sl_trust_release(b);
    a = sl_trust_take(&choice, NULL); /* it is kept for the next load */
    ck_assert_ptr_eq(a, b);
    publish(other);
    b = sl_trust_take(&choice, NULL);
    ck_assert_ptr_ne(a, b);
    ck_assert_ptr_nonnull(sl_trust_store(b));
    sl_trust_release(a);
    sl_trust_release(b);
    sl_trust_release(NULL);
}

SL_TEST(what_cannot_be_read_is_tried_again)
{
    struct sl_ca_choice choice = {.file = path}; /* an empty file */
    struct sl_trust *trust = sl_trust_take(&choice, NULL);
    ck_assert_ptr_null(sl_trust_store(trust));
    sl_trust_release(trust);
    publish(right);
    trust = sl_trust_take(&choice, NULL);
    ck_assert_ptr_nonnull(sl_trust_store(trust));
    sl_trust_release(trust);
    choice = (struct sl_ca_choice){.file = "/nowhere/a.pem"};
    trust = sl_trust_take(&choice, NULL);
    ck_assert_ptr_null(sl_trust_store(trust));
    sl_trust_release(trust);
}

/* Many are taken one after another, and one is held meanwhile. */
SL_TEST(one_that_is_held_outlives_the_table)
{
    publish(right);
    struct sl_ca_choice choice = {.file = path};
    struct sl_trust *held = sl_trust_take(&choice, NULL);
    X509_STORE *store = sl_trust_store(held);
    ck_assert_ptr_nonnull(store);
    for (unsigned i = 0; i < 40; i++) {
        char name[40];
        snprintf(name, sizeof(name), "/nowhere/%u.pem", i);
        struct sl_ca_choice next = {.file = name, .directory = i % 2 ? "/tmp" : NULL};
        sl_trust_release(sl_trust_take(&next, NULL));
    }
    ck_assert_ptr_eq(sl_trust_take(&choice, NULL), held);
    ck_assert_ptr_eq(sl_trust_store(held), store);
    sl_trust_release(held);
    sl_trust_release(held);
}

SL_TEST(certificates_that_change_count_from_the_next_connection)
{
    struct sl_err err;
    publish(other);
    ck_assert_int_eq(read_from(path, true, &err), -1);
    ck_assert_msg(strstr(err.message, "cannot trust"), "%s", err.message);
    publish(right);
    ck_assert_msg(read_from(path, true, &err) == 0, "%s", err.message);
    ck_assert_msg(read_from(path, true, &err) == 0, "%s", err.message);
    publish(other); /* no session is resumed that the old ones had vouched for */
    ck_assert_int_eq(read_from(path, true, &err), -1);
    ck_assert_msg(strstr(err.message, "cannot trust"), "%s", err.message);
}

SL_TEST(nobody_resumes_a_session_of_those_who_trust_others)
{
    struct sl_err err;
    ck_assert_msg(read_from(sl_server_ca(right), true, &err) == 0, "%s", err.message);
    ck_assert_msg(read_from(NULL, false, &err) == 0, "%s", err.message);
    ck_assert_int_eq(read_from(sl_server_ca(other), true, &err), -1);
    ck_assert_msg(strstr(err.message, "cannot trust"), "%s", err.message);
    /* one that was made without a look at the certificate */
    ck_assert_msg(read_from(sl_server_ca(other), false, &err) == 0, "%s", err.message);
    ck_assert_int_eq(read_from(sl_server_ca(other), true, &err), -1);
}

/* A folder as OpenSSL looks into it: the certificate's file under the hash of its name. */
static void fill_folder(const char *folder, const char *certificate, char name[100])
{
    FILE *file = fopen(certificate, "r");
    X509 *cert = PEM_read_X509(file, NULL, NULL, NULL);
    fclose(file);
    ck_assert_ptr_nonnull(cert);
    snprintf(name, 100, "%s/%08lx.0", folder, X509_subject_name_hash(cert));
    X509_free(cert);
    ck_assert_int_eq(symlink(certificate, name), 0);
}

/* The file alone is trusted, not what the system trusts beside it. */
SL_TEST(a_folder_of_the_system_does_not_add_to_a_given_file)
{
    struct sl_err err;
    char folder[] = "/tmp/sluice-test-hashed-XXXXXX", name[100];
    ck_assert_ptr_nonnull(mkdtemp(folder));
    fill_folder(folder, sl_server_ca(right), name);
    setenv("SSL_CERT_DIR", folder, 1);
    ck_assert_int_eq(read_from(sl_server_ca(other), true, &err), -1);
    ck_assert_msg(read_from(NULL, true, &err) == 0, "%s", err.message);
    unsetenv("SSL_CERT_DIR");
    unlink(name);
    rmdir(folder);
}

SL_CASE(.setup = setup, .teardown = teardown)
