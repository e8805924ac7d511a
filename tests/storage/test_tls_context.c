/* What TLS offers to a server, and in which order. */
#include <check.h>
#include <stdio.h>
#include <string.h>

#include "claims.h"
#include "libcurl.h"
#include "tls_context.h"

static SSL_CTX *context;

static void setup(void)
{
    ck_assert_int_eq(sl_libcurl_open(NULL), 0);
    ck_assert_ptr_nonnull(sl_libcurl.ssl.ctx_ctrl);
    context = SSL_CTX_new(TLS_client_method());
    ck_assert_ptr_nonnull(context);
}

static void teardown(void)
{
    SSL_CTX_free(context);
}

/* The suites, joined by blanks; those of TLS 1.2 apart. */
static void list(char new_ones[1024], char old_ones[8192])
{
    STACK_OF(SSL_CIPHER) *all = SSL_CTX_get_ciphers(context);
    new_ones[0] = old_ones[0] = 0;
    for (int i = 0; i < sk_SSL_CIPHER_num(all); i++) {
        const char *name = SSL_CIPHER_get_name(sk_SSL_CIPHER_value(all, i));
        bool is_new = strncmp(name, "TLS_", 4) == 0;
        char *to = is_new ? new_ones : old_ones;
        size_t used = strlen(to), room = (is_new ? 1024 : 8192) - used;
        ck_assert_uint_lt((size_t)snprintf(to + used, room, "%s ", name), room);
    }
}

SL_TEST(the_cheapest_suite_comes_first_and_the_others_stay)
{
    char before[1024], old_before[8192], after[1024], old_after[8192];
    ck_assert_int_eq(SSL_CTX_set_ciphersuites(context, "TLS_AES_256_GCM_SHA384:"
                                                       "TLS_CHACHA20_POLY1305_SHA256:"
                                                       "TLS_AES_128_GCM_SHA256"),
                     1);
    list(before, old_before);
    sl_tls_context_prepare(context);
    list(after, old_after);
    ck_assert_str_eq(after,
                     "TLS_AES_128_GCM_SHA256 TLS_AES_256_GCM_SHA384 TLS_CHACHA20_POLY1305_SHA256 ");
    ck_assert_str_eq(old_after, old_before);
}

/* A system's policy has left it out. */
SL_TEST(what_is_not_offered_is_not_added)
{
    char after[1024], old_after[8192];
    ck_assert_int_eq(SSL_CTX_set_ciphersuites(context, "TLS_AES_256_GCM_SHA384:"
                                                       "TLS_CHACHA20_POLY1305_SHA256"),
                     1);
    sl_tls_context_prepare(context);
    list(after, old_after);
    ck_assert_str_eq(after, "TLS_AES_256_GCM_SHA384 TLS_CHACHA20_POLY1305_SHA256 ");
}

SL_TEST(one_alone_and_none_stay_as_they_are)
{
    char after[1024], old_after[8192];
    ck_assert_int_eq(SSL_CTX_set_ciphersuites(context, "TLS_AES_128_GCM_SHA256"), 1);
    sl_tls_context_prepare(context);
    list(after, old_after);
    ck_assert_str_eq(after, "TLS_AES_128_GCM_SHA256 ");
    ck_assert_int_eq(SSL_CTX_set_ciphersuites(context, ""), 1);
    sl_tls_context_prepare(context);
    list(after, old_after);
    ck_assert_str_eq(after, "");
}

SL_CASE(.setup = setup, .teardown = teardown)
