/*
 * Every spelling becomes 16 bytes first: an IPv4 address as ::ffff:a.b.c.d, an IPv6 address as it
 * is. Texts are left to the functions that resolvers use: inet_aton() takes 169.254.43518,
 * 2852039166, 0xa9fea9fe and 0251.0376.0251.0376 for the same address.
 *
 * Where IPv4 lies within IPv6: RFC 4291 section 2.5.5 (compatible, mapped), RFC 2765 (translated),
 * RFC 6052 section 2.2 and RFC 8215 (NAT64), RFC 3056 (6to4), RFC 4380 section 4 (Teredo), RFC 5214
 * section 6.1 (ISATAP). A NAT64 gateway with a prefix of its network's own cannot be known.
 */
#include "imds.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdint.h>
#include <string.h>

#include "mem.h"

enum { TEXT_BYTES = 256 };

static const uint8_t mapped_prefix[12] = {[10] = 0xff, [11] = 0xff};

/* ---- IPv4 ------------------------------------------------------------------------------------ */

static bool is_imds_v4(const uint8_t address[4])
{
    static const uint8_t known[][4] = {
        {100, 100, 100, 200}, /* Alibaba */
        {192, 0, 0, 192},     /* Oracle, before */
        {168, 63, 129, 16},   /* Azure's WireServer */
    };
    if (address[0] == 169 && address[1] == 254) /* link-local: nearly all others */
        return true;
    for (size_t i = 0; i < SL_COUNT(known); i++)
        if (memcmp(address, known[i], 4) == 0)
            return true;
    return false;
}

/* ---- IPv4 within IPv6 ------------------------------------------------------------------------ */

static bool any_imds_v4(const uint8_t address[16], const uint8_t *places, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (is_imds_v4(address + places[i]))
            return true;
    return false;
}

/* RFC 6052: behind a prefix of 48, 56 or 64 bits the byte at 8 is left out. */
static bool is_imds_behind_local_nat64(const uint8_t address[16])
{
    const uint8_t *a = address;
    const uint8_t after_48[4] = {a[6], a[7], a[9], a[10]}, after_56[4] = {a[7], a[9], a[10], a[11]};
    static const uint8_t places[] = {9, 12}; /* after 64 and 96 bits */
    return is_imds_v4(after_48) || is_imds_v4(after_56) ||
           any_imds_v4(address, places, SL_COUNT(places));
}

/* The server's address, and the client's with every bit turned. */
static bool is_imds_teredo(const uint8_t address[16])
{
    uint8_t client[4];
    for (int i = 0; i < 4; i++)
        client[i] = (uint8_t)~address[12 + i];
    return is_imds_v4(address + 4) || is_imds_v4(client);
}

static bool has_imds_v4(const uint8_t address[16])
{
    static const uint8_t zeros[12] = {0}, translated[12] = {[8] = 0xff, [9] = 0xff},
                         nat64[12] = {0, 0x64, 0xff, 0x9b},
                         local_nat64[6] = {0, 0x64, 0xff, 0x9b, 0, 1},
                         six_to_four[2] = {0x20, 0x02}, teredo[4] = {0x20, 0x01},
                         isatap[3] = {0, 0x5e, 0xfe};
    if (memcmp(address, mapped_prefix, 12) == 0 || memcmp(address, zeros, 12) == 0 ||
        memcmp(address, translated, 12) == 0 || memcmp(address, nat64, 12) == 0)
        return is_imds_v4(address + 12);
    if (memcmp(address, local_nat64, 6) == 0)
        return is_imds_behind_local_nat64(address);
    if (memcmp(address, six_to_four, 2) == 0)
        return is_imds_v4(address + 2);
    if (memcmp(address, teredo, 4) == 0)
        return is_imds_teredo(address);
    return (address[8] & 0xfd) == 0 && memcmp(address + 9, isatap, 3) == 0 &&
           is_imds_v4(address + 12);
}

static bool is_imds(const uint8_t address[16])
{
    static const struct {
        uint8_t bytes, prefix[16];
    } known[] = {
        {4, {0xfd, 0, 0x0e, 0xc2}},                                                   /* Amazon */
        {4, {0xfd, 0x20, 0, 0xce}},                                                   /* Google */
        {16, {0xfd, 0, 0, 0xc1, [12] = 0xa9, [13] = 0xfe, [14] = 0xa9, [15] = 0xfe}}, /* Oracle */
        {16, {0xfd, 0, 0, 0x42, [15] = 0x42}},                                        /* Scaleway */
    };
    if (address[0] == 0xfe && (address[1] & 0xc0) == 0x80) /* link-local */
        return true;
    for (size_t i = 0; i < SL_COUNT(known); i++)
        if (memcmp(address, known[i].prefix, known[i].bytes) == 0)
            return true;
    return has_imds_v4(address);
}

/* ---- spellings ------------------------------------------------------------------------------- */

static void from_v4(const void *v4, uint8_t address[16])
{
    memcpy(address, mapped_prefix, 12);
    memcpy(address + 12, v4, 4);
}

/* False if the text is a name. */
static bool parse(const char *host, uint8_t address[16])
{
    char text[TEXT_BYTES];
    struct in_addr v4;
    size_t bytes = strcspn(host, "%"); /* the zone of an IPv6 address */
    while (bytes && host[bytes - 1] == '.')
        bytes--;
    if (bytes >= sizeof(text))
        return false;
    memcpy(text, host, bytes);
    text[bytes] = 0;
    if (inet_aton(text, &v4)) {
        from_v4(&v4, address);
        return true;
    }
    return inet_pton(AF_INET6, text, address) == 1;
}

bool sl_imds_address(const struct sockaddr *any)
{
    uint8_t address[16];
    if (any->sa_family == AF_INET)
        from_v4(&((const struct sockaddr_in *)any)->sin_addr, address);
    else if (any->sa_family == AF_INET6)
        memcpy(address, ((const struct sockaddr_in6 *)any)->sin6_addr.s6_addr, 16);
    else
        return false;
    return is_imds(address);
}

bool sl_imds_host(const char *host)
{
    uint8_t address[16];
    return parse(host, address) && is_imds(address);
}

bool sl_imds_redirect_refused(const char *named, const char *to)
{
    uint8_t from_user[16], wanted[16];
    if (!parse(to, wanted) || !is_imds(wanted))
        return false;
    return !parse(named, from_user) || memcmp(from_user, wanted, 16) != 0;
}

bool sl_imds_refused(const char *host, const struct sockaddr *address)
{
    return sl_imds_address(address) && !sl_imds_host(host);
}
