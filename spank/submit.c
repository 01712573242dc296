/* What srun, sbatch and salloc check, in the user's own process, before anything is submitted. */
#include "spank/plugin.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/log.h"
#include "model/model.h"

static bool is_config_file(const char *text)
{
    size_t length = strlen(text);
    return text[0] != '-' && length > 5 && strcmp(text + length - 5, ".json") == 0;
}

/* `srun --eth-hpp gpt2 ./train` would run a command called gpt2. Returns the word, or NULL. */
static const char *misplaced_model(const char *words, size_t size)
{
    for (const char *word = words; word < words + size; word += strlen(word) + 1) {
        if (strcmp(word, "--eth-hpp") != 0)
            continue;
        const char *next = word + strlen(word) + 1;
        if (next < words + size && (eth_hpp_preset_find(next) != NULL || is_config_file(next)))
            return next;
        return NULL;
    }
    return NULL;
}

/* The options are known here without the words around them, so the command line is looked at again;
 * a longer one than this is cut. */
static enum eth_hpp_status check_equals_sign(struct eth_hpp_error *err)
{
    char words[16384];
    enum eth_hpp_status status = ETH_HPP_OK;
    FILE *file = fopen("/proc/self/cmdline", "re");
    if (file == NULL)
        return ETH_HPP_OK;
    size_t size = fread(words, 1, sizeof(words) - 1, file);
    fclose(file);
    words[size] = '\0';
    const char *word = misplaced_model(words, size);
    if (word != NULL)
        status = eth_hpp_error_set(err, ETH_HPP_ERR_INPUT,
                                   "--eth-hpp takes its model after \"=\": write --eth-hpp=%.200s",
                                   word);
    return status;
}

static enum eth_hpp_status check_readable(const char *option, const char *path,
                                          struct eth_hpp_error *err)
{
    struct stat info;
    if (path == NULL)
        return ETH_HPP_OK;
    if (stat(path, &info) != 0 || access(path, R_OK) != 0)
        return eth_hpp_error_set(err, ETH_HPP_ERR_INPUT, "%s: cannot read %.200s: %m", option,
                                 path);
    if (!S_ISREG(info.st_mode))
        return eth_hpp_error_set(err, ETH_HPP_ERR_INPUT, "%s: %.200s is not a file", option, path);
    return ETH_HPP_OK;
}

static enum eth_hpp_status check_model(const struct eth_hpp_option_set *job,
                                       struct eth_hpp_error *err)
{
    struct eth_hpp_model found;
    const char *model = eth_hpp_option_text(job, ETH_HPP_JOB_MODEL);
    if (model == NULL)
        return eth_hpp_error_set(err, ETH_HPP_ERR_INPUT,
                                 "--eth-hpp needs a model: --eth-hpp=MODEL with a preset (%s) or a "
                                 "config.json; or set ETH_HPP_MODEL",
                                 eth_hpp_preset_names());
    enum eth_hpp_status status = eth_hpp_model_find(model, &found, err);
    if (status != ETH_HPP_OK)
        eth_hpp_error_prefix(err, "--eth-hpp");
    return status;
}

/* Options that were typed and say the same thing twice; a default or a variable is just unused. */
static enum eth_hpp_status check_contradictions(const struct eth_hpp_option_set *job,
                                                struct eth_hpp_error *err)
{
    static const struct {
        enum eth_hpp_job_option first, second;
        const char *why;
    } pairs[] = {
        {ETH_HPP_JOB_PLAN, ETH_HPP_JOB_GLOBAL_BATCH, "the plan says the global batch"},
        {ETH_HPP_JOB_PLAN, ETH_HPP_JOB_SEQ, "the plan says the sequence length"},
    };
    for (size_t i = 0; i < sizeof(pairs) / sizeof(pairs[0]); i++)
        if (job->values[pairs[i].first].source == ETH_HPP_FROM_OPTION &&
            job->values[pairs[i].second].source == ETH_HPP_FROM_OPTION)
            return eth_hpp_error_set(
                err, ETH_HPP_ERR_INPUT, "--eth-hpp-%s and --eth-hpp-%s contradict each other: %s",
                job->table[pairs[i].first].name, job->table[pairs[i].second].name, pairs[i].why);
    if (job->values[ETH_HPP_JOB_PROFILE].source == ETH_HPP_FROM_OPTION &&
        job->values[ETH_HPP_JOB_CALIBRATE].source == ETH_HPP_FROM_OPTION &&
        strcmp(job->values[ETH_HPP_JOB_CALIBRATE].text, "yes") == 0)
        return eth_hpp_error_set(err, ETH_HPP_ERR_INPUT,
                                 "--eth-hpp-profile and --eth-hpp-calibrate=yes contradict each "
                                 "other: times are either read or measured");
    return ETH_HPP_OK;
}

static enum eth_hpp_status check_job(struct eth_hpp_plugin *plugin, struct eth_hpp_error *err)
{
    struct eth_hpp_option_set *job = &plugin->job;
    if (!plugin->asked)
        return eth_hpp_error_set(err, ETH_HPP_ERR_INPUT,
                                 "--eth-hpp-%s does nothing without --eth-hpp",
                                 job->table[plugin->first_other].name);
    enum eth_hpp_status status = eth_hpp_option_from_environment(job, err);
    if (status == ETH_HPP_OK && job->values[ETH_HPP_JOB_MODEL].source != ETH_HPP_FROM_OPTION)
        status = check_equals_sign(err);
    if (status == ETH_HPP_OK)
        status = check_model(job, err);
    if (status == ETH_HPP_OK)
        status = check_contradictions(job, err);
    if (status == ETH_HPP_OK)
        status = check_readable("--eth-hpp-plan", eth_hpp_option_text(job, ETH_HPP_JOB_PLAN), err);
    if (status == ETH_HPP_OK)
        status =
            check_readable("--eth-hpp-profile", eth_hpp_option_text(job, ETH_HPP_JOB_PROFILE), err);
    return status;
}

int eth_hpp_submit_check(struct eth_hpp_plugin *plugin)
{
    struct eth_hpp_error err;
    if (!plugin->asked && plugin->first_other < 0)
        return 0;
    if (plugin->error.status == ETH_HPP_OK && check_job(plugin, &err) == ETH_HPP_OK)
        return 0;
    eth_hpp_log_error("%s", plugin->error.status != ETH_HPP_OK ? plugin->error.text : err.text);
    return -1;
}
