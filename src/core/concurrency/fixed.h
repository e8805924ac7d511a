/*
 * A load that is pinned: what readers.fixed says instead of what a load decides by itself. While a
 * load is pinned nothing of it is decided by a measured time, by the number of processors, by other
 * loads, or by what the process has learned of a host: the same spec and the same objects give the
 * same requests. What is left out has its usual value, a constant or one of the spec and the plan.
 *
 * Its text is `usual`, or pairs such as `connections=8 range-bytes=16MiB`. Any thread; constants.
 */
#ifndef SL_FIXED_H
#define SL_FIXED_H

#include "option.h"

/** A row of sl_fixed_table() each; SL_AUTO_VALUE, or below 0: left out. */
struct sl_fixed {
    bool on; /* else the rest is not looked at */
    uint64_t connections, threads, range_bytes, window_bytes, request_worth, openings, preconnect;
    int hedge;              /* 0: off */
    int decrypt, cast, crc; /* enum sl_fixed_place */
};
enum sl_fixed_place { SL_FIXED_HOST, SL_FIXED_GPU };
enum { SL_FIXED_TEXT_BYTES = 320, SL_FIXED_WINDOW_MIN = 64 * 1024 };

/** The keys; in the text they are in kebab-case. */
extern const struct sl_option_table sl_fixed_table;
/** Of no load: everything is left out. */
struct sl_fixed sl_fixed_none(void);
/** NULL and "" are no pin. SL_E_USAGE says which word is wrong and what may stand there. */
int sl_fixed_parse(const char *text, struct sl_fixed *fixed, struct sl_err *err);
/** Write the pairs for sl_fixed_parse(), without those that are left out. Returns text. */
const char *sl_fixed_print(const struct sl_fixed *fixed, char text[SL_FIXED_TEXT_BYTES]);
/** The value of the pair, or `usual` where it is left out. */
uint64_t sl_fixed_or(uint64_t value, uint64_t usual);

#endif
