/* Block masks on CUDA (ops/block_mask.c) as bits, which the kernels of attention test.
 *
 *     lists of rows, block 32    0: 0 2   1: 1   2: 0 1 2    ->    110011   001100   111111
 *
 * A row of blocks has a bit for each 16 tokens across, least first in words of 32, for tiles are
 * multiples of 16 tokens, and divisors of the 512 tokens of a word. Bits of columns, which list the
 * rows that see them, are the same. They are made in scratch, at each launch. */

enum { ZFD_UNIT = 16, ZFD_UNITS = 32 }; /* tokens of a bit, bits of a word */

typedef struct zfd_listed {
    const uint32_t *rows, *columns; /* [layouts, count, words] */
    int shift, layouts, count, words; /* a block has 1 << shift tokens; layouts 0: no block mask */
} zfd_listed;

/* The blocks of a mask over so many tokens. The bits must be made (zfd_make_bits). */
static zfd_listed zfd_listed_of(int64_t block, int64_t layouts, int64_t tokens)
{
    zfd_listed b = {NULL, NULL, 0, 0, 0, 0};
    if (!block) return b;
    while (1 << b.shift < block) b.shift++;
    b.layouts = (int)layouts, b.count = (int)zfd_div_up(tokens, block);
    b.words = (int)zfd_div_up(tokens, ZFD_UNIT * ZFD_UNITS);
    return b;
}

/* The words of the bits of rows, or of columns. */
static int64_t zfd_block_words(const zfd_listed &b)
{
    return (int64_t)b.layouts * b.count * b.words;
}

/* A thread has a word: the part of a list that lies in it. */
__global__ void zfd_block_bits(const zfd_listed b, const int *lists, bool turned, uint32_t *to)
{
    const int64_t all = (int64_t)b.layouts * b.count * b.words;
    const int begins = b.layouts * (b.count + 1), units = b.shift - 4;
    const int *begin = lists + 2 + (turned ? begins : 0);
    const int *entries = lists + 2 + 2 * begins + (turned ? lists[2 + begins - 1] : 0);
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < all;
         i += (int64_t)gridDim.x * blockDim.x) {
        const int row = (int)(i / b.words), first = (int)(i % b.words) * ZFD_UNITS >> units;
        const int *of = begin + row / b.count * (b.count + 1) + row % b.count;
        int low = of[0], high = of[1];
        uint32_t bits = 0;
        while (low < high) { /* the first entry that is not in front of the word */
            const int middle = low + (high - low) / 2;
            if (entries[middle] < first) low = middle + 1;
            else high = middle;
        }
        for (; low < of[1] && entries[low] < first + (ZFD_UNITS >> units); low++)
            bits |= ((1u << (1 << units)) - 1) << ((entries[low] - first) << units);
        to[i] = bits;
    }
}

/* Makes bits of rows (or turned: of columns) at `to`, zfd_block_words of them. */
static const uint32_t *zfd_make_bits(const zf_launch *l, const zfd_listed &b, bool turned,
                                     uint32_t *to)
{
    const int *lists = static_cast<const int *>(l->args[l->arg_count - 1].data);
    ZFD_LAUNCH(zfd_block_bits, zfd_grid(l, zfd_div_up(zfd_block_words(b), ZFD_THREADS)),
               ZFD_THREADS, 0, zfd_stream(l), b, lists, turned, to);
    return to;
}

/* A word of bits: what any of the tokens first..end-1 of a layout sees there. */
__device__ __forceinline__ uint32_t zfd_seen_word(const zfd_listed &b, const uint32_t *bits,
                                                  int layout, int first, int end, int word)
{
    const int last = min((end - 1) >> b.shift, b.count - 1);
    uint32_t seen = 0;
    for (int row = first >> b.shift; row <= last; row++)
        seen |= bits[((int64_t)layout * b.count + row) * b.words + word];
    return seen;
}

/* The bits from token `at` on, a multiple of 16, in its word. */
__device__ __forceinline__ uint32_t zfd_seen_from(const zfd_listed &b, const uint32_t *bits,
                                                  int layout, int first, int end, int at)
{
    return zfd_seen_word(b, bits, layout, first, end, at / (ZFD_UNIT * ZFD_UNITS)) >>
           at / ZFD_UNIT % ZFD_UNITS;
}

/* The first tile from token `at` on, both multiples of `tile`, of which any of the tokens
 * first..end-1 sees a part; `limit` or more: none before `limit`. */
__device__ __forceinline__ int zfd_next_seen(const zfd_listed &b, const uint32_t *bits, int layout,
                                             int first, int end, int at, int limit, int tile)
{
    const int word = ZFD_UNIT * ZFD_UNITS;
    for (; at < limit; at = (at / word + 1) * word) {
        const uint32_t seen = zfd_seen_from(b, bits, layout, first, end, at);
        if (seen) return at + (__ffs((int)seen) - 1) * ZFD_UNIT / tile * tile;
    }
    return limit;
}
