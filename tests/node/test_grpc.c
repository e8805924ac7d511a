/*
 * Calls of gRPC as usual clients make them, and every answer that the protocol has for what is
 * wrong with one.
 */
#include <stdio.h>
#include <string.h>

#include "await.h"
#include "claims.h"
#include "grpc_case.h"
#include "grpc_client.h"
#include "grpc_words.h"
#include "nghttp2/nghttp2.h"

static struct grpc_client *client;

static void open_all(void)
{
    grpc_case_open();
    client = grpc_client_open(grpc_case.socket);
}

static void close_all(void)
{
    grpc_client_close(client);
    grpc_case_close();
}

SL_CASE(.setup = open_all, .teardown = close_all)

static struct grpc_wish wish_of(const char *path, const char *message)
{
    return (struct grpc_wish){.path = path, .message = message, .bytes = strlen(message)};
}

static void check_echo(const char *path, const char *message)
{
    const struct grpc_wish request = wish_of(path, message);
    struct grpc_answer *answer = grpc_client_call(client, &request);
    ck_assert_int_eq(answer->http_status, 200);
    ck_assert_int_eq(answer->code, 0);
    ck_assert_uint_eq(answer->header_frames, 2);
    ck_assert_str_eq(answer->content_type, "application/grpc");
    ck_assert_uint_eq(answer->body.used, 5 + strlen(message));
    ck_assert_int_eq(answer->body.data[0], 0);
    ck_assert_int_eq((uint8_t)answer->body.data[4], (int)strlen(message));
    ck_assert_str_eq(answer->body.data + 5, message);
}

static void check_code(const struct grpc_wish *request, int code)
{
    struct grpc_answer *answer = grpc_client_call(client, request);
    ck_assert_int_eq(answer->http_status, 200);
    ck_assert_int_eq(answer->code, code);
    ck_assert_uint_eq(answer->header_frames, 1);
    ck_assert_uint_eq(answer->reset, 0);
    check_echo(GRPC_FAST, "the connection goes on");
}

SL_TEST(a_message_comes_back)
{
    for (int i = 0; i < 3; i++) {
        check_echo(GRPC_FAST, "fast");
        check_echo(GRPC_ECHO, "by a worker");
    }
}

SL_TEST(an_empty_message_is_five_bytes)
{
    check_echo(GRPC_FAST, "");
    check_echo(GRPC_ECHO, "");
}

SL_TEST(streams_of_a_connection_are_answered_each_for_itself)
{
    int32_t ids[50];
    char text[50][8];
    for (int i = 0; i < 50; i++) {
        snprintf(text[i], sizeof(text[i]), "n%d", i);
        const struct grpc_wish request = wish_of(i % 2 ? GRPC_ECHO : GRPC_FAST, text[i]);
        ids[i] = grpc_client_begin(client, &request);
    }
    for (int i = 49; i >= 0; i--) {
        ck_assert(grpc_client_await(client, ids[i]));
        ck_assert_str_eq(grpc_client_answer(client, ids[i])->body.data + 5, text[i]);
    }
}

SL_TEST(four_mebibytes_are_taken_and_a_byte_more_is_reset)
{
    sl_autofree char *message = sl_alloc(SL_GRPC_REQUEST_BYTES + 1, NULL);
    struct grpc_wish request = {
        .path = GRPC_SIZE, .message = message, .bytes = SL_GRPC_REQUEST_BYTES};
    struct grpc_answer *answer = grpc_client_call(client, &request);
    ck_assert_int_eq(answer->code, 0);
    ck_assert_str_eq(answer->body.data + 5, "4194304");
    request.bytes++;
    ck_assert_uint_eq(grpc_client_call(client, &request)->reset, NGHTTP2_ENHANCE_YOUR_CALM);
    request.path = "/test.Play/None";
    ck_assert_uint_eq(grpc_client_call(client, &request)->reset, NGHTTP2_ENHANCE_YOUR_CALM);
    check_echo(GRPC_FAST, "the connection goes on");
}

SL_TEST(a_claimed_length_beyond_the_limit_is_reset_at_once)
{
    const struct grpc_wish request = {
        .path = GRPC_ECHO, .body = "\0\0\x40\0\1", .body_bytes = 5, .open = true};
    int32_t id = grpc_client_begin(client, &request);
    ck_assert(grpc_client_await(client, id));
    ck_assert_uint_eq(grpc_client_answer(client, id)->reset, NGHTTP2_ENHANCE_YOUR_CALM);
}

SL_TEST(an_answer_that_is_too_large_is_an_error)
{
    sl_autofree char *message = sl_alloc(SL_GRPC_RESPONSE_BYTES + 1, NULL);
    const struct grpc_wish request = {
        .path = GRPC_ECHO, .message = message, .bytes = SL_GRPC_RESPONSE_BYTES + 1};
    check_code(&request, SL_GRPC_RESOURCE_EXHAUSTED);
}

SL_TEST(errors_are_trailers_alone_with_an_escaped_message)
{
    const struct grpc_wish request = wish_of(GRPC_FAIL, "\x0a\xe2\x9c\x97 100%\n");
    struct grpc_answer *answer = grpc_client_call(client, &request);
    ck_assert_int_eq(answer->code, 10);
    ck_assert_int_eq(answer->http_status, 200);
    ck_assert_uint_eq(answer->header_frames, 1);
    ck_assert_uint_eq(answer->body.used, 0);
    ck_assert_str_eq(answer->content_type, "application/grpc");
    ck_assert_str_eq(answer->text, "%E2%9C%97 100%25%0A");
}

SL_TEST(a_long_message_is_cut_between_two_characters)
{
    char text[SL_GRPC_TEXT_BYTES] = "", escaped[SL_GRPC_ESCAPED_BYTES];
    for (size_t i = 0; i + 3 < sizeof(text); i += 3)
        memcpy(text + i, "\xe2\x9c\x97", 3);
    size_t bytes = sl_grpc_escape(text, escaped);
    ck_assert_uint_lt(bytes, 1024);
    ck_assert_uint_gt(bytes, 1000);
    ck_assert_uint_eq(bytes, strlen(escaped));
    ck_assert_str_eq(escaped + bytes - 12, "%E2%9C%97...");
    ck_assert_uint_eq((bytes - 3) % 9, 0);
    sl_grpc_escape("a\xff\xe2\x9c", escaped);
    ck_assert_str_eq(escaped, "a???");
}

SL_TEST(timeouts_are_what_the_protocol_says)
{
    static const struct {
        const char *text;
        uint64_t ns;
    } right[] = {{"1n", 1},
                 {"119997m", 119997 * SL_NS_PER_MS},
                 {"7u", 7000},
                 {"2S", 2 * SL_NS_PER_S},
                 {"3M", 180 * SL_NS_PER_S},
                 {"1H", 3600 * SL_NS_PER_S},
                 {"0m", 0},
                 {"99999999H", UINT64_MAX}};
    static const char *const wrong[] = {"",           "1",  "m",   "-1m", "1.5S",
                                        "123456789m", "1s", "1 m", "1mm"};
    uint64_t ns;
    for (size_t i = 0; i < SL_COUNT(right); i++) {
        ck_assert(sl_grpc_timeout_parse(right[i].text, strlen(right[i].text), &ns));
        ck_assert_uint_eq(ns, right[i].ns);
    }
    for (size_t i = 0; i < SL_COUNT(wrong); i++) {
        struct grpc_wish request = wish_of(GRPC_ECHO, "x");
        ck_assert(!sl_grpc_timeout_parse(wrong[i], strlen(wrong[i]), &ns));
        if (!*(request.timeout = wrong[i]))
            continue;
        check_code(&request, SL_GRPC_INVALID_ARGUMENT);
    }
}

SL_TEST(content_types_and_methods_of_http_are_judged)
{
    static const char *const right[] = {"application/grpc", "application/grpc+proto",
                                        "application/grpc;charset=utf-8",
                                        "application/grpc+proto; a=b"};
    static const char *const wrong[] = {"", "application/json", "application/grpc+json",
                                        "application/grpc-web", "application/grp"};
    struct grpc_wish request = wish_of(GRPC_FAST, "x");
    for (size_t i = 0; i < SL_COUNT(right); i++) {
        request.content_type = right[i];
        ck_assert_int_eq(grpc_client_call(client, &request)->code, 0);
    }
    for (size_t i = 0; i < SL_COUNT(wrong); i++) {
        request.content_type = wrong[i];
        ck_assert_int_eq(grpc_client_call(client, &request)->http_status, 415);
    }
    request.content_type = NULL;
    request.method = "GET";
    ck_assert_int_eq(grpc_client_call(client, &request)->http_status, 405);
    request.method = "post";
    ck_assert_int_eq(grpc_client_call(client, &request)->http_status, 405);
    check_echo(GRPC_FAST, "the connection goes on");
}

SL_TEST(methods_that_are_not_there_and_compressed_messages_are_unimplemented)
{
    struct grpc_wish request = wish_of("/test.play/fast", "x");
    check_code(&request, SL_GRPC_UNIMPLEMENTED);
    request.path = "/";
    check_code(&request, SL_GRPC_UNIMPLEMENTED);
    const struct grpc_wish compressed = {.path = GRPC_ECHO, .body = "\1\0\0\0\1x", .body_bytes = 6};
    check_code(&compressed, SL_GRPC_UNIMPLEMENTED);
}

SL_TEST(a_call_has_one_whole_message)
{
    static const struct grpc_wish wrong[] = {
        {.path = GRPC_ECHO, .body = "", .body_bytes = 0},
        {.path = GRPC_ECHO, .body = "\0\0\0\0", .body_bytes = 4},
        {.path = GRPC_ECHO, .body = "\0\0\0\0\2x", .body_bytes = 6},
        {.path = GRPC_ECHO, .body = "\0\0\0\0\1xy", .body_bytes = 7},
        {.path = GRPC_ECHO, .body = "\0\0\0\0\1x\0\0\0\0\1y", .body_bytes = 12},
    };
    for (size_t i = 0; i < SL_COUNT(wrong); i++)
        check_code(&wrong[i], SL_GRPC_INVALID_ARGUMENT);
}

SL_TEST(any_authority_is_fine)
{
    static const char *const all[] = {"localhost", "%2Frun%2Fcsi.sock", "/run/csi.sock", ""};
    for (size_t i = 0; i < SL_COUNT(all); i++) {
        struct grpc_wish request = wish_of(GRPC_FAST, "x");
        request.authority = all[i];
        ck_assert_int_eq(grpc_client_call(client, &request)->code, 0);
    }
}

SL_TEST(fast_methods_answer_while_all_workers_are_busy)
{
    const struct grpc_wish held = wish_of(GRPC_HOLD, "x");
    int32_t ids[20];
    for (int i = 0; i < 20; i++)
        ids[i] = grpc_client_begin(client, &held);
    SL_AWAIT((grpc_client_step(client, 0), sl_counter_get(&grpc_case.holding) == 4), "four calls");
    check_echo(GRPC_FAST, "meanwhile");
    grpc_case_release();
    for (int i = 0; i < 20; i++) {
        grpc_client_await(client, ids[i]);
        ck_assert_int_eq(grpc_client_answer(client, ids[i])->code, 0);
    }
}

SL_TEST(a_method_with_a_limit_leaves_workers_to_others)
{
    const struct grpc_wish held = wish_of(GRPC_PAIR, "x");
    int32_t ids[10];
    for (int i = 0; i < 10; i++)
        ids[i] = grpc_client_begin(client, &held);
    SL_AWAIT((grpc_client_step(client, 0), sl_counter_get(&grpc_case.pairs) == 2), "two calls");
    check_echo(GRPC_ECHO, "by a worker");
    ck_assert_uint_eq(sl_counter_get(&grpc_case.pairs), 2);
    grpc_case_release();
    for (int i = 0; i < 10; i++) {
        grpc_client_await(client, ids[i]);
        ck_assert_int_eq(grpc_client_answer(client, ids[i])->code, 0);
    }
}

SL_TEST(a_reset_cancels_that_call_alone)
{
    const struct grpc_wish held = wish_of(GRPC_HOLD, "x");
    int32_t first = grpc_client_begin(client, &held), second = grpc_client_begin(client, &held);
    SL_AWAIT((grpc_client_step(client, 0), sl_counter_get(&grpc_case.holding) == 2), "two calls");
    grpc_client_reset(client, first, NGHTTP2_CANCEL);
    SL_AWAIT(sl_counter_get(&grpc_case.left) == 1, "the cancel of one");
    grpc_case_release();
    grpc_client_await(client, second);
    ck_assert_int_eq(grpc_client_answer(client, second)->code, 0);
    ck_assert_uint_eq(sl_counter_get(&grpc_case.left), 1);
}

SL_TEST(a_connection_that_closes_cancels_its_calls)
{
    const struct grpc_wish held = wish_of(GRPC_HOLD, "x");
    struct grpc_client *other = grpc_client_open(grpc_case.socket);
    for (int i = 0; i < 6; i++) /* two of them wait for a worker */
        grpc_client_begin(other, &held);
    SL_AWAIT((grpc_client_step(other, 0), sl_counter_get(&grpc_case.holding) == 4), "four calls");
    grpc_client_close(other);
    SL_AWAIT(sl_counter_get(&grpc_case.left) == 4, "their cancel");
    check_echo(GRPC_ECHO, "others go on");
    ck_assert_uint_eq(sl_counter_get(&grpc_case.holding), 4);
}
