/* The commands, as commands.def has them. */
#include <string.h>

#include "cli.h"

static const struct sl_command *const commands[] = {
#define SL_COMMAND(name) &sl_cmd_##name,
#include "commands.def"
#undef SL_COMMAND
    NULL,
};

const struct sl_command *const *sl_commands(void)
{
    return commands;
}

const struct sl_command *sl_command_find(const char *name)
{
    for (const struct sl_command *const *command = commands; *command; command++)
        if (strcmp((*command)->name, name) == 0)
            return *command;
    return NULL;
}
