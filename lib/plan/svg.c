/* The picture has three lanes a row: computation, and under it, thin, what runs beside it:
 * hand-overs and sums. */
#include "plan/timeline_marks.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    WIDTH = 1240,
    LEFT = 270, /* where the time axis begins */
    PLOT = 940, /* its width */
    TOP = 74,
    HEAD = 22, /* a pipeline's line */
    ROW = 28,
    BAR = 17, /* the computation of a row */
    THIN = 3, /* a lane beside it */
    FOOT = 64,
    LABEL_MOST = 42,       /* bytes */
    EXACT_MOST = PLOT / 3, /* spans of a lane that are drawn one by one */
    TICKS_MOST = 10
};

static const struct {
    const char *class, *fill, *legend; /* legend NULL: the one before speaks for it */
} looks[ETH_HPP_MARKS] = {
    [ETH_HPP_MARK_FORWARD_EVEN] = {"f", "#5aa9dd", "forward, micro-batches in turn"},
    [ETH_HPP_MARK_FORWARD_ODD] = {"g", "#a9d3ef", NULL},
    [ETH_HPP_MARK_BACKWARD_EVEN] = {"b", "#3f9f6f", "backward"},
    [ETH_HPP_MARK_BACKWARD_ODD] = {"c", "#97d0b0", NULL},
    [ETH_HPP_MARK_OPTIMIZER] = {"o", "#e8a33d", "optimizer"},
    [ETH_HPP_MARK_SUM] = {"s", "#b14fb8", "sums and gathers"},
    [ETH_HPP_MARK_HAND_OVER] = {"h", "#555555", "hand-over to or from a neighbour"},
    [ETH_HPP_MARK_WAIT] = {"w", "#f0f0f0", "waits"},
};

/* Lanes from top to bottom: which marks they show, where in the row, and how high. */
static const struct {
    unsigned marks;
    int top, height;
} lanes[] = {{1u << ETH_HPP_MARK_FORWARD_EVEN | 1u << ETH_HPP_MARK_FORWARD_ODD |
                  1u << ETH_HPP_MARK_BACKWARD_EVEN | 1u << ETH_HPP_MARK_BACKWARD_ODD |
                  1u << ETH_HPP_MARK_OPTIMIZER,
              0, BAR},
             {1u << ETH_HPP_MARK_HAND_OVER, BAR + 1, THIN},
             {1u << ETH_HPP_MARK_SUM, BAR + THIN + 2, THIN}};

struct drawing {
    FILE *out;
    const struct eth_hpp_timeline *timeline;
    double pixels_per_s;
    double (*share)[ETH_HPP_MARKS]; /* [PLOT] */
    enum eth_hpp_mark *chosen;      /* [PLOT] */
};

/* ---- text ---- */

static void put_escaped(FILE *out, const char *text)
{
    for (const char *p = text; *p != '\0'; p++)
        switch (*p) {
        case '&':
            fputs("&amp;", out);
            break;
        case '<':
            fputs("&lt;", out);
            break;
        case '>':
            fputs("&gt;", out);
            break;
        default:
            fputc(*p, out);
        }
}

static void put_text(FILE *out, double x, double y, const char *class, const char *text)
{
    fprintf(out, "<text x=\"%.1f\" y=\"%.1f\" class=\"%s\">", x, y, class);
    put_escaped(out, text);
    fputs("</text>\n", out);
}

/* Cuts a text that is too long for its place, between characters of UTF-8. */
static void cut(char *text, size_t most)
{
    if (strlen(text) <= most)
        return;
    size_t end = most - 3;
    while (end > 0 && ((unsigned char)text[end] & 0xc0) == 0x80)
        end--;
    memcpy(text + end, "...", 4);
}

/* ---- rows ---- */

static double x_of(const struct drawing *drawing, double s)
{
    return LEFT + s * drawing->pixels_per_s;
}

static void put_box(FILE *out, double x, double y, double width, int height)
{
    fprintf(out, "M%.2f %.0fh%.2fv%dh%.2fz", x, y, width, height, -width);
}

/* The spans of a mark one by one. */
static void put_exact(const struct drawing *drawing, const struct eth_hpp_timeline_row *row,
                      enum eth_hpp_mark mark, double y, int height)
{
    for (int i = 0; i < row->span_count; i++) {
        const struct eth_hpp_span *span = &row->spans[i];
        if (eth_hpp_mark_of(span) == mark)
            put_box(drawing->out, x_of(drawing, span->start_s), y,
                    (eth_hpp_timeline_end(row, span) - span->start_s) * drawing->pixels_per_s,
                    height);
    }
}

/* The columns of a mark, runs of them together. */
static void put_columns(const struct drawing *drawing, enum eth_hpp_mark mark, double y, int height)
{
    for (int c = 0, end; c < PLOT; c = end) {
        for (end = c + 1; end < PLOT && drawing->chosen[end] == drawing->chosen[c];)
            end++;
        if (drawing->chosen[c] == mark)
            put_box(drawing->out, LEFT + c, y, end - c, height);
    }
}

static void put_lane(const struct drawing *drawing, const struct eth_hpp_timeline_row *row,
                     int lane, double y)
{
    int count = 0, counts[ETH_HPP_MARKS] = {0};
    for (int i = 0; i < row->span_count; i++) {
        enum eth_hpp_mark mark = eth_hpp_mark_of(&row->spans[i]);
        counts[mark]++;
        count += lanes[lane].marks >> mark & 1;
    }
    bool exact = count <= EXACT_MOST;
    if (!exact)
        eth_hpp_marks_choose(row, lanes[lane].marks, 1 / drawing->pixels_per_s, PLOT,
                             drawing->share, drawing->chosen);
    for (enum eth_hpp_mark mark = 0; mark < ETH_HPP_MARKS; mark++) {
        if (!(lanes[lane].marks >> mark & 1) || counts[mark] == 0)
            continue;
        fprintf(drawing->out, "<path class=\"%s\" d=\"", looks[mark].class);
        if (exact)
            put_exact(drawing, row, mark, y + lanes[lane].top, lanes[lane].height);
        else
            put_columns(drawing, mark, y + lanes[lane].top, lanes[lane].height);
        fputs("\"/>\n", drawing->out);
    }
}

/* Numbers of micro-batches where there is room for them. */
static void put_numbers(const struct drawing *drawing, const struct eth_hpp_timeline_row *row,
                        double y)
{
    for (int i = 0; i < row->span_count; i++) {
        const struct eth_hpp_span *span = &row->spans[i];
        if (span->opcode != ETH_HPP_FORWARD && span->opcode != ETH_HPP_BACKWARD)
            continue;
        double width = (eth_hpp_timeline_end(row, span) - span->start_s) * drawing->pixels_per_s;
        char number[16];
        int digits = snprintf(number, sizeof(number), "%d", span->micro_batch);
        if (width >= 6 * digits + 3)
            put_text(drawing->out, x_of(drawing, span->start_s) + width / 2, y + BAR - 5, "n",
                     number);
    }
}

/* Who the row is, and small under it what it does. */
static void put_label(const struct drawing *drawing, const struct eth_hpp_timeline_row *row,
                      double y)
{
    const struct eth_hpp_pipeline *pipeline = &drawing->timeline->plan->pipelines[row->pipeline];
    const struct eth_hpp_stage *stage = &pipeline->stages[row->stage];
    int samples = row->worker < 0 ? pipeline->micro_batch : stage->workers[row->worker].samples;
    char text[256];
    eth_hpp_timeline_describe_row(drawing->timeline, row, text, sizeof(text));
    cut(text, LABEL_MOST);
    put_text(drawing->out, 16, y + BAR - 6, "l", text);
    snprintf(text, sizeof(text), "layers %d-%d, %d sample%s, %d in flight%s", stage->first_layer,
             stage->end_layer - 1, samples, samples == 1 ? "" : "s", stage->in_flight,
             stage->recompute ? ", recompute" : "");
    put_text(drawing->out, 16, y + BAR + 4, "m", text);
}

static void put_row(const struct drawing *drawing, const struct eth_hpp_timeline_row *row, double y)
{
    put_label(drawing, row, y);
    fprintf(drawing->out, "<path class=\"w\" d=\"");
    put_box(drawing->out, LEFT, y, PLOT, BAR);
    fputs("\"/>\n", drawing->out);
    for (int lane = 0; lane < (int)(sizeof(lanes) / sizeof(lanes[0])); lane++)
        put_lane(drawing, row, lane, y);
    put_numbers(drawing, row, y);
}

/* ---- around the rows ---- */

/* 1, 2 or 5 times a power of ten, the least that makes no more ticks than TICKS_MOST. */
static double tick_of(double step_s)
{
    double tick = pow(10, floor(log10(step_s / TICKS_MOST)));
    const double steps[] = {1, 2, 5, 10};
    for (int i = 0; i < 4; i++)
        if (step_s / (tick * steps[i]) <= TICKS_MOST)
            return tick * steps[i];
    return step_s;
}

static void put_axis(const struct drawing *drawing, double bottom)
{
    double step_s = drawing->timeline->simulation.step.step_s, tick = tick_of(step_s);
    double unit_s = step_s >= 1 ? 1 : step_s >= 1e-3 ? 1e-3 : 1e-6;
    const char *unit = step_s >= 1 ? "s" : step_s >= 1e-3 ? "ms" : "us";
    for (int i = 0; i * tick <= step_s * (1 + 1e-9); i++) {
        double x = x_of(drawing, i * tick);
        char text[32];
        snprintf(text, sizeof(text), "%.6g %s", i * tick / unit_s, unit);
        put_text(drawing->out, x, TOP - 6, "t", text);
        fprintf(drawing->out, "<path class=\"a\" d=\"M%.2f %dV%.0f\"/>\n", x, TOP, bottom);
    }
}

/* Where the last backward and the step end. */
static void put_ends(const struct drawing *drawing, double bottom)
{
    const struct eth_hpp_step *step = &drawing->timeline->simulation.step;
    double compute = x_of(drawing, step->compute_s), end = x_of(drawing, step->step_s);
    fprintf(drawing->out, "<path class=\"e\" d=\"M%.2f %dV%.0fM%.2f %dV%.0f\"/>\n", compute, TOP,
            bottom, end, TOP, bottom);
    if (end - compute > 60)
        put_text(drawing->out, compute, bottom + 13, "r", "last backward ends");
    put_text(drawing->out, end, bottom + 13, "r", "step ends");
}

static void put_legend(const struct drawing *drawing, double y)
{
    double x = LEFT;
    for (enum eth_hpp_mark mark = 0; mark < ETH_HPP_MARKS; mark++) {
        bool thin = mark == ETH_HPP_MARK_SUM || mark == ETH_HPP_MARK_HAND_OVER;
        fprintf(drawing->out, "<path class=\"%s\" d=\"", looks[mark].class);
        put_box(drawing->out, x, thin ? y + 5 : y, 14, thin ? THIN : 12);
        fputs("\"/>\n", drawing->out);
        x += 16;
        if (mark + 1 < ETH_HPP_MARKS && looks[mark + 1].legend == NULL)
            continue;
        const char *legend =
            looks[mark].legend != NULL ? looks[mark].legend : looks[mark - 1].legend;
        put_text(drawing->out, x + 2, y + 10, "l", legend);
        x += 6.2 * (double)strlen(legend) + 18;
    }
}

static void put_head(const struct drawing *drawing, double height)
{
    const struct eth_hpp_plan *plan = drawing->timeline->plan;
    char text[256];
    FILE *out = drawing->out;
    fprintf(out,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %.0f\" width=\"%d\" "
            "height=\"%.0f\" font-family=\"sans-serif\" font-size=\"11\">\n<style>\n",
            WIDTH, height, WIDTH, height);
    for (int mark = 0; mark < ETH_HPP_MARKS; mark++)
        fprintf(out, ".%s{fill:%s}\n", looks[mark].class, looks[mark].fill);
    fprintf(out, ".n{font-size:9px;text-anchor:middle}\n.t{text-anchor:middle;fill:#444}\n"
                 ".r{text-anchor:end;fill:#444}\n.p{font-weight:bold;fill:#333}\n.m{font-size:9px;"
                 "fill:#777}\n"
                 ".h1{font-size:15px;font-weight:bold}\n"
                 ".a{stroke:#ccc;stroke-width:.6;fill:none}\n"
                 ".e{stroke:#c33;stroke-dasharray:4 3;fill:none}\n</style>\n"
                 "<rect width=\"100%%\" height=\"100%%\" fill=\"#fff\"/>\n");
    eth_hpp_timeline_describe_step(drawing->timeline, text, sizeof(text));
    put_text(out, 16, 24, "h1", text);
    snprintf(text, sizeof(text),
             "global batch %d, sequence %d, %s, %d layers, %s optimizer; %d pipeline%s on %d GPU%s",
             plan->global_batch, plan->sequence_length, eth_hpp_dtype_name(plan->dtype),
             plan->layers, plan->sharded_optimizer ? "sharded" : "replicated", plan->pipeline_count,
             plan->pipeline_count == 1 ? "" : "s", drawing->timeline->simulation.step.gpus,
             drawing->timeline->simulation.step.gpus == 1 ? "" : "s");
    put_text(out, 16, 42, "l", text);
}

static void put_rows(const struct drawing *drawing)
{
    double y = TOP + 4;
    char text[160];
    const struct eth_hpp_timeline *timeline = drawing->timeline;
    for (int r = 0; r < timeline->row_count; r++) {
        const struct eth_hpp_timeline_row *row = &timeline->rows[r];
        if (r == 0 || row->pipeline != row[-1].pipeline) {
            eth_hpp_timeline_describe_pipeline(timeline, row, text, sizeof(text));
            put_text(drawing->out, 10, y + HEAD - 8, "p", text);
            y += HEAD;
        }
        put_row(drawing, row, y);
        y += ROW;
    }
    if (timeline->left_out == 0)
        return;
    snprintf(text, sizeof(text), "%d more stages are not shown", timeline->left_out);
    put_text(drawing->out, 10, y + HEAD - 8, "p", text);
}

static void put_all(const struct drawing *drawing)
{
    const struct eth_hpp_timeline *timeline = drawing->timeline;
    int heads = timeline->left_out > 0;
    for (int r = 0; r < timeline->row_count; r++)
        heads += r == 0 || timeline->rows[r].pipeline != timeline->rows[r - 1].pipeline;
    double bottom = TOP + 4 + HEAD * heads + ROW * timeline->row_count;
    put_head(drawing, bottom + FOOT);
    put_axis(drawing, bottom);
    put_rows(drawing);
    put_ends(drawing, bottom);
    put_legend(drawing, bottom + FOOT - 34);
    fputs("</svg>\n", drawing->out);
}

enum eth_hpp_status eth_hpp_svg_print(const struct eth_hpp_timeline *timeline, char **text,
                                      struct eth_hpp_error *err)
{
    char *made = NULL;
    size_t size = 0;
    bool failed = true;
    struct drawing drawing = {.out = open_memstream(&made, &size),
                              .timeline = timeline,
                              .pixels_per_s = PLOT / timeline->simulation.step.step_s,
                              .share = malloc(PLOT * sizeof(*drawing.share)),
                              .chosen = malloc(PLOT * sizeof(*drawing.chosen))};
    if (drawing.out != NULL && drawing.share != NULL && drawing.chosen != NULL) {
        put_all(&drawing);
        failed = ferror(drawing.out) != 0;
    }
    if (drawing.out != NULL && fclose(drawing.out) != 0)
        failed = true;
    free(drawing.share);
    free(drawing.chosen);
    if (failed) {
        free(made);
        return eth_hpp_error_memory(err, "the picture");
    }
    *text = made;
    return ETH_HPP_OK;
}
