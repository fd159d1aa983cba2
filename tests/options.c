/* The command line of the samples: how options are read, and messages. */
#include "test.h"

#include "../examples/frame/options/options.h"
#include "../examples/frame/model/settings.h"
#include "../examples/gpt/model.h"

typedef struct values {
    const char *text;
    int64_t count, choice;
    double number;
    bool flag;
    const char *rest[2];
    int rest_count;
    char error[256];
} values;

enum { MOST = 8 };

/* Parses the arguments behind the program's name; the last one is NULL. */
static options_result parse(values *v, const char *const arguments[MOST])
{
    const option_row rows[] = {
        {"text", OPTION_TEXT, "FILE", &v->text, 0, 0, "a text"},
        {"count", OPTION_COUNT, "N", &v->count, -1, 1e12, "a count"},
        {"number", OPTION_NUMBER, "X", &v->number, 0, INFINITY, "a number"},
        {"number-of", OPTION_COUNT, "N", &v->count, 8, 1 << 20, "another count"},
        {"nothing", OPTION_FLAG, NULL, &v->flag, 0, 0, "a flag"},
        {"choice", OPTION_CHOICE, "one|other|once", &v->choice, 0, 0, "a choice"},
        {"half", OPTION_NUMBER, "X", &v->number, 0, 0.5, "a small number"},
        {NULL, OPTION_FLAG, NULL, NULL, 0, 0, NULL},
    };
    static char copies[MOST][64];
    char *argv[MOST + 1] = {copies[0]};
    int argc = 1;
    *v = (values){.count = 7, .number = 0.25, .choice = 1};
    for (; arguments[argc - 1]; argc++) {
        snprintf(copies[argc], sizeof copies[argc], "%s", arguments[argc - 1]);
        argv[argc] = copies[argc];
    }
    return options_parse(argc, argv, rows, v->rest, 2, &v->rest_count, v->error, sizeof v->error);
}

#define PARSE(v, ...) parse(v, (const char *const[MOST]){__VA_ARGS__, NULL})

TEST(options_of_every_kind)
{
    values v;
    CHECK(t, PARSE(&v, "--text", "a b", "--count", "12", "--number", "1.5e-3") == OPTIONS_GOOD);
    CHECK_TEXT(t, v.text, "a b");
    CHECK(t, v.count == 12 && v.number == 1.5e-3 && v.choice == 1 && !v.flag && v.rest_count == 0);
    CHECK(t, PARSE(&v, "--nothing", "--choice", "once", "--count=1e12") == OPTIONS_GOOD);
    CHECK(t, v.flag && v.choice == 2 && v.count == 1000000000000 && v.number == 0.25 && !v.text);
    CHECK(t, PARSE(&v, "--text=", "--choice=one") == OPTIONS_GOOD);
    CHECK_TEXT(t, v.text, "");
    CHECK(t, v.choice == 0);
    CHECK(t, PARSE(&v, "--text=a=b") == OPTIONS_GOOD);
    CHECK_TEXT(t, v.text, "a=b");
    CHECK(t, PARSE(&v, "--count", "-1", "--number", "0") == OPTIONS_GOOD);
    CHECK(t, v.count == -1 && v.number == 0);
    CHECK(t, PARSE(&v, "--count", "1", "--count", "2") == OPTIONS_GOOD);
    CHECK(t, v.count == 2);
    CHECK(t, PARSE(&v, "--text", "--nothing") == OPTIONS_GOOD); /* a value is taken as it is */
    CHECK_TEXT(t, v.text, "--nothing");
    CHECK(t, !v.flag);
}

TEST(options_abbreviated)
{
    values v;
    CHECK(t, PARSE(&v, "--t", "x", "--co=3", "--no") == OPTIONS_GOOD);
    CHECK_TEXT(t, v.text, "x");
    CHECK(t, v.count == 3 && v.flag);
    CHECK(t, PARSE(&v, "--number", "1") == OPTIONS_GOOD); /* --number-of begins so as well */
    CHECK(t, v.number == 1);
    CHECK(t, PARSE(&v, "--number-", "9") == OPTIONS_GOOD);
    CHECK(t, v.count == 9);
}

TEST(options_among_arguments)
{
    values v;
    CHECK(t, PARSE(&v, "first", "--nothing", "-") == OPTIONS_GOOD);
    CHECK(t, v.flag && v.rest_count == 2);
    CHECK_TEXT(t, v.rest[0], "first");
    CHECK_TEXT(t, v.rest[1], "-");
    CHECK(t, PARSE(&v, "--", "--nothing", "--help") == OPTIONS_GOOD);
    CHECK(t, !v.flag && v.rest_count == 2);
    CHECK_TEXT(t, v.rest[0], "--nothing");
    CHECK_TEXT(t, v.rest[1], "--help");
    CHECK(t, PARSE(&v, "--count", "bad", "--help") == OPTIONS_BAD);
    CHECK(t, PARSE(&v, "--help", "--count", "bad") == OPTIONS_HELP);
    CHECK(t, PARSE(&v, "-h") == OPTIONS_HELP);
    CHECK(t, PARSE(&v, "--text", "-h") == OPTIONS_GOOD);
}

TEST(options_that_are_refused)
{
    static const struct {
        const char *arguments[MOST], *error;
    } bad[] = {
        {{"--wrong"}, "there is no option '--wrong'"},
        {{"--wrong=1"}, "there is no option '--wrong=1'"},
        {{"--texts", "x"}, "there is no option '--texts'"},
        {{"-t", "x"}, "there is no option '-t'"},
        {{"--=x"}, "there is no option '--=x'"},
        {{"-="}, "there is no option '-='"},
        {{"--n"}, "'--n' is ambiguous: --number or --number-of"},
        {{"--num=1"}, "'--num=1' is ambiguous: --number or --number-of"},
        {{"--text"}, "--text needs a value: --text FILE"},
        {{"--ch"}, "--choice needs a value: --choice one|other|once"},
        {{"--nothing=1"}, "--nothing takes no value"},
        {{"--choice", "o"}, "--choice is one of one|other|once, not 'o'"},
        {{"--choice", "one|other"}, "--choice is one of one|other|once, not 'one|other'"},
        {{"--choice="}, "--choice is one of one|other|once, not ''"},
        {{"--count", "1.5"}, "--count takes a whole number from -1 to 1e+12, not '1.5'"},
        {{"--count", "-2"}, "--count takes a whole number from -1 to 1e+12, not '-2'"},
        {{"--count", "2e12"}, "--count takes a whole number from -1 to 1e+12, not '2e12'"},
        {{"--number-of", "7"}, "--number-of takes a whole number from 8 to 1048576, not '7'"},
        {{"--count", "3x"}, "--count takes a whole number from -1 to 1e+12, not '3x'"},
        {{"--count="}, "--count takes a whole number from -1 to 1e+12, not ''"},
        {{"--number", "-1"}, "--number takes a number of 0 or more, not '-1'"},
        {{"--number", "inf"}, "--number takes a number of 0 or more, not 'inf'"},
        {{"--number", "nan"}, "--number takes a number of 0 or more, not 'nan'"},
        {{"--number", "1e999"}, "--number takes a number of 0 or more, not '1e999'"},
        {{"--number", "--nothing"}, "--number takes a number of 0 or more, not '--nothing'"},
        {{"--half", "0.6"}, "--half takes a number from 0 to 0.5, not '0.6'"},
        {{"a", "b", "c"}, "'c' is one argument too many"},
        {{"a", "b", "--", "--text"}, "'--text' is one argument too many"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        values v;
        CHECK(t, parse(&v, bad[i].arguments) == OPTIONS_BAD);
        CHECK_TEXT(t, v.error, bad[i].error);
    }
}

TEST(options_help_shows_defaults)
{
    const char *text = "in.txt", *none = NULL;
    int64_t count = 16, choice = 1;
    double number = 0.001;
    bool flag = true;
    const option_row rows[] = {
        {"text", OPTION_TEXT, "FILE", &text, 0, 0, "a text"},
        {"none", OPTION_TEXT, "FILE", &none, 0, 0, "no text"},
        {"count", OPTION_COUNT, "N", &count, 0, 99, "a count"},
        {"number", OPTION_NUMBER, "X", &number, 0, 1, "a number"},
        {"flag", OPTION_FLAG, NULL, &flag, 0, 0, "a flag"},
        {"choice", OPTION_CHOICE, "first|second|third|and-a-long-last-one", &choice, 0, 0,
         "a choice"},
        {NULL, OPTION_FLAG, NULL, NULL, 0, 0, NULL},
    };
    static char got[2048];
    FILE *file = tmpfile();
    CHECK(t, file);
    options_print(file, rows);
    rewind(file);
    got[fread(got, 1, sizeof got - 1, file)] = 0;
    fclose(file);
    CHECK_TEXT(t, got,
               "  --text FILE                       a text [in.txt]\n"
               "  --none FILE                       no text\n"
               "  --count N                         a count [16]\n"
               "  --number X                        a number [0.001]\n"
               "  --flag                            a flag\n"
               "  --choice first|second|third|and-a-long-last-one\n"
               "                                    a choice [second]\n");
}

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
    CHECK(t, !settings_of(&o, "--batch-file b --optimizer lion --weight-decay 0 --steps 0 --clip 0"));
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
        {"--weights int8", "--weights requires --lora"},
        {"--freeze-step 5", "--freeze-step requires --optimizer onebit_adam, zero_one_adam or "
                            "onebit_lamb; it is adamw"},
        {"--cost measure", "--cost requires --prefetch"},
        {"--tuning f", "--tuning requires --device cuda; it is cpu"},
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

/* As few digits as read back the same. */
TEST(options_as_text)
{
    static const struct {
        double value;
        const char *text;
    } cases[] = {
        {0.1, "0.1"}, {1e-12, "1e-12"}, {1. / 3, "0.3333333333333333"}, {123456.5, "123456.5"}};
    char text[OPTION_VALUE];
    for (int k = 0; k < 4; k++) {
        double value = cases[k].value;
        option_row row = {"x", OPTION_NUMBER, "X", &value, 0, 1, ""};
        CHECK_TEXT(t, option_text(text, &row), cases[k].text);
        CHECK(t, strtod(text, NULL) == value);
    }
}
