/* Fine-tunes an adapter (LoRA) of a model of Hugging Face on chats, and talks with it.
 *
 *     cc -I. examples/chat.c -o chat -lm -lpthread -lpcre2-8
 *     ./chat DIR chats.jsonl 2e-4 ADAPTER     the rate of learning; then a message a line */
#define ZEROFLOW_IMPLEMENTATION
#define ZEROFLOW_LLM_IMPLEMENTATION
#include "zeroflow_llm.h"
#include <stdlib.h>
#include <string.h>

static void print(void *user, const char *text, size_t bytes) { fwrite(text, 1, bytes, user); }

int main(int argc, char **argv)
{
    char line[4096];
    double loss = 0;
    zf_error e = {ZF_OK, ""};
    zf_chat chat;
    zf_tuner tuner;
    zf_generator model;
    zf_talk talk = {.count = 0};
    zf_text answer = {.at = NULL};
    if (argc != 5) return fprintf(stderr, "usage: chat DIR CHATS RATE ADAPTER\n"), 2;
    zf_tokenizer *words = zf_tokenizer_open(argv[1], &e);
    zf_tuner_desc d = {.folder = argv[1], .data = argv[2], .tokenizer = words, .chat = &chat,
                       .training = {.lora = {.rank = 16, .alpha = 32}, .clip = 1}};
    bool good = words && zf_chat_open(&chat, argv[1], NULL, &e) &&
                (d.backend = zf_cpu_backend(NULL, &e)) && zf_tuner_open(&tuner, &d, &e);
    for (int k = 0; good && k < 100; k++) good = zf_tuner_step(&tuner, atof(argv[3]), &loss, &e);
    good = good && zf_tuner_save(&tuner, argv[4], &e) &&
           zf_generator_open(&model, &(zf_generator_desc){.tuner = &tuner}, &e);
    if (good) printf("loss %.4f\n", loss);
    while (good && fgets(line, sizeof line, stdin)) {
        zf_generate_desc how = {.chat = &chat, .talk = &talk, .show = print, .user = stdout};
        line[strcspn(line, "\n")] = 0;
        good = zf_generate(&model, words, line, &how, &answer, &e) && puts("") >= 0;
    }
    if (!good) fprintf(stderr, "chat: %s\n", e.text);
    return !good; /* memory goes with the program */
}
