/* A folder of a fuzzer's own for what is read from files; gone when the process ends. */
#ifndef SL_FUZZ_FOLDER_H
#define SL_FUZZ_FOLDER_H

#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static char fuzz_folder_path[64];
static const char *fuzz_folder_file;

static void fuzz_folder_remove(void)
{
    char path[128];
    snprintf(path, sizeof(path), "%s/%s", fuzz_folder_path, fuzz_folder_file);
    unlink(path);
    rmdir(fuzz_folder_path);
}

/* Descriptor of the folder, in which `name` now holds the bytes. */
static int fuzz_folder_put(const char *name, const uint8_t *head, size_t head_bytes,
                           const uint8_t *data, size_t bytes)
{
    static int folder = -1;
    if (folder < 0) {
        snprintf(fuzz_folder_path, sizeof(fuzz_folder_path), "%s/fuzz-XXXXXX",
                 access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp");
        fuzz_folder_file = name;
        if (!mkdtemp(fuzz_folder_path) ||
            (folder = open(fuzz_folder_path, O_RDONLY | O_DIRECTORY | O_CLOEXEC)) < 0 ||
            atexit(fuzz_folder_remove) != 0)
            abort();
    }
    int fd = openat(folder, name, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (fd < 0 || write(fd, head, head_bytes) != (ssize_t)head_bytes ||
        write(fd, data, bytes) != (ssize_t)bytes)
        abort();
    close(fd);
    return folder;
}

#endif
