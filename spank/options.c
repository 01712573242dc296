#include "spank/plugin.h"

#include <stdio.h>
#include <string.h>

static const struct eth_hpp_option site_options[ETH_HPP_SITE_OPTIONS] = {
    [ETH_HPP_SITE_ENABLED] = {.name = "enabled",
                              .kind = ETH_HPP_OPTION_CHOICE,
                              .argument = "yes|no",
                              .choices = "yes|no",
                              .help = "no switches eth-hpp off",
                              .fallback = "yes"},
    [ETH_HPP_SITE_INVENTORY] = {.name = "inventory",
                                .kind = ETH_HPP_OPTION_CHOICE,
                                .argument = "asked|always",
                                .choices = "asked|always",
                                .help = "whose nodes' inventories are taken at allocation",
                                .fallback = "asked"},
    [ETH_HPP_SITE_LAUNCHER] = {.name = "launcher",
                               .kind = ETH_HPP_OPTION_FILE,
                               .argument = "FILE",
                               .help = "the eth-hpp program on the nodes",
                               .fallback = ETH_HPP_LAUNCHER},
    [ETH_HPP_SITE_FILE] = {.name = "site-file",
                           .kind = ETH_HPP_OPTION_FILE,
                           .argument = "FILE",
                           .help = "what the nodes have, where the administrator states it"},
    [ETH_HPP_SITE_TIMEOUT] = {.name = "timeout",
                              .kind = ETH_HPP_OPTION_COUNT,
                              .argument = "SECONDS",
                              .help = "how long a node's inventory may take",
                              .least = 1,
                              .most = 60,
                              .fallback = "10"},
};

enum { NAME_MAX_BYTES = 40 };
static char names[ETH_HPP_JOB_OPTIONS][NAME_MAX_BYTES];
static struct spank_option spank_forms[ETH_HPP_JOB_OPTIONS];

static void keep_error(struct eth_hpp_plugin *plugin, const struct eth_hpp_error *err)
{
    if (plugin->error.status == ETH_HPP_OK)
        plugin->error = *err;
}

/* "site_file=/etc/x" and "site-file=/etc/x" are the same key. */
static void take_site_word(struct eth_hpp_plugin *plugin, const char *word)
{
    struct eth_hpp_error err;
    char name[NAME_MAX_BYTES];
    size_t length = strcspn(word, "=");
    struct eth_hpp_option_set *set = &plugin->site;
    int index = -1;
    if (word[length] == '=' && length < sizeof(name)) {
        snprintf(name, sizeof(name), "%.*s", (int)length, word);
        for (char *p = name; *p != '\0'; p++)
            if (*p == '_')
                *p = '-';
        index = eth_hpp_option_find(set, name);
        if (index < 0) {
            set = &plugin->job;
            index = eth_hpp_option_find(set, name);
        }
    }
    if (index < 0) {
        eth_hpp_error_set(&err, ETH_HPP_ERR_INPUT,
                          "plugstack.conf: \"%.64s\" is no KEY=VALUE that is known", word);
        keep_error(plugin, &err);
        return;
    }
    const char *text = word + length + 1;
    enum eth_hpp_status status =
        eth_hpp_option_assign(set, (size_t)index, text, ETH_HPP_FROM_PLUGSTACK, &err);
    if (status == ETH_HPP_OK && set == &plugin->site &&
        set->table[index].kind == ETH_HPP_OPTION_FILE && text[0] != '/')
        status = eth_hpp_error_set(&err, ETH_HPP_ERR_INPUT, "must be an absolute path");
    if (status != ETH_HPP_OK) {
        eth_hpp_error_prefix(&err, "plugstack.conf: %.*s", (int)length, word);
        keep_error(plugin, &err);
    }
}

bool eth_hpp_plugin_switched_off(const struct eth_hpp_plugin *plugin)
{
    return plugin->site.values != NULL &&
           strcmp(eth_hpp_option_text(&plugin->site, ETH_HPP_SITE_ENABLED), "no") == 0;
}

void eth_hpp_plugin_open(struct eth_hpp_plugin *plugin, int argc, char **argv)
{
    struct eth_hpp_error off;
    *plugin = (struct eth_hpp_plugin){.first_other = -1};
    if (eth_hpp_option_set_init(&plugin->site, site_options, ETH_HPP_SITE_OPTIONS,
                                &plugin->error) != ETH_HPP_OK ||
        eth_hpp_option_set_init(&plugin->job, eth_hpp_job_options, ETH_HPP_JOB_OPTIONS,
                                &plugin->error) != ETH_HPP_OK)
        return;
    for (int i = 0; i < argc; i++)
        take_site_word(plugin, argv[i]);
    eth_hpp_error_set(&off, ETH_HPP_ERR_UNSUPPORTED,
                      "switched off by enabled=no in plugstack.conf");
    if (eth_hpp_plugin_switched_off(plugin))
        keep_error(plugin, &off);
}

void eth_hpp_plugin_close(struct eth_hpp_plugin *plugin)
{
    eth_hpp_option_set_free(&plugin->site);
    eth_hpp_option_set_free(&plugin->job);
}

/* --eth-hpp takes its model only after "=", as every option with an optional argument. */
static void make_form(int index, spank_opt_cb_f callback)
{
    const struct eth_hpp_option *option = &eth_hpp_job_options[index];
    if (index == ETH_HPP_JOB_MODEL)
        snprintf(names[index], sizeof(names[index]), "eth-hpp");
    else
        snprintf(names[index], sizeof(names[index]), "eth-hpp-%s", option->name);
    spank_forms[index] = (struct spank_option){
        .name = names[index],
        .arginfo = (char *)option->argument,
        .usage = (char *)option->help,
        .has_arg = index == ETH_HPP_JOB_MODEL ? 2 : option->kind != ETH_HPP_OPTION_FLAG,
        .val = index,
        .cb = callback,
    };
}

int eth_hpp_plugin_register(spank_t spank, spank_opt_cb_f callback)
{
    for (int i = 0; i < ETH_HPP_JOB_OPTIONS; i++) {
        make_form(i, callback);
        spank_err_t status = spank_option_register(spank, &spank_forms[i]);
        if (status != ESPANK_SUCCESS) {
            slurm_error("eth-hpp: cannot register --%s: %s", names[i], spank_strerror(status));
            return status;
        }
    }
    return ESPANK_SUCCESS;
}

struct spank_option *eth_hpp_plugin_option(enum eth_hpp_job_option index)
{
    if (spank_forms[index].name == NULL)
        make_form((int)index, NULL);
    return &spank_forms[index];
}

int eth_hpp_plugin_take(struct eth_hpp_plugin *plugin, int index, const char *text)
{
    struct eth_hpp_error err;
    /* On its way to slurmstepd "no argument" becomes an empty one. */
    if (text != NULL && text[0] == '\0' &&
        (index == ETH_HPP_JOB_MODEL || eth_hpp_job_options[index].kind == ETH_HPP_OPTION_FLAG))
        text = NULL;
    if (index == ETH_HPP_JOB_MODEL)
        plugin->asked = true;
    else if (plugin->first_other < 0)
        plugin->first_other = index;
    if (plugin->job.values == NULL)
        return -1; /* out of memory, which is kept */
    if (index == ETH_HPP_JOB_MODEL && text == NULL)
        return 0;
    if (eth_hpp_option_assign(&plugin->job, (size_t)index, text, ETH_HPP_FROM_OPTION, &err) ==
        ETH_HPP_OK)
        return 0;
    eth_hpp_error_prefix(&err, "--%s", names[index]);
    plugin->error_is_users = plugin->error.status == ETH_HPP_OK;
    keep_error(plugin, &err);
    return -1;
}
