/* Change bytes of the lines of a contract, parse them, and check tensors against what they then say.
 *
 *     damage_text LINES COUNT SEED
 *
 * Prints how many texts were accepted, how many tensors fitted, and how many did not. A sanitizer ends it where a
 * byte is read that is not the text's: each text lies in memory of its own of just its length.
 */
#include <dimorder/contract.h>

#include <stdio.h>
#include <stdlib.h>

static uint64_t state;

static uint64_t draw(uint64_t below) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return (state >> 11) % below;
}

/* Bytes that mean something in a contract are likelier than others. */
static char draw_byte(void) {
    static const char telling[] = " \n0123456789-$=%.abcdefnxphysicallogicalscaleendsymbolnone";
    return draw(4) == 0 ? (char)(unsigned char)draw(256) : telling[draw(sizeof telling - 1)];
}

/* The text with a few bytes changed, put in or taken out, or cut off. */
static size_t damage(char *text, size_t length, size_t capacity) {
    for (uint64_t i = draw(4) + 1; i > 0 && length > 1; i--) {
        size_t at = (size_t)draw(length);
        switch (draw(8)) {
            case 0:
                memmove(text + at, text + at + 1, length - at - 1);
                length--;
                break;
            case 1:
                if (length == capacity) break;
                memmove(text + at + 1, text + at, length - at);
                text[at] = draw_byte();
                length++;
                break;
            case 2: {
                size_t other = (size_t)draw(length), count = (size_t)draw(12);
                if (at + count <= length && other + count <= length) memmove(text + at, text + other, count);
                break;
            }
            case 3:
                if (draw(10) == 0) length = at;
                break;
            default: text[at] = draw_byte();
        }
    }
    return length;
}

static int is_calm; /* whether the tensors of this call are what the contract promises */

static int draw_flaw(uint64_t one_in) { return !is_calm && draw(one_in) == 0; }

static int64_t draw_size(const dimorder_tensor *tensor, int dim) {
    static const int64_t wild[] = {0, 1, 2, 3, 7, -1, INT32_MAX, INT64_MAX, INT64_MIN, (int64_t)1 << 32};
    if (draw_flaw(6)) return wild[draw(sizeof wild / sizeof wild[0])];
    return tensor->sizes[dim] >= 0 ? tensor->sizes[dim] : (int64_t)draw(9);
}

static uint64_t counts[4];

/* Check tensors that mostly are what the contract promises, and sometimes wildly other. */
static void check(const dimorder_contract *contract) {
    char text[4096] = {0}, short_text[7] = {0};
    dimorder_message why = {text, sizeof text, 0}, cut = {short_text, sizeof short_text, 0};
    dimorder_view views[8];
    int64_t sizes[8][DIMORDER_MAX_RANK], strides[8][DIMORDER_MAX_RANK];
    float numbers[3] = {-1.5f, 0.0f, 1e30f}, back[3];
    int16_t integers[3];
    size_t count = contract->inputs > 8 ? 8 : (size_t)contract->inputs;
    is_calm = draw(2) == 0;
    for (size_t i = 0; i < count; i++) {
        dimorder_tensor tensor = dimorder_input(contract, (int)i);
        int held[DIMORDER_MAX_RANK];
        views[i].dtype = draw_flaw(20) ? (int)draw(60) - 20 : tensor.dtype;
        views[i].rank = draw_flaw(20) ? (int)draw(DIMORDER_MAX_RANK + 1) : tensor.rank;
        views[i].sizes = tensor.rank == 0 && views[i].rank == 0 ? NULL : sizes[i];
        views[i].strides = views[i].sizes == NULL ? NULL : strides[i];
        for (int dim = 0; dim < DIMORDER_MAX_RANK; dim++) {
            sizes[i][dim] = dim < tensor.rank ? draw_size(&tensor, dim) : 3;
            strides[i][dim] = (int64_t)draw(40) - 3;
        }
        dimorder_memory_order(&tensor, held);
        if (!draw_flaw(3)) dimorder_strides(held, tensor.rank, sizes[i], strides[i]);
        if (draw_flaw(9)) strides[i][draw(DIMORDER_MAX_RANK)] = draw(2) ? INT64_MAX : INT64_MIN;
        if (views[i].rank == tensor.rank) dimorder_check_order("input", &tensor, &views[i], &why);
        if (tensor.is_scaled) {
            dimorder_quantize(&tensor, numbers, 3, integers);
            dimorder_dequantize(&tensor, integers, 3, back);
        }
    }
    dimorder_status status = dimorder_check(contract, views, count, &why);
    if (dimorder_check(contract, views, count, &cut) != status || strlen(short_text) > 6) exit(3);
    if (dimorder_check(contract, views, count, NULL) != status) exit(4);
    if ((status != DIMORDER_OK) != (why.length != 0) || strlen(text) != why.length) exit(5);
    counts[status]++;
    for (int i = 0; i < contract->outputs; i++) dimorder_output(contract, i);
    for (int i = 0; i < contract->symbols; i++) dimorder_dynamic_size(contract, i);
}

int main(int count, char **arguments) {
    if (count != 4) return 2;
    FILE *file = fopen(arguments[1], "rb");
    if (file == NULL) return 2;
    static char whole[65536], changed[65536];
    size_t length = fread(whole, 1, sizeof whole, file);
    fclose(file);
    uint64_t accepted = 0, rounds = strtoull(arguments[2], NULL, 10);
    state = strtoull(arguments[3], NULL, 10) * 2654435761u + 88172645463325252u;
    dimorder_contract contract;
    if (dimorder_parse(NULL, 0, &contract) == DIMORDER_OK) return 2;
    for (uint64_t i = 0; i < rounds; i++) {
        memcpy(changed, whole, length);
        size_t bytes = damage(changed, length, sizeof changed);
        char *text = (char *)malloc(bytes == 0 ? 1 : bytes); /* so that a sanitizer sees its end */
        if (text == NULL) return 2;
        memcpy(text, changed, bytes);
        if (dimorder_parse(text, bytes, &contract) == DIMORDER_OK) {
            accepted++;
            check(&contract);
        }
        size_t found_bytes;
        dimorder_find_contract(text, bytes, &found_bytes);
        free(text);
    }
    printf("%llu %llu %llu %llu\n", (unsigned long long)accepted, (unsigned long long)counts[DIMORDER_OK],
           (unsigned long long)counts[DIMORDER_OTHER_ORDER], (unsigned long long)counts[DIMORDER_REFUSED]);
    return 0;
}
