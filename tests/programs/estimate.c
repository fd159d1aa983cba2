/* Estimates: small plans by hand; what is exposed sums up to the step; bytes are those of the plan. */
#include "../../tools/pass.h"
#include "../support/numbers.h"

/* Rates by which a byte takes a second or less, and no two resources the same. */
static const zf_cost hand = {.device = {.flops_per_s = 1e30,
                                        .bytes_per_s = 1,
                                        .half_values_per_s = 1e30,
                                        .functions_per_s = 1e30},
                             .link = {.bytes_per_s = 16, .latency_s = 100},
                             .host = {.bytes_per_s = 2},
                             .download = {.bytes_per_s = 4, .latency_s = 10},
                             .upload = {.bytes_per_s = 8, .latency_s = 20},
                             .read = {.bytes_per_s = 32, .latency_s = 30},
                             .write = {.bytes_per_s = 64, .latency_s = 40}};

typedef struct expected {
    double busy[ZF_RESOURCES], exposed[ZF_RESOURCES];
} expected;

static bool near(double a, double b) { return a - b < 1e-6 * (b + 1) && b - a < 1e-6 * (b + 1); }

/* The estimate of the text by those rates is the one expected. */
static bool is_estimated(test *t, const char *text, const zf_cost *cost, const expected *want)
{
    zf_error error = {ZF_OK, ""};
    zf_graph *g =
        zf_graph_parse(text, strlen(text), &(zf_graph_desc){.allocator = t->allocator}, &error);
    zf_estimate e = {0};
    double sum = 0;
    bool good = g && !zf_graph_estimate(g, cost, &e);
    if (!good)
        test_unwind(t, __FILE__, __LINE__, "zf_graph_estimate", g ? zf_graph_status(g) : error.status,
                    g ? zf_graph_error(g) : error.text);
    for (int k = 0; k < ZF_RESOURCES && good; k++) {
        sum += want->exposed[k];
        good = near(e.busy[k], want->busy[k]) && near(e.exposed[k], want->exposed[k]);
        if (!good)
            printf("    %s: busy %g, exposed %g\n", zf_resource_name((zf_resource)k), e.busy[k],
                   e.exposed[k]);
    }
    good = good && near(e.seconds, sum);
    zf_graph_free(g);
    return good;
}

/* The beginning of a step: a parameter in a bucket, and %46 in the place of its gradient. */
#define PACKED                                                                                     \
    "zero stage=0 world=1 micro_batches=1\n"                                                       \
    "%2  = param \"w\" {init=normal b=0.3} : f32[8,8]\n"                                           \
    "%42 = bucket %2 {at=[0] size=1024} : f32[1024]\n"                                             \
    "%1  = input \"x\" : f32[8,8]\n"                                                               \
    "%4  = input \"lr\" : f32[]\n"                                                                 \
    "%46 = pack %1 {at=[0] size=1024} : f32[1024]\n"

/* An optimizer in host memory. The micro section: pack reads 256 bytes and
 * writes 4096; while its result goes to the host, tanh reads and writes 256; the section then waits
 * for the copy. The learning rate's copy, on queue compute, comes after that of the parameters. */
TEST(estimate_of_copies)
{
    static const char text[] =
        PACKED
        "%47 = copy %46 {to=host} : f32[1024] host queue=download\n"
        "%9  = tanh %1 : f32[8,8]\n"
        "      wait %47\n"
        "      output %9 \"y\"\n"
        "update:\n"
        "%5  = state \"sgd.momentum/w\" : f32[8,8] disk\n"
        "%43 = bucket %5 {at=[0] size=1024} : f32[1024] disk\n"
        "%44 = copy %43 {to=host} : f32[1024] host queue=read\n"
        "%48 = copy %42 {to=host} : f32[1024] host queue=download\n"
        "%49 = copy %4 {to=host} : f32[] host\n"
        "      wait %48\n"
        "      wait %44\n"
        "      sgd %48, %47, %49, %44 {momentum=0.9 blocks=[0,1] decays=[0]}\n"
        "%50 = copy %44, %43 {to=disk} : f32[1024] disk queue=write\n"
        "%51 = copy %48, %42 : f32[1024] queue=upload\n"
        "      wait %50\n"
        "      wait %51\n";
    const double copy = 10 + 4096 / 4.0, rate = 10 + 4 / 4.0, read = 30 + 4096 / 32.0,
                 write = 40 + 4096 / 64.0, upload = 20 + 4096 / 8.0;
    const expected want = {
        .busy = {[ZF_RESOURCE_COMPUTE] = 256 + 4096 + 512,
                 [ZF_RESOURCE_HOST] = (2 * 4096 + 4096 + 4 + 2 * 4096) / 2.0,
                 [ZF_RESOURCE_DOWNLOAD] = copy + copy + rate,
                 [ZF_RESOURCE_UPLOAD] = upload,
                 [ZF_RESOURCE_READ] = read,
                 [ZF_RESOURCE_WRITE] = write},
        .exposed = {[ZF_RESOURCE_COMPUTE] = 256 + 4096 + 512,
                    [ZF_RESOURCE_HOST] = (2 * 4096 + 4096 + 4 + 2 * 4096) / 2.0,
                    [ZF_RESOURCE_DOWNLOAD] = copy - 512 + copy + rate,
                    [ZF_RESOURCE_UPLOAD] = upload - write, /* the write began at the same time */
                    [ZF_RESOURCE_WRITE] = write}};
    zf_cost loaded = hand;
    expected more = want;
    CHECK(t, is_estimated(t, text, &hand, &want));
    /* of what is hidden, a quarter or a half slows computing down */
    loaded.copy_load = 0.25, loaded.disk.load = 0.5;
    for (int k = ZF_RESOURCE_DOWNLOAD; k <= ZF_RESOURCE_WRITE; k++)
        more.exposed[k] += (want.busy[k] - want.exposed[k]) * (k < ZF_RESOURCE_READ ? 0.25 : 0.5);
    CHECK(t, more.exposed[ZF_RESOURCE_READ] == 0.5 * read);
    CHECK(t, is_estimated(t, text, &loaded, &more));
}

/* The same where the host has processors of its own: what the device does after the update runs
 * concurrent with it, and the write is waited for by the host. Where the parameters come back on queue compute,
 * that waits for the update as well. */
TEST(estimate_of_a_host_apart)
{
    static const char text[] =
        PACKED
        "%47 = copy %46 {to=host} : f32[1024] host\n"
        "update:\n"
        "%5  = state \"sgd.momentum/w\" : f32[8,8] disk\n"
        "%43 = bucket %5 {at=[0] size=1024} : f32[1024] disk\n"
        "%49 = copy %4 {to=host} : f32[] host\n"
        "%44 = copy %43 {to=host} : f32[1024] host queue=read\n"
        "%48 = copy %42 {to=host} : f32[1024] host\n"
        "      wait %44\n"
        "      sgd %48, %47, %49, %44 {momentum=0.9 blocks=[0,1] decays=[0]}\n"
        "%50 = copy %44, %43 {to=disk} : f32[1024] disk queue=write\n"
        "%9  = tanh %1 : f32[8,8]\n"
        "      output %9 \"y\"\n"
        "%51 = copy %48, %42 : f32[1024]\n"
        "      wait %50\n";
    const double copy = 10 + 4096 / 4.0, rate = 10 + 4 / 4.0, read = 30 + 4096 / 32.0,
                 write = 40 + 4096 / 64.0, upload = 20 + 4096 / 8.0,
                 update = (2 * 4096 + 4096 + 4 + 2 * 4096) / 2.0;
    zf_cost cost = hand;
    expected want = {.busy = {[ZF_RESOURCE_COMPUTE] = 256 + 4096 + 512,
                              [ZF_RESOURCE_HOST] = update,
                              [ZF_RESOURCE_DOWNLOAD] = copy + rate + copy,
                              [ZF_RESOURCE_UPLOAD] = upload,
                              [ZF_RESOURCE_READ] = read,
                              [ZF_RESOURCE_WRITE] = write},
                     .exposed = {[ZF_RESOURCE_COMPUTE] = 256 + 4096 + 512,
                                 [ZF_RESOURCE_HOST] = update - 512,
                                 [ZF_RESOURCE_DOWNLOAD] = copy + rate + copy,
                                 [ZF_RESOURCE_UPLOAD] = upload}};
    cost.host.apart = 1;
    CHECK(t, is_estimated(t, text, &cost, &want));
    cost.write.bytes_per_s = 1; /* the step ends with the write, which began with the upload */
    want.busy[ZF_RESOURCE_WRITE] = 40 + 4096;
    want.exposed[ZF_RESOURCE_WRITE] = 40 + 4096 - upload;
    CHECK(t, is_estimated(t, text, &cost, &want));
    cost.host.apart = 0;
    want.exposed[ZF_RESOURCE_HOST] = update;
    want.exposed[ZF_RESOURCE_WRITE] = 40 + 4096 - 512 - upload;
    CHECK(t, is_estimated(t, text, &cost, &want));
}

/* Gathers and reductions have queues of their own, and one link. A rank of two
 * sends 4096 bytes of what is reduced, and 2048 for the gather. */
TEST(estimate_of_one_link)
{
    static const char text[] = "zero stage=0 world=2 micro_batches=1\n"
                               "%1 = input \"x\" : f32[1024]\n"
                               "%2 = input \"y\" : f32[512]\n"
                               "%3 = all_reduce %1 {world=2} : f32[1024] queue=reduce\n"
                               "%4 = all_gather %2 {world=2} : f32[1024] queue=gather\n"
                               "%5 = tanh %2 : f32[512]\n"
                               "     wait %4\n"
                               "%6 = tanh %4 : f32[1024]\n"
                               "     wait %3\n"
                               "     output %3 \"a\"\n"
                               "     output %5 \"b\"\n"
                               "     output %6 \"c\"\n";
    const double both = 100 + 4096 / 16.0 + 100 + 2048 / 16.0, work = 2 * 2048 + 2 * 4096;
    zf_cost fast = hand;
    expected want = {.busy = {[ZF_RESOURCE_COMPUTE] = work, [ZF_RESOURCE_LINK] = both},
                     .exposed = {[ZF_RESOURCE_COMPUTE] = work}};
    CHECK(t, is_estimated(t, text, &hand, &want)); /* all of it is hidden */
    fast.device.bytes_per_s = 1e30;
    want.busy[ZF_RESOURCE_COMPUTE] = want.exposed[ZF_RESOURCE_COMPUTE] = 0;
    want.exposed[ZF_RESOURCE_LINK] = both;
    CHECK(t, is_estimated(t, text, &fast, &want));
}

/* What is written into a state or a sum takes time, though the result is no value of its own: a state
 * takes 4096 bytes that are read; 136 bytes are added to a sum of 256, which is read and written. */
TEST(estimate_of_what_is_written)
{
    static const char text[] = "%1 = state \"m\" : f32[1024]\n"
                               "%2 = input \"x\" : f32[1024]\n"
                               "%3 = input \"q\" : u8[136]\n"
                               "%4 = accumulator : f32[64]\n"
                               "%5 = dequantize_sum %3, %4 {bits=8 block=64 parts=2} : f32[64]\n"
                               "     output %5 \"y\"\n"
                               "     update:\n"
                               "%6 = assign %1, %2 : f32[1024]\n";
    const double bytes = 2 * 4096 + 136 + 256 + 256;
    const expected want = {.busy = {[ZF_RESOURCE_COMPUTE] = bytes},
                           .exposed = {[ZF_RESOURCE_COMPUTE] = bytes}};
    CHECK(t, is_estimated(t, text, &hand, &want));
}

/* Functions of elements, by operators that compute them. */
TEST(estimate_of_functions)
{
#define X   "%1 = input \"x\" : f32[4,8]\n"
#define XY  X "%2 = input \"y\" : f32[4,8]\n"
#define LAB "%3 = input \"labels\" : i32[4]\n"
#define QKV "%1 = input \"qkv\" : f32[2,5,24]\n"
#define DY  "%2 = input \"dy\" : f32[2,5,8]\n%3 = input \"y\" : f32[2,5,8]\n"
    static const struct {
        const char *text;
        double functions;
    } rows[] = {
        {X "%2 = neg %1 : f32[4,8]\n", 0},
        {XY "%3 = mul %1, %2 : f32[4,8]\n", 0},
        {X "%2 = exp %1 : f32[4,8]\n", 32},
        {X "%2 = log %1 : f32[4,8]\n", 32},
        {X "%2 = tanh %1 : f32[4,8]\n", 32},
        {X "%2 = sigmoid %1 : f32[4,8]\n", 32},
        {X "%2 = silu %1 : f32[4,8]\n", 32},
        {X "%2 = softplus %1 : f32[4,8]\n", 64},
        {X "%2 = gelu %1 : f32[4,8]\n", 64},
        {X "%2 = gelu %1 {form=tanh} : f32[4,8]\n", 32},
        {XY "%3 = gelu_grad %1, %2 : f32[4,8]\n", 96},
        {XY "%3 = gelu_grad %1, %2 {form=tanh} : f32[4,8]\n", 64},
        {XY "%3 = silu_grad %1, %2 : f32[4,8]\n", 32},
        {XY "%3 = tanh_grad %1, %2 : f32[4,8]\n", 0},
        {XY "%3 = swiglu %1, %2 : f32[4,8]\n", 32},
        {X "%2 = swiglu %1 : f32[4,4]\n", 16},
        {XY "%3 = input \"z\" : f32[4,8]\n%4 = swiglu_grad %1, %2, %3 : f32[4,8]\n", 32},
        {X "%2 = dropout %1 {p=0.1 stream=3} : f32[4,8]\n", 32},
        {X "%2 = dropout %1 {p=0 stream=3} : f32[4,8]\n", 0},
        {X "%2 = softmax %1 : f32[4,8]\n", 32},
        {XY "%3 = softmax_grad %1, %2 : f32[4,8]\n", 0},
        {X "%2 = masked_softmax %1 {scale=1} : f32[4,8]\n", 32},
        {X "%2 = masked_softmax %1 {scale=1 p=0.1 stream=3} : f32[4,8]\n", 64},
        {XY "%3 = masked_softmax_grad %1, %2 {scale=1 p=0.1 stream=3} : f32[4,8]\n", 32},
        {X "%2 = logsumexp %1 : f32[4]\n", 32},
        {"%1 = input \"dy\" : f32[4]\n%2 = input \"x\" : f32[4,8]\n" LAB
         "%4 = input \"lse\" : f32[4]\n"
         "%5 = cross_entropy_grad %1, %2, %4, %3 {ignore=-100} : f32[4,8]\n",
         32},
        {XY "%3 = linear %1, %2 : f32[4,4]\n", 0},
        {XY "%3 = linear %1, %2 {activation=gelu} : f32[4,4]\n", 32},
        {XY "%3 = linear %1, %2 {activation=gelu_tanh} : f32[4,4]\n", 16},
        {XY "%3 = linear %1, %2 {activation=silu} : f32[4,4]\n", 16},
        {X "%2 = input \"w\" : f32[20,8]\n" LAB "%4 = constant {values=[0.25]} : f32[]\n"
           "%5 = head_loss %1, %2, %3, %4 {ignore=-100} : f32[]\n",
         80},
        {XY "%3 = input \"gamma\" : f32[8]\n"
            "%4 = residual_norm %1, %2, %3 {p=0.1 stream=3 eps=1e-5 form=rms} : f32[4,8]\n",
         32},
        {XY "%3 = input \"gamma\" : f32[8]\n"
            "%4 = residual_norm %1, %2, %3 {p=0 stream=3 eps=1e-5 form=rms} : f32[4,8]\n",
         0},
        {XY "%3 = input \"rstd\" : f32[4]\n%4 = input \"gamma\" : f32[8]\n"
            "%5 = residual_norm_grad %1, %2, %3, %4 {p=0.25 stream=7} : f32[4,8]\n",
         32},
        {QKV "%2 = attention %1 {heads=2 scale=1} : f32[2,5,8]\n", 2 * 2 * 5 * 5},
        {QKV "%2 = attention %1 {heads=2 scale=1 p=0.1 stream=3} : f32[2,5,8]\n", 2 * 2 * 2 * 5 * 5},
        {QKV "%2 = attention %1 {heads=2 scale=1 causal=true window=3} : f32[2,5,8]\n",
         2 * 2 * 5 * 3},
        {"%1 = input \"q\" : f32[2,5,8]\n%2 = input \"k\" : f32[2,7,4]\n"
         "%3 = input \"v\" : f32[2,7,4]\n"
         "%4 = attention %1, %2, %3 {heads=4 kv_heads=2 scale=1} : f32[2,5,8]\n",
         2 * 4 * 5 * 7},
        {QKV DY "%4 = input \"lse\" : f32[2,2,5]\n"
                "%5 = attention_grad %2, %3, %4, %1 {heads=2 scale=1 p=0.1 stream=3} : "
                "f32[2,5,24]\n",
         2 * 2 * 2 * 5 * 5},
        {"%1 = input \"q\" : f32[2,3,8]\n%2 = input \"k\" : f32[2,3,4]\n"
         "%3 = input \"v\" : f32[2,3,4]\n%4 = input \"past\" : i32[2]\n"
         "%5 = input \"count\" : i32[2]\n%6 = cache \"a\" : f32[2,64,4]\n"
         "%7 = cache \"b\" : f32[2,64,4]\n"
         "%8 = cached_attention %1, %2, %3, %4, %5, %6, %7 {heads=4 kv_heads=2 scale=1} : "
         "f32[2,3,8]\n",
         2 * 4 * 3 * 64},
        /* gelu, its gradient, exp, and a dropout that draws */
        {XY "%3 = chain %1, %2 {program=[15,0,0,21,2,1,8,3,0,24,4,0] values=[0.25,3]} : f32[4,8]\n",
         (2 + 3 + 1 + 1) * 32},
    };
    zf_cost cost = hand;
    cost.device.bytes_per_s = 1e30, cost.device.functions_per_s = 1;
    for (size_t k = 0; k < sizeof rows / sizeof *rows; k++) {
        const expected want = {.busy = {[ZF_RESOURCE_COMPUTE] = rows[k].functions},
                               .exposed = {[ZF_RESOURCE_COMPUTE] = rows[k].functions}};
        if (!is_estimated(t, rows[k].text, &cost, &want))
            test_fail(t, __FILE__, __LINE__, "functions", rows[k].text);
    }
#undef X
#undef XY
#undef LAB
#undef QKV
#undef DY
}

static zf_status nothing(const zf_launch *l) { return l->out.data ? ZF_OK : ZF_ERR_ARGUMENT; }

static double five(const zf_launch *l) { return 5 * (double)zf_shape_count(l->out.shape); }

/* An operator of a program's own says how many it computes. */
TEST(estimate_of_own_functions)
{
    const zf_operator own[] = {{.name = "bell", .cpu = nothing, .functions = five},
                               {.name = "plain", .cpu = nothing}};
    zf_cost cost = hand;
    cost.device.bytes_per_s = 1e30, cost.device.functions_per_s = 1;
    for (int k = 0; k < 2; k++) {
        zf_graph *g = zf_graph_new(&(zf_graph_desc){
            .allocator = t->allocator, .operators = own, .operator_count = 2});
        zf_tensor x;
        zf_estimate e;
        NEED(t, g, NULL);
        test_defer(t, (test_cleanup *)zf_graph_free, g);
        x = zf_input(g, "x", ZF_F32, ZF_SHAPE(4, 8));
        zf_output(zf_apply(g, own[k].name, 1, &x, NULL), "y");
        OK(t, zf_graph_estimate(g, &cost, &e), zf_graph_error(g));
        CHECK(t, near(e.seconds, k ? 0 : 160));
    }
}

/* Values of 16 bits take the time that their rate or their bytes say, whichever is longer. What an
 * update reads is not counted; between the products of attention are scores, between those of a head
 * logits, and its table once more for each other tile of 512 rows. */
TEST(estimate_of_16_bits)
{
    static const struct {
        const char *text;
        double bytes, halves;
    } rows[] = {
        {"%1 = input \"x\" : f32[4,8]\n%2 = tanh %1 : f32[4,8]\n", 256, 0},
        {"%1 = input \"x\" : bf16[4,8]\n%2 = tanh %1 : bf16[4,8]\n", 128, 64},
        {"%1 = input \"x\" : f16[4,8]\n%2 = tanh %1 : f16[4,8]\n", 128, 64},
        {"%1 = input \"x\" : bf16[4,8]\n%2 = cast %1 {to=f32} : f32[4,8]\n", 192, 32},
        {"%1 = input \"a\" : bf16[4,8]\n%2 = input \"b\" : bf16[8,2]\n"
         "%3 = matmul %1, %2 : bf16[4,2]\n",
         112, 56},
        {"%1 = input \"qkv\" : bf16[2,5,24]\n%2 = attention %1 {heads=2 scale=1} : bf16[2,5,8]\n",
         640, 320 + 2 * 100},
        {"%1 = input \"qkv\" : f32[2,5,24]\n%2 = attention %1 {heads=2 scale=1} : f32[2,5,8]\n",
         1280, 0},
        {"%1 = input \"x\" : bf16[600,8]\n%2 = input \"w\" : bf16[20,8]\n"
         "%3 = input \"labels\" : i32[600]\n%4 = constant {values=[0.25]} : f32[]\n"
         "%5 = head_loss %1, %2, %3, %4 {ignore=-100} : f32[]\n"
         "%6 = saved %5 {index=0} : f32[600,8]\n%7 = saved %5 {index=1} : f32[20,8]\n",
         9600 + 320 + 2400 + 8 + 19200 + 640, 4960 + 3 * 12000 + 6 * 160},
        {"%1 = param \"w\" : bf16[8]\n%2 = input \"g\" : bf16[8]\n%3 = input \"lr\" : f32[]\n"
         "%4 = state \"m\" : f32[8]\n     update:\n"
         "     sgd %1, %2, %3, %4 {momentum=0.9}\n",
         32 + 16 + 4 + 64, 0},
    };
    zf_cost cost = hand;
    for (size_t k = 0; k < sizeof rows / sizeof *rows; k++) {
        for (int slow = 0; slow < 2; slow++) { /* by bytes, by values */
            const bool longer = slow && 4 * rows[k].halves > rows[k].bytes;
            const double time = longer ? 4 * rows[k].halves : rows[k].bytes;
            const expected want = {.busy = {[ZF_RESOURCE_COMPUTE] = time},
                                   .exposed = {[ZF_RESOURCE_COMPUTE] = time}};
            cost.device.half_values_per_s = slow ? 0.25 : 1e30;
            if (!is_estimated(t, rows[k].text, &cost, &want))
                test_fail(t, __FILE__, __LINE__, slow ? "values" : "bytes", rows[k].text);
        }
    }
}

/* Every stage with and without prefetch and offload: the sum of what is exposed is the step, nothing
 * is more exposed than it is busy, all of it without prefetch; what links move takes what the
 * table says. */
TEST_ONCE(estimate_adds_up)
{
    static const char *const offloads[] = {"", "offload optimizer=host;",
                                           "offload optimizer=disk;"};
    static const char model[] = "%1 = input \"x\" : f32[4,40]\n"
                                "%2 = param \"layer.0.w\" {init=normal b=0.3} : f32[40,60]\n"
                                "%3 = param \"layer.1.w\" {init=normal b=0.3} : f32[60,40]\n"
                                "%4 = input \"lr\" : f32[]\n"
                                "%5 = matmul %1, %2 : f32[4,60]\n"
                                "%6 = tanh %5 : f32[4,60]\n"
                                "%7 = matmul %6, %3 : f32[4,40]\n"
                                "%8 = mul %7, %7 : f32[4,40]\n"
                                "%9 = reshape %8 {shape=[160]} : f32[160]\n"
                                "%10 = sum %9 : f32[]\n"
                                "      output %10 \"loss\"\n";
    for (int n = 0; n < 24; n++) {
        char line[300], message[600] = "";
        zf_graph *g = zf_graph_parse(model, strlen(model), NULL, NULL);
        zf_estimate e;
        zf_plan plan;
        double sum = 0, link;
        NEED(t, g, NULL);
        test_defer(t, (test_cleanup *)zf_graph_free, g);
        snprintf(line, sizeof line,
                 "autograd loss; adamw lr; zero stage=%d world=4 micro_batches=%d bucket=10000; %s "
                 "prefetch bytes=%d; memory",
                 n % 4, 1 + n % 3, offloads[n / 4 % 3], n < 12 ? 0 : 100000);
        CHECK(t, !pass_run(g, line, NULL, message, sizeof message));
        OK(t, zf_graph_plan(g, &plan), zf_graph_error(g));
        OK(t, zf_graph_estimate(g, &hand, &e), zf_graph_error(g));
        for (int k = 0; k < ZF_RESOURCES; k++) {
            sum += e.exposed[k];
            CHECK(t, n < 12 ? near(e.exposed[k], e.busy[k]) : e.exposed[k] <= 1.000001 * e.busy[k]);
        }
        CHECK(t, near(sum, e.seconds) && (n < 12 || e.exposed[ZF_RESOURCE_LINK] > 0));
        link = 100 * (double)(plan.traffic.all_gather.calls + plan.traffic.reduce_scatter.calls +
                              plan.traffic.all_reduce.calls) +
               (double)(plan.traffic.all_gather.bytes + plan.traffic.reduce_scatter.bytes +
                        plan.traffic.all_reduce.bytes) /
                   16;
        CHECK(t, near(e.busy[ZF_RESOURCE_LINK], link));
        CHECK(t, near(e.busy[ZF_RESOURCE_WRITE], 40 * (double)plan.traffic.write.calls +
                                                     (double)plan.traffic.write.bytes / 64));
        CHECK(t, (e.busy[ZF_RESOURCE_READ] > 0) == (n / 4 % 3 == 2));
        CHECK(t, (e.busy[ZF_RESOURCE_HOST] > 0) == (n / 4 % 3 > 0));
    }
}

TEST(estimate_errors)
{
    zf_estimate e;
    zf_cost cost = hand;
    zf_graph *g = zf_graph_new(&(zf_graph_desc){.allocator = t->allocator});
    NEED(t, g, NULL);
    test_defer(t, (test_cleanup *)zf_graph_free, g);
    OK(t, zf_graph_estimate(g, NULL, &e), zf_graph_error(g));
    CHECK(t, e.seconds == 0);
    CHECK(t, zf_graph_estimate(g, NULL, NULL) == ZF_ERR_ARGUMENT);
    CHECK(t, zf_graph_estimate(NULL, NULL, &e) == ZF_ERR_ARGUMENT);
    cost.read.bytes_per_s = -1;
    GIVES(t, zf_graph_estimate(g, &cost, &e), ZF_ERR_ARGUMENT, zf_graph_error(g));
    CHECK_TEXT(t, zf_graph_error(g),
               "zf_graph_estimate: read_bytes_per_s of the cost table is -1; it must be above 0");
    CHECK_TEXT(t, zf_resource_name(ZF_RESOURCE_WRITE), "write");
    CHECK(t, !zf_resource_name(ZF_RESOURCES));
}
