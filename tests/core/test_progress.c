/* The progress of loads: figures, the list, lines for people, and a terminal that stays whole. */
#include <check.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <pty.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "alloc_fail.h"
#include "claims.h"
#include "log.h"
#include "mem.h"
#include "progress.h"
#include "progress_show.h"
#include "thread.h"

static struct sl_progress *make(const char *name)
{
    struct sl_err err = SL_ERR_INIT;
    struct sl_progress *progress = sl_progress_new(name, "s3://m/x/", "/models", &err);
    ck_assert_ptr_nonnull(progress);
    return progress;
}

static unsigned columns(const char *text)
{
    unsigned count = 0;
    for (; *text; text++) {
        if (*text == '\x1b')
            text = strchr(text, 'm');
        else
            count += ((unsigned char)*text & 0xc0) != 0x80;
    }
    return count;
}

/* ---- figures -------------------------------------------------------------------------------- */

SL_TEST(nothing_is_a_progress_too)
{
    struct sl_progress *progress = make("m");
    struct sl_progress_view before, after;
    sl_progress_set_total(progress, 1000, 7, 2);
    sl_progress_view(progress, &before);
    uint64_t generation = sl_progress_generation();
    sl_progress_set_state(NULL, SL_LOAD_READING);
    sl_progress_set_total(NULL, 1, 1, 1);
    sl_progress_add_bytes(NULL, 1);
    sl_progress_add_resumed(NULL, 1);
    sl_progress_add_fetched(NULL, 1);
    sl_progress_add_verified(NULL, 1);
    sl_progress_add_retry(NULL);
    sl_progress_set_connections(NULL, 1);
    sl_progress_finish(NULL, NULL);
    sl_progress_free(NULL);
    ck_assert_uint_eq(sl_progress_generation(), generation); /* it is nobody's news */
    sl_progress_view(progress, &after);
    ck_assert_uint_eq(after.bytes_total, 1000);
    ck_assert_uint_eq(after.bytes_done, before.bytes_done);
    ck_assert_int_eq(after.state, before.state);
    sl_progress_free(progress);
}

SL_TEST(a_view_shows_what_was_added)
{
    struct sl_progress *progress = make("m");
    struct sl_progress_view view;
    sl_progress_set_state(progress, SL_LOAD_READING);
    sl_progress_set_total(progress, 1000, 7, 2);
    sl_progress_add_resumed(progress, 100);
    sl_progress_add_bytes(progress, 200);
    sl_progress_add_bytes(progress, 50);
    sl_progress_add_fetched(progress, 310);
    sl_progress_add_verified(progress, 250);
    sl_progress_add_retry(progress);
    sl_progress_set_connections(progress, 4);
    sl_progress_view(progress, &view);
    ck_assert_uint_eq(view.bytes_done, 350);
    ck_assert_uint_eq(view.bytes_resumed, 100);
    ck_assert_uint_eq(view.bytes_fetched, 310);
    ck_assert_uint_eq(view.bytes_verified, 250);
    ck_assert_uint_eq(view.retries, 1);
    ck_assert_uint_eq(view.connections, 4);
    ck_assert_uint_eq(sl_progress_percent(&view), 35);
    ck_assert(view.bytes_per_second > 0 && view.bytes_per_second <= 250 / 0.2);
    ck_assert(view.seconds_left > 0);
    sl_progress_free(progress);
}

SL_TEST(an_end_is_final_and_carries_its_error)
{
    struct sl_progress *progress = make("m");
    struct sl_progress_view view;
    struct sl_err err = SL_ERR_INIT;
    sl_fail(&err, SL_E_INTEGRITY, "crc of 'w'");
    uint64_t before = sl_progress_generation();
    sl_progress_finish(progress, &err);
    ck_assert_uint_ne(sl_progress_generation(), before);
    sl_progress_set_state(progress, SL_LOAD_READING);
    sl_progress_finish(progress, NULL);
    sl_progress_view(progress, &view);
    ck_assert_int_eq(view.state, SL_LOAD_FAILED);
    ck_assert_int_eq(view.err.kind, SL_E_INTEGRITY);
    ck_assert(view.seconds_left == 0);
    sl_progress_free(progress);
}

static void note(const struct sl_progress_view *view, void *arg)
{
    char *names = arg;
    size_t used = strlen(names);
    snprintf(names + used, 128 - used, "%.8s ", view->name);
}

SL_TEST(the_list_is_walked_oldest_first_without_those_freed)
{
    char names[128] = "";
    struct sl_progress *a = make("a"), *b = make("b"), *c = make("c");
    sl_progress_free(b);
    struct sl_progress *d = make("d");
    sl_progress_each(note, names);
    ck_assert_str_eq(names, "a c d ");
    sl_progress_free(d);
    struct sl_progress *e = make("e");
    sl_progress_free(a);
    names[0] = 0;
    sl_progress_each(note, names);
    ck_assert_str_eq(names, "c e ");
    sl_progress_free(c);
    sl_progress_free(e);
}

SL_TEST(long_names_are_cut_where_a_character_ends)
{
    char name[80];
    struct sl_progress_view view;
    memset(name, 'x', 62);
    memcpy(name + 62, "é", 3);
    struct sl_progress *progress = make(name);
    sl_progress_view(progress, &view);
    ck_assert_uint_eq(strlen(view.name), 62);
    sl_progress_free(progress);
}

static struct sl_counter walking_ends;

static void ignore(const struct sl_progress_view *view, void *arg)
{
    (void)view;
    (void)arg;
}

static void *walk(void *arg)
{
    while (!sl_counter_get(&walking_ends))
        sl_progress_each(ignore, arg);
    return NULL;
}

static void *churn(void *arg)
{
    for (int i = 0; i < 300; i++) {
        struct sl_progress *progress = make("churn");
        sl_progress_set_total(progress, 1000, 1, 1);
        sl_progress_set_state(progress, SL_LOAD_READING);
        for (int j = 0; j < 10; j++)
            sl_progress_add_bytes(progress, 100);
        sl_progress_finish(progress, NULL);
        sl_progress_free(progress);
    }
    return arg;
}

SL_TEST(loads_come_and_go_while_others_look)
{
    pthread_t walkers[2], churners[4];
    for (int i = 0; i < 2; i++)
        ck_assert_int_eq(pthread_create(&walkers[i], NULL, walk, NULL), 0);
    for (int i = 0; i < 4; i++)
        ck_assert_int_eq(pthread_create(&churners[i], NULL, churn, NULL), 0);
    for (int i = 0; i < 4; i++)
        pthread_join(churners[i], NULL);
    sl_counter_add(&walking_ends, 1);
    for (int i = 0; i < 2; i++)
        pthread_join(walkers[i], NULL);
}

SL_TEST(the_json_of_a_load_parses)
{
    struct sl_progress *progress = make("m\"\n\xff");
    struct sl_progress_view view;
    struct sl_err err = SL_ERR_INIT;
    struct sl_json json;
    sl_progress_view(progress, &view);
    sl_json_init(&json, 8192);
    sl_progress_json(&json, &view);
    const char *text = sl_json_text(&json, &err);
    ck_assert_ptr_nonnull(text);
    json_t *parsed = sl_json_parse(text, strlen(text), "progress", &err);
    ck_assert_ptr_nonnull(parsed);
    ck_assert_str_eq(sl_json_get_string(parsed, "state"), "queued");
    ck_assert(json_is_null(json_object_get(parsed, "seconds_left")));
    ck_assert(json_is_null(json_object_get(parsed, "error")));
    json_decref(parsed);
    sl_json_release(&json);
    sl_progress_free(progress);
}

/* ---- lines ---------------------------------------------------------------------------------- */

static const struct sl_progress_view reading = {
    .name = "gpt-j-6b",
    .state = SL_LOAD_READING,
    .bytes_total = 3ull << 30,
    .bytes_done = 3ull << 29,
    .bytes_per_second = 512.0 * (1 << 20),
    .seconds_left = 3,
    .retries = 2,
};

SL_TEST(a_bar_says_name_part_rate_and_time_left)
{
    const struct sl_progress_style style = {.width = 100};
    char text[SL_PROGRESS_LINE_BYTES];
    sl_progress_bar_line(&reading, &style, text);
    ck_assert_ptr_nonnull(strstr(text, "gpt-j-6b ["));
    ck_assert_ptr_nonnull(strstr(text, "#."));
    ck_assert_ptr_nonnull(strstr(text, " 50%  1.50/3.00 GiB  512 MiB/s  3.0 s left  2 retries"));
}

SL_TEST(a_bar_never_outgrows_its_terminal)
{
    char text[SL_PROGRESS_LINE_BYTES];
    struct sl_progress_view view = reading;
    memset(view.name, 'n', sizeof(view.name) - 1);
    view.bytes_total = UINT64_MAX;
    view.bytes_done = UINT64_MAX / 2;
    view.retries = UINT64_MAX;
    view.seconds_left = 1e18;
    for (int state = SL_LOAD_QUEUED; state < SL_LOAD_PUBLISHED; state++)
        for (unsigned width = 1; width < 400; width++)
            for (unsigned kind = 0; kind < 4; kind++) {
                const struct sl_progress_style style = {width, kind & 1, kind & 2};
                view.state = (enum sl_load_state)state;
                sl_progress_bar_line(&view, &style, text);
                ck_assert_uint_le(columns(text), (width < 20 ? 20 : width) - 1);
            }
}

static void expect_bar(const char *name, const struct sl_progress_style *style, const char *begin)
{
    char text[SL_PROGRESS_LINE_BYTES];
    struct sl_progress_view view = reading;
    snprintf(view.name, sizeof(view.name), "%s", name);
    sl_progress_bar_line(&view, style, text);
    ck_assert_msg(strncmp(text, begin, strlen(begin)) == 0, "%s", text);
}

SL_TEST(a_long_name_ends_in_an_ellipsis)
{
    const struct sl_progress_style plain = {.width = 100}, utf8 = {.width = 100, .utf8 = true};
    expect_bar("a-name-of-exactly-28-columns", &plain, "a-name-of-exactly-28-columns [");
    expect_bar("a-name-of-more-than-28-columns", &plain, "a-name-of-more-than-28-col.. [");
    expect_bar("a-name-of-more-than-28-columns", &utf8, "a-name-of-more-than-28-colu… ▕");
    expect_bar("ééééééééééééééééééééééééééééé", &utf8, "ééééééééééééééééééééééééééé… ▕");
}

SL_TEST(lines_that_are_shown_together_are_aligned)
{
    char text[SL_PROGRESS_LINE_BYTES], other[SL_PROGRESS_LINE_BYTES];
    struct sl_progress_style style = {.width = 120};
    struct sl_progress_view longer = reading;
    snprintf(longer.name, sizeof(longer.name), "a-longer-name");
    longer.seconds_left = 3700;
    sl_progress_bar_columns(&reading, &style);
    sl_progress_bar_columns(&longer, &style);
    sl_progress_bar_line(&reading, &style, text);
    sl_progress_bar_line(&longer, &style, other);
    ck_assert_int_eq(strchr(text, '[') - text, strchr(other, '[') - other);
    ck_assert_int_eq(strchr(text, ']') - text, strchr(other, ']') - other);
    expect_bar("m", &style, "m             [");
}

SL_TEST(a_hostile_name_cannot_move_the_cursor)
{
    char text[SL_PROGRESS_LINE_BYTES];
    struct sl_progress_view view = reading;
    snprintf(view.name, sizeof(view.name), "a\x1b[2J\nb\xff");
    const struct sl_progress_style style = {.width = 100, .utf8 = true};
    sl_progress_bar_line(&view, &style, text);
    ck_assert_ptr_null(strchr(text, '\x1b'));
    ck_assert_ptr_null(strchr(text, '\n'));
    ck_assert_ptr_null(strchr(text, '\xff'));
    ck_assert_ptr_nonnull(strstr(text, "a?[2J?b?"));
}

SL_TEST(color_is_only_there_when_asked_for)
{
    char text[SL_PROGRESS_LINE_BYTES];
    struct sl_progress_style style = {.width = 100, .utf8 = true};
    sl_progress_bar_line(&reading, &style, text);
    ck_assert_ptr_null(strchr(text, '\x1b'));
    style.color = true;
    sl_progress_bar_line(&reading, &style, text);
    ck_assert_ptr_nonnull(strstr(text, "\x1b[0m"));
}

SL_TEST(a_line_for_the_log_is_a_sentence)
{
    char text[SL_PROGRESS_LINE_BYTES];
    struct sl_progress_view view = reading;
    sl_progress_text_line(&view, text);
    ck_assert_str_eq(text,
                     "gpt-j-6b: reading, 50% (1.50 of 3.00 GiB), 512 MiB/s, 3.0 s left, 2 retried");
    view.state = SL_LOAD_PLANNING;
    sl_progress_text_line(&view, text);
    ck_assert_str_eq(text, "gpt-j-6b: planning");
}

static void expect_line(const struct sl_progress_view *view, const char *bar, const char *log)
{
    const struct sl_progress_style style = {.width = 100};
    char text[SL_PROGRESS_LINE_BYTES];
    sl_progress_bar_line(view, &style, text);
    ck_assert_str_eq(text, bar);
    sl_progress_text_line(view, text);
    ck_assert_str_eq(text, log);
}

SL_TEST(what_has_not_begun_is_queued)
{
    struct sl_progress_view view = {.name = "m"};
    expect_line(&view, "m queued", "m: queued");
    view.state = SL_LOAD_WAITING;
    expect_line(&view, "m waiting for another load of this directory", "m: waiting");
}

SL_TEST(why_it_is_tried_again_is_said_until_bytes_come)
{
    struct sl_progress *progress = sl_progress_new("m", "", "", NULL);
    struct sl_progress_view view;
    struct sl_err why = SL_ERR_INIT;
    sl_fail(&why, SL_E_NET, "cannot connect to 'h': connection refused; check the name");
    sl_progress_set_state(progress, SL_LOAD_PLANNING);
    sl_progress_note_retry(progress, 3, 8, &why, false);
    sl_progress_view(progress, &view);
    ck_assert_uint_eq(view.retries, 1);
    expect_line(&view, "m planning, try 3 of 8: cannot connect to 'h': connection refused",
                "m: planning, try 3 of 8: cannot connect to 'h': connection refused");
    view.trouble_logged = true;
    expect_line(&view, "m planning, try 3 of 8: cannot connect to 'h': connection refused",
                "m: planning, try 3 of 8");
    sl_progress_note_retry(progress, 9, 8, &why, false); /* by time alone */
    sl_progress_view(progress, &view);
    ck_assert_str_eq(view.trouble, "try 9: cannot connect to 'h': connection refused");
    sl_progress_add_fetched(progress, 1);
    sl_progress_view(progress, &view);
    ck_assert_str_eq(view.trouble, "");
    sl_progress_free(progress);
}

SL_TEST(durations_read_like_durations)
{
    char text[32];
    ck_assert_str_eq(sl_progress_duration(-1, text), "");
    ck_assert_str_eq(sl_progress_duration(0.04, text), "0.0 s");
    ck_assert_str_eq(sl_progress_duration(59.9, text), "59 s");
    ck_assert_str_eq(sl_progress_duration(200, text), "3 min 20 s");
    ck_assert_str_eq(sl_progress_duration(7500, text), "2 h 5 min");
    ck_assert_str_eq(sl_progress_duration(1e300, text), "100000 h 0 min");
    ck_assert_str_eq(sl_progress_duration(0.0 / 0.0, text), "");
}

SL_TEST(hundred_percent_means_all)
{
    struct sl_progress_view view = {.bytes_total = 1000000, .bytes_done = 999999};
    ck_assert_uint_eq(sl_progress_percent(&view), 99);
    view.bytes_done = 1000001;
    ck_assert_uint_eq(sl_progress_percent(&view), 100);
    view = (struct sl_progress_view){.state = SL_LOAD_PUBLISHED};
    ck_assert_uint_eq(sl_progress_percent(&view), 100);
}

/* ---- showing -------------------------------------------------------------------------------- */

/* stderr of the (forked) test becomes `to`; what arrives at `from` until it has `text` in it. */
static void read_until(int from, const char *text, char *all, size_t capacity)
{
    size_t used = strlen(all);
    while (!strstr(all, text)) {
        struct pollfd wait = {from, POLLIN, 0};
        ck_assert_msg(poll(&wait, 1, 60000) == 1, "'%s' never came, but '%s'", text, all);
        ssize_t got = read(from, all + used, capacity - used - 1);
        ck_assert_int_gt(got, 0);
        used += (size_t)got;
        all[used] = 0;
    }
}

SL_TEST(a_terminal_gets_a_bar_that_steps_aside_for_log_lines)
{
    int master, slave;
    struct sl_err err = SL_ERR_INIT;
    struct winsize size = {.ws_row = 24, .ws_col = 90};
    sl_autofree char *all = calloc(1, 1 << 20);
    ck_assert_int_eq(openpty(&master, &slave, NULL, NULL, &size), 0);
    ck_assert_int_eq(dup2(slave, STDERR_FILENO), STDERR_FILENO);
    setenv("TERM", "xterm", 1);
    setenv("NO_COLOR", "1", 1);
    setenv("LC_ALL", "C", 1);
    struct sl_progress *progress = make("m");
    sl_progress_set_total(progress, 100, 1, 1);
    sl_progress_set_state(progress, SL_LOAD_READING);
    sl_progress_add_bytes(progress, 50);
    ck_assert_int_eq(sl_progress_show_start(SL_PROGRESS_AUTO, &err), 0);
    read_until(master, "50/100 bytes", all, 1 << 20);
    sl_log(SL_LOG_WARN, "a line between");
    read_until(master, "\x1b[1A\x1b[Jsluice: warning: a line between\r\nm [", all, 1 << 20);
    ck_assert_ptr_null(strstr(all, "\x1b[36m"));
    all[0] = 0;
    sl_progress_finish(progress, NULL);
    read_until(master, "\r\x1b[1A\x1b[J", all, 1 << 20); /* its command says the rest, once */
    sl_progress_show_stop();
    sl_log(SL_LOG_WARN, "after the end");
    read_until(master, "\x1b[Jsluice: warning: after the end\r\n", all, 1 << 20);
    ck_assert_ptr_null(strstr(all, "published"));
    sl_progress_free(progress);
}

SL_TEST_LOOP(an_end_is_one_line_and_in_the_json_log_with_figures, 0, 2)
{
    int ends[2];
    struct sl_err err = SL_ERR_INIT;
    sl_autofree char *all = calloc(1, 65536);
    ck_assert_int_eq(pipe(ends), 0);
    ck_assert_int_eq(dup2(ends[1], STDERR_FILENO), STDERR_FILENO);
    sl_log_setup(SL_LOG_INFO, _i);
    struct sl_progress *progress = make("m");
    ck_assert_int_eq(sl_progress_show_start(SL_PROGRESS_AUTO, &err), 0);
    sl_progress_finish(progress, NULL);
    sl_progress_show_stop();
    sl_progress_say(progress, "its command's line");
    read_until(ends[0], "\n", all, 65536);
    if (_i) {
        *strchr(all, '\n') = 0;
        json_t *line = sl_json_parse(all, strlen(all), "line", &err);
        ck_assert_ptr_nonnull(line);
        json_t *said = json_object_get(line, "progress");
        ck_assert_str_eq(sl_json_get_string(said, "state"), "published");
        ck_assert_str_eq(sl_json_get_string(line, "message"), "its command's line");
        json_decref(line);
    } else {
        ck_assert_str_eq(all, "sluice: its command's line\n");
    }
    sl_progress_free(progress);
}

SL_TEST(loads_and_log_lines_of_many_threads_share_the_terminal)
{
    struct sl_err err = SL_ERR_INIT;
    pthread_t threads[3];
    int fd = open("/dev/null", O_WRONLY);
    ck_assert_int_eq(dup2(fd, STDERR_FILENO), STDERR_FILENO);
    ck_assert_int_eq(sl_progress_show_start(SL_PROGRESS_BAR, &err), 0);
    for (int i = 0; i < 3; i++)
        ck_assert_int_eq(pthread_create(&threads[i], NULL, churn, NULL), 0);
    for (int i = 0; i < 300; i++)
        sl_log(SL_LOG_WARN, "line %d", i);
    for (int i = 0; i < 3; i++)
        pthread_join(threads[i], NULL);
    sl_progress_show_stop();
}

SL_TEST(a_failing_allocation_shows_nothing_and_says_so)
{
    struct sl_err err = SL_ERR_INIT;
    sl_alloc_fail_at(1);
    ck_assert_ptr_null(sl_progress_new("m", "u", "p", &err));
    sl_alloc_fail_at(1);
    ck_assert_int_eq(sl_progress_show_start(SL_PROGRESS_LINES, &err), -1);
    sl_alloc_fail_at(0);
    ck_assert_int_eq(err.kind, SL_E_NO_SPACE);
    sl_progress_show_stop();
}
