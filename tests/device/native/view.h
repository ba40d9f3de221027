/* A tensor as ctypes passes it: the same struct in Python (native_fixture.View). */
#ifndef DIMORDER_TESTS_VIEW_H
#define DIMORDER_TESTS_VIEW_H

#include <stdint.h>

typedef struct {
    void *data;
    int32_t dtype;
    int32_t rank;
    int64_t sizes[64]; /* PyTorch's limit */
    int64_t strides[64];
} view;

#endif
