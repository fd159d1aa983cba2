/* Products of one row with rows of records, on every instruction set. */

enum { QUANTIZED_ROWS = 7, QUANTIZED_BLOCKS = 5 };

/* As ops/quantized_dot.c says. */
static float quantized_product(const zfi_blocks *b, const float *x, const uint8_t *record)
{
    float sum[16] = {0}, a[8], c[4];
    for (int r = 0; r < QUANTIZED_BLOCKS; r++, record += b->record, x += b->block) {
        const uint8_t *q;
        const float scale = zfi_get_scale(b, record, &q);
        float lane[16] = {0};
        for (int64_t i = 0; i < b->block * b->bits / 8; i++) {
            lane[i % 16] = fmaf(b->bits == 8 ? (float)(int8_t)q[i] : (float)zfi_low_integer(q[i]),
                                x[i], lane[i % 16]);
            if (b->bits == 4)
                lane[i % 16] = fmaf((float)zfi_low_integer(q[i] >> 4), x[b->block / 2 + i],
                                    lane[i % 16]);
        }
        for (int l = 0; l < 16; l++) sum[l] = fmaf(scale, lane[l], sum[l]);
    }
    for (int l = 0; l < 8; l++) a[l] = sum[l] + sum[l + 8];
    for (int l = 0; l < 4; l++) c[l] = a[l] + a[l + 4];
    return (c[0] + c[2]) + (c[1] + c[3]);
}

/* Every integer, at odd addresses. */
TEST(quantized_rows_have_the_bits_of_their_definition)
{
    static const zfi_blocks blocks[] = {{8, 64, 66, ZF_BF16, 127},   {4, 64, 34, ZF_BF16, 7},
                                        {8, 64, 68, ZF_F32, 127},    {4, 128, 68, ZF_F32, 7},
                                        {8, 192, 194, ZF_BF16, 127}, {4, 192, 98, ZF_BF16, 7}};
    static float x[QUANTIZED_BLOCKS * 192];
    static uint8_t records[QUANTIZED_ROWS * QUANTIZED_BLOCKS * 196 + 1];
    for (int i = 0; i < ZFI_COUNT(x); i++) x[i] = (float)((i * 7919 + 13) % 1009 - 504) / 97;
    for (int k = 0; k < ZFI_COUNT(blocks); k++) {
        const zfi_blocks *b = &blocks[k];
        const int64_t stride = QUANTIZED_BLOCKS * b->record;
        for (int64_t i = 0; i < QUANTIZED_ROWS * stride; i++)
            records[1 + i] = (uint8_t)((i * 2654435761u) >> 13);
        for (int64_t r = 0; r < QUANTIZED_ROWS * QUANTIZED_BLOCKS; r++)
            zfi_put_scale(b, records + 1 + r * b->record, zfi_bf16_to_f32((uint16_t)(0x3c00 + r)));
        for (int isa = 0; isa <= (int)zfi_isa_best(); isa++) {
            float out[QUANTIZED_ROWS];
            if (isa && isa < (int)zfi_isa_best() && zfi_isa_best() == ZFI_ISA_NEON) continue;
            zfi_dot_rows((zfi_isa)isa, b, x, records + 1, stride, QUANTIZED_BLOCKS, QUANTIZED_ROWS,
                         out);
            for (int64_t n = 0; n < QUANTIZED_ROWS; n++) {
                const float truth = quantized_product(b, x, records + 1 + n * stride);
                if (isa == ZFI_ISA_PORTABLE) CHECK_NEAR(t, out[n], truth, 1e-4);
                else CHECK(t, out[n] == truth);
            }
        }
    }
}
