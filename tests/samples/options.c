/* The command line of the samples: how options are read, and messages. */
#include "../support/test.h"

#include "../../examples/frame/model/settings.h"
#include "../../examples/gpt/model.h"

/* The frame's options, with a sample's own among them. */
typedef struct width_options {
    int64_t width;
} width_options;

static const zf_option width_rows[] = {
    ZF_OPTION(width_options, COUNT, width, 3, "[1,9]", .traits = ZF_OPTION_CHANGES),
    {.name = NULL}};

/* Reads a command line of GPT's; NULL: it is good, else what is wrong. */
static const char *settings_of(settings *o, const char *words)
{
    static zf_error error;
    static char text[300];
    static const settings_default defaults[] = {{"batch", "4"}, {"eps", "1e-7"}, {NULL, NULL}};
    static width_options own;
    const settings_desc desc = {.defaults = defaults, .own = {.rows = width_rows, .desc = &own}};
    settings_tables tables;
    char *argv[40] = {"gpt"};
    int argc = 1;
    own.width = 0;
    *o = (settings){.seq = 0};
    error = (zf_error){ZF_OK, ""};
    snprintf(text, sizeof text, "%s", words);
    for (char *at = strtok(text, " "); at; at = strtok(NULL, " ")) argv[argc++] = at;
    tables = settings_tables_of(o, &gpt_sample, &desc);
    const bool good = settings_read(o, &tables, &gpt_sample, &desc, argc, argv, &error);
    settings_free(o);
    return good ? NULL : error.text;
}

TEST_ONCE(settings_are_those_of_the_frame_and_of_the_sample)
{
    settings o;
    CHECK_TEXT(t, settings_of(&o, "--width 5"),
               "a text to train on is needed: --corpus FILE, or batches: --batch-file FILE");
    CHECK(t, !settings_of(&o, "--batch-file b --width 5 --lr 0.1 --schedule cosine --beta1 0.8"));
    CHECK(t, ((const width_options *)o.own)->width == 5 && o.lr == 0.1 && o.batch == 4);
    CHECK(t, o.schedule == ZF_COSINE && o.training.adamw.beta1 == 0.8);
    CHECK(t, o.training.adamw.weight_decay == 0.01 && o.training.adamw.eps == 1e-7);
    CHECK(t, o.training.clip == 1 && o.steps == 1000 && o.warmup == -1);
    CHECK(t,
          !settings_of(&o, "--batch-file b --optimizer lion --weight-decay 0 --steps 0 --clip 0"));
    CHECK(t, o.training.lion.weight_decay == ZF_ZERO && !o.steps && o.training.clip == ZF_ZERO);
    CHECK(t, ((const width_options *)o.own)->width == 3);
}

/* An option that has no effect is an error. */
TEST_ONCE(settings_without_effect)
{
    static const struct {
        const char *words, *wrong;
    } cases[] = {
        {"--momentum 0.1", "--momentum requires --optimizer sgd; it is adamw"},
        {"--optimizer lion --eps 0.5", "--eps requires --optimizer adamw, lamb, onebit_adam, "
                                       "zero_one_adam or onebit_lamb; it is lion"},
        {"--min-ratio 0.5", "--min-ratio requires --optimizer lamb or onebit_lamb; it is adamw"},
        {"--loco-bits 8", "--loco-bits requires --zero-loco"},
        {"--quantized-block 64",
         "--quantized-block requires --zero-quantized-weights or --zero-quantized-gradients"},
        {"--zero-hpz", "--zero-hpz requires --zero 3; it is 0"},
        {"--zero 3 --zero-hpz --mics 2", "--mics and --zero-hpz exclude each other"},
        {"--save-every 1", "--save-every requires --save"},
        {"--lora r=2 --dump d", "--dump and --lora exclude each other"},
        {"--weights int8", "--weights requires --lora"},
        {"--freeze-step 5", "--freeze-step requires --optimizer onebit_adam, zero_one_adam or "
                            "onebit_lamb; it is adamw"},
        {"--cost measure", "--cost requires --prefetch, --memory, --report-html or --trace"},
        {"--tuning f", "--tuning requires --device cuda or hip; it is cpu"},
        {"--corpus c --vocab v", "--corpus and --batch-file exclude each other"},
    };
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        settings o;
        char words[200];
        const char *wrong;
        snprintf(words, sizeof words, "--batch-file b %s", cases[k].words);
        wrong = settings_of(&o, words);
        CHECK_TEXT(t, wrong ? wrong : "good", cases[k].wrong);
    }
}

/* ------------------------------------------------------------------------ tables of the library */

typedef struct every_desc {
    int32_t small;
    int64_t large;
    size_t bytes;
    double number, share;
    bool flag;
    zf_dtype dtype;
    int64_t way;
    const char *text;
    zf_option_texts texts;
    struct inner {
        int64_t count;
        const char *names;
        bool flag;
    } inner;
    void *pointer;
} every_desc;

static const zf_option inner_rows[] = {
    ZF_OPTION(struct inner, COUNT, count, 3, "[1,9]", .flag = "n"),
    ZF_OPTION(struct inner, TEXT, names, 0, NULL, .unit = "NAME,..."),
    ZF_OPTION(struct inner, FLAG, flag, 0, NULL, .with = "count"),
    {.name = NULL}};

static const zf_option every_kind[] = {
    ZF_OPTION(every_desc, COUNT, small, 5, "[-1,100]", .topic = "one", .help = "a small count",
              .traits = ZF_OPTION_BASIC),
    ZF_OPTION(every_desc, COUNT, large, 0, "8|32", .with = "small=5|7", .help = "a large count"),
    ZF_OPTION(every_desc, BYTES, bytes, 0, NULL, .help = "bytes"),
    ZF_OPTION(every_desc, NUMBER, number, 0.5, "(0,inf]", .topic = "two", .help = "a number"),
    ZF_OPTION(every_desc, NUMBER, share, 0.25, "[0,1)", .with = "!flag", .help = "a share"),
    ZF_OPTION(every_desc, FLAG, flag, 0, NULL, .help = "a flag"),
    ZF_OPTION(every_desc, CHOICE, dtype, 0, "f32|bf16|f16", .help = "a dtype"),
    ZF_OPTION(every_desc, CHOICE, way, 1, "first|second|third", .with = "text|texts",
              .help = "a way"),
    ZF_OPTION(every_desc, TEXT, text, 0, NULL, .unit = "FILE", .help = "a text"),
    ZF_OPTION(every_desc, TEXTS, texts, 0, NULL, .help = "texts"),
    ZF_OPTION(every_desc, DESC, inner, 0, NULL, .flag = "inner", .rows = inner_rows,
              .help = "a desc of its own"),
    ZF_OPTION_CODED(every_desc, pointer),
    {.name = NULL}};

/* Sets one option; the error's text, or "". */
static const char *set_option(every_desc *d, const char *name, const char *text)
{
    static zf_error error;
    static char copies[4][80];
    static int next;
    char *copy = text ? strcpy(copies[next++ % 4], text) : NULL;
    (void)zf_options_set(&(zf_options){.rows = every_kind, .desc = d}, 1, name, copy, &error);
    return error.text;
}

TEST(options_are_set_by_name)
{
    every_desc d = {.small = 0};
    CHECK_TEXT(t, set_option(&d, "small", "-1"), "");
    CHECK_TEXT(t, set_option(&d, "bytes", "3K"), "");
    CHECK_TEXT(t, set_option(&d, "number", "inf"), "");
    CHECK_TEXT(t, set_option(&d, "share", "0"), "");
    CHECK_TEXT(t, set_option(&d, "flag", NULL), "");
    CHECK_TEXT(t, set_option(&d, "dtype", "bf16"), "");
    CHECK_TEXT(t, set_option(&d, "way", "first"), "");
    CHECK_TEXT(t, set_option(&d, "texts", "a"), "");
    CHECK_TEXT(t, set_option(&d, "texts", "b"), "");
    CHECK_TEXT(t, set_option(&d, "inner.count", "4"), "");
    CHECK(t, d.small == -1 && d.bytes == 3072 && isinf(d.number) && d.share == ZF_ZERO && d.flag);
    CHECK(t, d.dtype == ZF_BF16 && d.way == INT64_MIN && d.texts.count == 2 && d.inner.count == 4);
    CHECK_TEXT(t, set_option(&d, "inner", "n=7,names=a,b,flag"), "");
    CHECK(t, d.inner.count == 7 && d.inner.flag);
    CHECK_TEXT(t, d.inner.names, "a,b");
    zf_options_resolve(&(zf_options){.rows = every_kind, .desc = &d}, 1);
    CHECK(t, d.share == 0 && d.way == 0 && d.large == 0);
}

TEST(options_that_are_not_set)
{
    static const char *const cases[][3] = {
        {"small", "101", "--small takes a whole number from -1 to 100, not '101'"},
        {"small", "1.5", "--small takes a whole number from -1 to 100, not '1.5'"},
        {"large", "16", "--large takes 8 or 32, not '16'"},
        {"bytes", "9000000T", "--bytes takes a number of bytes of 0 or more, not '9000000T'"},
        {"bytes", "K", "--bytes takes a number of bytes of 0 or more, not 'K'"},
        {"number", "0", "--number takes a number above 0, not '0'"},
        {"number", "nan", "--number takes a number above 0, not 'nan'"},
        {"share", "1", "--share takes a number from 0 to below 1, not '1'"},
        {"flag", "yes", "--flag takes true or false, not 'yes'"},
        {"dtype", "f", "--dtype takes one of f32, bf16 or f16, not 'f'"},
        {"nunber", "1", "there is no option 'nunber'; is it --number?"},
        {"inner", "n=10", "--inner: count takes a whole number from 1 to 9, not '10'"},
        {"inner", "m", "--inner: there is no option 'm'; there are count, names, flag"},
        {"inner.cuont", "1", "there is no option 'inner.cuont'"},
        {"pointer", "1", "there is no option 'pointer'"},
    };
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        every_desc d = {.small = 0};
        CHECK_TEXT(t, set_option(&d, cases[k][0], cases[k][1]), cases[k][2]);
    }
}

TEST(options_without_effect_are_refused)
{
    every_desc d = {.small = 6, .large = 8};
    const zf_options all = {.rows = every_kind, .desc = &d};
    zf_error error;
    CHECK(t, zf_options_check(&all, 1, true, &error) == ZF_ERR_ARGUMENT);
    CHECK_TEXT(t, error.text, "--large requires --small 5 or 7; it is 6");
    d = (every_desc){.large = 8}; /* the default of `small` is 5 */
    CHECK(t, !zf_options_check(&all, 1, true, &error));
    d = (every_desc){.share = 0.5, .flag = true};
    CHECK(t, zf_options_check(&all, 1, false, &error));
    CHECK_TEXT(t, error.text, "share and flag exclude each other");
    d = (every_desc){.way = 2};
    CHECK(t, zf_options_check(&all, 1, true, &error));
    CHECK_TEXT(t, error.text, "--way requires --text or --texts");
    d = (every_desc){.inner.flag = true};
    CHECK(t, zf_options_check(&all, 1, false, &error));
    CHECK_TEXT(t, error.text, "inner.flag requires inner.count");
    d = (every_desc){.number = -1};
    CHECK(t, zf_options_check(&all, 1, false, &error));
    CHECK_TEXT(t, error.text, "number is -1; it must be a number above 0");
    d = (every_desc){.dtype = ZF_BOOL};
    CHECK(t, zf_options_check(&all, 1, false, &error));
    CHECK_TEXT(t, error.text, "dtype is 7; it must be f32, bf16 or f16");
}

/* What is printed reads back as the same desc, as words and as JSON. */
TEST_ONCE(options_read_what_they_print)
{
    every_desc d = {.small = 7,
                    .large = 8,
                    .bytes = 1 << 20,
                    .number = 1.0 / 3,
                    .dtype = ZF_F16,
                    .text = "a \"b\", c",
                    .way = 2,
                    .inner = {.count = 2, .names = "x,y"}},
               again;
    zf_options all = {.rows = every_kind, .desc = &d};
    char text[400], other[400];
    const char *json;
    zf_error error = {ZF_OK, ""};
    zf_json_writer *w = zf_json_writer_new(0, NULL);
    zf_json *tree;
    CHECK(t, zf_options_text(&all, 1, text, sizeof text) == strlen(text));
    CHECK_TEXT(t, text,
               "small=7 large=8 bytes=1048576 number=0.3333333333333333 dtype=f16 way=third "
               "text=\"a \\\"b\\\", c\" inner.count=2 inner.names=\"x,y\"");
    again = (every_desc){.small = 0};
    snprintf(other, sizeof other, "%s", text);
    all.desc = &again;
    CHECK(t, !zf_options_words(&all, other, &error));
    CHECK(t, zf_options_text(&all, 1, NULL, 0) == strlen(text) && again.number == d.number);
    CHECK_TEXT(t, again.text, d.text);
    zf_json_begin_object(w);
    zf_options_put_json(&all, 1, w);
    zf_json_end(w);
    json = zf_json_text(w, NULL, &error);
    CHECK_TEXT(t, json ? json : error.text,
               "{\"small\":7,\"large\":8,\"bytes\":1048576,\"number\":0.3333333333333333,"
               "\"dtype\":\"f16\",\"way\":\"third\",\"text\":\"a \\\"b\\\", c\","
               "\"inner\":{\"count\":2,\"names\":\"x,y\"}}");
    tree = zf_json_parse(json, strlen(json), NULL, &error);
    every_desc third = {.small = 0};
    all.desc = &third;
    CHECK(t, !zf_options_read_json(&all, tree, &error));
    CHECK(t, third.way == 2 && third.large == 8 && third.inner.count == 2);
    zf_json_free(tree);
    zf_json_writer_free(w);
    json = "{\"inner\":\n {\"cuont\": 1}}";
    tree = zf_json_parse(json, strlen(json), NULL, &error);
    CHECK(t, zf_options_read_json(&all, tree, &error) == ZF_ERR_FORMAT);
    CHECK(t, strstr(error.text, "2:") && strstr(error.text, "\"cuont\"; is it \"count\"?"));
    zf_json_free(tree);
}

/* Rows of one table, and of those within it. */
static void check_rows(test *t, const zf_option *rows, size_t size, const char *of, int *count)
{
    static unsigned char taken[4096];
    memset(taken, 0, size);
    for (const zf_option *row = rows; row->name; row++, ++*count) {
        const size_t sizes[] = {[ZF_OPTION_FLAG] = sizeof(bool),
                                [ZF_OPTION_NUMBER] = sizeof(double),
                                [ZF_OPTION_TEXT] = sizeof(char *),
                                [ZF_OPTION_TEXTS] = sizeof(zf_option_texts),
                                [ZF_OPTION_CODE] = 0};
        const size_t asked = row->kind < sizeof sizes / sizeof *sizes ? sizes[row->kind] : 0;
        const bool integer = row->kind == ZF_OPTION_COUNT || row->kind == ZF_OPTION_BYTES ||
                             row->kind == ZF_OPTION_CHOICE;
        if (row->at + row->size > size || (asked && row->size != asked) ||
            (integer && row->size != 4 && row->size != 8) ||
            (row->kind == ZF_OPTION_CHOICE && !row->range))
            test_fail(t, __FILE__, __LINE__, of, row->name);
        for (size_t k = 0; k < row->size; k++)
            if (taken[row->at + k]++) test_fail(t, __FILE__, __LINE__, "two rows", row->name);
    }
    /* A member without a row: more bytes in sequence than padding takes. */
    for (size_t k = 0, gap = 0; k < size; k++) {
        gap = taken[k] ? 0 : gap + 1;
        if (gap == 8) {
            char where[80];
            snprintf(where, sizeof where, "byte %d of %s", (int)k - 7, of);
            test_fail(t, __FILE__, __LINE__, "a member without a row", where);
        }
    }
    for (const zf_option *row = rows; row->name; row++)
        if (row->kind == ZF_OPTION_DESC) check_rows(t, row->rows, row->size, row->name, count);
}

TEST_ONCE(options_of_a_training_have_a_row_each)
{
    int count = 0;
    check_rows(t, zf_training_options(), sizeof(zf_training), "zf_training", &count);
    CHECK(t, count > 100);
}

typedef struct seen_options {
    int count, changing;
    char text[64];
} seen_options;

static void see_option(void *user, const zf_option_value *v)
{
    seen_options *s = user;
    s->count++, s->changing += (v->row->traits & ZF_OPTION_CHANGES) != 0;
    if (!strcmp(v->path, "inner.count"))
        snprintf(s->text, sizeof s->text, "%s %d", v->text, v->given);
}

/* Takes a command line, words with a space between, into the desc; the error's text, or "". */
static const char *take_words(every_desc *d, const char *words, int *argc, char *argv[12])
{
    static zf_error error;
    static char text[200];
    *d = (every_desc){.small = 0};
    *argc = 1, argv[0] = "program";
    snprintf(text, sizeof text, "%s", words);
    for (char *at = strtok(text, " "); at; at = strtok(NULL, " ")) argv[(*argc)++] = at;
    (void)zf_options_take(&(zf_options){.rows = every_kind, .desc = d}, 1, argc, argv, &error);
    return error.text;
}

TEST(options_of_a_command_line)
{
    every_desc d;
    char *argv[12];
    int argc;
    CHECK_TEXT(t, take_words(&d, "first --text a=b --fl - --sm=3 --dtype bf16", &argc, argv), "");
    CHECK_TEXT(t, d.text, "a=b");
    CHECK(t, d.flag && d.small == 3 && d.dtype == ZF_BF16 && argc == 3);
    CHECK_TEXT(t, argv[1], "first");
    CHECK_TEXT(t, argv[2], "-");
    CHECK_TEXT(t, take_words(&d, "--text= --small 1 --small 2 --texts x --texts=y", &argc, argv),
               "");
    CHECK(t, d.text && !*d.text && d.small == 2 && d.texts.count == 2);
    CHECK_TEXT(t, d.texts.at[1], "y");
    /* --texts begins with --text too, which is a name of its own. A value is taken as it is. */
    CHECK_TEXT(t, take_words(&d, "--text --flag -- --small -h", &argc, argv), "");
    CHECK_TEXT(t, d.text, "--flag");
    CHECK(t, !d.flag && d.small == 0 && argc == 3);
    CHECK_TEXT(t, argv[1], "--small");
    CHECK_TEXT(t, argv[2], "-h");
}

TEST(options_that_a_command_line_refuses)
{
    static const char *const cases[][2] = {
        {"--qqqqqq", "there is no option '--qqqqqq'"},
        {"--qqqqqq=1", "there is no option '--qqqqqq=1'"},
        {"--smal1 2", "there is no option '--smal1'; is it --small?"},
        {"-s 1", "there is no option '-s'"},
        {"--=x", "there is no option '--=x'"},
        {"-=", "there is no option '-='"},
        {"--s 1", "'--s' is ambiguous: --small or --share"},
        {"--tex=a", "'--tex=a' is ambiguous: --text or --texts"},
        {"--text", "--text needs a value"},
        {"--flag=1", "--flag takes no value"},
        {"--dtype=", "--dtype takes one of f32, bf16 or f16, not ''"},
        {"--dtype f32|bf16", "--dtype takes one of f32, bf16 or f16, not 'f32|bf16'"},
        {"--number --flag", "--number takes a number above 0, not '--flag'"},
        {"--small 3x", "--small takes a whole number from -1 to 100, not '3x'"},
        {"--small 1e3", "--small takes a whole number from -1 to 100, not '1e3'"},
    };
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        every_desc d;
        char *argv[12];
        int argc;
        CHECK_TEXT(t, take_words(&d, cases[k][0], &argc, argv), cases[k][1]);
    }
}

TEST(options_of_nothing)
{
    zf_error error;
    every_desc d = {.inner.count = 6};
    const zf_options all = {.rows = every_kind, .desc = &d};
    seen_options seen = {0, 0, ""};
    char text[8] = "x", *argv[] = {"program", "rest", NULL};
    int argc = 2;
    CHECK(t, zf_options_set(NULL, 0, "a", text, &error) == ZF_ERR_ARGUMENT);
    CHECK(t, zf_options_set(&all, 1, NULL, text, &error) == ZF_ERR_ARGUMENT);
    CHECK_TEXT(t, error.text, "zf_options_set: NULL");
    CHECK(t, zf_options_default(&all, 1, NULL, text, &error) == ZF_ERR_ARGUMENT);
    CHECK_TEXT(t, error.text, "zf_options_default: NULL");
    CHECK(t, zf_options_help(&all, 1, "all", NULL, &error) == ZF_ERR_ARGUMENT);
    CHECK_TEXT(t, error.text, "zf_options_help: file is NULL");
    CHECK(t, zf_options_help(&all, 1, "qqqq", stdout, &error) == ZF_ERR_ARGUMENT);
    CHECK(t, strstr(error.text, "there is no topic 'qqqq'; there are "));
    CHECK(t, set_option(&d, "pointer", "x") != NULL);
    for (int k = 0; k <= ZF_OPTION_TIMES; k++) (void)zf_options_set(&all, 1, "texts", text, &error);
    CHECK(t, strstr(error.text, "--texts is given more than "));
    d.texts.count = 0;
    CHECK(t, zf_options_set(&all, 1, "text", NULL, &error) == ZF_ERR_ARGUMENT);
    CHECK(t, zf_options_default(NULL, 0, "a", text, NULL) == ZF_ERR_ARGUMENT);
    CHECK(t, zf_options_take(&all, 1, NULL, argv, &error) == ZF_ERR_ARGUMENT);
    CHECK_TEXT(t, error.text, "zf_options_take: NULL");
    CHECK(t, zf_options_take(&all, 1, &argc, NULL, &error) == ZF_ERR_ARGUMENT);
    CHECK(t, zf_options_words(NULL, text, &error) == ZF_ERR_ARGUMENT);
    CHECK(t, zf_options_words(&all, NULL, &error) == ZF_ERR_ARGUMENT);
    CHECK_TEXT(t, error.text, "zf_options_words: NULL");
    CHECK(t, zf_options_read_json(&all, NULL, &error) == ZF_ERR_ARGUMENT);
    CHECK_TEXT(t, error.text, "zf_options_read_json: NULL");
    CHECK(t, !zf_options_check(NULL, 0, true, &error) && zf_options_text(NULL, 3, NULL, 0) == 0);
    zf_options_resolve(NULL, 2);
    zf_options_each(&all, 1, NULL, NULL);
    zf_options_each(&all, 1, see_option, &seen);
    CHECK(t, seen.count == 13 && !seen.changing);
    CHECK_TEXT(t, seen.text, "6 1");
    CHECK(t, !zf_options_take(&all, 1, &argc, argv, &error) && argc == 2);
    CHECK_TEXT(t, argv[1], "rest");
}
