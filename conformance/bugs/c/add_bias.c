SHARE {
    const int64_t width = b->x_dims[1];
    EACH(t, b->x_dims[0]) {
        for (int64_t i = 0; i < width; i++) b->out[t * width + i] = b->x[t * width + i] + b->bias[i];
    }
}
