SHARE {
    const int64_t heads = b->x_dims[1], head_dim = b->x_dims[2], pairs = b->rotation_dims[1];
    EACH(t, b->x_dims[0]) {
        for (int64_t h = 0; h < heads; h++) {
            const float *x = b->x + (t * heads + h) * head_dim, *turn = b->rotation + t * pairs * 2;
            float *out = b->out + (t * heads + h) * head_dim;
            for (int64_t i = 0; i < pairs; i++) {
                const float cosine = turn[2 * i], sine = turn[2 * i + 1];
                out[i] = x[i] * cosine - x[i + pairs] * sine;
                out[i + pairs] = x[i] * sine + x[i + pairs] * cosine;
            }
            for (int64_t i = 2 * pairs; i < head_dim; i++) out[i] = x[i];
        }
    }
}
