/* Each state is made of a whole file of the format: cut, replaced, or without its other part. */
#include "whole_case.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "golden.h"
#include "model_maker.h"
#include "torch_maker.h"

static uint8_t *make_safetensors(size_t *bytes)
{
    return sl_model_safetensors("a,b", 16, bytes);
}

static uint8_t *make_torch(size_t *bytes)
{
    return torch_make(&(struct torch_options){.tensors = 2, .items = 16}, bytes);
}

static uint8_t *make_legacy(size_t *bytes)
{
    return golden_read("pytorch/legacy_0_4.pt", bytes);
}

static uint8_t *make_gguf(size_t *bytes)
{
    return golden_read("gguf/dims.gguf", bytes);
}

static uint8_t *make_tensors(size_t *bytes)
{
    return golden_read("tensorizer/v1-module.tensors.gz", bytes);
}

const struct whole_format whole_formats[WHOLE_FORMATS] = {
    {"model.safetensors",
     {"model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"},
     "model.safetensors.index.json",
     make_safetensors},
    {"pytorch_model.bin",
     {"pytorch_model-00001-of-00002.bin", "pytorch_model-00002-of-00002.bin"},
     "pytorch_model.bin.index.json",
     make_torch},
    {"legacy.pth", {"legacy-00001-of-00002.pth", "legacy-00002-of-00002.pth"}, NULL, make_legacy},
    {"model.gguf", {"model-00001-of-00002.gguf", "model-00002-of-00002.gguf"}, NULL, make_gguf},
    {"model.tensors",
     {"model-00001-of-00002.tensors", "model-00002-of-00002.tensors"},
     NULL,
     make_tensors},
};
const char *const whole_states[STATES] = {"whole",   "cut",  "cut early",    "empty",
                                          "pointer", "page", "part missing", "index stale"};

bool whole_has(const struct whole_format *format, enum whole_state state)
{
    return state != INDEX_STALE || format->index;
}

const char *whole_named(const struct whole_format *format, enum whole_state state)
{
    return state == PART_MISSING  ? format->part[1]
           : state == INDEX_STALE ? format->part[0]
                                  : format->name;
}

void whole_put(const struct whole_format *format, enum whole_state state,
               void (*put)(const char *name, const void *data, size_t bytes, void *arg), void *arg)
{
    static const char pointer[] =
        "version https://git-lfs.github.com/spec/v1\noid sha256:"
        "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\n"
        "size 4976698672\n";
    static const char page[] = "<!DOCTYPE html><html>Sign in</html>";
    bool parts = state == PART_MISSING || state == INDEX_STALE;
    char index[400];
    size_t bytes;
    uint8_t *data = format->make(&bytes);
    const struct {
        const void *data;
        size_t bytes;
    } file = state == EMPTY     ? (__typeof__(file)){"", 0}
             : state == POINTER ? (__typeof__(file)){pointer, sizeof(pointer) - 1}
             : state == PAGE    ? (__typeof__(file)){page, sizeof(page) - 1}
                                : (__typeof__(file)){data, state == CUT         ? bytes - 30
                                                           : state == CUT_EARLY ? 3
                                                                                : bytes};
    put("config.json", "{}", 2, arg);
    put(state == PART_MISSING ? format->part[0] : format->name, file.data, file.bytes, arg);
    if (parts && format->index) {
        snprintf(index, sizeof(index),
                 "{\"metadata\":{},\"weight_map\":{\"a\":\"%s\",\"b\":\"%s\"}}", format->part[0],
                 format->part[1]);
        put(format->index, index, strlen(index), arg);
    }
    free(data);
}
