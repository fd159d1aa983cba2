/* DeepSpeed's configuration: what each key becomes, and what is refused. The table of keys is that
 * of zf_deepspeed_keys, from which cases are made. */
#include "../support/test.h"

#define CHECK_HAS(t, text, part) CHECK_TEXT(t, strstr(text, part) ? part : text, part)

/* ---------------------------------------------------------------------------------- one file */

/* What the last text gave. */
static zf_training trained;
static zf_deepspeed result;

/* Reads a text; the error's text, or "". */
static const char *read_text(const char *json, int64_t world)
{
    static zf_error error;
    zf_deepspeed_free(&result);
    trained = (zf_training){.clip = 0};
    result = (zf_deepspeed){.world = world};
    (void)zf_deepspeed_read(json, &trained, &result, &error);
    return error.text;
}

/* The options that a text sets, as text. */
static const char *options_of(const char *json, int64_t world)
{
    static char text[600];
    const zf_options all = {.rows = zf_training_options(), .desc = &trained};
    const char *wrong = read_text(json, world);
    if (*wrong) return wrong;
    zf_options_text(&all, 1, text, sizeof text);
    zf_deepspeed_free(&result);
    return text;
}

TEST(deepspeed_is_options)
{
    static const char adam[] =
        "{\"train_batch_size\": 64, \"gradient_clipping\": 0.5,\n"
        " \"bf16\": {\"enabled\": true},\n"
        " \"zero_optimization\": {\"stage\": 2, \"reduce_bucket_size\": 5e8},\n"
        " \"optimizer\": {\"type\": \"Adam\", \"params\": {\"lr\": 1e-4,\n"
        "   \"betas\": [0.8, 0.95], \"weight_decay\": 0.1}},\n"
        " \"scheduler\": {\"type\": \"WarmupDecayLR\", \"params\":\n"
        "   {\"total_num_steps\": 500, \"warmup_num_steps\": 100,"
        " \"warmup_max_lr\": 2e-4}}}";
    zf_schedule s;
    CHECK_TEXT(
        t, options_of(adam, 4),
        "adamw.beta1=0.8 adamw.beta2=0.95 adamw.eps=1e-08 adamw.weight_decay=0.1 clip=0.5 "
        "precision.dtype=bf16 zero.stage=2 zero.micro_batches=1 zero.bucket_bytes=1000000000");
    zf_error error;
    trained = (zf_training){.clip = 0};
    result = (zf_deepspeed){.world = 4, .allocator = t->allocator};
    OK(t, zf_deepspeed_read(adam, &trained, &result, &error), error.text);
    s = zf_deepspeed_schedule(&result.run);
    CHECK(t, result.run.batch == 64 && result.run.micro_batch == 16 && result.run.lr == 2e-4);
    CHECK(t, s.kind == ZF_WARMUP_DECAY_LR && s.peak == 2e-4 && s.steps == 500 && s.warmup == 100);
    CHECK(t, s.logarithmic && s.start == 0);
    zf_deepspeed_free(&result);
}

/* What each of these lines adds to the options of {"train_batch_size": 8, "gradient_clipping": 0}. */
TEST(deepspeed_maps_values)
{
    static const char *const cases[][2] = {
        {"\"fp16\": {\"enabled\": true, \"initial_scale_power\": 10, \"hysteresis\": 3}",
         "precision.dtype=f16 precision.scale=1024 precision.hysteresis=3"},
        {"\"fp16\": {\"enabled\": true, \"loss_scale\": 128, \"initial_scale_power\": 10}",
         "precision.dtype=f16 precision.scale=128 precision.factor=1"},
        {"\"fp16\": {\"loss_scale\": 128}", ""},
        {"\"bfloat16\": {\"enabled\": true}", "precision.dtype=bf16"},
        {"\"zero_optimization\": {\"stage\": 3, \"stage3_prefetch_bucket_size\": 1000}",
         "zero.stage=3 prefetch.bytes=4000"},
        {"\"zero_optimization\": {\"stage\": 1, \"stage3_prefetch_bucket_size\": 1000}",
         "zero.stage=1"},
        {"\"zero_optimization\": {\"stage\": 3, \"offload_param\": {\"device\": \"nvme\", "
         "\"nvme_path\": \"/x\"}, \"offload_optimizer\": {\"device\": \"cpu\", \"nvme_path\": "
         "\"/y\"}}",
         "zero.stage=3 offload.optimizer=host offload.parameters=disk"},
        {"\"zero_optimization\": {\"stage\": 2, \"cpu_offload\": true}",
         "zero.stage=2 offload.optimizer=host"},
        {"\"zero_optimization\": {\"stage\": 3, \"zero_hpz_partition_size\": 2, "
         "\"zero_quantized_weights\": true, \"zero_quantized_gradients\": true}",
         "zero.stage=3 zero.hpz=true zero.quantized_weights=true zero.quantized_gradients=true"},
        {"\"zero_optimization\": {\"stage\": 2, \"zero_quantized_gradients\": true, "
         "\"zeropp_loco_param\": {\"err_beta\": 0.5, \"reset_T\": 9}}",
         "zero.stage=2 zero.quantized_gradients=true zero.loco=true zero.loco_beta=0.5 "
         "zero.loco_reset=9"},
        {"\"optimizer\": {\"type\": \"Lamb\", \"params\": {\"lr\": 0.011, \"max_coeff\": 0.3}}",
         "optimizer=lamb lamb.beta1=0.9 lamb.beta2=0.999 lamb.eps=1e-08 lamb.weight_decay=0 "
         "lamb.min_coeff=0.01 lamb.max_coeff=0.3"},
        {"\"optimizer\": {\"type\": \"Adam\", \"params\": {\"bias_correction\": false}}",
         "adamw.beta1=0.9 adamw.beta2=0.999 adamw.eps=1e-08 adamw.no_bias_correction=true "
         "adamw.weight_decay=0"},
        {"\"optimizer\": {\"type\": \"Adam\", \"params\": {\"bias_correction\": true}}",
         "adamw.beta1=0.9 adamw.beta2=0.999 adamw.eps=1e-08 adamw.weight_decay=0"},
        {"\"optimizer\": {\"type\": \"OneBitAdam\", \"params\": {\"bias_correction\": true}}",
         "optimizer=onebit_adam onebit_adam.beta1=0.9 onebit_adam.beta2=0.999 "
         "onebit_adam.eps=1e-08 onebit_adam.weight_decay=0 onebit_adam.freeze_step=100000"},
        {"\"optimizer\": {\"type\": \"SGD\", \"params\": {\"momentum\": 0.9, \"nesterov\": true}}",
         "optimizer=sgd sgd.momentum=0.9 sgd.nesterov=true sgd.weight_decay=0"},
        {"\"activation_checkpointing\": {\"cpu_checkpointing\": true}", "offload.activations=host"},
    };
    static const char common[] = "\"train_batch_size\": 8, \"gradient_clipping\": 0";
    char base[200];
    snprintf(base, sizeof base, "{%s}", common);
    CHECK_TEXT(t, options_of(base, 1), "clip=0 zero.micro_batches=1");
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        char json[600], text[700];
        const char *got;
        snprintf(json, sizeof json, "{%s, %s}", common, cases[k][0]);
        snprintf(text, sizeof text, "%s", options_of(json, 1));
        got = text;
        /* The rest is compared without the two that are always there. */
        for (const char *part = "clip=0 \0zero.micro_batches=1 \0"; *part;
             part += strlen(part) + 1) {
            char *at = strstr(text, part);
            if (at) memmove(at, at + strlen(part), strlen(at + strlen(part)) + 1);
        }
        if (strlen(text) >= 20 && !strcmp(text + strlen(text) - 20, "zero.micro_batches=1"))
            text[strlen(text) - 20] = '\0';
        while (*text && text[strlen(text) - 1] == ' ') text[strlen(text) - 1] = '\0';
        CHECK_TEXT(t, got, cases[k][1]);
    }
}

TEST(deepspeed_refuses)
{
    static const char *const cases[][2] = {
        {"[1]", "1:1: the top value must be an object, DeepSpeed's configuration, not an array"},
        {"{}", "1:1: the top value has neither train_batch_size nor "
               "train_micro_batch_size_per_gpu, and no option gives the batch of a step"},
        {"{\"gradient_accumulation_steps\": 2}",
         "1:1: the top value has neither train_batch_size nor train_micro_batch_size_per_gpu, and "
         "no option gives the batch of a step"},
        {"{\"train_batch_size\": 8,\n \"gradient_acumulation_steps\": 2}",
         "2:32: gradient_acumulation_steps is no key of DeepSpeed's; is it "
         "\"gradient_accumulation_steps\"?"},
        {"{\"bf16\": {\"enabled\": true},\n\"bfloat16\": {\"enabled\": true}}",
         "2:13: bfloat16 bf16 and bfloat16 are the same: leave one of them out"},
        {"{\"train_micro_batch_size_per_gpu\": 1000000000000000000, "
         "\"gradient_accumulation_steps\": 8}",
         "1:36: train_micro_batch_size_per_gpu does not fit: 1000000000000000000 x 8 x 2 examples "
         "are "
         "too many"},
        {"{\"train_batch_size\": 8, \"scheduler\": {\"params\": {\"warmup_max_lr\": 1}}}",
         "1:67: scheduler.params.warmup_max_lr is no parameter of the scheduler"},
        {"{\"stage\": 2}", "1:11: stage is a key in \"zero_optimization\", not here"},
        {"{\"zero_optimization\": {\"train_batch_size\": 2}}",
         "1:44: zero_optimization.train_batch_size is a key at the top, not here"},
        {"{\"qqqqqqqqqqqqqqqqqq\": 2}", "1:24: qqqqqqqqqqqqqqqqqq is no key of DeepSpeed's"},
        {"{\"train_batch_size\": 8,\n\"train_batch_size\": 16}",
         "2:1: the key \"train_batch_size\" is already there, on line 1"},
        {"{\"train_batch_size\": \"8\"}",
         "1:22: train_batch_size must be a whole number of 1 or more, not \"8\""},
        {"{\"train_batch_size\": 100, \"train_micro_batch_size_per_gpu\": 32}",
         "1:22: train_batch_size does not fit: the batch of a step, 100, is no multiple of "
         "train_micro_batch_size_per_gpu 32 x 2 ranks = 64; 64 or 128 would do"},
        {"{\"train_batch_size\": 1}",
         "1:22: train_batch_size does not fit: the batch of a step, 1, is "
         "no multiple of 2 ranks = 2; 2 would do"},
        {"{\"train_batch_size\": 100, \"train_micro_batch_size_per_gpu\": 8,\n"
         "\"gradient_accumulation_steps\": 4}",
         "1:22: train_batch_size does not fit: the batch of a step, 100, is not "
         "train_micro_batch_size_per_gpu 8 x gradient_accumulation_steps 4 x 2 ranks = 64; 64 "
         "would "
         "do"},
        {"{\"train_batch_size\": 128, \"train_micro_batch_size_per_gpu\": 8,\n"
         "\"gradient_accumulation_steps\": 4}",
         "1:22: train_batch_size does not fit: the batch of a step, 128, is not "
         "train_micro_batch_size_per_gpu 8 x gradient_accumulation_steps 4 x 2 ranks = 64; 64 "
         "would do"},
        {"{\"train_batch_size\": 8, \"fp16\": {\"enabled\": true}, \"bf16\": {\"enabled\": true}}",
         "1:72: bf16.enabled is bf16, and --precision is f16: leave one of them out"},
        {"{\"train_batch_size\": 8, \"zero_optimization\": {\"stage\": 1, "
         "\"zero_quantized_weights\": true}}",
         "1:85: zero_optimization.zero_quantized_weights requires zero.stage=3; it is 1"},
        {"{\"train_batch_size\": 8, \"optimizer\": {\"type\": \"Muon\"}}",
         "1:47: optimizer.type muon: AdamW, LAMB, Lion, SGD and the 1-bit optimizers are there; "
         "Adam "
         "is AdamW in DeepSpeed as well"},
        {"{\"train_batch_size\": 8, \"optimizer\": {\"type\": \"Adam\", \"params\": "
         "{\"max_coeff\": 1}}}",
         "1:79: optimizer.params.max_coeff is no parameter of the optimizer adamw"},
        {"{\"train_batch_size\": 8, \"optimizer\": {\"type\": \"Adam\", \"params\": "
         "{\"weight_decay\": 0.1, \"adam_w_mode\": false}}}",
         "1:102: optimizer.params.adam_w_mode is false: Adam with L2 regularisation is not there: "
         "use "
         "AdamW, or weight_decay 0"},
        {"{\"train_batch_size\": 8, \"scheduler\": {\"type\": \"WarmupCosineLR\"}}",
         "1:47: scheduler.type needs params.total_num_steps"},
        {"{\"train_batch_size\": 8, \"scheduler\": {\"type\": \"OneCycle\", \"params\": "
         "{\"cycle_min_lr\": 0.1, \"cycle_max_lr\": 1}}}",
         "1:1: the top value scheduler.params.cycle_momentum is true by default: the optimizer's "
         "beta1 is constant: say false"},
        {"{\"train_batch_size\": 8, \"scheduler\": {\"type\": \"WarmupLR\", \"params\": "
         "{\"total_num_steps\": 1}}}",
         "1:89: scheduler.params.total_num_steps is no parameter of the scheduler"},
        {"{\"train_batch_size\": \"auto\", \"gradient_clipping\": \"auto\",\n"
         "\"optimizer\": {\"type\": \"Adam\", \"params\": {\"lr\": \"auto\"}}}",
         "1:1: the top value has auto for what no option gives: train_batch_size (batch; "
         "TrainingArguments: per_device_train_batch_size), line 1; gradient_clipping (--clip; "
         "TrainingArguments: max_grad_norm), line 1; optimizer.params.lr (lr; TrainingArguments: "
         "learning_rate), line 2"},
        {"{\"train_batch_size\": 8, \"gradient_clipping\": \"auto\",\n"
         "\"optimizer\": {\"type\": \"Adam\", \"params\": {\"lr\": \"auto\"}}}",
         "1:1: the top value has auto for what no option gives: gradient_clipping (--clip; "
         "TrainingArguments: max_grad_norm), line 1; optimizer.params.lr (lr; TrainingArguments: "
         "learning_rate), line 2"},
        {"{\"train_batch_size\": 8, \"optimizer\": {\"type\": \"Adam\", \"params\": "
         "{\"betas\": [0.9, 2]}}}",
         "1:81: optimizer.params.betas[1] must be a number from 0 to below 1, not 2"},
        {"{\"train_batch_size\": 8, # no end\n \"a\": cpu}",
         "2:7: expected a value, found 'cpu': a text is in double quotes"},
    };
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++)
        CHECK_TEXT(t, read_text(cases[k][0], 2), cases[k][1]);
}

/* Comments, keys without quotes and commas as DeepSpeed's reader has them are the same tree. */
TEST(deepspeed_of_too_many_tables)
{
    const char text[] = "{\"train_batch_size\": 8}";
    zf_training training = {.clip = 0};
    zf_deepspeed all = {.option_count = 1000};
    zf_error error = {ZF_OK, ""};
    GIVES(t, zf_deepspeed_read(text, &training, &all, &error), ZF_ERR_ARGUMENT, error.text);
    CHECK(t, strstr(error.text, ": 1000 tables of options, at most "));
}

TEST(deepspeed_reads_hjson)
{
    static const char *const same[] = {
        "{\"train_batch_size\": 8, \"bf16\": {\"enabled\": true}, \"gradient_clipping\": 1}",
        ("# a\n{// b\ntrain_batch_size: 8 /* c\n d */\n  bf16: {enabled : true,}\n"
         "  gradient_clipping: 1 # e\n}\n// f"),
        "{\n\"train_batch_size\": 8,\n\"bf16\":\n{\"enabled\":true}\n,\"gradient_clipping\":1}"};
    static const char *const wrong[][2] = {
        {"{a: 1 b: 2}", "1:7: expected ',' or '}' in the object that began on line 1, found 'b'"},
        {"{a: 1,, b: 2}", "1:7: expected a key in double quotes, found ','"},
        {"{a: 1} /* x", "1:8: expected the end of the text, found '/'"},
        {"{a b: 1}", "1:4: expected ':' after the key \"a\", found 'b'"}};
    char first[200] = "";
    for (int k = 0; k < 3; k++) {
        const char *text = options_of(same[k], 1);
        if (!k) snprintf(first, sizeof first, "%s", text);
        CHECK_TEXT(t, text, first);
    }
    CHECK_TEXT(t, first, "clip=1 precision.dtype=bf16 zero.micro_batches=1");
    for (int k = 0; k < 4; k++) CHECK_TEXT(t, read_text(wrong[k][0], 1), wrong[k][1]);
    CHECK(t, !zf_json_parse("{a: 1}", 6, NULL, NULL));
}

/* Options next to the file: auto takes them, another value is an error, absence lets them be. */
typedef struct mine {
    int64_t batch, schedule;
    double lr;
} mine;

static const char *read_next_to(const char *json, const char *words)
{
    static zf_error error;
    static char text[200];
    static mine own;
    static const zf_option rows[] = {ZF_OPTION(mine, COUNT, batch, 16, "[1,64]", .help = "batch"),
                                     ZF_OPTION(mine, NUMBER, lr, 1e-3, "[0,1000]", .help = "rate"),
                                     ZF_OPTION(mine, CHOICE, schedule, 1,
                                               "constant|linear|cosine|warmup_lr",
                                               .help = "schedule"),
                                     {.name = NULL}};
    own = (mine){.batch = 0};
    trained = (zf_training){.clip = 0};
    const zf_options all[] = {{.rows = rows, .desc = &own},
                              {.rows = zf_training_options(), .desc = &trained}};
    char copy[200], *argv[20] = {"x"};
    int argc = 1;
    snprintf(copy, sizeof copy, "%s", words);
    for (char *at = strtok(copy, " "); at; at = strtok(NULL, " ")) argv[argc++] = at;
    if (zf_options_take(all, 2, &argc, argv, &error)) return error.text;
    result = (zf_deepspeed){.options = all, .option_count = 2};
    (void)zf_deepspeed_read(json, &trained, &result, &error);
    zf_deepspeed_free(&result);
    if (*error.text) return error.text;
    zf_options_text(all, 2, text, sizeof text);
    return text;
}

TEST(deepspeed_next_to_options)
{
    static const char autos[] =
        "{\"train_batch_size\": \"auto\", \"gradient_clipping\": \"auto\",\n"
        "\"optimizer\": {\"type\": \"AdamW\", \"params\": {\"lr\": \"auto\"}}}";
    CHECK_TEXT(t, read_next_to(autos, "--batch 24 --lr 0.5 --clip 2"),
               "batch=24 lr=0.5 adamw.beta1=0.9 adamw.beta2=0.999 adamw.eps=1e-08 "
               "adamw.weight_decay=0 clip=2 zero.micro_batches=1");
    CHECK_TEXT(t, read_next_to(autos, "--batch 24 --clip 2"),
               "1:1: the top value has auto for what no option gives: optimizer.params.lr (--lr; "
               "TrainingArguments: learning_rate), line 2");
    CHECK_TEXT(t, read_next_to("{\"train_batch_size\": 8}", "--batch 24"),
               "1:22: train_batch_size is 8, and --batch is 24: leave one of them out");
    CHECK_TEXT(
        t, read_next_to("{\"train_batch_size\": 80}", ""),
        "1:22: train_batch_size sets --batch, which takes a whole number from 1 to 64, not '80'");
    CHECK_TEXT(t,
               read_next_to("{\"train_batch_size\": 8, \"zero_optimization\": {\"stage\": 2}}",
                            "--zero 3"),
               "1:56: zero_optimization.stage is 2, and --zero is 3: leave one of them out");
    CHECK_TEXT(t, read_next_to("{\"train_micro_batch_size_per_gpu\": 8}", "--batch 24 --clip 3"),
               "batch=24 clip=3 zero.micro_batches=3");
    CHECK_TEXT(
        t,
        read_next_to("{\"train_batch_size\": 8, \"optimizer\": {\"type\": \"Adam\"}}", "--clip 0"),
        "batch=8 lr=0.001 adamw.beta1=0.9 adamw.beta2=0.999 adamw.eps=1e-08 "
        "adamw.weight_decay=0 clip=0 zero.micro_batches=1");
}

TEST(deepspeed_says_where_values_are_from)
{
    static const char json[] = "{\"train_batch_size\": 8,\n \"optimizer\": {\"type\": \"Adam\"},\n"
                               " \"wall_clock_breakdown\": true,\n \"steps_per_print\": 10}";
    char text[3000];
    FILE *file = tmpfile();
    size_t bytes;
    zf_json_writer *w = zf_json_writer_new(0, NULL);
    CHECK_TEXT(t, read_text(json, 1), "");
    if (t->failed || !file) return;
    for (int32_t k = 0; k < result.count; k++) /* the one of which a user must know */
        CHECK(t, result.settings[k].warns == !strcmp(result.settings[k].key, "gradient_clipping"));
    zf_deepspeed_explain(&result, file);
    rewind(file);
    bytes = fread(text, 1, sizeof text - 1, file);
    text[bytes] = '\0';
    fclose(file);
    CHECK_HAS(t, text, "optimizer = adamw                              line 2");
    CHECK_HAS(t, text, "clip = 1                                       DeepSpeed's default");
    CHECK_HAS(t, text, "wall_clock_breakdown = true                    line 3");
    zf_json_begin_object(w), zf_deepspeed_put_json(&result, w), zf_json_end(w);
    CHECK_TEXT(
        t, zf_json_text(w, NULL, NULL),
        "{\"batch\":\"8\",\"micro_batch\":\"8\",\"zero.micro_batches\":\"1\","
        "\"clip\":\"1\",\"precision.dtype\":\"f32\",\"optimizer\":\"adamw\",\"lr\":\"0.001\","
        "\"adamw.beta1\":\"0.9\",\"adamw.beta2\":\"0.999\",\"adamw.eps\":\"1e-08\","
        "\"adamw.weight_decay\":\"0\"}");
    zf_json_writer_free(w);
    zf_deepspeed_free(&result);
}

/* ------------------------------------------------------------------------------------ many files */

/* Files in use, written anew as facts: golden/deepspeed/expected.txt has the options that each sets
 * for a number of ranks, or why it is refused. */
TEST_ONCE(deepspeed_files_in_use)
{
    FILE *expected = fopen("tests/golden/deepspeed/expected.txt", "r");
    char line[1200], name[80], path[300], text[1000];
    int ranks, at, count = 0;
    CHECK(t, expected != NULL);
    while (expected && fgets(line, sizeof line, expected)) {
        const zf_options all = {.rows = zf_training_options(), .desc = &trained};
        zf_error error;
        line[strcspn(line, "\n")] = '\0';
        if (sscanf(line, "%79s %d: %n", name, &ranks, &at) != 2) break;
        snprintf(path, sizeof path, "tests/golden/deepspeed/%s", name);
        trained = (zf_training){.clip = 0};
        result = (zf_deepspeed){.world = ranks};
        if (zf_deepspeed_load(path, &trained, &result, &error))
            snprintf(text, sizeof text, "%s", error.text);
        else zf_options_text(&all, 1, text, sizeof text);
        zf_deepspeed_free(&result);
        if (strcmp(text, line + at)) test_fail(t, __FILE__, __LINE__, name, text);
        count++;
    }
    if (expected) fclose(expected);
    CHECK(t, count == 21);
}

/* A file with one key of this path: its blocks are enabled, and the batch is there. */
static void one_key(char *json, size_t size, const char *path, const char *value)
{
    size_t at = (size_t)snprintf(json, size, "{");
    int depth = 1;
    if (strcmp(path, "train_batch_size"))
        at += (size_t)snprintf(json + at, size - at, "\"train_batch_size\": 8, ");
    for (const char *dot; (dot = strchr(path, '.')); path = dot + 1, depth++)
        at += (size_t)snprintf(json + at, size - at, "\"%.*s\": {", (int)(dot - path), path);
    at += (size_t)snprintf(json + at, size - at, "\"%s\": %s", path, value);
    while (depth--) at += (size_t)snprintf(json + at, size - at, "}");
}

/* Values for a row "PATH KIND RANGE": of it, of another type, out of its range; "": none. */
static void values_for(const char *kind, const char *range, char right[40], char other[40],
                       char beyond[40])
{
    const bool number = !strcmp(kind, "int") || !strcmp(kind, "number");
    const double low = *range == '[' || *range == '(' ? strtod(range + 1, NULL) : 0;
    *right = *beyond = '\0';
    snprintf(other, 40, "%s", strcmp(kind, "any") ? number ? "\"x\"" : "3" : "");
    if (!strcmp(kind, "bool")) snprintf(right, 40, "false");
    if (!strcmp(kind, "text")) snprintf(right, 40, "\"x\"");
    if (!strcmp(kind, "numbers"))
        snprintf(right, 40, "[0.5, 0.5]"), snprintf(beyond, 40, "[0.5, 1]");
    if (!strcmp(kind, "list")) snprintf(right, 40, "[]");
    if (!strcmp(kind, "block") || !strcmp(kind, "any")) snprintf(right, 40, "{}");
    if (number) snprintf(right, 40, "%g", low + (*range == '('));
    if (number) snprintf(beyond, 40, "%g", *range == '(' ? low : low - 1);
    if (strcmp(kind, "choice")) return;
    snprintf(right, 40, "\"%.*s\"", (int)strcspn(range, "|"), range);
    snprintf(beyond, 40, "\"nonsense\"");
}

/* Every key of the table: a value of its range is not wrong by itself, any other is. */
TEST_ONCE(deepspeed_every_key)
{
    FILE *file = tmpfile();
    char line[600], path[120], kind[20], range[200], json[600], must[200];
    int count = 0;
    zf_deepspeed_keys(file);
    if (file) rewind(file);
    while (file && fgets(line, sizeof line, file)) {
        char values[3][40];
        if (*line == ' ') continue;
        *range = '\0';
        CHECK(t, sscanf(line, "%119s %19s %199s", path, kind, range) >= 2);
        values_for(kind, range, values[0], values[1], values[2]);
        snprintf(must, sizeof must, ": %s", path);
        for (int k = 0; k < 3; k++) {
            const char *text;
            bool wrong;
            if (!*values[k]) continue;
            one_key(json, sizeof json, path, values[k]);
            text = read_text(json, 1);
            wrong = strstr(text, must) && strstr(text, " must be ");
            if (wrong != (k > 0) || strstr(text, "no key"))
                test_fail(t, __FILE__, __LINE__, json, text);
        }
        count++;
    }
    if (file) fclose(file);
    zf_deepspeed_free(&result);
    CHECK(t, count > 300);
}

/* Misspelling number k of a word: a letter left out, twice, swapped with the next, or another. */
static void misspell(char out[80], const char *word, int k)
{
    const size_t length = strlen(word), at = 1 + (size_t)(k * 7) % (length - 2);
    const char last = word[at + 1];
    snprintf(out, 80, "%.*s", (int)at, word);
    switch (k % 4) {
    case 0: snprintf(out + at, 80 - at, "%s", word + at + 1); break;
    case 1: snprintf(out + at, 80 - at, "%c%s", word[at], word + at); break;
    case 2: snprintf(out + at, 80 - at, "%c%c%s", last, word[at], word + at + 2); break;
    default: snprintf(out + at, 80 - at, "q%s", word + at + 1);
    }
}

TEST_ONCE(deepspeed_misspelt_keys)
{
    static const char *const common[] = {
        "train_batch_size",
        "train_micro_batch_size_per_gpu",
        "gradient_accumulation_steps",
        "steps_per_print",
        "gradient_clipping",
        "optimizer",
        "scheduler",
        "wall_clock_breakdown",
        "prescale_gradients",
        "zero_optimization",
        "zero_allow_untested_optimizer",
        "fp16.enabled",
        "fp16.loss_scale",
        "fp16.initial_scale_power",
        "fp16.loss_scale_window",
        "fp16.hysteresis",
        "fp16.min_loss_scale",
        "bf16.enabled",
        "communication_data_type",
        "optimizer.params",
        "optimizer.params.betas",
        "optimizer.params.weight_decay",
        "optimizer.params.bias_correction",
        "optimizer.params.freeze_step",
        "scheduler.params.warmup_num_steps",
        "scheduler.params.warmup_max_lr",
        "scheduler.params.warmup_type",
        "scheduler.params.total_num_steps",
        "zero_optimization.stage",
        "zero_optimization.overlap_comm",
        "zero_optimization.contiguous_gradients",
        "zero_optimization.reduce_scatter",
        "zero_optimization.reduce_bucket_size",
        "zero_optimization.allgather_bucket_size",
        "zero_optimization.offload_optimizer",
        "zero_optimization.offload_param",
        "zero_optimization.offload_optimizer.pin_memory",
        "zero_optimization.sub_group_size",
        "zero_optimization.stage3_max_live_parameters",
        "zero_optimization.stage3_gather_16bit_weights_on_model_save"};
    char path[200], word[80], json[600], asked[200];
    for (size_t k = 0; k < sizeof common / sizeof *common; k++)
        for (int n = 0; n < 10; n++) {
            const char *leaf = strrchr(common[k], '.');
            leaf = leaf ? leaf + 1 : common[k];
            misspell(word, leaf, n);
            if (!strcmp(word, leaf)) continue; /* two equal letters were swapped */
            snprintf(path, sizeof path, "%.*s%s", (int)(leaf - common[k]), common[k], word);
            one_key(json, sizeof json, path, "1");
            snprintf(asked, sizeof asked, "is it \"%s\"?", leaf);
            if (!strstr(read_text(json, 1), asked))
                test_fail(t, __FILE__, __LINE__, json, read_text(json, 1));
        }
    zf_deepspeed_free(&result);
}

/* With `loose` an unknown key warns. */
TEST(deepspeed_loose)
{
    zf_error error;
    zf_deepspeed d = {.loose = true};
    zf_training of = {.clip = 0};
    CHECK(t, !zf_deepspeed_read("{train_batch_size: 8, zero_optimization: {stag: 2}}", &of, &d,
                                &error));
    CHECK(t, d.count > 0 && d.settings[0].warns && d.settings[0].origin == ZF_DEEPSPEED_UNKNOWN);
    CHECK_TEXT(t, d.settings[0].key, "zero_optimization.stag");
    CHECK(t, of.zero.stage == 0);
    zf_deepspeed_free(&d);
}

/* The default of clipping is that of the version. */
TEST(deepspeed_versions)
{
    static const char *const versions[] = {"0.18.4", "0.19.2", "0.19.3", "1.0"};
    for (int k = 0; k < 4; k++) {
        zf_error error;
        zf_deepspeed d = {.version = versions[k]};
        zf_training of = {.clip = 0};
        CHECK(t, !zf_deepspeed_read("{train_batch_size: 8}", &of, &d, &error));
        CHECK(t, k < 2 ? of.clip == ZF_ZERO : of.clip == 1);
        for (int32_t i = 0; i < d.count; i++) CHECK(t, !d.settings[i].warns);
        zf_deepspeed_free(&d);
    }
}
