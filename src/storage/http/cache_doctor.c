/*
 * One connection to the cache, a second one for the question of two at once, one to the origin. The
 * range is the last of the object, so that its block is short, and up to its end, so that the cache
 * has the block whole when the answer has ended.
 *
 * Two at once: of one block that nobody has, a request with every right is sent, and before it is
 * answered one that the origin refuses. A cache with a lock lets the second one wait, and has the
 * bytes for it then; one without asks the origin. When it hears of the two is not known: so that is
 * done several times.
 */
#include "cache_doctor.h"

#include <inttypes.h>
#include <string.h>
#include <strings.h>
#include <sys/random.h>
#include <time.h>

#include "http_channel.h"
#include "http_range.h"
#include "http_through.h"

enum {
    LAST_BYTES = 64 * 1024, /* of the last block, at most */
    FIRST_BYTES = 16,       /* of another block */
    BODY_BYTES_MAX = 2 * LAST_BYTES,
    ROUNDS = 6,   /* of two at once, … */
    ENOUGH = 3,   /* … until so many said the same */
    GAP_PART = 4, /* the second one is sent after this part of what an answer takes, … */
    GAP_NS_MAX = 2 * 1000 * 1000, /* … at most */
    KEPT_TRIES = 4,
    KEPT_PAUSE_MS = 100,
    NAME_TEXT = 65,
};

enum rights { RIGHT, NO_CREDENTIALS, NO_OBJECT };

static const char *const texts[] = {
#define CACHE_LACK(id, text) text,
#include "cache_lacks.def"
#undef CACHE_LACK
};

const char *sl_cache_lack_text(enum sl_cache_lack lack)
{
    return (unsigned)lack < SL_COUNT(texts) ? texts[lack] : "";
}

bool sl_cache_doctor_can(const struct sl_source *source)
{
    return source->store->transport == &sl_http_transport && !source->in_order;
}

struct asking {
    struct sl_source *source;
    const char *via;
    struct sl_exchange *origin, *cache, *second;
    uint64_t block_bytes, begin, end; /* of the object: the range that is asked for mostly */
    enum rights refused;              /* by the origin; RIGHT: it refuses nothing */
    char name[NAME_TEXT];             /* the version that most questions are about */
    struct sl_answer right;           /* of the origin, to that range */
    uint64_t answer_ns;               /* how long the cache takes for what it must fetch */
    struct sl_cache_findings *findings;
};

struct question {
    const char *method, *name; /* name NULL: the header is left out */
    enum rights rights;
    uint64_t begin, end;
};

/* ---- one question ---------------------------------------------------------------------------- */

static int new_name(char name[NAME_TEXT], struct sl_err *err)
{
    uint8_t random[32];
    if (getrandom(random, sizeof(random), 0) != (ssize_t)sizeof(random))
        return sl_fail(err, SL_E_INTERNAL, "the machine gives no random numbers");
    sl_hex(random, sizeof(random), name);
    return 0;
}

static void drop_credentials(struct sl_range_request *request)
{
    unsigned kept = 0;
    for (unsigned i = 0; i < request->header_count; i++) {
        char *header = request->headers[i];
        if (strncasecmp(header, "Authorization:", 14) == 0 ||
            strncasecmp(header, "Cookie:", 7) == 0)
            free(header);
        else
            request->headers[kept++] = header;
    }
    request->header_count = kept;
}

/* The same URL, of an object that is not there. */
static int move_object(struct sl_range_request *request, struct sl_err *err)
{
    size_t path = strcspn(request->url, "?#");
    char *moved =
        sl_asprintf(err, "%.*s.sluice-doctor%s", (int)path, request->url, request->url + path);
    if (!moved)
        return -1;
    free(request->url);
    request->url = moved;
    return 0;
}

static int fill(const struct asking *asking, const struct question *question,
                struct sl_range_request *request, struct sl_err *err)
{
    const struct sl_http_hooks *hooks = asking->source->store->kind->hooks;
    uint64_t at = asking->source->piece_at;
    if (hooks->prepare(asking->source, request, err) < 0)
        return -1;
    if (request->waits)
        return sl_fail(err, SL_E_NET, "the store takes no requests now: try again");
    if (question->rights == NO_CREDENTIALS)
        drop_credentials(request);
    if (question->rights == NO_OBJECT && move_object(request, err) < 0)
        return -1;
    if (question->name &&
        sl_range_add_header(request, err, SL_HTTP_THROUGH_KEY ": %s", question->name) < 0)
        return -1;
    if (sl_range_add_header(request, err, "X-Forwarded-Proto: %s",
                            strncasecmp(request->url, "https:", 6) == 0 ? "https" : "http") < 0)
        return -1;
    return sl_range_add_header(request, err, "Range: bytes=%" PRIu64 "-%" PRIu64,
                               at + question->begin, at + question->end - 1);
}

static int send_filled(const struct asking *asking, struct sl_exchange *exchange,
                       const struct question *question, struct sl_range_request *request,
                       struct sl_err *err)
{
    request->headers[request->header_count] = NULL;
    const struct sl_request sent = {.method = question->method,
                                    .url = request->url,
                                    .headers = (const char *const *)request->headers,
                                    .via = exchange == asking->origin ? NULL : asking->via};
    return sl_exchange_start(exchange, &sent, err);
}

static int start(const struct asking *asking, struct sl_exchange *exchange,
                 const struct question *question, struct sl_err *err)
{
    struct sl_range_request request = {0};
    int done = fill(asking, question, &request, err);
    if (done == 0)
        done = send_filled(asking, exchange, question, &request, err);
    sl_range_request_release(&request);
    return done;
}

/* The answer to be released in any case. What is longer than what was asked for is not read. */
static int ask(const struct asking *asking, struct sl_exchange *exchange,
               const struct question *question, struct sl_answer *answer, struct sl_err *err)
{
    sl_answer_release(answer);
    *answer = (struct sl_answer){.body = SL_BUF_INIT(BODY_BYTES_MAX)};
    if (start(asking, exchange, question, err) < 0)
        return -1;
    struct sl_err why = SL_ERR_INIT;
    if (sl_exchange_answer(exchange, BODY_BYTES_MAX, answer, &why) == 0)
        return 0;
    int status = sl_exchange_status(exchange);
    sl_exchange_abort(exchange);
    if (status && why.kind != SL_E_CANCELED) { /* its body is too long, or broke off */
        answer->status = status;
        answer->body.used = 0;
        return 0;
    }
    *err = why;
    return -1;
}

/* ---- what an answer is ----------------------------------------------------------------------- */

/* 409: Azure, where nobody may read without credentials. */
static bool is_refusal(const struct sl_answer *answer)
{
    static const int statuses[] = {400, 401, 403, 404, 409};
    for (size_t i = 0; i < SL_COUNT(statuses); i++)
        if (answer->status == statuses[i])
            return true;
    return false;
}

static bool is_range(const struct asking *asking, const struct sl_answer *answer, uint64_t begin,
                     uint64_t end)
{
    char text[128];
    uint64_t a, b, total, at = asking->source->piece_at;
    bool known;
    return answer->status == 206 && sl_answer_header(answer, "Content-Range", text, sizeof(text)) &&
           sl_content_range_parse(text, false, &a, &b, &total, &known) && a == at + begin &&
           b + 1 == at + end && answer->body.used == end - begin;
}

static bool is_right(const struct asking *asking, const struct sl_answer *answer)
{
    return is_range(asking, answer, asking->begin, asking->end) &&
           memcmp(answer->body.data, asking->right.body.data, answer->body.used) == 0;
}

static struct question question_of(const struct asking *asking, enum rights rights,
                                   const char *name)
{
    return (struct question){.method = "GET",
                             .name = name,
                             .rights = rights,
                             .begin = asking->begin,
                             .end = asking->end};
}

static void note(struct asking *asking, enum sl_cache_lack lack)
{
    asking->findings->lacks[lack] = true;
}

/* ---- the origin ------------------------------------------------------------------------------ */

/* What is right, and what the origin refuses. */
static int ask_origin(struct asking *asking, struct sl_err *err)
{
    struct question question = question_of(asking, RIGHT, NULL);
    struct sl_answer answer = {0};
    if (ask(asking, asking->origin, &question, &asking->right, err) < 0)
        return -1;
    if (!is_range(asking, &asking->right, asking->begin, asking->end))
        return sl_http_fail(err, asking->right.status, NULL, "the store does not give a range", "");
    int done = 0;
    for (enum rights rights = NO_CREDENTIALS;
         done == 0 && asking->refused == RIGHT && rights <= NO_OBJECT; rights++) {
        question.rights = rights;
        done = ask(asking, asking->origin, &question, &answer, err);
        if (done == 0 && is_refusal(&answer))
            asking->refused = rights;
    }
    sl_answer_release(&answer);
    asking->findings->open = asking->refused == RIGHT;
    return done;
}

/* ---- the cache ------------------------------------------------------------------------------- */

/* Does it give what the origin gives? 1: yes; 0: noted what else. */
static int ask_right(struct asking *asking, const char *name, struct sl_err *err)
{
    const struct question question = question_of(asking, RIGHT, name);
    struct sl_answer answer = {0};
    int done = ask(asking, asking->cache, &question, &answer, err);
    bool right = done == 0 && is_right(asking, &answer);
    if (done == 0 && !right) {
        asking->findings->status = answer.status;
        note(asking, answer.status == 200   ? SL_CACHE_LACK_WHOLE
                     : answer.status == 206 ? is_range(asking, &answer, asking->begin, asking->end)
                                                  ? SL_CACHE_LACK_WRONG
                                                  : SL_CACHE_LACK_RANGE
                     : answer.status >= 500 ? SL_CACHE_LACK_UPSTREAM
                                            : SL_CACHE_LACK_REFUSES);
    }
    sl_answer_release(&answer);
    return done < 0 ? -1 : right;
}

/* The status of what it says to one whom the origin refuses: 206 is out of its own store. -1. */
static int ask_blind(struct asking *asking, struct sl_exchange *exchange, const char *name,
                     uint64_t begin, uint64_t end, struct sl_err *err)
{
    struct question question = question_of(asking, asking->refused, name);
    struct sl_answer answer = {0};
    question.begin = begin;
    question.end = end;
    int done = ask(asking, exchange, &question, &answer, err);
    int status = is_refusal(&answer) ? 403 : is_range(asking, &answer, begin, end) ? 206 : 500;
    sl_answer_release(&answer);
    return done < 0 ? -1 : status;
}

/* 1: what it gave is in its store; 0: it is not. */
static int is_kept(struct asking *asking, struct sl_err *err)
{
    for (unsigned i = 0; i < KEPT_TRIES; i++) {
        int status =
            ask_blind(asking, asking->cache, asking->name, asking->begin, asking->end, err);
        if (status < 0 || status == 206)
            return status < 0 ? -1 : 1;
        if (i + 1 < KEPT_TRIES && sl_exchange_pause(asking->cache, KEPT_PAUSE_MS, err) < 0)
            return -1;
    }
    note(asking, SL_CACHE_LACK_NOT_KEPT);
    return 0;
}

/* The block before the one that it has: another slice. */
static int ask_other_block(struct asking *asking, struct sl_err *err)
{
    uint64_t block = (asking->source->piece_at + asking->end - 1) / asking->block_bytes;
    uint64_t first = asking->source->piece_at / asking->block_bytes;
    if (block == first)
        return 0;
    uint64_t end = block * asking->block_bytes - asking->source->piece_at;
    int status = ask_blind(asking, asking->cache, asking->name,
                           end - SL_MIN((uint64_t)FIRST_BYTES, end), end, err);
    if (status == 206)
        note(asking, SL_CACHE_LACK_NOT_SLICED);
    else if (status != 403 && status >= 0)
        note(asking, SL_CACHE_LACK_KEY_RANGE);
    return status < 0 ? -1 : 0;
}

static int ask_other_version(struct asking *asking, struct sl_err *err)
{
    char name[NAME_TEXT];
    if (new_name(name, err) < 0)
        return -1;
    int status = ask_blind(asking, asking->second, name, asking->begin, asking->end, err);
    if (status == 206)
        note(asking, SL_CACHE_LACK_KEY_VERSION);
    return status < 0 ? -1 : 0;
}

/* Whoever may read it asks without a version, and then whoever may not. Where versions are not in
 * the key the answer is known, and would only leave more behind. */
static int ask_without_version(struct asking *asking, struct sl_err *err)
{
    int status = ask_blind(asking, asking->cache, NULL, asking->begin, asking->end, err);
    if (status == 403 && !asking->findings->lacks[SL_CACHE_LACK_KEY_VERSION]) {
        uint64_t began_ns = sl_now_ns();
        int right = ask_right(asking, NULL, err);
        if (right <= 0)
            return right;
        asking->answer_ns = sl_now_ns() - began_ns;
        status = ask_blind(asking, asking->cache, NULL, asking->begin, asking->end, err);
    }
    if (status == 206)
        note(asking, SL_CACHE_LACK_UNPINNED);
    return status < 0 ? -1 : 0;
}

/* Both are on their way at once. DATA: the first was answered before it was certain that the cache
 * had the second. */
static enum sl_io_state send_two(struct asking *asking, const struct question *first,
                                 const struct question *second, struct sl_err *err)
{
    struct sl_range_request one = {0}, two = {0};
    uint64_t gap = SL_MIN(asking->answer_ns / GAP_PART, (uint64_t)GAP_NS_MAX);
    const struct timespec between = {.tv_nsec = (long)gap};
    enum sl_io_state state = SL_IO_FAILED;
    if (fill(asking, first, &one, err) == 0 && fill(asking, second, &two, err) == 0 &&
        send_filled(asking, asking->cache, first, &one, err) == 0)
        state = sl_exchange_head(asking->cache, err);
    if (state != SL_IO_FAILED) {
        nanosleep(&between, NULL);
        if (send_filled(asking, asking->second, second, &two, err) < 0 ||
            sl_exchange_head(asking->second, err) == SL_IO_FAILED)
            state = SL_IO_FAILED;
        else
            state = sl_exchange_head(asking->cache, err);
    }
    sl_range_request_release(&one);
    sl_range_request_release(&two);
    return state;
}

/* 1: the second one was let wait; 0: it was not; 2: the first was answered too soon to tell. */
static int ask_two(struct asking *asking, struct sl_err *err)
{
    char name[NAME_TEXT];
    struct sl_answer first = {.body = SL_BUF_INIT(BODY_BYTES_MAX)},
                     second = {.body = SL_BUF_INIT(BODY_BYTES_MAX)};
    if (new_name(name, err) < 0)
        return -1;
    const struct question right = question_of(asking, RIGHT, name),
                          blind = question_of(asking, asking->refused, name);
    enum sl_io_state sent = send_two(asking, &right, &blind, err);
    int done = sent == SL_IO_FAILED ? -1 : 0;
    if (done == 0)
        done = sl_exchange_answer(asking->second, BODY_BYTES_MAX, &second, err);
    bool served = done == 0 && is_range(asking, &second, asking->begin, asking->end);
    if (done == 0)
        done = sl_exchange_answer(asking->cache, BODY_BYTES_MAX, &first, err);
    sl_answer_release(&first);
    sl_answer_release(&second);
    if (done < 0)
        return -1;
    return served ? sent == SL_IO_DATA ? 2 : 1 : 0;
}

static int ask_many(struct asking *asking, struct sl_err *err)
{
    unsigned of[3] = {0};
    for (unsigned i = 0; i < ROUNDS && of[0] < ENOUGH && of[1] < ENOUGH; i++) {
        int two = ask_two(asking, err);
        if (two < 0)
            return -1;
        of[two]++;
    }
    if (of[0] > of[1])
        note(asking, SL_CACHE_LACK_NO_LOCK);
    return 0;
}

/* A signature is of GET: the origin refuses it for HEAD. */
static int ask_head(struct asking *asking, struct sl_err *err)
{
    struct question question = question_of(asking, RIGHT, NULL);
    struct sl_answer answer = {0};
    question.method = "HEAD";
    int done = ask(asking, asking->origin, &question, &answer, err);
    if (done == 0 && is_refusal(&answer)) {
        done = ask(asking, asking->cache, &question, &answer, err);
        if (done == 0 && answer.status < 300)
            note(asking, SL_CACHE_LACK_HEAD);
    }
    sl_answer_release(&answer);
    return done;
}

static int ask_all(struct asking *asking, struct sl_err *err)
{
    if (ask_origin(asking, err) < 0 || new_name(asking->name, err) < 0)
        return -1;
    int right = ask_right(asking, asking->name, err);
    if (right <= 0 || asking->refused == RIGHT)
        return SL_MIN(right, 0);
    if (ask_head(asking, err) < 0)
        return -1;
    int kept = is_kept(asking, err);
    if (kept <= 0)
        return kept;
    return ask_other_block(asking, err) < 0 || ask_other_version(asking, err) < 0 ||
                   ask_without_version(asking, err) < 0 || ask_many(asking, err) < 0
               ? -1
               : 0;
}

/* ---- the whole ------------------------------------------------------------------------------- */

int sl_cache_doctor(struct sl_source *source, const char *via, uint64_t block_bytes,
                    struct sl_cache_findings *findings, struct sl_err *err)
{
    struct sl_connect connect = sl_store_connect(source->store);
    SL_AUTO(sl_exchange) origin = sl_exchange_new(&connect, err);
    SL_AUTO(sl_exchange) cache = sl_exchange_new(&connect, err);
    SL_AUTO(sl_exchange) second = sl_exchange_new(&connect, err);
    uint64_t last = (source->piece_at + source->bytes - 1) / block_bytes * block_bytes;
    uint64_t begin = last > source->piece_at ? last - source->piece_at : 0;
    struct asking asking = {
        .source = source,
        .via = via,
        .origin = origin,
        .cache = cache,
        .second = second,
        .block_bytes = block_bytes,
        .begin = SL_MAX(begin, source->bytes - SL_MIN(source->bytes, (uint64_t)LAST_BYTES)),
        .end = source->bytes,
        .findings = findings,
    };
    *findings = (struct sl_cache_findings){.status = 0};
    if (!origin || !cache || !second)
        return -1;
    findings->hidden = !sl_http_through_may_see_source(source, via);
    int done = findings->hidden ? 0 : ask_all(&asking, err);
    sl_answer_release(&asking.right);
    return done;
}
