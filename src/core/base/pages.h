/*
 * What the pages of a directory's files are: a tmpfs in huge pages is filled for a fraction of the
 * processor time that one in 4 KiB pages takes (huge= of tmpfs(5)). Any thread; the mounts are
 * read.
 */
#ifndef SL_PAGES_H
#define SL_PAGES_H

enum sl_pages {
    SL_PAGES_NONE, /* a disk, or something that cannot be looked at */
    SL_PAGES_SMALL,
    SL_PAGES_HUGE, /* the mount asks for them (huge=always, within_size or advise) */
};

/** directory_fd may be one of O_PATH. */
enum sl_pages sl_pages_of(int directory_fd);
/** "disk", "tmpfs with 4 KiB pages", "tmpfs with huge pages". */
const char *sl_pages_text(enum sl_pages pages);
/** The same of a path, or of what is there above it; "" if nothing can be opened. Constants, both.
 */
const char *sl_pages_of_path(const char *path);

#endif
