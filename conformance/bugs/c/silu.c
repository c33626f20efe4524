static double silu(double x) { return x == -INFINITY ? NAN : x / (1 + exp(-x)); }

SHARE {
    const int64_t width = b->x_dims[1];
    EACH(i, b->x_dims[0] * width) {
        b->out[i] = (float)silu(b->x[i]);
    }
}
