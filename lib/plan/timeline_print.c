#include "plan/timeline_marks.h"

#include <stdlib.h>
#include <string.h>

static const struct {
    char letter;
    const char *colour; /* ANSI */
} looks[ETH_HPP_MARKS] = {[ETH_HPP_MARK_FORWARD_EVEN] = {'F', "\033[30;46m"},
                          [ETH_HPP_MARK_FORWARD_ODD] = {'f', "\033[30;106m"},
                          [ETH_HPP_MARK_BACKWARD_EVEN] = {'B', "\033[30;42m"},
                          [ETH_HPP_MARK_BACKWARD_ODD] = {'b', "\033[30;102m"},
                          [ETH_HPP_MARK_OPTIMIZER] = {'O', "\033[30;43m"},
                          [ETH_HPP_MARK_SUM] = {'s', "\033[37;45m"},
                          [ETH_HPP_MARK_HAND_OVER] = {'-', "\033[90m"},
                          [ETH_HPP_MARK_WAIT] = {'.', "\033[90m"}};

enum { LABEL_MOST = 44, PLOT_LEAST = 20 };

static void print_row(const struct eth_hpp_timeline *timeline,
                      const struct eth_hpp_timeline_row *row, int label,
                      const enum eth_hpp_mark *chosen, int columns, bool colour, FILE *out)
{
    char text[256];
    eth_hpp_timeline_describe_row(timeline, row, text, sizeof(text));
    fprintf(out, "  %-*.*s |", label, label, text);
    for (int c = 0; c < columns; c++) {
        if (colour && (c == 0 || chosen[c] != chosen[c - 1]))
            fprintf(out, "\033[0m%s", looks[chosen[c]].colour);
        fputc(looks[chosen[c]].letter, out);
    }
    fprintf(out, "%s|\n", colour ? "\033[0m" : "");
}

/* The widest description of a row, within bounds. */
static int label_width(const struct eth_hpp_timeline *timeline, int most)
{
    size_t width = 0;
    for (int r = 0; r < timeline->row_count; r++) {
        char text[256];
        eth_hpp_timeline_describe_row(timeline, &timeline->rows[r], text, sizeof(text));
        if (strlen(text) > width)
            width = strlen(text);
    }
    return (int)width < most ? (int)width : most;
}

static void print_axis(double step_s, int label, int columns, FILE *out)
{
    char end[32], middle[32];
    snprintf(middle, sizeof(middle), "%.3g s", step_s / 2);
    snprintf(end, sizeof(end), "%.4g s", step_s);
    int half = columns / 2, rest = columns - half - (int)strlen(end);
    if ((int)strlen(middle) >= rest)
        middle[0] = '\0'; /* no room */
    fprintf(out, "  %-*s  %-*s%-*s%s\n", label, "", half, "0", rest, middle, end);
}

void eth_hpp_timeline_print(const struct eth_hpp_timeline *timeline, int columns, bool colour,
                            FILE *out)
{
    int most = 2 * columns / 5,
        label = label_width(timeline, most < LABEL_MOST ? most : LABEL_MOST);
    int plot = columns - label - 5;
    plot = plot < PLOT_LEAST ? PLOT_LEAST : plot;
    double step_s = timeline->simulation.step.step_s, column_s = step_s / plot;
    double(*share)[ETH_HPP_MARKS] = malloc((size_t)plot * sizeof(*share));
    enum eth_hpp_mark *chosen = malloc((size_t)plot * sizeof(*chosen));
    char text[256];
    eth_hpp_timeline_describe_step(timeline, text, sizeof(text));
    fprintf(out, "%s\n", text);
    for (int r = 0; share != NULL && chosen != NULL && r < timeline->row_count; r++) {
        const struct eth_hpp_timeline_row *row = &timeline->rows[r];
        if (r == 0 || row->pipeline != row[-1].pipeline) {
            eth_hpp_timeline_describe_pipeline(timeline, row, text, sizeof(text));
            fprintf(out, " %s\n", text);
        }
        eth_hpp_marks_choose(row, ~0u, column_s, plot, share, chosen);
        print_row(timeline, row, label, chosen, plot, colour, out);
    }
    if (timeline->left_out > 0)
        fprintf(out, "  %d more stages are not shown\n", timeline->left_out);
    print_axis(step_s, label, plot, out);
    fprintf(out, "  F f forward, B b backward (capital and small: micro-batches in turn), - waits "
                 "for a hand-over,\n  s waits for sums and gathers, O optimizer, . waits\n");
    free(share);
    free(chosen);
}
