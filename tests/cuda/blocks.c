/* Attention on CUDA that looks at less, block masks, documents, windows, against sums over all keys
 * in double precision. */
#include "../attention/attention_forms.h"

#ifdef EMULATION
#include "../emulation/emulation.h"
#else
#define emulation_seed(seed) ((void)(seed))
#define emulation_report()   ""
#endif

static zf_status run_form(test *t, const form *f, zf_dtype dtype)
{
    session_close(NULL);
    return run_form_on(t, f, dtype,
                       zf_cuda_backend(&(zf_cuda_desc){.allocator = t->allocator}, &s.error));
}

/* Tiles in front of, between and after what is seen; heads of all widths of kernels. */
static const form on_cuda[] = {
    FORM(.layout = "bigbird,block=32,random=1,seed=5,per_head", .tokens = 161, .heads = 2, .kv = 1,
         .d = 16, .documents = true),
    FORM(.layout = "fixed,local=2", .tokens = 200, .heads = 1, .d = 64, .packed = true,
         .causal = true),
    FORM(.layout = "window,block=32,width=1", .tokens = 260, .heads = 2, .kv = 1, .d = 40),
    FORM(.layout = "longformer,width=1,globals=3,block=128", .tokens = 600, .heads = 1, .d = 8),
    FORM(.tokens = 150, .heads = 1, .d = 128, .packed = true, .causal = true, .window = 30),
    FORM(.tokens = 130, .heads = 1, .d = 136, .documents = true, .causal = true, .bias = true),
    FORM(.layout = "window,width=1", .tokens = 40, .heads = 1, .d = 260, .documents = true,
         .packed = true),
};

/* Each in one dtype of three; with a sanitizer every second one. */
TEST_ONCE(cuda_attention_of_blocks_and_documents_agrees_with_its_definition)
{
    static const zf_dtype dtypes[] = {ZF_F32, ZF_BF16, ZF_F16};
    enum { SHARED = sizeof forms / sizeof forms[0], OWN = sizeof on_cuda / sizeof on_cuda[0] };
    test_defer(t, session_close, NULL);
    for (int i = 0; i < SHARED + OWN; i++)
        for (int k = 0; k < 3; k++) {
            const form *f = i < SHARED ? &forms[i] : &on_cuda[i - SHARED];
            if (k != i % 3 || (TEST_SANITIZED && i % 2)) continue;
            emulation_seed((uint64_t)(3 * i + k));
            OK(t, run_form(t, f, dtypes[k]), s.error.text);
            compare(t, __LINE__, f, dtypes[k], define(f, dtypes[k]));
            CHECK_TEXT(t, emulation_report(), "");
        }
}
