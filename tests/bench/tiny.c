#include "tests/bench/tiny.h"

#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

/* ---- random numbers: the same everywhere ---- */

static uint64_t random_state;

static int pick(int count)
{
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (int)((random_state >> 33) % (unsigned)count);
}

static double between(double low, double high)
{
    return low + (high - low) * pick(1000) / 1000;
}

static bool one_in(int count)
{
    return pick(count) == 0;
}

/* ---- texts ---- */

struct text {
    char bytes[32768];
    size_t used;
};

static void say(struct text *text, const char *format, ...) ETH_HPP_PRINTF(2, 3);
static void say(struct text *text, const char *format, ...)
{
    va_list list;
    va_start(list, format);
    int length =
        vsnprintf(text->bytes + text->used, sizeof(text->bytes) - text->used, format, list);
    va_end(list);
    text->used += length > 0 ? (size_t)length : 0;
    if (text->used >= sizeof(text->bytes))
        text->used = sizeof(text->bytes) - 1;
}

enum { KINDS = 3 };
static const char *const names[KINDS] = {"x", "y", "z"};

static void say_node(struct text *out, int node, const char *device, int gpus)
{
    static const char *const inter[] = {"1e8", "1e9", "1e10"};
    say(out,
        "%s{\"name\":\"n%d\",\"device\":\"%s\",\"count\":%d,\"intra_bandwidth\":%s,"
        "\"intra_latency_s\":%s,\"inter_bandwidth\":%s,\"inter_latency_s\":%s",
        node > 0 ? "," : "", node, device, gpus, one_in(2) ? "2e10" : "2e9",
        one_in(2) ? "0" : "1e-5", inter[pick(3)], one_in(2) ? "1e-5" : "2e-4");
    if (one_in(6))
        say(out, ",\"inter_bandwidth_per_gpu\":%s", one_in(2) ? "1e8" : "1e9");
    say(out, "}");
}

/* Memory from what a GPU that holds everything needs down to a part of it. */
static void say_cluster(struct text *out, int gpus, int kinds, double whole_bytes)
{
    int nodes = 0;
    say(out, "{\"format\":\"eth-hpp-cluster\",\"version\":1,\"devices\":{");
    for (int d = 0; d < KINDS; d++)
        say(out, "%s\"%s\":{\"memory_bytes\":%.0f,\"reserved_bytes\":0}", d > 0 ? "," : "",
            names[d], whole_bytes * (one_in(2) ? between(0.9, 1.5) : between(0.25, 0.9)));
    say(out, "},\"nodes\":[");
    while (gpus > 0) {
        int here = nodes == 2 ? gpus : 1 + pick(gpus);
        say_node(out, nodes++, names[pick(kinds)], here);
        gpus -= here;
    }
    say(out, "]");
    if (nodes > 1 && one_in(5))
        say(out, ",\"links\":[{\"between\":[\"n0\",\"n1\"],\"bandwidth\":%s,\"latency_s\":1e-4}]",
            one_in(2) ? "5e7" : "5e8");
    say(out, "}");
}

/* A device's times: a floor, a slope, and a taste of its own for each kind of layer. */
static void say_times(struct text *out, const char *device, bool with_ends, bool tensor_parallel,
                      int most)
{
    double slow = between(1, 4), floor = between(0, 1.5);
    double ends = between(0.3, 1.5);
    say(out, "\"%s\":{", device);
    for (int t = 1; t <= (tensor_parallel ? 2 : 1); t++) {
        double gain = t == 1 ? 1 : between(0.5, 0.8);
        say(out, "%s\"%d\":{", t > 1 ? "," : "", t);
        for (int k = 1; k <= most; k *= 2) {
            double s = 1e-3 * slow * gain * (floor + k);
            say(out, "%s\"%d\":{\"decoder\":[%g,%g]", k > 1 ? "," : "", k, s, 2 * s);
            if (with_ends)
                say(out, ",\"embedding\":[%g,%g],\"head\":[%g,%g]", s * ends / 3, s * ends / 2,
                    s * ends, 2 * s * ends);
            say(out, "}");
        }
        say(out, "}");
    }
    say(out, "}");
}

static void say_memory(struct text *out, int degree, bool ends, bool tied, double state,
                       double saved)
{
    state /= degree;
    saved /= degree;
    say(out,
        "\"%d\":{\"decoder\":{\"state_bytes\":%g,\"optimizer_bytes\":%g,\"saved_bytes\":%g,"
        "\"workspace_bytes\":%g}",
        degree, state, state / 2, saved, saved / 8);
    if (ends)
        say(out,
            ",\"embedding\":{\"state_bytes\":%g,\"optimizer_bytes\":%g,\"saved_bytes\":%g},"
            "\"head\":{\"state_bytes\":%g,\"optimizer_bytes\":%g,\"saved_bytes\":%g}",
            state / 2, state / 4, saved / 4, state / 2, state / 4, saved / 2);
    if (tied)
        say(out, ",\"shared\":{\"state_bytes\":%g,\"optimizer_bytes\":%g}", state, state / 2);
    say(out, "}");
}

static void say_profile(struct text *out, int layers, int kinds, double state, double saved)
{
    bool ends = layers >= 3 && !one_in(3), tied = ends && one_in(2), degrees = one_in(3);
    double output = one_in(2) ? 1e5 : 1e6, gradient = one_in(2) ? 4e5 : 4e6;
    say(out, "{\"format\":\"eth-hpp-profile\",\"version\":1,\"model\":\"tiny\","
             "\"sequence_length\":8,\"dtype\":\"fp32\",\"layers\":[");
    if (ends)
        say(out,
            "{\"kind\":\"embedding\",\"parameters\":%g,\"gradient_bytes\":%g,"
            "\"output_bytes\":%g},",
            gradient / 8, gradient / 2, output);
    say(out,
        "{\"kind\":\"decoder\",\"repeat\":%d,\"parameters\":%g,\"gradient_bytes\":%g,"
        "\"output_bytes\":%g}",
        ends ? layers - 2 : layers, gradient / 4, gradient, output);
    if (ends)
        say(out, ",{\"kind\":\"head\",\"parameters\":%g,\"gradient_bytes\":%g,\"output_bytes\":0}",
            gradient / 8, gradient / 2);
    say(out, "],");
    if (tied)
        say(out,
            "\"tied\":[{\"name\":\"shared\",\"kinds\":[\"embedding\",\"head\"],"
            "\"parameters\":%g,\"gradient_bytes\":%g}],",
            gradient / 4, gradient);
    say(out, "\"times\":{");
    for (int d = 0; d < kinds; d++) {
        say(out, "%s", d > 0 ? "," : "");
        say_times(out, names[d], ends, degrees, one_in(3) ? 2 : 4);
    }
    say(out, "},\"memory\":{");
    say_memory(out, 1, ends, tied, state, saved);
    if (degrees) {
        say(out, ",");
        say_memory(out, 2, ends, tied, state, saved);
    }
    say(out, "}");
    if (one_in(2))
        say(out, ",\"optimizer_s_per_parameter\":{\"x\":1e-9,\"y\":4e-9}");
    say(out, "}");
}

bool tiny_open(struct tiny *tiny, unsigned seed, int gpus, int layers, int batch,
               struct eth_hpp_error *err)
{
    static struct text cluster, profile;
    cluster.used = profile.used = 0;
    random_state = seed * 0x9e3779b97f4a7c15u + 1;
    memset(tiny, 0, sizeof(*tiny));
    tiny->global_batch = batch;
    for (int i = 0; i < 8; i++)
        pick(2);
    int kinds = 1 + pick(KINDS);
    double state_bytes = 1.6e8, saved_bytes = one_in(2) ? 2e8 : 2e7;
    say_profile(&profile, layers, kinds, state_bytes, saved_bytes);
    say_cluster(&cluster, gpus, kinds, layers * (state_bytes + saved_bytes * between(1, 2)));
    if (eth_hpp_profile_parse("profile", profile.bytes, profile.used, &tiny->profile, err) !=
        ETH_HPP_OK)
        return false;
    if (eth_hpp_cluster_parse("cluster", cluster.bytes, cluster.used, &tiny->cluster, err) !=
        ETH_HPP_OK) {
        eth_hpp_profile_free(&tiny->profile);
        return false;
    }
    return true;
}

void tiny_close(struct tiny *tiny)
{
    eth_hpp_profile_free(&tiny->profile);
    eth_hpp_cluster_free(&tiny->cluster);
}
