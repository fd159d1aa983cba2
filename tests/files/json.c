/* The JSON reader and writer: values, places, every message, round trips. */
#include "../support/test.h"

#include <locale.h>
#include <sys/stat.h>

/* Parses a literal; the tree is freed at the end of the body. */
static const zf_json *parse(test *t, const char *text, zf_error *error)
{
    zf_json *top = zf_json_parse(text, strlen(text), &t->allocator, error);
    if (top) test_defer(t, (test_cleanup *)zf_json_free, top);
    return top;
}

TEST(json_reads_every_kind_of_value)
{
    zf_error error = {0};
    const zf_json *top = parse(t,
                               "{\n"
                               "  \"text\": \"a\\\"\\\\\\/\\b\\f\\n\\r\\t\\u00e9\\ud83d\\ude00\",\n"
                               "  \"list\": [1, [true, false], {\"x\": null}, []],\n"
                               "  \"none\": {}, \"half\": 0.5\n"
                               "}\n",
                               &error);
    const zf_json *list, *value;
    const char *text = NULL;
    int64_t line, column, whole = 0;
    size_t bytes = 0;
    bool yes = false, no = true;
    double half = 0;
    NEED(t, top, &error);
    CHECK(t, zf_json_type_of(top) == ZF_JSON_OBJECT && zf_json_length(top) == 4);
    OK(t, zf_json_to_string(zf_json_member(top, "text"), &text, &error), error.text);
    CHECK_TEXT(t, text, "a\"\\/\b\f\n\r\t\xc3\xa9\xf0\x9f\x98\x80");
    CHECK(t, zf_json_string(zf_json_member(top, "text"), &bytes) == text && bytes == strlen(text));
    list = zf_json_member(top, "list");
    CHECK(t, zf_json_type_of(list) == ZF_JSON_ARRAY && zf_json_length(list) == 4);
    OK(t, zf_json_to_int(zf_json_element(list, 0), 1, 1, &whole, &error), error.text);
    value = zf_json_element(list, 1);
    CHECK(t, zf_json_length(value) == 2);
    OK(t, zf_json_to_bool(zf_json_element(value, 0), &yes, &error), error.text);
    OK(t, zf_json_to_bool(zf_json_element(value, 1), &no, &error), error.text);
    CHECK(t, whole == 1 && yes && !no);
    CHECK(t, zf_json_type_of(zf_json_member(zf_json_element(list, 2), "x")) == ZF_JSON_NULL);
    CHECK(t, zf_json_type_of(zf_json_element(list, 3)) == ZF_JSON_ARRAY &&
                 !zf_json_first(zf_json_element(list, 3)));
    CHECK(t, !zf_json_element(list, 4) && !zf_json_element(list, -1) && !zf_json_element(top, 0));
    OK(t, zf_json_to_double(zf_json_member(top, "half"), 0, 1, &half, &error), error.text);
    CHECK(t, half == 0.5);
    text = zf_json_number(zf_json_member(top, "half"), &bytes);
    CHECK(t, text && bytes == 3 && !memcmp(text, "0.5", 3) && !zf_json_number(top, &bytes));
    zf_json_where(zf_json_member(top, "half"), &line, &column);
    CHECK(t, line == 4 && column == 23);
    zf_json_where(top, &line, &column);
    CHECK(t, line == 1 && column == 1);
    CHECK(t, zf_json_member(top, "tex") == NULL && zf_json_member(top, "x") == NULL);
}

TEST(json_iterates_in_the_order_of_the_text)
{
    zf_error error = {0};
    const zf_json *top = parse(t, "{\"b\":[[1,[2]],3],\"a\":{\"c\":{}},\"\":4}", &error);
    const zf_json *value, *element;
    char seen[64] = "";
    size_t bytes;
    NEED(t, top, &error);
    for (value = zf_json_first(top); value; value = zf_json_next(value)) {
        strcat(seen, zf_json_key(value, &bytes));
        strcat(seen, "=");
        CHECK(t, bytes == strlen(zf_json_key(value, NULL)));
        for (element = zf_json_first(value); element; element = zf_json_next(element)) {
            const char *kinds = "?0tnsao";
            strncat(seen, kinds + zf_json_type_of(element), 1);
        }
        strcat(seen, ";");
    }
    CHECK_TEXT(t, seen, "b=an;a=o;=;");
    CHECK(t, zf_json_key(top, NULL) == NULL &&
                 zf_json_key(zf_json_first(zf_json_first(top)), NULL) == NULL);
    CHECK(t, zf_json_next(top) == NULL);
}

TEST(json_accepts_null_for_a_value)
{
    zf_error error = {0};
    int64_t whole = 7, line = 7, column = 7;
    double number = 7;
    bool yes = true;
    const char *text = "kept";
    CHECK(t, zf_json_type_of(NULL) == ZF_JSON_MISSING && zf_json_length(NULL) == 0);
    CHECK(t, !zf_json_member(NULL, "a") && !zf_json_element(NULL, 0) && !zf_json_first(NULL) &&
                 !zf_json_next(NULL));
    CHECK(t, !zf_json_key(NULL, NULL) && !zf_json_string(NULL, NULL) && !zf_json_number(NULL, NULL) &&
                 !zf_json_require(NULL, "a", &error));
    OK(t, zf_json_to_int(NULL, 0, 1, &whole, &error), error.text);
    OK(t, zf_json_to_double(NULL, 0, 1, &number, &error), error.text);
    OK(t, zf_json_to_bool(NULL, &yes, &error), error.text);
    OK(t, zf_json_to_string(NULL, &text, &error), error.text);
    zf_json_where(NULL, &line, &column);
    CHECK(t, whole == 7 && number == 7 && yes && !strcmp(text, "kept") && !line && !column &&
                 !error.status);
    CHECK(t, zf_json_expected(NULL, &error, "given with %s", "vocab") == ZF_ERR_FORMAT);
    CHECK_TEXT(t, error.text, "a value that is missing must be given with vocab");
    zf_json_free(NULL);
}

TEST(json_integers_are_exact_in_any_notation)
{
    static const struct {
        const char *text;
        int64_t value;
    } good[] = {
        {"5e8", 500000000},
        {"5E+8", 500000000},
        {"0.5e9", 500000000},
        {"1.0", 1},
        {"-0", 0},
        {"-0.0e5", 0},
        {"0e999999999999999999999", 0},
        {"12300e-2", 123},
        {"9223372036854775807", INT64_MAX},
        {"-9223372036854775808", INT64_MIN},
        {"922337203685477580.7e1", INT64_MAX},
        {"9007199254740993", 9007199254740993},
        {"0.00000000000000000000000000000000000000000000000000000000000001e65", 1000},
    };
    static const char *const bad[] = {
        "1.5",   "1e-1",   "9223372036854775808", "-9223372036854775809", "1e19",
        "1e300", "5e-324", "18446744073709551616"};
    for (int i = 0; i < (int)(sizeof good / sizeof good[0]); i++) {
        zf_error error = {0};
        const zf_json *top = parse(t, good[i].text, &error);
        int64_t value = 1;
        double number = 1;
        NEED(t, top, &error);
        OK(t, zf_json_to_int(top, INT64_MIN, INT64_MAX, &value, &error), error.text);
        OK(t, zf_json_to_double(top, -INFINITY, INFINITY, &number, &error), error.text);
        CHECK(t, value == good[i].value && number == (double)value);
        CHECK(t, !value ? !signbit(number) == (good[i].text[0] != '-') : true);
    }
    for (int i = 0; i < (int)(sizeof bad / sizeof bad[0]); i++) {
        zf_error error = {0};
        const zf_json *top = parse(t, bad[i], &error);
        int64_t value = 1;
        char expected[128];
        NEED(t, top, &error);
        CHECK(t, zf_json_to_int(top, INT64_MIN, INT64_MAX, &value, &error) == ZF_ERR_FORMAT &&
                     value == 1);
        snprintf(expected, sizeof expected,
                 "1:1: the top value must be an integer of 64 bits, not %s", bad[i]);
        CHECK_TEXT(t, error.text, expected);
    }
}

TEST(json_numbers_are_those_of_strtod)
{
    static const char *const texts[] = {
        "0.1",
        "1e-7",
        "-2.5e-3",
        "3.141592653589793",
        "1.7976931348623157e308",
        "4.9e-324",
        "2.2250738585072011e-308",
        "1e-400",
        "123456789012345678901234567890",
        "9007199254740992.5",
        "0.000000000000000000000000000000000000000000000000000000000001",
        "1.00000000000000011102230246251565404236316680908203125",
        "1.00000000000000011102230246251565404236316680908203124",
        "1.00000000000000011102230246251565404236316680908203126",
    };
    for (int i = 0; i < (int)(sizeof texts / sizeof texts[0]); i++) {
        zf_error error = {0};
        const zf_json *top = parse(t, texts[i], &error);
        double number = 1;
        NEED(t, top, &error);
        OK(t, zf_json_to_double(top, -INFINITY, INFINITY, &number, &error), error.text);
        CHECK(t, number == strtod(texts[i], NULL));
    }
}

/* 1 + 2^-53 exactly, then 900 zeros and a 1: above the middle, so it rounds up, although the 1 is
 * past every buffer. */
TEST(json_long_numbers_round_right)
{
    char text[1100];
    zf_error error = {0};
    const zf_json *top;
    double number = 0;
    int length = snprintf(text, sizeof text, "%s%0900d1",
                          "1.00000000000000011102230246251565404236316680908203125", 0);
    CHECK(t, length < (int)sizeof text);
    top = parse(t, text, &error);
    NEED(t, top, &error);
    OK(t, zf_json_to_double(top, 0, 2, &number, &error), error.text);
    CHECK(t, number == 1.0000000000000002);
    text[length - 1] = '0';
    top = parse(t, text, &error);
    NEED(t, top, &error);
    OK(t, zf_json_to_double(top, 0, 2, &number, &error), error.text);
    CHECK(t, number == 1);
}

TEST(json_ignores_the_locale)
{
    static const char *const names[] = {"de_DE.UTF-8", "fr_FR.UTF-8", "de_DE", "nl_NL.UTF-8"};
    zf_error error = {0};
    const zf_json *top;
    zf_json_writer *writer = zf_json_writer_new(0, &t->allocator);
    const char *text;
    double number = 0;
    NEED(t, writer, NULL);
    test_defer(t, (test_cleanup *)zf_json_writer_free, writer);
    /* Where no such locale is installed this tests the C locale again. */
    for (int i = 0; i < 4 && !setlocale(LC_NUMERIC, names[i]); i++) continue;
    top = parse(t, "[0.1, 1.5e3]", &error);
    if (top) zf_json_to_double(zf_json_element(top, 0), 0, 1, &number, &error);
    zf_json_put_double(writer, 0.1);
    setlocale(LC_NUMERIC, "C");
    NEED(t, top, &error);
    CHECK(t, number == 0.1);
    text = zf_json_text(writer, NULL, &error);
    NEED(t, text, &error);
    CHECK_TEXT(t, text, "0.1");
}

TEST(json_refuses_what_is_not_json)
{
    static const struct {
        const char *text, *message;
    } cases[] = {
        {"", "1:1: expected a value, found the end of the text"},
        {" \n\t ", "2:3: expected a value, found the end of the text"},
        {"[1, 2",
         "1:6: expected ',' or ']' in the array that began on line 1, found the end of the text"},
        {"{\"a\": 1\n\"b\": 2}",
         "2:1: expected ',' or '}' in the object that began on line 1, found '\"'"},
        {"[1 2]", "1:4: expected ',' or ']' in the array that began on line 1, found '2'"},
        {"[1, 2,]", "1:7: expected a value after ',', found ']': no trailing commas in JSON"},
        {"{\"a\": 1,}", "1:9: expected a key after ',', found '}': no trailing commas in JSON"},
        {"[,1]", "1:2: expected a value or ']', found ','"},
        {"[1,,2]", "1:4: expected a value, found ','"},
        {"{\"a\":}", "1:6: expected a value, found '}'"},
        {"{\"a\" 1}", "1:6: expected ':' after the key \"a\", found '1'"},
        {"{\"a\"", "1:5: expected ':' after the key \"a\", found the end of the text"},
        {"{a: 1}", "1:2: expected a key in double quotes or '}', found 'a'"},
        {"{\"a\": 1, 'b': 2}", "1:10: expected a key in double quotes, found '''"},
        {"[1}", "1:3: expected ',' or ']' in the array that began on line 1, found '}'"},
        {"1 2", "1:3: expected the end of the text, found '2'"},
        {"{}]", "1:3: expected the end of the text, found ']'"},
        {"NaN", "1:1: expected a value, found 'NaN'"},
        {"[-Infinity]", "1:2: a digit must follow '-'"},
        {"nul", "1:1: expected a value, found 'nul'"},
        {"truey", "1:1: expected a value, found 'truey'"},
        {"True", "1:1: expected a value, found 'True'"},
        {"// hidden size\n768", "1:1: expected a value, found '/': no comments in JSON"},
        {"'a'", "1:1: expected a value, found '''"},
        {"+1", "1:1: expected a value, found '+'"},
        {".5", "1:1: expected a value, found '.'"},
        {"[-]", "1:2: a digit must follow '-'"},
        {"01", "1:1: no number begins with 0 and a digit"},
        {"-01", "1:1: no number begins with 0 and a digit"},
        {"1.", "1:1: a digit must follow '.'"},
        {"1.e5", "1:1: a digit must follow '.'"},
        {"1e", "1:1: a digit must follow the exponent's 'e'"},
        {"1e+", "1:1: a digit must follow the exponent's 'e'"},
        {"0x10", "1:2: expected the end of the text, found 'x10'"},
        {"1e400", "1:1: 1e400 is too large for a double"},
        {"-1e99999999999999999999", "1:1: -1e99999999999999999999 is too large for a double"},
        {"1111111111111111111111111111111111111111111111111111e999",
         "1:1: 1111111111111111111111111111111111111111... is too large for a double"},
        {"\"abc", "1:1: a string that nothing closes"},
        {"[\"\xc3\xa9\", \"abc", "1:7: a string that nothing closes"},
        {"\"a\nb\"", "1:3: a control character in a string: write it as \\u000a"},
        {"\"a\tb\"", "1:3: a control character in a string: write it as \\u0009"},
        {"\"\\x41\"", "1:2: JSON has no escape of a backslash and 'x41'"},
        {"\"\\\xc3\xa9\"", "1:2: JSON has no escape of a backslash and '\xc3\xa9'"},
        {"\"\\", "1:2: JSON has no escape of a backslash and the end of the text"},
        {"\"\\u12g4\"", "1:2: \\u needs four hexadecimal digits"},
        {"\"\\u12", "1:2: \\u needs four hexadecimal digits"},
        {"\"\\ud800\"",
         "1:2: \\ud800 is half a character: surrogates come in pairs, high then low"},
        {"\"\\ud800\\u0041\"",
         "1:2: \\ud800 is half a character: surrogates come in pairs, high then low"},
        {"\"\\ud800\\ud800\"",
         "1:2: \\ud800 is half a character: surrogates come in pairs, high then low"},
        {"\"\\udc00\\ud800\"",
         "1:2: \\udc00 is half a character: surrogates come in pairs, high then low"},
        {"\"\xff\"", "1:2: byte 0xff is not UTF-8"},
        {"\"\xc3\"", "1:2: byte 0xc3 is not UTF-8"},
        {"\"\xc0\xaf\"", "1:2: byte 0xc0 is not UTF-8"},
        {"\"\xe0\x80\xaf\"", "1:2: byte 0xe0 is not UTF-8"},
        {"\"\xf0\x80\x80\xaf\"", "1:2: byte 0xf0 is not UTF-8"},
        {"\"\xed\xa0\x80\"", "1:2: byte 0xed is not UTF-8"},
        {"\"\xf4\x90\x80\x80\"", "1:2: byte 0xf4 is not UTF-8"},
        {"\"\x80\"", "1:2: byte 0x80 is not UTF-8"},
        {"\"\xc3\xa9\xc3\xa9\" \xc3\xa9", "1:6: expected the end of the text, found '\xc3\xa9'"},
        {"\xff", "1:1: expected a value, found byte 0xff"},
        {"\x01", "1:1: expected a value, found byte 0x01"},
        {"\xef\xbb\xbf{}", "1:1: a byte order mark: save the text as UTF-8 without one"},
        {"{\"size\": 1,\n \"b\": {\"size\": 2},\n \"size\": 3}",
         "3:2: the key \"size\" is already there, on line 1"},
        {"{\"a\": 1, \"\\u0061\": 2}", "1:10: the key \"a\" is already there, on line 1"},
        {"{\"a\\u0000b\": 1, \"a\\u0000b\": 2}",
         "1:17: the key \"a\\u0000b\" is already there, on line 1"},
    };
    for (int i = 0; i < (int)(sizeof cases / sizeof cases[0]); i++) {
        zf_error error = {0};
        const zf_json *top = parse(t, cases[i].text, &error);
        CHECK(t, !top);
        if (error.status != ZF_ERR_FORMAT) NEED(t, top, &error);
        CHECK_TEXT(t, error.text, cases[i].message);
    }
}

TEST(json_limits_its_depth)
{
    char text[300];
    zf_error error = {0};
    memset(text, '[', 128);
    memset(text + 128, ']', 128);
    text[256] = '\0';
    NEED(t, parse(t, text, &error), &error);
    memset(text, '[', 129);
    memset(text + 129, ']', 129);
    text[258] = '\0';
    CHECK(t, !parse(t, text, &error));
    if (error.status != ZF_ERR_FORMAT) NEED(t, NULL, &error);
    CHECK_TEXT(t, error.text, "1:129: more than 128 levels of nesting");
}

TEST_ONCE(json_refuses_texts_that_are_too_long)
{
    zf_error error = {0};
    CHECK(t, !zf_json_parse("", (size_t)INT32_MAX, &t->allocator, &error) &&
                 error.status == ZF_ERR_LIMIT);
    CHECK_TEXT(t, error.text, "JSON of 2147483647 bytes, at most 2147483646 are read");
}

TEST(json_keeps_the_first_error)
{
    zf_error error = {0};
    const zf_json *top = parse(t, "{\"a\": \"x\"}", &error);
    int64_t value = 3;
    NEED(t, top, &error);
    zf_json_to_int(zf_json_member(top, "a"), 0, 9, &value, &error);
    zf_json_require(top, "b", &error);
    CHECK(t, value == 3);
    CHECK_TEXT(t, error.text, "1:7: a must be an integer from 0 to 9, not \"x\"");
    CHECK(t, zf_json_to_int(zf_json_member(top, "a"), 0, 9, &value, NULL) == ZF_ERR_FORMAT);
}

/* The messages for a wrong config.json. */
TEST(json_messages_name_place_path_and_value)
{
    static const char text[] =
        "{\n"
        "  \"hidden_size\": \"768\",\n"
        "  \"heads\": 11, \"eps\": 2, \"tie\": 1,\n"
        "  \"optimizer\": {\"params\": {\"betas\": [0.9, \"0.999\"], \"a b\": null}},\n"
        "  \"vocab\": 1e2, \"act\": [\"gelu\"], \"nul\": \"a\\u0000b\",\n"
        "  \"long\": \"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\",\n"
        "  \"tab\\t\\u00e9\": {\"b\": 111111111111111111111111111111111111111111111111111}\n"
        "}\n";
    const char *path = test_path("config.json");
    zf_error error = {0};
    FILE *file = fopen(path, "w");
    zf_json *top;
    const zf_json *betas, *params, *last = NULL;
    int64_t whole;
    double number;
    bool yes;
    const char *string;
    char expected[512];
    CHECK(t,
          file && fwrite(text, 1, sizeof text - 1, file) == sizeof text - 1 && fclose(file) == 0);
    top = zf_json_read(path, &t->allocator, &error);
    NEED(t, top, &error);
    test_defer(t, (test_cleanup *)zf_json_free, top);
#define MESSAGE(call, message)                                                                     \
    do {                                                                                           \
        error = (zf_error){0};                                                                     \
        (void)(call);                                                                              \
        CHECK(t, error.status == ZF_ERR_FORMAT);                                                   \
        snprintf(expected, sizeof expected, "%s:%s", path, message);                               \
        CHECK_TEXT(t, error.text, expected);                                                       \
    } while (0)
    MESSAGE(zf_json_to_int(zf_json_member(top, "hidden_size"), 1, INT64_MAX, &whole, &error),
            "2:18: hidden_size must be a positive integer, not \"768\"");
    MESSAGE(zf_json_to_int(zf_json_member(top, "vocab"), 200, INT64_MAX, &whole, &error),
            "5:12: vocab must be an integer of at least 200, not 1e2");
    MESSAGE(zf_json_to_int(zf_json_member(top, "heads"), -5, 5, &whole, &error),
            "3:12: heads must be an integer from -5 to 5, not 11");
    MESSAGE(zf_json_to_int(zf_json_member(top, "tie"), 2, INT64_MAX, &whole, &error),
            "3:33: tie must be an integer of at least 2, not 1");
    MESSAGE(zf_json_to_bool(zf_json_member(top, "tie"), &yes, &error),
            "3:33: tie must be true or false, not 1");
    MESSAGE(zf_json_to_double(zf_json_member(top, "eps"), 0, 1, &number, &error),
            "3:23: eps must be a number from 0.0 to 1.0, not 2");
    MESSAGE(zf_json_to_double(zf_json_member(top, "eps"), 2.5, INFINITY, &number, &error),
            "3:23: eps must be a number of at least 2.5, not 2");
    MESSAGE(zf_json_to_double(zf_json_member(top, "eps"), -INFINITY, 1e-5, &number, &error),
            "3:23: eps must be a number of at most 0.00001, not 2");
    params = zf_json_member(zf_json_member(top, "optimizer"), "params");
    betas = zf_json_member(params, "betas");
    MESSAGE(zf_json_to_double(zf_json_element(betas, 1), -INFINITY, INFINITY, &number, &error),
            "4:43: optimizer.params.betas[1] must be a number, not \"0.999\"");
    MESSAGE(zf_json_to_string(zf_json_member(params, "a b"), &string, &error),
            "4:60: optimizer.params.\"a b\" must be a string, not null");
    MESSAGE(zf_json_to_string(zf_json_member(top, "act"), &string, &error),
            "5:24: act must be a string, not an array");
    MESSAGE(zf_json_to_string(zf_json_member(top, "nul"), &string, &error),
            "5:41: nul must be a string without zero bytes, not \"a\\u0000b\"");
    MESSAGE(zf_json_to_int(zf_json_member(top, "long"), 1, INT64_MAX, &whole, &error),
            "6:11: long must be a positive integer, not "
            "\"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa...\"");
    MESSAGE(zf_json_to_int(params, 1, 2, &whole, &error),
            "4:27: optimizer.params must be an integer from 1 to 2, not an object");
    for (const zf_json *v = zf_json_first(top); v; v = zf_json_next(v)) last = v;
    MESSAGE(zf_json_to_bool(zf_json_member(last, "b"), &yes, &error),
            "7:24: \"tab\\t\xc3\xa9\".b must be true or false, not "
            "1111111111111111111111111111111111111111...");
    MESSAGE(zf_json_require(top, "vocab_size", &error), "1:1: the top value lacks \"vocab_size\"");
    MESSAGE(zf_json_require(params, "lr", &error), "4:27: optimizer.params lacks \"lr\"");
    MESSAGE(zf_json_require(betas, "lr", &error),
            "4:37: optimizer.params.betas must be an object, not an array");
    MESSAGE(
        zf_json_fail(zf_json_member(top, "heads"), &error, "does not divide hidden_size (%d)", 768),
        "3:12: heads does not divide hidden_size (768)");
    MESSAGE(zf_json_expected(zf_json_member(top, "heads"), &error, "a divisor of hidden_size (%d)",
                             768),
            "3:12: heads must be a divisor of hidden_size (768), not 11");
}

TEST(json_long_paths_show_their_end)
{
    char text[1500];
    zf_error error = {0};
    const zf_json *value;
    int at = 0;
    for (int i = 0; i < 100; i++)
        at += snprintf(text + at, sizeof text - (size_t)at, "{\"key%02d\":", i);
    for (int i = 0; i <= 100; i++) text[at++] = i ? '}' : '1';
    text[at] = '\0';
    value = parse(t, text, &error);
    NEED(t, value, &error);
    while (zf_json_first(value)) value = zf_json_first(value);
    zf_json_fail(value, &error, "is deep");
    CHECK(t, strlen(error.text) < 250 && strstr(error.text, ": ...key"));
    CHECK_TEXT(t, strstr(error.text, "key97"), "key97.key98.key99 is deep");
}

TEST(json_read_names_the_file)
{
    const char *path = test_path("wrong.json");
    zf_error error = {0};
    char expected[512];
    FILE *file = fopen(path, "w");
    CHECK(t, file && fputs("{\n  \"a\": tru\n}", file) >= 0 && fclose(file) == 0);
    CHECK(t, !zf_json_read(path, &t->allocator, &error));
    if (error.status != ZF_ERR_FORMAT) NEED(t, NULL, &error);
    snprintf(expected, sizeof expected, "%s:2:8: expected a value, found 'tru'", path);
    CHECK_TEXT(t, error.text, expected);
    error = (zf_error){0};
    CHECK(t, !zf_json_read(test_path("no such file"), &t->allocator, &error) &&
                 error.status == ZF_ERR_IO);
    snprintf(expected, sizeof expected, "cannot open %s: No such file or directory",
             test_path("no such file"));
    CHECK_TEXT(t, error.text, expected);
    error = (zf_error){0};
    CHECK(t, !zf_json_read(test_path(""), &t->allocator, &error) && error.status == ZF_ERR_IO);
    snprintf(expected, sizeof expected, "cannot read %s: it is not a regular file", test_path(""));
    CHECK_TEXT(t, error.text, expected);
}

/* A name longer than a message keeps its end. */
TEST_ONCE(json_read_shortens_long_names)
{
    char name[700] = "/nowhere";
    zf_error error = {0};
    for (int i = 0; i < 30; i++) strcat(name, "/0123456789abcdef");
    strcat(name, "/config.json");
    CHECK(t, !zf_json_read(name, &t->allocator, &error) && error.status == ZF_ERR_IO);
    CHECK(t, strstr(error.text, "/config.json: No such file or directory") &&
                 strlen(error.text) < 300);
}

TEST_ONCE(json_read_limits_the_size)
{
    const char *path = test_path("large.json");
    zf_error error = {0};
    char expected[512];
    FILE *file = fopen(path, "w");
    CHECK(t, file && fseek(file, 64 << 20, SEEK_SET) == 0 && fputc(' ', file) == ' ' &&
                 fclose(file) == 0);
    CHECK(t, !zf_json_read(path, &t->allocator, &error) && error.status == ZF_ERR_LIMIT);
    snprintf(expected, sizeof expected,
             "%s has 67108865 bytes, but such a file may have at most 67108864", path);
    CHECK_TEXT(t, error.text, expected);
    remove(path);
}

/* Every truncated text is refused, and every flipped bit is refused or gives a tree that can be
 * walked. */
TEST_ONCE(json_survives_cuts_and_flips)
{
    static const char text[] =
        "{\"a\":[1,-2.5e3,\"x\\u00e9\\n\xc3\xa9\",true,null],\"b\":{\"c\":{},\"d\":[]}}";
    char changed[sizeof text];
    for (size_t bytes = 0; bytes < sizeof text - 1; bytes++) {
        zf_error error = {0};
        CHECK(t, !zf_json_parse(text, bytes, &t->allocator, &error));
        CHECK(t, error.status == ZF_ERR_FORMAT && error.text[0]);
    }
    for (size_t bit = 0; bit < 8 * (sizeof text - 1); bit++) {
        zf_error error = {0};
        zf_json *top;
        memcpy(changed, text, sizeof text);
        changed[bit / 8] ^= (char)(1 << bit % 8);
        top = zf_json_parse(changed, sizeof text - 1, &t->allocator, &error);
        CHECK(t, top ? !error.status : error.status == ZF_ERR_FORMAT && error.text[0]);
        for (const zf_json *v = zf_json_first(top); v; v = zf_json_next(v))
            CHECK(t, zf_json_key(v, NULL));
        zf_json_free(top);
    }
}

/* 200,000 members of one object, and arrays of arrays: quadratic work would take minutes. */
TEST(json_reads_large_objects)
{
    enum { COUNT = 200000 };
    size_t size = (size_t)COUNT * 24 + 16, at = 0;
    char *text = malloc(size), key[24];
    zf_error error = {0};
    zf_json *top;
    int64_t value;
    CHECK(t, text);
    text[at++] = '{';
    for (int i = 0; i < COUNT; i++)
        at += (size_t)snprintf(text + at, size - at, "%s\"k%d\":[%d]", i ? "," : "", i, i);
    text[at++] = '}';
    top = zf_json_parse(text, at, &t->allocator, &error);
    free(text);
    NEED(t, top, &error);
    test_defer(t, (test_cleanup *)zf_json_free, top);
    CHECK(t, zf_json_length(top) == COUNT);
    for (int i = 0; i < COUNT; i++) {
        snprintf(key, sizeof key, "k%d", i);
        OK(t, zf_json_to_int(zf_json_element(zf_json_member(top, key), 0), i, i, &value, &error),
           error.text);
        CHECK(t, value == i);
    }
}

/* --------------------------------------------------------------------------------- writing */

static zf_json_writer *writer_of(test *t, int indent)
{
    zf_json_writer *writer = zf_json_writer_new(indent, &t->allocator);
    if (writer) test_defer(t, (test_cleanup *)zf_json_writer_free, writer);
    return writer;
}

static void write_sample(zf_json_writer *w)
{
    zf_json_begin_object(w);
    zf_json_put_key(w, "name");
    zf_json_put_string(w, "a \"b\"\\\n\x01\x7f\xc3\xa9");
    zf_json_put_key(w, "shape");
    zf_json_begin_array(w);
    zf_json_put_int(w, 2);
    zf_json_put_int(w, -3);
    zf_json_end(w);
    zf_json_put_key(w, "tensors");
    zf_json_begin_array(w);
    zf_json_begin_object(w);
    zf_json_put_key(w, "x");
    zf_json_put_null(w);
    zf_json_put_key(w, "y");
    zf_json_put_bool(w, true);
    zf_json_end(w);
    zf_json_begin_object(w);
    zf_json_end(w);
    zf_json_end(w);
    zf_json_put_key(w, "loss");
    zf_json_put_double(w, 0.1);
    zf_json_put_key(w, "none");
    zf_json_put_string(w, NULL);
    zf_json_put_key(w, "empty");
    zf_json_begin_array(w);
    zf_json_end(w);
    zf_json_end(w);
}

TEST(json_writes_compact_and_indented)
{
    zf_error error = {0};
    zf_json_writer *compact = writer_of(t, 0), *wide = writer_of(t, 2);
    const char *text;
    size_t bytes;
    NEED(t, compact, NULL);
    NEED(t, wide, NULL);
    write_sample(compact);
    write_sample(wide);
    text = zf_json_text(compact, &bytes, &error);
    NEED(t, text, &error);
    CHECK_TEXT(t, text,
               "{\"name\":\"a \\\"b\\\"\\\\\\n\\u0001\x7f\xc3\xa9\",\"shape\":[2,-3],"
               "\"tensors\":[{\"x\":null,\"y\":true},{}],\"loss\":0.1,\"none\":null,\"empty\":[]}");
    CHECK(t, bytes == strlen(text));
    CHECK_TEXT(t, zf_json_text(compact, NULL, &error), text);
    text = zf_json_text(wide, NULL, &error);
    NEED(t, text, &error);
    CHECK_TEXT(t, text,
               "{\n"
               "  \"name\": \"a \\\"b\\\"\\\\\\n\\u0001\x7f\xc3\xa9\",\n"
               "  \"shape\": [2, -3],\n"
               "  \"tensors\": [\n"
               "    {\n"
               "      \"x\": null,\n"
               "      \"y\": true\n"
               "    },\n"
               "    {}\n"
               "  ],\n"
               "  \"loss\": 0.1,\n"
               "  \"none\": null,\n"
               "  \"empty\": []\n"
               "}");
}

TEST(json_writes_the_shortest_doubles)
{
    static const struct {
        double value;
        const char *text;
    } cases[] = {
        {0, "0.0"},
        {-0.0, "-0.0"},
        {1, "1.0"},
        {-2.5, "-2.5"},
        {300, "300.0"},
        {0.1, "0.1"},
        {0.00001, "0.00001"},
        {1e-6, "1e-6"},
        {1.25e-7, "1.25e-7"},
        {1e16, "10000000000000000.0"},
        {1e17, "1e17"},
        {5e-324, "5e-324"},
        {1.7976931348623157e308, "1.7976931348623157e308"},
        {0.1 + 0.2, "0.30000000000000004"},
        {9007199254740993.0, "9007199254740992.0"},
        {12345678901234567.0, "12345678901234568.0"},
        {NAN, "null"},
        {INFINITY, "null"},
        {-INFINITY, "null"},
    };
    for (int i = 0; i < (int)(sizeof cases / sizeof cases[0]); i++) {
        zf_error error = {0};
        zf_json_writer *writer = zf_json_writer_new(0, &t->allocator);
        const char *text;
        bool same;
        NEED(t, writer, NULL);
        zf_json_put_double(writer, cases[i].value);
        text = zf_json_text(writer, NULL, &error);
        if (!text) zf_json_writer_free(writer);
        NEED(t, text, &error);
        same = !strcmp(text, cases[i].text);
        if (!same) printf("  %s\n", text);
        zf_json_writer_free(writer);
        CHECK(t, same);
    }
}

/* Doubles of random bits come back with the same bits. */
TEST(json_doubles_round_trip)
{
    enum { COUNT = 20000 };
    static double values[COUNT];
    uint64_t state = 1, same;
    zf_error error = {0};
    zf_json_writer *writer = writer_of(t, 0);
    const zf_json *value;
    zf_json *top;
    const char *text;
    size_t bytes;
    NEED(t, writer, NULL);
    zf_json_begin_array(writer);
    for (int i = 0; i < COUNT; i++) {
        do {
            state = state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
            same = i % 3 ? state : state >> 11 << 11 | (uint64_t)1 << 62;
            memcpy(&values[i], &same, sizeof same);
        } while (!isfinite(values[i]));
        zf_json_put_double(writer, values[i]);
    }
    zf_json_end(writer);
    text = zf_json_text(writer, &bytes, &error);
    NEED(t, text, &error);
    top = zf_json_parse(text, bytes, &t->allocator, &error);
    NEED(t, top, &error);
    test_defer(t, (test_cleanup *)zf_json_free, top);
    value = zf_json_first(top);
    for (int i = 0; i < COUNT; i++, value = zf_json_next(value)) {
        double back = 0;
        OK(t, zf_json_to_double(value, -INFINITY, INFINITY, &back, &error), error.text);
        CHECK(t, !memcmp(&back, &values[i], sizeof back));
    }
}

TEST(json_writer_refuses_misuse)
{
    static const struct {
        const char *calls,
            *message; /* {}[] begin and end, k key, v value, b a string that is not UTF-8 */
    } cases[] = {
        {"", "JSON: nothing was written"},
        {"{", "JSON: an array or object is still open"},
        {"vv", "JSON: a second value at the top"},
        {"{}[", "JSON: a second value at the top"},
        {"{v", "JSON: a value in an object without a key before it"},
        {"{{", "JSON: a value in an object without a key before it"},
        {"{kvv", "JSON: a value in an object without a key before it"},
        {"{kk", "JSON: the key \"k\" follows a key that has no value yet"},
        {"[k", "JSON: the key \"k\" is outside an object"},
        {"k", "JSON: the key \"k\" is outside an object"},
        {"{k}", "JSON: the object ends, but its last key has no value"},
        {"]", "JSON: an end, but nothing is open"},
        {"[]]", "JSON: an end, but nothing is open"},
        {"b", "JSON text must be UTF-8, but byte 1 of \"a?\" is 0xff"},
    };
    for (int i = 0; i < (int)(sizeof cases / sizeof cases[0]); i++) {
        zf_error error = {0};
        zf_json_writer *writer = writer_of(t, 0);
        NEED(t, writer, NULL);
        for (const char *c = cases[i].calls; *c; c++) {
            if (*c == '{') zf_json_begin_object(writer);
            else if (*c == '[') zf_json_begin_array(writer);
            else if (*c == 'k') zf_json_put_key(writer, "k");
            else if (*c == 'v') zf_json_put_int(writer, 1);
            else if (*c == 'b') zf_json_put_string(writer, "a\xff");
            else zf_json_end(writer);
        }
        CHECK(t, !zf_json_text(writer, NULL, &error));
        if (error.status == ZF_ERR_NOMEM) NEED(t, NULL, &error);
        CHECK_TEXT(t, error.text, cases[i].message);
    }
}

TEST(json_writer_limits_its_depth)
{
    zf_error error = {0};
    zf_json_writer *writer = writer_of(t, 0);
    NEED(t, writer, NULL);
    for (int i = 0; i < 129; i++) zf_json_begin_array(writer);
    CHECK(t, !zf_json_text(writer, NULL, &error));
    if (error.status == ZF_ERR_NOMEM) NEED(t, NULL, &error);
    CHECK_TEXT(t, error.text, "JSON: more than 128 levels of nesting");
}

TEST(json_writer_accepts_null)
{
    zf_error error = {0};
    write_sample(NULL);
    zf_json_put_double(NULL, 1);
    CHECK(t, !zf_json_text(NULL, NULL, &error) && error.status == ZF_ERR_NOMEM);
    CHECK(t, zf_json_save(NULL, "nowhere", &error) == ZF_ERR_NOMEM);
    zf_json_writer_free(NULL);
}

TEST(json_save_replaces_the_file)
{
    const char *path = test_path("report.json");
    zf_error error = {0};
    char expected[512];
    zf_json_writer *writer = writer_of(t, 2);
    zf_json *top;
    struct stat about;
    int64_t value = 0;
    FILE *file = fopen(path, "w");
    CHECK(t, file && fputs("an older one that is much longer than what follows", file) >= 0 &&
                 fclose(file) == 0);
    NEED(t, writer, NULL);
    zf_json_begin_object(writer);
    CHECK(t, zf_json_save(writer, path, &error) == ZF_ERR_STAGE || error.status == ZF_ERR_NOMEM);
    error = (zf_error){0};
    zf_json_put_key(writer, "step");
    zf_json_put_int(writer, 12);
    zf_json_end(writer);
    OK(t, zf_json_save(writer, path, &error), error.text);
    CHECK(t, stat(path, &about) == 0 && about.st_size == 17);
    CHECK_TEXT(t, zf_json_text(writer, NULL, &error), "{\n  \"step\": 12\n}");
    top = zf_json_read(path, &t->allocator, &error);
    NEED(t, top, &error);
    test_defer(t, (test_cleanup *)zf_json_free, top);
    OK(t, zf_json_to_int(zf_json_require(top, "step", &error), 12, 12, &value, &error), error.text);
    CHECK(t, value == 12);
    CHECK(t, zf_json_save(writer, test_path("nowhere/report.json"), &error) == ZF_ERR_IO);
    snprintf(expected, sizeof expected, "cannot create %s.zf-new: No such file or directory",
             test_path("nowhere/report.json"));
    CHECK_TEXT(t, error.text, expected);
}
