#include "score.h"

static bool has_pairs(const sample_shape *rows, sample_purpose purpose)
{
    return !rows->value && (purpose == SAMPLE_TRAIN || purpose == SAMPLE_EVALUATE);
}

causal_inputs score_begin(zf_graph *g, sample_shape *rows, sample_purpose purpose)
{
    causal_inputs in = causal_none(g);
    if (has_pairs(rows, purpose)) rows->batch *= 2;
    in.model.input_ids = zf_input(g, "input_ids", ZF_I32, ZF_SHAPE(rows->batch, rows->sequence));
    if (rows->rows == SAMPLE_PADDED)
        in.model.attention_mask =
            zf_input(g, "attention_mask", ZF_U8, ZF_SHAPE(rows->batch, rows->sequence));
    if (rows->scope) zf_push(g, "%s", rows->scope);
    return in;
}

/* w . h of each row h of x [n, H]: [n]. A product would be rounded where the graph computes in 16
 * bits; sums are f32. */
static zf_tensor values_of(zf_tensor x, zf_tensor weight)
{
    return zf_sum_ex(zf_mul(x, weight), &(zf_reduce_desc){.axis = -1});
}

static zf_tensor square(zf_tensor x) { return zf_mul(x, x); }

static void put_sum(zf_tensor x, const char *name)
{
    zf_output_ex(zf_sum(x), name, &(zf_output_desc){.reduction = ZF_REDUCTION_SUM});
}

/* Sums over the pairs that are there. */
static void put_scores(zf_tensor chosen, zf_tensor rejected, zf_tensor weight)
{
    const zf_tensor zero = zf_constant(weight.graph, ZF_F32, ZF_SCALAR, 0),
                    there = zf_cast(zf_less(zero, weight), ZF_F32);
    put_sum(zf_mul(there, zf_cast(zf_less(rejected, chosen), ZF_F32)), "accurate");
    put_sum(zf_mul(there, zf_sub(chosen, rejected)), "margins");
    put_sum(zf_mul(there, chosen), "chosen");
    put_sum(zf_mul(there, square(chosen)), "squares");
}

/* x [2P T, H]; scores [2P]. */
static zf_tensor loss_of(zf_tensor x, zf_tensor scores, zf_tensor head, const sample_shape *rows)
{
    zf_graph *g = x.graph;
    const int64_t pairs = rows->batch / 2, tokens = rows->sequence;
    const bool positions = rows->rows == SAMPLE_PADDED;
    const zf_tensor weight = zf_input(g, "weight", ZF_F32, ZF_SHAPE(pairs)),
                    margin = zf_input(g, "margin", ZF_F32,
                                      positions ? ZF_SHAPE(pairs, 1) : ZF_SHAPE(pairs)),
                    center = zf_input(g, "center", ZF_F32, ZF_SCALAR);
    zf_pair p = zf_pair_loss(scores, positions ? ZF_NONE : margin, weight, NULL);
    const zf_tensor squares = square(zf_add(p.chosen, p.rejected)),
                    centered = zf_sum(zf_mul(zf_mul(center, weight), squares));
    zf_input(g, "lr", ZF_F32, ZF_SCALAR);
    put_scores(p.chosen, p.rejected, weight);
    if (positions)
        p = zf_pair_loss(zf_reshape(values_of(x, head), ZF_SHAPE(2 * pairs, tokens)), margin,
                         zf_input(g, "places", ZF_F32, ZF_SHAPE(pairs, tokens)), NULL);
    return zf_output_ex(zf_add(p.loss, centered), "loss",
                        &(zf_output_desc){.reduction = ZF_REDUCTION_SUM});
}

static zf_tensor put_values(zf_tensor values, const sample_shape *rows, sample_purpose purpose)
{
    zf_graph *g = values.graph;
    const zf_shape tokens = ZF_SHAPE(rows->batch, rows->sequence);
    zf_tensor labels, returns, old, weight;
    zf_value p;
    zf_input(g, "lr", ZF_F32, ZF_SCALAR);
    if (purpose != SAMPLE_TRAIN) return zf_output(zf_reshape(values, tokens), "values");
    labels = zf_input(g, "labels", ZF_I32, tokens),
    returns = zf_input(g, "returns", ZF_F32, tokens);
    old = zf_input(g, "old_values", ZF_F32, tokens);
    weight = zf_input(g, "weight", ZF_F32, ZF_SHAPE(rows->batch, 1));
    p = zf_value_loss(values, old, returns, labels, weight, rows->value);
    zf_output_ex(zf_sum(zf_mul(p.clipped, weight)), "value_clipped",
                 &(zf_output_desc){.reduction = ZF_REDUCTION_SUM});
    return zf_output_ex(p.loss, "loss", &(zf_output_desc){.reduction = ZF_REDUCTION_SUM});
}

zf_tensor score_end(zf_tensor x, const sample_shape *rows, sample_purpose purpose)
{
    zf_graph *g = x.graph;
    const zf_shape shape = zf_tensor_shape(x);
    const int64_t width = shape.rank == 2 ? shape.dims[1] : 1;
    zf_tensor head, scores;
    zf_push(g, "score");
    head = zf_param(g, "weight", ZF_SHAPE(1, width),
                    &(zf_param_desc){.init = ZF_NORMAL, .std = 1 / (double)(width + 1)});
    zf_pop(g);
    if (rows->scope) zf_pop(g);
    if (rows->value) return put_values(values_of(x, head), rows, purpose);
    scores = zf_gather_rows(x, zf_input(g, "last", ZF_I32, ZF_SHAPE(rows->batch)));
    scores = values_of(scores, head);
    return has_pairs(rows, purpose) ? loss_of(x, scores, head, rows) : zf_output(scores, "scores");
}
