/* Products of one row with rows of records, on every instruction set. */

enum { QUANTIZED_ROWS = 7, QUANTIZED_BLOCKS = 5 };

/* The integers of a block and their unit as ops/quantized_dot.c says, of x in one part or two. */
static float quantized_x(const float *x, int64_t n, int64_t parts, double *integers)
{
    float largest = 0, unit = 0x1p-126f;
    for (int64_t i = 0; i < n; i++) largest = fmaxf(largest, fabsf(x[i]));
    while (unit * 0x1p15f <= largest) unit *= 2;
    for (int64_t i = 0; i < n; i++) {
        const double high = fmin(fmax(nearbyint((double)x[i] / unit), -32767), 32767),
                     low = nearbyint(((double)x[i] / unit - high) * 32768);
        integers[i] = high;
        if (parts > 1) integers[n + i] = fmin(fmax(low, -32767), 32767);
    }
    return unit;
}

/* As ops/quantized_dot.c says. */
static float quantized_product(const zfi_blocks *b, const float *x, int64_t parts,
                               const uint8_t *record)
{
    float sum[16] = {0}, a[8], c[4];
    for (int r = 0; r < QUANTIZED_BLOCKS; r++, record += b->record, x += b->block) {
        const uint8_t *q;
        double integers[2 * 192];
        float scale = zfi_get_scale(b, record, &q) * quantized_x(x, b->block, parts, integers);
        for (int64_t p = 0; p < parts; p++, scale *= 0x1p-15f) {
            double lane[16] = {0};
            for (int64_t i = 0; i < b->block; i++) {
                const int64_t half = b->block / 2;
                const int integer = b->bits == 8 ? (int8_t)q[i]
                                    : i < half   ? zfi_low_integer(q[i])
                                                 : zfi_low_integer(q[i - half] >> 4);
                lane[i / 2 % 16] += integer * integers[p * b->block + i];
            }
            for (int l = 0; l < 16; l++) sum[l] = fmaf(scale, (float)lane[l], sum[l]);
        }
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
    static const zf_dtype dtypes[] = {ZF_F32, ZF_BF16, ZF_F16};
    static float x[QUANTIZED_BLOCKS * 192];
    static uint16_t halves[ZFI_COUNT(x)];
    static uint8_t records[QUANTIZED_ROWS * QUANTIZED_BLOCKS * 196 + 1];
    static float room[2 * ZFI_COUNT(x)];
    for (int k = 0; k < ZFI_COUNT(blocks) * 4; k++) {
        const zfi_blocks *b = &blocks[k / 4];
        const zf_dtype dtype = dtypes[k % 3];
        const float size = k % 4 == 1 ? 0x1p-136f : 1; /* down to subnormal numbers */
        const int64_t stride = QUANTIZED_BLOCKS * b->record, count = QUANTIZED_BLOCKS * b->block;
        for (int i = 0; i < ZFI_COUNT(x); i++)
            x[i] = (float)((i * 7919 + 13) % 1009 - 504) / 97 * (float)(1 << i % 9) * size;
        x[7] = -0x1.fffffep10f * size;               /* would be 2^15 units */
        for (int64_t i = 64; i < 128; i++) x[i] = 0; /* a block of zeros */
        if (k % 4 == 2) x[count - 1] = k % 8 == 2 ? INFINITY : NAN;
        zfi_narrow(ZFI_ISA_PORTABLE, halves, dtype == ZF_F16 ? ZF_F16 : ZF_BF16, x, count);
        if (dtype != ZF_F32) zfi_widen(ZFI_ISA_PORTABLE, x, dtype, halves, count);
        for (int64_t i = 0; i < QUANTIZED_ROWS * stride; i++)
            records[1 + i] = (uint8_t)((i * 2654435761u) >> 13);
        for (int64_t r = 0; r < QUANTIZED_ROWS * QUANTIZED_BLOCKS; r++)
            zfi_put_scale(b, records + 1 + r * b->record, zfi_bf16_to_f32((uint16_t)(0x3c00 + r)));
        for (int isa = 0; isa <= (int)zfi_isa_best(); isa++) {
            zfi_dot_x integers;
            float out[QUANTIZED_ROWS];
            if (isa && isa < (int)zfi_isa_best() && zfi_isa_best() == ZFI_ISA_NEON) continue;
            CHECK(t, zfi_dot_bytes(b, dtype, count) <= sizeof room);
            integers = zfi_dot_x_of((zfi_isa)isa, b, dtype, dtype == ZF_F32 ? (void *)x : halves,
                                    count, room);
            zfi_dot_rows((zfi_isa)isa, b, &integers, records + 1, stride, QUANTIZED_BLOCKS,
                         QUANTIZED_ROWS, out);
            for (int64_t n = 0; n < QUANTIZED_ROWS; n++) {
                float truth;
                CHECK(t, isnan(out[n]) == (k % 4 == 2));
                if (k % 4 == 2) continue;
                truth = quantized_product(b, x, dtype == ZF_F32 ? 2 : 1, records + 1 + n * stride);
                if (isa == ZFI_ISA_PORTABLE) CHECK_NEAR(t, out[n], truth, 1e-2 * size);
                else CHECK(t, out[n] == truth);
            }
        }
    }
}

/* Sums of parts, also added to what there is, are those of one record after the other. */
TEST(quantized_parts_add_in_their_order)
{
    enum { WIDTH_OF = 128, PARTS_OF = 11 };
    float y[WIDTH_OF], want[WIDTH_OF];
    uint8_t records[PARTS_OF * (4 + WIDTH_OF)];
    for (int k = 0; k < 2 * PARTS_OF * 2; k++) {
        const zfi_blocks b = zfi_blocks_by(k % 2 ? 8 : 4, WIDTH_OF, ZF_F32);
        const int64_t parts = 1 + k / 2 % PARTS_OF;
        const bool add = k / 2 / PARTS_OF;
        for (int64_t i = 0; i < PARTS_OF * b.record; i++)
            records[i] = (uint8_t)(i * 2654435761u >> 9);
        for (int p = 0; p < PARTS_OF; p++)
            zfi_put_scale(&b, records + p * b.record, (float)(1 << 3 * p % 20) / 3);
        for (int isa = 0; isa <= (int)zfi_isa_best(); isa++) {
            if (isa && isa < (int)zfi_isa_best() && zfi_isa_best() == ZFI_ISA_NEON) continue;
            for (int i = 0; i < WIDTH_OF; i++) {
                want[i] = y[i] = add ? 0.1f * (float)i : 1e9f;
                for (int64_t p = 0; p < parts; p++) {
                    const float one = (float)zfi_dequantize_plain(&b, records + p * b.record, i);
                    want[i] = p || add ? want[i] + one : one;
                }
            }
            zfi_dequantize_parts((zfi_isa)isa, &b, y, records, b.record, parts, add);
            CHECK(t, !memcmp(y, want, sizeof y));
        }
    }
}

/* Results that are larger than caches say the same as small ones, also where they begin in a line, and
 * no byte outside them changes. */
TEST_ONCE(quantized_past_the_caches)
{
    enum { BLOCK_OF = 128, EDGE_OF = 64, SUMS_OF = 3 };
    static const zf_dtype dtypes[] = {ZF_F32, ZF_BF16, ZF_F16};
    const int64_t bytes = 16 << 20;
    const zf_run run = {.world = 1};
    char *memory = malloc((size_t)bytes + 3 * EDGE_OF);
    uint8_t *records = malloc((size_t)bytes);
    zf_backend *cpu = zf_cpu_backend(&(zf_cpu_desc){.threads = 2}, NULL);
    bool good = memory && records && cpu;
    for (int k = 0; k < 12 && good; k++) {
        const zf_dtype dtype = dtypes[k % 3];
        const bool sum = k / 3 % 2;
        const int64_t parts = sum ? SUMS_OF : 1, count = bytes / (int64_t)zf_dtype_size(dtype);
        const zf_attribute attributes[ZF_MAX_ATTRIBUTES] = {
            {.i = 4}, {.i = BLOCK_OF}, {.i = ZF_F32}, {.i = dtype}, {.i = parts}};
        const zfi_blocks b = zfi_blocks_of(attributes);
        const zf_array x = {records, ZF_U8, ZF_SHAPE(parts * count / BLOCK_OF * b.record)};
        char *out = memory + EDGE_OF - (uintptr_t)memory % EDGE_OF + (k / 6 ? 4 : EDGE_OF);
        const zf_launch l = {.op = sum ? ZF_OP_dequantize_sum : ZF_OP_dequantize,
                             .arg_count = 1,
                             .args = &x,
                             .out = {out, dtype, ZF_SHAPE(count)},
                             .attributes = attributes,
                             .run = &run,
                             .backend = cpu->self};
        for (int64_t r = 0; r < parts * count / BLOCK_OF; r++) {
            memset(records + r * b.record, (int)(r * 37 + k), (size_t)b.record);
            zfi_put_scale(&b, records + r * b.record, (float)(r % 9 - 4));
        }
        memset(memory, 0x55, (size_t)bytes + 3 * EDGE_OF);
        good = !zfi_cpu_dequantize(&l) && out[-1] == 0x55 && out[bytes] == 0x55;
        for (int64_t i = 0; i < count && good; i += i % 4096 ? 61 : 1) {
            float want = 0;
            for (int64_t p = 0; p < parts; p++)
                want += (float)zfi_dequantize_plain(
                    &b, records + (p * count / BLOCK_OF + i / BLOCK_OF) * b.record, i % BLOCK_OF);
            good = zfi_get(&l.out, i) == (double)want;
        }
        CHECK(t, good);
    }
    NEED(t, good, NULL);
    zf_backend_free(cpu);
    free(records), free(memory);
}
