/* Keeping memory of the pool in every way that Linux has, and waiting until it is counted. */
#include "held_case.h"

#include <check.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "await.h"
#include "registry.h"
#include "registry_settle.h"
#include "tree.h"

struct node_case held_node;

/* ---- what is kept ---------------------------------------------------------------------------- */

struct held_kept held_keep(int fd, enum held_how how)
{
    struct stat status;
    char path[64];
    ck_assert_int_eq(fstat(fd, &status), 0);
    struct held_kept kept = {{-1, -1}, NULL, (uint64_t)status.st_size, status.st_ino};
    snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
    if (how == BY_DESCRIPTOR)
        kept.fds[0] = fcntl(fd, F_DUPFD_CLOEXEC, 0);
    else if (how == BY_MAPPING)
        kept.map = mmap(NULL, (size_t)kept.bytes, PROT_READ, MAP_SHARED, fd, 0);
    else if (how == BY_REOPENING)
        kept.fds[0] = open(path, O_RDONLY | O_CLOEXEC);
    else if (how == BY_PATH)
        kept.fds[0] = open(path, O_PATH | O_CLOEXEC);
    else {
        union {
            char bytes[CMSG_SPACE(sizeof(int))];
            struct cmsghdr aligned;
        } control = {.bytes = {0}};
        char byte = 0;
        struct iovec part = {&byte, 1};
        struct msghdr message = {.msg_iov = &part,
                                 .msg_iovlen = 1,
                                 .msg_control = control.bytes,
                                 .msg_controllen = sizeof(control.bytes)};
        struct cmsghdr *header = CMSG_FIRSTHDR(&message);
        header->cmsg_level = SOL_SOCKET;
        header->cmsg_type = SCM_RIGHTS;
        header->cmsg_len = CMSG_LEN(sizeof(int));
        memcpy(CMSG_DATA(header), &fd, sizeof(fd));
        ck_assert_int_eq(socketpair(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0, kept.fds), 0);
        ck_assert_int_eq(sendmsg(kept.fds[0], &message, 0), 1);
    }
    ck_assert(kept.fds[0] >= 0 || (kept.map && kept.map != MAP_FAILED));
    return kept;
}

void held_let_go(struct held_kept *kept)
{
    for (int i = 0; i < 2; i++)
        if (kept->fds[i] >= 0)
            close(kept->fds[i]);
    if (kept->map)
        munmap(kept->map, (size_t)kept->bytes);
    *kept = (struct held_kept)HELD_NONE;
}

int held_slab_of(struct sluice_model *model, unsigned number)
{
    const void *data;
    uint64_t bytes;
    int fd = -1;
    ck_assert_int_eq(sluice_slab(model, number, &data, &bytes, &fd, &held_node.error), 0);
    return fd;
}

/* ---- waiting --------------------------------------------------------------------------------- */

static bool is_left(uint64_t least, uint64_t most)
{
    uint64_t left = node_case_counts(&held_node).left_bytes;
    return left >= least && left <= most;
}

void held_await_left(uint64_t least, uint64_t most)
{
    char what[80];
    snprintf(what, sizeof(what), "memory to be left, %llu to %llu bytes", (unsigned long long)least,
             (unsigned long long)most);
    SL_AWAIT(is_left(least, most), what);
}

void held_await_no_references(void)
{
    SL_AWAIT(!node_case_counts(&held_node).references, "the end of the last lease");
}

struct sluice_model *held_must_load(const char *name)
{
    struct sluice_model *model = node_case_load(&held_node, name);
    ck_assert_msg(model != NULL, "%s", held_node.error.message);
    ck_assert_int_eq(sluice_wait_all(model, HELD_WAIT_MS, -1, &held_node.error), 0);
    return model;
}

void held_evict(const char *name)
{
    struct sl_err err = SL_ERR_INIT;
    held_await_no_references();
    sl_registry_settle(held_node.node->registry);
    ck_assert_msg(sl_registry_evict(held_node.node->registry, name, NULL, &err) == 0, "%s",
                  err.message);
    sl_registry_settle(held_node.node->registry);
}

static void put_spec(unsigned number)
{
    char name[32], text[512];
    struct sl_err err = SL_ERR_INIT;
    snprintf(name, sizeof(name), "x%u.safetensors", number);
    node_case_put(&held_node, name, HELD_ITEMS);
    snprintf(text, sizeof(text),
             "apiVersion: sluice/v1alpha1\nkind: Model\nmetadata: {name: m%u}\n"
             "source: {uri: \"memory://m/%s\"}\nsink: {pool: {}}\n",
             number, name);
    snprintf(name, sizeof(name), "m%u.yaml", number);
    ck_assert_int_eq(sl_tree_write(held_node.scratch, name, text, strlen(text), &err), 0);
}

char held_keys[SL_SCRATCH_PATH_BYTES + 32];

/* keys: for slabs that are files of a tmpfs. */
void held_setup(void)
{
    node_case_init(&held_node);
    snprintf(held_keys, sizeof(held_keys), ", directory: %s/slabs", held_node.path);
    for (unsigned i = 0; i < 3; i++)
        put_spec(i);
}

/* A node with nothing in memory. */
void held_open_node(const char *more)
{
    node_case_open(&held_node, more, HELD_MODELS, NULL);
    for (unsigned i = 0; i < 3; i++)
        held_evict((const char *const[]){"m0", "m1", "m2"}[i]);
}

void held_teardown(void)
{
    node_case_release(&held_node);
}
