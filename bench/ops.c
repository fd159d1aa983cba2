/* The time of single operators, next to that of a copy: milliseconds, GB/s of the bytes that they
 * read and write, and GFLOP/s of products.
 *
 *     build/bench/ops [--rows 65536] [--rounds 10] [--threads 2] [--device cpu|cuda] [--json]
 *                     [--dtype bf16|f16|f32] [NAME...]
 *
 * NAME: only operators whose line contains one of these. With --rows 65536 an operand has 64 Mi
 * elements, which no cache holds. Times are medians; on CUDA between events. */
#define _POSIX_C_SOURCE 200809L
#include "options.h"
#include "profile.h"

/* Operands are parameters, states and caches, with their first values. In texts @
 * is the option --rows, & 256 times, $ a quarter and # an eighth of it. */
#define X "%1 = param \"x\" {init=normal b=1} : bf16[@,1024]\n"
#define W "%2 = param \"w\" {init=normal b=0.02} : f32[@,1024]\n"
#define ONE "%1 = param \"x\" {init=normal b=1} : bf16[1,1024]\n"
#define MANY "%1 = param \"x\" {init=normal b=1} : bf16[256,1024]\n"
#define FEW "%2 = param \"w\" {init=normal b=0.02} : f32[#,1024]\n"
#define HEADS                                                                                      \
    "%1 = param \"q\" {init=normal b=1} : bf16[4,#,2048]\n"                                        \
    "%2 = param \"k\" {init=normal b=1} : bf16[4,#,512]\n"                                         \
    "%3 = param \"v\" {init=normal b=1} : bf16[4,#,512]\n"
#define NORMED                                                                                     \
    X "%2 = param \"s\" {init=normal b=1} : bf16[@,1024]\n"                                         \
      "%3 = param \"gamma\" {init=ones} : bf16[1024]\n"
#define SIGNS                                                                                      \
    "%1 = param \"x\" {init=normal b=1} : f32[&]\n%2 = state \"e\" : f32[&]\nupdate:\n"            \
    "%3 = sign_compress %1, %2 : u8[$,132]\n"
/* Two operands of these shapes; and the rows of 8 experts that have 64 each. */
#define SOME(a, b)                                                                                 \
    "%1 = param \"x\" {init=normal b=1} : bf16[" a "]\n"                                          \
    "%2 = param \"w\" {init=normal b=0.02} : bf16[" b "]\n"
#define EACH_64                                                                                    \
    "%3 = constant {values=[0,64,64,128,128,192,192,256,256,320,320,384,384,448,448,512]} : "      \
    "i32[8,2]\n"
#define UPDATED                                                                                    \
    "%1 = param \"w\" {init=normal b=1} : f32[@,1024]\n"                                           \
    "%2 = param \"g\" {init=normal b=1} : f32[@,1024]\n%3 = state \"m\" : f32[@,1024]\n"           \
    "%4 = constant {values=[0.001]} : f32[]\nupdate:\n"

/* A layer of ResNet-50 (He et al. 2016), 16 pictures; a depthwise one of MobileNet (Howard et al.
 * 2017); the first one of Whisper (Radford et al. 2022), 30 seconds of sound, 4 times.
 * bench/peers/torch_conv.py has the same. */
#define CONV(of, dtype)                                                                            \
    "%1 = param \"x\" {init=normal b=1} : " dtype "[16,64,56,56]\n"                                \
    "%2 = param \"w\" {init=normal b=0.02} : " dtype "[64,64,3,3]\n"                               \
    "%3 = param \"dy\" {init=normal b=1} : " dtype "[16,64,56,56]\n%4 = " of                       \
    " {stride=[1,1] pad=[1,1] dilation=[1,1] groups=1"
#define DEPTHWISE(of)                                                                              \
    "%1 = param \"x\" {init=normal b=1} : f32[16,256,28,28]\n"                                    \
    "%2 = param \"w\" {init=normal b=0.02} : f32[256,1,3,3]\n"                                     \
    "%3 = param \"dy\" {init=normal b=1} : f32[16,256,28,28]\n%4 = " of                           \
    " {stride=[1,1] pad=[1,1] dilation=[1,1] groups=256"
#define CONV_1D(of)                                                                                \
    "%1 = param \"x\" {init=normal b=1} : f32[4,80,1,3000]\n"                                     \
    "%2 = param \"w\" {init=normal b=0.02} : f32[384,80,1,3]\n"                                    \
    "%3 = param \"dy\" {init=normal b=1} : f32[4,384,1,3000]\n%4 = " of                           \
    " {stride=[1,1] pad=[0,1] dilation=[1,1] groups=1"

static const struct row {
    const char *name;
    zf_op op;
    const char *text;
} rows[] = {
    {"copy (neg)", ZF_OP_neg, X "%2 = neg %1 : bf16[@,1024]\n output %2 \"y\"\n"},
    {"add", ZF_OP_add, NORMED "%4 = add %1, %2 : bf16[@,1024]\n output %4 \"y\"\n"},
    {"gelu", ZF_OP_gelu, X "%2 = gelu %1 : bf16[@,1024]\n output %2 \"y\"\n"},
    {"silu_grad", ZF_OP_silu_grad,
     NORMED "%4 = silu_grad %1, %2 : bf16[@,1024]\n output %4 \"y\"\n"},
    {"affine", ZF_OP_affine, NORMED "%4 = affine %1, %3 : bf16[@,1024]\n output %4 \"y\"\n"},
    {"residual_norm, rms", ZF_OP_residual_norm,
     NORMED "%4 = residual_norm %1, %2, %3 {eps=0.001 form=rms} : bf16[@,1024]\n"
            "%5 = saved %4 {index=0} : bf16[@,1024]\n%6 = saved %4 {index=2} : bf16[@,1024]\n"
            "output %4 \"y\"\noutput %5 \"xhat\"\noutput %6 \"sum\"\n"},
    {"residual_norm_grad, rms", ZF_OP_residual_norm_grad,
     NORMED "%4 = param \"r\" {init=ones} : f32[@]\n"
            "%5 = residual_norm_grad %1, %2, %4, %3, %1 {form=rms} : bf16[@,1024]\n"
            "%6 = saved %5 {index=1} : bf16[1024]\noutput %5 \"ds\"\noutput %6 \"dgamma\"\n"},
    {"norm_gamma_grad", ZF_OP_norm_gamma_grad,
     NORMED "%4 = param \"m\" {init=ones} : f32[@,2]\n"
            "%5 = norm_gamma_grad %1, %2, %4 : bf16[1024]\noutput %5 \"dgamma\"\n"},
    {"rms_norm_grad", ZF_OP_rms_norm_grad,
     NORMED "%4 = param \"m\" {init=ones} : f32[@,2]\n"
            "%5 = rms_norm_grad %1, %2, %4, %3 : bf16[@,1024]\noutput %5 \"dx\"\n"},
    {"conv 3x3, 64 channels, f32", ZF_OP_conv,
     CONV("conv %1, %2", "f32") "} : f32[16,64,56,56]\noutput %4 \"y\"\n"},
    {"conv 3x3, 64 channels", ZF_OP_conv,
     CONV("conv %1, %2", "bf16") "} : bf16[16,64,56,56]\noutput %4 \"y\"\n"},
    {"conv_grad_x, f32", ZF_OP_conv_grad_x,
     CONV("conv_grad_x %3, %2", "f32") " size=[56,56]} : f32[16,64,56,56]\noutput %4 \"dx\"\n"},
    {"conv_grad_x", ZF_OP_conv_grad_x,
     CONV("conv_grad_x %3, %2", "bf16") " size=[56,56]} : bf16[16,64,56,56]\noutput %4 \"dx\"\n"},
    {"conv_grad_w", ZF_OP_conv_grad_w,
     CONV("conv_grad_w %1, %3", "bf16") " taps=[3,3]} : bf16[64,64,3,3]\noutput %4 \"dw\"\n"},
    {"conv_grad_w, f32", ZF_OP_conv_grad_w,
     CONV("conv_grad_w %1, %3", "f32") " taps=[3,3]} : f32[64,64,3,3]\noutput %4 \"dw\"\n"},
    {"conv 3x3, depthwise, f32", ZF_OP_conv,
     DEPTHWISE("conv %1, %2") "} : f32[16,256,28,28]\noutput %4 \"y\"\n"},
    {"conv_grad_x, depthwise, f32", ZF_OP_conv_grad_x,
     DEPTHWISE("conv_grad_x %3, %2") " size=[28,28]} : f32[16,256,28,28]\noutput %4 \"dx\"\n"},
    {"conv_grad_w, depthwise, f32", ZF_OP_conv_grad_w,
     DEPTHWISE("conv_grad_w %1, %3") " taps=[3,3]} : f32[256,1,3,3]\noutput %4 \"dw\"\n"},
    {"conv1d 3, 80 to 384, f32", ZF_OP_conv,
     CONV_1D("conv %1, %2") "} : f32[4,384,1,3000]\noutput %4 \"y\"\n"},
    {"conv1d_grad_x, f32", ZF_OP_conv_grad_x,
     CONV_1D("conv_grad_x %3, %2") " size=[1,3000]} : f32[4,80,1,3000]\noutput %4 \"dx\"\n"},
    {"conv1d_grad_w, f32", ZF_OP_conv_grad_w,
     CONV_1D("conv_grad_w %1, %3") " taps=[1,3]} : f32[384,80,1,3]\noutput %4 \"dw\"\n"},
    {"quantize, 8 bits", ZF_OP_quantize,
     X "%2 = quantize %1 {bits=8 block=256} : u8[@,1040]\n output %2 \"y\"\n"},
    {"quantize, 4 bits", ZF_OP_quantize,
     X "%2 = quantize %1 {bits=4 block=256} : u8[@,528]\n output %2 \"y\"\n"},
    {"dequantize, 8 bits", ZF_OP_dequantize,
     X "%2 = quantize %1 {bits=8 block=256} : u8[@,1040]\n"
       "%3 = dequantize %2 {bits=8 block=256 to=bf16} : bf16[@,1024]\n output %3 \"y\"\n"},
    {"dequantize, 4 bits", ZF_OP_dequantize,
     X "%2 = quantize %1 {bits=4 block=256} : u8[@,528]\n"
       "%3 = dequantize %2 {bits=4 block=256 to=bf16} : bf16[@,1024]\n output %3 \"y\"\n"},
    {"sum of 4 parts, 4 bits", ZF_OP_dequantize_sum,
     "%1 = param \"x\" {init=normal b=1} : bf16[4,@,256]\n"
     "%2 = quantize %1 {bits=4 block=256} : u8[4,@,132]\n"
     "%3 = dequantize_sum %2 {bits=4 block=256 to=f32 parts=4} : f32[&]\n output %3 \"y\"\n"},
    {"product of one row, bf16", ZF_OP_matmul,
     ONE "%2 = param \"w\" {init=normal b=0.02} : bf16[@,1024]\n"
         "%3 = matmul %1, %2 {transpose_b=true} : bf16[1,@]\n output %3 \"y\"\n"},
    {"product of one row, int8", ZF_OP_quantized_linear,
     ONE W "%3 = quantize %2 {bits=8 block=64} : u8[@,1088]\n"
           "%4 = quantized_linear %1, %3 {bits=8 block=64} : bf16[1,@]\n output %4 \"y\"\n"},
    {"product of one row, int4", ZF_OP_quantized_linear,
     ONE W "%3 = quantize %2 {bits=4 block=64} : u8[@,576]\n"
           "%4 = quantized_linear %1, %3 {bits=4 block=64} : bf16[1,@]\n output %4 \"y\"\n"},
    {"product of 256 rows, int8", ZF_OP_quantized_linear,
     MANY FEW "%3 = quantize %2 {bits=8 block=64} : u8[#,1088]\n"
              "%4 = quantized_linear %1, %3 {bits=8 block=64} : bf16[256,#]\n output %4 \"y\"\n"},
    {"product of 512 rows", ZF_OP_matmul,
     SOME("512,1024", "3072,1024") "%3 = matmul %1, %2 {transpose_b=true} : bf16[512,3072]\n"
                                   " output %3 \"y\"\n"},
    {"products of 8 experts, 64 rows each", ZF_OP_grouped_linear,
     SOME("512,1024", "8,3072,1024") EACH_64
         "%4 = grouped_linear %1, %2, %3 : bf16[512,3072]\n output %4 \"y\"\n"},
    {"product of 512 rows, dx", ZF_OP_matmul,
     SOME("512,3072", "3072,1024") "%3 = matmul %1, %2 : bf16[512,1024]\n output %3 \"y\"\n"},
    {"products of 8 experts, dx", ZF_OP_grouped_linear,
     SOME("512,3072", "8,3072,1024") EACH_64
         "%4 = grouped_linear %1, %2, %3 {transpose=true} : bf16[512,1024]\n output %4 \"y\"\n"},
    {"product of 512 rows, dw, 8 times", ZF_OP_matmul,
     SOME("8,64,3072", "8,64,1024") "%3 = matmul %1, %2 {transpose_a=true} : bf16[8,3072,1024]\n"
                                    " output %3 \"y\"\n"},
    {"products of 8 experts, dw", ZF_OP_grouped_outer,
     SOME("512,3072", "512,1024") EACH_64
         "%4 = grouped_outer %1, %2, %3 : bf16[8,3072,1024]\n output %4 \"y\"\n"},
    {"rope", ZF_OP_rope,
     "%1 = param \"x\" {init=normal b=1} : bf16[8,#,1024]\n"
     "%2 = rope %1 {heads=16 theta=500000} : bf16[8,#,1024]\n output %2 \"y\"\n"},
    {"swiglu", ZF_OP_swiglu,
     "%1 = param \"x\" {init=normal b=1} : bf16[@,2048]\n"
     "%2 = swiglu %1 : bf16[@,1024]\n output %2 \"y\"\n"},
    {"swiglu_grad", ZF_OP_swiglu_grad,
     X "%2 = param \"g\" {init=normal b=1} : bf16[@,2048]\n"
       "%3 = swiglu_grad %1, %2 : bf16[@,2048]\n output %3 \"y\"\n"},
    {"attention, grouped, causal", ZF_OP_attention,
     HEADS "%4 = attention %1, %2, %3 {heads=32 kv_heads=8 scale=0.125 causal=true} : "
           "bf16[4,#,2048]\n output %4 \"y\"\n"},
    {"attention, window of 512", ZF_OP_attention,
     HEADS "%4 = attention %1, %2, %3 {heads=32 kv_heads=8 scale=0.125 causal=true window=512} : "
           "bf16[4,#,2048]\n output %4 \"y\"\n"},
    {"attention with a cache", ZF_OP_cached_attention,
     "%1 = param \"q\" {init=normal b=1} : bf16[32,1,2048]\n"
     "%2 = param \"k\" {init=normal b=1} : bf16[32,1,512]\n"
     "%3 = param \"v\" {init=normal b=1} : bf16[32,1,512]\n"
     "%4 = input \"past\" : i32[32]\n%5 = input \"count\" : i32[32]\n"
     "%6 = cache \"keys\" : bf16[32,#,512]\n%7 = cache \"values\" : bf16[32,#,512]\n"
     "%8 = cached_attention %1, %2, %3, %4, %5, %6, %7 {heads=32 kv_heads=8 scale=0.125} : "
     "bf16[32,1,2048]\n output %8 \"y\"\n"},
    {"sign_compress", ZF_OP_sign_compress, SIGNS},
    {"sign_expand", ZF_OP_sign_expand, SIGNS "%4 = sign_expand %3 {parts=1 shape=[&]} : f32[&]\n"},
    {"lion", ZF_OP_lion, UPDATED "lion %1, %2, %3, %4 {beta1=0.9 beta2=0.99 weight_decay=0.1}\n"},
    {"sgd", ZF_OP_sgd, UPDATED "sgd %1, %2, %4, %3 {momentum=0.9}\n"},
};

static int64_t half; /* of bf16, f16, f32: what stands for bf16 in the texts */

/* The text for so many rows; it is valid until the next call. */
static const char *text_of(const struct row *row, int64_t count)
{
    static const char *const dtypes[] = {"bf16", "f16", "f32"};
    static char text[2048];
    size_t at = 0;
    for (const char *c = row->text; *c && at + 32 < sizeof text; c++) {
        static const char marks[] = "@&$#";
        const int64_t numbers[] = {count, 256 * count, count / 4, count / 8};
        const char *mark = strchr(marks, *c);
        if (mark) at += (size_t)sprintf(text + at, "%lld", (long long)numbers[mark - marks]);
        else if (!strncmp(c, "bf16", 4))
            at += (size_t)sprintf(text + at, "%s", dtypes[half]), c += 3;
        else text[at++] = *c;
    }
    text[at] = '\0';
    return text;
}

/* Fills the inputs, tokens in caches and new ones: all but the last place is taken. */
static zf_status fill(zf_program *p, zf_graph *g, int64_t count)
{
    static const char *const names[] = {"past", "count"};
    zf_status status = ZF_OK;
    for (int k = 0; k < 2 && !status; k++) {
        zf_tensor x = zf_graph_find(g, names[k]);
        int32_t values[32];
        for (int i = 0; i < 32; i++) values[i] = k ? 1 : (int32_t)(count / 8 - 1);
        if (zf_valid(x)) status = zf_write(p, x, values, sizeof values);
    }
    return status;
}

/* The times of the row's operator, its bytes and FLOPs; false: an error was printed. */
static bool measure(const struct row *row, zf_backend *backend, int64_t count, int64_t rounds,
                    double *times, double *bytes, double *flops)
{
    zf_error error = {ZF_OK, ""};
    const char *text = text_of(row, count);
    zf_graph *g = zf_graph_parse(text, strlen(text), NULL, &error);
    zf_program *p = g ? zf_compile(g, &(zf_compile_desc){.backend = backend, .seed = 1}) : NULL;
    bool good = p && !fill(p, g, count);
    for (int64_t n = -2; n < rounds && good; n++) {
        profile_reset();
        good = !zf_step(p);
        profile_step();
        if (n >= 0) times[n] = profiled.seconds[row->op];
    }
    *bytes = profiled.bytes[row->op], *flops = profiled.flops[row->op];
    if (!good)
        fprintf(stderr, "ops: %s: %s\n", row->name,
                p ? zf_program_error(p) : g ? zf_graph_error(g) : error.text);
    zf_program_free(p);
    zf_graph_free(g);
    return good;
}

typedef struct options {
    int64_t rows, rounds, threads, dtype;
    device_desc device;
    bool json;
} options;

#define ROW(kind, member, default_, range, ...)                                                    \
    ZF_OPTION(options, kind, member, default_, range, __VA_ARGS__)

static const zf_option option_rows[] = {
    ROW(COUNT, rows, 65536, "[64,16777216]", .topic = "operators",
        .help = "rows of the operands, a multiple of 64"),
    ROW(COUNT, rounds, 10, "[1,1000000]", .help = "steps that are timed, after two others"),
    ROW(COUNT, threads, 2, "[1,1024]", .help = "worker threads"),
    ROW(CHOICE, dtype, 0, "bf16|f16|f32", .help = "dtype of the operands"),
    ROW(FLAG, json, 0, NULL, .help = "print one JSON object"),
    ROW(DESC, device, 0, NULL, .rows = bench_device_rows),
    {.name = NULL}};

int main(int argc, char **argv)
{
    options o = {.json = false};
    const zf_options all = {.rows = option_rows, .desc = &o};
    int some, status, printed = 0;
    bool good = true;
    double *times, copy = 0;
    zf_error error = {ZF_OK, ""};
    zf_backend *backend;
    if (!bench_options(argc, argv, &all, 1, 1, &some, &status)) return status;
    const int64_t count = o.rows - o.rows % 64, rounds = o.rounds;
    const char *const *names = (const char *const *)argv + 1;
    const bool json = o.json;
    half = o.dtype;
    times = calloc((size_t)rounds, sizeof *times);
    backend = device_open(&o.device, o.threads, &error);
    if (!backend || !times) return fprintf(stderr, "ops: %s\n", error.text), 1;
    profile_begin(backend, 1, 1);
    if (!json) printf("%-28s %10s %10s %10s %8s\n", "operator", "ms", "GB/s", "GFLOP/s", "of copy");
    for (size_t n = 0; n < sizeof rows / sizeof *rows; n++) {
        double seconds, bytes, flops;
        bool wanted = !some || !n; /* the copy is what others are compared with */
        for (int k = 0; k < some && !wanted; k++) wanted = strstr(rows[n].name, names[k]) != NULL;
        if (!wanted) continue;
        if (!measure(&rows[n], backend, count, rounds, times, &bytes, &flops)) {
            good = false;
            continue;
        }
        seconds = bench_median(times, rounds);
        if (!n) copy = bytes / seconds;
        printf(json ? "%s\"%s\": {\"ms\": %.4f, \"gbytes_per_s\": %.1f, \"gflops\": %.1f, "
                      "\"of_copy\": %.3f}"
                    : "%s%-28s %10.4f %10.1f %10.1f %8.3f\n",
               !json ? "" : printed++ ? ", " : "{", rows[n].name, 1e3 * seconds,
               1e-9 * bytes / seconds, 1e-9 * flops / seconds, bytes / seconds / copy);
        fflush(stdout);
    }
    if (json) puts(printed ? "}" : "{}");
    zf_backend_free(backend);
    free(times);
    return good ? 0 : 1;
}
