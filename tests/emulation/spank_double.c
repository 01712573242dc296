#include "tests/emulation/spank_double.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

struct spank_double spank_double;

static int find_variable(const char *name)
{
    for (int i = 0; i < spank_double.variable_count; i++)
        if (strcmp(spank_double.variables[i].name, name) == 0)
            return i;
    return -1;
}

int spank_double_give(const char *name, const char *argument)
{
    for (int i = 0; i < spank_double.option_count; i++) {
        struct spank_option *option = &spank_double.options[i];
        if (strcmp(option->name, name) == 0)
            return option->cb(option->val, argument, spank_double.context == S_CTX_REMOTE);
    }
    return -1;
}

const char *spank_double_variable(const char *name)
{
    int i = find_variable(name);
    return i < 0 ? NULL : spank_double.variables[i].value;
}

spank_context_t spank_context(void)
{
    return spank_double.context;
}

spank_err_t spank_option_register(spank_t spank, struct spank_option *option)
{
    (void)spank;
    if (spank_double.register_result == ESPANK_SUCCESS)
        spank_double.options[spank_double.option_count++] = *option;
    return spank_double.register_result;
}

spank_err_t spank_option_getopt(spank_t spank, struct spank_option *option, char **argument)
{
    (void)spank, (void)option, (void)argument;
    return ESPANK_ERROR;
}

spank_err_t spank_get_item(spank_t spank, spank_item_t item, ...)
{
    va_list args;
    spank_err_t status = ESPANK_SUCCESS;
    (void)spank;
    va_start(args, item);
    if (item == S_JOB_ID)
        *va_arg(args, uint32_t *) = spank_double.job;
    else if (item == S_JOB_STEPID)
        *va_arg(args, uint32_t *) = spank_double.step;
    else if (item == S_TASK_GLOBAL_ID)
        *va_arg(args, uint32_t *) = spank_double.rank;
    else if (item == S_TASK_ID)
        *va_arg(args, int *) = 0;
    else if (item == S_TASK_EXIT_STATUS)
        *va_arg(args, int *) = spank_double.exit_status;
    else if (item == S_JOB_ARGV) {
        *va_arg(args, int *) = spank_double.argc;
        *va_arg(args, char ***) = spank_double.argv;
    } else
        status = ESPANK_BAD_ARG;
    va_end(args);
    return status;
}

spank_err_t spank_getenv(spank_t spank, const char *name, char *to, int size)
{
    const char *value = spank_double_variable(name);
    (void)spank;
    if (value == NULL)
        return ESPANK_ENV_NOEXIST;
    return snprintf(to, (size_t)size, "%s", value) < size ? ESPANK_SUCCESS : ESPANK_NOSPACE;
}

spank_err_t spank_setenv(spank_t spank, const char *name, const char *value, int overwrite)
{
    int i = find_variable(name);
    (void)spank;
    if (i >= 0 && !overwrite)
        return ESPANK_ENV_EXISTS;
    if (i < 0)
        i = spank_double.variable_count++;
    snprintf(spank_double.variables[i].name, sizeof(spank_double.variables[i].name), "%s", name);
    snprintf(spank_double.variables[i].value, sizeof(spank_double.variables[i].value), "%s", value);
    return ESPANK_SUCCESS;
}

spank_err_t spank_unsetenv(spank_t spank, const char *name)
{
    int i = find_variable(name);
    (void)spank;
    if (i >= 0)
        spank_double.variables[i] = spank_double.variables[--spank_double.variable_count];
    return ESPANK_SUCCESS;
}

const char *spank_strerror(spank_err_t status)
{
    return status == ESPANK_SUCCESS ? "success" : "an emulated error";
}

static void append_line(char *log, size_t size, const char *format, va_list args)
{
    size_t used = strlen(log);
    vsnprintf(log + used, size - used, format, args);
    strncat(log, "\n", size - strlen(log) - 1);
}

void slurm_spank_log(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    append_line(spank_double.log, sizeof(spank_double.log), format, args);
    va_end(args);
}

void slurm_error(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    append_line(spank_double.daemon_log, sizeof(spank_double.daemon_log), format, args);
    va_end(args);
}

void slurm_info(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    append_line(spank_double.daemon_log, sizeof(spank_double.daemon_log), format, args);
    va_end(args);
}
