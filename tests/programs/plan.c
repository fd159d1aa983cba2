/* The verifier of plans on ranks and queues: each rule is broken once, by an edit of a good text,
 * and the error names the nodes (rules that no text can break: inside/verify.c). And random edits
 * that the verifier accepts must not change the numbers. */
#include "../../tools/pass.h"
#include "../support/numbers.h"

/* ------------------------------------------------------------------------- planted mistakes */

/* Stage 2, two ranks, two micro-batches, not placed. */
static const char accumulating[] =
    "zero stage=2 world=2 micro_batches=2\n"
    "%2  = param \"a.w\" {init=normal b=0.3} : f32[8,8]\n"
    "%3  = param \"b.w\" {init=normal b=0.3} : f32[8,8]\n"
    "%42 = bucket %2 {at=[0] size=2048} : f32[2048]\n"
    "%43 = bucket %3 {at=[0] size=2048} : f32[2048]\n"
    "%1  = input \"x\" : f32[4,8]\n"
    "%4  = input \"lr\" : f32[]\n"
    "%44 = view %42 {shape=[8,8]} : f32[8,8]\n"
    "%5  = matmul %1, %44 : f32[4,8]\n"
    "%45 = view %43 {shape=[8,8]} : f32[8,8]\n"
    "%6  = matmul %5, %45 : f32[4,8]\n"
    "%7  = reshape %6 {shape=[32]} : f32[32]\n"
    "%8  = sum %7 : f32[]\n"
    "%9  = constant {values=[1]} : f32[]\n"
    "%11 = broadcast %9 {shape=[4,8]} : f32[4,8]\n"
    "%13 = matmul %11, %45 {transpose_b=true} : f32[4,8]\n"
    "%14 = matmul %5, %11 {transpose_a=true} : f32[8,8]\n"
    "%46 = pack %14 {at=[0] size=2048} : f32[2048]\n"
    "%47 = accumulator : f32[1024]\n"
    "%48 = reduce_scatter %46, %47 {world=2} : f32[1024]\n"
    "%15 = matmul %1, %13 {transpose_a=true} : f32[8,8]\n"
    "%49 = pack %15 {at=[0] size=2048} : f32[2048]\n"
    "%50 = accumulator : f32[1024]\n"
    "%51 = reduce_scatter %49, %50 {world=2} : f32[1024]\n"
    "%52 = pack %8 {at=[0] size=1} : f32[1]\n"
    "%53 = accumulator : f32[1]\n"
    "%54 = all_reduce %52, %53 {world=2} : f32[1]\n"
    "%55 = view %54 : f32[]\n"
    "      output %55 \"loss\"\n"
    "update:\n"
    "%34 = state \"adamw.step\" : i64[]\n"
    "%36 = state \"adamw.m/a.w\" : f32[8,8]\n"
    "%37 = state \"adamw.v/a.w\" : f32[8,8]\n"
    "%39 = state \"adamw.m/b.w\" : f32[8,8]\n"
    "%40 = state \"adamw.v/b.w\" : f32[8,8]\n"
    "%56 = block_norms %51 : f32[1]\n"
    "%57 = all_gather %56 {world=2} : f32[2]\n"
    "%58 = block_norms %48 : f32[1]\n"
    "%59 = all_gather %58 {world=2} : f32[2]\n"
    "%21 = norm %57, %59 : f32[]\n"
    "%22 = sqrt %21 : f32[]\n"
    "      output %22 \"grad_norm\"\n"
    "%28 = maximum %22, %9 : f32[]\n"
    "%29 = div %9, %28 : f32[]\n"
    "%62 = mul %51, %29 : f32[1024]\n"
    "      gradient %42, %62\n"
    "%64 = mul %48, %29 : f32[1024]\n"
    "      gradient %43, %64\n"
    "      advance %34\n"
    "%66 = shard %42 {world=2} : f32[1024]\n"
    "%67 = bucket %36 {at=[0] size=2048 world=2} : f32[1024]\n"
    "%68 = bucket %37 {at=[0] size=2048 world=2} : f32[1024]\n"
    "      adamw %66, %62, %67, %68, %4, %34 {beta1=0.9 beta2=0.999 eps=1e-08 world=2 "
    "blocks=[0,1] decays=[0]}\n"
    "%70 = all_gather %66, %42 {world=2} : f32[2048]\n"
    "%71 = shard %43 {world=2} : f32[1024]\n"
    "%72 = bucket %39 {at=[0] size=2048 world=2} : f32[1024]\n"
    "%73 = bucket %40 {at=[0] size=2048 world=2} : f32[1024]\n"
    "      adamw %71, %64, %72, %73, %4, %34 {beta1=0.9 beta2=0.999 eps=1e-08 world=2 "
    "blocks=[0,1] decays=[0]}\n"
    "%75 = all_gather %71, %43 {world=2} : f32[2048]\n";

/* Stage 3, two ranks, with queues, placed. */
static const char queued[] =
    "zero stage=3 world=2 micro_batches=1\n"
    "%2  = param \"a.w\" {init=normal b=0.3} : f32[8,8]\n"
    "%3  = param \"b.w\" {init=normal b=0.3} : f32[8,8]\n"
    "%42 = bucket %2 {at=[0] size=2048 world=2} : f32[1024] @192+4096\n"
    "%43 = bucket %3 {at=[0] size=2048 world=2} : f32[1024] @4288+4096\n"
    "%1  = input \"x\" : f32[4,8] @0+128\n"
    "%4  = input \"lr\" : f32[] @128+4\n"
    "%44 = all_gather %42 {world=2} : f32[2048] @8576+8192 queue=gather\n"
    "%47 = all_gather %43 {world=2} : f32[2048] @16768+8192 queue=gather\n"
    "      wait %44\n"
    "%45 = view %44 {shape=[8,8]} : f32[8,8] @8576+256\n"
    "%5  = matmul %1, %45 : f32[4,8] @24960+128\n"
    "      release %44\n"
    "      wait %47\n"
    "%48 = view %47 {shape=[8,8]} : f32[8,8] @16768+256\n"
    "%6  = matmul %5, %48 : f32[4,8] @8576+128\n"
    "%7  = reshape %6 {shape=[32]} : f32[32] @8576+128\n"
    "%8  = sum %7 : f32[] @33152+4\n"
    "%9  = constant {values=[1]} : f32[] @8384+4\n"
    "%11 = broadcast %9 {shape=[4,8]} : f32[4,8] @25088+128\n"
    "%13 = matmul %11, %48 {transpose_b=true} : f32[4,8] @29056+128\n"
    "      release %47\n"
    "%14 = matmul %5, %11 {transpose_a=true} : f32[8,8] @8576+256\n"
    "%50 = pack %14 {at=[0] size=2048} : f32[2048] @8576+8192\n"
    "%51 = reduce_scatter %50 {world=2} : f32[1024] @24960+4096 queue=reduce\n"
    "%15 = matmul %1, %13 {transpose_a=true} : f32[8,8] @16768+256\n"
    "%52 = pack %15 {at=[0] size=2048} : f32[2048] @16768+8192\n"
    "%53 = reduce_scatter %52 {world=2} : f32[1024] @29056+4096 queue=reduce\n"
    "%54 = pack %8 {at=[0] size=1} : f32[1] @33152+4\n"
    "%55 = all_reduce %54 {world=2} : f32[1] @33152+4\n"
    "%56 = view %55 : f32[] @33152+4\n"
    "      output %56 \"loss\"\n"
    "      wait %51\n"
    "      wait %53\n"
    "update:\n"
    "      sgd %42, %53, %4 {world=2 blocks=[0,1] decays=[0]}\n"
    "      sgd %43, %51, %4 {world=2 blocks=[0,1] decays=[0]}\n"
    "peak 33216 %53\n";

/* Stage 1, two ranks, placed; updated parameters are gathered on a queue; accumulators. */
static const char updating[] =
    "zero stage=1 world=2 micro_batches=2\n"
    "%2  = param \"w\" {init=normal b=0.3} : f32[8,8]\n"
    "%42 = bucket %2 {at=[0] size=2048} : f32[2048] @256+8192\n"
    "%1  = input \"x\" : f32[8,8] @0+256\n"
    "%4  = input \"lr\" : f32[] @8448+4\n"
    "%44 = view %42 {shape=[8,8]} : f32[8,8] @256+256\n"
    "%46 = pack %1 {at=[0] size=2048} : f32[2048] @8512+8192\n"
    "%47 = accumulator : f32[1024] @16704+4096\n"
    "%48 = reduce_scatter %46, %47 {world=2} : f32[1024] @16704+4096\n"
    "%5  = matmul %1, %44 : f32[8,8] @8512+256\n"
    "      output %5 \"y\"\n"
    "update:\n"
    "%6  = shard %42 {world=2} : f32[1024]\n"
    "      sgd %6, %48, %4 {world=2 blocks=[0,1] decays=[0]}\n"
    "%7  = all_gather %6, %42 {world=2} : f32[2048] @256+8192 queue=gather\n"
    "%8  = scale %4 {by=2} : f32[] @20800+4\n"
    "      output %8 \"twice\"\n"
    "      wait %7\n"
    "peak 20864 %48\n";

/* Stage 2, two nodes of two ranks: a gradient that is quantised. */
static const char exchanged[] =
    "zero stage=2 world=4 micro_batches=1 nodes=2\n"
    "%2  = param \"w\" {init=normal b=0.3} : f32[8,8]\n"
    "%42 = bucket %2 {at=[0] size=4096} : f32[4096]\n"
    "%1  = input \"x\" : f32[8,8]\n"
    "%4  = input \"lr\" : f32[]\n"
    "%46 = pack %1 {at=[0] size=4096} : f32[4096]\n"
    "%47 = quantize %46 {bits=4 block=64} : u8[2304]\n"
    "%48 = all_to_all %47 {world=2 over=local} : u8[2304]\n"
    "%49 = dequantize_sum %48 {bits=4 block=64 parts=2} : f32[2048]\n"
    "%50 = quantize %49 {bits=4 block=64} : u8[1152]\n"
    "%51 = all_to_all %50 {world=2 over=node} : u8[1152]\n"
    "%52 = dequantize_sum %51 {bits=4 block=64 parts=2} : f32[1024]\n"
    "update:\n"
    "%6  = shard %42 {world=4} : f32[1024]\n"
    "      sgd %6, %52, %4 {world=4 blocks=[0,1] decays=[0]}\n"
    "%7  = all_gather %6 {world=2 over=node} : f32[2048]\n"
    "%8  = all_gather %7, %42 {world=2 over=local} : f32[4096]\n"
    "      gradient %42, %52\n";

/* Stage 0, one rank, two micro-batches: a bucket that is updated whole. */
static const char whole[] = "zero stage=0 world=1 micro_batches=2\n"
                            "%2  = param \"w\" {init=normal b=0.3} : f32[8,8]\n"
                            "%42 = bucket %2 {at=[0] size=1024} : f32[1024]\n"
                            "%1  = input \"x\" : f32[8,8]\n"
                            "%4  = input \"lr\" : f32[]\n"
                            "%46 = pack %1 {at=[0] size=1024} : f32[1024]\n"
                            "%47 = accumulator : f32[1024]\n"
                            "%48 = all_reduce %46, %47 {world=1} : f32[1024]\n"
                            "update:\n"
                            "%5  = state \"sgd.momentum/w\" : f32[8,8]\n"
                            "%43 = bucket %5 {at=[0] size=1024} : f32[1024]\n"
                            "      sgd %42, %48, %4, %43 {momentum=0.9 blocks=[0,1] decays=[0]}\n";

/* A step on one rank that delays its gradients. */
static const char delayed[] = "zero stage=0 world=1 micro_batches=1\n"
                              "%2  = param \"a\" : f32[8]\n"
                              "%3  = param \"b\" : f32[8]\n"
                              "%5  = bucket %2 {at=[0] size=1024} : f32[1024]\n"
                              "%6  = bucket %3 {at=[0] size=1024} : f32[1024]\n"
                              "%1  = input \"x\" : f32[8]\n"
                              "%4  = input \"lr\" : f32[]\n"
                              "%7  = pack %1 {at=[0] size=1024} : f32[1024]\n"
                              "%8  = neg %1 : f32[8]\n"
                              "%9  = pack %8 {at=[0] size=1024} : f32[1024]\n"
                              "%21 = constant {values=[1]} : f32[]\n"
                              "update:\n"
                              "%22 = state \"delay.scale\" {value=-1} : f32[]\n"
                              "%23 = state \"g/a\" : f32[8] role=gradient of=%2\n"
                              "%24 = state \"g/b\" : f32[8] role=gradient of=%3\n"
                              "%10 = bucket %23 {at=[0] size=1024} : f32[1024]\n"
                              "%11 = bucket %24 {at=[0] size=1024} : f32[1024]\n"
                              "      sgd %5, %10, %4, %22 {blocks=[0,1] decays=[0] scaled=true}\n"
                              "      sgd %6, %11, %4, %22 {blocks=[0,1] decays=[0] scaled=true}\n"
                              "      delay %22, %21\n"
                              "      delay %10, %7\n"
                              "      delay %11, %9\n"
                              "      gradient %5, %7\n"
                              "      gradient %6, %9\n";

/* A node that saves values, with a scratch. */
static const char saving[] =
    "%1  = input \"x\" : f32[8,4] @0+128\n"
    "%2  = input \"y\" : i32[8] @128+32\n"
    "%6  = param \"w\" : f32[3,4] @576+48\n"
    "%14 = constant {values=[0.125]} : f32[] @768+4\n"
    "%18 = head_loss %1, %6, %2, %14 {ignore=-100} : f32[] @896+4 scratch=1664+7680\n"
    "%20 = saved %18 : f32[8,4] @9344+128\n"
    "%21 = saved %18 {index=1} : f32[3,4] @9472+48\n"
    "      gradient %6, %21\n"
    "      output %18 \"loss\"\n"
    "peak 9536 %18\n";

/* A concat of two params that is where they are; a node that saves a value. */
static const char joined[] = "%1  = input \"x\" : f32[4,16] @0+256\n"
                             "%2  = param \"a\" {init=normal b=0.3} : f32[8,16] @256+512\n"
                             "%3  = param \"b\" {init=normal b=0.3} : f32[8,16] @768+512\n"
                             "%4  = input \"lr\" : f32[] @1280+4\n"
                             "%5  = input \"g\" : f32[8,16] @1344+512\n"
                             "%6  = concat %2, %3 : f32[16,16] @256+1024\n"
                             "%7  = input \"c\" : f32[16] @1856+64\n"
                             "%8  = linear %1, %6, %7 {activation=gelu} : f32[4,16] @1920+256\n"
                             "%9  = saved %8 : f32[4,16] @2176+256\n"
                             "      output %8 \"y\"\n"
                             "      output %9 \"before\"\n"
                             "update:\n"
                             "      sgd %2, %5, %4\n"
                             "peak 2432 %9\n";

typedef struct mistake {
    const char *text;
    struct {
        const char *from, *to;
    } edits[3];
    const char *error;
} mistake;

static void check_mistakes(test *t, const mistake *list, int count)
{
    for (int k = 0; k < count; k++) {
        char text[6000], changed[6000];
        zf_error error = {ZF_OK, ""};
        zf_graph *g;
        snprintf(text, sizeof text, "%s", list[k].text);
        for (int i = 0; i < 3 && list[k].edits[i].from; i++) {
            char *at = strstr(text, list[k].edits[i].from);
            if (!at) {
                test_fail(t, __FILE__, __LINE__, "not in the text", list[k].edits[i].from);
                return;
            }
            snprintf(changed, sizeof changed, "%.*s%s%s", (int)(at - text), text,
                     list[k].edits[i].to, at + strlen(list[k].edits[i].from));
            memcpy(text, changed, sizeof text);
        }
        g = zf_graph_parse(text, strlen(text), &(zf_graph_desc){.allocator = t->allocator}, &error);
        zf_graph_free(g);
        if (g) test_fail(t, __FILE__, __LINE__, "no error; expected", list[k].error);
        else if (error.status == ZF_ERR_NOMEM) {
            test_unwind(t, __FILE__, __LINE__, "the text", error.status, error.text);
            return;
        } else CHECK_TEXT(t, error.text, list[k].error);
    }
}

#define CHECK_MISTAKES(t, list) check_mistakes(t, list, (int)(sizeof(list) / sizeof *(list)))

TEST(plan_texts_are_good)
{
    static const char *const texts[] = {accumulating, queued, updating, exchanged, whole, joined,
                                        delayed, saving};
    for (int k = 0; k < (int)(sizeof texts / sizeof *texts); k++) {
        zf_error error = {ZF_OK, ""};
        zf_graph *g = zf_graph_parse(texts[k], strlen(texts[k]),
                                     &(zf_graph_desc){.allocator = t->allocator}, &error);
        zf_graph_free(g);
        NEED(t, g, &error);
    }
}

TEST_ONCE(plan_waits_and_releases_are_checked)
{
    static const mistake list[] = {
        {queued,
         {{"      wait %44\n", ""}},
         "verify: %45 = view %44 {shape=[8,8]} : f32[8,8] @8576+256: it reads %44 while all_gather "
         "%44 on queue gather writes it; wait %44 must be above"},
        {queued,
         {{"      wait %44\n", ""},
          {"%5  = matmul %1, %45 : f32[4,8] @24960+128\n",
           "%5  = matmul %1, %45 : f32[4,8] @24960+128\n      wait %44\n"}},
         "verify: %45 = view %44 {shape=[8,8]} : f32[8,8] @8576+256: it reads %44 while all_gather "
         "%44 on queue gather writes it; wait %44 must be above"},
        {queued,
         {{"      wait %44\n", "      wait %44\n      wait %44\n"}},
         "verify: wait %44: %44 has been waited for"},
        {queued,
         {{" @8576+8192 queue=gather", " @8576+8192"}},
         "verify: wait %44: %44 is on queue compute, where it is complete at once"},
        {queued,
         {{"      wait %53\n", ""}, {"update:\n", "update:\n      wait %53\n"}},
         "verify: %53 = reduce_scatter %52 {world=2} : f32[1024] @29056+4096 queue=reduce: nothing "
         "waits for it before the end of the micro section"},
        {queued,
         {{"world=2} : f32[1] @33152+4", "world=2} : f32[1] @33152+4 queue=gather"},
          {"%56 = view %55 : f32[] @33152+4\n",
           "%60 = all_gather %55 {world=2} : f32[2] @33152+8 queue=reduce\n      wait %55\n      "
           "wait %60\n%56 = view %55 : f32[] @33152+4\n"}},
         "verify: %60 = all_gather %55 {world=2} : f32[2] @33152+8 queue=reduce: it reads %55 "
         "while all_reduce %55 on queue gather writes it; wait %55 must be above"},
        {queued,
         {{"f32[4,8] @24960+128", "f32[4,8] @24960+128 queue=gather"}},
         "verify: %5 = matmul %1, %45 : f32[4,8] @24960+128 queue=gather: on queue gather there "
         "are collectives of several ranks alone"},
        {queued,
         {{"{world=2} : f32[2048] @8576+8192 queue=gather",
           "{world=1} : f32[1024] @8576+8192 queue=gather"}},
         "verify: %44 = all_gather %42 {world=1} : f32[1024] @8576+8192 queue=gather: on queue "
         "gather there are collectives of several ranks alone"},
        {queued,
         {{"      wait %44\n", "      release %44\n"}},
         "verify: release %44: it releases %44 while all_gather %44 on queue gather writes it; "
         "wait %44 must be above"},
        {queued,
         {{"      wait %51\n", "      release %50\n      wait %51\n"}},
         "verify: release %50: it releases %50 while reduce_scatter %51 on queue reduce reads it; "
         "wait %51 must be above"},
        {queued,
         {{"      release %44\n", ""},
          {"%5  = matmul %1, %45 : f32[4,8] @24960+128\n",
           "      release %44\n%5  = matmul %1, %45 : f32[4,8] @24960+128\n"}},
         "verify: %5 = matmul %1, %45 : f32[4,8] @24960+128: it reads %45, whose bytes have been "
         "released"},
        {queued,
         {{"      release %44\n", "      release %44\n      release %44\n"}},
         "verify: release %44: %44 has been released"},
        {queued,
         {{"      release %44\n", "      release %42\n"}},
         "verify: release %42: %42 is a bucket, which stays"},
        {accumulating,
         {{"%5  = matmul %1, %44 : f32[4,8]\n",
           "%5  = matmul %1, %44 : f32[4,8]\n      release %44\n"}},
         "verify: release %44: %42 is a bucket, which stays"},
        {queued,
         {{"      wait %51\n", "      release %55\n      wait %51\n"}},
         "verify: release %55: %55 is an output, which is read after the step"},
        {queued,
         {{"      output %56 \"loss\"\n", "      release %55\n      output %56 \"loss\"\n"}},
         "verify: output %56 \"loss\": it reads %56, whose bytes have been released"},
        {updating,
         {{"%8  = scale %4 {by=2} : f32[] @20800+4\n",
           "%9 = neg %44 : f32[8,8] @20864+256\n%8  = scale %4 {by=2} : f32[] @20800+4\n"}},
         "verify: %9 = neg %44 : f32[8,8] @20864+256: it reads %44 while all_gather %7 on queue "
         "gather writes it; wait %7 must be above"},
    };
    CHECK_MISTAKES(t, list);
}

/* Groups take turns: over which ranks a collective is, and in which order axes come. */
TEST_ONCE(plan_groups_take_turns)
{
    static const mistake list[] = {
        {exchanged,
         {{" nodes=2", ""}},
         "verify: %48 = all_to_all %47 {world=2 over=local} : u8[2304]: it is over an axis, and "
         "the ranks are no mesh"},
        {exchanged,
         {{"all_to_all %47 {world=2", "all_to_all %47 {world=4"}},
         "verify: %48 = all_to_all %47 {world=4 over=local} : u8[2304]: it is for 4 ranks, and a "
         "group has 2"},
        {exchanged, /* of all ranks at once */
         {{"%7  = all_gather %6 {world=2 over=node} : f32[2048]\n", ""},
          {"all_gather %7, %42 {world=2 over=local}", "all_gather %6, %42 {world=4}"}},
         "verify: %8 = all_gather %6, %42 {world=4} : f32[4096]: the ranks are a mesh: it must be "
         "over one axis after the other"},
        {exchanged, /* inside nodes first */
         {{"all_gather %6 {world=2 over=node}", "all_gather %6 {world=2 over=local}"},
          {"all_gather %7, %42 {world=2 over=local}", "all_gather %7, %42 {world=2 over=node}"}},
         "verify: %7 = all_gather %6 {world=2 over=local} : f32[2048]: %6 is a shard of all ranks: "
         "it is gathered over node first"},
        {exchanged, /* between nodes twice */
         {{"all_gather %7, %42 {world=2 over=local}", "all_gather %7, %42 {world=2 over=node}"}},
         "verify: %8 = all_gather %7, %42 {world=2 over=node} : f32[4096]: %7 is the same on all "
         "ranks of a group"},
        {exchanged, /* shards of a sum that is whole, between nodes */
         {{"%47 = quantize %46 {bits=4 block=64} : u8[2304]\n"
           "%48 = all_to_all %47 {world=2 over=local} : u8[2304]\n"
           "%49 = dequantize_sum %48 {bits=4 block=64 parts=2} : f32[2048]\n"
           "%50 = quantize %49 {bits=4 block=64} : u8[1152]\n"
           "%51 = all_to_all %50 {world=2 over=node} : u8[1152]\n"
           "%52 = dequantize_sum %51 {bits=4 block=64 parts=2} : f32[1024]",
           "%49 = all_reduce %46 {world=2 over=local} : f32[4096]\n"
           "%9 = reduce_scatter %49 {world=2 over=node} : f32[2048]\n"
           "%52 = view %9 {shape=[1024]} : f32[1024]"}},
         "verify: %9 = reduce_scatter %49 {world=2 over=node} : f32[2048]: %49 is whole: shards "
         "are made over local first"},
    };
    CHECK_MISTAKES(t, list);
}

TEST_ONCE(plan_of_a_delayed_step)
{
    static const mistake list[] = {
        {delayed, /* two updates of one state */
         {{"sgd %6, %11", "sgd %6, %10"}},
         "verify: sgd %6, %10, %4, %22 {blocks=[0,1] decays=[0] scaled=true}: %10 has the gradients "
         "of other parameters, updated above"},
        {delayed,
         {{"      delay %22, %21\n", ""},
          {"update:\n%22 = state \"delay.scale\" {value=-1} : f32[]\n",
           "%22 = state \"delay.scale\" {value=-1} : f32[]\n      delay %22, %21\nupdate:\n"}},
         "verify: delay %22, %21: it sets states in the micro section, which may run again"},
        {whole, /* below `update:`, for each micro-batch */
         {{"      sgd", "%9 = neg %4 : f32[] micro\n      sgd"}},
         "verify: %9 = neg %4 : f32[] micro: it runs once, and the step has 2 micro-batches"},
        {whole,
         {{"{momentum=0.9 blocks", "{momentum=0.9 piece=[0,1024] blocks"}},
         "verify: sgd %42, %48, %4, %43 {momentum=0.9 piece=[0,1024] blocks=[0,1] decays=[0]}: %42 "
         "is no piece: piece must not be given"},
        {whole,
         {{"world=1 micro_batches", "world=2 micro_batches"},
          {"%47 {world=1}", "%47 {world=2}"},
          {"{momentum=0.9 blocks", "{momentum=0.9 world=2 blocks"}},
         "verify: sgd %42, %48, %4, %43 {momentum=0.9 world=2 blocks=[0,1] decays=[0]}: %42 is "
         "whole: world must not be given"},
        {whole, /* a momentum in whose place another copy goes back */
         {{"      sgd %42, %48, %4, %43 {momentum=0.9 blocks=[0,1] decays=[0]}\n",
           "%50 = copy %42 {to=host} : f32[1024] host\n"
           "%51 = copy %48 {to=host} : f32[1024] host\n"
           "%52 = copy %4 {to=host} : f32[] host\n"
           "%53 = copy %43 {to=host} : f32[1024] host\n"
           "%55 = copy %43 {to=host} : f32[1024] host\n"
           "      sgd %50, %51, %52, %53 {momentum=0.9 blocks=[0,1] decays=[0]}\n"
           "%54 = copy %50, %42 : f32[1024]\n"
           "%56 = copy %55, %43 : f32[1024]\n"}},
         "verify: sgd %50, %51, %52, %53 {momentum=0.9 blocks=[0,1] decays=[0]}: nothing copies %53 "
         "back, which it writes"},
        {whole, /* what has been copied back is the original */
         {{"      sgd %42", "%50 = copy %42 {to=host} : f32[1024] host\n"
                            "%51 = copy %50, %42 : f32[1024]\n      sgd %51"}},
         "verify: sgd %51, %48, %4, %43 {momentum=0.9 blocks=[0,1] decays=[0]}: it writes %51, "
         "which is %42, and not that"},
        {accumulating,
         {{"update:\n", "update:\n%80 = accumulator : f32[8,8]\n"
                        "%81 = all_reduce %14, %80 {world=2} : f32[8,8]\n"}},
         "verify: %81 = all_reduce %14, %80 {world=2} : f32[8,8]: the update section runs once, so "
         "nothing accumulates there"},
        {accumulating,
         {{"update:\n", "update:\n%80 = all_gather %14 {world=2 once=true} : f32[128]\n"}},
         "verify: %80 = all_gather %14 {world=2 once=true} : f32[128]: it is below update:, which runs "
         "once: once must not be given"},
        {accumulating,
         {{"update:\n", "%80 = all_gather %14 {world=2 once=true} : f32[128]\nupdate:\n"}},
         "verify: %80 = all_gather %14 {world=2 once=true} : f32[128]: %14 depends on %1, which is "
         "of one micro-batch: it is not the same in all, so once must not be given"},
        {exchanged, /* a sum of a node is none of the step */
         {{"%49 = dequantize_sum %48 {",
           "%80 = accumulator : f32[2048]\n%49 = dequantize_sum %48, %80 {"}},
         "verify: %49 = dequantize_sum %48, %80 {bits=4 block=64 parts=2} : f32[2048]: it is no sum "
         "over all ranks yet, so nothing accumulates there"},
        {saving,
         {{"%20 = saved %18 : f32[8,4] @9344", "%20 = saved %18 : f32[8,4] @1664"}},
         "verify: %20 = saved %18 : f32[8,4] @1664+128: its result overlaps the scratch of %18"},
        {saving,
         {{"%20 = saved %18 : f32[8,4] @9344", "%20 = saved %18 : f32[8,4] @0"}},
         "verify: %20 = saved %18 : f32[8,4] @0+128: its result overlaps %1, which what saves it "
         "still reads"},
    };
    CHECK_MISTAKES(t, list);
}

TEST_ONCE(plan_gradients_are_summed_once)
{
    static const mistake list[] = {
        {accumulating,
         {{"all_reduce %52, %53 {world=2}", "all_reduce %52, %53 {world=4}"}},
         "verify: %54 = all_reduce %52, %53 {world=4} : f32[1]: it is for 4 ranks, and the graph "
         "for 2"},
        {queued,
         {{"bucket %2 {at=[0] size=2048 world=2} : f32[1024] @192+4096",
           "bucket %2 {at=[0] size=4096 world=4} : f32[1024] @192+4096"}},
         "verify: %42 = bucket %2 {at=[0] size=4096 world=4} : f32[1024] @192+4096: it is for 4 "
         "ranks, and the graph for 2"},
        {accumulating,
         {{"zero stage=2 world=2 micro_batches=2\n", ""}},
         "verify: %48 = reduce_scatter %46, %47 {world=2} : f32[1024]: a collective comes with "
         "zf_zero, which has not been run"},
        {accumulating,
         {{"all_reduce %52, %53 {", "all_reduce %52 {"}},
         "verify: %54 = all_reduce %52 {world=2} : f32[1]: operand 1, an accumulator of the 2 "
         "micro-batches, is missing"},
        {accumulating,
         {{"reduce_scatter %49, %50 {", "reduce_scatter %49, %47 {"}},
         "verify: %51 = reduce_scatter %49, %47 {world=2} : f32[1024]: %47 accumulates %48 "
         "already"},
        {exchanged, /* between nodes first */
         {{"over=local", "over=node"}},
         "verify: %49 = dequantize_sum %48 {bits=4 block=64 parts=2} : f32[2048]: %48 is no sum "
         "over a node: sums are made over local first"},
        {exchanged, /* inside nodes twice */
         {{"%51 = all_to_all %50 {world=2 over=node}", "%51 = all_to_all %50 {world=2 over=local}"}},
         "verify: %52 = dequantize_sum %51 {bits=4 block=64 parts=2} : f32[1024]: %51 has no parts "
         "of other ranks: an all_to_all must be above"},
        {exchanged, /* over all ranks at once */
         {{"%47 = quantize %46 {bits=4 block=64} : u8[2304]\n"
           "%48 = all_to_all %47 {world=2 over=local} : u8[2304]\n"
           "%49 = dequantize_sum %48 {bits=4 block=64 parts=2} : f32[2048]\n"
           "%50 = quantize %49 {bits=4 block=64} : u8[1152]\n"
           "%51 = all_to_all %50 {world=2 over=node} : u8[1152]\n"
           "%52 = dequantize_sum %51 {bits=4 block=64 parts=2}",
           "%50 = quantize %46 {bits=4 block=64} : u8[2304]\n"
           "%51 = all_to_all %50 {world=4} : u8[2304]\n"
           "%52 = dequantize_sum %51 {bits=4 block=64 parts=4}"}},
         "verify: %52 = dequantize_sum %51 {bits=4 block=64 parts=4} : f32[1024]: the ranks are a "
         "mesh: sums are made over one axis after the other"},
        {exchanged, /* errors that are not those of each rank */
         {{"%46 = pack", "%70 = state \"e\" : f32[8,8]\n"
                         "%71 = bucket %70 {at=[0] size=4096} : f32[4096]\n%46 = pack"},
          {"%47 = quantize %46 {", "%47 = quantize_feedback %46, %71 {"}},
         "verify: %47 = quantize_feedback %46, %71 {bits=4 block=64} : u8[2304]: %46 is this rank's "
         "alone, and the errors %71 are not"},
        {exchanged, /* between nodes not at all */
         {{"sgd %6, %52", "sgd %6, %9"},
          {"update:\n", "%9 = view %49 {shape=[1024]} : f32[1024]\nupdate:\n"}},
         "verify: sgd %6, %9, %4 {world=4 blocks=[0,1] decays=[0]}: %9 is a gradient that was not "
         "summed over the 4 ranks"},
        {accumulating, /* parts that were not exchanged */
         {{"%51 = reduce_scatter %49, %50 {world=2}",
           "%80 = quantize %49 {bits=4 block=64} : u8[1152]\n"
           "%51 = dequantize_sum %80, %50 {bits=4 block=64 parts=2}"}},
         "verify: %51 = dequantize_sum %80, %50 {bits=4 block=64 parts=2} : f32[1024]: %80 has no "
         "parts of other ranks: an all_to_all must be above"},
        {accumulating, /* another number of them */
         {{"%50 = accumulator : f32[1024]", "%50 = accumulator : f32[2048]"},
          {"%51 = reduce_scatter %49, %50 {world=2} : f32[1024]",
           "%80 = quantize %49 {bits=4 block=64} : u8[1152]\n"
           "%81 = all_to_all %80 {world=2} : u8[1152]\n"
           "%82 = dequantize_sum %81, %50 {bits=4 block=64 parts=1} : f32[2048]\n"
           "%51 = shard %82 {world=2} : f32[1024]"}},
         "verify: %82 = dequantize_sum %81, %50 {bits=4 block=64 parts=1} : f32[2048]: it adds 1 "
         "parts, and %81 has those of 2 ranks"},
        {accumulating, /* the parts, not their sum */
         {{"%51 = reduce_scatter %49, %50 {world=2}",
           "%80 = quantize %49 {bits=4 block=64} : u8[1152]\n"
           "%81 = all_to_all %80 {world=2} : u8[1152]\n"
           "%82 = dequantize %81 {bits=4 block=64} : f32[2048]\n"
           "%51 = shard %82 {world=2}"}},
         "verify: gradient %42, %62: %62 is a gradient that was not summed over the 2 ranks"},
        {accumulating,
         {{"mul %51, %29", "mul %50, %29"}},
         "verify: %62 = mul %50, %29 : f32[1024]: %50 is an accumulator: its value is that of the "
         "sum onto it"},
        {accumulating,
         {{"all_reduce %52, %53 {world=2}", "all_reduce %52, %53 {world=1}"}},
         "verify: output %55 \"loss\": %55 is no sum over the global batch, of 2 ranks and 2 "
         "micro-batches"},
        {accumulating,
         {{"%55 = view %54 : f32[]\n",
           "%80 = accumulator : f32[1]\n%81 = all_reduce %54, %80 {world=2} : f32[1]\n%55 = view "
           "%54 : f32[]\n"}},
         "verify: %81 = all_reduce %54, %80 {world=2} : f32[1]: %54 has been summed over the ranks "
         "already"},
        {accumulating,
         {{"%52 = pack %8 {at=[0] size=1} : f32[1]\n",
           "%80 = accumulator : f32[2048]\n%81 = all_reduce %46, %80 {world=1} : f32[2048]\n%82 = "
           "accumulator : f32[2048]\n%83 = all_reduce %81, %82 {world=1} : f32[2048]\n%52 = pack "
           "%8 {at=[0] size=1} : f32[1]\n"}},
         "verify: %83 = all_reduce %81, %82 {world=1} : f32[2048]: %81 has been summed over the "
         "micro-batches already"},
        {accumulating,
         {{"%56 = block_norms %51 : f32[1]\n",
           "%80 = all_reduce %46 {world=2} : f32[2048]\n%56 = block_norms %51 : f32[1]\n"}},
         "verify: %80 = all_reduce %46 {world=2} : f32[2048]: %46 is that of the last micro-batch "
         "alone"},
        {accumulating,
         {{"%62 = mul %51, %29 : f32[1024]",
           "%80 = shard %49 {world=2} : f32[1024]\n%62 = mul %80, %29 : f32[1024]"}},
         "verify: gradient %42, %62: %62 is a gradient that was not summed over the 2 ranks"},
        {accumulating,
         {{"reduce_scatter %49, %50 {world=2} : f32[1024]\n",
           "all_reduce %80, %50 {world=2} : f32[1024]\n"},
          {"%50 = accumulator : f32[1024]\n",
           "%50 = accumulator : f32[1024]\n%80 = view %49 {shape=[1024]} : f32[1024]\n"}},
         "verify: adamw %66, %62, %67, %68, %4, %34 {beta1=0.9 beta2=0.999 eps=1e-08 world=2 "
         "blocks=[0,1] decays=[0]}: %66 is this rank's shard, and %62 is whole"},
        {accumulating,
         {{"adamw %66, %62", "adamw %66, %64"}},
         "verify: adamw %71, %64, %72, %73, %4, %34 {beta1=0.9 beta2=0.999 eps=1e-08 world=2 "
         "blocks=[0,1] decays=[0]}: %64 has the gradients of bucket %42, which they update above"},
        {accumulating,
         {{"%62 = mul %51, %29", "%62 = add %51, %48"}},
         "verify: gradient %42, %62: %62 mixes gradients of several sums"},
        {accumulating,
         {{"%62 = mul %51, %29", "%62 = mul %51, %8"}},
         "verify: gradient %42, %62: %62 depends on %1, which is this rank's and micro-batch's "
         "alone"},
        {accumulating,
         {{"%68, %4, %34", "%68, %8, %34"}},
         "verify: adamw %66, %62, %67, %68, %8, %34 {beta1=0.9 beta2=0.999 eps=1e-08 world=2 "
         "blocks=[0,1] decays=[0]}: %8 depends on %1, so ranks would update differently"},
        {accumulating,
         {{"%68, %4, %34", "%68, %56, %34"}},
         "verify: adamw %66, %62, %67, %68, %56, %34 {beta1=0.9 beta2=0.999 eps=1e-08 world=2 "
         "blocks=[0,1] decays=[0]}: %56 is this rank's shard, so ranks would update differently"},
        {accumulating,
         {{"%49 = pack %15 {at=[0]", "%49 = pack %15 {at=[1024]"}},
         "verify: adamw %66, %62, %67, %68, %4, %34 {beta1=0.9 beta2=0.999 eps=1e-08 world=2 "
         "blocks=[0,1] decays=[0]}: what lies at block 0 of bucket %42 has no gradient in %49"},
        {accumulating,
         {{"blocks=[0,1]", "blocks=[1,2]"}},
         "verify: adamw %66, %62, %67, %68, %4, %34 {beta1=0.9 beta2=0.999 eps=1e-08 world=2 "
         "blocks=[1,2] decays=[0]}: at block 1 of bucket %42 is no parameter like that"},
        {accumulating,
         {{"%68 = bucket %37 {at=[0]", "%68 = bucket %37 {at=[1024]"}},
         "verify: adamw %66, %62, %67, %68, %4, %34 {beta1=0.9 beta2=0.999 eps=1e-08 world=2 "
         "blocks=[0,1] decays=[0]}: what lies at block 0 of bucket %42 has no state in %68"},
        {accumulating,
         {{"%67 = bucket %36 {at=[0] size=2048 world=2}", "%67 = bucket %36 {at=[0] size=1024}"}},
         "verify: adamw %66, %62, %67, %68, %4, %34 {beta1=0.9 beta2=0.999 eps=1e-08 world=2 "
         "blocks=[0,1] decays=[0]}: %66 is this rank's shard, and %67 is whole"},
        {accumulating,
         {{"adamw %71, %64, %72, %73", "adamw %71, %64, %67, %73"}},
         "verify: adamw %71, %64, %67, %73, %4, %34 {beta1=0.9 beta2=0.999 eps=1e-08 world=2 "
         "blocks=[0,1] decays=[0]}: %67 has an update already"},
        {accumulating,
         {{"%67 = bucket %36 {at=[0] size=2048 world=2} : f32[1024]",
           "%67 = state \"m\" : f32[1024]"}},
         "verify: adamw %66, %62, %67, %68, %4, %34 {beta1=0.9 beta2=0.999 eps=1e-08 world=2 "
         "blocks=[0,1] decays=[0]}: %66 is this rank's shard, and %67 is whole"},
        {accumulating,
         {{"world=2 blocks", "blocks"}},
         "verify: adamw %66, %62, %67, %68, %4, %34 {beta1=0.9 beta2=0.999 eps=1e-08 blocks=[0,1] "
         "decays=[0]}: %66 is this rank's shard: world must be 2"},
        {accumulating,
         {{"%70 = all_gather %66, %42 {world=2} : f32[2048]\n", ""}},
         "verify: adamw %66, %62, %67, %68, %4, %34 {beta1=0.9 beta2=0.999 eps=1e-08 world=2 "
         "blocks=[0,1] decays=[0]}: nothing gathers bucket %42, of which it updates this rank's "
         "shard"},
        {accumulating,
         {{"%70 = all_gather %66, %42 {world=2} : f32[2048]\n",
           "%80 = view %42 {shape=[8,8]} : f32[8,8]\n      output %80 \"w\"\n%70 = all_gather %66, "
           "%42 {world=2} : f32[2048]\n"}},
         "verify: %80 = view %42 {shape=[8,8]} : f32[8,8]: only this rank's shard of %42 is "
         "updated: an all_gather into it must be above"},
        {accumulating,
         {{"%15 = matmul %1, %13 {transpose_a=true} : f32[8,8]\n",
           "%80 = shard %42 {world=2} : f32[1024]\n%81 = all_gather %80, %42 {world=2} : "
           "f32[2048]\n%15 = matmul %1, %13 {transpose_a=true} : f32[8,8]\n"}},
         "verify: %81 = all_gather %80, %42 {world=2} : f32[2048]: it writes %42 in the micro "
         "section, which may run again"},
        {queued,
         {{"update:\n", ""}},
         "verify: sgd %42, %53, %4 {world=2 blocks=[0,1] decays=[0]}: it updates in the micro "
         "section, which may run again"},
        {accumulating,
         {{"%55 = view %54 : f32[]", "%55 = view %52 : f32[]"}},
         "verify: output %55 \"loss\": %55 is no sum over the global batch, of 2 ranks and 2 "
         "micro-batches"},
        {accumulating,
         {{"      advance %34\n", "      output %62 \"g\"\n      advance %34\n"}},
         "verify: output %62 \"g\": %62 is this rank's shard alone"},
        {accumulating,
         {{"%67 = bucket", "%80 = all_reduce %66 {world=2} : f32[1024]\n%67 = bucket"}},
         "verify: %80 = all_reduce %66 {world=2} : f32[1024]: %66 is this rank's shard: ranks "
         "would "
         "add different elements"},
        {accumulating,
         {{"all_gather %66, %42", "all_gather %67, %42"}},
         "verify: %70 = all_gather %67, %42 {world=2} : f32[2048]: operand 0 must be the shard of "
         "%42, into which it gathers"},
        {accumulating,
         {{"advance %34", "advance %34, %8"}},
         "verify: advance %34, %8: %8 depends on %1, so states of ranks would differ"},
        {accumulating,
         {{"%66 = shard %42 {", "%66 = shard %49 {"}},
         "verify: adamw %66, %62, %67, %68, %4, %34 {beta1=0.9 beta2=0.999 eps=1e-08 world=2 "
         "blocks=[0,1] decays=[0]}: it writes %66, which is no param, state or cache"},
        {whole,
         {{"sgd %42, %48", "sgd %42, %46"}},
         "verify: sgd %42, %46, %4, %43 {momentum=0.9 blocks=[0,1] decays=[0]}: %46 is a gradient "
         "that was not summed over the 2 micro-batches"},
        {whole,
         {{"%46 = pack %1 {at=[0] size=1024}", "%46 = input \"g\""}},
         "verify: sgd %42, %48, %4, %43 {momentum=0.9 blocks=[0,1] decays=[0]}: %48 is no "
         "gradient: it does not have the elements of a pack"},
        {whole,
         {{"%46 = pack %1 {at=[0] size=1024} : f32[1024]\n%47 = accumulator : f32[1024]\n"
           "%48 = all_reduce %46, %47 {world=1} : f32[1024]\n",
           "%46 = pack %1 {at=[0] size=2048} : f32[2048]\n%47 = accumulator : f32[2048]\n"
           "%80 = all_reduce %46, %47 {world=1} : f32[2048]\n"
           "%48 = view %80 {at=1024 shape=[1024]} : f32[1024]\n"}},
         "verify: sgd %42, %48, %4, %43 {momentum=0.9 blocks=[0,1] decays=[0]}: the gradients "
         "packed in %46 are not those of bucket %42"},
        {whole,
         {{"%43 = bucket %5 {at=[0] size=1024}", "%43 = state \"m\""}},
         "verify: sgd %42, %48, %4, %43 {momentum=0.9 blocks=[0,1] decays=[0]}: %43 is no bucket "
         "of "
         "states like bucket %42"},
    };
    CHECK_MISTAKES(t, list);
}

TEST_ONCE(plan_places_are_checked)
{
    static const mistake list[] = {
        {queued,
         {{"transpose_a=true} : f32[8,8] @16768", "transpose_a=true} : f32[8,8] @8576"}},
         "verify: %15 = matmul %1, %13 {transpose_a=true} : f32[8,8] @8576+256: its result "
         "overlaps "
         "%50, which reduce_scatter %51 on queue reduce uses until it is waited for"},
        {queued,
         {{"%54 = pack %8 {at=[0] size=1} : f32[1] @33152",
           "%54 = pack %8 {at=[0] size=1} : f32[1] @8576"}},
         "verify: %54 = pack %8 {at=[0] size=1} : f32[1] @8576+4: its result overlaps %50, which "
         "reduce_scatter %51 on queue reduce uses until it is waited for"},
        {queued,
         {{"%54 = pack %8 {at=[0] size=1} : f32[1] @33152",
           "%54 = pack %8 {at=[0] size=1} : f32[1] @24960"}},
         "verify: %54 = pack %8 {at=[0] size=1} : f32[1] @24960+4: its result overlaps %51, which "
         "reduce_scatter %51 on queue reduce uses until it is waited for"},
        {queued,
         {{"%54 = pack %8 {at=[0] size=1} : f32[1] @33152+4",
           "%54 = pack %8 {at=[0] size=1} : f32[1] @33152+4 scratch=24960+8"}},
         "verify: %54 = pack %8 {at=[0] size=1} : f32[1] @33152+4 scratch=24960+8: its scratch "
         "overlaps %51, which reduce_scatter %51 on queue reduce uses until it is waited for"},
        {queued,
         {{"@16768+8192 queue=gather", "@8576+8192 queue=gather"}},
         "verify: wait %44: the bytes of %44 belong to %47"},
        {queued,
         {{"@29056+4096 queue=reduce", "@24960+4096 queue=reduce"}},
         "verify: wait %51: the bytes of %51 belong to %53"},
        {queued,
         {{"%5  = matmul %1, %45 : f32[4,8] @24960", "%5  = matmul %1, %45 : f32[4,8] @16768"}},
         "verify: %5 = matmul %1, %45 : f32[4,8] @16768+128: its result overlaps %47, which "
         "all_gather %47 on queue gather uses until it is waited for"},
        {updating,
         {{"      output %5 \"y\"\n", ""},
          {"%5  = matmul %1, %44 : f32[8,8] @8512+256",
           "%5  = matmul %1, %44 : f32[8,8] @16704+256"}},
         "verify: %47 = accumulator : f32[1024] @16704+4096: at the end of the micro section its "
         "bytes belong to %5"},
        {updating,
         {{"%8  = scale %4 {by=2} : f32[] @20800", "%8  = scale %4 {by=2} : f32[] @8512"}},
         "verify: output %5 \"y\": the bytes of %5 belong to %8"},
        {updating,
         {{"%8  = scale %4 {by=2} : f32[] @20800", "%8  = scale %4 {by=2} : f32[] @0"}},
         "verify: %1 = input \"x\" : f32[8,8] @0+256: at the end of the step its bytes belong to "
         "%8"},
        {updating,
         {{"%8  = scale %4 {by=2} : f32[] @20800+4",
           "%8  = scale %4 {by=2} : f32[] @20800+4 scratch=0+8"}},
         "verify: %1 = input \"x\" : f32[8,8] @0+256: at the end of the step its bytes are gone"},
        {updating,
         {{"{world=2} : f32[1024] @16704+4096", "{world=2} : f32[1024] @8512+4096"}},
         "verify: %48 = reduce_scatter %46, %47 {world=2} : f32[1024] @8512+4096: its place must "
         "be that of %47, into which it writes"},
        {updating,
         {{"%47 = accumulator : f32[1024] @16704+4096", "%47 = accumulator : f32[1024]"},
          {"f32[1024] @16704+4096", "f32[1024]"}},
         "verify: %47 = accumulator : f32[1024]: it has no place"},
        {updating,
         {{"%6  = shard %42 {world=2} : f32[1024]",
           "%6  = shard %42 {world=2} : f32[1024] @8512+4096"}},
         "verify: sgd %6, %48, %4 {world=2 blocks=[0,1] decays=[0]}: it writes %6, which is a copy "
         "and no view of %42"},
        {updating,
         {{"b=0.3} : f32[8,8]", "b=0.3} : f32[8,8] @8512+256"}},
         "verify: %2 = param \"w\" {init=normal b=0.3} : f32[8,8] @8512+256: it has a place, and "
         "lies in the bucket %42"},
        {updating,
         {{"f32[2048] @256+8192 queue", "f32[2048] @8512+8192 queue"}},
         "verify: %7 = all_gather %6, %42 {world=2} : f32[2048] @8512+8192 queue=gather: its place "
         "must be that of %42, into which it writes"},
        {joined,
         {{"sgd %2, %5, %4\n", "sgd %2, %5, %4\n%10 = neg %6 : f32[16,16] @2432+1024\n"},
          {"peak 2432", "peak 3456"}},
         "verify: %10 = neg %6 : f32[16,16] @2432+1024: %6 is a view of %2, which has been written "
         "since"},
        {joined,
         {{"      output %9 \"before\"\nupdate:\n", "update:\n"},
          {"%9  = saved %8 : f32[4,16] @2176+256\n      output %8 \"y\"\nupdate:\n",
           "      output %8 \"y\"\nupdate:\n%9 = saved %8 : f32[4,16] @2176+256\n"}},
         "verify: %9 = saved %8 : f32[4,16] @2176+256: %8 is in the other section"},
        {joined,
         {{"saved %8 : f32[4,16] @2176", "saved %8 : f32[4,16] @1920"}},
         "verify: %9 = saved %8 : f32[4,16] @1920+256: its result overlaps that of %8"},
    };
    CHECK_MISTAKES(t, list);
}

/* ---------------------------------------------------------------------------- random mistakes
 *
 * A plan of the passes is edited in one place at random. Mostly the verifier refuses the text. What
 * it accepts must compute what its nodes say: the numbers of the same nodes without places, queues,
 * waits and releases, whenever collectives are done, with the dead poisoned; and the ranks must
 * have the same parameters. Where only places, queues, waits and releases were edited, these are
 * the numbers of the plan as it was.
 */

static const char model[] = "%1 = input \"x\" : f32[4,8]\n"
                            "%2 = param \"a.w\" {init=normal b=0.3} : f32[8,8]\n"
                            "%3 = param \"a.b\" : f32[8]\n"
                            "%4 = param \"b.w\" {init=normal b=0.3} : f32[8,8]\n"
                            "%5 = input \"lr\" : f32[]\n"
                            "%6 = matmul %1, %2 : f32[4,8]\n"
                            "%7 = add %6, %3 : f32[4,8]\n"
                            "%8 = tanh %7 : f32[4,8]\n"
                            "%9 = dropout %8 {p=0.25} : f32[4,8]\n"
                            "%10 = matmul %9, %4 : f32[4,8]\n"
                            "%11 = matmul %10, %2 : f32[4,8]\n"
                            "%12 = mul %11, %11 : f32[4,8]\n"
                            "%13 = reshape %12 {shape=[32]} : f32[32]\n"
                            "%14 = sum %13 : f32[]\n";

typedef struct chance {
    uint64_t state;
} chance;

static int pick(chance *c, int n)
{
    c->state = c->state * 6364136223846793005u + 1442695040888963407u;
    return (int)((c->state >> 33) % (uint64_t)n);
}

/* A text as lines. */
typedef struct lines {
    const char *at[400];
    int length[400], count;
} lines;

static lines lines_of(const char *text)
{
    lines l = {.count = 0};
    while (*text && l.count < 400) {
        l.at[l.count] = text;
        l.length[l.count] = (int)strcspn(text, "\n");
        text += l.length[l.count++];
        text += *text == '\n';
    }
    return l;
}

static void join_lines(char *text, size_t size, const lines *l)
{
    size_t length = 0;
    text[0] = '\0';
    for (int k = 0; k < l->count; k++)
        length += (size_t)snprintf(text + length, size - length, "%.*s\n", l->length[k], l->at[k]);
}

/* Moves line `from` to `to`. */
static void move_line(lines *l, int from, int to)
{
    const char *at = l->at[from];
    int length = l->length[from], step = from < to ? 1 : -1;
    for (int k = from; k != to; k += step) {
        l->at[k] = l->at[k + step];
        l->length[k] = l->length[k + step];
    }
    l->at[to] = at;
    l->length[to] = length;
}

static bool line_has(const lines *l, int k, const char *what)
{
    const char *at = strstr(l->at[k], what);
    return at && at < l->at[k] + l->length[k];
}

/* A random line that contains `what`; -1 if there is none. */
static int line_with(chance *c, const lines *l, const char *what)
{
    int found = -1, seen = 0;
    for (int k = 0; k < l->count; k++)
        if (line_has(l, k, what) && !pick(c, ++seen)) found = k;
    return found;
}

/* The text after " : " in the line that defines the id, without place and queue; "" if none. */
static void type_of(const lines *l, int id, char type[64])
{
    type[0] = '\0';
    for (int k = 0; k < l->count; k++) {
        const char *colon;
        if (l->at[k][0] != '%' || atoi(l->at[k] + 1) != id) continue;
        colon = strstr(l->at[k], " : ");
        snprintf(type, 64, "%.*s", (int)strcspn(colon + 3, " \n"), colon + 3);
        return;
    }
}

/* The kinds of edits. The first five only change places, queues, waits and releases: if the
 * verifier accepts such a text, its numbers are those before. So it is with the next two, if the
 * verifier accepts anything. */
enum {
    MOVE_MARK,
    DROP_MARK,
    OTHER_QUEUE,
    OTHER_PLACE,
    NEAR_PLACE,
    ONE_RANK,
    ONE_OPERAND,
    DROP_LINE,
    SWAP,
    OPERAND,
    KINDS
};
static const char *const kind_names[KINDS] = {"a wait or release moved",
                                              "a wait or release dropped",
                                              "another queue or none",
                                              "the place of another value",
                                              "a place nearby",
                                              "a collective of one rank",
                                              "a collective without its second operand",
                                              "a line dropped",
                                              "two lines swapped",
                                              "another operand"};

/* Line k with `length` characters at `at` replaced. */
static void replace(lines *l, int k, const char *at, int length, const char *by, char *room)
{
    int before = (int)(at - l->at[k]);
    snprintf(room, 1000, "%.*s%s%.*s", before, l->at[k], by, l->length[k] - before - length,
             at + length);
    l->at[k] = room;
    l->length[k] = (int)strlen(room);
}

/* Makes one edit; false where the text has nothing for it. */
static bool edit(chance *c, lines *l, int kind, char *room)
{
    static const char *const queues[] = {"", " queue=gather", " queue=reduce"};
    int k = -1, other;
    const char *at;
    char by[64], type[64], its[64];
    switch (kind) {
    case MOVE_MARK:
    case DROP_MARK:
        k = line_with(c, l, pick(c, 3) ? "      wait %" : "      release %");
        if (k < 0) return false;
        move_line(l, k, kind == MOVE_MARK ? pick(c, l->count) : l->count - 1);
        if (kind == DROP_MARK) l->count--;
        return true;
    case OTHER_QUEUE:
        if (pick(c, 2) && (k = line_with(c, l, " queue=")) >= 0) {
            at = strstr(l->at[k], " queue=");
            replace(l, k, at, 13, queues[pick(c, 3)], room);
            return true;
        }
        k = line_with(c, l, "{world=");
        if (k < 0 || line_has(l, k, "queue=")) return false;
        replace(l, k, l->at[k] + l->length[k], 0, queues[1 + pick(c, 2)], room);
        return true;
    case OTHER_PLACE:
    case NEAR_PLACE:
        k = line_with(c, l, " @");
        other = line_with(c, l, " @");
        if (k < 0 || k == other) return false;
        at = strstr(l->at[k], " @") + 2;
        snprintf(by, sizeof by, "%.*s", (int)strcspn(strstr(l->at[other], " @") + 2, "+"),
                 strstr(l->at[other], " @") + 2);
        if (kind == NEAR_PLACE)
            snprintf(by, sizeof by, "%d",
                     abs(atoi(at) + 64 * (1 + pick(c, 8)) * (pick(c, 2) * 2 - 1)));
        replace(l, k, at, (int)strcspn(at, "+"), by, room);
        return true;
    case ONE_RANK:
        k = line_with(c, l, "{world=");
        if (k < 0) return false;
        replace(l, k, strstr(l->at[k], "{world=") + 7, 1, "1", room);
        return true;
    case ONE_OPERAND:
        k = line_with(c, l, "{world=");
        at = k < 0 ? NULL : strstr(l->at[k], ", %");
        if (!at || at > l->at[k] + l->length[k]) return false;
        replace(l, k, at, (int)strcspn(at, "{") - 1, "", room);
        return true;
    case DROP_LINE:
        move_line(l, pick(c, l->count), l->count - 1);
        l->count--;
        return true;
    case SWAP:
        k = pick(c, l->count);
        other = pick(c, 2) ? k + 1 : pick(c, l->count);
        if (other >= l->count || other == k) return false;
        if (other < k) move_line(l, other, k), move_line(l, k - 1, other);
        else move_line(l, k, other), move_line(l, other - 1, k);
        return true;
    default:
        k = line_with(c, l, ", %");
        if (k < 0) return false;
        at = strstr(l->at[k], pick(c, 2) ? ", %" : " %");
        at = strchr(at, '%') + 1;
        type_of(l, atoi(at), type);
        other = line_with(c, l, type);
        if (!*type || other < 0 || l->at[other][0] != '%') return false;
        type_of(l, atoi(l->at[other] + 1), its);
        if (strcmp(type, its) || atoi(l->at[other] + 1) == atoi(at)) return false;
        snprintf(by, sizeof by, "%d", atoi(l->at[other] + 1));
        replace(l, k, at, (int)strspn(at, "0123456789"), by, room);
        return true;
    }
}

/* The nodes alone: without places, queues, waits, releases. */
static void strip(char *text)
{
    char *to = text;
    for (const char *line = text; *line;) {
        size_t length = strcspn(line, "\n"), kept = length;
        const char *next = line + length + (line[length] == '\n');
        for (size_t k = 0; k < length && kept == length; k++)
            if (!strncmp(line + k, " @", 2) || !strncmp(line + k, " queue=", 7) ||
                !strncmp(line + k, " scratch=", 9))
                kept = k;
        if (strncmp(line, "peak ", 5) && strncmp(line + strspn(line, " "), "wait %", 6) &&
            strncmp(line + strspn(line, " "), "release %", 9)) {
            memmove(to, line, kept);
            to += kept;
            *to++ = '\n';
        }
        line = next;
    }
    *to = '\0';
}

/* After two steps every rank has the whole parameters of rank 0. */
static bool ranks_agree(const char *text, int world, char *why, size_t size)
{
    zf_error error = {ZF_OK, ""};
    zf_comm comms[4];
    zf_graph *g[4] = {0};
    zf_program *p[4] = {0};
    zf_lockstep_desc d = {p, world, 0};
    zf_backend *cpu = zf_cpu_backend(&(zf_cpu_desc){.reference = true}, &error);
    bool good = cpu != NULL;
    for (int r = 0; r < world && good; r++) {
        zf_compile_desc compile = {.backend = cpu, .comm = &comms[r], .allow_nan = true};
        comms[r] = (zf_comm){.rank = r, .world = world};
        g[r] = zf_graph_parse(text, strlen(text), NULL, &error);
        p[r] = g[r] ? zf_compile(g[r], &compile) : NULL;
        if (g[r] && !p[r]) snprintf(why, size, "%s", zf_graph_error(g[r]));
        good = p[r] != NULL;
    }
    for (int run = 0; run < 4 && good; run++) {
        bool last = !strstr(text, "micro_batches=2") || run % 2;
        for (int r = 0; r < world; r++) {
            float x[32], lr = 0.01f;
            for (int i = 0; i < 32; i++) x[i] = (float)seeded("x", (run * 4 + r) * 32 + i);
            zf_write(p[r], zf_graph_find(g[r], "x"), x, sizeof x);
            zf_write(p[r], zf_graph_find(g[r], "lr"), &lr, sizeof lr);
        }
        good = !(last ? zf_lockstep_step(&d, &error) : zf_lockstep_micro(&d, &error));
    }
    for (int k = 0; good && k < zf_param_count(g[0]) && !strstr(text, "stage=3"); k++)
        for (int r = 1; r < world && good; r++) {
            float mine[64], others[64];
            size_t bytes = zf_tensor_bytes(zf_param_at(g[0], k));
            good = !zf_read(p[0], zf_param_at(g[0], k), mine, bytes) &&
                   !zf_read(p[r], zf_param_at(g[r], k), others, bytes) &&
                   !memcmp(mine, others, bytes);
            if (!good)
                snprintf(why, size, "ranks 0 and %d have another %s", r,
                         zf_tensor_name(zf_param_at(g[0], k)));
        }
    if (!good && error.status) snprintf(why, size, "%s", error.text);
    for (int r = 0; r < world; r++) zf_program_free(p[r]);
    for (int r = 0; r < world; r++) zf_graph_free(g[r]);
    zf_backend_free(cpu);
    return good;
}

/* Checks an accepted text: false, with why[0..size), unless it is sound. *ran: it runs. */
static bool is_sound(const char *text, int world, const numbers *original, bool *ran, char *why,
                     size_t size)
{
    static const numbers_desc runs[] = {{.steps = 2},
                                        {.steps = 2, .seed = 1},
                                        {.steps = 2, .seed = 2},
                                        {.steps = 2, .poison = true},
                                        {.steps = 2, .poison = true, .seed = 3}};
    char nodes[20000];
    numbers plain = {0}, n = {0};
    zf_error error = {ZF_OK, ""};
    bool good = true;
    snprintf(nodes, sizeof nodes, "%s", text);
    strip(nodes);
    *ran = numbers_of(&plain, nodes, &(numbers_desc){.steps = 2, .no_reuse = true}, &error);
    if (!*ran) { /* an error of the step, say a step that was not advanced */
        snprintf(why, size, "%s", error.text);
        return !original && error.status != ZF_ERR_PARSE && error.status != ZF_ERR_VERIFY;
    }
    if (original) good = numbers_compare(original, &plain, "", why, size) == original->count;
    for (int k = 0; k < (int)(sizeof runs / sizeof *runs) && good; k++) {
        *ran = numbers_of(&n, text, &runs[k], &error);
        if (!*ran) snprintf(why, size, "%s", error.text);
        good = *ran && numbers_compare(&plain, &n, "", why, size) == plain.count;
        numbers_free(&n);
        /* A leaf that its bucket has lost, and that has no place */
        if (!*ran && !original && error.status == ZF_ERR_STAGE) return numbers_free(&plain), true;
    }
    numbers_free(&plain);
    return good && ranks_agree(text, world, why, size);
}

#ifndef MUTANTS
#define MUTANTS 200
#endif

typedef struct tally {
    int refused[KINDS], sound[KINDS], failed[KINDS];
} tally;

static void check_mutants(test *t, uint64_t seed, const char *passes, const char *plan, tally *n)
{
    zf_error error = {ZF_OK, ""};
    numbers original = {0};
    chance c = {seed};
    char *text = malloc(20000), *room = malloc(1000), why[600] = "";
    int world = 1;
    if (!text || !room || !numbers_of(&original, plan, &(numbers_desc){.steps = 2}, &error))
        test_fail(t, __FILE__, __LINE__, passes, error.text);
    sscanf(plan, "zero stage=%*d world=%d", &world);
    for (int m = 0; m < MUTANTS && !t->failed; m++) {
        lines l = lines_of(plan);
        int kind = m % KINDS;
        zf_graph *g;
        bool ran;
        if (!edit(&c, &l, kind, room)) continue;
        join_lines(text, 20000, &l);
        if (!strcmp(text, plan)) continue;
        g = zf_graph_parse(text, strlen(text), NULL, &error);
        error = (zf_error){ZF_OK, ""};
        if (!g) {
            n->refused[kind]++;
            continue;
        }
        zf_graph_free(g);
        if (!is_sound(text, world, kind < DROP_LINE ? &original : NULL, &ran, why, sizeof why)) {
            char what[1000];
            snprintf(what, sizeof what, "%s, mutant %d, %s: %s", passes, m, kind_names[kind], why);
            test_fail(t, __FILE__, __LINE__, what, text);
        }
        if (ran) n->sound[kind]++;
        else n->failed[kind]++;
    }
    numbers_free(&original);
    free(text);
    free(room);
}

TEST_ONCE(plan_mutants_are_refused_or_sound)
{
    static const char *const plans[] = {
        "adamw lr; zero stage=0 world=2 bucket=256; memory",
        "clip 1; adamw lr; zero stage=1 world=2 bucket=256; memory",
        "sgd lr; zero stage=1 world=3 bucket=512 micro_batches=2; prefetch bytes=100000; memory",
        "clip 1; lamb lr; zero stage=2 world=2 bucket=256; prefetch bytes=100000; memory",
        "adamw lr; zero stage=2 world=2 bucket=512 micro_batches=2; memory",
        "clip 1; adamw lr; zero stage=3 world=2 bucket=256; prefetch bytes=100000; memory",
        "sgd lr; zero stage=3 world=3 bucket=256 micro_batches=2; prefetch bytes=20000; memory",
        "lamb lr; zero stage=0 world=1 micro_batches=2; memory",
    };
    tally n = {{0}, {0}, {0}};
    for (int k = 0; k < (int)(sizeof plans / sizeof *plans) && !t->failed; k++) {
        char line[300], message[600] = "", *plan;
        zf_graph *g = zf_graph_parse(model, strlen(model), NULL, NULL);
        snprintf(line, sizeof line, "autograd %%14; simplify; %s", plans[k]);
        if (!g || pass_run(g, line, NULL, message, sizeof message)) {
            test_fail(t, __FILE__, __LINE__, line, message);
            zf_graph_free(g);
            break;
        }
        plan = text_of(g);
        zf_graph_free(g);
        check_mutants(t, (uint64_t)k + 1, plans[k], plan, &n);
        free(plan);
    }
    for (int k = 0; k < KINDS && !t->failed; k++) {
        char what[200];
        snprintf(what, sizeof what, "%s: %d refused, %d accepted and sound, %d fail when they run",
                 kind_names[k], n.refused[k], n.sound[k], n.failed[k]);
        if (!n.refused[k]) test_fail(t, __FILE__, __LINE__, "none was refused", what);
    }
}

/* On demand, of a plan that was made before as well. */
TEST(plan_is_verified_by_compile)
{
    zf_error error = {ZF_OK, ""};
    zf_comm comms[2] = {{.rank = 0, .world = 2}, {.rank = 1, .world = 2}};
    zf_backend *cpu =
        zf_cpu_backend(&(zf_cpu_desc){.reference = true, .allocator = t->allocator}, &error);
    zf_graph *g;
    zf_program *p;
    NEED(t, cpu, &error);
    test_defer(t, (test_cleanup *)zf_backend_free, cpu);
    g = zf_graph_parse(updating, strlen(updating), &(zf_graph_desc){.allocator = t->allocator},
                       &error);
    NEED(t, g, &error);
    test_defer(t, (test_cleanup *)zf_graph_free, g);
    p = zf_compile(g, &(zf_compile_desc){.backend = cpu, .comm = &comms[1], .verify = true});
    OK(t, zf_graph_status(g), zf_graph_error(g));
    CHECK(t, p);
    zf_program_free(p);
}
