/* Pictures: of the plan (--svg), a page about it (--html), and the blocks that tokens see (--layout). */
#include "plan.h"
#include "../picture.h"
#include "../written.h"

#include <string.h>

/* The name of the file of a variant. */
static const char *variant_file(char name[1024], const options *o, const char *file)
{
    snprintf(name, 1024, o->t.variant ? "%s.%d" : "%s", file, (int)o->t.variant + 1);
    return name;
}

static zf_status write_page(const options *o, zf_graph *g, const char *title, zf_error *error)
{
    char name[1024], text[2000] = "";
    zf_report *r = zf_report_new(title, NULL);
    zf_status status = r ? zf_report_plan(r, g, &o->cost, NULL) : ZF_ERR_NOMEM;
    if (status) snprintf(error->text, sizeof error->text, "%s", zf_status_name(status));
    zf_options_text(&(zf_options){.rows = zf_training_options(), .desc = (void *)&o->t}, 1, text,
                    sizeof text);
    zf_report_fact(r, "model", title, NULL), zf_report_fact(r, "passes", text, NULL);
    if (!status) status = zf_report_save(r, variant_file(name, o, o->html), error);
    zf_report_free(r);
    return status;
}

int plan_draw(const options *o, zf_graph *g)
{
    char name[1024], title[160];
    written w;
    zf_error error = {ZF_OK, ""};
    zf_status status = ZF_ERR_NOMEM;
    snprintf(title, sizeof title, "%s of %lld layers, %lld wide, batch %lld, rank 0 of %lld",
             plan_model_name(o), (long long)o->layers, (long long)o->hidden,
             (long long)o->batch, (long long)o->world);
    if (o->html && write_page(o, g, title, &error)) {
        fprintf(stderr, "zf-plan: --html: %s\n", error.text);
        return 1;
    }
    if (!o->svg) return 0;
    written_open(&w, variant_file(name, o, o->svg));
    if (w.file) status = picture_plan_svg(g, &o->cost, title, w.file);
    if (written_close(&w, !status, &error)) return 0;
    fprintf(stderr, "zf-plan: %s\n", *error.text ? error.text : zf_status_name(status));
    return 1;
}

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
    zf_error error = {ZF_OK, ""};
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

