/* The pickle machine: stacks, marks, memo, lengths, numbers. */
#include <check.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "buf.h"
#include "claims.h"
#include "pytorch.h"

/* The code that a pickle is refused with, "" if it is read. */
static const char *code_of(const char *data, size_t bytes)
{
    static struct sl_err err;
    struct sl_pytorch torch = {0};
    struct sl_pickle_rules rules = sl_pytorch_rules;
    size_t used = 0;
    rules.arg = &torch;
    err = (struct sl_err)SL_ERR_INIT;
    torch.pickle = sl_pickle_new(&rules, &err);
    ck_assert_ptr_nonnull(torch.pickle);
    if (sl_pickle_read(torch.pickle, data, bytes, &used, &err))
        ck_assert_uint_eq(used, bytes);
    sl_pytorch_release(&torch);
    return err.code;
}
#define CODE(text) code_of(text, sizeof(text) - 1)

SL_TEST(values_are_taken_from_where_they_are)
{
    ck_assert_str_eq(CODE("N."), "");
    ck_assert_str_eq(CODE("}(X\1\0\0\0aK\1u."), "");
    ck_assert_str_eq(CODE("."), "pkl.stack");
    ck_assert_str_eq(CODE("NN."), "pkl.stack");
    ck_assert_str_eq(CODE("N(0."), "pkl.stack");
    ck_assert_str_eq(CODE("t."), "pkl.stack");
    ck_assert_str_eq(CODE("N\x86."), "pkl.stack");
    ck_assert_str_eq(CODE("}(Nu."), "pkl.stack");
    ck_assert_str_eq(CODE("(Ne."), "pkl.stack");
    ck_assert_str_eq(CODE("}Na."), "pkl.type");
    ck_assert_str_eq(CODE("}]Ns."), "pkl.type");
}

SL_TEST(every_length_is_checked)
{
    ck_assert_str_eq(CODE("X\1\0\0\0a."), "");
    ck_assert_str_eq(CODE("X\2\0\0\0a."), "pkl.truncated");
    ck_assert_str_eq(CODE("X\xff\xff\xff\xff."), "pkl.truncated");
    ck_assert_str_eq(CODE("\x8d\xff\xff\xff\xff\xff\xff\xff\xff."), "pkl.truncated");
    ck_assert_str_eq(CODE("\x95\3\0\0\0\0\0\0\0N."), "pkl.truncated");
    ck_assert_str_eq(CODE("\x8b\xff\xff\xff\xff."), "pkl.truncated");
    ck_assert_str_eq(CODE("X\1\0\0\0\xff."), "pkl.utf8");
    ck_assert_str_eq(CODE("\x80\5N."), "");
    ck_assert_str_eq(CODE("\x80\6N."), "pkl.proto");
    ck_assert_str_eq(CODE("Nq\0h\0\x86."), "");
    ck_assert_str_eq(CODE("h\0."), "pkl.memo");
    ck_assert_str_eq(CODE("Nr\xff\xff\xff\xff."), "pkl.limit");
}

SL_TEST(nothing_is_called)
{
    ck_assert_str_eq(CODE("cos\nsystem\n."), "pkl.global");
    ck_assert_str_eq(CODE("cbuiltins\neval\n."), "pkl.global");
    ck_assert_str_eq(CODE("c__builtin__\nset\n)R."), "");
    ck_assert_str_eq(CODE("ctorch\nFloatStorage\n)R."), "pkl.call");
    ck_assert_str_eq(CODE("X\1\0\0\0a)R."), "pkl.call");
    ck_assert_str_eq(CODE("N)\x81."), "pkl.call");
    ck_assert_str_eq(CODE("(ios\nsystem\n."), "pkl.opcode");
    ck_assert_str_eq(CODE("}}b."), "pkl.build");
    ck_assert_str_eq(CODE("NQ."), "pkl.persid");
}

/* Settings beside the weights: nothing of their classes runs, and no tensor is looked for in them.
 */
SL_TEST(inert_classes_are_values)
{
    ck_assert_str_eq(CODE("cargparse\nNamespace\n)\x81}X\2\0\0\0lrK\1sb."), "");
    ck_assert_str_eq(CODE("\x8c\x08"
                          "argparse\x8c\x09Namespace\x93)\x81}b."),
                     "");
    ck_assert_str_eq(CODE("clightning_fabric.utilities.data\nAttributeDict\n)\x81(X\1\0\0\0aK\1u."),
                     "");
    ck_assert_str_eq(CODE("ctransformers.trainer_utils\nSchedulerType\n"
                          "X\6\0\0\0linear\x85R."),
                     "");
    ck_assert_str_eq(CODE("cpathlib\nPosixPath\nX\1\0\0\0a\x85R."), "");
    /* as nothing else is */
    ck_assert_str_eq(CODE("cargparse\nNamespace\n)R."), "pkl.call");
    ck_assert_str_eq(CODE("cargparse\nNamespace\nN\x85\x81."), "pkl.call");
    ck_assert_str_eq(CODE("cargparse\nArgumentParser\n)\x81."), "pkl.global");
    ck_assert_str_eq(CODE("ccollections\nOrderedDict\n)\x81."), "pkl.call");
    ck_assert_str_eq(CODE("ctransformers.trainer_utils\nset_seed\n."), "pkl.global");
    ck_assert_str_eq(CODE("cargparse\nNamespace\n)}\x92."), "pkl.call");
    ck_assert_str_eq(CODE("cargparse\nNamespace\n)\x81(X\1\0\0\0aK\1u."), "pkl.type");
    ck_assert_str_eq(CODE("cpathlib\nPosixPath\n)\x81."), "pkl.call");
    ck_assert_str_eq(CODE("cpathlib\nPosixPath\n)R}b."), "pkl.build");
}

/* ---- memory ---------------------------------------------------------------------------------- */

static void put(struct sl_buf *to, const char *text, size_t bytes)
{
    struct sl_err err = SL_ERR_INIT;
    ck_assert_int_eq(sl_buf_append(to, text, bytes, &err), 0);
}
#define PUT(to, text) put(to, text, sizeof(text) - 1)

/* Millions of times: each claim that Check hears of is a write to a file. */
static void repeat(struct sl_buf *to, const char *text, size_t bytes, unsigned times)
{
    struct sl_err err = SL_ERR_INIT;
    int failed = 0;
    while (times-- > 0)
        failed |= sl_buf_append(to, text, bytes, &err);
    ck_assert_msg(!failed, "%s", err.message);
}
#define REPEAT(to, text, times) repeat(to, text, sizeof(text) - 1, times)

static uint64_t address_space(void)
{
    unsigned long pages = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    ck_assert_ptr_nonnull(file);
    ck_assert_int_eq(fscanf(file, "%lu", &pages), 1);
    fclose(file);
    return (uint64_t)pages * (uint64_t)sysconf(_SC_PAGESIZE);
}

/* Values, storages and tensors; the error is kept. */
static struct sl_err whole;
static void read_all(const void *data, size_t bytes)
{
    struct sl_err err = SL_ERR_INIT;
    struct sl_pytorch torch = {.index = sl_index_new("pytorch", &err)};
    struct sl_pickle_rules rules = sl_pytorch_rules;
    size_t used = 0;
    rules.arg = &torch;
    torch.pickle = sl_pickle_new(&rules, &err);
    struct sl_pickle_node *root = sl_pickle_read(torch.pickle, data, bytes, &used, &err);
    if (root && sl_pytorch_storages(&torch, &err) == 0)
        sl_pytorch_tensors(&torch, root, &err);
    sl_pytorch_release(&torch);
    sl_index_free(torch.index);
    whole = err;
}

/* 0: read; 1: refused with pkl.limit; 2: with something else, such as no memory. */
static int read_whole(const void *data, size_t bytes)
{
    read_all(data, bytes);
    return !whole.kind ? 0 : strcmp(whole.code, "pkl.limit") == 0 ? 1 : 2;
}

/* The same in a process that can have only so much more memory. */
static int read_within(const struct sl_buf *pickle, uint64_t room)
{
    pid_t child = fork();
    ck_assert_int_ge(child, 0);
    if (child == 0) {
        struct rlimit limit = {address_space() + room, address_space() + room};
        if (setrlimit(RLIMIT_AS, &limit) < 0)
            _exit(3);
        _exit(read_whole(pickle->data, pickle->used));
    }
    int status = 0;
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    ck_assert_msg(WIFEXITED(status), "the reader was ended by signal %d", WTERMSIG(status));
    return WEXITSTATUS(status);
}

/* What a pickle of so many bytes may take, and what the allocator takes beside it. */
static uint64_t room_for(const struct sl_buf *pickle)
{
    uint64_t room = SL_PICKLE_MEMORY_BASE + pickle->used * SL_PICKLE_MEMORY_PER_BYTE;
    return SL_MIN(room, (uint64_t)SL_PICKLE_MEMORY_MAX) + (64 << 20);
}

static bool can_limit_memory(const char *test)
{
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    printf("skipped: %s: a sanitizer reserves more address space than the limit\n", test);
    return false;
#else
    (void)test;
    return true;
#endif
}

#define NEW_PICKLE SL_BUF_INIT(256 << 20)
#define CALLEE                                                                                     \
    "ccollections\nOrderedDict\nq\1"                                                               \
    "0"

/* A list of 100,000 references to one pair, and a call that copies it for every 7 bytes. */
static struct sl_buf repeated_calls(unsigned calls)
{
    struct sl_buf pickle = NEW_PICKLE;
    PUT(&pickle, CALLEE "X\1\0\0\0aN\x86q\2"
                        "0](");
    for (unsigned i = 0; i < 100; i++) {
        REPEAT(&pickle, "h\2", 1000);
        PUT(&pickle, "e(");
    }
    PUT(&pickle, "1\x85q\3"
                 "0");
    REPEAT(&pickle, "h\1h\3R0", calls);
    PUT(&pickle, "N.");
    return pickle;
}

SL_TEST(calls_that_copy_a_list_of_references_are_refused)
{
    static const unsigned calls[] = {1400, 70000};
    if (!can_limit_memory("calls_that_copy_a_list_of_references_are_refused"))
        return;
    for (size_t i = 0; i < SL_COUNT(calls); i++) {
        struct sl_buf pickle = repeated_calls(calls[i]);
        ck_assert_int_eq(read_within(&pickle, room_for(&pickle)), 1);
        sl_buf_release(&pickle);
    }
    struct sl_buf pickle = repeated_calls(3); /* that many are no harm */
    ck_assert_int_eq(read_within(&pickle, room_for(&pickle)), 0);
    sl_buf_release(&pickle);
}

/* A thousand lists of a thousand times the same tensor, with a shape of 64 numbers. */
SL_TEST(a_tensor_that_is_repeated_a_million_times_is_refused)
{
    struct sl_buf pickle = NEW_PICKLE;
    if (!can_limit_memory("a_tensor_that_is_repeated_a_million_times_is_refused"))
        return;
    PUT(&pickle, "(");
    REPEAT(&pickle, "K\1", 64);
    PUT(&pickle, "tq\5"
                 "0ctorch._utils\n_rebuild_tensor_v2\n((X\7\0\0\0storagectorch\n"
                 "FloatStorage\nX\1\0\0\0"
                 "0X\3\0\0\0cpuK\1tQK\0h\5h\5\x89}tRq\2"
                 "0](");
    REPEAT(&pickle, "h\2", 1000);
    PUT(&pickle, "eq\3"
                 "0](");
    REPEAT(&pickle, "h\3", 1000);
    PUT(&pickle, "e.");
    ck_assert_int_eq(read_within(&pickle, 64 << 20), 1);
    sl_buf_release(&pickle);
}

/* Each put may leave a gap of 65,536 slots. */
SL_TEST(a_memo_with_gaps_stays_within_its_memory)
{
    struct sl_buf pickle = NEW_PICKLE;
    if (!can_limit_memory("a_memo_with_gaps_stays_within_its_memory"))
        return;
    PUT(&pickle, "N");
    for (uint32_t slot = 65000; slot < 1 << 22; slot += 65000) {
        char put_at[5] = {'r', (char)slot, (char)(slot >> 8), (char)(slot >> 16), 0};
        put(&pickle, put_at, sizeof(put_at));
    }
    PUT(&pickle, ".");
    ck_assert_int_eq(read_within(&pickle, room_for(&pickle)), 1);
    sl_buf_release(&pickle);
}

/* One byte makes an empty tuple, list or dict; two of them, pushed and dropped. */
SL_TEST(the_densest_pickles_stay_within_their_memory)
{
    static const char *const parts[] = {")0",
                                        "]0",
                                        "}0",
                                        "(t0",
                                        "I1\n0",
                                        "h\1)R0",
                                        "h\2h\1)R\x86"
                                        "0"};
    if (!can_limit_memory("the_densest_pickles_stay_within_their_memory"))
        return;
    for (size_t i = 0; i < SL_COUNT(parts); i++) {
        struct sl_buf pickle = NEW_PICKLE;
        PUT(&pickle, CALLEE "]q\2"
                            "0");
        repeat(&pickle, parts[i], strlen(parts[i]), 1000000);
        PUT(&pickle, "N.");
        int verdict = read_within(&pickle, room_for(&pickle));
        ck_assert_msg(verdict < 2, "part %zu: %d", i, verdict);
        sl_buf_release(&pickle);
    }
}

/* Each call looks through them. */
SL_TEST(metadata_of_more_than_two_flags_are_refused)
{
    ck_assert_str_eq(
        CODE("ctorch._utils\n_rebuild_tensor_v2\n((X\7\0\0\0storagectorch\nFloatStorage\n"
             "X\1\0\0\0"
             "0X\3\0\0\0cpuK\1tQK\0))\x89}}(X\4\0\0\0conj\x89X\3\0\0\0neg\x89utR."),
        "");
    ck_assert_str_eq(
        CODE("ctorch._utils\n_rebuild_tensor_v2\n((X\7\0\0\0storagectorch\nFloatStorage\n"
             "X\1\0\0\0"
             "0X\3\0\0\0cpuK\1tQK\0))\x89}}(X\4\0\0\0conj\x89X\3\0\0\0neg\x89X\3\0\0\0neg\x89utR."),
        "pkl.call");
}

#define STORAGE                                                                                    \
    "ctorch._utils\n_rebuild_tensor_v2\n((X\7\0\0\0storagectorch\nFloatStorage\nX\1\0\0\0"         \
    "0X\3\0\0\0cpuK\1tQK\0"

static void expect_error(const char *data, size_t bytes, const char *code, const char *word)
{
    read_all(data, bytes);
    ck_assert_msg(strcmp(whole.code, code) == 0 && strstr(whole.message, word), "%s: %s",
                  whole.code, whole.message);
}
#define EXPECT_ERROR(text, code, word) expect_error(text, sizeof(text) - 1, code, word)

/* 2^29 times one number of four bytes: 2 GiB to hash, to load and to convert. */
SL_TEST(views_that_repeat_a_few_bytes_are_refused_before_any_work)
{
    EXPECT_ERROR("}X\1\0\0\0w" STORAGE "J\0\0\0\x20\x85K\0\x85\x89}tRs.", "pt.limit",
                 "up to tensor 'w' they are 2147483648 bytes");
    EXPECT_ERROR("}X\1\0\0\0w" STORAGE "J\0\0\0\x02\x85K\0\x85\x89}tRs.", "", "");
}

SL_TEST(a_refusal_names_the_key_it_stumbled_over)
{
    EXPECT_ERROR("}X\5\0\0\0layercos\nsystem\n.", "pkl.global", "opcode at byte 11, after 'layer'");
    EXPECT_ERROR("}X\5\0\0\0layerNQs.", "pkl.persid", "after 'layer'");
    EXPECT_ERROR("}X\5\0\0\0layer}(X\1\0\0\0aNX\1\0\0\0aNus.", "pt.duplicate-name",
                 "at 'layer': key 'a' is set twice");
    EXPECT_ERROR("}X\5\0\0\0layer}q\1h\1Nh\1su0.", "pkl.stack", "after 'layer'");
    EXPECT_ERROR("}X\1\0\0\0w" STORAGE "K\2\x85K\1\x85\x89}tRs.", "pt.bounds", "tensor 'w'");
}

SL_CASE(.seconds = 120)
