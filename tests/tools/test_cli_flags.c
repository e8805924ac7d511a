/* Taking a command line apart and writing pages, with failing memory. */
#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "alloc_fail.h"
#include "claims.h"
#include "cli_flags.h"
#include "mem.h"

static struct sl_command_line line;
static struct sl_err err;

static int parse(const char *const *argv, struct sl_err *why)
{
    static char *kept[64]; /* the line borrows it */
    int argc = 0;
    memset(kept, 0, sizeof(kept));
    for (; argv[argc]; argc++)
        kept[argc] = (char *)argv[argc];
    sl_command_line_release(&line);
    return sl_command_line_parse(&line, argc, kept, why);
}
#define PARSE(...) parse((const char *const[]){"sluice", __VA_ARGS__, NULL}, &err)

static void setup(void)
{
    memset(&err, 0, sizeof(err));
    sl_alloc_fail_at(0);
}
static void teardown(void)
{
    sl_alloc_fail_at(0);
    sl_command_line_release(&line);
}

SL_TEST(flags_of_the_spec_become_settings)
{
    ck_assert_int_eq(
        PARSE("load", "--connections", "4", "m.yaml", "--set", "a.b=c=d", "--range-bytes=8Mi"), 0);
    const struct sl_cli *cli = &line.cli;
    ck_assert_uint_eq(cli->setting_count, 3);
    ck_assert_str_eq(cli->settings[0].path, "readers.connections");
    ck_assert_str_eq(cli->settings[0].value, "4");
    ck_assert_str_eq(cli->settings[0].origin, "--connections");
    ck_assert_str_eq(cli->settings[1].path, "a.b");
    ck_assert_str_eq(cli->settings[1].value, "c=d");
    ck_assert_str_eq(cli->settings[1].origin, "--set a.b");
    ck_assert_str_eq(cli->settings[2].path, "readers.rangeBytes");
    ck_assert_int_eq(cli->operand_count, 1);
    ck_assert_ptr_null(cli->after_dashes);
}

/* As help says: "may be repeated". */
SL_TEST(a_list_that_is_given_again_goes_on)
{
    ck_assert_int_eq(PARSE("load", "m.yaml", "--through", "http://a:1", "--through=http://b:2",
                           "--connections", "4", "--connections", "5"),
                     0);
    ck_assert_uint_eq(line.cli.setting_count, 3);
    ck_assert_str_eq(line.cli.settings[0].path, "source.through.caches");
    ck_assert_str_eq(line.cli.settings[0].value, "http://a:1,http://b:2");
    ck_assert_str_eq(line.cli.settings[2].value, "5");
    ck_assert_int_eq(PARSE("load", "m.yaml", "--through", "[http://a:1]", "--through", "b"), -1);
    ck_assert_int_eq(err.kind, SL_E_USAGE);
}

SL_TEST(a_command_after_dashes_keeps_its_flags)
{
    ck_assert_int_eq(PARSE("load", "m.yaml", "--", "python", "--json", "--", "-x"), 0);
    ck_assert_int_eq(line.cli.operand_count, 1);
    ck_assert(!line.cli.json);
    ck_assert_str_eq(line.cli.after_dashes[0], "python");
    ck_assert_str_eq(line.cli.after_dashes[1], "--json");
    ck_assert_str_eq(line.cli.after_dashes[3], "-x");
    ck_assert_ptr_null(line.cli.after_dashes[4]);
    ck_assert_int_lt(PARSE("load", "m.yaml", "--"), 0);
    ck_assert_int_eq(err.kind, SL_E_USAGE);
}

SL_TEST(a_flag_that_is_the_value_of_another_is_no_flag)
{
    ck_assert_int_eq(PARSE("load", "--listen", "--json", "-"), 0);
    ck_assert(!line.cli.json);
    ck_assert_str_eq(line.cli.settings[0].value, "--json");
    ck_assert_str_eq(line.cli.operands[0], "-");
}

SL_TEST(every_flag_has_one_meaning)
{
    for (const struct sl_command *const *command = sl_commands(); *command; command++) {
        struct sl_flag flags[SL_FLAGS_MAX];
        size_t count = sl_cli_flags(*command, flags);
        ck_assert_uint_lt(count, SL_FLAGS_MAX);
        for (size_t i = 0; i < count; i++) {
            ck_assert_msg(flags[i].row->help && *flags[i].row->help, "--%s has no help",
                          flags[i].name);
            for (size_t j = 0; j < i; j++)
                ck_assert_msg(strcmp(flags[i].name, flags[j].name) != 0 ||
                                  flags[j].group == SL_FLAG_OWN,
                              "%s has --%s twice", (*command)->name, flags[i].name);
        }
    }
}

SL_TEST(every_command_has_its_texts)
{
    for (const struct sl_command *const *command = sl_commands(); *command; command++) {
        ck_assert_ptr_eq(sl_command_find((*command)->name), *command);
        ck_assert_int_eq(strncmp((*command)->usage, "sluice ", 7), 0);
        ck_assert_uint_gt(strlen((*command)->summary), 10);
        ck_assert_msg((*command)->description && strlen((*command)->description) > 40, "%s",
                      (*command)->name);
        ck_assert_msg((*command)->examples && *(*command)->examples, "%s", (*command)->name);
    }
}

SL_TEST(a_line_survives_every_failing_allocation)
{
    const char *const argv[] = {"sluice", "docs", "spec", "--json", NULL};
    const char *const load[] = {"sluice", "load", "m.yaml", "--connections=4", "--set", "a=b",
                                "--",     "x",    NULL};
    const char *const *const lines[] = {argv, load};
    for (size_t i = 0; i < SL_COUNT(lines); i++) {
        sl_alloc_fail_at(0);
        ck_assert_int_eq(parse(lines[i], &err), 0);
        unsigned count = sl_alloc_count();
        for (unsigned nth = 1; nth <= count; nth++) {
            struct sl_err why = SL_ERR_INIT;
            sl_command_line_release(&line);
            sl_alloc_fail_at(nth);
            ck_assert_int_lt(parse(lines[i], &why), 0);
            ck_assert_int_eq(why.kind, SL_E_NO_SPACE);
        }
    }
}

static int write_texts(struct sl_err *why)
{
    sl_autobuf help = SL_BUF_INIT(SL_PAGE_BYTES_MAX), man = SL_BUF_INIT(SL_PAGE_BYTES_MAX);
    sl_autobuf page = SL_BUF_INIT(SL_PAGE_BYTES_MAX), schema = SL_BUF_INIT(SL_PAGE_BYTES_MAX);
    const struct sl_command *load = sl_command_find("load");
    if (sl_cli_write_command_help(load, true, &help, why) < 0 ||
        sl_cli_write_man(load, &man, why) < 0 || sl_cli_write_command_page(load, &page, why) < 0)
        return -1;
    return sl_cli_write_topic("schema", &schema, why);
}

SL_TEST(pages_survive_every_failing_allocation)
{
    ck_assert_int_eq(write_texts(&err), 0);
    unsigned count = sl_alloc_count();
    for (unsigned nth = 1; nth <= count; nth++) {
        struct sl_err why = SL_ERR_INIT;
        sl_alloc_fail_at(nth);
        ck_assert_int_lt(write_texts(&why), 0);
        ck_assert_int_eq(why.kind, SL_E_NO_SPACE);
    }
}

SL_CASE(.setup = setup, .teardown = teardown)
