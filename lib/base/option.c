#include "base/option.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/control.h"

enum { TEXT_LONGEST = 4095, ENVIRONMENT_NAME_MAX = 64 };

/* ---- one value ---- */

static enum eth_hpp_status check_number(const struct eth_hpp_option *option, const char *text,
                                        double *number, struct eth_hpp_error *err)
{
    char *end;
    errno = 0;
    double value = strtod(text, &end);
    bool whole = option->kind == ETH_HPP_OPTION_COUNT;
    /* A count is plain digits: strtod alone would take "0x10", "1e3" and " 7". */
    if (whole && strspn(text, "0123456789") != strlen(text))
        end = (char *)text;
    if (end == text || *end != '\0' || isspace((unsigned char)*text) || !isfinite(value) ||
        value < option->least || value > option->most)
        return eth_hpp_error_set(err, ETH_HPP_ERR_INPUT,
                                 "must be a %snumber %.15g..%.15g, is \"%.64s\"",
                                 whole ? "whole " : "", option->least, option->most, text);
    *number = value;
    return ETH_HPP_OK;
}

static enum eth_hpp_status check_choice(const char *choices, const char *text, double *number,
                                        struct eth_hpp_error *err)
{
    int index = 0;
    for (const char *p = choices; *p != '\0'; index++) {
        size_t length = strcspn(p, "|");
        if (strlen(text) == length && strncmp(p, text, length) == 0) {
            *number = index;
            return ETH_HPP_OK;
        }
        p += length + (p[length] == '|');
    }
    return eth_hpp_error_set(err, ETH_HPP_ERR_INPUT, "must be one of %s, is \"%.64s\"", choices,
                             text);
}

static enum eth_hpp_status check_text(const char *text, struct eth_hpp_error *err)
{
    size_t length = strlen(text);
    if (length == 0 || length > TEXT_LONGEST)
        return eth_hpp_error_set(err, ETH_HPP_ERR_INPUT, "must have 1..%d bytes, has %zu",
                                 TEXT_LONGEST, length);
    for (const char *p = text; *p != '\0'; p++)
        if (eth_hpp_control_bytes(p) != 0)
            return eth_hpp_error_set(err, ETH_HPP_ERR_INPUT, "must not hold control characters");
    return ETH_HPP_OK;
}

static enum eth_hpp_status check_flag(const char *text, double *number, struct eth_hpp_error *err)
{
    enum eth_hpp_status status = check_choice("no|yes|0|1", text, number, err);
    if (status == ETH_HPP_OK)
        *number = (int)*number % 2;
    return status;
}

static enum eth_hpp_status check_value(const struct eth_hpp_option *option, const char *text,
                                       double *number, struct eth_hpp_error *err)
{
    switch (option->kind) {
    case ETH_HPP_OPTION_FLAG:
        return check_flag(text, number, err);
    case ETH_HPP_OPTION_COUNT:
    case ETH_HPP_OPTION_NUMBER:
        return check_number(option, text, number, err);
    case ETH_HPP_OPTION_CHOICE:
        return check_choice(option->choices, text, number, err);
    default:
        return check_text(text, err);
    }
}

enum eth_hpp_status eth_hpp_option_assign(struct eth_hpp_option_set *set, size_t index,
                                          const char *text, enum eth_hpp_option_source source,
                                          struct eth_hpp_error *err)
{
    const struct eth_hpp_option *option = &set->table[index];
    struct eth_hpp_option_value *value = &set->values[index];
    double number = 0;
    if (text == NULL)
        text = option->alone;
    if (text == NULL && option->kind != ETH_HPP_OPTION_FLAG)
        return eth_hpp_error_set(err, ETH_HPP_ERR_INPUT, "needs a value: %s", option->argument);
    if (text == NULL)
        text = "yes";
    enum eth_hpp_status status = check_value(option, text, &number, err);
    if (status != ETH_HPP_OK || source < value->source)
        return status;
    char *copy = strdup(text);
    if (copy == NULL)
        return eth_hpp_error_memory(err, option->name);
    free(value->text);
    *value = (struct eth_hpp_option_value){.text = copy, .number = number, .source = source};
    return ETH_HPP_OK;
}

/* ---- a set of values ---- */

enum eth_hpp_status eth_hpp_option_set_init(struct eth_hpp_option_set *set,
                                            const struct eth_hpp_option *table, size_t count,
                                            struct eth_hpp_error *err)
{
    struct eth_hpp_option_set made = {.count = count};
    enum eth_hpp_status status = ETH_HPP_OK;
    made.table = malloc(count * sizeof(*made.table));
    made.values = calloc(count, sizeof(*made.values));
    if (made.table == NULL || made.values == NULL)
        status = eth_hpp_error_memory(err, "options");
    for (size_t i = 0; i < count && status == ETH_HPP_OK; i++) {
        made.table[i] = table[i].like != NULL ? *table[i].like : table[i];
        if (table[i].help != NULL)
            made.table[i].help = table[i].help;
        if (made.table[i].fallback != NULL)
            status =
                eth_hpp_option_assign(&made, i, made.table[i].fallback, ETH_HPP_FROM_DEFAULT, err);
    }
    if (status == ETH_HPP_OK)
        *set = made;
    else
        eth_hpp_option_set_free(&made);
    return status;
}

void eth_hpp_option_set_free(struct eth_hpp_option_set *set)
{
    for (size_t i = 0; set->values != NULL && i < set->count; i++)
        free(set->values[i].text);
    free(set->values);
    free(set->table);
    *set = (struct eth_hpp_option_set){0};
}

int eth_hpp_option_find(const struct eth_hpp_option_set *set, const char *name)
{
    for (size_t i = 0; i < set->count; i++)
        if (strcmp(set->table[i].name, name) == 0)
            return (int)i;
    return -1;
}

const char *eth_hpp_option_text(const struct eth_hpp_option_set *set, size_t index)
{
    return set->values[index].text;
}

double eth_hpp_option_number(const struct eth_hpp_option_set *set, size_t index)
{
    return set->values[index].number;
}

bool eth_hpp_option_flag(const struct eth_hpp_option_set *set, size_t index)
{
    return set->values[index].number != 0;
}

/* ---- the environment ---- */

void eth_hpp_option_environment_name(const struct eth_hpp_option *option, char *name, size_t size)
{
    snprintf(name, size, "ETH_HPP_%s", option->name);
    for (char *p = name; *p != '\0'; p++)
        *p = *p == '-' ? '_' : (char)toupper((unsigned char)*p);
}

enum eth_hpp_status eth_hpp_option_from_environment(struct eth_hpp_option_set *set,
                                                    struct eth_hpp_error *err)
{
    for (size_t i = 0; i < set->count; i++) {
        char name[ENVIRONMENT_NAME_MAX];
        eth_hpp_option_environment_name(&set->table[i], name, sizeof(name));
        const char *text = getenv(name);
        if (text == NULL || *text == '\0')
            continue;
        enum eth_hpp_status status =
            eth_hpp_option_assign(set, i, text, ETH_HPP_FROM_ENVIRONMENT, err);
        if (status != ETH_HPP_OK) {
            eth_hpp_error_prefix(err, "environment variable %s", name);
            return status;
        }
    }
    return ETH_HPP_OK;
}

/* ---- the command line ---- */

/* Levenshtein distance of short words, to suggest what was meant. */
static size_t distance(const char *a, const char *b)
{
    enum { WORD_MAX = 40 };
    size_t row[WORD_MAX + 1], la = strlen(a), lb = strlen(b);
    if (la > WORD_MAX || lb > WORD_MAX)
        return WORD_MAX;
    for (size_t j = 0; j <= lb; j++)
        row[j] = j;
    for (size_t i = 1; i <= la; i++) {
        size_t diagonal = row[0];
        row[0] = i;
        for (size_t j = 1; j <= lb; j++) {
            size_t replaced = diagonal + (a[i - 1] != b[j - 1]);
            diagonal = row[j];
            size_t shorter = row[j] < row[j - 1] ? row[j] : row[j - 1];
            row[j] = replaced < shorter + 1 ? replaced : shorter + 1;
        }
    }
    return row[lb];
}

static enum eth_hpp_status unknown_option(const struct eth_hpp_option_set *set, const char *name,
                                          struct eth_hpp_error *err)
{
    const char *nearest = NULL;
    size_t best = 4;
    for (size_t i = 0; i < set->count; i++) {
        size_t d = distance(name, set->table[i].name);
        if (d < best) {
            best = d;
            nearest = set->table[i].name;
        }
    }
    if (nearest != NULL)
        return eth_hpp_error_set(err, ETH_HPP_ERR_INPUT,
                                 "unknown option --%.64s; did you mean --%s?", name, nearest);
    return eth_hpp_error_set(err, ETH_HPP_ERR_INPUT, "unknown option --%.64s; --help lists them",
                             name);
}

enum eth_hpp_status eth_hpp_option_parse(struct eth_hpp_option_set *set, int argc, char **argv,
                                         int *rest, bool *help, struct eth_hpp_error *err)
{
    *help = false;
    int i = 0;
    for (; i < argc; i++) {
        const char *word = argv[i];
        if (strcmp(word, "--") == 0) {
            i++;
            break;
        }
        if (word[0] != '-' || word[1] == '\0')
            break;
        if (strcmp(word, "--help") == 0 || strcmp(word, "-h") == 0) {
            *help = true;
            continue;
        }
        if (word[1] != '-')
            return eth_hpp_error_set(err, ETH_HPP_ERR_INPUT,
                                     "unknown option %.64s; --help lists them", word);
        char name[ENVIRONMENT_NAME_MAX];
        const char *equals = strchr(word, '=');
        size_t length = equals != NULL ? (size_t)(equals - word - 2) : strlen(word) - 2;
        snprintf(name, sizeof(name), "%.*s", length > 60 ? 60 : (int)length, word + 2);
        int index = eth_hpp_option_find(set, name);
        if (index < 0)
            return unknown_option(set, name, err);
        const char *text = equals != NULL ? equals + 1 : NULL;
        if (text == NULL && set->table[index].kind != ETH_HPP_OPTION_FLAG &&
            set->table[index].alone == NULL && i + 1 < argc)
            text = argv[++i];
        enum eth_hpp_status status =
            eth_hpp_option_assign(set, (size_t)index, text, ETH_HPP_FROM_OPTION, err);
        if (status != ETH_HPP_OK) {
            eth_hpp_error_prefix(err, "--%s", name);
            return status;
        }
    }
    *rest = i;
    return ETH_HPP_OK;
}

void eth_hpp_option_print(const struct eth_hpp_option_set *set, FILE *out)
{
    for (size_t i = 0; i < set->count; i++) {
        const struct eth_hpp_option *option = &set->table[i];
        char left[64];
        const char *argument = option->argument != NULL ? option->argument : "";
        snprintf(left, sizeof(left), "--%s%s%s%s%s", option->name, option->alone != NULL ? "[" : "",
                 *argument != '\0' ? "=" : "", argument, option->alone != NULL ? "]" : "");
        fprintf(out, "  %-26s %s", left, option->help);
        if (option->fallback != NULL)
            fprintf(out, " (default: %s)", option->fallback);
        fputc('\n', out);
    }
}
