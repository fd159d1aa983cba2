/* llm.c's matrix products by a BLAS: what its users patch in to make it fast (llmc.c). */
#include <cblas.h>

void matmul_forward(float *out, const float *x, const float *w, const float *bias, int batch,
                    int tokens, int in, int to)
{
    int rows = batch * tokens;
#pragma omp parallel for
    for (int row = 0; row < rows; row++)
        for (int o = 0; o < to; o++) out[(long)row * to + o] = bias ? bias[o] : 0;
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, rows, to, in, 1, x, in, w, in, 1, out, to);
}

void matmul_backward(float *dx, float *dw, float *dbias, const float *dout, const float *x,
                     const float *w, int batch, int tokens, int in, int to)
{
    int rows = batch * tokens;
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, rows, in, to, 1, dout, to, w, in, 1, dx,
                in);
    cblas_sgemm(CblasRowMajor, CblasTrans, CblasNoTrans, to, in, rows, 1, dout, to, x, in, 1, dw,
                in);
    for (int row = 0; row < rows && dbias; row++)
        for (int o = 0; o < to; o++) dbias[o] += dout[(long)row * to + o];
}
