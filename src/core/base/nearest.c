/*
 * "Did you mean": edit distance in which a swap of neighbours counts as one mistake (optimal string
 * alignment), since swaps are what people type. Three rows of the table are enough; words are
 * capped, so the work is too.
 */
#include <ctype.h>
#include <string.h>

#include "mem.h"
#include "option.h"

enum { WORD_BYTES_MAX = 64 };

static unsigned least(unsigned a, unsigned b, unsigned c)
{
    return SL_MIN(SL_MIN(a, b), c);
}

/* Case and the difference between - and _ are no mistakes. */
static int fold(char c)
{
    return c == '_' ? '-' : tolower((unsigned char)c);
}

static unsigned distance(const char *a, size_t a_length, const char *b, size_t b_length)
{
    unsigned rows[3][WORD_BYTES_MAX + 1];
    unsigned *before = rows[0], *above = rows[1], *row = rows[2];
    for (unsigned j = 0; j <= b_length; j++)
        above[j] = j;
    for (unsigned i = 1; i <= a_length; i++) {
        row[0] = i;
        for (unsigned j = 1; j <= b_length; j++) {
            bool same = fold(a[i - 1]) == fold(b[j - 1]);
            row[j] = least(above[j] + 1, row[j - 1] + 1, above[j - 1] + !same);
            if (i > 1 && j > 1 && fold(a[i - 1]) == fold(b[j - 2]) &&
                fold(a[i - 2]) == fold(b[j - 1]))
                row[j] = SL_MIN(row[j], before[j - 2] + 1);
        }
        unsigned *spare = before;
        before = above;
        above = row;
        row = spare;
    }
    return above[b_length];
}

const char *sl_nearest(const char *word, const char *const *candidates, size_t count)
{
    size_t length = strlen(word);
    const char *nearest = NULL;
    unsigned best =
        (unsigned)length / 3 + 1; /* a third of the letters may be wrong, and one more */
    if (length == 0 || length > WORD_BYTES_MAX)
        return NULL;
    if (length < 3)
        best = 1;
    for (size_t i = 0; i < count; i++) {
        size_t other = strlen(candidates[i]);
        if (other > WORD_BYTES_MAX)
            continue;
        unsigned edits = distance(word, length, candidates[i], other);
        if (edits <= best && edits < SL_MAX(length, other)) {
            if (edits == best && nearest)
                continue;
            best = edits;
            nearest = candidates[i];
        }
    }
    return nearest;
}
