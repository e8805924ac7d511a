/* Spellings are left to the functions that resolvers use: inet_aton() takes 169.254.43518,
 * 2852039166 and 0xa9fea9fe for the same address. */
#include "link_local.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <string.h>

enum { TEXT_BYTES = 64 };

static bool is_local_v4(const uint8_t address[4])
{
    return address[0] == 169 && address[1] == 254;
}

static bool is_local_v6(const uint8_t address[16])
{
    static const uint8_t mapped[12] = {[10] = 0xff, [11] = 0xff}, amazon[4] = {0xfd, 0, 0x0e, 0xc2};
    if (memcmp(address, mapped, sizeof(mapped)) == 0)
        return is_local_v4(address + 12);
    if (memcmp(address, amazon, sizeof(amazon)) == 0)
        return true;
    return address[0] == 0xfe && (address[1] & 0xc0) == 0x80;
}

bool sl_link_local_address(const struct sockaddr *address)
{
    if (address->sa_family == AF_INET)
        return is_local_v4((const uint8_t *)&((const struct sockaddr_in *)address)->sin_addr);
    if (address->sa_family == AF_INET6)
        return is_local_v6(((const struct sockaddr_in6 *)address)->sin6_addr.s6_addr);
    return false;
}

bool sl_link_local_host(const char *host)
{
    char text[TEXT_BYTES];
    struct in_addr v4;
    struct in6_addr v6;
    size_t bytes = strcspn(host, "%"); /* the zone of an IPv6 address */
    if (bytes >= sizeof(text))
        return false;
    memcpy(text, host, bytes);
    text[bytes] = 0;
    if (inet_aton(text, &v4))
        return is_local_v4((const uint8_t *)&v4);
    return inet_pton(AF_INET6, text, &v6) == 1 && is_local_v6(v6.s6_addr);
}

bool sl_link_local_refused(const char *host, const struct sockaddr *address)
{
    return sl_link_local_address(address) && !sl_link_local_host(host);
}
