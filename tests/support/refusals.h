/* The TEST_ONCE that cannot be judged, or cannot run, with allocations refused, each with the
 * reason. */
#ifndef REFUSALS_H
#define REFUSALS_H

typedef struct exception {
    const char *name, *why;
} exception;

static const char no_message[] = "it learns of a refusal from a bool, or by NULL, without a message";
static const char leaves[] = "a case that ends early leaves what it has open to the next one";

/* These run with refusals, and must not crash or hang; failed checks after a refusal do not
 * count. */
static const exception unjudged[] = {
    {"batch_files_of_wrong_shapes", no_message},
    {"bert_text_with_masks_becomes_a_batch", no_message},
    {"calls_in_any_order_give_the_same_bits", no_message},
    {"checkpoint_any_damage_is_found", no_message},
    {"checkpoint_comes_back", no_message},
    {"checkpoint_damage_is_named", no_message},
    {"checkpoint_files_that_are_missing", no_message},
    {"checkpoint_manifest_is_checked", no_message},
    {"checkpoint_survives_a_full_disk", no_message},
    {"checkpoint_survives_an_unwritable_parent", no_message},
    {"checkpoint_survives_power_loss", no_message},
    {"collectives_are_what_their_records_say", no_message},
    {"first_values_are_one_for_any_threads", no_message},
    {"fuse_computes_the_same", no_message},
    {"fuse_does_what_it_names", no_message},
    {"fuse_keeps_the_flops", no_message},
    {"graph_many_threads", no_message},
    {"operators_write_in_place", leaves},
    {"passes_that_cannot_be_printed", no_message},
    {"precision_bf16_is_the_same_at_every_stage", leaves},
    {"precision_f16_is_the_same_at_every_stage", leaves},
    {"recompute_meets_limits", leaves},
    {"rows_of_padding_have_no_gradient", no_message},
    {"saving_leftovers_are_not_known_by_name", no_message},
    {"saving_leftovers_have_a_manifest", no_message},
};

static const char long_run[] = "a run takes more than a second, and is one of hundreds alike";

static const exception without[] = {
    {"arguments_of_every_function", long_run},
    {"bert_speed_by_a_clock", "it measures time"},
    {"checkpoint_survives_a_refusing_allocator", "it refuses allocations by itself"},
    {"checkpoint_survives_kill", "it starts processes and kills them"},
    {"corpus_script_without_the_package", "it runs a script"},
    {"cost_alone", "it measures time"},
    {"cost_that_cannot_be_measured", "it measures time"},
    {"disk_survives_kill", "it starts processes and kills them"},
    {"gpt_speed_by_a_clock", "it measures time"},
    {"plan_mutants_are_refused_or_sound", long_run},
    {"random_graphs_keep_their_numbers", long_run},
    {"recompute_keeps_bits", long_run},
    {"reports_survive_kill", "it starts processes and kills them"},
    {"saving_survives_kill", "it starts processes and kills them"},
    {"shards_survive_a_refusing_allocator", "it refuses allocations by itself"},
    {"threads_refused", "it refuses threads by itself"},
    {"vocab_out_of_memory", "it refuses allocations by itself"},
};

static bool is_among(const test_case *c, const exception *list, size_t count)
{
    for (size_t k = 0; k < count; k++)
        if (!strcmp(list[k].name, c->name)) return true;
    return false;
}

static bool is_unjudged(const test_case *c)
{
    return is_among(c, unjudged, sizeof unjudged / sizeof *unjudged);
}

static bool is_without(const test_case *c)
{
    return is_among(c, without, sizeof without / sizeof *without);
}

#endif
