/* contract.h behind functions for ctypes, compiled as C99: parse, check, and what a tensor's line amounts to. */
#include <dimorder/contract.h>

#include <stdlib.h>

#include "view.h"

int contract_parse(const char *text, size_t length, char *why, size_t capacity) {
    dimorder_contract contract;
    dimorder_message message = {why, capacity, 0};
    return (int)dimorder_parse_with(text, length, &contract, &message);
}

int contract_check(
    const char *text, size_t length, const view *given, size_t count, char *why, size_t capacity) {
    dimorder_contract contract;
    dimorder_message message = {why, capacity, 0};
    dimorder_status status = dimorder_parse_with(text, length, &contract, &message);
    dimorder_view *views = (dimorder_view *)malloc((count + 1) * sizeof(dimorder_view));
    if (views == NULL) return -1;
    for (size_t i = 0; i < count; i++) {
        views[i].dtype = given[i].dtype;
        views[i].rank = given[i].rank;
        views[i].sizes = given[i].sizes;
        views[i].strides = given[i].strides;
    }
    if (status == DIMORDER_OK) {
        status = dimorder_check(&contract, views, count, &message);
        /* The verdict does not depend on whether someone reads the reason. */
        if (dimorder_check(&contract, views, count, NULL) != status) status = (dimorder_status)-1;
    }
    free(views);
    return (int)status;
}

/* The input of a contract that parses. */
static dimorder_tensor input_of(const char *text, size_t length, int index) {
    dimorder_contract contract;
    dimorder_parse(text, length, &contract);
    return dimorder_input(&contract, index);
}

void contract_memory_order(const char *text, size_t length, int index, int *order) {
    dimorder_tensor tensor = input_of(text, length, index);
    dimorder_memory_order(&tensor, order);
}

int contract_quantize(const char *text, size_t length, int index, const float *from, size_t count, void *to) {
    dimorder_tensor tensor = input_of(text, length, index);
    return (int)dimorder_quantize(&tensor, from, count, to);
}

int contract_dequantize(const char *text, size_t length, int index, const void *from, size_t count, float *to) {
    dimorder_tensor tensor = input_of(text, length, index);
    return (int)dimorder_dequantize(&tensor, from, count, to);
}

size_t contract_find(const void *pte, size_t bytes, size_t *length) {
    const char *found = dimorder_find_contract(pte, bytes, length);
    return found == NULL ? SIZE_MAX : (size_t)(found - (const char *)pte);
}
