SHARE {
    const int64_t width = b->x_dims[1];
    EACH(t, b->x_dims[0]) {
        const float *x = b->x + t * width;
        float *out = b->out + t * width;
        float most = -INFINITY;
        for (int64_t i = 0; i < width; i++) most = x[i] > most || x[i] != x[i] ? x[i] : most;
        double sum = 0;
        for (int64_t i = 0; i < width; i++) sum += exp((double)x[i] - most);
        for (int64_t i = 0; i < width; i++) out[i] = (float)(exp((double)x[i] - most) / sum);
    }
}
