/* The SELinux label of a node's tmpfs and of its pool's socket, with a kernel that says what the
 * test wants: which labels it knows, and what has which. */
#include <check.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/socket.h>
#include <sys/xattr.h>
#include <unistd.h>

#include "buf.h"
#include "claims.h"
#include "log.h"
#include "node.h"
#include "node_socket.h"
#include "scratch.h"
#include "selinux_label.h"
#include "tree.h"

#define OWN "system_u:object_r:model_t:s0"

static char base[SL_SCRATCH_PATH_BYTES];
static int scratch;
static struct sl_err err;

/* The kernel. */
static bool is_on;
static int refusal;          /* of mounts with a label, and of labels of sockets; 0: none */
static const char *has;      /* the label that things have; NULL: none */
static char mounts[4][256];  /* options, one after the other */
static char socket_got[256]; /* the label that a socket got */
static unsigned mount_count;

int __wrap_mount(const char *source, const char *target, const char *type, unsigned long flags,
                 const void *options);
ssize_t __wrap_getxattr(const char *path, const char *name, void *value, size_t bytes);
ssize_t __wrap_lgetxattr(const char *path, const char *name, void *value, size_t bytes);
int __wrap_lsetxattr(const char *path, const char *name, const void *value, size_t bytes,
                     int flags);
int __real_sl_buf_read_file(struct sl_buf *buf, const char *path, struct sl_err *why);
int __wrap_sl_buf_read_file(struct sl_buf *buf, const char *path, struct sl_err *why);

int __wrap_mount(const char *source, const char *target, const char *type, unsigned long flags,
                 const void *options)
{
    (void)source, (void)target, (void)flags;
    ck_assert_str_eq(type, "tmpfs");
    ck_assert_uint_lt(mount_count, SL_COUNT(mounts));
    snprintf(mounts[mount_count++], sizeof(mounts[0]), "%s", (const char *)options);
    errno = refusal;
    return refusal && strstr(options, "context=") ? -1 : 0;
}

ssize_t __wrap_getxattr(const char *path, const char *name, void *value, size_t bytes)
{
    (void)path;
    ck_assert_str_eq(name, "security.selinux");
    errno = ENODATA;
    return has ? snprintf(value, bytes, "%s", has) + 1 : -1;
}

ssize_t __wrap_lgetxattr(const char *path, const char *name, void *value, size_t bytes)
{
    return __wrap_getxattr(path, name, value, bytes);
}

int __wrap_lsetxattr(const char *path, const char *name, const void *value, size_t bytes, int flags)
{
    (void)path;
    ck_assert_str_eq(name, "security.selinux");
    ck_assert_uint_eq(bytes, strlen(value) + 1);
    ck_assert_int_eq(flags, 0);
    snprintf(socket_got, sizeof(socket_got), "%s", (const char *)value);
    errno = refusal;
    return refusal ? -1 : 0;
}

int __wrap_sl_buf_read_file(struct sl_buf *buf, const char *path, struct sl_err *why)
{
    if (strcmp(path, "/proc/filesystems") != 0)
        return __real_sl_buf_read_file(buf, path, why);
    return sl_buf_text(buf,
                       is_on ? "nodev\tsysfs\nnodev\tselinuxfs\n\text4\n"
                             : "nodev\tsysfs\nnodev\tnoselinuxfs\n\text4\n",
                       why);
}

static void setup(void)
{
    err = (struct sl_err)SL_ERR_INIT;
    is_on = true;
    scratch = sl_scratch_open(base);
}

static void teardown(void)
{
    sl_scratch_close(scratch, base);
}

/* ---- the node ------------------------------------------------------------------------------- */

static int read_node(struct sl_node_config *config, const char *label)
{
    char text[1024], file[SL_SCRATCH_PATH_BYTES + 32];
    sl_autobuf complaints = SL_BUF_INIT(65536);
    snprintf(text, sizeof(text),
             "apiVersion: sluice/v1alpha1\nkind: Node\ndirectory: %s/memory/models\n"
             "budgetBytes: 32MiB\ntmpfs: {path: %s/memory, huge: never}\n%s%s\n",
             base, base, label ? "selinuxLabel: " : "", label ? label : "");
    snprintf(file, sizeof(file), "%s/node.yaml", base);
    unlink(file);
    if (sl_tree_write(scratch, "node.yaml", text, strlen(text), &err) < 0)
        return -1;
    return sl_node_config_read(file, config, &complaints, &err);
}

static bool node_opens(const char *label)
{
    struct sl_node_config config;
    struct sl_node *node = NULL;
    if (read_node(&config, label) == 0)
        node = sl_node_open(&config, &(struct sl_node_opening){0}, &err);
    sl_node_config_release(&config);
    sl_node_free(node);
    return node;
}

/* What `call` logs. */
static const char *logged(void (*call)(void))
{
    static char text[4096];
    char path[SL_SCRATCH_PATH_BYTES + 8];
    snprintf(path, sizeof(path), "%s/log", base);
    fflush(stderr);
    int before = dup(2), fd = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    ck_assert(before >= 0 && fd >= 0 && dup2(fd, 2) == 2);
    call();
    fflush(stderr);
    dup2(before, 2);
    close(before);
    ssize_t bytes = pread(fd, text, sizeof(text) - 1, 0);
    close(fd);
    ck_assert_int_ge(bytes, 0);
    text[bytes] = 0;
    return text;
}

#define CONTEXT(label) ",context=\"" label "\""

SL_TEST(a_tmpfs_gets_the_label_of_containers_where_selinux_is_on)
{
    ck_assert_msg(node_opens(NULL), "%s", err.message);
    ck_assert_uint_eq(mount_count, 1);
    ck_assert_ptr_nonnull(strstr(mounts[0], CONTEXT("system_u:object_r:container_file_t:s0")));
}

SL_TEST(without_selinux_the_kernel_hears_nothing_of_labels)
{
    is_on = false;
    ck_assert_msg(node_opens(OWN), "%s", err.message);
    ck_assert_uint_eq(mount_count, 1);
    ck_assert_ptr_null(strstr(mounts[0], "context"));
}

SL_TEST(a_label_of_the_config_is_given_with_its_categories)
{
    ck_assert_msg(node_opens("'" OWN ":c1,c2'"), "%s", err.message);
    ck_assert_ptr_nonnull(strstr(mounts[0], CONTEXT(OWN ":c1,c2")));
    ck_assert_uint_eq(strlen(mounts[0]), strlen("mode=0755,size=102760448" CONTEXT(OWN ":c1,c2")));
}

SL_TEST(none_leaves_it_to_the_policy)
{
    ck_assert_msg(node_opens("none"), "%s", err.message);
    ck_assert_ptr_null(strstr(mounts[0], "context"));
}

static void open_node(void)
{
    ck_assert_msg(node_opens(NULL), "%s", err.message);
}
static const int refusals[] = {EINVAL /* the policy does not know it */, EACCES /* it may not */};
SL_TEST_LOOP(a_label_that_was_chosen_may_be_refused_with_a_warning, 0, SL_COUNT(refusals))
{
    refusal = refusals[_i];
    const char *log = logged(open_node);
    ck_assert_uint_eq(mount_count, 2);
    ck_assert_ptr_null(strstr(mounts[1], "context"));
    ck_assert_msg(strstr(log, "no SELinux label for containers") && strstr(log, "'selinuxLabel'"),
                  "%s", log);
}

SL_TEST_LOOP(a_label_that_was_asked_for_is_given_or_nothing_starts, 0, SL_COUNT(refusals))
{
    refusal = refusals[_i];
    ck_assert(!node_opens(OWN));
    ck_assert_uint_eq(mount_count, 1);
    ck_assert_int_eq(err.kind, SL_E_NO_SPACE);
    ck_assert_msg(strstr(err.message, OWN) && strstr(err.message, "set 'selinuxLabel'"), "%s",
                  err.message);
}

static const char *const bad[] = {
    "container_file_t",       "a:b",       "':b:c'",     "'a:b:c\"'",    "'a:b:c d'",
    "\"a:b:c\\n,mode=0777\"", "'a:b:c\\'", "\"a:b:c'\"", "'a:b:\u00fc'", "NONE",
};
SL_TEST_LOOP(what_is_no_label_is_refused_by_name, 0, SL_COUNT(bad))
{
    ck_assert(!node_opens(bad[_i]));
    ck_assert_int_eq(err.kind, SL_E_USAGE);
    ck_assert_msg(strstr(err.message, "is not a label of SELinux"), "%s", err.message);
    ck_assert_uint_eq(mount_count, 0);
}

/* ---- what is there already ------------------------------------------------------------------ */

static void check_found(void)
{
    sl_selinux_check(scratch, "/memory", SL_SELINUX_AUTO, "mount it anew");
}

SL_TEST(another_label_is_a_warning_and_another_user_is_not)
{
    has = "system_u:object_r:tmpfs_t:s0";
    const char *log = logged(check_found);
    ck_assert_msg(strstr(log, "'/memory' has the SELinux label 'system_u:object_r:tmpfs_t:s0'") &&
                      strstr(log, "mount it anew"),
                  "%s", log);
    has = "unconfined_u:object_r:container_file_t:s0";
    ck_assert_str_eq(logged(check_found), "");
    has = "system_u:object_r:container_file_t:s0:c1,c2"; /* of one pod alone */
    ck_assert_ptr_nonnull(strstr(logged(check_found), "c1,c2"));
    has = NULL;
    ck_assert_str_eq(logged(check_found), "");
}

/* ---- the socket ----------------------------------------------------------------------------- */

static void open_socket(void)
{
    char path[SL_SCRATCH_PATH_BYTES + 16];
    struct sl_node_socket at;
    snprintf(path, sizeof(path), "%s/pool.sock", base);
    const struct sl_node_socket_options options = {path, SOCK_STREAM, 1, 0600, UINT32_MAX, OWN};
    ck_assert_int_eq(sl_node_socket_open(&options, &at, &err), 0);
    sl_node_socket_release(&at);
}

SL_TEST(a_socket_gets_the_label_unless_it_has_it)
{
    has = "system_u:object_r:var_lib_t:s0";
    ck_assert_str_eq(logged(open_socket), "");
    ck_assert_str_eq(socket_got, OWN);
    has = OWN;
    *socket_got = 0;
    ck_assert_str_eq(logged(open_socket), "");
    ck_assert_str_eq(socket_got, "");
}

SL_TEST(a_refused_label_of_a_socket_is_a_warning)
{
    has = "system_u:object_r:var_lib_t:s0";
    refusal = EOPNOTSUPP;
    const char *log = logged(open_socket);
    ck_assert_msg(strstr(log, "refuses the SELinux label") && strstr(log, "/pool.sock'"), "%s",
                  log);
}

SL_CASE(.setup = setup, .teardown = teardown)
