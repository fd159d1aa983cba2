/* What AMD's devices have of their own, emulated: a step of a BERT with waves of 64 lanes, without
 * matrix cores, and with 64 KiB of shared memory has the bits of waves of 32 lanes, and about the
 * loss of the CPU; which cores an architecture has; and products by a library with the calls of
 * hipBLASLt. */
#define _POSIX_C_SOURCE 200809L
#include "../../examples/bert/model.h"
#include "../support/test.h"

#ifdef EMULATION
#include "../emulation/emulation.h"
#include "../emulation/planted.h"

enum { SEQUENCE = 16, LABELS = 2, VOCABULARY = 64, NUMBERS = 1 << 20 };

static float kept[2][NUMBERS];

static void usual_device(void *nothing)
{
    (void)nothing;
    emulation_waves(32, EMULATION_MMA);
    emulation_shared(227 << 10);
}

static zf_status feed(zf_program *p, const bert_model *b)
{
    const float weight = 1.0f / LABELS, pair = 1, lr = 0.01f;
    int32_t ids[SEQUENCE], types[SEQUENCE], at[LABELS] = {1, 9}, labels[LABELS] = {7, 40}, next = 1;
    uint8_t mask[SEQUENCE];
    zf_status s = ZF_OK;
    for (int i = 0; i < SEQUENCE; i++)
        ids[i] = (i * 5 + 3) % VOCABULARY, types[i] = i > 9, mask[i] = i < 14;
    if (!s) s = zf_write(p, b->input_ids, ids, sizeof ids);
    if (!s) s = zf_write(p, b->token_type_ids, types, sizeof types);
    if (!s) s = zf_write(p, b->attention_mask, mask, sizeof mask);
    if (!s) s = zf_write(p, b->positions, at, sizeof at);
    if (!s) s = zf_write(p, b->labels, labels, sizeof labels);
    if (!s) s = zf_write(p, b->next_sentence_label, &next, sizeof next);
    if (!s) s = zf_write(p, b->mlm_weight, &weight, sizeof weight);
    if (!s) s = zf_write(p, b->nsp_weight, &pair, sizeof pair);
    return s ? s : zf_write(p, b->lr, &lr, sizeof lr);
}

/* A step in bf16 on the CPU or the emulated device. Parameters, which are bf16, go to `to`, as *count
 * words. */
static void step(test *t, bool cpu, float *to, size_t *count, float *loss)
{
    const bert_config tiny = {.vocab = VOCABULARY, .hidden = 128, .layers = 2, .heads = 2,
                              .intermediate = 512, .positions = SEQUENCE, .types = 2,
                              .eps = 1e-12, .dropout = 0.1, .attention_dropout = 0.1, .std = 0.1,
                              .pad = -1, .tied = 1, .nsp = 1};
    const sample_shape shape = {.batch = 1, .sequence = SEQUENCE, .predictions = LABELS};
    zf_error error = {ZF_OK, ""};
    zf_graph *g = zf_graph_new(NULL);
    const bert_model b = bert_build(g, &tiny, &shape, false);
    zf_backend *backend = cpu ? zf_cpu_backend(NULL, &error) : zf_cuda_backend(NULL, &error);
    zf_program *p = NULL;
    zf_status s = ZF_OK;
    char said[sizeof error.text];
    zf_passes(g, &(zf_training){.loss = b.loss, .lr = b.lr, .precision = {.dtype = ZF_BF16}});
    if (backend) p = zf_compile(g, &(zf_compile_desc){.backend = backend, .seed = 11});
    if (p && !(s = feed(p, &b))) s = zf_step(p);
    if (p && !s) s = zf_read(p, b.loss, loss, sizeof *loss);
    *count = 0;
    for (int32_t i = 0; p && !s && i < zf_param_count(g); i++) {
        const zf_tensor x = zf_param_at(g, i);
        const size_t n = zf_tensor_bytes(x) / sizeof(float);
        if (*count + n > NUMBERS) break;
        s = zf_read(p, x, to + *count, zf_tensor_bytes(x));
        *count += n;
    }
    snprintf(said, sizeof said, "%s",
             !backend ? error.text : !p ? zf_graph_error(g) : s ? zf_program_error(p) : "");
    zf_program_free(p);
    zf_backend_free(backend);
    zf_graph_free(g);
    CHECK_TEXT(t, said, "");
    CHECK_TEXT(t, emulation_report(), "");
}

TEST_ONCE(cuda_hip_refuses_devices_and_settings) { CHECK_TEXT(t, planted_hip_driver(), ""); }

TEST_ONCE(cuda_products_by_hipblaslt) { CHECK_TEXT(t, planted_hipblas(), ""); }

TEST_ONCE(cuda_bert_step_has_the_same_bits_in_waves_of_64)
{
    float loss[4] = {0};
    size_t count[4];
    test_defer(t, usual_device, NULL);
    emulation_shared(64 << 10);
    for (int i = 0; i < 2; i++) {
        emulation_waves(32 << i, EMULATION_NO_CORES);
        emulation_seed((uint64_t)i);
        step(t, false, kept[i], &count[i], &loss[i]);
    }
    CHECK(t, count[0] > 200000 && count[0] == count[1]);
    CHECK(t, !memcmp(kept[0], kept[1], count[0] * sizeof(float)) && loss[0] == loss[1]);
    step(t, true, kept[1], &count[2], &loss[2]);
    CHECK(t, loss[2] > 1 && fabsf(loss[0] - loss[2]) < 2e-2f * loss[2]);
    emulation_waves(64, EMULATION_MFMA); /* attention by matrix cores */
    step(t, false, kept[1], &count[3], &loss[3]);
    CHECK(t, count[3] == count[0] && memcmp(kept[0], kept[1], count[0] * sizeof(float)));
    CHECK(t, fabsf(loss[3] - loss[2]) < 2e-2f * loss[2]);
}

TEST_ONCE(cuda_cores_by_architecture)
{
    static const char *const none[] = {"gfx906", "gfx908", "gfx1030", "gfx1201", "gfx90", ""};
    CHECK(t, planted_architecture("gfx90a:sramecc+:xnack-") == EMULATION_MFMA);
    CHECK(t, planted_architecture("gfx942") == EMULATION_MFMA);
    CHECK(t, planted_architecture("gfx1100") == EMULATION_WMMA);
    CHECK(t, planted_architecture("gfx1151") == EMULATION_WMMA);
    for (size_t i = 0; i < sizeof none / sizeof *none; i++)
        CHECK(t, planted_architecture(none[i]) == EMULATION_NO_CORES);
}
#endif
