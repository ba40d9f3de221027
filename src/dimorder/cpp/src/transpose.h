/* Transpose blocks of memory (transpose.c). */
#ifndef DIMORDER_TRANSPOSE_H
#define DIMORDER_TRANSPOSE_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Write `batch` blocks of rows x columns elements of 1, 2, 4 or 8 bytes as blocks of columns x rows. */
void dimorder_transpose(
    const void *from, void *to, size_t bytes, size_t batch, size_t rows, size_t columns, int threads);

#ifdef __cplusplus
}
#endif

#endif
