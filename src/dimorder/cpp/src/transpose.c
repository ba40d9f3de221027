/* Decides how blocks of memory are transposed: tile by tile in SIMD registers, a cache line at a time.
 *
 * Optional: `hatch_build.py` compiles it where there is a compiler; `transposition.py` does without elsewhere.
 * Vectors are of 16 bytes, which every x86-64 and arm64 has. On x86-64 each function is compiled for AVX2
 * too; which one is called is decided when the library is loaded.
 */

#include <stddef.h>
#include <stdint.h>

#include "transpose.h"

#if defined(__x86_64__) && defined(__GLIBC__) /* whose loader can choose a function */
#define FOR_EACH_CPU __attribute__((target_clones("avx2", "default")))
#else
#define FOR_EACH_CPU
#endif

#if defined(__clang__)
#define INTERLEAVE(TYPE, A, B, ...) __builtin_shufflevector(A, B, __VA_ARGS__)
#else /* GCC has had the other one since version 12 only */
#define INTERLEAVE(TYPE, A, B, ...) __builtin_shuffle(A, B, (TYPE##_vector){__VA_ARGS__})
#endif

#define LINE_BYTES 64
#define PART 256 /* rows and columns that a thread takes at a time; whole lines for every size of element */

static inline size_t least(size_t a, size_t b) { return a < b ? a : b; }

/* Of a loop whose bounds it knows, the compiler makes shuffles. So few columns or rows are one part. */
#define OF_FEW_COLUMNS(COUNT)                                                                     \
    case COUNT:                                                                                   \
        for (size_t row = top; row < bottom; row++)                                               \
            for (size_t column = 0; column < COUNT; column++)                                     \
                to[column * rows + row] = from[row * COUNT + column];                             \
        return;
#define OF_FEW_ROWS(COUNT)                                                                        \
    case COUNT:                                                                                   \
        for (size_t column = left; column < right; column++)                                      \
            for (size_t row = 0; row < COUNT; row++)                                              \
                to[column * COUNT + row] = from[row * columns + column];                          \
        return;

/* For elements of a type, COUNT of which fill a vector. A tile of COUNT x COUNT is transposed by interleaving
 * its first half with its second, as often as COUNT can be halved. */
#define DEFINE_FOR(TYPE, COUNT, LOW, HIGH)                                                        \
    typedef TYPE TYPE##_vector __attribute__((vector_size(16), aligned(1), may_alias));           \
                                                                                                  \
    static inline __attribute__((always_inline)) void TYPE##_tile(                                \
        const TYPE *from, size_t columns, TYPE *to, size_t rows) {                                \
        TYPE##_vector tile[COUNT], next[COUNT];                                                   \
        for (size_t i = 0; i < COUNT; i++) tile[i] = *(const TYPE##_vector *)(from + i * columns); \
        for (int step = 1; step < COUNT; step *= 2) {                                             \
            for (size_t i = 0; i < COUNT / 2; i++) {                                              \
                next[2 * i] = INTERLEAVE(TYPE, tile[i], tile[i + COUNT / 2], LOW);                \
                next[2 * i + 1] = INTERLEAVE(TYPE, tile[i], tile[i + COUNT / 2], HIGH);           \
            }                                                                                     \
            for (size_t i = 0; i < COUNT; i++) tile[i] = next[i];                                 \
        }                                                                                         \
        for (size_t i = 0; i < COUNT; i++) *(TYPE##_vector *)(to + i * rows) = tile[i];           \
    }                                                                                             \
                                                                                                  \
    FOR_EACH_CPU static void TYPE##_part(                                                         \
        const void *source, void *target, size_t rows, size_t columns,                            \
        size_t top, size_t bottom, size_t left, size_t right) {                                   \
        const TYPE *restrict from = source;                                                       \
        TYPE *restrict to = target;                                                               \
        switch (columns) { OF_FEW_COLUMNS(2) OF_FEW_COLUMNS(3) OF_FEW_COLUMNS(4) }                \
        switch (rows) { OF_FEW_ROWS(2) OF_FEW_ROWS(3) OF_FEW_ROWS(4) }                            \
        enum { LINE = LINE_BYTES / sizeof(TYPE) };                                                \
        size_t tiled_bottom = bottom - (bottom - top) % COUNT;                                    \
        size_t tiled_right = right - (right - left) % COUNT;                                      \
        for (size_t x = left; x < tiled_right; x += LINE)                                         \
            for (size_t y = top; y < tiled_bottom; y += LINE)                                     \
                for (size_t column = x; column < least(x + LINE, tiled_right); column += COUNT)   \
                    for (size_t row = y; row < least(y + LINE, tiled_bottom); row += COUNT)       \
                        TYPE##_tile(from + row * columns + column, columns,                       \
                                    to + column * rows + row, rows);                              \
        for (size_t column = tiled_right; column < right; column++)                               \
            for (size_t row = top; row < bottom; row++)                                           \
                to[column * rows + row] = from[row * columns + column];                           \
        for (size_t row = tiled_bottom; row < bottom; row++)                                      \
            for (size_t column = left; column < tiled_right; column++)                            \
                to[column * rows + row] = from[row * columns + column];                           \
    }

#define LOW2 0, 2
#define HIGH2 1, 3
#define LOW4 0, 4, 1, 5
#define HIGH4 2, 6, 3, 7
#define LOW8 0, 8, 1, 9, 2, 10, 3, 11
#define HIGH8 4, 12, 5, 13, 6, 14, 7, 15
#define LOW16 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23
#define HIGH16 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31

DEFINE_FOR(uint8_t, 16, LOW16, HIGH16)
DEFINE_FOR(uint16_t, 8, LOW8, HIGH8)
DEFINE_FOR(uint32_t, 4, LOW4, HIGH4)
DEFINE_FOR(uint64_t, 2, LOW2, HIGH2)

typedef void part_of(const void *, void *, size_t, size_t, size_t, size_t, size_t, size_t);

/* Writes `batch` blocks of rows x columns elements of 1, 2, 4 or 8 bytes as blocks of columns x rows. */
void dimorder_transpose(
    const void *from, void *to, size_t bytes, size_t batch, size_t rows, size_t columns, int threads) {
    part_of *part = bytes == 1   ? uint8_t_part
                    : bytes == 2 ? uint16_t_part
                    : bytes == 4 ? uint32_t_part
                                 : uint64_t_part;
    size_t block = rows * columns * bytes;
#ifdef _OPENMP
#pragma omp parallel for collapse(3) num_threads(threads) if (threads > 1)
#else
    (void)threads;
#endif
    for (size_t index = 0; index < batch; index++)
        for (size_t left = 0; left < columns; left += PART)
            for (size_t top = 0; top < rows; top += PART)
                part((const char *)from + index * block, (char *)to + index * block, rows, columns, top,
                     least(top + PART, rows), left, least(left + PART, columns));
}
