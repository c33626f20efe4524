SHARE {
    const int64_t tokens = b->x_dims[0], width = b->x_dims[1];
    EACH(t, tokens) {
        const float *x = b->x + t * width;
        const int64_t cell = b->cells[t];
        uint8_t *row = b->out + cell * b->out_dims[1];
        for (int64_t i = 0; i < width; i++) put(row, i, x[i]);
    }
}
