/* Blocks: numbers of 8 or 4 bits that share a scale. A block of them is one record of bytes
 * (ops/quantize.c has its layout). */

typedef struct zfi_blocks {
    int bits;
    int64_t block;   /* elements of a record, */
    int64_t record;  /* and its bytes */
    zf_dtype scale;
    float most;
} zfi_blocks;

enum { ZFI_BLOCK_LEAST = 64, ZFI_BLOCK_MOST = 2048 };

static bool zfi_are_blocks(int64_t bits, int64_t block, int64_t scale)
{
    return (bits == 8 || bits == 4) && block >= ZFI_BLOCK_LEAST && block <= ZFI_BLOCK_MOST &&
           block % ZFI_BLOCK_LEAST == 0 && (scale == ZF_F32 || scale == ZF_BF16);
}

/* Of what is no block, a record has one byte. */
static zfi_blocks zfi_blocks_by(int64_t bits, int64_t block, int64_t scale)
{
    zfi_blocks b = {.bits = (int)bits, .block = block, .scale = (zf_dtype)scale};
    b.record = zfi_are_blocks(bits, block, scale)
                   ? (int64_t)zf_dtype_size(b.scale) + b.block * b.bits / 8
                   : 1;
    b.most = b.bits == 8 ? 127.0f : 7.0f;
    return b;
}

static zf_quantize_desc zfi_quantize_resolved(const zf_quantize_desc *desc)
{
    zf_quantize_desc d = desc ? *desc : (zf_quantize_desc){.bits = 0};
    if (!d.bits) d.bits = 8;
    if (!d.block) d.block = 256;
    return d;
}
