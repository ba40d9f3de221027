/* Read the contract of a lowered program, and check tensors against it: C99, no heap, no runtime needed.
 *
 * A contract says for each input and output: name, type, sizes, order in memory, and what its integers stand
 * for. dimorder writes it into a .pte as lines of words (method `dimorder_contract_lines`), which this header
 * reads in place: a dimorder_contract points into that text and must not outlive it. Every function accepts
 * any bytes and never reads outside of them. Verdicts and messages are those of dimorder's Python package.
 *
 *     dimorder_contract contract;
 *     size_t length;
 *     const char *text = dimorder_find_contract(pte, pte_bytes, &length);
 *     if (text == NULL || dimorder_parse(text, length, &contract) != DIMORDER_OK) ...
 */
#ifndef DIMORDER_CONTRACT_H
#define DIMORDER_CONTRACT_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define DIMORDER_MAX_RANK 16    /* ExecuTorch's limit */
#define DIMORDER_MAX_SYMBOLS 32 /* dynamic sizes of one program */
#define DIMORDER_LINES_METHOD "dimorder_contract_lines"
#define DIMORDER_LINES_VERSION 1

#if defined(__cplusplus) && !defined(DIMORDER_WITHOUT_MESSAGES) /* other files of the program may have messages */
#define DIMORDER_FN inline
#else
#define DIMORDER_FN static inline
#endif

/* What a function found. */
typedef enum {
    DIMORDER_OK = 0,
    DIMORDER_OTHER_ORDER, /* the right sizes and type, in another order: it can be converted */
    DIMORDER_REFUSED,     /* a tensor that no conversion makes right */
    DIMORDER_DAMAGED      /* a text that is no contract, or of another version */
} dimorder_status;

/* Types, by the numbers that ExecuTorch's ScalarType gives them. */
typedef enum {
    DIMORDER_UINT8 = 0,
    DIMORDER_INT8 = 1,
    DIMORDER_INT16 = 2,
    DIMORDER_INT32 = 3,
    DIMORDER_INT64 = 4,
    DIMORDER_FLOAT16 = 5,
    DIMORDER_FLOAT32 = 6,
    DIMORDER_FLOAT64 = 7,
    DIMORDER_BOOL = 11,
    DIMORDER_BFLOAT16 = 15
} dimorder_dtype;

/* Characters that are not terminated by a zero. */
typedef struct {
    const char *text;
    size_t length;
} dimorder_text;

typedef struct {
    dimorder_text name;    /* as the contract writes it: `%xx` for a byte that is no plain character */
    dimorder_text written; /* the lines' own words for the sizes, for messages */
    int dtype;             /* a dimorder_dtype */
    int rank;
    int is_physical;       /* whether the program holds it dense in its order, dimensions permuted */
    int64_t sizes[DIMORDER_MAX_RANK]; /* -1 - K for dynamic size K, INT64_MIN for one that is computed */
    int order[DIMORDER_MAX_RANK];     /* dimensions from slowest to fastest in memory */
    int is_scaled;                    /* whether an integer q stands for (q - zero_point) * scale */
    double scale;
    int32_t zero_point;
    dimorder_text scale_exact, scale_short; /* the scale as messages show it */
} dimorder_tensor;

/* The range of a dynamic size, both ends included; maximum -1 means none. Sizes are multiples of step. */
typedef struct {
    dimorder_text name;
    int64_t minimum, maximum, step;
} dimorder_symbol;

typedef struct {
    const char *text;
    size_t length;
    int inputs, outputs, symbols, states;
} dimorder_contract;

/* A caller's tensor: sizes and strides in elements, from dimension 0 on. */
typedef struct {
    int dtype;
    int rank;
    const int64_t *sizes;
    const int64_t *strides;
} dimorder_view;

/* Three lines that say where, what was found, and what to do; always terminated, cut where there is no room. */
typedef struct {
    char *text;
    size_t capacity;
    size_t length;
} dimorder_message;

/* Writing messages */

/* Where flash is scarce, DIMORDER_WITHOUT_MESSAGES leaves the texts out: verdicts are all that is left. */
DIMORDER_FN void dimorder_put(dimorder_message *to, const char *text, size_t length) {
#ifdef DIMORDER_WITHOUT_MESSAGES
    (void)to, (void)text, (void)length;
    return;
#endif
    if (to == NULL || to->capacity == 0) return;
    size_t room = to->capacity - 1 - to->length;
    size_t count = length < room ? length : room;
    if (count != 0) memcpy(to->text + to->length, text, count);
    to->length += count;
    to->text[to->length] = '\0';
}

DIMORDER_FN void dimorder_puts(dimorder_message *to, const char *text) { dimorder_put(to, text, strlen(text)); }

DIMORDER_FN void dimorder_put_int(dimorder_message *to, int64_t number) {
    char digits[21];
    size_t at = sizeof digits;
    uint64_t rest = number < 0 ? (uint64_t)0 - (uint64_t)number : (uint64_t)number;
    do {
        digits[--at] = (char)('0' + (int)(rest % 10));
        rest /= 10;
    } while (rest != 0);
    if (number < 0) digits[--at] = '-';
    dimorder_put(to, digits + at, sizeof digits - at);
}

/* As Python writes a tuple: `(2, 3)`, `(2,)`, `()`. */
DIMORDER_FN void dimorder_put_tuple(dimorder_message *to, const int64_t *numbers, int count) {
    dimorder_puts(to, "(");
    for (int i = 0; i < count; i++) {
        if (i != 0) dimorder_puts(to, ", ");
        dimorder_put_int(to, numbers[i]);
    }
    dimorder_puts(to, count == 1 ? ",)" : ")");
}

DIMORDER_FN int dimorder_hex_digit(char digit) {
    if (digit >= '0' && digit <= '9') return digit - '0';
    if (digit >= 'a' && digit <= 'f') return digit - 'a' + 10;
    return -1;
}

/* The byte of a word at `*at` as it was before it was written, where `%xx` is a byte; steps over it. */
DIMORDER_FN char dimorder_next_byte(dimorder_text word, size_t *at) {
    char byte = word.text[(*at)++];
    if (byte == '%' && word.length - *at >= 2) {
        int high = dimorder_hex_digit(word.text[*at]), low = dimorder_hex_digit(word.text[*at + 1]);
        if (high >= 0 && low >= 0) {
            byte = (char)(unsigned char)(high * 16 + low);
            *at += 2;
        }
    }
    return byte;
}

/* A space, unless the message ends with one: a message has no two in a row. */
DIMORDER_FN void dimorder_put_space(dimorder_message *to) {
    if (to == NULL || to->length == 0 || to->text[to->length - 1] == ' ') return;
    dimorder_put(to, " ", 1);
}

/* A word as it was before it was written, with what is no visible character as a space. */
DIMORDER_FN void dimorder_put_word(dimorder_message *to, dimorder_text word) {
    for (size_t i = 0; i < word.length;) {
        char byte = dimorder_next_byte(word, &i);
        int is_space = byte == ' ' || byte == '\0' || (byte >= '\t' && byte <= '\r') || (byte >= 0x1c && byte <= 0x1f);
        if (is_space) dimorder_put_space(to);
        else dimorder_put(to, &byte, 1);
    }
}

/* The same in quotes, as Python's repr() writes it. */
DIMORDER_FN void dimorder_put_quoted(dimorder_message *to, dimorder_text word) {
    char quote = '\'';
    int has_double = 0, has_single = 0;
    for (size_t i = 0; i < word.length;) {
        char byte = dimorder_next_byte(word, &i);
        has_single |= byte == '\'';
        has_double |= byte == '"';
    }
    if (has_single && !has_double) quote = '"';
    dimorder_put(to, &quote, 1);
    for (size_t i = 0; i < word.length;) {
        char byte = dimorder_next_byte(word, &i);
        unsigned char code = (unsigned char)byte;
        char escaped[4] = {'\\', byte, 0, 0};
        size_t length = 2;
        if (byte == ' ') {
            dimorder_put_space(to);
            continue;
        }
        if (byte == '\n') escaped[1] = 'n';
        else if (byte == '\r') escaped[1] = 'r';
        else if (byte == '\t') escaped[1] = 't';
        else if (code < 0x20 || code == 0x7f) {
            escaped[1] = 'x';
            escaped[2] = (char)('0' + code / 16);
            escaped[3] = "0123456789abcdef"[code % 16];
            length = 4;
        } else if (byte != '\\' && byte != quote) {
            dimorder_put(to, &byte, 1);
            continue;
        }
        dimorder_put(to, escaped, length);
    }
    dimorder_put(to, &quote, 1);
}

DIMORDER_FN void dimorder_clear(dimorder_message *message) {
    if (message == NULL || message->capacity == 0) return;
    message->length = 0;
    message->text[0] = '\0';
}

/* Reading words */

typedef struct {
    const char *at, *end;
} dimorder_cursor;

/* The next word of the line that the cursor is in; empty at its end. */
DIMORDER_FN dimorder_text dimorder_next_word(dimorder_cursor *cursor) {
    while (cursor->at != cursor->end && *cursor->at == ' ') cursor->at++;
    dimorder_text word = {cursor->at, 0};
    while (cursor->at != cursor->end && *cursor->at != ' ' && *cursor->at != '\n') cursor->at++;
    word.length = (size_t)(cursor->at - word.text);
    return word;
}

/* Step over the end of a line; 0 where the cursor is not at one. */
DIMORDER_FN int dimorder_end_line(dimorder_cursor *cursor) {
    if (cursor->at == cursor->end || *cursor->at != '\n') return 0;
    cursor->at++;
    return 1;
}

DIMORDER_FN int dimorder_is(dimorder_text word, const char *text) {
    size_t length = strlen(text);
    return word.length == length && memcmp(word.text, text, length) == 0;
}

/* A decimal number from minimum to maximum; 0 where the word is none. */
DIMORDER_FN int dimorder_number(dimorder_text word, int64_t minimum, int64_t maximum, int64_t *number) {
    size_t at = 0;
    int negative = word.length != 0 && word.text[0] == '-';
    if (negative) at++;
    if (at == word.length || word.length - at > 18) return 0;
    int64_t value = 0;
    for (; at < word.length; at++) {
        if (word.text[at] < '0' || word.text[at] > '9') return 0;
        value = value * 10 + (word.text[at] - '0');
    }
    if (negative) value = -value;
    if (value < minimum || value > maximum) return 0;
    *number = value;
    return 1;
}

DIMORDER_FN const char *dimorder_dtype_name(int dtype) {
    switch (dtype) {
        case DIMORDER_UINT8: return "uint8";
        case DIMORDER_INT8: return "int8";
        case DIMORDER_INT16: return "int16";
        case DIMORDER_INT32: return "int32";
        case DIMORDER_INT64: return "int64";
        case DIMORDER_FLOAT16: return "float16";
        case DIMORDER_FLOAT32: return "float32";
        case DIMORDER_FLOAT64: return "float64";
        case DIMORDER_BOOL: return "bool";
        case DIMORDER_BFLOAT16: return "bfloat16";
        /* No contract has these, but a caller's tensor may. */
        case 8: return "complex32";
        case 9: return "complex64";
        case 10: return "complex128";
        case 23: return "float8_e5m2";
        case 24: return "float8_e4m3fn";
        case 25: return "float8_e5m2fnuz";
        case 26: return "float8_e4m3fnuz";
        case 27: return "uint16";
        case 28: return "uint32";
        case 29: return "uint64";
        default: return "a type that dimorder does not know";
    }
}

/* Bytes of one element; 0 for a type that is not known. */
DIMORDER_FN size_t dimorder_itemsize(int dtype) {
    switch (dtype) {
        case DIMORDER_UINT8:
        case DIMORDER_INT8:
        case DIMORDER_BOOL: return 1;
        case DIMORDER_INT16:
        case DIMORDER_FLOAT16:
        case DIMORDER_BFLOAT16: return 2;
        case DIMORDER_INT32:
        case DIMORDER_FLOAT32: return 4;
        case DIMORDER_INT64:
        case DIMORDER_FLOAT64: return 8;
        default: return 0;
    }
}

/* The least and the largest integer of a type that stand for numbers; of 16 bits as many are below 0 as above. */
DIMORDER_FN void dimorder_integer_range(int dtype, int32_t *least, int32_t *most) {
    *least = dtype == DIMORDER_UINT8 ? 0 : dtype == DIMORDER_INT8 ? -128 : -32767;
    *most = dtype == DIMORDER_UINT8 ? 255 : dtype == DIMORDER_INT8 ? 127 : 32767;
}

/* 1 where the dims are 0 to rank - 1, each once. */
DIMORDER_FN int dimorder_is_order(const int *dims, int rank) {
    unsigned seen = 0;
    for (int i = 0; i < rank; i++) {
        if (dims[i] < 0 || dims[i] >= rank) return 0;
        seen |= 1u << dims[i];
    }
    return seen == (1u << rank) - 1u;
}

DIMORDER_FN int dimorder_read_scale(dimorder_cursor *cursor, dimorder_tensor *tensor) {
    dimorder_text bits = dimorder_next_word(cursor);
    uint64_t pattern = 0;
    int64_t zero_point = 0;
    int32_t least, most;
    if (bits.length != 16) return 0;
    for (size_t i = 0; i < 16; i++) {
        int digit = dimorder_hex_digit(bits.text[i]);
        if (digit < 0) return 0;
        pattern = pattern << 4 | (unsigned)digit;
    }
    /* Positive, finite, not subnormal: no sign, an exponent between the extremes. */
    if (pattern >> 63 != 0 || pattern >> 52 == 0 || pattern >> 52 == 0x7ff) return 0;
    memcpy(&tensor->scale, &pattern, sizeof tensor->scale);
    if (tensor->dtype != DIMORDER_UINT8 && tensor->dtype != DIMORDER_INT8 && tensor->dtype != DIMORDER_INT16)
        return 0;
    dimorder_integer_range(tensor->dtype, &least, &most);
    if (!dimorder_number(dimorder_next_word(cursor), least, most, &zero_point)) return 0;
    tensor->zero_point = (int32_t)zero_point;
    tensor->scale_exact = dimorder_next_word(cursor);
    tensor->scale_short = dimorder_next_word(cursor);
    tensor->is_scaled = 1;
    return tensor->scale_exact.length != 0 && tensor->scale_short.length != 0;
}

/* An `input` or `output` line, from its second word on, with the end of the line: NULL, or what is wrong in it. */
DIMORDER_FN const char *dimorder_read_tensor(
    dimorder_cursor *cursor, int symbols, int is_input, dimorder_tensor *tensor) {
    static const char damaged[] = "a line of an input or output that is missing or damaged";
    int64_t number = 0;
    memset(tensor, 0, sizeof *tensor);
    tensor->name = dimorder_next_word(cursor);
    if (tensor->name.length == 0) return damaged;
    dimorder_text dtype = dimorder_next_word(cursor);
    for (tensor->dtype = 0; tensor->dtype < 16; tensor->dtype++)
        if (dimorder_itemsize(tensor->dtype) != 0 && dimorder_is(dtype, dimorder_dtype_name(tensor->dtype))) break;
    if (tensor->dtype == 16) return "a tensor of a type that C does not know";
    dimorder_text boundary = dimorder_next_word(cursor);
    tensor->is_physical = dimorder_is(boundary, "physical");
    if (!tensor->is_physical && !dimorder_is(boundary, "logical")) return damaged;
    if (!dimorder_number(dimorder_next_word(cursor), 0, INT32_MAX, &number)) return damaged;
    if (number > DIMORDER_MAX_RANK) return "a tensor of more than 16 dimensions";
    tensor->rank = (int)number;
    tensor->written.text = cursor->at;
    int64_t elements = 1;
    for (int i = 0; i < tensor->rank; i++) {
        dimorder_text size = dimorder_next_word(cursor);
        if (size.length > 1 && size.text[0] == '$') {
            dimorder_text index = {size.text + 1, size.length - 1};
            if (!dimorder_number(index, 0, symbols - 1, &number)) return damaged;
            tensor->sizes[i] = -1 - number;
        } else if (size.length > 1 && size.text[0] == '=' && !is_input) {
            tensor->sizes[i] = INT64_MIN;
        } else {
            if (!dimorder_number(size, 0, INT64_MAX, &number)) return damaged;
            if (number > INT32_MAX / elements) return "a tensor of 2147483648 elements or more";
            tensor->sizes[i] = number;
            elements *= number > 0 ? number : 1; /* ExecuTorch counts in 32 bits */
        }
    }
    tensor->written.length = (size_t)(cursor->at - tensor->written.text);
    for (int i = 0; i < tensor->rank; i++) {
        if (!dimorder_number(dimorder_next_word(cursor), 0, tensor->rank - 1, &number)) return damaged;
        tensor->order[i] = (int)number;
    }
    if (!dimorder_is_order(tensor->order, tensor->rank)) return damaged;
    dimorder_text more = dimorder_next_word(cursor);
    if (more.length != 0) {
        if (!dimorder_is(more, "scale")) return damaged;
        if (!dimorder_read_scale(cursor, tensor)) return "a scale or zero point that cannot be";
    }
    return dimorder_next_word(cursor).length == 0 && dimorder_end_line(cursor) ? NULL : damaged;
}

/* A `symbol` line, likewise. */
DIMORDER_FN const char *dimorder_read_symbol(dimorder_cursor *cursor, dimorder_symbol *symbol) {
    static const char damaged[] = "a line of a dynamic size that is missing or damaged";
    static const char wide[] = "a dynamic size whose range does not fit in 32 bits";
    symbol->name = dimorder_next_word(cursor);
    symbol->minimum = 0;
    symbol->maximum = -1;
    symbol->step = 1;
    if (symbol->name.length == 0) return damaged;
    if (!dimorder_number(dimorder_next_word(cursor), 0, INT64_MAX, &symbol->minimum)) return damaged;
    if (symbol->minimum > INT32_MAX) return wide;
    dimorder_text maximum = dimorder_next_word(cursor);
    if (!dimorder_is(maximum, "none") && !dimorder_number(maximum, symbol->minimum, INT64_MAX, &symbol->maximum))
        return maximum.length > 18 ? wide : damaged;
    if (!dimorder_number(dimorder_next_word(cursor), 1, INT64_MAX, &symbol->step)) return damaged;
    if (symbol->step > INT32_MAX) return wide;
    return dimorder_next_word(cursor).length == 0 && dimorder_end_line(cursor) ? NULL : damaged;
}

DIMORDER_FN void dimorder_skip_line(dimorder_cursor *cursor) {
    while (cursor->at != cursor->end && *cursor->at++ != '\n') {
    }
}

/* The contract */

/* The first place in the bytes from `at` to `end` that has these characters; NULL where there is none. */
DIMORDER_FN const char *dimorder_find(const char *at, const char *end, const char *characters) {
    size_t count = strlen(characters);
    while (at != NULL && (size_t)(end - at) >= count) {
        at = (const char *)memchr(at, characters[0], (size_t)(end - at) - count + 1);
        if (at == NULL || memcmp(at, characters, count) == 0) return at;
        at++;
    }
    return NULL;
}

/* Where the lines of a contract lie in the bytes of a .pte, and how many bytes they are; NULL where there are
 * none. A program that is loaded gives the same text by its method `dimorder_contract_lines`. */
DIMORDER_FN const char *dimorder_find_contract(const void *pte, size_t bytes, size_t *length) {
    const char *begin = (const char *)pte, *end = pte == NULL ? NULL : begin + bytes, *last;
    begin = dimorder_find(begin, end, "dimorder-contract ");
    last = dimorder_find(begin, end, "\nend\n");
    if (begin == NULL || last == NULL) return NULL;
    *length = (size_t)(last - begin) + strlen("\nend\n");
    return begin;
}

DIMORDER_FN dimorder_status dimorder_damaged(dimorder_message *message, const char *found, const char *fix) {
    dimorder_clear(message);
    dimorder_puts(message, "the contract of a program\n  found: ");
    dimorder_puts(message, found);
    dimorder_puts(message, "\n  fix: ");
    dimorder_puts(message, fix);
    return DIMORDER_DAMAGED;
}

/* Read and check every line. A contract that this accepts is read by the functions below without fail. */
DIMORDER_FN dimorder_status dimorder_parse_with(
    const char *text, size_t length, dimorder_contract *contract, dimorder_message *why) {
    dimorder_cursor cursor = {text, text == NULL ? NULL : text + length};
    dimorder_text kind;
    dimorder_tensor tensor;
    dimorder_symbol symbol;
    int64_t counts[5] = {0, 0, 0, 0, 0};
    const char *again = "lower the program again", *found;
    const char *within = "lower the program again, within the limits of dimorder/contract.h";
    if (text == NULL || !dimorder_is(dimorder_next_word(&cursor), "dimorder-contract"))
        return dimorder_damaged(why, "no lines of the format dimorder-contract", again);
    if (!dimorder_number(dimorder_next_word(&cursor), 0, INT32_MAX, &counts[0]))
        return dimorder_damaged(why, "no lines of the format dimorder-contract", again);
    if (counts[0] != DIMORDER_LINES_VERSION)
        return dimorder_damaged(why, "another version of its lines than this header reads",
                                "build with the dimorder that lowered it, or lower it again");
    for (int i = 1; i < 5; i++)
        if (!dimorder_number(dimorder_next_word(&cursor), 0, INT64_MAX, &counts[i]))
            return dimorder_damaged(why, "counts that cannot be", again);
    if (counts[3] > DIMORDER_MAX_SYMBOLS) return dimorder_damaged(why, "more than 32 dynamic sizes", within);
    if (counts[1] > 4096 || counts[2] > 4096 || counts[4] > 4096)
        return dimorder_damaged(why, "more than 4096 inputs, outputs or states", within);
    if (!dimorder_end_line(&cursor)) return dimorder_damaged(why, "a first line that does not end", again);
    for (int64_t i = 0; i < counts[1] + counts[2]; i++) {
        int is_input = i < counts[1];
        kind = dimorder_next_word(&cursor);
        if (!dimorder_is(kind, is_input ? "input" : "output"))
            return dimorder_damaged(why, "a line of an input or output that is missing or damaged", again);
        found = dimorder_read_tensor(&cursor, (int)counts[3], is_input, &tensor);
        if (found != NULL) return dimorder_damaged(why, found, within);
    }
    for (int64_t i = 0; i < counts[3]; i++) {
        kind = dimorder_next_word(&cursor);
        if (!dimorder_is(kind, "symbol"))
            return dimorder_damaged(why, "a line of a dynamic size that is missing or damaged", again);
        found = dimorder_read_symbol(&cursor, &symbol);
        if (found != NULL) return dimorder_damaged(why, found, within);
    }
    for (int64_t i = 0; i < counts[4]; i++) {
        kind = dimorder_next_word(&cursor);
        if (!dimorder_is(kind, "state")) return dimorder_damaged(why, "a line of the state that is missing", again);
        dimorder_skip_line(&cursor);
    }
    if (!dimorder_is(dimorder_next_word(&cursor), "end"))
        return dimorder_damaged(why, "lines that do not end with `end`", again);
    contract->text = text;
    contract->length = length;
    contract->inputs = (int)counts[1];
    contract->outputs = (int)counts[2];
    contract->symbols = (int)counts[3];
    contract->states = (int)counts[4];
    return DIMORDER_OK;
}

DIMORDER_FN dimorder_status dimorder_parse(const char *text, size_t length, dimorder_contract *contract) {
    return dimorder_parse_with(text, length, contract, NULL);
}

/* The cursor after the first word of line `index`, counted after the first line. */
DIMORDER_FN dimorder_cursor dimorder_line(const dimorder_contract *contract, int index) {
    dimorder_cursor cursor = {contract->text, contract->text + contract->length};
    for (int i = 0; i <= index; i++) dimorder_skip_line(&cursor);
    dimorder_next_word(&cursor);
    return cursor;
}

/* Input `index`, from 0 to contract->inputs - 1. */
DIMORDER_FN dimorder_tensor dimorder_input(const dimorder_contract *contract, int index) {
    dimorder_tensor tensor;
    dimorder_cursor cursor = dimorder_line(contract, index);
    dimorder_read_tensor(&cursor, contract->symbols, 1, &tensor);
    return tensor;
}

/* Output `index`, from 0 to contract->outputs - 1. */
DIMORDER_FN dimorder_tensor dimorder_output(const dimorder_contract *contract, int index) {
    dimorder_tensor tensor;
    dimorder_cursor cursor = dimorder_line(contract, contract->inputs + index);
    dimorder_read_tensor(&cursor, contract->symbols, 0, &tensor);
    return tensor;
}

/* Dynamic size `index`, from 0 to contract->symbols - 1. */
DIMORDER_FN dimorder_symbol dimorder_dynamic_size(const dimorder_contract *contract, int index) {
    dimorder_symbol symbol;
    dimorder_cursor cursor = dimorder_line(contract, contract->inputs + contract->outputs + index);
    dimorder_read_symbol(&cursor, &symbol);
    return symbol;
}

/* Orders */

/* A stride times a size, at most INT64_MAX: no memory is so large, and the sizes are refused. */
DIMORDER_FN int64_t dimorder_stride_times(int64_t stride, int64_t size) {
    if (size <= 1) return stride;
    return stride > INT64_MAX / size ? INT64_MAX : stride * size;
}

/* The strides, in elements, of a tensor that is dense in an order; a size 0 counts as 1. */
DIMORDER_FN void dimorder_strides(const int *order, int rank, const int64_t *sizes, int64_t *strides) {
    int64_t step = 1;
    for (int i = rank - 1; i >= 0; i--) {
        strides[order[i]] = step;
        step = dimorder_stride_times(step, sizes[order[i]]);
    }
}

/* The least order that means the same memory: dimensions of size 1 go where they sort first. */
DIMORDER_FN void dimorder_canonical(const int *order, int rank, const int64_t *sizes, int *least) {
    int is_empty = 0, at = 0, free = 0, fixed = 0;
    for (int i = 0; i < rank; i++) is_empty |= sizes[i] == 0;
    for (; at < rank; at++) {
        while (free < rank && sizes[free] != 1) free++;
        while (fixed < rank && sizes[order[fixed]] == 1) fixed++;
        if (is_empty) least[at] = at;
        else if (free == rank || (fixed < rank && order[fixed] < free)) least[at] = order[fixed++];
        else least[at] = free++;
    }
}

DIMORDER_FN int dimorder_same(const int *a, const int *b, int rank) {
    for (int i = 0; i < rank; i++)
        if (a[i] != b[i]) return 0;
    return 1;
}

/* Whether two orders put every element of a tensor of these sizes in the same place. */
DIMORDER_FN int dimorder_equivalent(const int *a, const int *b, int rank, const int64_t *sizes) {
    int first[DIMORDER_MAX_RANK], second[DIMORDER_MAX_RANK];
    dimorder_canonical(a, rank, sizes, first);
    dimorder_canonical(b, rank, sizes, second);
    return dimorder_same(first, second, rank);
}

DIMORDER_FN void dimorder_contiguous(int *order, int rank) {
    for (int i = 0; i < rank; i++) order[i] = i;
}

/* Dimension 1 fastest; below 3 dimensions row-major. */
DIMORDER_FN void dimorder_channels_last(int *order, int rank) {
    dimorder_contiguous(order, rank);
    for (int i = 1; rank > 2 && i < rank; i++) order[i] = i + 1 < rank ? i + 1 : 1;
}

/* `NHWC (0, 2, 3, 1)`, or the dimensions alone where the order has no name. */
DIMORDER_FN void dimorder_put_order(dimorder_message *to, const int *order, int rank) {
    static const struct {
        const char *name, *digits;
    } named[] = {{"NC", "01"},     {"NCL", "012"},     {"NLC", "021"},     {"NCHW", "0123"},  {"NHWC", "0231"},
                 {"CHWN", "1230"}, {"NCDHW", "01234"}, {"NDHWC", "02341"}, {"HWIO", "2310"}, {"HWIM", "2301"}};
    int64_t dims[DIMORDER_MAX_RANK];
    char digits[DIMORDER_MAX_RANK + 1] = {0};
    for (int i = 0; i < rank; i++) {
        dims[i] = order[i];
        digits[i] = (char)('0' + order[i]);
    }
    for (size_t i = 0; i < sizeof named / sizeof named[0]; i++) {
        if (strcmp(digits, named[i].digits) != 0) continue;
        dimorder_puts(to, named[i].name);
        dimorder_puts(to, " ");
    }
    dimorder_put_tuple(to, dims, rank);
}

/* The order that sizes and strides show. 0 where no order does, and `why` says which dimension is not dense. */
DIMORDER_FN int dimorder_read_order(
    const int64_t *sizes, const int64_t *strides, int rank, int *order, dimorder_message *why) {
    int inner_first[DIMORDER_MAX_RANK], row_major[DIMORDER_MAX_RANK], count = 0, at = 0;
    int64_t step = 1;
    dimorder_contiguous(row_major, rank);
    for (int i = 0; i < rank; i++) {
        if (sizes[i] == 0) {
            dimorder_contiguous(order, rank);
            return 1;
        }
    }
    for (int i = 0; i < rank; i++) { /* by strides, and of equal strides the last dimension first */
        if (sizes[i] == 1) continue;
        for (at = count++; at > 0 && strides[inner_first[at - 1]] >= strides[i]; at--)
            inner_first[at] = inner_first[at - 1];
        inner_first[at] = i;
    }
    for (int i = 0; i < count; i++) {
        int dim = inner_first[i], inner = i == 0 ? -1 : inner_first[i - 1];
        if (strides[dim] == step) {
            step = dimorder_stride_times(step, sizes[dim]);
            continue;
        }
        dimorder_puts(why, "not dense: dim ");
        dimorder_put_int(why, dim);
        if (strides[dim] == 0) {
            dimorder_puts(why, " of size ");
            dimorder_put_int(why, sizes[dim]);
            dimorder_puts(why, " is expanded (stride 0)");
        } else if (strides[dim] < 0) {
            dimorder_puts(why, " runs backwards (stride ");
            dimorder_put_int(why, strides[dim]);
            dimorder_puts(why, ")");
        } else if (strides[dim] < step) {
            dimorder_puts(why, " steps over ");
            dimorder_put_int(why, strides[dim]);
            dimorder_puts(why, " elements where the faster dims hold ");
            dimorder_put_int(why, step);
            dimorder_puts(why, ": they overlap");
        } else if (inner < 0) {
            dimorder_puts(why, ", the fastest, steps over ");
            dimorder_put_int(why, strides[dim]);
            dimorder_puts(why, " elements (a step in dim ");
            dimorder_put_int(why, dim);
            dimorder_puts(why, ", or one index of a faster dim)");
        } else if (strides[dim] % strides[inner] != 0) {
            dimorder_puts(why, " steps over ");
            dimorder_put_int(why, strides[dim]);
            dimorder_puts(why, " elements where the faster dims hold ");
            dimorder_put_int(why, step);
            dimorder_puts(why, " (gaps between them)");
        } else {
            dimorder_puts(why, " steps over ");
            dimorder_put_int(why, strides[dim] / strides[inner]);
            if (strides[inner] == 1) {
                dimorder_puts(why, " elements");
            } else {
                dimorder_puts(why, " steps of dim ");
                dimorder_put_int(why, inner);
            }
            dimorder_puts(why, " where dim ");
            dimorder_put_int(why, inner);
            dimorder_puts(why, " holds ");
            dimorder_put_int(why, sizes[inner]);
            dimorder_puts(why, " (a slice of dim ");
            dimorder_put_int(why, inner);
            dimorder_puts(why, ", or a step in dim ");
            dimorder_put_int(why, dim);
            dimorder_puts(why, ")");
        }
        return 0;
    }
    at = 0;
    for (int i = 0; i < rank; i++)
        if (sizes[i] == 1) row_major[at++] = i;
    for (int i = count - 1; i >= 0; i--) row_major[at++] = inner_first[i];
    dimorder_canonical(row_major, rank, sizes, order);
    return 1;
}

/* Checks */

/* 1 where the name can stand in a line of Python. */
DIMORDER_FN int dimorder_is_identifier(dimorder_text name) {
    for (size_t i = 0; i < name.length; i++) {
        char c = name.text[i];
        int is_letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
        if (!is_letter && (i == 0 || c < '0' || c > '9')) return 0;
    }
    return 1;
}

DIMORDER_FN void dimorder_put_variable(dimorder_message *to, const dimorder_tensor *tensor) {
    if (dimorder_is_identifier(tensor->name)) dimorder_put_word(to, tensor->name);
    else dimorder_puts(to, "x");
}

/* Begin a message: `input 'x'`. */
DIMORDER_FN void dimorder_put_where(dimorder_message *to, const char *kind, const dimorder_tensor *tensor) {
    dimorder_clear(to);
    dimorder_puts(to, kind);
    dimorder_puts(to, " ");
    dimorder_put_quoted(to, tensor->name);
}

DIMORDER_FN void dimorder_put_found(dimorder_message *to) { dimorder_puts(to, "\n  found: "); }
DIMORDER_FN void dimorder_put_fix(dimorder_message *to) { dimorder_puts(to, "\n  fix: "); }

/* The promised sizes as a tuple, with the names of dynamic sizes. */
DIMORDER_FN void dimorder_put_promised(
    dimorder_message *to, const dimorder_contract *contract, const dimorder_tensor *tensor) {
    dimorder_puts(to, "(");
    for (int i = 0; i < tensor->rank; i++) {
        if (i != 0) dimorder_puts(to, ", ");
        if (tensor->sizes[i] >= 0) dimorder_put_int(to, tensor->sizes[i]);
        else dimorder_put_word(to, dimorder_dynamic_size(contract, (int)(-1 - tensor->sizes[i])).name);
    }
    dimorder_puts(to, ")");
}

/* `int8, scale 0.021, zero point -3`. */
DIMORDER_FN void dimorder_put_type(dimorder_message *to, const dimorder_tensor *tensor) {
    dimorder_puts(to, "torch.");
    dimorder_puts(to, dimorder_dtype_name(tensor->dtype));
    if (!tensor->is_scaled) return;
    dimorder_puts(to, ", scale ");
    dimorder_put_word(to, tensor->scale_short);
    dimorder_puts(to, ", zero point ");
    dimorder_put_int(to, tensor->zero_point);
}

DIMORDER_FN int dimorder_is_floating(int dtype) {
    return (dtype >= DIMORDER_FLOAT16 && dtype <= DIMORDER_FLOAT64) || dtype == DIMORDER_BFLOAT16 ||
           (dtype >= 23 && dtype <= 26);
}

/* Refuse another number of inputs than the contract has. */
DIMORDER_FN dimorder_status dimorder_check_count(
    const dimorder_contract *contract, size_t count, dimorder_message *why) {
    if (count == (size_t)contract->inputs) return DIMORDER_OK;
    dimorder_clear(why);
    dimorder_puts(why, "the inputs of the program\n  found: ");
    dimorder_put_int(why, (int64_t)count);
    dimorder_puts(why, " where ");
    dimorder_put_int(why, contract->inputs);
    dimorder_puts(why, " are promised\n  fix: pass exactly: ");
    for (int i = 0; i < contract->inputs; i++) {
        if (i != 0) dimorder_puts(why, ", ");
        dimorder_put_word(why, dimorder_input(contract, i).name);
    }
    if (contract->inputs == 0) dimorder_puts(why, "nothing");
    while (why != NULL && why->length != 0 && why->text[why->length - 1] == ' ') why->text[--why->length] = '\0';
    return DIMORDER_REFUSED;
}

/* The line that makes of a caller's tensor one of the promised type. */
DIMORDER_FN void dimorder_put_type_fix(dimorder_message *why, const dimorder_tensor *promised, int dtype) {
    int32_t least = 0, most = 0;
    dimorder_put_variable(why, promised);
    dimorder_puts(why, " = ");
    if (!promised->is_scaled) {
        dimorder_put_variable(why, promised);
        dimorder_puts(why, ".to(torch.");
        dimorder_puts(why, dimorder_dtype_name(promised->dtype));
        dimorder_puts(why, ")");
        return;
    }
    dimorder_integer_range(promised->dtype, &least, &most);
    dimorder_puts(why, "torch.clamp(torch.round(");
    dimorder_put_variable(why, promised);
    if (!dimorder_is_floating(dtype)) dimorder_puts(why, ".float()");
    dimorder_puts(why, " / ");
    dimorder_put_word(why, promised->scale_exact);
    dimorder_puts(why, ") + ");
    dimorder_put_int(why, promised->zero_point);
    dimorder_puts(why, ", ");
    dimorder_put_int(why, least);
    dimorder_puts(why, ", ");
    dimorder_put_int(why, most);
    dimorder_puts(why, ").to(torch.");
    dimorder_puts(why, dimorder_dtype_name(promised->dtype));
    dimorder_puts(why, ")");
}

/* The line that fixes the two usual slips: no batch dimension, and channels as the last dimension. */
DIMORDER_FN void dimorder_put_shape_fix(
    dimorder_message *why, const dimorder_contract *contract, const dimorder_tensor *promised,
    const dimorder_view *given) {
    int last[DIMORDER_MAX_RANK];
    int64_t dims[DIMORDER_MAX_RANK];
    int lacks_batch = given->rank + 1 == promised->rank && promised->sizes[0] == 1;
    int has_channels_last = given->rank == promised->rank;
    dimorder_channels_last(last, promised->rank);
    for (int i = 0; i < promised->rank; i++) {
        if (lacks_batch && i > 0) lacks_batch = given->sizes[i - 1] == promised->sizes[i];
        if (has_channels_last) has_channels_last = given->sizes[i] == promised->sizes[last[i]];
        dims[last[i]] = i;
    }
    if (lacks_batch || has_channels_last) {
        dimorder_put_variable(why, promised);
        dimorder_puts(why, " = ");
        dimorder_put_variable(why, promised);
    }
    if (lacks_batch) {
        dimorder_puts(why, ".unsqueeze(0)");
    } else if (has_channels_last) {
        dimorder_puts(why, ".permute");
        dimorder_put_tuple(why, dims, promised->rank);
        dimorder_puts(why, ", if its channels are its last dimension");
    } else {
        dimorder_puts(why, "pass a tensor of the shape ");
        dimorder_put_promised(why, contract, promised);
    }
}

/* Check a caller's size against the range of dynamic size `index`; `sizes` collects what each turned out to be. */
DIMORDER_FN dimorder_status dimorder_check_dynamic_size(
    const dimorder_contract *contract, int index, const dimorder_tensor *promised, int dim, int64_t size,
    int64_t *sizes, dimorder_message *why) {
    dimorder_symbol symbol = dimorder_dynamic_size(contract, index);
    int is_new = sizes[index] < 0;
    int fits = size >= symbol.minimum && (symbol.maximum < 0 || size <= symbol.maximum);
    if (is_new) sizes[index] = size;
    if (sizes[index] == size && fits && size % symbol.step == 0) return DIMORDER_OK;
    dimorder_put_where(why, "input", promised);
    dimorder_put_found(why);
    dimorder_puts(why, "size ");
    dimorder_put_int(why, size);
    dimorder_puts(why, " in dim ");
    dimorder_put_int(why, dim);
    dimorder_puts(why, ", where ");
    dimorder_put_word(why, symbol.name);
    if (sizes[index] != size) {
        dimorder_puts(why, " is ");
        dimorder_put_int(why, sizes[index]);
        dimorder_puts(why, " elsewhere in this call");
        dimorder_put_fix(why);
        dimorder_puts(why, "pass inputs that agree on ");
        dimorder_put_word(why, symbol.name);
    } else if (!fits) {
        dimorder_puts(why, " is from ");
        dimorder_put_int(why, symbol.minimum);
        dimorder_puts(why, " to ");
        if (symbol.maximum < 0) dimorder_puts(why, "None");
        else dimorder_put_int(why, symbol.maximum);
        dimorder_put_fix(why);
        dimorder_puts(why, "pass a size within that range, or lower the program for a wider ");
        dimorder_put_word(why, symbol.name);
    } else {
        dimorder_puts(why, " is a multiple of ");
        dimorder_put_int(why, symbol.step);
        dimorder_put_fix(why);
        dimorder_puts(why, "pad to ");
        dimorder_put_int(why, (int64_t)((uint64_t)size - (uint64_t)(size % symbol.step) + (uint64_t)symbol.step));
        dimorder_puts(why, ", or lower the program for other sizes");
    }
    return DIMORDER_REFUSED;
}

/* Check the type and the sizes of a caller's tensor.
 *
 * `sizes` has room for contract->symbols numbers, which are -1 before the first input of a call is checked. */
DIMORDER_FN dimorder_status dimorder_check_kind(
    const dimorder_contract *contract, const dimorder_tensor *promised, const dimorder_view *given, int64_t *sizes,
    dimorder_message *why) {
    if (given->dtype != promised->dtype) {
        dimorder_put_where(why, "input", promised);
        dimorder_put_found(why);
        dimorder_puts(why, "torch.");
        dimorder_puts(why, dimorder_dtype_name(given->dtype));
        dimorder_puts(why, ", where ");
        dimorder_put_type(why, promised);
        dimorder_puts(why, " is promised");
        dimorder_put_fix(why);
        dimorder_put_type_fix(why, promised, given->dtype);
        return DIMORDER_REFUSED;
    }
    int fits = given->rank == promised->rank;
    for (int i = 0; fits && i < promised->rank; i++)
        fits = given->sizes[i] >= 0 && (promised->sizes[i] < 0 || promised->sizes[i] == given->sizes[i]);
    if (!fits) {
        dimorder_put_where(why, "input", promised);
        dimorder_put_found(why);
        dimorder_puts(why, "shape ");
        dimorder_put_tuple(why, given->sizes, given->rank);
        dimorder_puts(why, ", where ");
        dimorder_put_promised(why, contract, promised);
        dimorder_puts(why, " is promised");
        dimorder_put_fix(why);
        dimorder_put_shape_fix(why, contract, promised, given);
        return DIMORDER_REFUSED;
    }
    for (int i = 0; i < promised->rank; i++) {
        if (promised->sizes[i] >= 0) continue;
        int index = (int)(-1 - promised->sizes[i]);
        dimorder_status status =
            dimorder_check_dynamic_size(contract, index, promised, i, given->sizes[i], sizes, why);
        if (status != DIMORDER_OK) return status;
    }
    int64_t elements = 1;
    for (int i = 0; i < promised->rank; i++) {
        int64_t size = given->sizes[i] > 1 ? given->sizes[i] : 1;
        if (size <= INT32_MAX / elements) {
            elements *= size;
            continue;
        }
        dimorder_put_where(why, "input", promised);
        dimorder_put_found(why);
        dimorder_puts(why, "shape ");
        dimorder_put_tuple(why, given->sizes, given->rank);
        dimorder_puts(why, ", which is 2147483648 elements or more");
        dimorder_put_fix(why);
        dimorder_puts(why, "pass fewer elements: ExecuTorch counts them in 32 bits");
        return DIMORDER_REFUSED;
    }
    return DIMORDER_OK;
}

/* The order of the dense tensor that the program reads, over the logical dimensions: the contract's, or what is
 * the same memory and has a name, which is all that ExecuTorch's loaders know. */
DIMORDER_FN void dimorder_memory_order(const dimorder_tensor *promised, int *order) {
    int contiguous[DIMORDER_MAX_RANK];
    int64_t sizes[DIMORDER_MAX_RANK]; /* a dynamic size is never taken for 1 */
    for (int i = 0; i < promised->rank; i++) {
        order[i] = promised->order[i];
        sizes[i] = promised->sizes[i] < 0 ? 2 : promised->sizes[i];
    }
    if (promised->is_physical) return;
    dimorder_contiguous(contiguous, promised->rank);
    if (dimorder_equivalent(contiguous, order, promised->rank, sizes)) {
        dimorder_contiguous(order, promised->rank);
    } else if (promised->rank == 4) {
        int last[DIMORDER_MAX_RANK];
        dimorder_channels_last(last, 4);
        if (dimorder_equivalent(last, order, 4, sizes)) dimorder_channels_last(order, 4);
    }
}

/* The order that a tensor lies in, by its usual name, or why it is not dense. */
DIMORDER_FN void dimorder_put_own_order(dimorder_message *to, const dimorder_view *given) {
    int own[DIMORDER_MAX_RANK], contiguous[DIMORDER_MAX_RANK], last[DIMORDER_MAX_RANK], rank = given->rank;
    if (!dimorder_read_order(given->sizes, given->strides, rank, own, to)) return;
    dimorder_contiguous(contiguous, rank);
    dimorder_channels_last(last, rank);
    int is_contiguous = dimorder_equivalent(contiguous, own, rank, given->sizes);
    int is_last = dimorder_equivalent(last, own, rank, given->sizes);
    dimorder_put_order(to, is_contiguous ? contiguous : is_last ? last : own, rank);
}

/* Check the order of a tensor whose type and sizes are right. `kind` is "input" or "output".
 *
 * An order that puts every element in the same place is right. */
DIMORDER_FN dimorder_status dimorder_check_order(
    const char *kind, const dimorder_tensor *promised, const dimorder_view *given, dimorder_message *why) {
    int held[DIMORDER_MAX_RANK], found[DIMORDER_MAX_RANK], wanted[DIMORDER_MAX_RANK], last[DIMORDER_MAX_RANK];
    int64_t canonical[DIMORDER_MAX_RANK], dims[DIMORDER_MAX_RANK], back[DIMORDER_MAX_RANK];
    int rank = promised->rank;
    dimorder_memory_order(promised, held);
    dimorder_strides(held, rank, given->sizes, canonical);
    int is_to_the_letter = 1;
    for (int i = 0; i < rank; i++) is_to_the_letter &= canonical[i] == given->strides[i];
    if (is_to_the_letter) return DIMORDER_OK;
    int is_dense = dimorder_read_order(given->sizes, given->strides, rank, found, NULL);
    dimorder_canonical(promised->order, rank, given->sizes, wanted);
    if (is_dense && dimorder_same(found, wanted, rank)) return DIMORDER_OK;
    if (why == NULL) return DIMORDER_OTHER_ORDER;
    dimorder_put_where(why, kind, promised);
    dimorder_puts(why, ", promised in ");
    dimorder_put_order(why, promised->order, rank);
    dimorder_put_found(why);
    dimorder_put_own_order(why, given);
    dimorder_puts(why, ", shape ");
    dimorder_put_tuple(why, given->sizes, rank);
    dimorder_puts(why, ", strides ");
    dimorder_put_tuple(why, given->strides, rank);
    dimorder_put_fix(why);
    if (strcmp(kind, "input") != 0) {
        dimorder_puts(why, "lower the program again, or load it to adapt");
        return DIMORDER_OTHER_ORDER;
    }
    int is_row_major = 1;
    dimorder_channels_last(last, rank);
    for (int i = 0; i < rank; i++) {
        is_row_major &= promised->order[i] == i;
        dims[i] = promised->order[i];
        back[promised->order[i]] = i;
    }
    dimorder_put_variable(why, promised);
    dimorder_puts(why, " = ");
    dimorder_put_variable(why, promised);
    if (is_row_major) {
        dimorder_puts(why, ".contiguous()");
    } else if (rank == 4 && dimorder_same(promised->order, last, rank)) {
        dimorder_puts(why, ".contiguous(memory_format=torch.channels_last)");
    } else {
        dimorder_puts(why, ".permute");
        dimorder_put_tuple(why, dims, rank);
        dimorder_puts(why, ".contiguous().permute");
        dimorder_put_tuple(why, back, rank);
    }
    return DIMORDER_OTHER_ORDER;
}

/* Check all of a caller's inputs at once; `why` says what the first one that is not right has. */
DIMORDER_FN dimorder_status dimorder_check(
    const dimorder_contract *contract, const dimorder_view *given, size_t count, dimorder_message *why) {
    int64_t sizes[DIMORDER_MAX_SYMBOLS];
    dimorder_status status = dimorder_check_count(contract, count, why);
    for (int i = 0; i < DIMORDER_MAX_SYMBOLS; i++) sizes[i] = -1;
    for (int i = 0; status == DIMORDER_OK && i < contract->inputs; i++) {
        dimorder_tensor promised = dimorder_input(contract, i);
        status = dimorder_check_kind(contract, &promised, &given[i], sizes, why);
    }
    for (int i = 0; status == DIMORDER_OK && i < contract->inputs; i++) {
        dimorder_tensor promised = dimorder_input(contract, i);
        status = dimorder_check_order("input", &promised, &given[i], why);
    }
    return status;
}

/* Integers */

/* The integer that stands for a number in a tensor with a scale: the nearest, of two as near the even one. NaN becomes the zero point. */
DIMORDER_FN int32_t dimorder_quantum(const dimorder_tensor *tensor, float number) {
    int32_t least, most;
    float steps = number * (float)(1.0 / tensor->scale);
    dimorder_integer_range(tensor->dtype, &least, &most);
    if (steps != steps) return tensor->zero_point;
    if (steps < -65536.0f) return least;
    if (steps > 65536.0f) return most;
    int32_t whole = (int32_t)steps; /* towards zero */
    double rest = (double)steps - whole; /* in float a compiler might fuse it with the product above */
    if (rest > 0.5 || (rest == 0.5 && (whole & 1) != 0)) whole++;
    if (rest < -0.5 || (rest == -0.5 && (whole & 1) != 0)) whole--;
    whole += tensor->zero_point;
    return whole < least ? least : whole > most ? most : whole;
}

/* Write the integers that stand for `count` numbers: bytes, or int16. A tensor without a scale is refused. */
DIMORDER_FN dimorder_status dimorder_quantize(
    const dimorder_tensor *tensor, const float *from, size_t count, void *to) {
    if (!tensor->is_scaled) return DIMORDER_REFUSED;
    for (size_t i = 0; i < count; i++) {
        int32_t quantum = dimorder_quantum(tensor, from[i]);
        if (tensor->dtype == DIMORDER_UINT8) ((uint8_t *)to)[i] = (uint8_t)quantum;
        else if (tensor->dtype == DIMORDER_INT8) ((int8_t *)to)[i] = (int8_t)quantum;
        else ((int16_t *)to)[i] = (int16_t)quantum;
    }
    return DIMORDER_OK;
}

/* Write the numbers that `count` integers stand for. A tensor without a scale is refused. */
DIMORDER_FN dimorder_status dimorder_dequantize(
    const dimorder_tensor *tensor, const void *from, size_t count, float *to) {
    if (!tensor->is_scaled) return DIMORDER_REFUSED;
    for (size_t i = 0; i < count; i++) {
        int32_t quantum = tensor->dtype == DIMORDER_UINT8  ? (int32_t)((const uint8_t *)from)[i]
                          : tensor->dtype == DIMORDER_INT8 ? (int32_t)((const int8_t *)from)[i]
                                                           : (int32_t)((const int16_t *)from)[i];
        to[i] = (float)(quantum - tensor->zero_point) * (float)tensor->scale;
    }
    return DIMORDER_OK;
}

#endif /* DIMORDER_CONTRACT_H */
