/* Addresses of metadata services, in every spelling; and neighbours of them, which are not. */
#include <arpa/inet.h>
#include <check.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "claims.h"
#include "imds.h"
#include "mem.h"

/* The same address, as a URL's host may hold it and as a resolver may answer. */
static const char *const spellings[] = {
    "169.254.169.254",
    "169.254.0.1",
    "169.254.43518",
    "169.16689662",
    "2852039166",
    "0xa9fea9fe",
    "0XA9FEA9FE",
    "0251.0376.0251.0376",
    "0xa9.0xfe.169.0376",
    "100.100.100.200",
    "1684301000",
    "0x646464c8",
    "0144.0144.0144.0310",
    "100.100.25800",
    "192.0.0.192",
    "192.192",
    "0xc00000c0",
    "168.63.129.16",
    "2822734096",
    "0xa83f8110",
    "fe80::1",
    "febf::1",
    "fd00:ec2::254",
    "fd00:0ec2:0000::23",
    "fd20:ce::254",
    "fd00:c1::a9fe:a9fe",
    "fd00:42::42",
    /* mapped, compatible, translated */
    "::ffff:169.254.169.254",
    "::ffff:a9fe:a9fe",
    "0:0:0:0:0:ffff:100.100.100.200",
    "::FFFF:192.0.0.192",
    "::169.254.169.254",
    "::a83f:8110",
    "::ffff:0:169.254.169.254",
    /* NAT64 */
    "64:ff9b::169.254.169.254",
    "64:ff9b::6464:64c8",
    "0064:ff9b:0:0:0:0:168.63.129.16",
    "64:ff9b:1::169.254.169.254",
    "64:ff9b:1:ffff::192.0.0.192",
    "64:ff9b:1:a9fe:a9:fe00::",   /* behind 48 bits */
    "64:ff9b:1:a9:fe:a9fe::",     /* behind 56 */
    "64:ff9b:1:0:a9:fea9:fe00::", /* behind 64 */
    /* 6to4, Teredo (server; client turned over), ISATAP */
    "2002:a9fe:a9fe::",
    "2002:6464:64c8::1",
    "2002:c000:c0::",
    "2001:0:a9fe:a9fe::1",
    "2001::8000:63bf:5601:5601",
    "2001:db8::5efe:169.254.169.254",
    "2001:db8::200:5efe:6464:64c8",
};

static const char *const neighbours[] = {
    "169.253.255.255",
    "169.255.0.0",
    "100.100.100.199",
    "100.100.100.201",
    "192.0.0.191",
    "168.63.129.17",
    "127.0.0.1",
    "10.0.0.1",
    "0",
    "::",
    "::1",
    "fe7f::1",
    "fec0::1",
    "fd00:ec3::254",
    "::ffff:169.253.169.254",
    "64:ff9b::8.8.8.8",
    "2002:808:808::",
    "64:ff9b:1::1",
    "2001:4860::a9fe:a9fe",
    "2001:db8::169.254.169.254",
    "fd00:c1::1",
    "2001:db8::5efe:1",
    "64:ff9b:2::169.254.169.254",
};

static struct addrinfo *resolve(const char *text)
{
    struct addrinfo hints = {.ai_flags = AI_NUMERICHOST, .ai_socktype = SOCK_STREAM}, *found;
    ck_assert_msg(getaddrinfo(text, NULL, &hints, &found) == 0, "%s", text);
    return found;
}

SL_TEST(every_spelling_is_known)
{
    for (size_t i = 0; i < SL_COUNT(spellings); i++) {
        struct addrinfo *found = resolve(spellings[i]);
        char dotted[100];
        snprintf(dotted, sizeof(dotted), "%s.", spellings[i]);
        ck_assert_msg(sl_imds_address(found->ai_addr), "%s", spellings[i]);
        ck_assert_msg(sl_imds_host(spellings[i]), "%s", spellings[i]);
        ck_assert_msg(sl_imds_host(dotted), "%s", dotted);
        ck_assert_msg(sl_imds_refused("some.name", found->ai_addr), "%s", spellings[i]);
        ck_assert_msg(!sl_imds_refused(spellings[i], found->ai_addr), "%s", spellings[i]);
        freeaddrinfo(found);
    }
    ck_assert(sl_imds_host("fe80::1%eth0"));
}

SL_TEST(neighbours_are_free)
{
    for (size_t i = 0; i < SL_COUNT(neighbours); i++) {
        struct addrinfo *found = resolve(neighbours[i]);
        ck_assert_msg(!sl_imds_address(found->ai_addr), "%s", neighbours[i]);
        ck_assert_msg(!sl_imds_host(neighbours[i]), "%s", neighbours[i]);
        freeaddrinfo(found);
    }
    ck_assert(!sl_imds_host("some.name"));
    ck_assert(!sl_imds_host("169.254.169.254.example"));
    ck_assert(!sl_imds_host(""));
    ck_assert(!sl_imds_host("..."));
}

/* As it is spelled may differ; another address of the kind was not named. */
SL_TEST(whoever_names_an_address_may_be_redirected_to_that_one_alone)
{
    ck_assert(!sl_imds_redirect_refused("169.254.169.254", "0xa9fea9fe"));
    ck_assert(!sl_imds_redirect_refused("2852039166", "::ffff:169.254.169.254"));
    ck_assert(!sl_imds_redirect_refused("fd00:ec2::254", "fd00:ec2:0::254"));
    ck_assert(sl_imds_redirect_refused("169.254.170.2", "169.254.169.254"));
    ck_assert(sl_imds_redirect_refused("169.254.169.254", "100.100.100.200"));
    ck_assert(sl_imds_redirect_refused("some.name", "169.254.169.254"));
    ck_assert(!sl_imds_redirect_refused("some.name", "10.0.0.1"));
    ck_assert(!sl_imds_redirect_refused("169.254.169.254", "some.name"));
}
