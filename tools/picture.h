/* Pictures of graphs and plans, as SVG and as text for graphviz's `dot`. Their facts are those of
 * zf_graph_node, zf_graph_plan, zf_graph_alive and zf_graph_timeline. */
#ifndef PICTURE_H
#define PICTURE_H

#include "../zeroflow.h"

/* Draws the graph; `before` (may be NULL) at its left, and then `after` has thick borders where
 * nodes are new. `title` is what has been done between them. */
zf_status picture_graph_svg(const zf_graph *before, const zf_graph *after, const char *title,
                            FILE *file);
zf_status picture_graph_dot(const zf_graph *before, const zf_graph *after, const char *title,
                            FILE *file);

/* Draws bytes by kind over the step, for each space that the plan uses, and what each resource does
 * over time by the cost table (NULL: the default). Requires: zf_memory. */
zf_status picture_plan_svg(zf_graph *graph, const zf_cost *cost, const char *title, FILE *file);

/* ----------------------------------------------------------------------------- for all pictures */

typedef struct picture_colour {
    const char *name, *fill;
} picture_colour;

/* The text, at most `most` characters of it, with the characters of XML replaced. */
void picture_text(FILE *file, const char *text, size_t most);
/* The head of a picture of that size, and its style. */
void picture_begin(FILE *file, double width, double height, const char *title);
/* A box of the colour and its name; returns the x of the next one. */
double picture_legend(FILE *file, double x, double y, const picture_colour *colour);
/* ZF_ERR_IO where the file could not be written. */
zf_status picture_end(FILE *file);

#endif
