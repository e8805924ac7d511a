/*
 * A test is a claim: SL_TEST(claim) { … } registers one, and main() of the test library runs those
 * of one file, each in a process of its own. Nothing lists them a second time. A program has the
 * claims of several files and goes by the name it is called by, that of the file.
 *
 *     build/tests/test_http                        all claims
 *     build/tests/test_http a_claim another        these alone, as SL_TEST="a_claim another" does
 *     build/tests/test_http --list                 what there is
 *
 * What all claims of a file share (setup, time limit) is said once, anywhere in the file:
 *
 *   SL_CASE(.setup = setup, .teardown = teardown, .seconds = 120)
 *
 * A file whose claims differ there names a group and says to which a claim belongs:
 *
 *   static const struct sl_claim_case serving;
 *   SL_TEST_OF(serving, a_range_is_exactly_those_bytes) { … }
 *   static const struct sl_claim_case serving = {.setup = start, .teardown = stop};
 */
#ifndef SL_CLAIMS_H
#define SL_CLAIMS_H

#include <check.h>
#include <stdbool.h>

#include "skip.h"

struct sl_claim_case {
    void (*setup)(void), (*teardown)(void); /* around each claim, in its process; NULL: none */
    unsigned seconds;                       /* time limit of a claim; 0: CK_DEFAULT_TIMEOUT */
    bool adapts;                            /* as if each began with sl_test_adapts() */
    bool starts;                            /* its values of _i start programs, which are slow under
                                               the address sanitizer: there each third is tried */
    /** Once, before the first claim, in the parent; false: the program is skipped (sl_skipped()
     * said why). Of SL_CASE alone; NULL: none. */
    bool (*prepare)(void);
};

/**
 * Loads of a claim are pinned (`--fixed usual`), and so are those of programs that it starts:
 * SLUICE_FIXED is set. So no clock decides what a test counts. Where what a load decides by itself
 * is the subject, a claim says so before it parses a spec or makes a plan.
 */
void sl_test_adapts(void);

struct sl_claim {
    const TTest *test;
    const struct sl_claim_case *of; /* NULL: what SL_CASE says */
    int begin, end;                 /* values of _i */
    struct sl_claim *next;
};
/** What SL_CASE says of a file. */
struct sl_claim_file {
    const char *file;
    struct sl_claim_case all;
    struct sl_claim_file *next;
};
/** Before main(), by the macros. */
void sl_claim_add(struct sl_claim *claim);
void sl_claim_file_add(struct sl_claim_file *file);

#define SL_TEST_AS(group, claim, first, last)                                                      \
    static void claim##_fn(int _i);                                                                \
    static const TTest claim##_test = {#claim, claim##_fn, __FILE__, __LINE__};                    \
    __attribute__((constructor)) static void claim##_add(void)                                     \
    {                                                                                              \
        static struct sl_claim entry = {&claim##_test, group, first, last, NULL};                  \
        sl_claim_add(&entry);                                                                      \
    }                                                                                              \
    static void claim##_fn(int _i __attribute__((unused)))

#define SL_TEST(claim) SL_TEST_AS(NULL, claim, 0, 1)
/** Once for each _i from first to below last; both constant. */
#define SL_TEST_LOOP(claim, first, last)           SL_TEST_AS(NULL, claim, first, last)
#define SL_TEST_OF(group, claim)                   SL_TEST_AS(&group, claim, 0, 1)
#define SL_TEST_LOOP_OF(group, claim, first, last) SL_TEST_AS(&group, claim, first, last)

#define SL_CASE(...)                                                                               \
    __attribute__((constructor)) static void sl_claim_case_here(void)                              \
    {                                                                                              \
        static struct sl_claim_file entry = {__FILE__, {__VA_ARGS__}, NULL};                       \
        sl_claim_file_add(&entry);                                                                 \
    }

#endif
