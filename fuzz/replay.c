/* Feeds every file of the folders on the command line to a fuzz target, as libFuzzer would. */
#include <dirent.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

static int replay_file(const char *path)
{
    FILE *file = fopen(path, "rb");
    if (!file)
        return -1;
    fseek(file, 0, SEEK_END);
    long bytes = ftell(file);
    rewind(file);
    uint8_t *data = malloc(bytes > 0 ? (size_t)bytes : 1);
    if (data && fread(data, 1, (size_t)bytes, file) == (size_t)bytes)
        LLVMFuzzerTestOneInput(data, (size_t)bytes);
    free(data);
    fclose(file);
    return 0;
}

int main(int argc, char **argv)
{
    int count = 0;
    for (int i = 1; i < argc; i++) {
        DIR *dir = opendir(argv[i]);
        struct dirent *entry;
        while (dir && (entry = readdir(dir))) {
            char path[4096];
            snprintf(path, sizeof(path), "%s/%s", argv[i], entry->d_name);
            if (entry->d_name[0] != '.' && replay_file(path) == 0)
                count++;
        }
        if (dir)
            closedir(dir);
    }
    printf("%d inputs replayed\n", count);
    return count ? 0 : 77;
}
