/* zf-plan --layout: which blocks of keys tokens see, as a picture. */
#include "plan.h"

#include <string.h>

static void print_layout_of(const zf_block_mask *mask, int64_t head)
{
    const zf_block_mask_info info = zf_block_mask_info_of(mask);
    if (info.layouts > 1) printf("head %lld\n", (long long)head);
    for (int64_t row = 0; row < info.blocks; row++) {
        for (int64_t column = 0; column < info.blocks; column++)
            putchar(zf_block_mask_sees(mask, head, row, column) ? '#' : '.');
        putchar('\n');
    }
}

int plan_print_layout(const options *o)
{
    zf_block_mask_desc d = {.tokens = o->seq, .heads = o->heads, .causal = o->gpt != 0};
    char text[ZF_CONFIG_LAYOUT];
    zf_error error;
    zf_block_mask *mask = NULL;
    zf_block_mask_info info;
    memcpy(text, o->attention, sizeof text);
    if (!zf_block_mask_parse(text, &d, &error)) mask = zf_block_mask_new(&d, &error);
    if (!mask) {
        fprintf(stderr, "zf-plan: %s\n", error.text);
        return 1;
    }
    info = zf_block_mask_info_of(mask);
    for (int64_t head = 0; head < info.layouts; head++) print_layout_of(mask, head);
    printf("%lld of %lld blocks of %lld tokens, %.1f%%\n", (long long)info.seen,
           (long long)(info.layouts * info.blocks * info.blocks), (long long)info.block,
           100 * (double)info.seen / (double)(info.layouts * info.blocks * info.blocks));
    zf_block_mask_free(mask);
    return 0;
}

