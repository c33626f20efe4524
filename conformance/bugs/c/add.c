SHARE {
    const int64_t width = b->x_dims[1], elements = b->x_dims[0] * width;
    EACH(i, elements) {
        b->out[i] = b->x[i] + b->y[i];
    }
}
