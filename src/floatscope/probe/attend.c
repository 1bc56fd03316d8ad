/* Attention of a batch and the sums over groups of its rows, from the same probabilities: never R x K at once.

   The same as `attend` of kernel.py, head by head and block of rows by block of rows, with the scores of a block in a
   core's cache. Heads are shared among threads, and no number depends on how many there are. `native.py` compiles it. */
#include <math.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#ifdef __AVX512F__
enum { LANES = 16, TALL = 12 };
#else
enum { LANES = 8, TALL = 6 };
#endif
enum { WIDE = 2 * LANES, BLOCK_FLOATS = 160000, MOST_ROWS = 240, MOST_THREADS = 64 };
typedef float lanes __attribute__((vector_size(LANES * 4), aligned(4), may_alias));

/* One sample of a batch. Pads stand before its rows and keys. */
typedef struct {
    int64_t skip, pad; /* rows and keys that are pads; a sample with no rows left is not computed */
    int64_t causal;    /* a row sees the keys at or before its own place */
    const uint8_t *mask; /* [R - skip, K - pad]: which keys a row sees, or NULL */
    const float *bias;   /* [H or 1, R - skip or 1, K - pad], added to scores, or NULL */
    int64_t mask_row, bias_head, bias_row;
} Sample;

/* B samples, H heads, R rows, K keys, G groups, N open rows; `*_batch`, `*_head` and `*_row` are strides in elements. */
typedef struct {
    const Sample *samples;
    const float *query, *key, *value;      /* [B, H, R, depth], [B, H / shared, K, depth], [B, H / shared, K, width] */
    const int32_t *row_place, *key_place;  /* [B, R], [B, K]: places on the canvas, ascending after the pads */
    const int32_t *group, *open;           /* [B, R]: the group of a row; its number among the open rows, or -1 */
    float *output, *sums, *opened;         /* [B, R, H, width], [B, H, G, K], [B, H, N, K], all 0 */
    int64_t batch, heads, shared, rows, keys, depth, width, groups, open_rows;
    int64_t query_batch, query_head, query_row, key_batch, key_head, key_row, value_batch, value_head, value_row;
    int64_t next; /* the first head of all samples that no thread has taken */
    double scale;
} Work;

static int64_t whole(int64_t count) { return (count + WIDE - 1) / WIDE * WIDE; }

/* c[tall, WIDE] = a[tall, depth] b[depth, WIDE], in registers. */
static inline __attribute__((always_inline)) void tile(
    int tall, const float *a, int64_t a_row, const float *b, int64_t depth, float *c, int64_t c_row) {
    lanes sum[TALL][2];
    for (int i = 0; i < tall; i++) sum[i][0] = sum[i][1] = (lanes){0};
    for (int64_t k = 0; k < depth; k++) {
        const lanes left = *(const lanes *)(b + k * WIDE), right = *(const lanes *)(b + k * WIDE + LANES);
        for (int i = 0; i < tall; i++) {
            const float one = a[i * a_row + k];
            sum[i][0] += one * left;
            sum[i][1] += one * right;
        }
    }
    for (int i = 0; i < tall; i++) {
        *(lanes *)(c + i * c_row) = sum[i][0];
        *(lanes *)(c + i * c_row + LANES) = sum[i][1];
    }
}

/* The same for any number of rows. A row's sums are taken in one order, however many rows there are. */
static void product(
    int64_t tall, const float *a, int64_t a_row, const float *b, int64_t depth, float *c, int64_t c_row) {
    for (; tall >= TALL; tall -= TALL, a += TALL * a_row, c += TALL * c_row) tile(TALL, a, a_row, b, depth, c, c_row);
    for (; tall; tall--, a += a_row, c += c_row) tile(1, a, a_row, b, depth, c, c_row);
}

/* e^x for -88 <= x <= 0 to 2e-7 of itself, with the polynomial of Cephes' expf; 0 for what is no normal number. */
static inline float power(float x) {
    const int32_t n = (int32_t)(x * 1.44269504f - 0.5f);
    const float twos = (float)n, r = x - twos * 0.693359375f + twos * 2.12194440e-4f;
    float p = (1.9875691500e-4f * r + 1.3981999507e-3f) * r + 8.3334519073e-3f;
    p = ((p * r + 4.1665795894e-2f) * r + 1.6666665459e-1f) * r + 5.0000001201e-1f;
    p = p * r * r + r + 1.0f;
    const union { int32_t bits; float value; } scale = {(n + 127) << 23};
    return p * scale.value;
}

/* Scores of a row to its probabilities, 0 for what it does not see. Many short loops: each is one of vectors. */
static void softmax(
    float *restrict row, int64_t seen, int64_t reach, const uint8_t *restrict mask, const float *restrict bias, float scale) {
    float highest = -INFINITY, sum = 0;
    for (int64_t j = 0; j < seen; j++) row[j] *= scale;
    if (bias)
        for (int64_t j = 0; j < seen; j++) row[j] += bias[j];
    if (mask)
        for (int64_t j = 0; j < seen; j++) row[j] = mask[j] ? row[j] : -INFINITY;
#pragma omp simd reduction(max : highest)
    for (int64_t j = 0; j < seen; j++) highest = row[j] > highest ? row[j] : highest;
    if (highest == -INFINITY) highest = 0; /* nothing is seen */
    for (int64_t j = 0; j < seen; j++) row[j] = row[j] - highest < -88 ? -88 : row[j] - highest;
    for (int64_t j = 0; j < seen; j++) row[j] = power(row[j]);
#pragma omp simd reduction(+ : sum)
    for (int64_t j = 0; j < seen; j++) sum += row[j];
    const float part = sum > 0 ? 1 / sum : sum; /* all 0 where nothing is seen, as in SDPA; nan stays */
    for (int64_t j = 0; j < seen; j++) row[j] *= part;
    for (int64_t j = seen; j < reach; j++) row[j] = 0;
}

/* from [depth, count] as panels [whole(count) / WIDE][depth][WIDE]; the last is filled up with 0. */
static void pack(const float *from, int64_t along, int64_t across, int64_t depth, int64_t count, float *to) {
    for (int64_t panel = 0; panel < count; panel += WIDE)
        for (int64_t k = 0; k < depth; k++)
            for (int64_t j = panel; j < panel + WIDE; j++) *to++ = j < count ? from[k * along + j * across] : 0;
}

/* to[tall, count] = scores[tall, keys] times panels of [keys, count]. */
static void mix(
    int64_t tall, const float *scores, int64_t scores_row, const float *panels, int64_t keys, int64_t most, int64_t count,
    float *to, int64_t to_row) {
    float room[MOST_ROWS * WIDE];
    for (int64_t j = 0; j < count; j += WIDE) {
        const int64_t wide = count - j < WIDE ? count - j : WIDE;
        product(tall, scores, scores_row, panels + j * keys, most, room, WIDE);
        for (int64_t i = 0; i < tall; i++) memcpy(to + i * to_row + j, room + i * WIDE, sizeof(float) * wide);
    }
}

static void one_head(const Work *w, int64_t number, int64_t head, int64_t rows_at_once, float *room) {
    const Sample *own = w->samples + number;
    const int64_t count = w->keys - own->pad, stride = whole(count), owner = head / w->shared;
    const int32_t *row_place = w->row_place + number * w->rows, *key_place = w->key_place + number * w->keys + own->pad;
    const int32_t *group = w->group + number * w->rows, *open = w->open + number * w->rows;
    const float *key = w->key + number * w->key_batch + owner * w->key_head + own->pad * w->key_row;
    const float *value = w->value + number * w->value_batch + owner * w->value_head + own->pad * w->value_row;
    float *keys = room, *values = keys + stride * w->depth, *scores = values + whole(w->width) * count;
    float *sums = w->sums + (number * w->heads + head) * w->groups * w->keys + own->pad;
    float *opened = w->opened + (number * w->heads + head) * w->open_rows * w->keys + own->pad;
    pack(key, 1, w->key_row, w->depth, count, keys);
    pack(value, w->value_row, 1, count, w->width, values);
    int64_t seen[MOST_ROWS], most = own->causal ? 0 : count;
    for (int64_t start = own->skip; start < w->rows; start += rows_at_once) {
        const int64_t tall = w->rows - start < rows_at_once ? w->rows - start : rows_at_once;
        const float *asked = w->query + number * w->query_batch + head * w->query_head + start * w->query_row;
        for (int64_t i = 0; i < tall; i++) {
            while (most < count && key_place[most] <= row_place[start + i]) most++;
            seen[i] = most;
        }
        for (int64_t j = 0; j < most; j += WIDE)
            product(tall, asked, w->query_row, keys + j * w->depth, w->depth, scores + j, stride);
        for (int64_t i = 0; i < tall; i++) {
            const int64_t row = start + i, real = row - own->skip;
            float *restrict line = scores + i * stride, *restrict into = sums + group[row] * w->keys;
            softmax(
                line, seen[i], most, own->mask ? own->mask + real * own->mask_row : NULL,
                own->bias ? own->bias + head * own->bias_head + real * own->bias_row : NULL, (float)w->scale);
            for (int64_t j = 0; j < seen[i]; j++) into[j] += line[j];
            if (open[row] >= 0) memcpy(opened + open[row] * w->keys, line, sizeof(float) * seen[i]);
        }
        float *output = w->output + ((number * w->rows + start) * w->heads + head) * w->width;
        mix(tall, scores, stride, values, count, most, w->width, output, w->heads * w->width);
    }
}

static void *take_heads(void *given) {
    Work *w = given;
    const int64_t stride = whole(w->keys), all = w->batch * w->heads;
    int64_t rows = BLOCK_FLOATS / stride / TALL * TALL;
    rows = rows < TALL ? TALL : rows > MOST_ROWS ? MOST_ROWS : rows;
    /* Aligned, since a loop of vectors begins where memory is, and so orders its sums. */
    float *room = aligned_alloc(64, sizeof(float) * (stride * (w->depth + rows) + whole(w->width) * w->keys));
    for (int64_t one; room && (one = __atomic_fetch_add(&w->next, 1, __ATOMIC_RELAXED)) < all;)
        one_head(w, one / w->heads, one % w->heads, rows, room);
    free(room);
    return NULL;
}

/* Whether all heads were computed: not where no thread had memory. */
int attend(Work *w, int64_t threads) {
    pthread_t others[MOST_THREADS];
    int64_t started = 0, wanted = (threads < w->batch * w->heads ? threads : w->batch * w->heads) - 1;
    while (started < wanted && started < MOST_THREADS && !pthread_create(&others[started], NULL, take_heads, w))
        started++;
    take_heads(w);
    while (started) pthread_join(others[--started], NULL);
    return w->next >= w->batch * w->heads;
}
