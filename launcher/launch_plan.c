/* What rank 0 does for all: the cluster and the profile of this job, and its plan. */
#include "launcher/launch.h"

#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "launcher/calibrate.h"
#include "plan/derive.h"
#include "plan/program.h"
#include "plan/remedy.h"
#include "plan/report.h"
#include "plan/simulate.h"
#include "runtime/capabilities.h"

/* ---- the profile ---- */

static bool all_measured(const struct eth_hpp_launch *launch)
{
    for (int r = 0; r < launch->place->size; r++)
        if (launch->times[r].points == 0)
            return false;
    return true;
}

static enum eth_hpp_status load_profile(const char *path, const struct eth_hpp_launch_job *job,
                                        struct eth_hpp_profile *profile, struct eth_hpp_error *err)
{
    struct eth_hpp_profile made;
    enum eth_hpp_status status = eth_hpp_profile_load(path, &made, err);
    if (status != ETH_HPP_OK)
        return status;
    if (made.layer_count != eth_hpp_model_layers(&job->model))
        status =
            eth_hpp_error_set(err, ETH_HPP_ERR_INPUT, "%.512s: has %d layers, %s has %d", path,
                              made.layer_count, job->model.name, eth_hpp_model_layers(&job->model));
    else if (made.sequence_length != job->sequence_length)
        status = eth_hpp_error_set(err, ETH_HPP_ERR_INPUT,
                                   "%.512s: is for sequences of %d tokens, the job's have %d: give "
                                   "--seq=%d or another profile",
                                   path, made.sequence_length, job->sequence_length,
                                   made.sequence_length);
    else if (made.dtype != job->dtype)
        status =
            eth_hpp_error_set(err, ETH_HPP_ERR_INPUT, "%.512s: is for %s, the job is in %s", path,
                              eth_hpp_dtype_name(made.dtype), eth_hpp_dtype_name(job->dtype));
    if (status == ETH_HPP_OK)
        *profile = made;
    else
        eth_hpp_profile_free(&made);
    return status;
}

static enum eth_hpp_status make_profile(const struct eth_hpp_launch *launch,
                                        const struct eth_hpp_cluster *cluster,
                                        struct eth_hpp_profile *profile, struct eth_hpp_error *err)
{
    const struct eth_hpp_launch_job *job = &launch->job;
    struct eth_hpp_profile made;
    if (!all_measured(launch)) {
        struct eth_hpp_derive_options derive = {.sequence_length = job->sequence_length,
                                                .dtype = job->dtype,
                                                .emulated_time_scale = launch->ranks[0].time_scale};
        return eth_hpp_derive_profile(&job->model, cluster, &derive, profile, err);
    }
    enum eth_hpp_status status =
        eth_hpp_derive_layers(&job->model, job->sequence_length, job->dtype, &made, err);
    if (status != ETH_HPP_OK)
        return status;
    status = eth_hpp_calibrate_fill_profile(launch->times, launch->ranks, launch->place->size,
                                            &made, err);
    if (status == ETH_HPP_OK)
        *profile = made;
    else
        eth_hpp_profile_free(&made);
    return status;
}

/* ---- the facts ---- */

void eth_hpp_launch_facts_free(struct eth_hpp_launch_facts *facts)
{
    eth_hpp_cluster_free(&facts->cluster);
    eth_hpp_profile_free(&facts->profile);
    free(facts->rank_of);
    *facts = (struct eth_hpp_launch_facts){0};
}

/* Which GPUs are the slow ones of a given profile is known only where they are measured. */
static void warn_of_derived(const char *path, const struct eth_hpp_profile *profile, bool measured)
{
    for (int t = 0; t < profile->times_count && !measured; t++)
        if (strchr(profile->times[t].device, '~') != NULL) {
            eth_hpp_log_warning("%s: tells GPUs of a kind apart (%s), but which they are has not "
                                "been measured: all count as their kind",
                                path, profile->times[t].device);
            return;
        }
}

static void log_links(const struct eth_hpp_cluster *cluster)
{
    for (int n = 0; n < cluster->node_count; n++) {
        const struct eth_hpp_node *node = &cluster->nodes[n];
        eth_hpp_log_debug("%s: inside %.3g GB/s after %.1f us, network %.3g GB/s after %.1f us",
                          node->name, node->intra_bandwidth / 1e9, node->intra_latency_s * 1e6,
                          node->inter_bandwidth / 1e9, node->inter_latency_s * 1e6);
    }
}

enum eth_hpp_status eth_hpp_launch_facts_make(struct eth_hpp_launch *launch,
                                              struct eth_hpp_launch_facts *facts,
                                              struct eth_hpp_error *err)
{
    struct eth_hpp_launch_facts made = {0};
    enum eth_hpp_status status = ETH_HPP_OK;
    const char *path = eth_hpp_option_text(launch->options, ETH_HPP_JOB_PROFILE);
    int count = launch->place->size;
    if (all_measured(launch))
        status = eth_hpp_calibrate_name_devices(launch->times, launch->job.model.decoders,
                                                launch->ranks, count, err);
    if (status == ETH_HPP_OK && path != NULL)
        status = load_profile(path, &launch->job, &made.profile, err);
    if (status == ETH_HPP_OK && path != NULL) {
        warn_of_derived(path, &made.profile, all_measured(launch));
        eth_hpp_calibrate_match_devices(&made.profile, launch->ranks, count);
    }
    if (status == ETH_HPP_OK)
        status =
            eth_hpp_launch_cluster_make(launch->ranks, count, &made.cluster, &made.rank_of, err);
    if (status == ETH_HPP_OK)
        status = eth_hpp_calibrate_apply_links(launch->pairs, launch->pair_count, launch->ranks,
                                               &made.cluster, err);
    const char *site_file = getenv("ETH_HPP_SITE_FILE");
    if (status == ETH_HPP_OK && site_file != NULL && *site_file != '\0')
        status = eth_hpp_calibrate_apply_site(site_file, &made.cluster, err);
    if (status == ETH_HPP_OK && path == NULL)
        status = make_profile(launch, &made.cluster, &made.profile, err);
    if (status != ETH_HPP_OK) {
        eth_hpp_launch_facts_free(&made);
        return status;
    }
    log_links(&made.cluster);
    *facts = made;
    return ETH_HPP_OK;
}

/* ---- the plan ---- */

/* Rank 0's device stands for all: all are GPUs, or none is. */
static const struct eth_hpp_capabilities *runtime_of(const struct eth_hpp_launch *launch)
{
    char device[ETH_HPP_LAUNCH_DEVICE_MAX];
    eth_hpp_launch_device(&launch->ranks[0], device);
    return eth_hpp_capabilities_get(device);
}

static enum eth_hpp_status solve(const struct eth_hpp_launch *launch,
                                 const struct eth_hpp_launch_facts *facts,
                                 struct eth_hpp_plan *plan, struct eth_hpp_error *err)
{
    const struct eth_hpp_launch_job *job = &launch->job;
    const struct eth_hpp_capabilities *runtime = runtime_of(launch);
    struct eth_hpp_solver_options options = {.global_batch = job->global_batch,
                                             .shape = ETH_HPP_SHAPE_HPP,
                                             .effort = ETH_HPP_EFFORT_DEFAULT,
                                             .max_tensor_parallel = runtime->max_tensor_parallel,
                                             .no_recompute = !runtime->recompute,
                                             .no_sharded = !runtime->sharded_optimizer};
    return eth_hpp_remedy_solve(&facts->cluster, &facts->profile, &options, false, plan, err);
}

/* The given plan on this cluster, if the runtime can run it. */
static enum eth_hpp_status bind_given(const struct eth_hpp_launch *launch,
                                      const struct eth_hpp_launch_facts *facts,
                                      struct eth_hpp_plan *plan, struct eth_hpp_error *err)
{
    char *text = NULL;
    struct eth_hpp_plan made = {0};
    struct eth_hpp_simulation simulation = {0};
    enum eth_hpp_status status = eth_hpp_plan_print(&launch->job.plan, &text, err);
    if (status == ETH_HPP_OK)
        status = eth_hpp_plan_parse("plan", text, strlen(text), &made, err);
    free(text);
    if (status == ETH_HPP_OK)
        status = eth_hpp_capabilities_check(runtime_of(launch), &made, err);
    if (status == ETH_HPP_OK)
        status = eth_hpp_plan_bind(&made, &facts->cluster, &facts->profile, err);
    if (status == ETH_HPP_OK)
        status = eth_hpp_simulate(&made, &facts->cluster, &facts->profile, false, &simulation, err);
    if (status == ETH_HPP_OK && !simulation.feasible)
        status = eth_hpp_error_set(err, ETH_HPP_ERR_INFEASIBLE, "the given plan does not fit: %s",
                                   simulation.why);
    if (status == ETH_HPP_OK) {
        free(made.predicted.ranks);
        made.predicted = simulation.predicted;
        simulation.predicted = (struct eth_hpp_predicted){0};
        *plan = made;
        made = (struct eth_hpp_plan){0};
    }
    eth_hpp_simulation_free(&simulation);
    eth_hpp_plan_free(&made);
    return status;
}

/* Compiles what each rank will run and proves all of it sound together. */
static enum eth_hpp_status verify(const struct eth_hpp_plan *plan,
                                  const struct eth_hpp_profile *profile, int ranks,
                                  struct eth_hpp_error *err)
{
    double *output_bytes = NULL, *gradient_bytes = NULL;
    int compiled = 0;
    struct eth_hpp_program *programs = calloc((size_t)ranks, sizeof(*programs));
    if (programs == NULL)
        return eth_hpp_error_memory(err, "the plan's programs");
    enum eth_hpp_status status =
        eth_hpp_program_sizes(plan, profile, &output_bytes, &gradient_bytes, err);
    while (status == ETH_HPP_OK && compiled < ranks) {
        status = eth_hpp_program_compile(plan, output_bytes, gradient_bytes, compiled,
                                         &programs[compiled], err);
        compiled += status == ETH_HPP_OK;
    }
    if (status == ETH_HPP_OK)
        status = eth_hpp_program_verify(plan, programs, ranks, err);
    while (compiled > 0)
        eth_hpp_program_free(&programs[--compiled]);
    free(programs);
    free(output_bytes);
    free(gradient_bytes);
    return status;
}

/* What calibration has cost this job. */
static void report_calibration(const struct eth_hpp_launch *launch)
{
    double devices_s = 0;
    for (int r = 0; r < launch->place->size; r++)
        if (launch->times[r].measuring_s > devices_s)
            devices_s = launch->times[r].measuring_s;
    if (devices_s > 0 || launch->links_s > 0)
        fprintf(stderr, "  calibration: devices in %.2f s%s, links in %.2f s\n", devices_s,
                devices_s > 0 ? "" : " (their times were kept)", launch->links_s);
}

enum eth_hpp_status eth_hpp_launch_plan_make(struct eth_hpp_launch *launch,
                                             struct eth_hpp_plan *plan, struct eth_hpp_error *err)
{
    struct eth_hpp_launch_facts facts;
    struct eth_hpp_plan made = {0};
    enum eth_hpp_status status = eth_hpp_launch_facts_make(launch, &facts, err);
    if (status != ETH_HPP_OK)
        return status;
    if (launch->job.has_plan)
        status = bind_given(launch, &facts, &made, err);
    else
        status = solve(launch, &facts, &made, err);
    if (status == ETH_HPP_OK) {
        made.emulated = launch->ranks[0].time_scale > 0;
        made.estimated = facts.profile.estimated;
        eth_hpp_report_print(&made, &facts.cluster, stderr);
        report_calibration(launch);
        status = eth_hpp_plan_note_nodes(&made, &facts.cluster, err);
    }
    if (status == ETH_HPP_OK)
        status = eth_hpp_plan_renumber(&made, facts.rank_of, facts.cluster.gpu_count, err);
    if (status == ETH_HPP_OK)
        status = verify(&made, &facts.profile, launch->place->size, err);
    if (status == ETH_HPP_OK)
        *plan = made;
    else
        eth_hpp_plan_free(&made);
    eth_hpp_launch_facts_free(&facts);
    return status;
}
