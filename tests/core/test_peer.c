/* Who is privileged at a socket: by what the kernel tells of users and namespaces. */
#include "peer.h"

#include <grp.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "claims.h"
#include "mem.h"
#include "skip.h"

#define ALL    "         0          0 4294967295\n"
#define SOME   "         0     100000      65536\n"
#define STATUS "Name:\tx\nPid:\t7\n"

SL_TEST(only_who_lives_in_our_namespaces_is_at_home)
{
    static const struct {
        const char *own_status, *own_map, *status, *map;
        bool home;
    } rows[] = {
        {STATUS "NSpid:\t7\nX:\n", ALL, STATUS "NSpid:\t9\nX:\n", ALL, true},
        {STATUS "NSpid:\t7\n", SOME, STATUS "NSpid:\t9\n", SOME, true},
        /* a PID namespace below ours, with or without users of its own */
        {STATUS "NSpid:\t7\n", ALL, STATUS "NSpid:\t9\t1\n", ALL, false},
        {STATUS "NSpid:\t7\n", ALL, STATUS "NSpid:\t9\t1\n", SOME, false},
        /* users of its own alone */
        {STATUS "NSpid:\t7\n", ALL, STATUS "NSpid:\t9\n", SOME, false},
        {STATUS "NSpid:\t7\n", ALL, STATUS "NSpid:\t9\n", "", false},
        /* /proc of a namespace above ours tells nothing */
        {STATUS "NSpid:\t7\t1\n", ALL, STATUS "NSpid:\t9\t3\n", ALL, false},
        /* what does not tell it: an older kernel, a file that cannot be read, a name that pretends
         */
        {STATUS, ALL, STATUS, ALL, false},
        {"", "", "", "", false},
        {STATUS "NSpid:\t7\n", ALL, "", ALL, false},
        {STATUS "NSpid:\t7\n", ALL, "Name:\tNSpid:\t9\n", ALL, false},
        {STATUS "NSpid:\t7\n", ALL, STATUS "NSpid:\t\n", ALL, false},
        /* cut off before the second number, or within it */
        {STATUS "NSpid:\t7\n", ALL, STATUS "NSpid:\t9", ALL, false},
        {STATUS "NSpid:\t7\n", ALL, STATUS "NSpid:\t9\t", ALL, false},
        {STATUS "NSpid:\t7", ALL, STATUS "NSpid:\t9\n", ALL, false},
    };
    for (size_t i = 0; i < SL_COUNT(rows); i++)
        ck_assert_msg(sl_peer_shares_home(rows[i].own_status, rows[i].own_map, rows[i].status,
                                          rows[i].map) == rows[i].home,
                      "row %zu", i);
}

SL_TEST(root_and_our_own_user_are_privileged_at_home_alone)
{
    static const uint32_t other = 4001;
    uint32_t own = geteuid();
    const struct {
        uint32_t uid;
        bool home, privileged;
    } rows[] = {{0, true, true},     {0, false, false},           {own, true, true},
                {own, false, false}, {other, true, own == other}, {other, false, false}};
    for (size_t i = 0; i < SL_COUNT(rows); i++) {
        const struct sl_peer peer = {.pid = 7, .uid = rows[i].uid, .home = rows[i].home};
        ck_assert_msg(sl_peer_is_privileged(&peer) == rows[i].privileged, "row %zu", i);
        ck_assert_uint_eq(sl_peer_user(&peer),
                          rows[i].privileged ? SL_PEER_PRIVILEGED : rows[i].uid);
    }
}

/* Its status names them before its namespaces, and whoever is asked about chooses them. */
SL_TEST(many_groups_hide_nothing)
{
    enum { MANY = 3000 };
    static gid_t groups[MANY];
    int ends[2];
    struct sl_peer peer = {0};
    struct sl_err err = SL_ERR_INIT;
    for (int i = 0; i < MANY; i++)
        groups[i] = 4000000000u + (gid_t)i;
    if (setgroups(MANY, groups) < 0)
        SL_SKIP("only root takes groups");
    ck_assert_int_eq(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
    ck_assert_int_eq(sl_peer_find(ends[0], &peer, &err), 0);
    ck_assert(peer.home);
    ck_assert_uint_eq(peer.group_count, MANY);
    sl_peer_release(&peer);
    close(ends[0]);
    close(ends[1]);
}

/* Who asks while descriptors are scarce is told so, and not taken for somebody else. */
SL_TEST(whose_home_cannot_be_seen_now_is_not_served_as_a_stranger)
{
    int ends[2], done = -1;
    struct sl_peer peer = {0};
    struct sl_err err = SL_ERR_INIT;
    struct rlimit usual, scarce;
    ck_assert_int_eq(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
    ck_assert_int_eq(getrlimit(RLIMIT_NOFILE, &usual), 0);
    int lowest = dup(ends[0]);
    close(lowest);
    for (rlim_t most = (rlim_t)lowest; done < 0; most++) {
        scarce = (struct rlimit){most, usual.rlim_max};
        ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &scarce), 0);
        done = sl_peer_find(ends[0], &peer, &err);
        ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &usual), 0);
        ck_assert(done == 0 ? peer.home : err.kind == SL_E_NO_SPACE);
        ck_assert_int_eq(peer.uid, geteuid());
        sl_peer_release(&peer);
        ck_assert_uint_lt(most, (rlim_t)lowest + 100);
    }
    ck_assert(done == 0);
    close(ends[0]);
    close(ends[1]);
}

SL_TEST(this_process_is_at_home_with_itself)
{
    int ends[2];
    struct sl_peer peer = {0};
    struct sl_err err = SL_ERR_INIT;
    ck_assert_int_eq(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
    ck_assert_int_eq(sl_peer_find(ends[0], &peer, &err), 0);
    ck_assert_int_eq(peer.pid, getpid());
    ck_assert(peer.home && sl_peer_is_privileged(&peer));
    sl_peer_release(&peer);
    close(ends[0]);
    close(ends[1]);
}
