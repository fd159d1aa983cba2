/* Block masks: layouts against their definition, parameters, files, lists. */
#include "../support/test.h"

/* The mask of a test. */
static zf_block_mask *mask;
static zf_error error;

/* What the texts of its desc say. */
static struct {
    int64_t windows[16], first[16], end[16];
    int window_count, global_count;
    char windows_text[200], globals_text[400], copy[600];
} lists;

/* Parses a copy of a text. */
static zf_status parse(const char *text, zf_block_mask_desc *d)
{
    snprintf(lists.copy, sizeof lists.copy, "%s", text);
    return zf_block_mask_parse(lists.copy, d, &error);
}

static void mask_close(void *unused)
{
    (void)unused;
    zf_block_mask_free(mask);
    mask = NULL;
}

/* Makes another one. */
static zf_status remake(const zf_block_mask_desc *d)
{
    mask_close(NULL);
    mask = zf_block_mask_new(d, &error);
    return mask ? ZF_OK : error.status;
}

/* Draw number i, below n. */
static int64_t below(uint64_t i, int64_t n)
{
    uint64_t x = (i + 1) * 0x9e3779b97f4a7c15u;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return (int64_t)((x ^ x >> 31) % (uint64_t)n);
}

/* ---------------------------------------------------------------------------------- layouts */

/* Windows that follow one another, of which `width` is the last. */
static bool in_one_window(int64_t i, int64_t j)
{
    int64_t at = 0;
    for (int k = 0;; k++) {
        const int last = lists.window_count - 1;
        const int64_t end = at + lists.windows[k < last ? k : last];
        if (i < end || j < end) return i >= at && j >= at && i < end && j < end;
        at = end;
    }
}

/* The global columns of windows of `local`; the last window may be short. */
static bool is_fixed_global(const zf_block_mask_desc *d, int64_t h, int64_t j, int64_t nb)
{
    const int64_t g = d->global, at = j / d->local * d->local, last = nb / d->local * d->local;
    const int64_t front = d->local - (1 + h % d->patterns) * g;
    const int64_t from = last + front < nb - g ? last + front : nb - g;
    return (at < last && j >= at + front && j < at + front + g) ||
           (last < nb && j >= from && j < from + g);
}

static bool is_global(const zf_block_mask_desc *d, int64_t h, int64_t j, int64_t nb)
{
    bool in = false;
    if (d->layout == ZF_LAYOUT_BIGBIRD) return j < d->global;
    if (d->layout == ZF_LAYOUT_FIXED) return is_fixed_global(d, h, j, nb);
    for (int k = 0; k < lists.global_count; k++)
        in = in || (j >= lists.first[k] && j < lists.end[k]);
    return in && d->layout != ZF_LAYOUT_WINDOW;
}

/* Row i sees column j of nb, without what is drawn; the definition of the layout. */
static bool sees(const zf_block_mask_desc *d, int64_t h, int64_t i, int64_t j, int64_t nb)
{
    const bool near = i - j <= d->width / 2 && j - i <= d->width / 2;
    const bool rows = d->layout == ZF_LAYOUT_BIGBIRD || d->layout == ZF_LAYOUT_LONGFORMER;
    if (d->causal && j > i) return false;
    if (is_global(d, h, j, nb) || ((rows || d->horizontal) && is_global(d, h, i, nb))) return true;
    if (d->layout == ZF_LAYOUT_FIXED) return i / d->local == j / d->local;
    return d->layout == ZF_LAYOUT_VARIABLE ? in_one_window(i, j) : near;
}

static void add_window(int64_t width)
{
    char *to = lists.windows_text + strlen(lists.windows_text);
    snprintf(to, 20, "%s%lld", lists.window_count ? "+" : "", (long long)width);
    lists.windows[lists.window_count++] = width;
}

static void add_global(int64_t first, int64_t end)
{
    char *to = lists.globals_text + strlen(lists.globals_text);
    const bool one = end == first + 1;
    snprintf(to, 50, one ? "%s%lld" : "%s%lld:%lld", lists.global_count ? "+" : "",
             (long long)first, (long long)end);
    lists.first[lists.global_count] = first, lists.end[lists.global_count++] = end;
}

/* Configuration number c, all of its fields given. */
static zf_block_mask_desc configuration(uint64_t c, const zf_allocator *allocator)
{
    zf_block_mask_desc d = {.allocator = *allocator};
    const uint64_t at = 32 * c;
    lists.window_count = lists.global_count = 0, *lists.windows_text = *lists.globals_text = 0;
    d.layout = (zf_layout)(1 + c % 5);
    d.block = 16 << below(at, 4);
    d.tokens = d.block * (5 + below(at + 1, 19)) - below(at + 2, 2) * below(at + 3, 16);
    d.causal = below(at + 4, 2);
    if (d.layout == ZF_LAYOUT_FIXED) {
        d.global = 1 + below(at + 5, 2), d.local = d.global * (1 + below(at + 6, 3));
        d.per_head = below(at + 7, 2), d.heads = 3;
        d.patterns = 1 + (d.per_head ? below(at + 8, d.local / d.global) : 0);
    }
    if (d.layout == ZF_LAYOUT_FIXED || d.layout == ZF_LAYOUT_VARIABLE)
        d.horizontal = !d.causal && below(at + 9, 2);
    if (d.layout == ZF_LAYOUT_VARIABLE || d.layout == ZF_LAYOUT_BIGBIRD)
        d.random = below(at + 10, 3), d.seed = (int64_t)c;
    if (d.random == 0) d.random = ZF_NO_BLOCKS;
    if (d.layout > ZF_LAYOUT_BIGBIRD || d.layout < ZF_LAYOUT_VARIABLE) d.random = 0;
    if (d.layout == ZF_LAYOUT_BIGBIRD) d.global = 1 + below(at + 11, 3);
    if (d.layout >= ZF_LAYOUT_BIGBIRD) d.width = 1 + below(at + 12, 5);
    for (uint64_t k = 0; d.layout == ZF_LAYOUT_VARIABLE && k <= (uint64_t)below(at + 13, 3); k++)
        add_window(1 + below(at + 14 + k, 5));
    for (uint64_t k = 0; (d.layout == ZF_LAYOUT_VARIABLE || d.layout == ZF_LAYOUT_LONGFORMER) &&
                         k <= (uint64_t)below(at + 18, 2);
         k++) {
        const int64_t first = below(at + 20 + k, 20);
        add_global(first, first + 1 + below(at + 22 + k, 3));
    }
    if (lists.window_count) d.windows = lists.windows_text;
    if (lists.global_count) d.globals = lists.globals_text;
    return d;
}

TEST(block_mask_layouts_are_as_defined)
{
    test_defer(t, mask_close, NULL);
    for (uint64_t c = 0; c < 200; c++) {
        const zf_block_mask_desc d = configuration(c, &t->allocator);
        const int64_t nb = (d.tokens + d.block - 1) / d.block;
        OK(t, remake(&d), error.text);
        CHECK(t, zf_block_mask_info_of(mask).blocks == nb);
        for (int64_t h = 0; h < 3; h++)
            for (int64_t i = 0; i < nb; i++) {
                int64_t drawn = 0, most = d.random > 0 ? d.random : 0;
                for (int64_t j = 0; j < nb; j++) {
                    const bool is = zf_block_mask_sees(mask, h, i, j), must = sees(&d, h, i, j, nb);
                    CHECK(t, is || !must);
                    CHECK(t, !is || !d.causal || j <= i);
                    drawn += is && !must;
                }
                CHECK(t, drawn <= most);
            }
    }
}

/* With one block around the row, a window of one and a global, what is drawn is nearly all that is
 * seen. Each of 40 columns is drawn 2 of 40 times in 100 x 40 rows: 200 expected, 14 the standard
 * deviation. */
TEST(block_mask_draws_all_columns_alike)
{
    int64_t count[40] = {0};
    test_defer(t, mask_close, NULL);
    for (uint64_t seed = 0; seed < 100; seed++) {
        OK(t,
           remake(&(zf_block_mask_desc){.allocator = t->allocator,
                                        .layout = ZF_LAYOUT_VARIABLE,
                                        .tokens = 640,
                                        .windows = "1",
                                        .globals = "99",
                                        .random = 2,
                                        .seed = (int64_t)seed}),
           error.text);
        for (int64_t i = 0; i < 40; i++) {
            int64_t seen = 0;
            for (int64_t j = 0; j < 40; j++) {
                const bool is = j != i && zf_block_mask_sees(mask, 0, i, j);
                count[j] += is, seen += is;
            }
            CHECK(t, seen == 2 || seen == 1); /* one may be the row itself */
        }
    }
    for (int j = 0; j < 40; j++) CHECK_NEAR(t, (double)count[j], 195, 5 * 14);
}

/* --------------------------------------------------------------------------------- pictures */

static void picture(char *to)
{
    const int64_t nb = zf_block_mask_info_of(mask).blocks;
    for (int64_t i = 0; i < nb; i++) {
        for (int64_t j = 0; j < nb; j++) *to++ = zf_block_mask_sees(mask, 0, i, j) ? '#' : '.';
        *to++ = i + 1 < nb ? ' ' : '\0';
    }
}

/* DeepSpeed's sparsity_config.py printed these, here without columns after the row. */
static const struct {
    const char *text;
    int64_t blocks;
    bool causal;
    const char *picture;
} pictures[] = {
    {"fixed", 6, false, "####.# ####.# ####.# ####.# ...### ...###"},
    {"fixed,global=2", 8, true,
     "#....... ##...... ###..... ####.... ..###... ..####.. ..#####. ..######"},
    {"variable,windows=1+2,globals=0:2", 5, true, "#.... ##... ###.. ##.#. ##.##"},
    {"bigbird,random=0,width=4,global=1", 7, false,
     "####### ####... #####.. ######. #.##### #..#### #...###"},
    {"longformer,width=1,globals=3", 5, false, "#..#. .#.#. ..##. ##### ...##"},
    {"window", 5, true, "#.... ##... .##.. ..##. ...##"},
    {"window,width=2,block=32", 3, false, "##. ### .##"},
};

TEST(block_mask_pictures_are_those_of_deepspeed)
{
    char text[128];
    test_defer(t, mask_close, NULL);
    for (size_t k = 0; k < sizeof pictures / sizeof pictures[0]; k++) {
        zf_block_mask_desc d = {.allocator = t->allocator, .causal = pictures[k].causal};
        OK(t, parse(pictures[k].text, &d), error.text);
        d.tokens = pictures[k].blocks * (d.block ? d.block : 16);
        OK(t, remake(&d), error.text);
        picture(text);
        CHECK_TEXT(t, text, pictures[k].picture);
    }
}

/* -------------------------------------------------------------------------------- mistakes */

static const struct {
    const char *text, *message;
} mistakes[] = {
    {"bird", "block mask takes off|fixed|variable|bigbird|longformer|window|file[,NAME=VALUE,...], "
             "not 'bird'"},
    {"fixed,width=3",
     "block mask: width requires layout=bigbird, longformer or window; it is fixed"},
    {"window,globals=1",
     "block mask: globals requires layout=variable or longformer; it is window"},
    {"window,per_head",
     "block mask: per_head requires layout=fixed, variable, bigbird or file; it is window"},
    {"block=32",
     "block mask: block requires layout=fixed, variable, bigbird, longformer, window or "
     "file; it is off"},
    {"fixed,locals=3", "block mask: there is no option 'locals'; is it local?"},
    {"fixed,local", "block mask takes off|fixed|variable|bigbird|longformer|window|file"
                    "[,NAME=VALUE,...], not 'local'"},
    {"fixed,horizontal=1", "block mask: horizontal takes true or false, not '1'"},
    {"fixed,local=-4", "block mask: local takes a whole number from 1 to 16384, not '-4'"},
    {"fixed,local=", "block mask: local takes a whole number from 1 to 16384, not ''"},
    {"fixed,local=0", "block mask: local takes a whole number from 1 to 16384, not '0'"},
    {"variable,windows=4+",
     "block mask: windows=4+: windows are up to 16 numbers of blocks, 4+2+8"},
    {"variable,windows=4:5",
     "block mask: windows=4:5: windows are up to 16 numbers of blocks, 4+2+8"},
    {"variable,globals=1:x",
     "block mask: globals=1:x: globals are up to 16 blocks and ranges of them, 0+5:7"},
    {"variable,windows=1+0", "block mask: windows=1+0: a window has 1 block or more"},
    {"variable,globals=5:5", "block mask: globals=5:5: a range is FIRST:END, END after FIRST"},
    {"fixed,block=48", "block mask: block takes 16, 32, 64 or 128, not '48'"},
    {"fixed,local=4,global=3", "block mask: local = 4 must be a multiple of global = 3"},
    {"fixed,patterns=2", "block mask: patterns = 2 needs per_head"},
    {"fixed,patterns=5,per_head",
     "block mask: patterns = 5 is more than the 4 places that 4 local and 1 global blocks have"},
    {"fixed,horizontal", "block mask: horizontal globals see the future, and the mask is causal"},
    {"bigbird,random=9", "block mask: random = 9 is more than the 8 blocks of 128 tokens"},
    {"bigbird,width=9", "block mask: width = 9 is more than the 8 blocks of 128 tokens"},
    {"bigbird,global=9", "block mask: global = 9 is more than the 8 blocks of 128 tokens"},
    {"file", "block mask: the layout file needs a path"},
};

TEST(block_mask_explains_mistakes)
{
    test_defer(t, mask_close, NULL);
    for (size_t k = 0; k < sizeof mistakes / sizeof mistakes[0]; k++) {
        zf_block_mask_desc d = {.allocator = t->allocator, .causal = true, .tokens = 128};
        if (!parse(mistakes[k].text, &d)) remake(&d);
        CHECK_TEXT(t, error.text, mistakes[k].message);
    }
    CHECK(t, zf_block_mask_parse(NULL, NULL, &error) == ZF_ERR_ARGUMENT);
    CHECK_TEXT(t, error.text, "zf_block_mask_parse needs a text and a desc");
}

/* Fields that a text cannot set. */
TEST(block_mask_checks_its_desc)
{
    static const struct {
        zf_block_mask_desc desc;
        const char *message;
    } wrong[] = {
        {{.tokens = 0}, "block mask: tokens = 0 must be 1 to 262144 for blocks of 16"},
        {{.tokens = 262145}, "block mask: tokens = 262145 must be 1 to 262144 for blocks of 16"},
        {{.tokens = 16, .heads = -1}, "block mask: heads = -1 must be 1 to 65536"},
        {{.tokens = 16, .layout = (zf_layout)7},
         "block mask: layout is 7; it must be off, fixed, variable, bigbird, longformer, window or "
         "file"},
        {{.tokens = 16, .layout = ZF_LAYOUT_FIXED, .global = -1},
         "block mask: global is -1; it must be a whole number from 1 to 16384"},
        {{.tokens = 16, .layout = ZF_LAYOUT_BIGBIRD, .random = -2},
         "block mask: random is -2; it must be a whole number from 0 to 16384"},
        {{.tokens = 33, .layout = ZF_LAYOUT_WINDOW, .length = 32},
         "block mask: the layout is of 32 tokens (length), and the sequence has 33"},
        {{.tokens = 16,
          .layout = ZF_LAYOUT_VARIABLE,
          .windows = "1+1+1+1+1+1+1+1+1+1+1+1+1+1+1+1+1"},
         "block mask: windows=1+1+1+1+1+1+1+1+1+1+1+1+1+1+1+1+1: windows are up to 16 numbers of "
         "blocks, 4+2+8"},
        {{.tokens = 16, .layout = ZF_LAYOUT_VARIABLE, .globals = "4294967296"},
         "block mask: globals=4294967296: globals are up to 16 blocks and ranges of them, 0+5:7"},
    };
    for (size_t k = 0; k < sizeof wrong / sizeof wrong[0]; k++) {
        zf_block_mask_desc d = wrong[k].desc;
        d.allocator = t->allocator;
        CHECK(t, remake(&d));
        CHECK_TEXT(t, error.text, wrong[k].message);
    }
    CHECK(t, !zf_block_mask_new(NULL, NULL) && zf_block_mask_parse(NULL, NULL, NULL));
    CHECK(t, zf_block_mask_text(NULL, NULL, 0) == 0);
    CHECK(t, !zf_block_mask_sees(NULL, 0, 0, 0) && !zf_block_mask_info_of(NULL).block);
    CHECK_TEXT(t, zf_layout_name(ZF_LAYOUT_BIGBIRD), "bigbird");
    CHECK_TEXT(t, zf_layout_name((zf_layout)-1), "?");
}

/* ---------------------------------------------------------------------------------- length */

/* A sequence that is shorter than the length of its layout has the beginning of it. */
TEST(block_mask_of_a_length_is_its_beginning)
{
    static const char *const texts[] = {"fixed,local=3,per_head,patterns=3",
                                        "bigbird,random=2,per_head",
                                        "variable,windows=1+3,random=1,per_head", "window"};
    test_defer(t, mask_close, NULL);
    for (size_t k = 0; k < sizeof texts / sizeof texts[0]; k++) {
        zf_block_mask_desc d = {
            .allocator = t->allocator, .tokens = 160, .heads = 3, .causal = true};
        bool all[3][10][10];
        int64_t seen = 0;
        OK(t, parse(texts[k], &d), error.text);
        OK(t, remake(&d), error.text);
        for (int64_t i = 0; i < 300; i++)
            all[i / 100][i / 10 % 10][i % 10] =
                zf_block_mask_sees(mask, i / 100, i / 10 % 10, i % 10);
        d.length = 160, d.tokens = 90;
        OK(t, remake(&d), error.text);
        for (int64_t i = 0; i < 300; i++) {
            const int64_t h = i / 100, row = i / 10 % 10, column = i % 10;
            const bool is = zf_block_mask_sees(mask, h, row, column);
            CHECK(t, is == (row < 6 && column < 6 && all[h][row][column]));
            seen += is && (h == 0 || d.per_head);
        }
        CHECK(t,
              zf_block_mask_info_of(mask).blocks == 6 && zf_block_mask_info_of(mask).seen <= seen);
        CHECK(t, d.per_head == (zf_block_mask_info_of(mask).seen == seen) || !d.per_head);
    }
}

/* What is written reads back, and a 0 that was given stays one. */
TEST(block_mask_text_reads_back)
{
    static const char *const texts[][2] = {
        {"bigbird,random=0,width=5,per_head", "layout=bigbird,per_head=true,random=0,width=5"},
        {"variable,windows=1+2,globals=0:3,length=512",
         "layout=variable,length=512,windows=1+2,globals=0:3"},
        {"file,path=a,b c.txt", "layout=file,path=\"a,b c.txt\""},
        {"off", "layout=off"},
        {"", ""}};
    for (size_t k = 0; k < sizeof texts / sizeof texts[0]; k++)
        for (int again = 0; again < 2; again++) {
            zf_block_mask_desc d = {.tokens = 0};
            char text[200];
            OK(t, parse(texts[k][again], &d), error.text);
            CHECK(t, zf_block_mask_text(&d, text, sizeof text) == strlen(text));
            CHECK_TEXT(t, text, texts[k][1]);
        }
}

/* ---------------------------------------------------------------------------------- files */

static const struct {
    const char *rows, *message; /* of a picture or an error */
    bool causal;
} files[] = {
    {"1 0 0\n111\n\n\t0 0 1\r\n", "#.. ### ..#", false},
    {"111\n111\n111", "#.. ##. ###", true},
    {"100\n11\n001\n", "block mask: mask.txt:2 has 2 columns; 48 tokens have 3 blocks", false},
    {"100\n1100\n001\n", "block mask: mask.txt:2 is more than 3 rows of 3 columns", false},
    {"100\n110\n001\n001\n", "block mask: mask.txt:4 is more than 3 rows of 3 columns", false},
    {"100\n110\n", "block mask: mask.txt has 2 rows; it must have 3", false},
    {"100\n1x0\n", "block mask: mask.txt:2 has a character that is neither 0 nor 1", false},
};

static bool write_file(const char *path, const char *text)
{
    FILE *file = fopen(path, "w");
    const bool good = file && fputs(text, file) >= 0;
    return (!file || !fclose(file)) && good;
}

TEST(block_mask_is_read_from_a_file)
{
    char path[512], text[600];
    test_defer(t, mask_close, NULL);
    snprintf(path, sizeof path, "%s", test_path("mask.txt"));
    snprintf(text, sizeof text, "file,block=16,path=%s", path);
    for (size_t k = 0; k < sizeof files / sizeof files[0]; k++) {
        zf_block_mask_desc d = {.allocator = t->allocator, .tokens = 48, .causal = files[k].causal};
        char *name, got[600];
        CHECK(t, write_file(path, files[k].rows));
        OK(t, parse(text, &d), error.text);
        remake(&d);
        if (mask) picture(got);
        else snprintf(got, sizeof got, "%s", error.text);
        name = strstr(got, "mask.txt"); /* other characters of its name depend on the run */
        if (name && !strncmp(got, "block mask: ", 12)) memmove(got + 12, name, strlen(name) + 1);
        CHECK_TEXT(t, got, files[k].message);
    }
    remove(path);
}

/* A file that has changed since its digest was taken is refused. */
TEST(block_mask_file_has_a_digest)
{
    char path[512];
    zf_block_mask_desc d = {.allocator = t->allocator, .tokens = 32, .layout = ZF_LAYOUT_FILE};
    test_defer(t, mask_close, NULL);
    snprintf(path, sizeof path, "%s", test_path("digest.txt"));
    d.path = path;
    CHECK(t, write_file(path, "10\n11\n"));
    OK(t, remake(&d), error.text);
    CHECK(t, d.digest = zf_block_mask_info_of(mask).digest);
    OK(t, remake(&d), error.text);
    CHECK(t, write_file(path, "11\n11\n"));
    GIVES(t, remake(&d), ZF_ERR_ARGUMENT, error.text);
    CHECK(t, strstr(error.text, "digest.txt is another file than the one whose digest is "));
    remove(path);
}

/* ---------------------------------------------------------------------------------- lists */

TEST(block_mask_lists_are_rows_and_columns)
{
    static const char expected[] =
        "%1 = constant {values=[16,1,0,1,3,5,0,2,4,5,0,0,1,1,2,0,1,1,2,2]} : i32[20]\n";
    zf_graph *g = zf_graph_new(&(zf_graph_desc){.allocator = t->allocator});
    char text[256];
    NEED(t, g, NULL);
    test_defer(t, (test_cleanup *)zf_graph_free, g);
    test_defer(t, mask_close, NULL);
    OK(t,
       remake(&(zf_block_mask_desc){
           .allocator = t->allocator, .layout = ZF_LAYOUT_WINDOW, .tokens = 40, .causal = true}),
       error.text);
    zf_block_mask_lists(g, mask);
    OK(t, zf_graph_status(g), zf_graph_error(g));
    zf_graph_text(g, text, sizeof text);
    CHECK_TEXT(t, text, expected);
    zf_block_mask_lists(g, NULL);
    CHECK(t, strstr(zf_graph_error(g), "zf_block_mask_lists: there is no block mask"));
}
