/* The drawings of a simulated step: a golden one in letters, trace events that parse, a picture
 * that is well-formed and bounded. */
#include "plan_fixtures.h"

#include <ctype.h>
#include <math.h>

#include "plan/timeline.h"

static void open_timeline(struct fixture *f, const char *cluster, const char *plan, int most_rows,
                          struct eth_hpp_timeline *timeline)
{
    struct eth_hpp_error err = {0};
    fixture_open(f, cluster, PROFILE, plan);
    must(
        eth_hpp_timeline_make(&f->plan, &f->cluster, &f->profile, false, most_rows, timeline, &err),
        &err);
}

static void close_timeline(struct fixture *f, struct eth_hpp_timeline *timeline)
{
    eth_hpp_timeline_free(timeline);
    fixture_close(f);
}

static char *print(const struct eth_hpp_timeline *timeline, int columns, bool colour)
{
    char *text;
    size_t size;
    FILE *out = open_memstream(&text, &size);
    assert_non_null(out);
    eth_hpp_timeline_print(timeline, columns, colour, out);
    assert_int_equal(fclose(out), 0);
    return text;
}

/* ---- letters ---- */

#define TWO_STAGES                                                                                 \
    PLAN_HEAD "\"global_batch\":3,\"pipelines\":[{\"micro_batch\":1,\"micro_batches\":3,"          \
              "\"stages\":[{\"layers\":[0,3],\"workers\":["                                        \
              "{\"node\":\"a1\",\"gpus\":[0],\"samples\":1}]},"                                    \
              "{\"layers\":[3,6],\"workers\":["                                                    \
              "{\"node\":\"a2\",\"gpus\":[0],\"samples\":1}]}]}]}"

static void letters_show_the_step(void **state)
{
    (void)state;
    struct fixture f;
    struct eth_hpp_timeline timeline;
    open_timeline(&f, CLUSTER, TWO_STAGES, 8, &timeline);
    char *text = print(&timeline, 61, false);
    /* A column is 1 ms. Stage 0: forward 2.1, backward 4.1 ms; stage 1: 3 and 6; hand-overs 0.1. */
    assert_string_equal(
        text,
        "toy: step 0.03411 s (compute 0.0334 s, exposed sync 0.0004 s, optimizer 0.00031 s)\n"
        " pipeline 0: 3 micro-batches of 1\n"
        "  rank 0, a1 GPU 0, fast |FFff.......BBBBFF...bbbb.....BBBBs|\n"
        "  rank 2, a2 GPU 0, fast |..FFFBBBBBBfffbbbbbbFFFBBBBBB....s|\n"
        "                          0                        0.03411 s\n"
        "  F f forward, B b backward (capital and small: micro-batches in turn), - waits for a "
        "hand-over,\n  s waits for sums and gathers, O optimizer, . waits\n");
    free(text);
    close_timeline(&f, &timeline);
}

static void colours_leave_the_letters_as_they_are(void **state)
{
    (void)state;
    struct fixture f;
    struct eth_hpp_timeline timeline;
    open_timeline(&f, CLUSTER, TWO_STAGES, 8, &timeline);
    char *plain = print(&timeline, 61, false), *coloured = print(&timeline, 61, true);
    size_t kept = 0;
    assert_non_null(strchr(coloured, '\033'));
    for (const char *p = coloured; *p != '\0'; p++)
        if (*p == '\033')
            p += strcspn(p, "m");
        else
            coloured[kept++] = *p;
    coloured[kept] = '\0';
    assert_string_equal(coloured, plain);
    free(plain);
    free(coloured);
    close_timeline(&f, &timeline);
}

/* ---- rows ---- */

static void a_fast_worker_waits_for_a_slow_one_of_its_stage(void **state)
{
    (void)state;
    struct fixture f;
    struct eth_hpp_timeline timeline;
    open_timeline(&f, CLUSTER,
                  with(UNLIKE_PLAN, "\"samples\":3},{\"node\":\"b1\",\"gpus\":[0],\"samples\":1}",
                       "\"samples\":2},{\"node\":\"b1\",\"gpus\":[0],\"samples\":2}"),
                  8, &timeline);
    assert_int_equal(timeline.row_count, 5);
    const struct eth_hpp_timeline_row *fast = &timeline.rows[3], *slow = &timeline.rows[4];
    assert_ptr_equal(fast->spans, slow->spans);
    int forwards = 0;
    for (int i = 0; i < fast->span_count; i++) {
        const struct eth_hpp_span *span = &fast->spans[i];
        if (span->opcode != ETH_HPP_FORWARD)
            continue;
        /* three decoders and the head on two samples */
        assert_true(fabs(span->end_s - span->start_s - 24e-3) < 1e-12);
        assert_true(fabs(eth_hpp_timeline_end(slow, span) - span->end_s) < 1e-12);
        assert_true(fabs(eth_hpp_timeline_end(fast, span) - span->start_s - 8e-3) < 1e-12);
        forwards++;
    }
    assert_int_equal(forwards, 2);
    close_timeline(&f, &timeline);
}

static void spans_add_up_to_the_predicted_busy_time(void **state)
{
    (void)state;
    struct fixture f;
    struct eth_hpp_timeline timeline;
    open_timeline(&f, CLUSTER, UNLIKE_PLAN, 8, &timeline);
    for (int r = 0; r < timeline.row_count; r++) {
        const struct eth_hpp_timeline_row *row = &timeline.rows[r];
        double busy_s = 0;
        for (int i = 0; i < row->span_count; i++)
            if (row->spans[i].opcode == ETH_HPP_FORWARD || row->spans[i].opcode == ETH_HPP_BACKWARD)
                busy_s += eth_hpp_timeline_end(row, &row->spans[i]) - row->spans[i].start_s;
        assert_true(fabs(busy_s - timeline.simulation.predicted.ranks[r].busy_s) < 1e-9);
    }
    close_timeline(&f, &timeline);
}

/* `count` pipelines of one GPU each, with as many micro-batches as micro_batches(p) says. */
static char *make_plan(int count, int (*micro_batches)(int pipeline))
{
    char *text;
    size_t size;
    int batch = 0;
    FILE *out = open_memstream(&text, &size);
    assert_non_null(out);
    for (int p = 0; p < count; p++)
        batch += micro_batches(p);
    fprintf(out, PLAN_HEAD "\"global_batch\":%d,\"pipelines\":[", batch);
    for (int p = 0; p < count; p++)
        fprintf(out,
                "%s{\"micro_batch\":1,\"micro_batches\":%d,\"stages\":[{\"layers\":[0,6],"
                "\"workers\":[{\"node\":\"a%d\",\"gpus\":[%d],\"samples\":1}]}]}",
                p > 0 ? "," : "", micro_batches(p), p / 2 + 1, p % 2);
    fputs("]}", out);
    assert_int_equal(fclose(out), 0);
    return text;
}

static int four(int pipeline)
{
    (void)pipeline;
    return 4;
}

static int ever_more(int pipeline)
{
    return pipeline + 1;
}

static void like_pipelines_share_their_rows_where_there_are_many(void **state)
{
    (void)state;
    struct fixture f;
    struct eth_hpp_timeline timeline;
    char *plan = make_plan(100, four);
    open_timeline(&f, with(CLUSTER, "a[1-2]", "a[1-50]"), plan, 8, &timeline);
    assert_int_equal(timeline.row_count, 1);
    assert_int_equal(timeline.left_out, 0);
    assert_int_equal(timeline.rows[0].like, 100);
    char *text = print(&timeline, 80, false);
    assert_non_null(strstr(text, " pipeline 0 and 99 like it: 4 micro-batches of 1\n"));
    assert_non_null(strstr(text, "  stage 0, 1 fast |"));
    free(text);
    free(plan);
    close_timeline(&f, &timeline);
}

/* ---- trace events ---- */

static struct json_object *member(struct json_object *object, const char *key)
{
    struct json_object *value = NULL;
    if (!json_object_object_get_ex(object, key, &value))
        fail_msg("no \"%s\" in %s", key, json_object_to_json_string(object));
    return value;
}

static struct json_object *parse_trace(const struct eth_hpp_timeline *timeline)
{
    struct eth_hpp_error err = {0};
    char *text;
    must(eth_hpp_trace_print(timeline, &text, &err), &err);
    struct json_object *root = json_tokener_parse(text);
    assert_non_null(root);
    free(text);
    return root;
}

static void a_trace_has_every_instruction_of_every_rank(void **state)
{
    (void)state;
    struct fixture f;
    struct eth_hpp_timeline timeline;
    open_timeline(&f, CLUSTER, UNLIKE_PLAN, 8, &timeline);
    struct json_object *root = parse_trace(&timeline), *events = member(root, "traceEvents");
    int forwards[6] = {0}, named = 0, sums = 0;
    double end_us = 0, free_us[6][8] = {{0}};
    for (size_t i = 0; i < json_object_array_length(events); i++) {
        struct json_object *event = json_object_array_get_idx(events, i);
        const char *phase = json_object_get_string(member(event, "ph"));
        const char *name = json_object_get_string(member(event, "name"));
        int rank = json_object_get_int(member(event, "pid"));
        assert_true(rank >= 0 && rank < 6);
        named += strcmp(name, "process_name") == 0;
        if (strcmp(phase, "X") != 0)
            continue;
        double start = json_object_get_double(member(event, "ts"));
        double duration = json_object_get_double(member(event, "dur"));
        assert_true(start >= 0 && duration >= 0);
        /* Each thread does one thing after the other. */
        double *thread = &free_us[rank][json_object_get_int(member(event, "tid"))];
        assert_true(start >= *thread - 1e-9);
        *thread = start + duration;
        end_us = fmax(end_us, start + duration);
        if (strncmp(name, "forward ", 8) == 0) {
            assert_int_equal(json_object_get_int(member(member(event, "args"), "micro_batch")),
                             atoi(name + 8));
            forwards[rank]++;
        }
        sums += strcmp(name, "sync-block") == 0;
    }
    /* Ranks 0 and 1 have six micro-batches; 2, 3 and 4 have two. */
    const int expected[6] = {6, 6, 2, 2, 2, 0};
    assert_memory_equal(forwards, expected, sizeof(expected));
    assert_int_equal(named, 5);
    assert_true(sums > 0);
    assert_true(fabs(end_us - 1e6 * timeline.simulation.step.step_s) < 2e-3);
    json_object_put(root);
    close_timeline(&f, &timeline);
}

/* ---- pictures ---- */

/* Skips a start or end tag; returns what follows it. *closes: "</name>" or "<name/>". */
static const char *skip_tag(const char *p, bool *opens, bool *closes)
{
    *opens = p[1] != '/';
    *closes = p[1] == '/';
    for (p++; *p != '>'; p++) {
        assert_true(*p != '\0' && *p != '<');
        if (*p == '"') {
            p += 1 + strcspn(p + 1, "\"<&");
            assert_true(*p == '"');
        }
        if (p[0] == '/' && p[1] == '>')
            *closes = true;
    }
    return p + 1;
}

/* Tags are balanced by number, attributes quoted, and text has no bare & or <. */
static void assert_well_formed(const char *text)
{
    int depth = 0;
    for (const char *p = text; *p != '\0';) {
        bool opens, closes;
        if (*p == '&')
            assert_true(strncmp(p, "&amp;", 5) == 0 || strncmp(p, "&lt;", 4) == 0 ||
                        strncmp(p, "&gt;", 4) == 0);
        if (*p != '<') {
            assert_true(depth > 0 || isspace((unsigned char)*p));
            p++;
            continue;
        }
        p = skip_tag(p, &opens, &closes);
        depth += opens - closes;
        assert_true(depth >= 0);
    }
    assert_int_equal(depth, 0);
    assert_int_equal(strncmp(text, "<svg xmlns=\"http://www.w3.org/2000/svg\" ", 40), 0);
}

static char *draw(const struct eth_hpp_timeline *timeline)
{
    struct eth_hpp_error err = {0};
    char *text;
    must(eth_hpp_svg_print(timeline, &text, &err), &err);
    return text;
}

static void a_picture_is_well_formed_and_says_what_it_shows(void **state)
{
    (void)state;
    struct fixture f;
    struct eth_hpp_timeline timeline;
    const char *said[] = {"toy: step 0.03411 s",         "global batch 3,",
                          "pipeline 0: 3 micro-batches", "rank 2, a2 GPU 0, fast&lt;&amp;&gt;",
                          "class=\"n\">2</text>",        ">30 ms<",
                          "sums and gathers</text>",     "step ends"};
    char plan[2048];
    snprintf(plan, sizeof(plan), "%s", TWO_STAGES);
    open_timeline(&f, CLUSTER, plan, 8, &timeline);
    for (int d = 0; d < f.cluster.device_count; d++)
        strcat(f.cluster.devices[d].name, "<&>"); /* names come from files */
    char *text = draw(&timeline);
    assert_well_formed(text);
    for (size_t i = 0; i < sizeof(said) / sizeof(said[0]); i++)
        if (strstr(text, said[i]) == NULL)
            fail_msg("the picture does not say \"%s\"", said[i]);
    free(text);
    close_timeline(&f, &timeline);
}

static void pictures_of_large_plans_stay_small(void **state)
{
    (void)state;
    struct fixture f;
    struct eth_hpp_timeline timeline;
    char *plan = make_plan(1000, ever_more);
    open_timeline(&f, with(CLUSTER, "a[1-2]", "a[1-500]"), plan, 64, &timeline);
    assert_int_equal(timeline.row_count, 64);
    assert_int_equal(timeline.left_out, 1000 - 64);
    char *text = draw(&timeline);
    assert_well_formed(text);
    assert_true(strlen(text) < 1500000);
    assert_non_null(strstr(text, "936 more stages are not shown"));
    free(text);
    free(plan);
    close_timeline(&f, &timeline);
}

static void a_step_that_is_too_long_is_not_drawn(void **state)
{
    (void)state;
    struct fixture f;
    struct eth_hpp_timeline timeline;
    struct eth_hpp_error err = {0};
    fixture_open(&f, CLUSTER, PROFILE,
                 PLAN_HEAD "\"global_batch\":524288,\"pipelines\":[{\"micro_batch\":1,"
                           "\"micro_batches\":524288,\"stages\":[{\"layers\":[0,6],\"workers\":["
                           "{\"node\":\"a1\",\"gpus\":[0],\"samples\":1}]}]}]}");
    assert_int_equal(
        eth_hpp_timeline_make(&f.plan, &f.cluster, &f.profile, false, 8, &timeline, &err),
        ETH_HPP_ERR_UNSUPPORTED);
    assert_non_null(strstr(err.text, "1048576 forwards and backwards"));
    fixture_close(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(letters_show_the_step),
        cmocka_unit_test(colours_leave_the_letters_as_they_are),
        cmocka_unit_test(a_fast_worker_waits_for_a_slow_one_of_its_stage),
        cmocka_unit_test(spans_add_up_to_the_predicted_busy_time),
        cmocka_unit_test(like_pipelines_share_their_rows_where_there_are_many),
        cmocka_unit_test(a_trace_has_every_instruction_of_every_rank),
        cmocka_unit_test(a_picture_is_well_formed_and_says_what_it_shows),
        cmocka_unit_test(pictures_of_large_plans_stay_small),
        cmocka_unit_test(a_step_that_is_too_long_is_not_drawn),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
