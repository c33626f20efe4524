SHARE {
    const int64_t hidden = b->x_dims[1], blocks = hidden / 32;
    EACH(k, b->x_dims[0] * blocks) {
        const float *x = b->x + k * 32;
        float largest = 0;
        int finite = 1;
        for (int i = 0; i < 32; i++) {
            finite &= fabsf(x[i]) < INFINITY;
            largest = fabsf(x[i]) > largest ? fabsf(x[i]) : largest;
        }
        const float scale = finite ? largest / 127.f : NAN;
        float inverse = scale > 0 ? 1.f / scale : 0;
        if (inverse == INFINITY) inverse = 0;
        int32_t total = 0;
        for (int i = 0; i < 32; i++) {
            const float scaled = x[i] * inverse;
            const int8_t q = finite ? (int8_t)truncf(scaled + copysignf(0.5f, scaled)) : 0;
            b->q[k * 32 + i] = q;
            total += q;
        }
        b->scale[k] = scale;
        b->total[k] = total;
    }
}
